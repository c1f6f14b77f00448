"""The promises of a sandbox, held by each backend."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest

from loopline.models import Json, JsonObject
from loopline.sandbox import (
    Execution,
    ExecutionLimits,
    ExecutionResult,
    Sandbox,
    ServedCall,
    Session,
    StopProgram,
    parse_contract,
    result_of,
)

SHORT = ExecutionLimits(wall_seconds=20)


async def serve(tool: str, arguments: JsonObject) -> ServedCall:
    match tool:
        case "shop.find":
            return ServedCall(True, {"found": arguments["name"]})
        case "shop.large":
            return ServedCall(True, "x" * 3_000_000)
        case "shop.slow":
            await asyncio.sleep(60)
            return ServedCall(True, None)
        case "shop.deep":
            value: Json = 1
            for _ in range(int(str(arguments["levels"]))):
                value = [value]
            return ServedCall(True, value)
        case "shop.stop":
            raise StopProgram("approval_required", "shop.stop awaits approval")
        case _:
            return ServedCall(False, None, f"{tool} failed", "error")


TOOLS = ("shop.find", "shop.large", "shop.slow", "shop.deep", "shop.stop", "shop.fail")


async def run(
    sandbox: Sandbox,
    program: str,
    *names: str,
    limits: ExecutionLimits = SHORT,
    session: Session | None = None,
    shell: bool = False,
) -> ExecutionResult:
    execution = Execution(
        execution_id="e1",
        turn_id="turn_1",
        program=program,
        language="shell" if shell else "python",
        contract=parse_contract([{"filename": name} for name in names], "turn_1"),
        inputs={"turn_1/attachments/sales.csv": b"a,b\n1,2\n", "turn_1/files/x.py": b"X = 1\n"},
        tools=TOOLS,
        bundle_id="shop",
        limits=limits,
    )
    end = await sandbox.run(execution, session or Session(serve=serve))
    return result_of(execution, end)


def left_behind(runs: Path) -> list[Path]:
    """The folders of executions that are still there."""
    return list(runs.glob("*/*/"))


async def test_a_program_reads_its_inputs_calls_tools_and_makes_files(sandbox: Sandbox) -> None:
    events, output = list[tuple[str, Json]](), list[str]()
    session = Session(
        serve=serve,
        on_output=output.append,
        on_event=lambda name, data: events.append((name, data)),
    )
    program = """
import os, sys
rows = open("attachments/sales.csv").read().split()
print(rows, await tools.call("shop.find", name=rows[0]))
import shop_tools, io_tools
print(await shop_tools.find(name="x"), await io_tools.tool_call(fn="shop.find", params={"name": "y"}))
import react_tools
from web_tools import search
try:
    await search("tea", n=1)
except ToolFailed as error:
    assert (error.code, str(error)[:51]) == ("not_allowed", "no tool 'web.search' is offered here: shop.find, sh"), error
try:
    import sea_tools
except ImportError as error:
    assert "no tool of 'sea' is offered here: shop.find" in str(error), error
emit("step", {"n": 1})
os.makedirs("outputs/deep", exist_ok=True)
open("outputs/deep/a.txt", "w").write("made")
open(os.path.join(os.environ["OUTPUT_DIR"], "turn_1", "files", "x.py"), "w").write(
    open(os.path.join(WORKDIR, "turn_1/files/x.py")).read() * 2)
