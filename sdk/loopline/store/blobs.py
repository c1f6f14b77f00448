"""Blobs: bytes stored under their sha256, in files."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Protocol, Self

from loopline.clock import Clock, SystemClock
from loopline.errors import StoreError, StoreFailed, StoreFull
from loopline.store.disk import sync_file

SUFFIX = "-blobs"
_UNFINISHED = ".unfinished"


class BlobStore(Protocol):
    """Bytes under their sha256. The methods block, so they are called from threads, also from several at once."""

    def put(self, data: bytes) -> str:
        """Store the bytes and return their name; if they are stored already, their age starts again.

        Raises:
            StoreError: they cannot be stored.
        """
        ...

    def get(self, name: str) -> bytes:
        """Return the bytes that were put under that name.

        Raises:
            StoreError: the blob is missing or damaged; the message has its name.
        """
        ...

    def discard(self, names: Collection[str]) -> None:
        """Remove the blobs with these names regardless of their age; missing blobs are ignored."""
        ...

    def collect(self, referenced: Callable[[], Collection[str]], older_than: datetime) -> int:
        """Remove unreferenced blobs that were last put before `older_than`; return their number.

        `referenced` returns the names of all referenced blobs. A blob that is put during the collection stays.
        """
        ...


class FileBlobs:
    """Blobs in a folder, in files `ab/cdef…` named after their sha256. The first put creates the folder.

    Its methods block, so they are called from threads. After `put` has returned, the bytes survive a power loss: they are
    written to a temporary file, which is synced and renamed. A lock file in the folder prevents a collection from removing
    a blob that is put at the same time.
    """

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()

    @classmethod
    def for_store(cls, store: Path, clock: Clock | None = None) -> Self:
        """Return the blobs that belong to the store in that file, in a folder next to it."""
        return cls(store.absolute().with_name(f"{store.name}{SUFFIX}"), clock)

    def put(self, data: bytes) -> str:
        """Store the bytes and return their name; if they are stored already, only their time is updated.

        A stored blob that is damaged is replaced.

        Raises:
            StoreFull: the disk is full; the bytes were not stored.
            StoreFailed: the disk failed.
            StoreError: the file cannot be read or written.
        """
        name = sha256(data).hexdigest()
        path = self._path(name)
        try:
            if not self._refresh(path, data):
                self._write(path, data)
        except OSError as error:
            raise _store_error(path, error) from error
        return name

    def get(self, name: str) -> bytes:
        """Return the bytes that were put under that name.

        Raises:
            StoreError: the blob is missing or damaged; the message has its name.
        """
        path = self._path(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise StoreError(f"blob {path} is missing: put a backup in its place") from error
        except OSError as error:
            raise _store_error(path, error) from error
        if sha256(data).hexdigest() != name:
            raise StoreError(f"blob {path} is damaged: put a backup in its place")
        return data

    def discard(self, names: Collection[str]) -> None:
        """Remove the blobs with these names regardless of their age; missing blobs are ignored."""
        for name in names:
            with self._lock(fcntl.LOCK_EX):
                self._path(name).unlink(missing_ok=True)

    def collect(self, referenced: Callable[[], Collection[str]], older_than: datetime) -> int:
        """Remove unreferenced blobs that were last put before `older_than`; return their number.

        `referenced` returns the names of all referenced blobs. A blob that is put during the collection stays. Old
        unfinished files of killed processes are removed and counted too.
        """
        moment = older_than.timestamp()
        # The pattern also matches unfinished files of killed processes.
        old = [path for path in self._folder.glob("??/*") if _put_before(path, moment)]
        retained = set(referenced()) if old else set[str]()
        unreferenced = [path for path in old if f"{path.parent.name}{path.name}" not in retained]
        return sum(self._remove(path, moment) for path in unreferenced)

    def _remove(self, path: Path, moment: float) -> bool:
        with self._lock(fcntl.LOCK_EX):
            if not _put_before(path, moment):
                return False
            path.unlink()
            return True

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name[2:]

    def _refresh(self, path: Path, data: bytes) -> bool:
        """Set the time of an existing blob to now; return False if it is missing or damaged."""
        try:
            if path.read_bytes() != data:
                return False
            with self._lock(fcntl.LOCK_SH):
                self._touch(path)
        except FileNotFoundError:
            return False
        return True

    def _touch(self, path: Path) -> None:
        now = self._clock.now().timestamp()
        os.utime(path, (now, now))

    def _write(self, path: Path, data: bytes) -> None:
        """Write the bytes to a temporary file, sync it and rename it to `path`; after an error it is removed."""
        self._make(path.parent)
        unfinished = path.with_name(f"{path.name}.{self._clock.new_id()}{_UNFINISHED}")
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                self._touch(unfinished)
                sync_file(file.fileno())
            with self._lock(fcntl.LOCK_SH):
                unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        sync_path(path.parent)

    def _make(self, folder: Path) -> None:
        """Create the folder and sync its parents, so that it survives a power loss."""
        if not folder.is_dir():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            sync_path(self._folder)
            sync_path(self._folder.parent)

    @contextmanager
    def _lock(self, how: int) -> Generator[None, None, None]:
        """Hold the lock of the folder, shared (LOCK_SH) or exclusive (LOCK_EX); without a folder no lock is taken."""
        if not self._folder.is_dir():
            yield  # a folder that does not exist has no blobs
            return
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, how)
            yield
        finally:
            os.close(lock)


def _put_before(path: Path, moment: float) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime < moment
    return False


def sync_path(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def _store_error(path: Path, error: OSError) -> StoreError:
    """Convert the error to StoreFull for a full disk, StoreFailed for a disk that failed, StoreError otherwise."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(
            f"blob {path} has no room ({error}): free space on its disk; nothing was stored"
        )
    if error.errno == errno.EIO:
        return StoreFailed(
            f"blob {path} could not be used, because its disk failed ({error}); nothing was stored: check that the "
            "disk works and is mounted, then try again"
        )
    return StoreError(f"blob {path} could not be used ({error}): check its folder")


LARGE_BYTES = 32 * 1024
"""A body with longer JSON is stored as a blob."""
