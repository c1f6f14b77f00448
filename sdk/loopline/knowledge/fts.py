"""Full-text indexes in SQLite FTS5, each in a file.

The index of a commit is made from a copy of the index of an earlier commit if they have enough files in common.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, count
from pathlib import Path
from tempfile import mkdtemp
from typing import cast
from urllib.parse import quote
from weakref import finalize

from loopline.errors import KnowledgeError, StoreError
from loopline.knowledge.index_build import (
    FileReader,
    IndexedFile,
    IndexFiles,
    IndexKey,
    NotesFunction,
)
from loopline.search import (
    Candidates,
    Chunk,
    IndexBase,
    IndexDamaged,
    Kind,
    PieceEmbedder,
    PieceIndex,
    QueryTerm,
    name_parts,
    query_terms,
    rarity,
)
from loopline.shared_files import lock_file

logger: logging.Logger = logging.getLogger("loopline")

APPLICATION_ID = 0x4C4F4F50  # "LOOP"
FORMAT = 3
FAR_ROWS = 1 << 32
"""An offset of the row numbers of tests and other files in the table of words. Each range is searched separately."""
BATCH = 1_000
"""The rows of one INSERT statement. A chunk has 8 values, and SQLite accepts 32,766 values in a statement."""
QUEUED_BATCHES = 4
"""The batches that may wait for the thread that writes."""
HASHED_BYTES = 16 << 20
"""The memory in which FTS5 sorts words before it writes them. With the default of 1 MB a build takes a third longer."""

_NEAR_KINDS = ("prose", "source")
_SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE file(id INTEGER PRIMARY KEY, path TEXT, blob TEXT, note TEXT);
CREATE TABLE chunk(
    id INTEGER PRIMARY KEY, file INTEGER, kind TEXT, first INTEGER, last INTEGER,
    title TEXT, names TEXT, body TEXT
);
CREATE TABLE pieces(chunk INTEGER PRIMARY KEY, vectors BLOB);
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
_AMONG = "chunk IN (SELECT value FROM json_each(?))"
_FROM_NUMBER = "chunk.id > ? ORDER BY chunk.id"
_ChunkRow = tuple[int, int, Kind, int, int, str, str, str]
_StoredRow = tuple[int, int, Kind, int, int, str, str, str, str]
_WordRow = tuple[int, str, str, str, str]
_FileRow = tuple[int, str, str, str]
_Batch = tuple[list[_FileRow], list[_ChunkRow], list[_WordRow]]
_Loader = Callable[[], PieceEmbedder]


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of an index to build: its signature, the blob of each file by path, and how to read and note files.

    `load` loads the embedder of static vectors; without it the index has none.
    """

    signature: str
    files: Mapping[str, str]
    read: FileReader
    notes: NotesFunction
    load: _Loader | None = None


def word_row(number: int, kind: Kind) -> int:
    """Return the row number of a chunk in the table of words."""
    return number if kind in _NEAR_KINDS else number + FAR_ROWS


def fill_index(database: sqlite3.Connection, contents: Contents) -> None:
    """Write an index into an empty database, in one transaction and without a journal, as its only connection.

    If the process is killed before the end, the file may be damaged.
    """
    database.isolation_level = None
    database.executescript(f"PRAGMA page_size = 8192; {_UNSAFE_BUT_PRIVATE}")
    database.executescript(_SCHEMA)
    database.execute("BEGIN")
    file_notes: dict[str, str] = {}
    numbers = _insert_files(database, contents, [*contents.files], 1, count(1), file_notes)
    database.execute(_FILE_INDEX)
    _write_about(database, contents, file_notes, len(numbers), None)


def update_index(database: sqlite3.Connection, base: str, contents: Contents) -> None:
    """Change the database, a copy of the index with the signature `base`, into the index of the contents, and commit.

    Only new and changed files are read. Their chunks get the numbers of removed chunks first. If such numbers remain,
    the last chunks get them, so that the numbers stay without a gap.
    """
    database.isolation_level = None
    database.executescript(_UNSAFE_BUT_PRIVATE)
    database.execute("BEGIN")
    rows = database.execute("SELECT id, path, blob, note FROM file").fetchall()
    stored = {path: (id, blob, note) for id, path, blob, note in cast("list[_FileRow]", rows)}
    blobs = {path: blob for path, (_, blob, _) in stored.items()}
    changed_paths = [path for path, blob in contents.files.items() if blobs.get(path) != blob]
    removed = [id for path, (id, blob, _) in stored.items() if contents.files.get(path) != blob]
    row = database.execute("SELECT chunks FROM about").fetchone()
    size_before = cast("tuple[int]", row)[0]
    next_id = max((id for id, _, _ in stored.values()), default=0) + 1
    freed = _remove(database, removed)
    file_notes = {path: note for path, (_, _, note) in stored.items()}
    numbers = chain(freed, count(size_before + 1))
    new = _insert_files(database, contents, changed_paths, next_id, numbers, file_notes)
    size = size_before + len(new) - len(freed)
    holes = [hole for hole in freed[len(new) :] if hole <= size]
    _fill_holes(database, holes, size, contents.load)
    changed = frozenset([*new, *holes])
    _write_about(database, contents, file_notes, size, IndexBase(base, changed))


