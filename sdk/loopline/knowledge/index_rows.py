"""The rows of an index: written from all files, or from another index and the files that differ from it.

Chunks are numbered 1, 2, 3, … without a gap. When files go, new chunks take their numbers, and the last chunks
those that are left.
"""

from __future__ import annotations

import json
import queue
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from typing import cast

from loopline.knowledge.index_build import FileReader, IndexedFile, NotesFunction
from loopline.search import Chunk, IndexBase, Kind, name_parts

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
