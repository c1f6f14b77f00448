"""What a program holds on its disk is bounded, in whatever way it holds it; nothing of it stays, and its result comes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from loopline.sandbox import Sandbox
from tests.bench.executions import left_behind, shared_names
from tests.support.disk_corpus import CORPUS, LIMITS, fill_disk, last_count
from tests.support.programs import needs_bubblewrap

BUDGET = 1.05
USER = 12_345
AS_USER = f"""
import asyncio, concurrent.futures.thread, json, os, sys, traceback
from pathlib import Path
from loopline.adapters.execution.process import BubblewrapSandbox
from loopline.adapters.execution.seccomp_filter import filter_program
from tests.support.disk_corpus import CORPUS, fill_disk, last_count

async def main(folder):
    sandbox = BubblewrapSandbox(folder=folder)
    for name in CORPUS:
        end = await fill_disk(sandbox, name)
        code = end.failure.code if end.failure else ""
        print(json.dumps([name, last_count(end), code, end.isolation, str(end.failure)]), flush=True)
    await sandbox.close()

filter_program()  # imports what an ordinary user may not read here
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid({USER}, {USER}, {USER})
    os.setresuid({USER}, {USER}, {USER})
asyncio.run(main(Path(sys.argv[1])))
"""


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
    assert list(runs.glob("*/*/")) == []


@needs_bubblewrap
async def test_a_program_of_an_ordinary_user_holds_no_more_than_it_may(runs: Path) -> None:
    runs.chmod(0o777)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", AS_USER, str(runs)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )
    printed, _ = await process.communicate()
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [row[0] for row in rows] == list(CORPUS)
    for name, count, code, isolation, _ in rows:
        assert isolation == "process"
        check(name, count, code)
    assert list(runs.iterdir()) == []
