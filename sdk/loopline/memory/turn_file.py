"""The index of past turns in a SQLite FTS5 database, in a file or in memory, through aiosqlite."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, nullcontext
from heapq import nlargest
from pathlib import Path
from threading import Thread
from typing import Any, cast

import aiosqlite

from loopline.errors import StoreError
from loopline.memory.turn_index import (
    NEAREST_TEXTS,
    TEXTS_TO_RANK,
    IndexedConversation,
    QueryVector,
    TurnCandidates,
    TurnIndexDamaged,
    TurnUpdate,
)
from loopline.memory.turn_rows import (
    OwnerVectors,
    accepted_updates,
    embedder_digest,
    limits_of,
    text_columns,
    turn_text,
    turns_statement,
)
from loopline.memory.turn_texts import Owner, TurnQuery, TurnText
from loopline.search import (
    QueryTerm,
    Vector,
    VectorState,
    name_parts,
)
from loopline.timeline import ConversationKey

APPLICATION_ID = 0x4C4F4F4D  # "LOOM"
FORMAT = 2
IN_MEMORY = Path(":memory:")
BUSY_SECONDS = 5.0
RETRY_SECONDS = 0.005
on_connect: list[Callable[[aiosqlite.Connection], Awaitable[object]]] = []
"""Functions that are called with each new connection, to limit or trace it."""
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SUFFIXES = ("", "-wal", "-shm", "-journal")

# The digest of a text depends on its owner, so a vector never serves two owners. The text itself is in the table of
# words, and `owner` is one word per owner there: a search reads the rows of one owner, however many owners there are.
_SCHEMA = (
    """CREATE TABLE conversation(
        id INTEGER NOT NULL PRIMARY KEY, tenant VARCHAR NOT NULL, project VARCHAR NOT NULL,
        user VARCHAR NOT NULL, name VARCHAR NOT NULL, uid VARCHAR NOT NULL, head INTEGER NOT NULL,
        UNIQUE (tenant, project, user, name)
    )""",
    """CREATE TABLE turn_text(
        id INTEGER NOT NULL PRIMARY KEY,
        conversation INTEGER NOT NULL REFERENCES conversation (id),
        turn INTEGER NOT NULL, seq INTEGER NOT NULL, start INTEGER NOT NULL,
        input_seq INTEGER NOT NULL, target VARCHAR NOT NULL, ts INTEGER NOT NULL,
        ref VARCHAR NOT NULL, digest BLOB NOT NULL,
        UNIQUE (conversation, seq, start)
    )""",
    "CREATE INDEX turn_text_by_turn ON turn_text (conversation, turn)",
    "CREATE INDEX turn_text_by_digest ON turn_text (digest)",
    """CREATE TABLE vector(
        digest BLOB NOT NULL, embedder BLOB NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (digest, embedder)
    ) WITHOUT ROWID""",
    "CREATE VIRTUAL TABLE words USING fts5(owner, body, names, tokenize='porter unicode61')",
    "INSERT INTO words(words, rank) VALUES('rank', 'bm25(0.0, 1.0, 0.5)')",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_IDENTITY = """
