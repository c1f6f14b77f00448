"""A plugin of pytest that makes the process like one on another system: without `/proc` and without `os.fdatasync`.

pytest -p tests.support.without_linux tests/scenarios/test_a_turn.py
"""

from __future__ import annotations

import os
import sys


def deny_proc(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse to open a file below `/proc`, as an audit hook."""
    if event == "open" and str(arguments[0]).startswith("/proc"):
        raise PermissionError(f"{arguments[0]} is denied")


del os.fdatasync
sys.addaudithook(deny_proc)
