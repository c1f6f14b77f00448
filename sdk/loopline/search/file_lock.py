"""Locks between processes, as lock files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


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
