"""The log files of executions: what each has, and who may read it."""

from __future__ import annotations

from pathlib import Path

from loopline import Harness, tool
from loopline.sandbox.execution import LOG_BYTES
from loopline.testing import Call, ScriptedModel
from tests.support.programs import bundle, python


@tool(effect="read")
def price(kind: str) -> float:
    """Return the price of a kind of tea."""
    return {"green": 4.0}[kind]


async def test_each_execution_adds_a_part_to_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    first = "print('said'); await tools.call('shop.price', kind='green')"
    second = (
        "import sys; print('wrong', file=sys.stderr); await tools.call('shop.price', kind='red')"
    )
    third = "for _ in range(3): await tools.call('shop.price', kind='green')"
    model = ScriptedModel([python(first), python(second), python(third), "Done."])
    logged = bundle(price, log_folder=str(folder), limits={"calls": 1})
    async with Harness.open(logged, store="memory:", model=model) as harness:
        await harness.conversation("c").say("go")
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert sorted(texts) == [
        "executor.log",
        "infra.log",
        "runtime.err.log",
        "supervisor.log",
        "user.log",
    ]
    assert texts["user.log"].startswith("===== EXECUTION turn_1-c1 START 2")
    assert texts["user.log"].endswith("=====\nsaid\n")
    assert "wrong\n" in texts["runtime.err.log"]
    assert texts["executor.log"].count("===== EXECUTION") == 3
    assert "program_failed" in texts["executor.log"]
    assert ": ok" in texts["supervisor.log"]
    assert ": error" in texts["supervisor.log"]
    assert "green" not in texts["supervisor.log"]
    assert "call_limit" in texts["infra.log"]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


async def test_a_session_is_logged_when_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    programs = [
        "print('one')",
        "import sys; print('two', file=sys.stderr); await tools.call('shop.price', kind='green')",
        "import time; print('three'); time.sleep(60)",
    ]
    calls = [
        Call("exec.python", contract=[], program=program, session=name, timeout_s=seconds)
        for name, program, seconds in zip("aab", programs, (9.0, 9.0, 1.0), strict=True)
    ]
    model = ScriptedModel([*calls, "Done."])
    logged = bundle(price, log_folder=str(folder))
    async with Harness.open(logged, store="memory:", model=model) as harness:
        await harness.conversation("c").say("go")
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert texts["user.log"].splitlines()[1::2] == ["three", "one"]
    assert texts["runtime.err.log"].endswith("=====\ntwo\n")
    assert "shop.price" in texts["supervisor.log"]
    assert texts["executor.log"].count("session_lost: its session has ended") == 2


async def test_a_log_file_that_is_full_is_renamed(tmp_path: Path) -> None:
    full = tmp_path / "user.log"
    full.write_bytes(bytes(LOG_BYTES + 1))
    model = ScriptedModel([python("print('anew')"), "Done."])
    logged = bundle(price, log_folder=str(tmp_path))
    async with Harness.open(logged, store="memory:", model=model) as harness:
        await harness.conversation("c").say("go")
    assert (tmp_path / "user.log.1").stat().st_size == LOG_BYTES + 1
    assert full.read_text().endswith("=====\nanew\n")