def _remove(database: sqlite3.Connection, file_ids: Sequence[int]) -> list[int]:
    """Remove files with their chunks; return the numbers of the removed chunks in ascending order."""
    among = json.dumps(file_ids)
    rows = cast("list[_StoredRow]", database.execute(_ROWS + _OF_FILES, (among,)).fetchall())
    _delete_words(database, rows)
    numbers = json.dumps([row[0] for row in rows])
    database.execute(f"DELETE FROM pieces WHERE {_AMONG}", (numbers,))
    for table, column in ("chunk", "file"), ("file", "id"):
        database.execute(
            f"DELETE FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))", (among,)
        )
    return [row[0] for row in rows]


def _delete_words(database: sqlite3.Connection, rows: Sequence[_StoredRow]) -> None:
    """Delete the rows of these chunks from the table of words, in the order of their row numbers."""
    # The table of words does not store the texts, so FTS5 needs the inserted texts again to delete a row.
    texts = [
        (word_row(number, kind), title, path, body, names)
        for number, _, kind, _, _, title, names, body, path in rows
    ]
    database.executemany(_DELETE_WORDS, sorted(texts))


def _fill_holes(
    database: sqlite3.Connection, holes: Sequence[int], size: int, load: _Loader | None
) -> None:
    """Renumber the chunks with numbers above `size` to the free numbers in `holes`; both are equally many."""
    rows = cast("list[_StoredRow]", database.execute(_ROWS + _FROM_NUMBER, (size,)).fetchall())
    _delete_words(database, rows)
    database.execute("DELETE FROM chunk WHERE id > ?", (size,))
    database.execute("DELETE FROM pieces WHERE chunk > ?", (size,))
    batch: _Batch = ([], [], [])
    for number, row in zip(holes, rows, strict=True):
        _, file_id, kind, first, last, title, names, body, path = row
        batch[1].append((number, file_id, kind, first, last, title, names, body))
        batch[2].append((word_row(number, kind), title, path, body, names))
    _write_batch(database, batch, _embed_pieces(batch, load))


def _add(batch: _Batch, number: int, file_id: int, chunk: Chunk) -> None:
    names = name_parts(chunk.text) if chunk.kind in _NEAR_KINDS else ""
    batch[1].append((number, file_id, chunk.kind, *chunk.lines, chunk.title, names, chunk.text))
    batch[2].append((word_row(number, chunk.kind), chunk.title, chunk.path, chunk.text, names))


def _write_about(
    database: sqlite3.Connection,
    contents: Contents,
    file_notes: Mapping[str, str],
    size: int,
    base: IndexBase | None,
) -> None:
    """Write the row that describes the index of `size` chunks, made from `base` if it is not None, and commit."""
    notes = contents.notes({path: file_notes[path] for path in contents.files})
    base = base or IndexBase("", frozenset())
    database.execute("DELETE FROM about")
    database.execute(
        "INSERT INTO about VALUES(?, ?, ?, ?, ?)",
        (contents.signature, notes, size, base.signature, json.dumps(sorted(base.changed))),
    )
    database.execute("COMMIT")


def _insert_files(
    database: sqlite3.Connection,
    contents: Contents,
    paths: Sequence[str],
    next_id: int,
    numbers: Iterator[int],
    file_notes: dict[str, str],
) -> list[int]:
    """Insert these files with ids from `next_id` on, and add their notes to `file_notes`.

    Their chunks get the next numbers of the iterator `numbers`; return these numbers.
    """
    inserted: list[int] = []
    writes: deque[Future[None]] = deque()
    # A second thread writes while this one reads and cuts the next files.
    with ThreadPoolExecutor(1) as writer:
        for batch in _batches(contents.read(paths), next_id, numbers, file_notes):
            inserted += [row[0] for row in batch[1]]
            pieces = _embed_pieces(batch, contents.load)
            writes.append(writer.submit(_write_batch, database, batch, pieces))
            if len(writes) > QUEUED_BATCHES:
                writes.popleft().result()
        for write in writes:
            write.result()
    return inserted


