"""The user's pager: what is longer than the terminal goes through it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping

NO_PAGERS = ("", "cat")
"""What `PAGER` says when nothing is to be paged."""
NOT_FOUND = 127
"""How a shell ends that does not know the command."""
SETTINGS: Mapping[str, str] = {"LESS": "FRX", "LESSCHARSET": "utf-8"}
"""How `less` behaves unless the environment says otherwise: it keeps colours, and leaves the text there."""


def pager() -> str | None:
    """Return the command of the user's pager, `PAGER` or else less; None if there is none."""
    chosen = os.environ.get("PAGER")
    if chosen is None:
        return shutil.which("less")
    return None if chosen.strip() in NO_PAGERS else chosen


def page(text: str, command: str) -> bool:
    """Show the text in a pager until the user leaves it; whether the command exists."""
    process = subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.PIPE,
        env={**SETTINGS, **os.environ},
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pager's own there
    try:
        process.communicate(text)
    finally:
        signal.signal(signal.SIGINT, before)
    return process.returncode != NOT_FOUND
