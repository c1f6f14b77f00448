"""Lexical search in SQLite FTS5: one file for each index, built once and then only read."""

from __future__ import annotations

import fcntl
import json
import os
import queue
import re
import sqlite3
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import cast
from urllib.parse import quote
from weakref import finalize

from loopline.errors import KnowledgeError
from loopline.knowledge import StoredIndex
from loopline.search import (
    Candidates,
    Chunk,
    IndexDamaged,
    Kind,
    QueryTerm,
    name_parts,
    query_terms,
)

APPLICATION_ID = 0x4C4F4F50  # "LOOP"
FORMAT = 1
CACHED_INDEXES = 4
CANDIDATES = 20
RARE_ROWS = 1_500
OMITTED_TERMS = 2
BATCH = 1_000
"""The chunks of one statement, with 7 values each; SQLite takes 32,766 values."""
QUEUED_BATCHES = 4
HASHED_BYTES = 16 << 20
"""The words that FTS5 sorts in memory before it writes them, instead of 1 MB: fewer runs to merge, a quarter less work."""

_NOT_ALPHANUMERIC = re.compile("[^0-9A-Za-z]")
_SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE chunk(
    id INTEGER PRIMARY KEY, path TEXT, title TEXT, body TEXT, first INTEGER, last INTEGER, kind TEXT
);
CREATE TABLE about(signature TEXT, notes TEXT, chunks INTEGER);
CREATE VIRTUAL TABLE words USING fts5(
    title, path, body, names, content='', tokenize='porter unicode61'
);
INSERT INTO words(words, rank) VALUES('rank', 'bm25(8.0, 4.0, 1.0, 0.5)');
INSERT INTO words(words, rank) VALUES('hashsize', {HASHED_BYTES});
"""
_WORDS = "words(rowid, title, path, body, names)"
_FIND = """
SELECT chunk.id, chunk.path, chunk.title, chunk.body, chunk.first, chunk.last, chunk.kind
FROM (
    SELECT rowid FROM words
    WHERE words MATCH ? AND rowid BETWEEN ? AND ?
    AND (? IS NULL OR rowid IN (SELECT value FROM json_each(?))) ORDER BY rank LIMIT ?
) AS found JOIN chunk ON chunk.id = found.rowid
"""
_READ = """
SELECT id, path, title, body, first, last, kind FROM chunk
WHERE id IN (SELECT value FROM json_each(?))
"""
# The chunks of a file have one run of numbers.
_FILES = "SELECT path, min(id), max(id) FROM chunk GROUP BY path"
_COUNT = """
SELECT count(*) FROM (
    SELECT 1 FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ? LIMIT ?
)
"""
# Chunks come in the order of their kinds, so documents and source are one run of row numbers, tests
# and other files another. Each run gives its own candidates, whatever matches in the other.
_RANGES = """
SELECT min(id), max(id), kind IN ('prose', 'source') AS near
FROM chunk GROUP BY near ORDER BY near DESC
"""
_NAMED_KINDS = ("prose", "source")
_Row = tuple[int, str, str, str, int, int, Kind]
_Text = tuple[int, str, str, str, str]
_Batch = tuple[list[_Row], list[_Text]]


class FtsIndex:
    """An index in one SQLite database. Searches take turns, so any thread may search."""

    def __init__(self, database: sqlite3.Connection, descriptor: int | None = None) -> None:
        self._database = database
        self._released = finalize(self, _release, database, descriptor)
        self._lock = threading.Lock()
        self._ranges = cast("list[tuple[int, int, int]]", database.execute(_RANGES).fetchall())
        self._last = max((last for _, last, _ in self._ranges), default=0)

    @property
    def size(self) -> int:
        """The number of chunks."""
        return self._last

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
            files = cast("list[tuple[str, int, int]]", self._database.execute(_FILES).fetchall())
        return [n for path, first, last in files if paths(path) for n in range(first, last + 1)]

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
            parameters = (f'"{term}"', 1, self._last, RARE_ROWS + 1)
            row = self._database.execute(_COUNT, parameters).fetchone()
            terms.append(QueryTerm(term, cast("tuple[int]", row)[0] / max(self._last, 1)))
        return terms

    def _candidates(
        self, terms: list[QueryTerm], limit: int, among: Collection[int] | None
    ) -> dict[int, Chunk]:
        """Return the chunks to rank: documents and source first, fewer of tests and other files."""
        occurring = [term for term in terms if term.share]
        if not occurring:
            return {}
        any_rare, *together = self._expressions(occurring)
        allowed = None if among is None else json.dumps(sorted(among))
        candidates: dict[int, Chunk] = {}
        for first, last, near in self._ranges:
            expressions = [any_rare, *(together if near else together[:1])]
            range_limit = limit if near else limit // 2
            for expression in expressions:
                parameters = (expression, first, last, allowed, allowed, range_limit)
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
            rows += term.share * self._last
            (common if rare and rows > RARE_ROWS else rare).append(f'"{term.text}"')
        return rare, common


def _chunk(row: _Row) -> tuple[int, Chunk]:
    number, path, title, text, first, last, kind = row
    return number, Chunk(path=path, title=title, text=text, lines=(first, last), kind=kind)


class _SharedIndex(FtsIndex):
    """An index in memory: everyone who opens the same signature shares it, so nobody closes it."""

    def close(self) -> None:
        """Do nothing: the index is closed when nobody refers to it any more."""


class FtsIndexes:
    """Indexes in a folder, one file for each signature; without a folder they are in memory."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._in_memory: dict[str, StoredIndex] = {}

    def open(self, signature: str) -> StoredIndex | None:
        """Return the index built under this signature, or None."""
        if self._directory is None:
            return self._in_memory.get(signature)
        return _open_file(self._directory / _file_name(signature), signature)

    def build(
        self, signature: str, chunks: Iterable[Chunk], notes: Callable[[], str]
    ) -> StoredIndex:
        """Build and return the index of these chunks; other processes that build it wait and get the same file.

        Raises:
            KnowledgeError: the folder cannot be written to, or the disk is full.
        """
        if self._directory is None:
            return self._build_in_memory(signature, chunks, notes)
        try:
            return self._build_file(self._directory, signature, chunks, notes)
        except (OSError, sqlite3.Error) as error:
            raise KnowledgeError(
                f"the search index cannot be written to {self._directory}: {error}"
            ) from error

    def discard(self, signature: str) -> None:
        """Remove the file of this signature."""
        if self._directory is not None:
            (self._directory / _file_name(signature)).unlink(missing_ok=True)
        self._in_memory.pop(signature, None)

    def _build_file(
        self, directory: Path, signature: str, chunks: Iterable[Chunk], notes: Callable[[], str]
    ) -> StoredIndex:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / _file_name(signature)
        with _locked(directory / "build.lock"):
            if (ready := _open_file(path, signature)) is not None:
                return ready
            temporary = path.with_suffix(".new")
            # A killed process may have left some; no other process is building now.
            for leftover in directory.glob("*.new"):
                leftover.unlink(missing_ok=True)
            try:
                os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                with closing(sqlite3.connect(temporary, check_same_thread=False)) as database:
                    _fill(database, signature, chunks, notes)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
            _prune(directory, keep=path)
            opened = _open_file(path, signature)
        if opened is None:
            raise KnowledgeError(f"the search index in {path} was damaged while it was written")
        return opened

    def _build_in_memory(
        self, signature: str, chunks: Iterable[Chunk], notes: Callable[[], str]
    ) -> StoredIndex:
        if (ready := self.open(signature)) is not None:
            return ready
        with ExitStack() as stack:
            database = sqlite3.connect(":memory:", check_same_thread=False)
            stack.callback(database.close)
            written = _fill(database, signature, chunks, notes)
            stack.pop_all()
        while len(self._in_memory) >= CACHED_INDEXES:
            del self._in_memory[next(iter(self._in_memory))]
        self._in_memory[signature] = StoredIndex(_SharedIndex(database), written)
        return self._in_memory[signature]


