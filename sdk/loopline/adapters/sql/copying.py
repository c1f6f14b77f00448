"""A backup: the database in one go, and the blobs its rows name, before it gets its name."""

from __future__ import annotations

import os
from pathlib import Path

from loopline.adapters.sql.files import (
    UNFINISHED,
    copy,
    explained,
    make_private_folder,
    reading,
)
from loopline.adapters.sql.forgetting import referenced
from loopline.errors import StoreError
from loopline.timeline.blobs import BlobStore

MOST_TRIES = 100
"""So often the database is copied anew, because something with blobs was forgotten meanwhile."""


def back_up(path: Path, blobs: BlobStore | None, target: Path, copies: BlobStore | None) -> None:
    """Copy the store and its blobs; the target has its name once all is there.

    Raises:
        StoreError: there is something at the target already, or it cannot be written.
    """
    target = target.absolute()
    if target.exists():
        raise StoreError(f"{target} is there already: name a new file")
    unfinished = target.with_name(f"{target.name}{UNFINISHED}")
    copied = set[str]()
    try:
        make_private_folder(target.parent)
        named = _copy_all(path, blobs, unfinished, copies, copied)
        _sync(unfinished)
        os.link(unfinished, target)  # which, other than a rename, replaces nothing
        copied -= named
    except OSError as error:
        raise explained(target, error) from error
    finally:
        unfinished.unlink(missing_ok=True)
        if copies is not None:
            copies.discard(copied)
    _sync(target.parent)


def _copy_all(
    path: Path,
    blobs: BlobStore | None,
    unfinished: Path,
    copies: BlobStore | None,
    copied: set[str],
) -> set[str]:
    """Copy the database until every blob that the copy names is there; these names.

    What is forgotten meanwhile takes its blobs with it, so that a copy still names them and nobody has
    them. Each further copy has only few blobs more to fetch, those of the moment in between.
    """
    for _ in range(MOST_TRIES):
        unfinished.unlink(missing_ok=True)
        copy(path, unfinished)
        named = _named(unfinished)
        missing = _copy_blobs(named - copied, blobs, copies, copied)
        if missing is None:
            return named
        if missing[0] in _named(path):
            raise missing[1]
    raise StoreError(f"{path} was changed too often to be backed up: try again")


def _copy_blobs(
    names: set[str], blobs: BlobStore | None, copies: BlobStore | None, copied: set[str]
) -> tuple[str, StoreError] | None:
    """Copy these blobs; the first one that is not at hand, and why."""
    for name in sorted(names):
        if blobs is None or copies is None:
            said = f"blob {name} is not at hand: open the store with its blobs"
            return name, StoreError(said)
        try:
            data = blobs.get(name)
        except StoreError as error:
            return name, error
        copied.add(name)
        copies.put(data)
    return None


def _named(path: Path) -> set[str]:
    """The blobs that the rows of a store name."""
    engine = reading(path, read_only=True, connections=1)
    try:
        with engine.begin() as connection:
            return referenced(connection)
    finally:
        engine.dispose()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