def _batches(
    files: Iterable[IndexedFile], next_id: int, numbers: Iterator[int], file_notes: dict[str, str]
) -> Iterator[_Batch]:
    """Cut files into batches of about 1,000 files or chunks, numbering both, and store their notes in `file_notes`.

    The last batch may be empty.
    """
    batch: _Batch = ([], [], [])
    for file_id, file in enumerate(files, start=next_id):
        file_notes[file.path] = file.note
        batch[0].append((file_id, file.path, file.blob, file.note))
        for chunk in file.chunks:
            _add(batch, next(numbers), file_id, chunk)
        if len(batch[1]) >= BATCH or len(batch[0]) >= BATCH:
            yield batch
            batch = ([], [], [])
    yield batch


def _embed_pieces(batch: _Batch, load: _Loader | None) -> list[tuple[int, bytes]]:
    """Return the static vectors of the chunks of a batch, each with its number; empty without an embedder."""
    if load is None or not batch[1]:
        return []
    chunks = [
        Chunk(path=path, title=title, text=text, lines=(first, last), kind=kind)
        for (_, _, kind, first, last, *_), (_, title, path, text, _) in zip(
            batch[1], batch[2], strict=True
        )
    ]
    numbers = [row[0] for row in batch[1]]
    return list(zip(numbers, load().embed_pieces(chunks), strict=True))


def _write_batch(
    database: sqlite3.Connection, batch: _Batch, pieces: Sequence[tuple[int, bytes]]
) -> None:
    """Insert the files, chunks and words of a batch, and the vectors of its chunks; does not commit."""
    files, chunks, texts = batch
    _insert_rows(database, "file", 4, files)
    _insert_rows(database, "chunk", 8, chunks)
    # Sorted, because FTS5 starts a new run of words at each row number that is below the one before.
    _insert_rows(database, _INSERT_WORDS, 5, sorted(texts))
    _insert_rows(database, "pieces", 2, pieces)


def _insert_rows(
    database: sqlite3.Connection,
    table: str,
    columns: int,
    rows: Sequence[Sequence[str | int | bytes]],
) -> None:
    """Insert the rows, each with `columns` values, into a table, at most 1,000 in each statement."""
    # One statement for many rows: SQLite releases the interpreter lock once, and not for each row.
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        database.execute(_insertion(table, columns, len(part)), [*chain.from_iterable(part)])


@lru_cache(maxsize=8)
def _insertion(table: str, columns: int, rows: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {table} VALUES {', '.join([row] * rows)}"


CANDIDATES = 20
RARE_ROWS = 1_500
"""The chunks with rare terms that one search ranks; also the limit up to which chunks with a term are counted."""
OMITTED_TERMS = 2
"""How many terms are left out in turn when chunks with all other terms are searched."""
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
_TABLES = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
_PIECES = "SELECT chunk, vectors FROM pieces ORDER BY chunk"
_FILES = "SELECT id, path FROM file"
_NUMBERS = "SELECT id FROM chunk WHERE file IN (SELECT value FROM json_each(?)) ORDER BY id"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)"
_ABOUT = "SELECT signature, notes, chunks, base, changed FROM about"
# The row numbers of documents and source, then those of tests and other files. Each range is searched separately, so
# that matches in one do not displace those in the other.
_RANGES = ((0, FAR_ROWS, True), (FAR_ROWS, 2 * FAR_ROWS, False))
_Row = tuple[int, str, str, str, int, int, Kind]
_About = tuple[str, str, int, str, str]


@dataclass(frozen=True, slots=True)
class About:
    """The description that an index stores: its signature, notes, number of chunks, and the index it was made from."""

    signature: str
    notes: str
    chunks: int
    base: IndexBase | None