def _release(database: sqlite3.Connection, descriptor: int | None) -> None:
    database.close()
    if descriptor is not None:
        os.close(descriptor)


def _fill(
    database: sqlite3.Connection,
    signature: str,
    chunks: Iterable[Chunk],
    notes: Callable[[], str],
) -> str:
    """Write everything in one transaction, without a journal, as nobody uses the file; return the notes."""
    database.isolation_level = None
    database.executescript(
        "PRAGMA page_size = 8192; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
        "PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = -65536;"
    )
    database.executescript(_SCHEMA)
    database.execute("BEGIN")
    count = _insert(database, chunks)
    written = notes()
    database.execute("INSERT INTO about VALUES(?, ?, ?)", (signature, written, count))
    database.execute("COMMIT")
    return written


def _insert(database: sqlite3.Connection, chunks: Iterable[Chunk]) -> int:
    """Insert in a second thread, while the next files are read and cut; return the number of chunks."""
    waiting: queue.Queue[_Batch | None] = queue.Queue(QUEUED_BATCHES)
    failures: list[sqlite3.Error] = []
    writer = threading.Thread(target=_write, args=(database, waiting, failures), daemon=True)
    writer.start()
    count = 0
    try:
        for batch in _batches(chunks):
            count += len(batch[0])
            waiting.put(batch)
            if failures:
                break
    finally:
        waiting.put(None)
        writer.join()
    if failures:
        raise failures[0]
    return count


