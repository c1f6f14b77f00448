"""Indexes in a folder, or in memory. A commit's index is made from that of a commit before it, where there is one."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sqlite3
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from urllib.parse import quote

from loopline.errors import KnowledgeError
from loopline.knowledge.fts_index import About, FtsIndex, read_about
from loopline.knowledge.index_build import FileReader, IndexKey, NotesFunction, StoredIndex
from loopline.knowledge.index_rows import FORMAT, Contents, continue_from, fill
from loopline.search import IndexDamaged

KEPT_OF_FAMILY = 4
KEPT_FILES = 32
LEAST_SHARED = 0.5
"""The share of files that an index must have in common with one that it is made from; else all are read."""
ALMOST_ALL = 0.9
"""The share of files from which on no older index is looked at."""

_NOT_ALPHANUMERIC = re.compile("[^0-9A-Za-z]")


@dataclass(frozen=True, slots=True)
class _Opened:
    """An open index and what it says of itself."""

    index: FtsIndex
    about: About

    @property
    def stored(self) -> StoredIndex:
        return StoredIndex(self.index, self.about.notes)


class _SharedIndex(FtsIndex):
    """An index in memory: everyone who opens the same signature shares it, so nobody closes it."""

    def close(self) -> None:
        """Do nothing: the index is closed when nobody refers to it any more."""


class FtsIndexes:
    """Indexes in a folder, one file for each signature; without a folder they are in memory."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._in_memory: dict[IndexKey, _Opened] = {}

    def open(self, key: IndexKey) -> StoredIndex | None:
        """Return the index built under this key, or None."""
        if self._directory is None:
            return self._in_memory[key].stored if key in self._in_memory else None
        path = self._directory / _file_name(key)
        opened = _open_file(path)
        if opened is None or opened.about.signature != key.signature:
            return None
        with suppress(OSError):
            os.utime(path)  # the longest unused are removed first
        return opened.stored

    def build(
        self, key: IndexKey, files: Mapping[str, str], read: FileReader, notes: NotesFunction
    ) -> StoredIndex:
        """Build and return the index of these files; other processes that build it wait and get the same file.

        Raises:
            KnowledgeError: the folder cannot be written to, or the disk is full.
        """
        contents = Contents(key.signature, files, read, notes)
        if self._directory is None:
            return self._build_in_memory(key, contents)
        try:
            return self._build_file(self._directory, key, contents)
        except (OSError, sqlite3.Error) as error:
            raise KnowledgeError(
                f"the search index cannot be written to {self._directory}: {error}"
            ) from error

    def discard(self, key: IndexKey) -> None:
        """Remove the index and those of its family, as one may have been made from the other."""
        if self._directory is not None:
            for path in self._directory.glob(f"{_family_name(key)}-*"):
                path.unlink(missing_ok=True)
        for kept in [kept for kept in self._in_memory if kept.family == key.family]:
            del self._in_memory[kept]

    def _build_file(self, directory: Path, key: IndexKey, contents: Contents) -> StoredIndex:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / _file_name(key)
        with _locked(directory / "build.lock"):
            if (ready := self.open(key)) is not None:
                return ready
            temporary = path.with_suffix(".new")
            # A killed process may have left some; no other process is building now.
            for leftover in directory.glob("*.new"):
                leftover.unlink(missing_ok=True)
            try:
                _write_file(directory, temporary, key, contents)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
            _prune(directory, keep=path)
            opened = self.open(key)
        if opened is None:
            raise KnowledgeError(f"the search index in {path} was damaged while it was written")
        return opened

    def _build_in_memory(self, key: IndexKey, contents: Contents) -> StoredIndex:
        if (ready := self.open(key)) is not None:
            return ready
        family = [kept for kept in self._in_memory if kept.family == key.family]
        shared = {kept: _shared(self._in_memory[kept], contents.files) for kept in family}
        nearest = max(family, key=lambda kept: shared[kept], default=None)
        with ExitStack() as stack:
            database = sqlite3.connect(":memory:", check_same_thread=False)
            stack.callback(database.close)
            if nearest is None or shared[nearest] < LEAST_SHARED * len(contents.files):
                fill(database, contents)
            else:
                self._in_memory[nearest].index.copy_to(database)
                continue_from(database, nearest.signature, contents)
            stack.pop_all()
        about = read_about(database)
        if about is None:
            raise KnowledgeError("the search index was damaged while it was made")
        for kept in family[: max(len(family) + 1 - KEPT_OF_FAMILY, 0)]:
            del self._in_memory[kept]
        self._in_memory[key] = _Opened(_SharedIndex(database, about), about)
        return self._in_memory[key].stored


def _write_file(directory: Path, path: Path, key: IndexKey, contents: Contents) -> None:
    """Write the index to a new file, from another one of its family where that has most of the files."""
    earlier = _earlier_file(directory, key, contents.files)
    if earlier is not None:
        try:
            shutil.copyfile(earlier.path, path)
            path.chmod(0o600)
            with closing(sqlite3.connect(path, check_same_thread=False)) as database:
                continue_from(database, earlier.signature, contents)
        except sqlite3.DatabaseError:
            path.unlink()  # what it was made from is damaged
        else:
            return
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(path, check_same_thread=False)) as database:
        fill(database, contents)


@dataclass(frozen=True, slots=True)
class _EarlierFile:
    path: Path
    signature: str
    shared: int


def _earlier_file(directory: Path, key: IndexKey, files: Mapping[str, str]) -> _EarlierFile | None:
    """Return the file of the family that shares the most files, if it shares enough."""
    best: _EarlierFile | None = None
    for path in _newest_first(directory.glob(f"{_family_name(key)}-*.fts")):
        if (opened := _open_file(path)) is not None:
            shared = _shared(opened, files)
            opened.index.close()
            if shared > (best.shared if best is not None else 0):
                best = _EarlierFile(path, opened.about.signature, shared)
            if shared >= ALMOST_ALL * len(files):
                break
    return best if best is not None and best.shared >= LEAST_SHARED * len(files) else None


def _shared(opened: _Opened, files: Mapping[str, str]) -> int:
    """Return how many of the files an index has."""
    try:
        return len(files.items() & opened.index.stored_files().items())
    except IndexDamaged:
        return 0


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    with suppress(OSError):
        return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
    return []  # another process has removed one


def _family_name(key: IndexKey) -> str:
    return blake2b(key.family.encode(), digest_size=8).hexdigest()


def _file_name(key: IndexKey) -> str:
    return f"{_family_name(key)}-{_NOT_ALPHANUMERIC.sub('-', key.signature)}.v{FORMAT}.fts"


def _open_file(path: Path) -> _Opened | None:
    """Return the index in a file, locked so that no other process removes it; None if it is not usable."""
    with ExitStack() as stack:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
            database = sqlite3.connect(uri, uri=True, check_same_thread=False)
            stack.callback(database.close)
            about = read_about(database)
            if about is None:
                return None
        except (sqlite3.Error, OSError, ValueError):
            return None
        stack.pop_all()
        return _Opened(FtsIndex(database, about, descriptor), about)


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Exclude other processes and threads; the lock ends when the process dies."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _prune(directory: Path, *, keep: Path) -> None:
    """Remove all but the newest few files of the family, and of all; except those that a process has open."""
    others = [file for file in _newest_first(directory.glob("*.fts")) if file != keep]
    family = [file for file in others if file.name[:16] == keep.name[:16]]
    for path in {*family[KEPT_OF_FAMILY - 1 :], *others[KEPT_FILES - 1 :]}:
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