SELECT application_id, user_version, schema_version
FROM pragma_application_id, pragma_user_version, pragma_schema_version
"""

_TEXTS = "FROM turn_text JOIN conversation ON conversation.id = turn_text.conversation"
_OWNED = "tenant = :tenant AND project = :project AND user = :user"
_ALLOWED = f"""
{_OWNED} AND target IN (SELECT value FROM json_each(:targets))
AND NOT (name = :current AND turn_text.turn >= :before_turn)
AND (:conversation IS NULL OR name = :conversation)
AND (:since IS NULL OR ts >= :since) AND (:until IS NULL OR ts <= :until)
"""
"""The limits of a query without its ordinal."""

_CONVERSATIONS = f"SELECT id, name, uid, head FROM conversation WHERE {_OWNED}"
_NAMED = f"{_CONVERSATIONS} AND name IN (SELECT value FROM json_each(:names))"
_SET_PROGRESS = """
INSERT INTO conversation(tenant, project, user, name, uid, head)
VALUES(:tenant, :project, :user, :name, :uid, :head)
ON CONFLICT (tenant, project, user, name) DO UPDATE SET uid = excluded.uid, head = excluded.head
"""
_REMOVE_CONVERSATION = "DELETE FROM conversation WHERE id = :conversation"

_ADD_TEXT = """
INSERT INTO turn_text(id, conversation, turn, seq, start, input_seq, target, ts, ref, digest)
VALUES(:id, :conversation, :turn, :seq, :start, :input_seq, :target, :ts, :ref, :digest)
"""
_ADD_WORDS = "INSERT INTO words(rowid, owner, body, names) VALUES(:id, :owner, :body, :names)"
_LAST_TEXT = "SELECT max(id) FROM turn_text"
_REMOVED = """
conversation = :conversation
AND (:inputs IS NULL OR input_seq IN (SELECT value FROM json_each(:inputs)))
"""
_REMOVE_TEXTS = (
    f"""DELETE FROM vector WHERE digest IN (SELECT digest FROM turn_text WHERE {_REMOVED})
    AND NOT EXISTS (
        SELECT 1 FROM turn_text WHERE turn_text.digest = vector.digest AND NOT ({_REMOVED})
    )""",
    f"DELETE FROM words WHERE rowid IN (SELECT id FROM turn_text WHERE {_REMOVED})",
    f"DELETE FROM turn_text WHERE {_REMOVED}",
)
_PURGE_WORDS = "INSERT INTO words(words) VALUES('optimize')"

_FULL_TEXTS = """
SELECT turn_text.id, name, turn_text.turn, seq, start, input_seq, target, ts, ref, body
FROM words JOIN turn_text ON turn_text.id = words.rowid
JOIN conversation ON conversation.id = turn_text.conversation
"""
_MATCHING = f"{_FULL_TEXTS} WHERE words MATCH :match AND {_ALLOWED} ORDER BY rank LIMIT :limit"
_NUMBERED = (
    f"{_FULL_TEXTS} WHERE {_ALLOWED} AND turn_text.id IN (SELECT value FROM json_each(:ids))"
)
_COUNT_TEXTS = f"SELECT count(*) {_TEXTS} WHERE {_OWNED}"
_COUNT_MATCHES = "SELECT count(*) FROM words WHERE words MATCH :match"

_DIGESTS = f"SELECT turn_text.id, digest {_TEXTS} WHERE {_ALLOWED}"
_VECTORS = f"""
SELECT digest, data FROM vector WHERE embedder = :embedder AND digest IN (
    SELECT digest {_TEXTS} WHERE {_OWNED}
    AND (:digests IS NULL OR hex(digest) IN (SELECT value FROM json_each(:digests)))
)
"""
# Vectors are looked up in the order of their digests, which reads each page of their table once: a third of the time.
_UNEMBEDDED = f"""
SELECT newest.digest, body FROM (
    SELECT digest, id FROM (
        SELECT turn_text.digest AS digest, max(turn_text.id) AS id, max(ts) AS ts {_TEXTS}
        WHERE {_OWNED} GROUP BY turn_text.digest ORDER BY turn_text.digest LIMIT -1
    ) AS text WHERE NOT EXISTS (
        SELECT 1 FROM vector WHERE vector.digest = text.digest AND vector.embedder = :embedder
    ) ORDER BY ts DESC, id DESC LIMIT :limit
) AS newest JOIN words ON words.rowid = newest.id
"""
_ADD_VECTOR = f"""
INSERT OR IGNORE INTO vector(digest, embedder, data) SELECT :digest, :embedder, :data
WHERE EXISTS (SELECT 1 {_TEXTS} WHERE {_OWNED} AND digest = :digest)
"""
_COUNT_VECTORS = f"""
SELECT count(DISTINCT vector.digest), count(DISTINCT turn_text.digest) {_TEXTS}
LEFT JOIN vector ON vector.digest = turn_text.digest AND vector.embedder = :embedder WHERE {_OWNED}
"""


_Parameters = Mapping[str, Any]
_Row = tuple[Any, ...]


def _owner_parameters(owner: Owner, embedder: str = "") -> dict[str, Any]:
    """Return the parameters of a statement for the three names of the owner and the digest of the embedder's key."""
    return {
        "tenant": owner.tenant,
        "project": owner.project,
        "user": owner.user,
        "embedder": embedder_digest(embedder),
    }


def _owner_word(owner: Owner) -> str:
    return f"o{owner.digest.hex()}"


def _match_expression(owner: Owner, terms: Sequence[str]) -> str:
    """Return the FTS5 query for the texts of the owner that have one of the terms."""
    any_term = " OR ".join(f'"{term}"' for term in terms)
    return f"owner : {_owner_word(owner)} AND {{body names}} : ({any_term})"