print("to err", file=sys.stderr)
"""
    result = await run(sandbox, program, "deep/a.txt", "files/x.py", session=session)
    assert result.failure is None, result.report_text
    assert [item.data for item in result.made] == [b"made", b"X = 1\nX = 1\n"]
    assert events == [("step", {"n": 1})]
    assert "".join(output) == result.user_out_tail
    assert result.user_out_tail == (
        "['a,b', '1,2'] {'found': 'a,b'}\n{'found': 'x'} {'found': 'y'}\n"
    )
    assert result.runtime_err_tail == "to err\n"


async def test_the_variables_are_those_that_are_named(sandbox: Sandbox) -> None:
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    result = await run(sandbox, program)
    variables = json.loads(result.user_out_tail)
    for name in ("LC_CTYPE", "PWD", "SHLVL", "_", "OLDPWD"):  # of Python and of a shell
        variables.pop(name, None)
    assert sorted(variables) == sorted(
        [
            "PATH",
            "HOME",
            "TMPDIR",
            "LANG",
            "MPLBACKEND",
            "OPENBLAS_NUM_THREADS",
            "OMP_NUM_THREADS",
            "WORKDIR",
            "OUTPUT_DIR",
            "EXECUTION_ID",
            "RUNTIME_GLOBALS_JSON",
            "RUNTIME_TOOL_MODULES",
            "BUNDLE_ROOT",
            "BUNDLE_ID",
            "SUPERVISOR_SOCKET_PATH",
        ]
    )
    assert variables["EXECUTION_ID"] == "e1"
    assert variables["RUNTIME_TOOL_MODULES"] == "shop"
    assert json.loads(variables["RUNTIME_GLOBALS_JSON"]) == {
        "turn_id": "turn_1",
        "tools": list(TOOLS),
        "contract": [],
    }
    if sandbox.name != "local":
        assert variables["WORKDIR"] == "/workspace/work"
        assert variables["OUTPUT_DIR"] == "/workspace/out"
        assert variables["SUPERVISOR_SOCKET_PATH"] == "/tmp/supervisor.sock"


async def test_a_program_reads_the_files_of_its_bundle(sandbox: Sandbox, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "prices.txt").write_text("green 4.0")
    program = """
import os
place = os.environ["BUNDLE_ROOT"]
print(place, os.getcwd(), open(place + "/data/prices.txt").read())
try:
    open(place + "/data/new.txt", "w")
except OSError:
    print("read-only")
"""
    execution = Execution(
        execution_id="e1", turn_id="turn_1", program=program, bundle_root=str(folder), limits=SHORT
    )
    end = await sandbox.run(execution, Session(serve=serve))
    assert end.failure is None, end.failure
    read_only = "" if sandbox.name == "local" else "read-only\n"
    place, current, *rest = end.user_out.split(" ", 2)
    assert rest == [f"green 4.0\n{read_only}"]
    if sandbox.name != "local":
        assert (place, current) == ("/workspace/bundles/shop", "/workspace/out/turn_1")


async def test_a_shell_script_runs_without_tools(sandbox: Sandbox) -> None:
    script = "cat attachments/sales.csv | tail -1 >outputs/a.txt; echo done; ls /proc/self/fd | wc -l >&2"
    result = await run(sandbox, script, "a.txt", shell=True)
    assert result.failure is None, result.report_text
    assert [item.data for item in result.made] == [b"1,2\n"]


@pytest.mark.parametrize(
    ("program", "where", "code"),
    [
        ("open('outputs/a','w').write('1')\n1 / 0", "runtime", "program_failed"),
        ("open('outputs/a','w').write('1')\nimport sys; sys.exit(3)", "runtime", "program_failed"),
        ("print('x'", "runtime", "program_failed"),
        ("open('outputs/a','w').write('1')\nimport time; time.sleep(60)", "limits", "timeout"),
        ("open('outputs/a','w').write('1')\nprint('x' * 300_000)\nimport time; time.sleep(9)", "limits", "output_limit"),
        ("for n in range(30): open(f'outputs/{n}','wb').write(b'x' * 90_000)\nimport time; time.sleep(9)", "limits", "disk_limit"),
        ("for n in range(300): open(f'outputs/{n}','w')\nimport time; time.sleep(9)", "limits", "disk_limit"),
        ("open('outputs/a','wb').write(b'x' * 150_000)", "limits", "file_limit"),
        ("import os; os.symlink('/etc/hostname', 'outputs/a')", "artifact", "artifact_validation_failed"),
        ("import os; os.mkdir('outputs/a')", "artifact", "artifact_validation_failed"),
        ("open('outputs/b','w').write('1'); import os; os.link('outputs/b', 'outputs/a')", "artifact", "artifact_validation_failed"),
        ("import os, shutil; shutil.rmtree('outputs'); os.symlink('/etc', 'outputs')", "artifact", "artifact_validation_failed"),
        ("pass", "contract", "missing_output_files"),
        ("await tools.call('shop.stop')", "supervisor", "approval_required"),
        ("import os; os.write(19, b'[1]\\n')\nimport time; time.sleep(60)", "supervisor", "message_refused"),
        ("import os; os.write(19, b'{' * 2_000_000)\nimport time; time.sleep(60)", "supervisor", "message_refused"),
        ("for n in range(40): emit('e')\nfor n in range(9): await tools.call('shop.find', name='x')", "supervisor", "call_limit"),
        ("await tools.call('shop.fail')", "runtime", "program_failed"),
    ],
)  # fmt: skip
async def test_each_failure_has_its_code(
    sandbox: Sandbox, runs: Path, program: str, where: str, code: str
) -> None:
    limits = ExecutionLimits(
        wall_seconds=1.0 if code == "timeout" else 60.0,
        file_bytes=100_000,
        disk_bytes=2_000_000,
        disk_files=200,
        output_bytes=200_000,
        calls=8,
    )
    result = await run(sandbox, program, "a", limits=limits)
    assert result.failure is not None
    assert (result.failure.where, result.failure.code) == (where, code), result.report_text
    assert "executor" not in result.runtime_err_tail
    assert left_behind(runs) == []


async def test_a_call_has_a_time_of_its_own_and_a_result_a_size(sandbox: Sandbox) -> None:
    program = """
