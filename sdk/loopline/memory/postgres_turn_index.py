"""The index of past turns in a store in PostgreSQL: what a process has indexed is found by all processes of the store."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from heapq import nlargest
from typing import Any, Protocol, TypeVar, runtime_checkable
from zlib import crc32

from msgspec import json

from loopline.memory import postgres_turn_tables as tables
from loopline.memory.turn_index import (
    NEAREST_TEXTS,
    TEXTS_TO_RANK,
    IndexedConversation,
    QueryVector,
    TurnCandidates,
    TurnUpdate,
)
from loopline.memory.turn_rows import (
    OwnerVectors,
    accepted_updates,
    embedder_digest,
    limits_of,
    text_columns,
    turn_text,
)
from loopline.memory.turn_texts import Owner, TurnQuery, TurnText
from loopline.search import QueryTerm, Vector, VectorState, rarity
from loopline.search.ranking import word_stem, word_stems
from loopline.timeline import ConversationKey

T = TypeVar("T")


class TurnConnection(Protocol):
    """A connection in a transaction."""

    def execute(self, statement: str, parameters: Mapping[str, Any], /) -> Any:
        """Run the statement, whose parameters are written as `%(name)s`; return the cursor with its rows."""
        ...


class TurnDatabase(Protocol):
    """The database of a store in PostgreSQL.

    Raises:
        StoreError: the database cannot be used, or another process locked the rows for too long.
    """

    async def read(self, work: Callable[[TurnConnection], T]) -> T:
        """Run `work` in a thread, in one transaction that reads a consistent state; return its result."""
        ...

    async def write(self, work: Callable[[TurnConnection], T]) -> T:
        """Run `work` in a thread, in one transaction that writes; again if the connection is lost; return its result."""
        ...


@runtime_checkable
class HasTurnDatabase(Protocol):
    """A log in a database that can have an index of its turns."""

    @property
    def database(self) -> TurnDatabase:
        """The database of the log."""
        ...


class PostgresTurnIndex:
    """An index of turns in tables beside those of the log, which the first use creates. An instance belongs to one event loop.

    If the extension `vector` is installed in the database, the database compares vectors, otherwise this process.
    """

    def __init__(self, database: TurnDatabase) -> None:
        """`close` does not close the database."""
        self._database = database
        self._vectors = OwnerVectors()
        self._opened: tables.VectorStatements | None = None

    async def read_progress(self, owner: Owner) -> Mapping[str, IndexedConversation]:
        """Return the progress in each indexed conversation of the owner, by name."""
        await self._open()
        return await self._database.read(lambda connection: _read_progress(connection, owner))

    async def extend(self, owner: Owner, updates: Sequence[TurnUpdate]) -> Collection[str]:
        """Add the texts in one transaction; return the names of the conversations that were extended.

        An update is skipped if the stored progress is not its `before`, or if its conversation was forgotten. Texts of
        recalled inputs are removed.
        """
        texts = await asyncio.to_thread(_encode_texts, owner, updates)
        extend = partial(_extend, owner=owner, updates=updates, texts=texts)
        accepted = await self._write(owner, extend)
        if any(update.recalled for update in accepted):
            self._vectors.forget(owner)
        return [update.conversation for update in accepted]

    async def candidates(
        self, query: TurnQuery, vector: QueryVector | None = None
    ) -> TurnCandidates:
        """Return the texts to rank: those with the most words of the query, and those nearest to its vector.

        Without words these are the newest turns, with an ordinal the turns at that position.
        """
        statements = await self._open()
        parameters = _parameters(query.owner) | limits_of(query)
        parameters["targets"] = list(query.targets)
        terms, rows = await self._database.read(partial(_find, query=query, parameters=parameters))
        if vector is None or not terms:
            return TurnCandidates(terms=terms, texts=_texts(rows))
        ids = {row[0] for row in rows}
        parameters |= _parameters(query.owner, vector.embedder)
        if statements.extension is None:
            cosines = await self._cosines(query.owner, vector, parameters)
        else:
            compared = {"vector": _point(vector.vector), "ids": [*ids], "nearest": NEAREST_TEXTS}
            cosines = dict(await self._rows(statements.cosines, parameters | compared))
        if query.ordinal is None:
            near = nlargest(NEAREST_TEXTS, cosines, key=lambda number: cosines[number])
            parameters["ids"] = [number for number in near if number not in ids]
            rows += await self._rows(tables.NUMBERED, parameters)
        return TurnCandidates(
            terms=terms, texts=_texts(rows), cosines=tuple(cosines.get(row[0]) for row in rows)
        )

    async def _cosines(
        self, owner: Owner, vector: QueryVector, parameters: Mapping[str, Any]
    ) -> dict[int, float]:
        """Compare vectors in this process; return the cosine of each allowed text that has one, by the number of the text."""
        texts = await self._rows(tables.DIGESTS, parameters)

        async def read(digests: Collection[bytes] | None) -> Sequence[tuple[bytes, bytes]]:
            listed = None if digests is None else [*digests]
            return await self._rows(tables.VECTORS, {**parameters, "digests": listed})

        return await self._vectors.cosines(owner, vector, texts, read)

    async def list_unembedded(self, owner: Owner, embedder: str, limit: int) -> Mapping[bytes, str]:
        """Return up to `limit` texts without a vector, newest first, by digest."""
        statements = await self._open()
        parameters = {**_parameters(owner, embedder), "limit": limit}
        rows = await self._rows(statements.unembedded, parameters)
        return {digest: json.decode(body, type=str) for digest, body in rows}

    async def add_vectors(
        self, owner: Owner, embedder: str, vectors: Mapping[bytes, Vector]
    ) -> None:
        """Add or replace the vectors of texts that are still in the index, in one transaction.

        Raises:
            StoreError: the database cannot be used.
        """
        statements = await self._open()
        encoded = (
            [*vectors.values()]
            if statements.extension is None
            else [*map(_point, vectors.values())]
        )
        parameters = {**_parameters(owner, embedder), "digests": [*vectors], "vectors": encoded}
        await self._write(owner, lambda connection: connection.execute(statements.add, parameters))

    async def vector_state(self, owner: Owner, embedder: str) -> VectorState:
        """Return the number of different texts, and how many of them have a vector."""
        statements = await self._open()
        [(done, total)] = await self._rows(statements.count, _parameters(owner, embedder))
        return VectorState(done, total, is_ready=done == total)

    async def remove(self, conversation: ConversationKey) -> None:
        """Remove a conversation with its texts, and vectors of texts that no other conversation has.

        If the tables do not exist yet, they are not created.
        """
        owner = Owner.of(conversation)
        self._vectors.forget(owner)
        if self._opened is None and await self._rows(tables.IS_CREATED, {}) == [(False,)]:
            return  # nothing was indexed yet, and a user who may not create tables may forget
        named = {**_parameters(owner), "names": [conversation.name]}
        await self._write(
            owner, lambda connection: connection.execute(tables.REMOVE_CONVERSATIONS, named)
        )

    async def close(self) -> None:
        """Remove the vectors from memory; a later use is allowed."""
        self._vectors.clear()

    async def _rows(self, statement: str, parameters: Mapping[str, Any]) -> list[Any]:
        return await self._database.read(
            lambda connection: connection.execute(statement, parameters).fetchall()
        )

    async def _write(self, owner: Owner, work: Callable[[TurnConnection], T]) -> T:
        """Run `work` in one transaction that holds the lock of the owner; return its result."""
        names = {"tenant": owner.tenant, "project": owner.project, "user": owner.user}

        def locked_work(connection: TurnConnection) -> T:
            connection.execute(tables.LOCK_OWNER, names)
            return work(connection)

        await self._open()
        return await self._database.write(locked_work)

    async def _open(self) -> tables.VectorStatements:
        """Create the tables if they do not exist, and find out whether the database compares vectors."""
        if self._opened is None:
            self._opened = tables.VectorStatements(await self._database.write(_create_tables))
        return self._opened


def _create_tables(connection: TurnConnection) -> str | None:
    """Create the missing tables; return the schema of the extension `vector`, None if it is not installed."""
    [(is_created,)] = connection.execute(tables.IS_CREATED, {}).fetchall()
    if not is_created:
        connection.execute(tables.LOCK_CREATION, {})
        [(is_created,)] = connection.execute(tables.IS_CREATED, {}).fetchall()
        for statement in () if is_created else tables.SCHEMA:
            connection.execute(statement, {})
    for extension, has_points in connection.execute(tables.FIND_EXTENSION, {}).fetchall():
        if not has_points:
            connection.execute(tables.ADD_POINTS.format(extension), {})
        return str(extension)
    return None


def _parameters(owner: Owner, embedder: str = "") -> dict[str, Any]:
    return {"owner": owner.digest, "embedder": embedder_digest(embedder)}


def _point(vector: Vector) -> str:
    """Return the text of a vector for the extension."""
    return f"[{','.join(map(repr, array('f', vector)))}]"


def _word_numbers(owner: Owner, stems: Iterable[str]) -> list[int]:
    """Return a number for each stem in order. The same stem of another owner has another number."""
    first = int.from_bytes(owner.digest[:8], "little", signed=True)
    return [first ^ crc32(stem.encode("utf-8", "surrogatepass")) for stem in stems]


def _encode_texts(owner: Owner, updates: Sequence[TurnUpdate]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the texts, by the name of the conversation; recalled inputs are left out."""
    return {
        update.conversation: [
            {
                **text_columns(owner, text),
                "digest": owner.text_digest(text.text).hex(),
                # As JSON, because a text may have a null character.
                "body": json.encode(text.text).decode(),
                "words": f"{{{','.join(map(str, _word_numbers(owner, word_stems(text.text))))}}}",
            }
            for text in update.texts
            if text.input_seq not in update.recalled
        ]
        for update in updates
    }


