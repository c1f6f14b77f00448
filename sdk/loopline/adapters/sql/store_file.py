"""The store's file: opened to read or to write, created by one of several processes, and backed up."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import Engine

from loopline.adapters.sql import statements
from loopline.adapters.sql.migrations import create, is_empty
from loopline.adapters.sql.sqlite import (
    DATABASE_ERRORS,
    UNFINISHED,
    create_private,
    file_id,
    immutable_engine,
    make_private_folder,
    read_engine,
    retry_while_busy,
    store_error,
    vacuum_into,
    write_engine,
)
from loopline.errors import StoreError
from loopline.timeline.blob_store import BlobStore

COPY_ATTEMPTS = 100
"""A backup copies the database again when conversations with blobs were forgotten meanwhile."""

_JOURNALS = ("-wal", "-journal")

IdleStamp = tuple[int, int, int]
"""The inode, size and modification time of a store's file."""


def open_to_read(path: Path, connections: int) -> Engine:
    """Return an engine that reads an existing store.

    Raises:
        StoreError: there is none.
    """
    if not path.exists():
        raise StoreError(f"there is no store at {path}: run a bundle first, or name another store")
    with ExitStack() as failed:
        engine = read_engine(path, read_only=True, connections=connections)
        failed.callback(engine.dispose)
        if _is_empty(path, engine if idle_stamp(path) is None else immutable_engine(path)):
            raise StoreError(f"{path} is empty: run a bundle first, or name another store")
        failed.pop_all()
    return engine


def open_to_write(path: Path, connections: int) -> tuple[Engine, Engine]:
    """Return an engine that reads a store and one that writes to it; create the store if there is none.

    Raises:
        StoreError: the file cannot be opened or created, or belongs to another program.
    """
    with ExitStack() as failed:
        try:
            make_private_folder(path.parent)
        except OSError as error:
            raise store_error(path, error) from error
        reader = read_engine(path, read_only=False, connections=connections)
        failed.callback(reader.dispose)
        writer = write_engine(path)
        failed.callback(writer.dispose)
        # Another program's database is refused before anything in it is changed.
        if not path.exists() or _is_empty(path, reader):
            _create(path, writer)
        failed.pop_all()
    return reader, writer


def idle_stamp(path: Path) -> IdleStamp | None:
    """Return what changes when the file does; None while a process has it open, or left it unfinished."""
    if any(path.with_name(f"{path.name}{suffix}").exists() for suffix in _JOURNALS):
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _is_empty(path: Path, engine: Engine) -> bool:
    if path.is_dir():
        raise StoreError(f"{path} is a folder: name a file in it")
    file_id(path)

    def check() -> bool:
        with engine.begin() as connection:
            return is_empty(connection, path)

    try:
        return retry_while_busy(check)
    except DATABASE_ERRORS as error:
        raise store_error(path, error) from error


def _create(path: Path, engine: Engine) -> None:
    def create_if_empty() -> None:
        with engine.begin() as connection:
            if is_empty(connection, path):
                create(connection)

    try:
        create_private(path)
        retry_while_busy(create_if_empty)
    except DATABASE_ERRORS as error:
        raise store_error(path, error) from error


def back_up(path: Path, blobs: BlobStore | None, target: Path, copies: BlobStore | None) -> None:
    """Copy the store to `target` and its blobs to `copies`; the target gets its name when all is copied.

    Raises:
        StoreError: the target exists already, or it cannot be written.
    """
    target = target.absolute()
    if target.exists():
        raise StoreError(f"{target} exists already: name a new file")
    unfinished = target.with_name(f"{target.name}{UNFINISHED}")
    copied = set[str]()
    try:
        make_private_folder(target.parent)
        referenced = _copy(path, blobs, unfinished, copies, copied)
        _sync(unfinished)
        os.link(unfinished, target)  # which, other than a rename, replaces nothing
        copied -= referenced
    except OSError as error:
        raise store_error(target, error) from error
    finally:
        unfinished.unlink(missing_ok=True)
        if copies is not None:
            copies.discard(copied)
    _sync(target.parent)


def _copy(
    path: Path,
    blobs: BlobStore | None,
    unfinished: Path,
    copies: BlobStore | None,
    copied: set[str],
) -> set[str]:
    """Copy the database until every blob that the copy references is copied too; return their names.

    A conversation that is forgotten meanwhile takes its blobs with it, while the copy still references
    them. Each further copy has only few blobs more to fetch, those of the moment in between.
    """
    for _ in range(COPY_ATTEMPTS):
        unfinished.unlink(missing_ok=True)
        vacuum_into(path, unfinished)
        referenced = _referenced_blobs(unfinished)
        missing = _copy_blobs(referenced - copied, blobs, copies, copied)
        if missing is None:
            return referenced
        name, error = missing
        if name in _referenced_blobs(path):
            raise error
    raise StoreError(f"{path} changed too often during the backup: try again")


def _copy_blobs(
    names: set[str], blobs: BlobStore | None, copies: BlobStore | None, copied: set[str]
) -> tuple[str, StoreError] | None:
    """Copy these blobs; return the first that cannot be read, and why."""
    for name in sorted(names):
        if blobs is None or copies is None:
            return name, StoreError(f"blob {name} cannot be read: open the store with its blobs")
        try:
            data = blobs.get(name)
        except StoreError as error:
            return name, error
        copied.add(name)
        copies.put(data)
    return None


def _referenced_blobs(path: Path) -> set[str]:
    engine = read_engine(path, read_only=True, connections=1)
    try:
        with engine.begin() as connection:
            return set(connection.execute(statements.SELECT_REFERENCED_BLOBS).scalars())
    finally:
        engine.dispose()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