def read_about(database: sqlite3.Connection) -> About | None:
    """Return the description of an index; None if it is incomplete or another program or version wrote it."""
    if _pragma(database, "application_id") != APPLICATION_ID:
        return None
    if _pragma(database, "user_version") != FORMAT:
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
    """An index in one SQLite database. Any thread may search; one search runs at a time."""

    def __init__(
        self,
        database: sqlite3.Connection,
        about: About,
        load: _Loader | None,
        descriptor: int,
    ) -> None:
        """Own the connection and the descriptor, which `close` closes. `load` loads the embedder of static vectors."""
        self.about = about
        self.size: int = about.chunks
        self.notes: str = about.notes
        self.base: IndexBase | None = about.base
        self._load = load
        self._pieces: PieceIndex | None = None
        self._database = database
        self._released = finalize(self, _release, database, descriptor)
        self._lock = threading.Lock()

    def candidates(
        self, query: str, *, limit: int, among: Collection[int] | None = None
    ) -> Candidates:
        """Return the chunks with the most or the rarest terms of the query, by number, and the share of each term.

        `among` are the numbers of the allowed chunks, None for all. If no term occurs, no chunks are returned.

        Raises:
            IndexDamaged: the index cannot be read.
        """
        words = query_terms(query.encode("utf-8", "replace").decode())
        with self._reading():
            terms = self._terms(words)
            chunks = self._candidates(terms, max(CANDIDATES, limit), among)
        return Candidates(tuple(terms), chunks)

    def similar(
        self, query: str, *, limit: int, numbers: Collection[int], among: Collection[int] | None
    ) -> Mapping[int, float]:
        """Return cosines by number, of the `limit` chunks nearest to the query and of `numbers`; empty without vectors.

        The vectors are read at the first call. `among` are the numbers of the allowed chunks, None for all.
        """
        if self._load is None:
            return {}
        with self._reading():
            if self._pieces is None:
                rows = self._database.execute(_PIECES).fetchall()
                self._pieces = self._load().load_pieces(cast("list[tuple[int, bytes]]", rows))
            pieces = self._pieces
        return pieces.similar(query, self._rarity, limit=limit, numbers=numbers, among=among)

    def _rarity(self, word: str) -> float:
        """Return the rarity of a word of a query, from the share of chunks that have it."""
        with self._reading():
            [term] = self._terms((word,))
        return rarity(term.share, self.size)

    def read(self, numbers: Sequence[int]) -> list[Chunk]:
        """Return the chunks with these numbers, in this order. Numbers above `size` are left out."""
        with self._reading():
            rows = self._database.execute(_READ, (json.dumps(list(numbers)),)).fetchall()
        chunks = dict(map(_chunk, cast("list[_Row]", rows)))
        return [chunks[number] for number in numbers if number in chunks]

    def numbers(self, paths: Callable[[str], bool]) -> list[int]:
        """Return the numbers of all chunks in the files for which `paths` is true, ascending.

        Raises:
            IndexDamaged: the index cannot be read.
        """
        with self._reading():
            files = cast("list[tuple[int, str]]", self._database.execute(_FILES).fetchall())
        accepted = json.dumps([id for id, path in files if paths(path)])
        with self._reading():
            rows = cast(
                "list[tuple[int]]", self._database.execute(_NUMBERS, (accepted,)).fetchall()
            )
        return [number for (number,) in rows]

    def count_stored(self, files: Mapping[str, str]) -> int:
        """Return how many of the files, ids of contents by path, the index has unchanged; 0 if it cannot be read."""
        try:
            with self._reading():
                stored = self._database.execute("SELECT path, blob FROM file").fetchall()
        except IndexDamaged:
            return 0
        return len(files.items() & {*cast("list[tuple[str, str]]", stored)})

    @contextmanager
    def _reading(self) -> Generator[None]:
        """Lock the index for the context; raise IndexDamaged in place of an error of the database in it."""
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
        """Return the terms, each with the share of chunks that have it; the caller holds the lock.

        The count ends after `RARE_ROWS` + 1 chunks, so the share of a more frequent term is a lower bound.
        """
        terms: list[QueryTerm] = []
        for term in words:
            row = self._database.execute(_COUNT, (f'"{term}"', RARE_ROWS + 1)).fetchone()
            terms.append(QueryTerm(term, cast("tuple[int]", row)[0] / max(self.size, 1)))
        return terms

    def _candidates(
        self, terms: list[QueryTerm], limit: int, among: Collection[int] | None
    ) -> dict[int, Chunk]:
        """Return the chunks to rank, by number.

        Each query returns at most `limit` chunks of documents and source, and half as many of tests and other files.
        """
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
        """Return FTS5 queries: first any rare term; then all terms, all but one rare term, and the common terms."""
        rare, common = self._split_by_rarity(terms)
        words = rare + common
        together = [words]
        if len(words) > 2:
            together += [[w for w in words if w != left_out] for left_out in words[:OMITTED_TERMS]]
        together += [common, common[:2]]
        joined = [" AND ".join(group) for group in together if len(group) > 1]
        return list(dict.fromkeys([" OR ".join(rare), *joined]))

    def _split_by_rarity(self, terms: list[QueryTerm]) -> tuple[list[str], list[str]]:
        """Return the rare terms, at least one, and the common terms, both quoted for FTS5, the rarest first.

        SQLite needs about a microsecond to rank each matching chunk, so the chunks of rare terms are limited.
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


def _release(database: sqlite3.Connection, descriptor: int) -> None:
    database.close()
    os.close(descriptor)


FILES_PER_FAMILY = 4
MAX_FILES = 32
"""How many index files stay in a folder; the least recently used are removed."""
MIN_SHARED = 0.5
"""The share of files that an earlier index must have to be the base of a new one."""
ENOUGH_SHARED = 0.9
"""The share of files at which no older index is examined."""

_NOT_ALPHANUMERIC = re.compile("[^0-9A-Za-z]")


class FtsIndexes:
    """Indexes in a folder, one file for each key."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        load: Callable[[], PieceEmbedder] | None = None,
        vectors_key: str = "",
        shared: IndexFiles | None = None,
    ) -> None:
        """Set up the store. With `load`, indexes have static vectors; it returns the embedder with the key `vectors_key`.

        Without a `directory` the folder is a temporary one, which is removed with this object. An index is fetched from the
        `shared` files, if one is there, and else built and added to them.

        Raises:
            KnowledgeError: there is no temporary folder.
        """
        if directory is None:
            try:
                directory = Path(mkdtemp(prefix="loopline-indexes-"))
            except OSError as error:
                raise KnowledgeError(
                    f"the search index needs a temporary folder: {error}; set TMPDIR to one that exists"
                ) from error
            finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self._directory = directory
        self._shared = shared
        self._load = load
        self._vectors_key = vectors_key

    def open(self, key: IndexKey) -> FtsIndex | None:
        """Return the index that was built with this key and with the present vectors, or None."""
        return self._open(self._with_vectors(key))

    def _with_vectors(self, key: IndexKey) -> IndexKey:
        """Return the key of the index with the static vectors, if there are some: each embedder has its own family."""
        if self._load is None:
            return key
        return replace(key, family=f"{key.family}/{self._vectors_key}")

    def _open(self, key: IndexKey) -> FtsIndex | None:
        """Return the index of the key, and mark its file as used; None if the file is missing or of another key."""
        path = self._directory / _file_name(key)
        index = _open_file(path, self._load)
        if index is None or index.about.signature != key.signature:
            return None
        with suppress(OSError):
            os.utime(path)  # the least recently used are removed first
        return index

    def build(
        self, key: IndexKey, files: Mapping[str, str], read: FileReader, notes: NotesFunction
    ) -> FtsIndex:
        """Build and return the index of these files; other processes that build it wait and get the same file.

        Raises:
            KnowledgeError: the folder cannot be written to, or the disk is full.
        """
        key = self._with_vectors(key)
        contents = Contents(key.signature, files, read, notes, self._load)
        try:
            return self._build_file(key, contents)
        except (OSError, sqlite3.Error) as error:
            raise KnowledgeError(
                f"the search index cannot be written to {self._directory}: {error}"
            ) from error

    def discard(self, key: IndexKey) -> None:
        """Remove all indexes of the family of `key`, here and in the shared files: they may be damaged copies.

        A failure of the shared files is only logged.
        """
        key = self._with_vectors(key)
        for path in self._directory.glob(f"{_family_name(key)}-*"):
            path.unlink(missing_ok=True)
        if self._shared is not None:
            try:
                self._shared.discard(f"{_family_name(key)}-")
            except StoreError as error:
                logger.warning("a damaged search index is not removed from the store: %s", error)

    def _build_file(self, key: IndexKey, contents: Contents) -> FtsIndex:
        """Return the index of this key. If its file is missing, fetch or build it, one process at a time, and remove older ones.

        Raises:
            KnowledgeError: the new file is damaged.
        """
        directory = self._directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / _file_name(key)
        with lock_file(directory / "build.lock"):
            if (ready := self._open(key)) is not None:
                return ready
            temporary = path.with_suffix(".new")
            # A killed process may have left some; no other process builds while this one has the lock.
            for leftover in directory.glob("*.new"):
                leftover.unlink(missing_ok=True)
            try:
                self._fetch_or_write(temporary, key, contents)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
            _prune(directory, keep=path)
            opened = self._open(key)
        if opened is None:
            raise KnowledgeError(f"the search index in {path} was damaged while it was written")
        return opened

    def _fetch_or_write(self, path: Path, key: IndexKey, contents: Contents) -> None:
        """Fetch the index from the shared files, otherwise write and share it; log failures of the shared files."""
        if self._shared is None:
            _write_file(path, key, contents)
            return
        name = _file_name(key)
        with ExitStack() as stack:
            try:
                stack.enter_context(self._shared.building(name))
                if self._shared.fetch(name, path) and _is_index(path, key):
                    return
            except StoreError as error:
                logger.warning("the search index %s is not fetched from the store: %s", name, error)
            path.unlink(missing_ok=True)
            _write_file(path, key, contents)
            try:
                self._shared.share(name, path)
            except StoreError as error:
                logger.warning("the search index %s is not shared by the store: %s", name, error)