def _texts(rows: Sequence[_Row]) -> tuple[TurnText, ...]:
    return tuple(turn_text(row[1:]) for row in rows)


async def _rows(
    connection: aiosqlite.Connection, statement: str, parameters: _Parameters
) -> list[_Row]:
    # The types of aiosqlite know only positional parameters, and no rows without names.
    rows = await connection.execute_fetchall(statement, cast("Any", parameters))
    return [*cast("Iterable[_Row]", rows)]


async def _execute_many(
    connection: aiosqlite.Connection, statement: str, rows: Sequence[_Parameters]
) -> None:
    await connection.executemany(statement, cast("Any", rows))


class MemoryFile:
    """An index of turns in a file, or in memory until it is closed. The first use opens it.

    An instance belongs to one event loop.
    """

    def __init__(self, path: Path = IN_MEMORY) -> None:
        self._path = path
        # A database in memory has only one connection, so one task at a time uses it.
        self._turn = asyncio.Lock() if path == IN_MEMORY else nullcontext()
        self._vectors = OwnerVectors()
        self._idle: list[aiosqlite.Connection] | None = None
        self._opening = asyncio.Lock()

    async def read_progress(self, owner: Owner) -> Mapping[str, IndexedConversation]:
        """Return the progress in each indexed conversation of the owner, by name."""
        async with self._reading() as connection:
            rows = await _rows(connection, _CONVERSATIONS, _owner_parameters(owner))
        return {name: IndexedConversation(uid=uid, head=head) for _, name, uid, head in rows}

    async def extend(self, owner: Owner, updates: Sequence[TurnUpdate]) -> Collection[str]:
        """Add the texts in one transaction; return the names of the conversations that were extended.

        An update is skipped if the stored progress is not its `before`. Texts of recalled inputs are removed.
        """
        names = json.dumps([update.conversation for update in updates])
        async with self._writing() as connection:
            named = {**_owner_parameters(owner), "names": names}
            rows = await _rows(connection, _NAMED, named)
            stored = {name: IndexedConversation(uid=uid, head=head) for _, name, uid, head in rows}
            accepted = accepted_updates(updates, stored)
            progress = [
                {
                    **named,
                    "name": update.conversation,
                    "uid": update.after.uid,
                    "head": update.after.head,
                }
                for update in accepted
            ]
            await _execute_many(connection, _SET_PROGRESS, progress)
            ids = {name: id for id, name, *_ in await _rows(connection, _NAMED, named)}
            for update in accepted:
                if update.before is not None and update.before.uid != update.after.uid:
                    await self._remove_texts(connection, ids[update.conversation])
                elif update.recalled:
                    await self._remove_texts(connection, ids[update.conversation], update.recalled)
            await self._add_texts(connection, owner, ids, accepted)
        if any(update.recalled for update in accepted):
            self._vectors.forget(owner)
        return [update.conversation for update in accepted]

    async def _add_texts(
        self,
        connection: aiosqlite.Connection,
        owner: Owner,
        ids: Mapping[str, int],
        updates: Sequence[TurnUpdate],
    ) -> None:
        """Insert the texts and their words under new numbers, without the texts of recalled inputs."""
        [(last,)] = await _rows(connection, _LAST_TEXT, {})
        owner_word = _owner_word(owner)
        texts = [
            (ids[update.conversation], text)
            for update in updates
            for text in update.texts
            if text.input_seq not in update.recalled
        ]
        rows = [
            {
                **text_columns(owner, text),
                "id": number,
                "conversation": conversation,
                "owner": owner_word,
                "body": text.text,
                "names": name_parts(text.text),
            }
            for number, (conversation, text) in enumerate(texts, (last or 0) + 1)
        ]
        await _execute_many(connection, _ADD_TEXT, rows)
        await _execute_many(connection, _ADD_WORDS, rows)

    async def candidates(
        self, query: TurnQuery, vector: QueryVector | None = None
    ) -> TurnCandidates:
        """Return the texts to rank: those with the most words of the query, and those nearest to its vector.

        Without words these are the newest turns, with an ordinal the turns at that position.
        """
        embedder = "" if vector is None else vector.embedder
        parameters = _owner_parameters(query.owner, embedder) | limits_of(query)
        parameters["targets"] = json.dumps(query.targets)
        statement = turns_statement(
            query.ordinal, columns=_FULL_TEXTS, texts=_TEXTS, allowed=_ALLOWED
        )
        if query.terms and query.ordinal is None:
            statement = _MATCHING
            parameters["match"] = _match_expression(query.owner, query.terms)
            parameters["limit"] = max(TEXTS_TO_RANK, 8 * query.limit)
        async with self._reading() as connection:
            terms = await self._count_terms(connection, query)
            rows = await _rows(connection, statement, parameters)
            if vector is None or not terms:
                return TurnCandidates(terms=terms, texts=_texts(rows))
            cosines = await self._cosines(connection, query.owner, vector, parameters)
            if query.ordinal is None:
                matching = {row[0] for row in rows}
                near = nlargest(NEAREST_TEXTS, cosines, key=lambda number: cosines[number])
                parameters["ids"] = json.dumps([id for id in near if id not in matching])
                rows += await _rows(connection, _NUMBERED, parameters)
        return TurnCandidates(
            terms=terms,
            texts=_texts(rows),
            cosines=tuple(cosines.get(row[0]) for row in rows),
        )

    async def _count_terms(
        self, connection: aiosqlite.Connection, query: TurnQuery
    ) -> tuple[QueryTerm, ...]:
        """Return the terms of the query, each with the share of the owner's texts that have it."""
        if not query.terms:
            return ()
        [(texts,)] = await _rows(connection, _COUNT_TEXTS, _owner_parameters(query.owner))
        terms: list[QueryTerm] = []
        for term in query.terms:
            match = {"match": _match_expression(query.owner, [term])}
            [(count,)] = await _rows(connection, _COUNT_MATCHES, match)
            terms.append(QueryTerm(term, count / (texts or 1)))
        return tuple(terms)

    async def _cosines(
        self,
        connection: aiosqlite.Connection,
        owner: Owner,
        vector: QueryVector,
        parameters: _Parameters,
    ) -> dict[int, float]:
        """Return the cosine of each allowed text that has a vector, by the number of the text."""
        texts = cast("list[tuple[int, bytes]]", await _rows(connection, _DIGESTS, parameters))

        async def read(digests: Collection[bytes] | None) -> Sequence[Any]:
            names = None if digests is None else [digest.hex().upper() for digest in digests]
            listed = None if names is None else json.dumps(names)
            return await _rows(connection, _VECTORS, {**parameters, "digests": listed})

        return await self._vectors.cosines(owner, vector, texts, read)

    async def list_unembedded(self, owner: Owner, embedder: str, limit: int) -> Mapping[bytes, str]:
        """Return up to `limit` texts without a vector, newest first, by digest."""
        parameters = {**_owner_parameters(owner, embedder), "limit": limit}
        async with self._reading() as connection:
            rows = await _rows(connection, _UNEMBEDDED, parameters)
        return dict(cast("list[tuple[bytes, str]]", rows))

    async def add_vectors(
        self, owner: Owner, embedder: str, vectors: Mapping[bytes, Vector]
    ) -> None:
        """Add the vectors of texts that are still in the index, in one transaction; existing vectors stay."""
        rows = [
            {**_owner_parameters(owner, embedder), "digest": digest, "data": data}
            for digest, data in vectors.items()
        ]
        async with self._writing() as connection:
            await _execute_many(connection, _ADD_VECTOR, rows)

    async def vector_state(self, owner: Owner, embedder: str) -> VectorState:
        """Return the number of different texts, and how many of them have a vector."""
        parameters = _owner_parameters(owner, embedder)
        async with self._reading() as connection:
            [(done, total)] = await _rows(connection, _COUNT_VECTORS, parameters)
        return VectorState(done, total, is_ready=done == total)

    async def remove(self, conversation: ConversationKey) -> None:
        """Remove all texts and vectors of a conversation, also from unused pages of the file.

        Vectors of texts that another conversation has stay. A file that does not exist is not created.
        """
        owner = Owner.of(conversation)
        self._vectors.forget(owner)
        if self._idle is None and not await asyncio.to_thread(self._path.exists):
            return
        named = {**_owner_parameters(owner), "names": json.dumps([conversation.name])}
        async with self._writing() as connection:
            for number, *_ in await _rows(connection, _NAMED, named):
                await self._remove_texts(connection, number)
                await _rows(connection, _REMOVE_CONVERSATION, {"conversation": number})
                await _rows(connection, _PURGE_WORDS, {})
        # Also without a row: a process may have been killed after it removed the row and before the checkpoint.
        async with self._reading() as connection:
            await _rows(connection, "PRAGMA wal_checkpoint(TRUNCATE)", {})

    async def _remove_texts(
        self,
        connection: aiosqlite.Connection,
        conversation: int,
        inputs: Collection[int] | None = None,
    ) -> None:
        """Remove all texts of a conversation or those of the inputs, and the vectors that no other text has."""
        names = None if inputs is None else json.dumps([*inputs])
        for statement in _REMOVE_TEXTS:
            await _rows(connection, statement, {"conversation": conversation, "inputs": names})

    async def clear(self) -> None:
        """Remove the file; the next use creates a new one."""
        await self.close()
        await asyncio.to_thread(_unlink, self._path)

    async def close(self) -> None:
        """Close the database; a later use opens it again, or a new one if it was in memory."""
        idle = self._idle or []
        self._idle = None
        self._vectors.clear()
        for connection in idle:
            await connection.close()

    @asynccontextmanager
    async def _reading(self) -> AsyncGenerator[aiosqlite.Connection]:
        """Yield a connection that no other task uses. An error rolls its transaction back."""
        async with self._errors(), self._turn:
            idle = await self._open()
            connection = idle.pop() if idle else await _connect(self._path)
            try:
                yield connection
            except BaseException:
                await connection.rollback()
                raise
            finally:
                if idle is self._idle:
                    idle.append(connection)
                else:  # the index was closed meanwhile
                    await connection.close()

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[aiosqlite.Connection]:
        async with self._reading() as connection:
            await _rows(connection, "BEGIN IMMEDIATE", {})
            yield connection
            await _rows(connection, "COMMIT", {})

    @asynccontextmanager
    async def _errors(self) -> AsyncGenerator[None]:
        """Raise errors of the file as StoreError; if it is damaged, remove it and raise TurnIndexDamaged."""
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            if _is_damaged(error):
                await self.clear()
                raise TurnIndexDamaged(f"{self._path} was damaged and is emptied") from error
            raise StoreError(f"the index of past turns in {self._path} failed: {error}") from error

    async def _open(self) -> list[aiosqlite.Connection]:
        """Create the file if it does not exist or is of another version; return the idle connections to it."""
        async with self._opening:
            if self._idle is None:
                while (connection := await _prepare(self._path)) is None:
                    await asyncio.to_thread(_unlink, self._path)
                self._idle = [connection]
            return self._idle


