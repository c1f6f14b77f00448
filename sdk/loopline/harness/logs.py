"""Store URLs: which adapter keeps the conversations, and where what lies beside them is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loopline.clock import Clock
from loopline.errors import StoreError
from loopline.timeline import ConversationKey, ConversationLimits, MemoryLog, TimelineLog
from loopline.timeline.chain import Audit, Head
from loopline.timeline.log import DEFAULT_LIMITS

if TYPE_CHECKING:
    from loopline.adapters.blobs import FileBlobs
    from loopline.adapters.sql import SqlLog

DEFAULT_STORE = "sqlite:///.loopline/loopline.db"
MEMORY = "memory:"
LONGEST_NAME_BYTES = 200
"""File systems allow 255, and what is made beside a store has a longer name."""
_FOLDER = Path(".loopline")


@dataclass(frozen=True, slots=True)
class Place:
    """A store's URL, and the folder for what is made beside it; None where nothing is kept."""

    url: str
    beside: Path | None


def place(url: str | None) -> Place:
    """The place of a store: the one given, else `LOOPLINE_STORE`, else `.loopline/` here.

    Raises:
        StoreError: the URL is not one that works.
    """
    given = url or os.environ.get("LOOPLINE_STORE") or DEFAULT_STORE
    if given == MEMORY:
        return Place(given, None)
    if not given.startswith("sqlite:///") or given == "sqlite:///":
        raise StoreError(
            f"no store {given!r}: write sqlite:///relative.db, sqlite:////absolute.db or memory:"
        )
    path = Path(given.removeprefix("sqlite:///"))
    try:
        size = len(os.fsencode(path.name))
    except ValueError as error:
        raise StoreError(f"no store {given!r}: {error}") from error
    if "\0" in given:
        raise StoreError(f"no store {given!r}: the name of a file holds no null character")
    if not 0 < size <= LONGEST_NAME_BYTES:
        problem = f"the name of its file has more than {LONGEST_NAME_BYTES} bytes"
        raise StoreError(f"no store {given!r}: {problem if size else 'it names no file'}")
    return Place(given, path)


async def open_log(
    where: Place,
    clock: Clock,
    *,
    limits: ConversationLimits = DEFAULT_LIMITS,
    read_only: bool = False,
    collects: bool = True,
) -> TimelineLog:
    """The log at that place; unless told otherwise it collects what nothing names, beside all else.

    Raises:
        StoreError: there can be no store; the message says why.
    """
    if where.beside is None:
        if read_only:
            raise StoreError("a store in memory is always new: there is nothing in it to read")
        return MemoryLog(clock, limits)
    log, blobs = await asyncio.to_thread(_on_disk)
    resolved = await asyncio.to_thread(where.beside.resolve)
    if where.url == DEFAULT_STORE and not read_only:
        await asyncio.to_thread(_make_default_folder)
    beside = blobs.for_store(resolved, clock)
    opened = await log.open(
        where.url, clock=clock, read_only=read_only, blobs=beside, limits=limits
    )
    if collects and not read_only:
        opened.collect_daily()
    return opened


async def back_up(log: TimelineLog, target: Path) -> None:
    """Copy a store that is open to a new file, and its blobs beside it.

    Raises:
        StoreError: nothing is kept, something is at the target already, or it cannot be written.
    """
    kept, blobs = await asyncio.to_thread(_on_disk)
    if not isinstance(log, kept):
        raise StoreError("what is in memory alone has no backup: name a store that is a file")
    await log.backup(target, blobs.for_store(target))


async def audited(
    log: TimelineLog, heads: Mapping[ConversationKey, Head], only: ConversationKey | None
) -> Sequence[Audit]:
    """Compare the conversations of a store with their chains, and with heads kept elsewhere.

    Raises:
        StoreError: nothing is kept, or the store has no digests yet.
    """
    kept, _ = await asyncio.to_thread(_on_disk)
    if not isinstance(log, kept):
        raise StoreError(
            "what is in memory alone has nothing to audit: name a store that is a file"
        )
    return await log.audit(heads, only)


def _on_disk() -> tuple[type[SqlLog], type[FileBlobs]]:
    """The adapters, whose driver takes a while to import: not on the event loop."""
    from loopline.adapters.blobs import FileBlobs
    from loopline.adapters.sql import SqlLog

    return SqlLog, FileBlobs


def _make_default_folder() -> None:
    try:
        _FOLDER.mkdir(mode=0o700, exist_ok=True)
        ignore = _FOLDER / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"the store cannot be kept in {_FOLDER.absolute()}: {error.strerror}; "
            "name another with --store or LOOPLINE_STORE"
        ) from error
