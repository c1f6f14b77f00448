"""A backup: the database in one go, then the blobs its rows name, then its name."""

from __future__ import annotations

import os
from pathlib import Path

from loopline.adapters.sql.files import copy, explained, reading
from loopline.adapters.sql.forgetting import referenced
from loopline.errors import StoreError
from loopline.timeline.blobs import BlobStore

UNFINISHED = ".unfinished"


def back_up(path: Path, blobs: BlobStore | None, target: Path, copies: BlobStore | None) -> None:
    """Copy the store and its blobs; the target has its name once all is there.

    Raises:
        StoreError: there is something at the target already, or it cannot be written.
    """
    target = target.absolute()
    if target.exists():
        raise StoreError(f"{target} is there already: name a new file")
    unfinished = target.with_name(f"{target.name}{UNFINISHED}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.unlink(missing_ok=True)
        copy(path, unfinished)
        _copy_blobs(unfinished, blobs, copies)
        _sync(unfinished)
        os.link(unfinished, target)  # which, other than a rename, replaces nothing
        unfinished.unlink()
        _sync(target.parent)
    except OSError as error:
        raise explained(target, error) from error


def _copy_blobs(copied: Path, blobs: BlobStore | None, copies: BlobStore | None) -> None:
    engine = reading(copied, read_only=True, connections=1)
    try:
        with engine.begin() as connection:
            names = referenced(connection)
    finally:
        engine.dispose()
    for name in sorted(names):
        if blobs is None or copies is None:
            raise StoreError(f"blob {name} is not at hand: open the store with its blobs")
        copies.put(blobs.get(name))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
