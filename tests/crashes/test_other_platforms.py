"""The core, outside of the sandbox, needs neither `/proc` nor `os.fdatasync`, which other systems do not have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT


@pytest.mark.parametrize(
    "tests",
    [
        "tests/conformance/test_conversation_log.py",
        "tests/scenarios/test_a_turn.py",
        "tests/scenarios/test_cut_turns_are_resumed.py",
        "tests/crashes/test_a_cut_call_is_reconciled.py",
    ],
)
def test_the_core_passes_without_what_only_linux_has(tests: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "tests.support.without_linux", tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


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
