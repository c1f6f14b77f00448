"""Which programs run where: the properties say so, and nothing runs with less isolation than was asked for."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import pytest

from loopline import Bundle, Harness, LooplineError
from loopline.bundle import Properties
from loopline.errors import PropertyError
from loopline.harness import execution_features, features_for
from loopline.models import Json, JsonObject
from loopline.sandbox import Execution, ServedCall, Session
from loopline.sandbox.process import BubblewrapSandbox
from loopline.testing import Call, FakeClock, ScriptedModel
from tests.authoring.bundle_files import guide
from tests.support.programs import python


async def offered(**execution: Json) -> list[str]:
    """The tools for programs that a bundle with these properties offers."""
    configuration: dict[str, Json] = {"execution": execution} if execution else {}
    bundle = Bundle(id="shop", configuration=configuration)
    model = ScriptedModel(["Done."])
    async with Harness.open(bundle, store="memory:", model=model, clock=FakeClock()) as harness:
        await harness.conversation("c").say("go")
    names = [tool.name for tool in model.requests[0].tools]
    return [name for name in names if name.startswith("exec.")]


async def test_programs_run_only_where_the_section_is_written() -> None:
    assert await offered() == []
    assert await offered(runtime={"mode": "process"}) == ["exec.python"]
    assert await offered(shell=True) == ["exec.python", "exec.shell"]
    assert await offered(runtime={"enabled": False}) == []
    profiles: Json = {"off": {"enabled": False}, "own": {"mode": "process"}}
    assert await offered(runtime={"default_profile": "off", "profiles": profiles}) == []
    assert await offered(runtime={"default_profile": "own", "profiles": profiles}) == [
        "exec.python"
    ]


PROGRAMS = """
    from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult

    class Guide(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            react = await self.build_react(
                scratchpad=self.scratchpad, tools_module="guide.tools_descriptor"
            )
            return await react.run(payload)

    bundle = Bundle(id="guide", workflow=Guide)
"""


async def isolations(folder: Path, runtimes: str, **execution: Json) -> list[Json]:
    """How two programs of a bundle ran, one of Python and one of the shell, with a descriptor that says this."""
    descriptor = f"TOOLS_SPECS = []\nTOOL_RUNTIME = {runtimes}\n"
    opened = guide(folder, {"__init__.py": PROGRAMS, "tools_descriptor.py": descriptor})
    shell = Call("exec.shell", contract=[], program="true")
    model = ScriptedModel([python("pass"), shell, "Done."])
    properties: dict[str, Json] = {f"execution.{name}": value for name, value in execution.items()}
    async with Harness.open(opened, store="memory:", model=model, properties=properties) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        reading = await talk.read(["ar:turn_1.artifacts.c1", "ar:turn_1.artifacts.c2"])
    return [json.loads(item.text)["isolation"] for item in reading]


async def test_programs_read_the_folder_of_a_package_and_not_that_of_a_single_file(
    tmp_path: Path,
) -> None:
    package = guide(tmp_path, {"__init__.py": PROGRAMS})
    single = tmp_path / "single.py"
    single.write_text('from loopline import Bundle\n\nbundle = Bundle(id="single")\n')
    program = "import os; print('root', os.environ['BUNDLE_ROOT'])"
    properties: dict[str, Json] = {"execution.runtime.mode": "local", "execution.allow_local": True}
    roots = list[str]()
    for opened in (package, single):
        model = ScriptedModel([python(program), "Done."])
        async with Harness.open(
            opened, store="memory:", model=model, properties=properties
        ) as harness:
            talk = harness.conversation("c")
            await talk.say("go")
            [result] = await talk.read(["ar:turn_1.artifacts.c1"])
        roots.append(json.loads(result.text)["user_out_tail"])
    assert roots == [f"root {package}\n", "root \n"]


@pytest.mark.service
async def test_a_descriptor_names_the_backend_of_one_tool(tmp_path: Path) -> None:
    local: Json = {"mode": "local"}
    runtimes = '{"exec.shell": "process"}'
    properties: dict[str, Json] = {"runtime": local, "allow_local": True, "shell": True}
    assert await isolations(tmp_path, runtimes, **properties) == ["none", "process"]
    assert await isolations(tmp_path / "own", "{}", **properties) == ["none", "none"]


@pytest.mark.parametrize(
    ("runtimes", "problem", "properties"),
    [
        ('{"exec.python": "local"}', "isolates nothing", {"shell": True}),
        ('{"exec.shell": "process"}', "execution.shell", {}),
        ('{"exec.python": "fargate"}', "cluster", {"shell": True}),
    ],
)
async def test_a_backend_that_a_descriptor_names_needs_what_the_property_needs(
    runtimes: str, problem: str, properties: dict[str, Json], tmp_path: Path
) -> None:
    with pytest.raises(LooplineError, match=problem):
        await isolations(tmp_path, runtimes, runtime={"mode": "process"}, **properties)


async def test_a_descriptor_names_no_backend_where_programs_are_not_turned_on(
    tmp_path: Path,
) -> None:
    with pytest.raises(PropertyError, match=r"TOOL_RUNTIME names exec\.shell: .*`execution`"):
        await isolations(tmp_path, '{"exec.shell": "process"}')


async def test_a_descriptor_may_name_a_backend_where_programs_are_turned_off(
    tmp_path: Path,
) -> None:
    descriptor = 'TOOLS_SPECS = []\nTOOL_RUNTIME = {"exec.python": "process"}\n'
    opened = guide(tmp_path, {"__init__.py": PROGRAMS, "tools_descriptor.py": descriptor})
    off: dict[str, Json] = {"execution.runtime.enabled": False}
    model = ScriptedModel(["Done."])
    async with Harness.open(opened, store="memory:", model=model, properties=off) as harness:
        await harness.conversation("c").say("go")
    assert "exec.python" not in {tool.name for tool in model.requests[0].tools}


@pytest.mark.parametrize(
    ("execution", "problem"),
    [
        ({"runtime": {"mode": "local"}}, "isolates nothing"),
        ({"runtime": {"mode": "none"}}, "the known names are"),
        ({"runtime": {"default_profile": "x"}}, "default_profile"),
        ({"runtime": {"profiles": {"small": {"mode": "docker"}}}}, "no profile is chosen"),
        (
            {"runtime": {"mode": "process", "profiles": {"docker": {"memry": "2g"}}}},
            "unknown property 'memry'",
        ),
        ({"runtime": {"mode": "process", "profiles": {"docker": "2g"}}}, "is not a section"),
        ({"effect": "meta"}, "execution.effect"),
        ({"limits": {"calls": 0}}, "execution.limits.calls"),
        ({"approval_wait_s": -1.0}, "approval_wait_s"),
        ({"tools": "shop.*"}, "list of patterns"),
    ],
)
async def test_a_wrong_property_is_refused(execution: dict[str, Json], problem: str) -> None:
    with pytest.raises(PropertyError, match=problem):
        await offered(**execution)


async def test_a_program_does_not_run_where_it_cannot_be_isolated() -> None:
    async def serve(tool: str, arguments: object) -> ServedCall:
        raise AssertionError(f"{tool} was called with {arguments}")

    output = list[str]()
    sandbox = BubblewrapSandbox("/usr/bin/no-such-python")
    execution = Execution(execution_id="e", turn_id="turn_1", program="print('it ran')")
    end = await sandbox.run(execution, Session(serve=serve, on_output=output.append))
    await sandbox.close()
    assert end.failure is not None
    assert (end.failure.where, end.failure.code) == ("sandbox", "isolation_unavailable")
    assert (output, end.user_out) == ([], "")


FAILS_ONCE = """#!/bin/sh
if [ ! -e {folder}/failed ] && {condition}; then touch {folder}/failed; exit 137; fi
exec {program} "$@"
"""
"""A program that fails when it first meets the condition, and from then on is the real one."""


def failing_once(folder: Path, name: str) -> Path:
    """Write a program that fails once: bubblewrap at its first start, Python when it first compiles the executor."""
    compiles = 'echo "$*" | grep -q marshal'
    conditions = {"bwrap": ("true", which("bwrap")), "python3": (compiles, "/usr/bin/python3")}
    condition, real = conditions[name]
    program = folder / "bin" / name
    program.parent.mkdir()
    program.write_text(FAILS_ONCE.format(folder=folder, condition=condition, program=real))
    for path in (folder, program):
        path.chmod(0o755)
    return program


@pytest.mark.service
@pytest.mark.parametrize("name", ["bwrap", "python3"])
async def test_a_sandbox_that_could_not_be_made_is_made_for_the_next_program(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(tool: str, arguments: object) -> ServedCall:
        raise AssertionError(f"{tool} was called with {arguments}")

    with TemporaryDirectory(dir="/var/tmp") as folder:  # a program does not see the machine's /tmp
        program = failing_once(Path(folder), name)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        sandbox = BubblewrapSandbox("/usr/bin/python3" if name == "bwrap" else str(program))
        execution = Execution(execution_id="e", turn_id="turn_1", program="print('it ran')")
        first = await sandbox.run(execution, Session(serve=serve))
        second = await sandbox.run(execution, Session(serve=serve))
        await sandbox.close()
    assert first.failure is not None
    assert first.failure.code == "isolation_unavailable"
    assert (second.failure, second.user_out) == (None, "it ran\n")


@pytest.mark.service
@pytest.mark.parametrize("kind", ["environment", "link", "relative", "system"])
async def test_programs_run_in_a_virtual_environment_at_any_path(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(tool: str, arguments: object) -> ServedCall:
        raise AssertionError(f"{tool} was called with {arguments}")

    project = tmp_path / "a deep" / "path of" / "a project"
    (project / "secret.txt").parent.mkdir(parents=True)
    (project / "secret.txt").write_text("secret")
    base = "/usr/bin/python3" if kind == "system" else sys.executable
    make = [base, "-m", "venv", "--without-pip", str(project / ".venv")]
    await asyncio.to_thread(subprocess.run, make, check=True)
    [packages] = (project / ".venv").glob("lib/python3*/site-packages")
    (packages / "teapot.py").write_text("KIND = 'earthenware'")
    python = project / ".venv/bin/python"
    if kind == "link":
        (project / "bin").mkdir()
        (project / "bin/python").symlink_to(python)
        python = project / "bin/python"
    monkeypatch.chdir(project)
    program = "import os\nprint(os.path.exists(os.environ['SECRET']))"
    if kind != "link":  # a Python finds its environment by the path of its command
        program += "\nimport teapot\nprint(teapot.KIND)"
    sandbox = BubblewrapSandbox(".venv/bin/python" if kind == "relative" else str(python))
    execution = Execution(
        execution_id="e",
        turn_id="turn_1",
        program=program,
        variables={"SECRET": str(project / "secret.txt")},
    )
    end = await sandbox.run(execution, Session(serve=serve))
    await sandbox.close()
    kinds = [] if kind == "link" else ["earthenware"]
    assert (end.failure, end.user_out.split()) == (None, ["False", *kinds])


async def test_a_check_and_the_doctor_agree_about_the_programs_of_a_bundle() -> None:
    without = await features_for(Properties({}))
    assert without == {}
    written: JsonObject = {"runtime": {"mode": "process"}, "python": "/usr/bin/no-such-python"}
    features = await features_for(Properties({"execution": written}, frozenset({"execution"})))
    [missing] = [item for item in features["process"] if item.name == "namespaces"]
    assert not missing.ok
    assert "no-such-python" in missing.detail


async def test_each_backend_says_what_it_needs() -> None:
    features = await execution_features()
    names = [feature.name for feature in features["process"]]
    assert {"bubblewrap", "seccomp", "landlock", "cgroup"} <= set(names)
    assert all(feature.detail for feature in features["process"])
