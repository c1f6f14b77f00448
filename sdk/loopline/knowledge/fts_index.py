"""Searching the words of an index in SQLite FTS5."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast
from weakref import finalize

from loopline.knowledge.index_rows import APPLICATION_ID, FAR_ROWS, FORMAT, stored_files
from loopline.search import (
    Candidates,
    Chunk,
    IndexBase,
    IndexDamaged,
    Kind,
    QueryTerm,
    query_terms,
)

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
