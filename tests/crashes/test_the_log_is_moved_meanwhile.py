"""The write-ahead log is moved into the store's file while others go on to write, and never grows without end."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, get_ident

from msgspec import structs

from loopline.store import SqlLog
from loopline.store.store_threads import LOG_PAGES, LOG_ROWS
from loopline.timeline import NEW_TURN, Entry, Notes, UserPrompt
from tests.crashes.processes import HERE, url
from tests.support.sqlite_connections import each_connection

PAGE = 4_096
PATIENCE_SECONDS = 30
"""How long the thread waits for an append that may be waiting for the thread."""


@contextmanager
def traced(trace: Callable[[str], None]) -> Generator[None, None, None]:
    """Call `trace` with each statement of another thread than this one."""
    loop_thread = get_ident()

    def trace_others(statement: str) -> None:
        if get_ident() != loop_thread:
            trace(statement)

    with each_connection(lambda connection: connection.set_trace_callback(trace_others)):
        yield


def notes(count: int, size: int = 1) -> list[Entry]:
    return [Entry(body=Notes(text="x" * size), turn=1)] * count


async def test_an_append_does_not_wait_until_the_disk_has_what_was_appended_before(
    tmp_path: Path,
) -> None:
    begun, acknowledged, waited = Event(), Event(), list[bool]()

    def hold_the_thread(statement: str) -> None:
        if statement.startswith("PRAGMA wal_checkpoint"):
            begun.set()
            waited.append(acknowledged.wait(PATIENCE_SECONDS))

    with traced(hold_the_thread):
        async with await SqlLog.open(url(tmp_path / "talk.db")) as log, log.lease(HERE) as term:
            await log.append(HERE, [Entry(body=UserPrompt(text="go"), turn=NEW_TURN)], seen=0)
            await log.append(HERE, notes(LOG_ROWS), seen=1, term=term)
            await asyncio.to_thread(begun.wait)
            await log.append(HERE, notes(1), seen=1 + LOG_ROWS, term=term)
            acknowledged.set()
    assert waited[0]


async def test_what_others_kept_from_being_moved_is_moved_before_a_long_log_grows(
    tmp_path: Path,
) -> None:
    path, copy = tmp_path / "talk.db", structs.replace(HERE, name="copy")
    reader, moving = sqlite3.connect(path, isolation_level=None, check_same_thread=False), Event()

    def end_reading(statement: str) -> None:
        if statement.startswith("PRAGMA wal_checkpoint"):
            moving.set()
        elif statement == "BEGIN IMMEDIATE" and moving.is_set():
            reader.close()

    with traced(end_reading):
        async with await SqlLog.open(url(path)) as log, log.lease(HERE) as term:
            await log.append(HERE, [Entry(body=UserPrompt(text="go"), turn=NEW_TURN)], seen=0)
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM blocks").fetchall()
            await log.append(HERE, notes(1, size=PAGE * LOG_PAGES), seen=1, term=term)
            await log.append(HERE, notes(LOG_ROWS), seen=2, term=term)
            await log.fork(HERE, copy, 1)  # the thread forks once it has moved the log
            assert pages_of_log(path) < LOG_PAGES


def pages_of_log(path: Path) -> int:
    """How many pages the write-ahead log has."""
    with closing(sqlite3.connect(path)) as connection:
        _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(pages)
