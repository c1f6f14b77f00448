"""Indexes in a folder, or in memory. A commit's index is made from that of a commit before it, where there is one."""

from __future__ import annotations

import fcntl
import json
import os
import queue
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, count
from pathlib import Path
from typing import cast
from urllib.parse import quote
from weakref import finalize

from loopline.errors import KnowledgeError
from loopline.knowledge.index_build import (
    FileReader,
    IndexedFile,
    IndexKey,
    NotesFunction,
    StoredIndex,
)
from loopline.search import (
    Candidates,
    Chunk,
    IndexBase,
    IndexDamaged,
    Kind,
    QueryTerm,
    name_parts,
    query_terms,
)

APPLICATION_ID = 0x4C4F4F50  # "LOOP"
FORMAT = 2
FAR_ROWS = 1 << 32
"""Is added to the row numbers of tests and other files, so that each part is searched by itself."""
BATCH = 1_000
"""The chunks of one statement, with 8 values each; SQLite takes 32,766 values."""
QUEUED_BATCHES = 4
HASHED_BYTES = 16 << 20
"""The words that FTS5 sorts in memory before it writes them, instead of 1 MB: fewer runs to merge, a quarter less work."""

_NEAR_KINDS = ("prose", "source")
_SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE file(id INTEGER PRIMARY KEY, path TEXT, blob TEXT, note TEXT);
CREATE TABLE chunk(
    id INTEGER PRIMARY KEY, file INTEGER, kind TEXT, first INTEGER, last INTEGER,
    title TEXT, names TEXT, body TEXT
);
CREATE TABLE about(signature TEXT, notes TEXT, chunks INTEGER, base TEXT, changed TEXT);
CREATE VIRTUAL TABLE words USING fts5(
    title, path, body, names, content='', tokenize='porter unicode61'
);
INSERT INTO words(words, rank) VALUES('rank', 'bm25(8.0, 4.0, 1.0, 0.5)');
INSERT INTO words(words, rank) VALUES('hashsize', {HASHED_BYTES});
"""
_FILE_INDEX = "CREATE INDEX chunks_of_file ON chunk(file)"
_UNSAFE_BUT_PRIVATE = (
    "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
    "PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = -65536;"
)
_INSERT_WORDS = "words(rowid, title, path, body, names)"
_DELETE_WORDS = (
    "INSERT INTO words(words, rowid, title, path, body, names) VALUES('delete', ?, ?, ?, ?, ?)"
)
_ROWS = (
    "SELECT chunk.id, chunk.file, kind, first, last, title, names, body, path "
    "FROM chunk JOIN file ON file.id = chunk.file WHERE "
)
_OF_FILES = "chunk.file IN (SELECT value FROM json_each(?)) ORDER BY chunk.id"
_FROM_NUMBER = "chunk.id > ? ORDER BY chunk.id"
_ChunkRow = tuple[int, int, Kind, int, int, str, str, str]
_StoredRow = tuple[int, int, Kind, int, int, str, str, str, str]
_WordRow = tuple[int, str, str, str, str]
_FileRow = tuple[int, str, str, str]
_Batch = tuple[list[_FileRow], list[_ChunkRow], list[_WordRow]]


@dataclass(frozen=True, slots=True)
class Contents:
    """What an index is to hold: the blob of each file, how to read files, and what to note of them in the end."""

    signature: str
    files: Mapping[str, str]
    read: FileReader
    notes: NotesFunction


def word_row(number: int, kind: Kind) -> int:
    """Return the row of a chunk in the index of words."""
    return number if kind in _NEAR_KINDS else number + FAR_ROWS


def fill(database: sqlite3.Connection, contents: Contents) -> str:
    """Write everything in one transaction, without a journal, as nobody uses the file; return the notes."""
    database.isolation_level = None
    database.executescript(f"PRAGMA page_size = 8192; {_UNSAFE_BUT_PRIVATE}")
    database.executescript(_SCHEMA)
    database.execute("BEGIN")
    file_notes: dict[str, str] = {}
    chunks = _insert(database, contents, file_notes)
    database.execute(_FILE_INDEX)
    return _finish(database, contents, file_notes, chunks, None)


def stored_files(database: sqlite3.Connection) -> dict[str, str]:
    """Return the blob of each file in an index by its path."""
    rows = database.execute("SELECT path, blob FROM file").fetchall()
    return dict(cast("list[tuple[str, str]]", rows))


def continue_from(database: sqlite3.Connection, base: str, contents: Contents) -> str:
    """Make the index out of a copy of the one with the signature `base`; return the notes.

    Only files that the copy lacks are read.
    """
    database.isolation_level = None
    database.executescript(_UNSAFE_BUT_PRIVATE)
    database.execute("BEGIN")
    rows = database.execute("SELECT id, path, blob, note FROM file").fetchall()
    stored = {path: (id, blob, note) for id, path, blob, note in cast("list[_FileRow]", rows)}
    changed_paths = [path for path, blob in contents.files.items() if _blob(stored, path) != blob]
    gone = [id for path, (id, blob, _) in stored.items() if contents.files.get(path) != blob]
    row = database.execute("SELECT chunks FROM about").fetchone()
    before = cast("tuple[int]", row)[0]
    next_id = max((id for id, _, _ in stored.values()), default=0) + 1
    freed = _remove(database, gone)
    read = list(contents.read(changed_paths))
    size, changed = _place(database, read, next_id, freed, before)
    file_notes = {path: note for path, (_, _, note) in stored.items()}
    file_notes |= {file.path: file.note for file in read}
    return _finish(database, contents, file_notes, size, IndexBase(base, frozenset(changed)))


def _blob(stored: Mapping[str, tuple[int, str, str]], path: str) -> str:
    return stored[path][1] if path in stored else ""


def _remove(database: sqlite3.Connection, gone: Sequence[int]) -> list[int]:
    """Remove files with their chunks; return the numbers that are free now, in order."""
    among = json.dumps(gone)
    rows = cast("list[_StoredRow]", database.execute(_ROWS + _OF_FILES, (among,)).fetchall())
    _delete_words(database, rows)
    for table, column in ("chunk", "file"), ("file", "id"):
        database.execute(
            f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))", (among,)
        )
    return [row[0] for row in rows]


def _delete_words(database: sqlite3.Connection, rows: Sequence[_StoredRow]) -> None:
    # The index of words keeps no texts: it takes a row out by the texts that were put in.
    texts = [
        (word_row(number, kind), title, path, body, names)
        for number, _, kind, _, _, title, names, body, path in rows
    ]
    database.executemany(_DELETE_WORDS, sorted(texts))


def _place(
    database: sqlite3.Connection,
    files: Sequence[IndexedFile],
    next_id: int,
    freed: Sequence[int],
    before: int,
) -> tuple[int, set[int]]:
    """Insert files, with the freed numbers first; return the number of chunks, and which numbers have another one.

    There were `before` chunks.
    """
    numbers = chain(freed, count(before + 1))
    batch: _Batch = ([], [], [])
    for file_id, file in enumerate(files, start=next_id):
        batch[0].append((file_id, file.path, file.blob, file.note))
        for each in file.chunks:
            _add(batch, next(numbers), file_id, each)
    new = len(batch[1])
    size = before + new - len(freed)
    _fill_holes(database, batch, [hole for hole in freed[new:] if hole <= size], size)
    _write_batch(database, batch)
    return size, {row[0] for row in batch[1]}


def _fill_holes(
    database: sqlite3.Connection, batch: _Batch, holes: Sequence[int], size: int
) -> None:
    """Give the chunks after `size` the numbers that are left."""
    rows = cast("list[_StoredRow]", database.execute(_ROWS + _FROM_NUMBER, (size,)).fetchall())
    _delete_words(database, rows)
    database.execute("DELETE FROM chunk WHERE id > ?", (size,))
    for number, row in zip(holes, rows, strict=True):
        _, file_id, kind, first, last, title, names, body, path = row
        batch[1].append((number, file_id, kind, first, last, title, names, body))
        batch[2].append((word_row(number, kind), title, path, body, names))


def _add(batch: _Batch, number: int, file_id: int, chunk: Chunk) -> None:
    names = name_parts(chunk.text) if chunk.kind in _NEAR_KINDS else ""
    batch[1].append((number, file_id, chunk.kind, *chunk.lines, chunk.title, names, chunk.text))
    batch[2].append((word_row(number, chunk.kind), chunk.title, chunk.path, chunk.text, names))


def _finish(
    database: sqlite3.Connection,
    contents: Contents,
    file_notes: Mapping[str, str],
    size: int,
    base: IndexBase | None,
) -> str:
    written = contents.notes({path: file_notes[path] for path in contents.files})
    changed = json.dumps(sorted(base.changed)) if base is not None else "[]"
    database.execute("DELETE FROM about")
    database.execute(
        "INSERT INTO about VALUES(?, ?, ?, ?, ?)",
        (contents.signature, written, size, base.signature if base is not None else "", changed),
    )
    database.execute("COMMIT")
    return written


def _insert(database: sqlite3.Connection, contents: Contents, file_notes: dict[str, str]) -> int:
    """Insert in a second thread, while the next files are read and cut; return the number of chunks."""
    waiting: queue.Queue[_Batch | None] = queue.Queue(QUEUED_BATCHES)
    failures: list[sqlite3.Error] = []
    writer = threading.Thread(target=_write, args=(database, waiting, failures), daemon=True)
    writer.start()
    chunks = 0
    try:
        for batch in _batches(contents.read(list(contents.files)), file_notes):
            chunks += len(batch[1])
            waiting.put(batch)
            if failures:
                break
    finally:
        waiting.put(None)
        writer.join()
    if failures:
        raise failures[0]
    return chunks


def _batches(files: Iterable[IndexedFile], file_notes: dict[str, str]) -> Iterator[_Batch]:
    batch: _Batch = ([], [], [])
    numbers = count(1)
    for file_id, file in enumerate(files, start=1):
        file_notes[file.path] = file.note
        batch[0].append((file_id, file.path, file.blob, file.note))
        for chunk in file.chunks:
            _add(batch, next(numbers), file_id, chunk)
        if len(batch[1]) >= BATCH or len(batch[0]) >= BATCH:
            yield batch
            batch = ([], [], [])
    yield batch


def _write(
    database: sqlite3.Connection,
    waiting: queue.Queue[_Batch | None],
    failures: list[sqlite3.Error],
) -> None:
    while (batch := waiting.get()) is not None:
        if failures:
            continue
        try:
            _write_batch(database, batch)
        except sqlite3.Error as error:
            failures.append(error)


def _write_batch(database: sqlite3.Connection, batch: _Batch) -> None:
    files, chunks, texts = batch
    _insert_rows(database, "file", 4, files)
    _insert_rows(database, "chunk", 8, chunks)
    # In order, as the words of a row that comes before the last one are written to a run of their own.
    _insert_rows(database, _INSERT_WORDS, 5, sorted(texts))


def _insert_rows(
    database: sqlite3.Connection, table: str, columns: int, rows: Sequence[Sequence[str | int]]
) -> None:
    # One statement a batch: SQLite gives the interpreter back once, not after each row.
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        database.execute(_insertion(table, columns, len(part)), [*chain.from_iterable(part)])


@lru_cache(maxsize=8)
def _insertion(table: str, columns: int, rows: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {table} VALUES {', '.join([row] * rows)}"


CANDIDATES = 20
RARE_ROWS = 1_500
OMITTED_TERMS = 2
_FIND = """
SELECT chunk.id, file.path, title, body, first, last, kind
FROM (
    SELECT rowid AS word_row FROM words
    WHERE words MATCH ? AND rowid BETWEEN ? AND ?
    AND (? IS NULL OR rowid IN (SELECT value FROM json_each(?))) ORDER BY rank LIMIT ?
) AS found JOIN chunk ON chunk.id = found.word_row - ? JOIN file ON file.id = chunk.file
"""
_READ = """
SELECT chunk.id, path, title, body, first, last, kind FROM chunk JOIN file ON file.id = chunk.file
WHERE chunk.id IN (SELECT value FROM json_each(?))
"""
_FILES = "SELECT id, path FROM file"
_NUMBERS = "SELECT id FROM chunk WHERE file IN (SELECT value FROM json_each(?)) ORDER BY id"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)"
_ABOUT = "SELECT signature, notes, chunks, base, changed FROM about"
# Documents and source are one run of row numbers, tests and other files another. Each run gives its own
# candidates, whatever matches in the other.
_RANGES = ((0, FAR_ROWS, True), (FAR_ROWS, 2 * FAR_ROWS, False))
_Row = tuple[int, str, str, str, int, int, Kind]
_About = tuple[str, str, int, str, str]


@dataclass(frozen=True, slots=True)
class About:
    """What an index says of itself."""

    signature: str
    notes: str
    chunks: int
    base: IndexBase | None


def read_about(database: sqlite3.Connection) -> About | None:
    """Return what an index says of itself; None if it is incomplete or belongs to another program."""
    identity = _pragma(database, "application_id"), _pragma(database, "user_version")
    if identity != (APPLICATION_ID, FORMAT):
        return None
    rows = cast("list[_About]", database.execute(_ABOUT).fetchall())
    last = cast("tuple[int | None]", database.execute("SELECT max(id) FROM chunk").fetchone())
    database.execute("SELECT rowid FROM words WHERE words MATCH '\"a\"' LIMIT 1").fetchall()
    if len(rows) != 1 or rows[0][2] != (last[0] or 0):
        return None
    signature, notes, chunks, base, changed = rows[0]
    made_from = IndexBase(base, frozenset(cast("list[int]", json.loads(changed)))) if base else None
    return About(signature, notes, chunks, made_from)


def _pragma(database: sqlite3.Connection, name: str) -> int:
    return cast("tuple[int]", database.execute(f"PRAGMA {name}").fetchone())[0]


class FtsIndex:
    """An index in one SQLite database. Searches take turns, so any thread may search."""

    def __init__(
        self, database: sqlite3.Connection, about: About, descriptor: int | None = None
    ) -> None:
        self._database = database
        self._released = finalize(self, _release, database, descriptor)
        self._lock = threading.Lock()
        self._about = about

    @property
    def size(self) -> int:
        """The number of chunks."""
        return self._about.chunks

    @property
    def base(self) -> IndexBase | None:
        """The index that this one was made from; None if it was made from nothing."""
        return self._about.base

    def copy_to(self, database: sqlite3.Connection) -> None:
        """Copy the index into an empty database."""
        with self._reading():
            self._database.backup(database)

    def candidates(
        self, query: str, *, limit: int, among: Collection[int] | None = None
    ) -> Candidates:
        """Return the chunks that share the most, or the rarest, words with the query.

        Raises:
            IndexDamaged: the file cannot be read.
        """
        words = query_terms(query.encode("utf-8", "replace").decode())
        with self._reading():
            terms = self._terms(words)
            chunks = self._candidates(terms, max(CANDIDATES, limit), among)
        return Candidates(tuple(terms), chunks)

    def read(self, numbers: Sequence[int]) -> list[Chunk]:
        """Return the chunks with these numbers, in this order.

        Raises:
            IndexDamaged: the file cannot be read.
        """
        with self._reading():
            rows = self._database.execute(_READ, (json.dumps(list(numbers)),)).fetchall()
        chunks = dict(map(_chunk, cast("list[_Row]", rows)))
        return [chunks[number] for number in numbers if number in chunks]

    def numbers(self, paths: Callable[[str], bool]) -> list[int]:
        """Return the numbers of the chunks in files whose path the function accepts.

        Raises:
            IndexDamaged: the file cannot be read.
        """
        with self._reading():
            files = cast("list[tuple[int, str]]", self._database.execute(_FILES).fetchall())
            accepted = json.dumps([id for id, path in files if paths(path)])
            rows = cast(
                "list[tuple[int]]", self._database.execute(_NUMBERS, (accepted,)).fetchall()
            )
        return [number for (number,) in rows]

    def stored_files(self) -> Mapping[str, str]:
        """Return the blob of each file by its path.

        Raises:
            IndexDamaged: the file cannot be read.
        """
        with self._reading():
            return stored_files(self._database)

    @contextmanager
    def _reading(self) -> Generator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.ProgrammingError:
                raise
            except sqlite3.DatabaseError as error:
                raise IndexDamaged(f"the search index cannot be read: {error}") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._released()

    def _terms(self, words: tuple[str, ...]) -> list[QueryTerm]:
        """Return the terms with the share of chunks that have them, up to a ceiling."""
        terms: list[QueryTerm] = []
        for term in words:
            row = self._database.execute(_COUNT, (f'"{term}"', RARE_ROWS + 1)).fetchone()
            terms.append(QueryTerm(term, cast("tuple[int]", row)[0] / max(self.size, 1)))
        return terms

    def _candidates(
        self, terms: list[QueryTerm], limit: int, among: Collection[int] | None
    ) -> dict[int, Chunk]:
        """Return the chunks to rank: documents and source first, fewer of tests and other files."""
        occurring = [term for term in terms if term.share]
        if not occurring:
            return {}
        any_rare, *together = self._expressions(occurring)
        candidates: dict[int, Chunk] = {}
        for first, last, near in _RANGES:
            allowed = None if among is None else json.dumps([first + n for n in sorted(among)])
            expressions = [any_rare, *(together if near else together[:1])]
            range_limit = limit if near else limit // 2
            for expression in expressions:
                parameters = (expression, first, last, allowed, allowed, range_limit, first)
                rows = self._database.execute(_FIND, parameters).fetchall()
                candidates.update(map(_chunk, cast("list[_Row]", rows)))
        return candidates

    def _expressions(self, terms: list[QueryTerm]) -> list[str]:
        """Return the queries: any rare term; then all terms, all but one, and the common ones."""
        rare, common = self._split_by_rarity(terms)
        words = rare + common
        together = [words]
        if len(words) > 2:
            together += [[w for w in words if w != left_out] for left_out in words[:OMITTED_TERMS]]
        together += [common, common[:2]]
        joined = [" AND ".join(group) for group in together if len(group) > 1]
        return list(dict.fromkeys([" OR ".join(rare), *joined]))

    def _split_by_rarity(self, terms: list[QueryTerm]) -> tuple[list[str], list[str]]:
        """Return the rare terms, which find chunks alone, and the common ones, which do so together.

        A search costs its ranking: a microsecond for each chunk that matches.
        """
        rare: list[str] = []
        common: list[str] = []
        rows = 0.0
        for term in sorted(terms, key=lambda term: term.share):
            rows += term.share * self.size
            (common if rare and rows > RARE_ROWS else rare).append(f'"{term.text}"')
        return rare, common


def _chunk(row: _Row) -> tuple[int, Chunk]:
    number, path, title, text, first, last, kind = row
    return number, Chunk(path=path, title=title, text=text, lines=(first, last), kind=kind)


def _release(database: sqlite3.Connection, descriptor: int | None) -> None:
    database.close()
    if descriptor is not None:
        os.close(descriptor)


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
