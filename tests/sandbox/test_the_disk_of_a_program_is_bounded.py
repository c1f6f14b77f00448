"""What a program holds on its disk is bounded, in whatever way it holds it; nothing of it stays, and its result comes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from loopline.sandbox import Sandbox
from loopline.sandbox.fargate import FargateSandbox
from loopline.sandbox.process import LocalSandbox
from tests.bench.executions import left_behind, shared_names
from tests.support.disk_corpus import CORPUS, LIMITS, fill_disk, last_count
from tests.support.ecs_endpoint import TASKS, Services

BUDGET = 1.05
USER = 12_345
PLAIN = [
    "plain files",
    "unlinked",
    "below a long path",
    "in a closed folder",
    "many names of a file",
    "sparse",
    "twelve hundred folders",
    "folders that nobody may enter",
]
"""The programs that are run without isolation, too."""
AS_USER = f"""
import asyncio, concurrent.futures.thread, json, os, sys, traceback
from pathlib import Path
from loopline.sandbox.process import LocalSandbox
from loopline.sandbox.process import BubblewrapSandbox
from loopline.sandbox.seccomp_filter import filter_program
from tests.support.disk_corpus import CORPUS, fill_disk, last_count

async def main(folder):
    for sandbox in (BubblewrapSandbox(folder=folder), LocalSandbox("/usr/bin/python3", folder=folder)):
        for name in CORPUS if sandbox.name == "process" else {PLAIN!r}:
            end = await fill_disk(sandbox, name)
            code = end.failure.code if end.failure else ""
            print(json.dumps([sandbox.name, name, last_count(end), code]), flush=True)
        await sandbox.close()

filter_program()  # imports what an ordinary user may not read here
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid({USER}, {USER}, {USER})
    os.setresuid({USER}, {USER}, {USER})
asyncio.run(main(Path(sys.argv[1])))
"""


def folders_in(runs: Path) -> list[Path]:
    """The folders of executions that are still there."""
    return list(runs.glob("*/*/"))


def open_to_all(folder: Path) -> None:
    """Let every user make folders in a folder."""
    folder.chmod(0o777)


def check(name: str, count: int, code: str) -> None:
    """Hold that a program of the corpus has not held more than it may, and ended as it should."""
    program = CORPUS[name]
    assert code == program.code, name
    assert count <= program.limit * BUDGET, name
    if program.code == "":
        assert count == program.would_have, name


@pytest.mark.parametrize("name", CORPUS)
async def test_a_program_holds_no_more_than_it_may(
    isolated: Sandbox, runs: Path, name: str
) -> None:
    end = await fill_disk(isolated, name)
    check(name, last_count(end), end.failure.code if end.failure else "")
    assert sum(len(file.data or b"") for file in end.files) <= LIMITS.total_bytes
    left = left_behind(runs, shared_names(runs))
    assert (left["processes"], left["groups"]) == (0, 0)
    assert folders_in(runs) == []


@pytest.mark.service
async def test_a_program_of_an_ordinary_user_holds_no_more_than_it_may(runs: Path) -> None:
    open_to_all(runs)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", AS_USER, str(runs)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )
    printed, _ = await process.communicate()
    rows = [json.loads(line) for line in printed.splitlines()]
    isolated = [row[1:] for row in rows if row[0] == "process"]
    assert [row[0] for row in isolated] == list(CORPUS)
    for name, count, code in isolated:
        check(name, count, code)
    plain = {name: code for backend, name, _, code in rows if backend == "local"}
    assert plain == {name: plain_code(name, can_read_all=False) for name in PLAIN}
    assert shared_names(runs) == set()


def plain_code(name: str, *, can_read_all: bool) -> str:
    """The code with which a program of the corpus ends without a file system of its own."""
    if name == "unlinked":
        return ""  # such files cannot be seen
    if name == "twelve hundred folders":
        return "disk_limit"  # nor can what is deep, and that counts as too much
    if name == "folders that nobody may enter" and not can_read_all:
        return "disk_limit"
    return CORPUS[name].code


@pytest.mark.parametrize("name", PLAIN)
async def test_without_a_file_system_of_its_own_a_program_is_measured(
    runs: Path, name: str
) -> None:
    local = LocalSandbox(folder=runs)
    end = await fill_disk(local, name)
    assert (end.failure.code if end.failure else "") == plain_code(name, can_read_all=True)
    assert folders_in(runs) == []
    await local.close()


@pytest.mark.parametrize("name", ["below a long path", "twelve hundred folders", "sparse"])
async def test_the_result_of_a_task_comes_whatever_is_in_its_folders(
    aws: Services, runs: Path, name: str
) -> None:
    task = FargateSandbox(TASKS, folder=runs)
    end = await fill_disk(task, name)
    assert end.failure is not None
    assert end.failure.code == "disk_limit"
    assert folders_in(runs) == []
    await task.close()
