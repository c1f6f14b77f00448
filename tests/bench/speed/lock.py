"""The share of time in which some process holds the write lock of an SQLite file, seen from outside."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

INTERVAL_SECONDS = 0.001
_FLOCK = "hhqqi4x"
"""`struct flock` of Linux on 64 bits: the type, from where, start, length, process."""
_WRITE_LOCK_BYTE = 120
"""Of the file `-shm`: https://sqlite.org/walformat.html, "WAL Locks"."""


@dataclass(slots=True)
class LockShare:
    """How often the lock was looked at, and how often it was held."""

    looks: int = 0
    held: int = 0

    @property
    def share(self) -> float:
        return self.held / self.looks if self.looks else 0.0


def is_held(shared_memory: int) -> bool:
    """Tell whether another process holds the write lock; this takes no lock and waits for none."""
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _WRITE_LOCK_BYTE, 1, 0)
    answer = fcntl.fcntl(shared_memory, fcntl.F_GETLK, wanted)
    kind: int = struct.unpack(_FLOCK, answer)[0]
    return kind != fcntl.F_UNLCK


@contextmanager
def watched(store: Path) -> Generator[LockShare]:
    """Look at the lock of a store each millisecond, in a thread, while the block runs."""
    share, event = LockShare(), Event()
    thread = Thread(target=_watch, args=(Path(f"{store}-shm"), share, event))
    thread.start()
    try:
        yield share
    finally:
        event.set()
        thread.join()


def _watch(path: Path, share: LockShare, ended: Event) -> None:
    while not path.exists():
        if ended.wait(INTERVAL_SECONDS):
            return
    with path.open("r+b") as shared_memory:
        while not ended.wait(INTERVAL_SECONDS):
            share.looks += 1
            share.held += is_held(shared_memory.fileno())