def _is_index(path: Path, key: IndexKey) -> bool:
    """Return True if a fetched file is an undamaged index with this key, without other tables, views or triggers."""
    try:
        with closing(_connect(path)) as database, closing(sqlite3.connect(":memory:")) as empty:
            empty.executescript(f"{_SCHEMA}; {_FILE_INDEX}")
            if database.execute(_TABLES).fetchall() != empty.execute(_TABLES).fetchall():
                return False
            if database.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
                return False
    except sqlite3.Error:
        return False
    index = _open_file(path)
    if index is None:
        return False
    index.close()
    return index.about.signature == key.signature


def _write_file(path: Path, key: IndexKey, contents: Contents) -> None:
    """Write the index to a new file; from a copy of an index of its family if one has at least half of the files.

    If that copy is damaged, the index is written anew.
    """
    base = _find_base(path.parent, key, contents.files)
    if base is not None:
        base_path, signature = base
        try:
            shutil.copyfile(base_path, path)
            path.chmod(0o600)
            with closing(sqlite3.connect(path, check_same_thread=False)) as database:
                update_index(database, signature, contents)
        except sqlite3.DatabaseError:
            path.unlink()  # the copied file is damaged
        else:
            return
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(path, check_same_thread=False)) as database:
        fill_index(database, contents)


