"""The place that a store's URL names, and its log opened there."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loopline.clock import Clock
from loopline.errors import StoreError
from loopline.timeline import ConversationLimits, MemoryLog, TimelineLog
from loopline.timeline.log import DEFAULT_LIMITS

if TYPE_CHECKING:
    from loopline.store import SqlLog
    from loopline.store.blobs import FileBlobs

DEFAULT_STORE = "sqlite:///.loopline/loopline.db"
MEMORY = "memory:"
LONGEST_NAME_BYTES = 200
"""File systems allow 255, and the files beside a store have longer names."""
_FOLDER = Path(".loopline")


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store's URL and file; the file is None if nothing is kept."""

    url: str
    file: Path | None


def store_place(url: str | None) -> StorePlace:
    """Return the place of a store: of the URL, else of `LOOPLINE_STORE`, else in `.loopline/` here.

    Raises:
        StoreError: the URL is not one that works.
    """
    chosen_url = url or os.environ.get("LOOPLINE_STORE") or DEFAULT_STORE
    if chosen_url == MEMORY:
        return StorePlace(chosen_url, None)
    if not chosen_url.startswith("sqlite:///") or chosen_url == "sqlite:///":
        raise StoreError(
            f"no store {chosen_url!r}: write sqlite:///relative.db, sqlite:////absolute.db or memory:"
        )
    path = Path(chosen_url.removeprefix("sqlite:///"))
    try:
        size = len(os.fsencode(path.name))
    except ValueError as error:
        raise StoreError(f"no store {chosen_url!r}: {error}") from error
    if "\0" in chosen_url:
        raise StoreError(f"no store {chosen_url!r}: the name of a file holds no null character")
    if not 0 < size <= LONGEST_NAME_BYTES:
        problem = f"the name of its file has more than {LONGEST_NAME_BYTES} bytes"
        raise StoreError(f"no store {chosen_url!r}: {problem if size else 'it names no file'}")
    return StorePlace(chosen_url, path)


async def open_log(
    where: StorePlace,
    clock: Clock,
    *,
    limits: ConversationLimits = DEFAULT_LIMITS,
    read_only: bool = False,
    collects: bool = True,
) -> TimelineLog:
    """Open the log at that place; unless `collects` is False it removes unused blobs in the background.

    Raises:
        StoreError: there can be no store; the message says why.
    """
    if where.file is None:
        if read_only:
            raise StoreError("a store in memory is always new: there is nothing in it to read")
        return MemoryLog(clock, limits)
    log, blobs = await asyncio.to_thread(disk_adapters)
    resolved = await asyncio.to_thread(where.file.resolve)
    if where.url == DEFAULT_STORE and not read_only:
        await asyncio.to_thread(_make_default_folder)
    blob_store = blobs.for_store(resolved, clock)
    opened = await log.open(
        where.url, clock=clock, read_only=read_only, blobs=blob_store, limits=limits
    )
    if collects and not read_only:
        opened.collect_daily()
    return opened


def disk_adapters() -> tuple[type[SqlLog], type[FileBlobs]]:
    """Return the adapters, whose import takes a while: not on the event loop."""
    from loopline.store import SqlLog
    from loopline.store.blobs import FileBlobs

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
