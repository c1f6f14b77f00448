"""Importing loopline costs little and does nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = {
    *{"aiosqlite", "git", "httpx", "httpx2", "mcp", "numpy", "pydantic", "rich", "sqlalchemy"},
    *{"sqlite3", "torch", "typer", "yaml"},
    *{"loopline.adapters", "loopline.cli", "loopline.testing"},
}
LIST_WHAT_LOADS = "import sys; before = set(sys.modules); import loopline; print('loaded', *set(sys.modules) - before)"


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the code in a new Python, in an empty folder that is also its home."""
    return subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=folder,
        env={"HOME": str(folder), "XDG_CACHE_HOME": str(folder), "LOOPLINE_STORE": "memory:"},
        capture_output=True,
        text=True,
        check=True,
    )


def test_importing_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = set(run(LIST_WHAT_LOADS, tmp_path).stdout.split())
    assert "loopline" in loaded
    assert loaded & HEAVY == set()


def test_importing_prints_nothing(tmp_path: Path) -> None:
    ran = run("import loopline", tmp_path)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_importing_writes_nothing(tmp_path: Path) -> None:
    run("import loopline", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_importing_registers_and_starts_nothing(tmp_path: Path) -> None:
    state = "(threading.active_count(), logging.root.handlers, warnings.filters, signals(), dict(os.environ))"
    code = f"""
import logging, os, signal, threading, warnings
def signals():
    return [signal.getsignal(number) for number in signal.valid_signals()]
def state():
    return repr({state})
before = state()
import loopline
print(before == state())
"""
    assert run(code, tmp_path).stdout == "True\n"