def _json_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {"rows": json.encode(rows).decode()}


def _read_progress(connection: TurnConnection, owner: Owner) -> dict[str, IndexedConversation]:
    rows = connection.execute(tables.PROGRESS, _parameters(owner)).fetchall()
    return {name: IndexedConversation(uid=uid, head=head) for name, uid, head in rows}


def _extend(
    connection: TurnConnection,
    owner: Owner,
    updates: Sequence[TurnUpdate],
    texts: Mapping[str, list[dict[str, Any]]],
) -> list[TurnUpdate]:
    """Store the progress and the texts of the accepted updates; return these updates.

    An update is accepted if the stored progress is its `before` and its conversation was not forgotten.
    """
    parameters = _parameters(owner)
    uids = {"uids": [update.after.uid for update in updates]}
    forgotten = {uid for (uid,) in connection.execute(tables.FORGOTTEN, uids).fetchall()}
    accepted = [
        update
        for update in accepted_updates(updates, _read_progress(connection, owner))
        if update.after.uid not in forgotten
    ]
    replaced = [
        update.conversation
        for update in accepted
        if update.before is not None and update.before.uid != update.after.uid
    ]
    if replaced:
        connection.execute(tables.REMOVE_CONVERSATIONS, {**parameters, "names": replaced})
    progress = [
        {"name": update.conversation, "uid": update.after.uid, "head": update.after.head}
        for update in accepted
    ]
    stored = connection.execute(tables.SET_PROGRESS, parameters | _json_rows(progress)).fetchall()
    ids = dict(stored)
    added = [
        {**text, "conversation": ids[update.conversation]}
        for update in accepted
        for text in texts[update.conversation]
    ]
    connection.execute(tables.ADD_TEXTS, parameters | _json_rows(added))
    recalled = [
        {"conversation": ids[update.conversation], "input_seq": seq}
        for update in accepted
        for seq in update.recalled
    ]
    if recalled:
        connection.execute(tables.REMOVE_RECALLED, _json_rows(recalled))
    return accepted