def _find_base(directory: Path, key: IndexKey, files: Mapping[str, str]) -> tuple[Path, str] | None:
    """Return the path and signature of the stored index of the family of `key` that has the most of the files.

    Return None if it has less than half of them. An index with 90 % of the files is taken without a look at older
    indexes.
    """
    base: tuple[Path, str] | None = None
    most = 0
    for path in _newest_first(directory.glob(f"{_family_name(key)}-*.fts")):
        index = _open_file(path)
        if index is None:
            continue
        shared = index.count_stored(files)
        index.close()
        if shared > most:
            base = (path, index.about.signature)
            most = shared
        if shared >= ENOUGH_SHARED * len(files):
            break
    return base if most >= MIN_SHARED * len(files) else None


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    with suppress(OSError):
        return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
    return []  # another process has removed a file


def _family_name(key: IndexKey) -> str:
    return blake2b(key.family.encode(), digest_size=8).hexdigest()


def _file_name(key: IndexKey) -> str:
    return f"{_family_name(key)}-{_NOT_ALPHANUMERIC.sub('-', key.signature)}.v{FORMAT}.fts"


def _open_file(path: Path, load: _Loader | None = None) -> FtsIndex | None:
    """Return the index in a file, locked so that no other process removes it; None if it cannot be used."""
    with ExitStack() as stack:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            database = _connect(path)
            stack.callback(database.close)
            about = read_about(database)
        except (sqlite3.Error, OSError, ValueError):
            return None
        if about is None:
            return None
        stack.pop_all()
        return FtsIndex(database, about, load, descriptor)


def _connect(path: Path) -> sqlite3.Connection:
    """Open a finished file for reading, in any thread."""
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, check_same_thread=False)


def _prune(directory: Path, *, keep: Path) -> None:
    """Remove index files that are not in use: all but the 4 newest of the family of `keep`, and all but 32 in all."""
    candidates = [file for file in _newest_first(directory.glob("*.fts")) if file != keep]
    family = [file for file in candidates if file.name[:16] == keep.name[:16]]
    for path in {*family[FILES_PER_FAMILY - 1 :], *candidates[MAX_FILES - 1 :]}:
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
