"""A user is forgotten by a process that is killed: `python -m tests.crashes.killed_forgetting FOLDER`."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

from loopline import Bundle, Harness, Store
from loopline.memory import turn_file
from loopline.store import sqlite
from loopline.testing import ScriptedModel
from tests.crashes.processes import TOUCHING, say, url

TASKS = "tests.crashes.killed_forgetting"
GUIDE = Bundle(id="guide", instructions="You help.")
USER = "ada"
SECRETS = {"one": "marmalade", "two": "quince"}
"""The word that only one conversation has, by its name; that of the second is stored as a blob."""
TEXTS = {"one": "Remember the marmalade.", "two": "quince " * 6_000}


async def remember(store: Path) -> None:
    """Store two conversations of a user, and index them."""
    model = ScriptedModel(["As you like."] * 2)
    async with Harness.open(GUIDE, store=url(store), model=model) as harness:
        for name, text in TEXTS.items():
            await harness.conversation(name, user=USER).say(text)
        await harness.memory.ready(user=USER)


async def forget(store: Path, point: int = 0) -> None:
    """Forget the user; be killed at that point of it, if any."""
    passing = die_at(point) if point else None
    async with Store.open(url(store)) as opened:
        if passing is not None:
            passing.set()
        await opened.forget_user(USER)


def traces(store: Path, name: str) -> list[str]:
    """The files of the store that hold the word of a conversation."""
    files = [path for path in store.parent.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if SECRETS[name].encode() in path.read_bytes())


async def trace(begin: Callable[[str], None], connection: Any) -> None:
    """Call `begin` before each statement of a connection of aiosqlite, which has no type for it."""
    await connection.set_trace_callback(begin)


def die_at(point: int) -> Event:
    """Be killed before the n-th statement of any database, or before a file is touched, once the event is set."""
    passing, passed = Event(), count(1)

    def touch(what: str, arguments: tuple[object, ...]) -> None:
        if what in TOUCHING and any("/talk" in str(argument) for argument in arguments[:1]):
            die()

    def begin(statement: str) -> None:
        if not statement.startswith("-- "):  # which is a trigger's
            die()

    def die() -> None:
        if passing.is_set() and next(passed) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    sqlite.on_connect.append(lambda connection: connection.set_trace_callback(begin))
    turn_file.on_connect.append(partial(trace, begin))
    sys.addaudithook(touch)
    return passing


def run_in_child(work: Coroutine[None, None, None]) -> bool:
    """Do the work in another process; return whether it was killed."""
    child = os.fork()
    if not child:
        asyncio.run(work)
        os._exit(0)
    work.close()
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return status != 0


def forget_and_die_everywhere(folder: Path) -> None:
    """Forget the user in one copy of a store after another, each killed one point later; say where traces are."""
    for module in ("memory.turn_file", "store", "store.blobs"):  # once, and not in each child
        import_module(f"loopline.{module}")
    import_module("aiosqlite")
    whole = folder / "whole" / "talk.db"
    whole.parent.mkdir()
    run_in_child(remember(whole))
    for point in count():
        store = folder / f"{point}" / "talk.db"
        shutil.copytree(whole.parent, store.parent)
        was_killed = point > 0 and run_in_child(forget(store, point))
        if point and not was_killed:
            return
        say(point, *(",".join(traces(store, name)) or "none" for name in SECRETS))


if __name__ == "__main__":
    forget_and_die_everywhere(Path(sys.argv[1]))