def _find(
    connection: TurnConnection, query: TurnQuery, parameters: Mapping[str, Any]
) -> tuple[tuple[QueryTerm, ...], list[Any]]:
    """Return the terms of the query, each with the share of the texts that have it, and the rows of the texts found.

    The rows are those with its words; without words the newest turns, with an ordinal the turns at that position.
    """
    numbers = _word_numbers(query.owner, map(word_stem, query.terms))
    terms: tuple[QueryTerm, ...] = ()
    weights: dict[int, float] = {}
    if numbers:
        counted = connection.execute(tables.COUNT_TERMS, {**parameters, "words": numbers})
        [(total, counts)] = counted.fetchall()
        shares = [count / (total or 1) for count in counts]
        terms = tuple(map(QueryTerm, query.terms, shares))
        weights = {
            number: rarity(share, total) for number, share in zip(numbers, shares, strict=True)
        }
    if not weights or query.ordinal is not None:
        return terms, connection.execute(tables.turns(query.ordinal), parameters).fetchall()
    matching = {
        "words": [*weights],
        "weights": [*weights.values()],
        "limit": max(TEXTS_TO_RANK, 8 * query.limit),
    }
    return terms, connection.execute(tables.MATCHING, {**parameters, **matching}).fetchall()


def _texts(rows: Sequence[Any]) -> tuple[TurnText, ...]:
    return tuple(turn_text([*row[1:-1], json.decode(row[-1], type=str)]) for row in rows)
