"""Disks that fail under a store: no log to sync, and no log that can be opened."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unsynced(store: Path) -> Generator[None]:
    """Have no disk to wait for in the place of the store's write-ahead log, which is still written."""
    with _replaced_log(store, "/dev/null"):
        yield


@contextmanager
def unopened(store: Path) -> Generator[None]:
    """Have a link to itself in the place of the store's write-ahead log, which is still written."""
    with _replaced_log(store, f"{store}-wal"):
        yield


@contextmanager
def _replaced_log(store: Path, target: str) -> Generator[None]:
    log, aside = Path(f"{store}-wal"), store.with_name("aside")
    log.rename(aside)
    log.symlink_to(target)
    try:
        yield
    finally:
        log.unlink()
        aside.rename(log)