def _is_damaged(error: BaseException | None) -> bool:
    if isinstance(error, UnicodeDecodeError):  # in place of an error that quotes damaged text
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGED


def _unlink(path: Path) -> None:
    for suffix in _SUFFIXES:
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)


async def _connect(path: Path) -> aiosqlite.Connection:
    """Open or create the database, with a write-ahead log and secure deletion; a new file is readable only by its user.

    Each function in `on_connect` is called with the connection.
    """

    def create() -> None:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))

    if path != IN_MEMORY:
        await asyncio.to_thread(create)
    connecting = aiosqlite.connect(path, isolation_level=None, timeout=BUSY_SECONDS)
    # aiosqlite has no option for it: a program that does not close its index would wait for the thread when it ends.
    thread = vars(connecting).get("_thread")
    if isinstance(thread, Thread):
        thread.daemon = True
    connection = await connecting
    try:
        await _use_wal(connection)
        for pragma in ("synchronous=NORMAL", "secure_delete=ON"):
            await _rows(connection, f"PRAGMA {pragma}", {})
        for observe in on_connect:
            await observe(connection)
    except BaseException:
        await connection.close()
        raise
    return connection


async def _use_wal(connection: aiosqlite.Connection) -> None:
    """Switch the file to a write-ahead log. SQLite does not wait while another connection does so, but fails at once.

    It is tried again for `BUSY_SECONDS`; then the error of SQLite is raised.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            await _rows(connection, "PRAGMA journal_mode=WAL", {})
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        else:
            return
        await asyncio.sleep(RETRY_SECONDS)


async def _prepare(path: Path) -> aiosqlite.Connection | None:
    """Open the file and create the tables if it is empty; return None if another program or another version wrote it."""
    connection = await _connect(path)
    try:
        await _rows(connection, "BEGIN IMMEDIATE", {})
        [(application, version, schema)] = await _rows(connection, _IDENTITY, {})
        if schema == 0:
            for statement in _SCHEMA:
                await _rows(connection, statement, {})
        elif (application, version) != (APPLICATION_ID, FORMAT):
            await connection.close()
            return None
        await _rows(connection, "COMMIT", {})
    except BaseException:
        await connection.close()
        raise
    return connection
