"""Reading a store that nobody has open: nothing is made beside it, as SQLite else does even to read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine

from loopline.adapters.sql.files import reading_still
from loopline.adapters.sql.threads import Readers, T
from loopline.errors import StoreError


_BESIDE = ("-wal", "-journal")


class StillReaders(Readers):
    """Threads that read, and leave no trace where nobody writes.

    SQLite is told that the file does not change, and once it has been read, that is looked into: if
    somebody has come meanwhile, what was read counts for nothing, and is read anew with them in view.
    """

    def __init__(self, path: Path, engine: Engine, threads: int) -> None:
        super().__init__(path, engine, threads)
        self._file = path
        self._still = Readers(path, reading_still(path), threads)

    def read_here(self, work: Callable[[Connection], T]) -> T:
        """What the work reads, in one transaction, on this very thread."""
        before = as_left(self._file)
        if before is None:
            return super().read_here(work)
        try:
            found = self._still.read_here(work)
        except StoreError:
            if as_left(self._file) == before:
                raise
        else:
            if as_left(self._file) == before:
                return found
        return super().read_here(work)

    def close(self) -> None:
        """Finish what was asked for, then let go of the file."""
        super().close()
        self._still.close()


def as_left(path: Path) -> tuple[int, int, int] | None:
    """What changes when the file does; None while somebody has it open, or left it unfinished."""
    if any(path.with_name(f"{path.name}{end}").exists() for end in _BESIDE):
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
