"""Files that several processes use: lock files, and files whose content is replaced as a whole."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex


@contextmanager
def open_lock_file(path: Path) -> Generator[int]:
    """Open a lock file, created if necessary, and yield its descriptor. A lock on it ends when the process dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def lock_file(path: Path) -> Generator[None]:
    """Wait for the lock file, and exclude other processes and threads that lock it."""
    with open_lock_file(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def replace_file(path: Path, data: bytes, *, private: bool = True, sync: bool = False) -> None:
    """Write a temporary file and rename it to `path`, so that an error or a killed process keeps the old content.

    The temporary file is removed after an error. With `private`, only the owner can read the new file; otherwise it has the
    permissions of the old file. With `sync`, the data is on the disk before the file is renamed.
    """
    unfinished = path.with_name(f".{token_hex(8)}.unfinished")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(unfinished, flags, 0o600 if private else 0o666), "wb") as file:
            if not private and path.exists():
                shutil.copymode(path, unfinished)
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