import asyncio
async def outcome(tool):
    try:
        return await tools.call(tool)
    except ToolFailed as error:
        return error.code
print(await asyncio.gather(outcome("shop.slow"), outcome("shop.large"), outcome("shop.fail"), outcome("no.tool")))
"""
    limits = ExecutionLimits(wall_seconds=20, call_seconds=0.3)
    result = await run(sandbox, program, limits=limits)
    assert result.user_out_tail == "['timeout', 'too_large', 'error', 'not_allowed']\n"


async def test_a_result_that_is_nested_too_deeply_is_an_error(sandbox: Sandbox) -> None:
    program = """
import sys
for levels in (20, 500, 100_000):
    try:
        sys.setrecursionlimit(400)
        print(str(await tools.call("shop.deep", levels=levels)).count("["))
    except ToolFailed as error:
        print(error.code, error)
"""
    result = await run(sandbox, program)
    refused = "too_deep the result is nested too deeply to be JSON"
    assert result.user_out_tail.splitlines() == ["20", refused, refused]


async def test_of_many_sparse_files_only_those_that_fit_together_are_read(
    sandbox: Sandbox,
) -> None:
    program = """
for number in range(100):
    with open(f"outputs/{number}", "wb") as file:
        file.truncate(20_000_000)
"""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await run(sandbox, program, *map(str, range(100)))
    used_kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (result.ok, len(result.made)) == (False, 2)
    assert used_kilobytes < 300_000


async def test_a_program_that_is_cancelled_leaves_nothing(sandbox: Sandbox, runs: Path) -> None:
    started = asyncio.Event()
    session = Session(serve=serve, on_output=lambda text: started.set())
    seconds = f"47.{os.getpid()}"  # others may run the same test now
    program = f"import subprocess, time; subprocess.Popen(['sleep', '{seconds}']); print('up'); time.sleep(48)"
    task = asyncio.ensure_future(run(sandbox, program, session=session))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left_behind(runs) == []
    assert not [name for name in commands() if name[:2] == [b"sleep", seconds.encode()]]


def commands() -> Sequence[list[bytes]]:
    """The command of every process that runs here."""
    found = list[list[bytes]]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().split(b"\0"))
        except OSError:
            continue  # it has ended
    return found


async def test_many_programs_run_at_once_and_leave_nothing(sandbox: Sandbox, runs: Path) -> None:
    program = "print((await tools.call('shop.find', name='x'))['found'])"
    count = 3 if sandbox.name == "fargate" else 8
    results = await asyncio.gather(*[run(sandbox, program) for _ in range(count)])
    assert [result.user_out_tail for result in results] == ["x\n"] * count
    assert left_behind(runs) == []