def _write(
    database: sqlite3.Connection,
    waiting: queue.Queue[_Batch | None],
    failures: list[sqlite3.Error],
) -> None:
    while (batch := waiting.get()) is not None:
        if failures:
            continue
        try:
            # One statement a batch: SQLite gives the interpreter back once, not after each row.
            rows, texts = batch
            database.execute(_insertion("chunk", 7, len(rows)), [*chain.from_iterable(rows)])
            database.execute(_insertion(_WORDS, 5, len(texts)), [*chain.from_iterable(texts)])
        except sqlite3.Error as error:
            failures.append(error)


@lru_cache(maxsize=8)
def _insertion(table: str, columns: int, rows: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {table} VALUES {', '.join([row] * rows)}"


def _batches(chunks: Iterable[Chunk]) -> Iterator[_Batch]:
    numbered = enumerate(chunks, start=1)
    while batch := list(islice(numbered, BATCH)):
        rows: list[_Row] = [
            (number, chunk.path, chunk.title, chunk.text, *chunk.lines, chunk.kind)
            for number, chunk in batch
        ]
        texts: list[_Text] = [
            (
                number,
                chunk.title,
                chunk.path,
                chunk.text,
                name_parts(chunk.text) if chunk.kind in _NAMED_KINDS else "",
            )
            for number, chunk in batch
        ]
        yield rows, texts


def _file_name(signature: str) -> str:
    return f"{_NOT_ALPHANUMERIC.sub('-', signature)}.v{FORMAT}.fts"


def _open_file(path: Path, signature: str) -> StoredIndex | None:
    """Return the index in a file, locked so that no other process removes it; None if it is not usable."""
    with ExitStack() as stack:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
            database = sqlite3.connect(uri, uri=True, check_same_thread=False)
            stack.callback(database.close)
            notes = _notes(database, signature)
            if notes is None:
                return None
            os.utime(path)
            index = FtsIndex(database, descriptor)
        except (sqlite3.Error, OSError):
            return None
        stack.pop_all()
        return StoredIndex(index, notes)


def _notes(database: sqlite3.Connection, signature: str) -> str | None:
    """Return the notes of the index; None if it is incomplete or belongs to another program."""
    identity = _pragma(database, "application_id"), _pragma(database, "user_version")
    if identity != (APPLICATION_ID, FORMAT):
        return None
    rows = cast(
        "list[tuple[str, str, int]]",
        database.execute("SELECT signature, notes, chunks FROM about").fetchall(),
    )
    if len(rows) != 1 or rows[0][0] != signature:
        return None
    last = cast("tuple[int | None]", database.execute("SELECT max(id) FROM chunk").fetchone())
    database.execute("SELECT rowid FROM words WHERE words MATCH '\"a\"' LIMIT 1").fetchall()
    return rows[0][1] if (last[0] or 0) == rows[0][2] else None


def _pragma(database: sqlite3.Connection, name: str) -> int:
    return cast("tuple[int]", database.execute(f"PRAGMA {name}").fetchone())[0]


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
    """Remove all but the newest few files, except those that a process has open."""
    with suppress(OSError):
        files = sorted(directory.glob("*.fts"), key=lambda file: file.stat().st_mtime, reverse=True)
        for path in [file for file in files if file != keep][CACHED_INDEXES - 1 :]:
            with suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
