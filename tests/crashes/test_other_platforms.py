"""The core, outside of the sandbox, needs neither `/proc` nor `os.fdatasync`, and waits for the disk with the call of its system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT

TESTS_OF_THE_CORE = [
    "tests/conformance/test_conversation_log.py",
    "tests/scenarios/test_a_turn.py",
    "tests/scenarios/test_cut_turns_are_resumed.py",
    "tests/crashes/test_a_cut_call_is_reconciled.py",
]


def test_the_core_passes_without_what_only_linux_has() -> None:
    pytest_without_linux = ["pytest", "-q", "-n0", "-p", "tests.support.without_linux"]
    done = subprocess.run(
        [sys.executable, "-m", *pytest_without_linux, *TESTS_OF_THE_CORE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


SYNCED = """
import fcntl, os, sys

fcntl.F_FULLFSYNC = 51  # its number on macOS
asked = []


def record(event, arguments):
    if event == "fcntl.fcntl" and arguments[1] == 51:
        asked.append(os.readlink("/proc/self/fd/" + str(arguments[0])))


sys.addaudithook(record)

from loopline import BaseWorkflow, Bundle, run_sync
from loopline.testing import ScriptedModel

bundle = Bundle(id="guide", workflow=BaseWorkflow)
result = run_sync(bundle, "x" * 40_000, model=ScriptedModel(["Stored."]), store="sqlite:///talk.db")
assert result.answer == "Stored."
names = {os.path.basename(path) for path in asked}
print(*sorted(name if len(name) < 20 else "blob" for name in names))
"""
"""Run a turn with a large message where `fcntl` has F_FULLFSYNC, and print the files for which it was called."""


def test_where_there_is_a_full_sync_the_log_the_blobs_and_their_folders_are_synced_by_it(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SYNCED], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {"blob", "talk.db-wal", "talk.db-blobs"} <= set(done.stdout.split())


def test_the_plugin_denies_what_it_names() -> None:
    code = (
        "import tests.support.without_linux, os, pathlib\n"
        "assert not hasattr(os, 'fdatasync')\n"
        "pathlib.Path('/proc/self/stat').read_text()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip().endswith("PermissionError: /proc/self/stat is denied")
