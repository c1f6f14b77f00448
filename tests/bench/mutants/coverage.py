"""Which test runs which function: a plugin of pytest, `-p tests.bench.mutants.coverage`, for the rooms that are mutated.

It writes a file for each process into the folder that the variable `TRACES` names: for each test its functions, as
`path:qualified.name`. Functions and not lines, because tracing lines takes five times as long.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

PACKAGE = "/sdk/loopline/"
ROOMS = ("timeline", "prompt", "react", "store", "events", "models", "tools", "knowledge")
"""Of which functions are looked for."""

_names: dict[int, tuple[CodeType, str]] = {}
"""By id, since to hash code takes as long as to hash all that it holds."""
_run: set[int] = set()
_found: dict[str, list[str]] = {}


def _trace(frame: FrameType, event: str, arg: object) -> None:
    """Note the function that is called; its lines are not looked at."""
    key = id(frame.f_code)
    if key not in _run:
        _run.add(key)
        if key not in _names:
            _names[key] = (frame.f_code, _name(frame.f_code))


def _name(code: CodeType) -> str:
    """`timeline/plan.py:Plans.take`, or nothing for a function of another room."""
    _, found, path = code.co_filename.partition(PACKAGE)
    return f"{path}:{code.co_qualname}" if found and path.startswith(ROOMS) else ""


def pytest_configure() -> None:
    """Trace every thread that is started from now on."""
    threading.settrace(_trace)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    _run.clear()
    sys.settrace(_trace)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        _found[item.nodeid] = sorted({_names[key][1] for key in list(_run)} - {""})


def pytest_sessionfinish() -> None:
    if _found:
        folder = Path(os.environ["TRACES"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{os.getpid()}.json").write_text(json.dumps(_found), "utf-8")
