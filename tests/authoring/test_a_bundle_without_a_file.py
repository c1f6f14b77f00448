"""A bundle made at a prompt has no folder: its knowledge is of the repository in the current one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.git_repositories import commit

SCRIPT = """
import asyncio
from loopline import BaseWorkflow, Bundle, Harness

bundle = Bundle(id="x", workflow=BaseWorkflow, configuration={"knowledge": {"repo": ""}})

async def main():
    async with Harness.open(bundle, store="memory:", model="offline") as harness:
        print(harness.knowledge_state.location)

asyncio.run(main())
"""


def test_its_knowledge_is_of_the_repository_in_the_current_folder(tmp_path: Path) -> None:
    commit(tmp_path / "mine", {"a.md": "# A\n"})
    for arguments in (["-c", SCRIPT], ["-"]):
        done = subprocess.run(
            [sys.executable, *arguments],
            input=SCRIPT,
            cwd=tmp_path / "mine",
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() == str((tmp_path / "mine").resolve()), done.stderr
