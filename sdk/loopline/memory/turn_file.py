"""The index of past turns in a SQLite FTS5 file, through SQLAlchemy's async engine on aiosqlite."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from heapq import nlargest
from importlib import import_module
from pathlib import Path

from sqlalchemy import (
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from loopline.errors import StoreError
from loopline.memory.turn_index import (
    NEAREST_TEXTS,
    IndexedConversation,
    QueryVector,
    TurnCandidates,
    TurnIndexDamaged,
)
from loopline.memory.turn_statements import (
    CONVERSATIONS,
    CREATE_WORDS,
    PARAMETERS,
    PURGE_WORDS,
    TABLES,
    TEXTS,
    VECTORS,
    WORDS,
    TextRow,
    counted_terms,
    digests_of,
    embedder_digest,
    find_conversation,
    has_vector,
    insert_conversation,
    insert_texts,
    is_nth_turn,
    is_owned_by,
    limits_of,
    matching_texts,
    quoted,
    remove_conversation,
    remove_texts,
    select_texts,
    text_of,
    texts_of_turns,
    vectors_of,
)
from loopline.memory.turn_texts import Owner, TurnQuery, TurnText
from loopline.search import CosineFunction, Vector, VectorLoader, VectorState, loaded_vectors
from loopline.timeline import ConversationKey

APPLICATION_ID = 0x4C4F4F4D  # "LOOM"
FORMAT = 2
BUSY_SECONDS = 5.0
KEPT_OWNERS = 8
"""The owners whose vectors stay in memory: 15 MB for 10,000 texts of 384 dimensions."""
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SIDECARS = ("", "-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class _LoadedVectors:
    """The vectors of an owner, one behind the other, and the digests of their texts in the same order."""

    digests: Sequence[bytes]
    data: bytes
    compare: CosineFunction


class MemoryFile:
    """An index of turns in a file. It is opened with the first use, and belongs to one event loop."""

    def __init__(self, path: Path, load: VectorLoader = loaded_vectors) -> None:
        """`load` takes vectors to compare; `vector_rows` does it with NumPy."""
        self._path = path
        self._load = load
        self._vectors: dict[tuple[Owner, str], _LoadedVectors] = {}
        self._engine: AsyncEngine | None = None
        self._opening = asyncio.Lock()

    async def indexed(self, owner: Owner) -> Mapping[str, IndexedConversation]:
        """Return how far each conversation of the owner is indexed."""
        table = CONVERSATIONS.c
        query = select(table.name, table.uid, table.head).where(is_owned_by(owner))
        async with self._reading() as connection:
            rows = (await connection.execute(query)).all()
        return {name: IndexedConversation(uid=uid, head=head) for name, uid, head in rows}

    async def extend(
        self,
        conversation: ConversationKey,
        before: IndexedConversation | None,
        after: IndexedConversation,
        texts: Sequence[TurnText],
        recalled: Collection[int] = (),
    ) -> bool:
        """Add the texts in one transaction, unless another process did."""
        async with self._writing() as connection:
            row = (await connection.execute(find_conversation(conversation))).one_or_none()
            if (None if row is None else IndexedConversation(uid=row.uid, head=row.head)) != before:
                return False
            if row is not None and row.uid != after.uid:
                await remove_conversation(connection, row.id)
                row = None
            if row is None:
                number = await insert_conversation(connection, conversation, after)
            else:
                number = int(row.id)
                progress = update(CONVERSATIONS).where(CONVERSATIONS.c.id == number)
                await connection.execute(progress.values(head=after.head))
            remaining = [text for text in texts if text.input_seq not in recalled]
            await insert_texts(connection, number, Owner.of(conversation), remaining)
            if recalled:
                await remove_texts(connection, number, TEXTS.c.input_seq.in_(recalled))
        if recalled:
            self._forget_vectors(Owner.of(conversation))
        return True

    async def candidates(
        self, query: TurnQuery, vector: QueryVector | None = None
    ) -> TurnCandidates:
        """Return the texts to rank."""
        terms = [quoted(term) for term in query.terms]
        async with self._reading() as connection:
            counted = await counted_terms(connection, query)
            if query.ordinal is not None:
                statement = texts_of_turns(query, is_nth_turn(query))
            elif not terms:
                statement = texts_of_turns(query, None)
            else:
                statement = matching_texts(query, " OR ".join(terms))
            rows: list[TextRow] = [*(await connection.execute(statement)).all()]
            if vector is None or not terms:
                return TurnCandidates(terms=counted, texts=tuple(map(text_of, rows)))
            compared = await self._compared(connection, query, vector)
            if query.ordinal is None:
                chosen = {row[0] for row in rows}
                near = nlargest(NEAREST_TEXTS, compared, key=lambda number: compared[number])
                unseen = [number for number in near if number not in chosen]
                nearest = select_texts().where(limits_of(query), TEXTS.c.id.in_(unseen))
                rows += (await connection.execute(nearest)).all()
        return TurnCandidates(
            terms=counted,
            texts=tuple(map(text_of, rows)),
            cosines=tuple(compared.get(row[0]) for row in rows),
        )

    async def _compared(
        self, connection: AsyncConnection, query: TurnQuery, vector: QueryVector
    ) -> dict[int, float]:
        """Return the cosine of each text that the query may find, by its number."""
        texts = (await connection.execute(digests_of(query))).all()
        digests = {row.digest for row in texts}
        loaded = await self._loaded(connection, query.owner, vector.embedder, digests)
        similarities = await asyncio.to_thread(loaded.compare, vector.vector)
        by_digest = dict(zip(loaded.digests, similarities, strict=True))
        return {row.id: by_digest[row.digest] for row in texts if row.digest in by_digest}

    async def _loaded(
        self, connection: AsyncConnection, owner: Owner, embedder: str, digests: set[bytes]
    ) -> _LoadedVectors:
        """Return the vectors of an owner: those in memory, and from the file those of other digests."""
        kept = self._vectors.pop((owner, embedder), None)
        missing = digests if kept is None else digests.difference(kept.digests)
        if kept is None or missing:
            # A digest is that of a text, so its vector never changes.
            statement = vectors_of(owner, embedder)
            if kept is None or len(missing) > PARAMETERS:
                kept = _LoadedVectors([], b"", self._load(b"", 0))
            else:
                statement = statement.where(VECTORS.c.digest.in_(missing))
            rows = (await connection.execute(statement)).all()
            data = b"".join([kept.data, *(row.data for row in rows)])
            known = [*kept.digests, *(row.digest for row in rows)]
            kept = _LoadedVectors(known, data, self._load(data, len(known)))
        self._vectors[owner, embedder] = kept
        while len(self._vectors) > KEPT_OWNERS:
            del self._vectors[next(iter(self._vectors))]
        return kept

    async def unembedded(self, owner: Owner, embedder: str, limit: int) -> Mapping[bytes, str]:
        """Return texts without a vector, the newest first."""
        row = TEXTS.c
        newest = (
            select(row.digest, func.max(row.id).label("id"))
            .select_from(TEXTS.join(CONVERSATIONS).outerjoin(VECTORS, has_vector(embedder)))
            .where(is_owned_by(owner), VECTORS.c.digest.is_(None))
            .group_by(row.digest)
            .order_by(func.max(row.ts).desc(), func.max(row.id).desc())
            .limit(limit)
            .subquery()
        )
        query = select(newest.c.digest, WORDS.c.body)
        async with self._reading() as connection:
            joined = query.select_from(newest.join(WORDS, newest.c.id == WORDS.c.rowid))
            rows = (await connection.execute(joined)).all()
        return {row.digest: row.body for row in rows}

    async def add_vectors(
        self, owner: Owner, embedder: str, vectors: Mapping[bytes, Vector]
    ) -> None:
        """Add the vectors of texts that are still there, in one transaction."""
        remaining = select(TEXTS.c.digest).join(CONVERSATIONS).distinct()
        remaining = remaining.where(is_owned_by(owner), TEXTS.c.digest.in_(vectors))
        name = embedder_digest(embedder)
        async with self._writing() as connection:
            digests = (await connection.execute(remaining)).scalars().all()
            rows = [
                {"digest": digest, "embedder": name, "data": vectors[digest]} for digest in digests
            ]
            if rows:
                await connection.execute(insert(VECTORS).prefix_with("OR IGNORE"), rows)

    async def vector_state(self, owner: Owner, embedder: str) -> VectorState:
        """Return how many different texts have a vector."""
        row = TEXTS.c
        counts = (
            select(func.count(VECTORS.c.digest.distinct()), func.count(row.digest.distinct()))
            .select_from(TEXTS.join(CONVERSATIONS).outerjoin(VECTORS, has_vector(embedder)))
            .where(is_owned_by(owner))
        )
        async with self._reading() as connection:
            done, total = (await connection.execute(counts)).one()
        return VectorState(done, total, is_ready=done == total)

    async def remove(self, conversation: ConversationKey) -> None:
        """Remove everything of a conversation, also from the pages of the file."""
        self._forget_vectors(Owner.of(conversation))
        if self._engine is None and not await asyncio.to_thread(self._path.exists):
            return
        async with self._writing() as connection:
            row = (await connection.execute(find_conversation(conversation))).one_or_none()
            if row is not None:
                await remove_conversation(connection, row.id)
                await connection.exec_driver_sql(PURGE_WORDS)
        # Also without a row: a process that removed it may have been killed before this.
        async with self._reading() as connection:
            await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def _forget_vectors(self, owner: Owner) -> None:
        for key in [key for key in self._vectors if key[0] == owner]:
            del self._vectors[key]

    async def clear(self) -> None:
        """Remove the file; the next use makes a new one."""
        await self.close()
        await asyncio.to_thread(_unlink, self._path)

    async def close(self) -> None:
        """Close the file."""
        engine, self._engine = self._engine, None
        self._vectors.clear()
        if engine is not None:
            await engine.dispose()

    @asynccontextmanager
    async def _reading(self) -> AsyncGenerator[AsyncConnection]:
        async with self._errors():
            engine = await self._open()
            async with engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def _writing(self) -> AsyncGenerator[AsyncConnection]:
        async with self._errors():
            engine = await self._open()
            async with engine.begin() as connection:
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
                yield connection

    @asynccontextmanager
    async def _errors(self) -> AsyncGenerator[None]:
        """Turn errors of the database into our own; empty an index that is damaged."""
        try:
            yield
        except (DBAPIError, sqlite3.Error, OSError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            if isinstance(cause, sqlite3.Error) and _is_damaged(cause):
                await self.clear()
                raise TurnIndexDamaged(f"{self._path} was damaged and is emptied") from error
            raise StoreError(f"the index of past turns in {self._path} failed: {cause}") from error

    async def _open(self) -> AsyncEngine:
        async with self._opening:
            if self._engine is None:
                engine = await asyncio.to_thread(_new_engine, self._path)
                try:
                    if not await _prepare(engine):
                        await engine.dispose()
                        await asyncio.to_thread(_unlink, self._path)
                        engine = await asyncio.to_thread(_new_engine, self._path)
                        await _prepare(engine)
                except BaseException:
                    await engine.dispose()
                    raise
                self._engine = engine
            return self._engine


def _is_damaged(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGED


def _unlink(path: Path) -> None:
    for suffix in _SIDECARS:
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)


def _new_engine(path: Path) -> AsyncEngine:
    """Return an engine on the file, which only its user may read."""
    import_module("aiosqlite")  # in this thread: the engine would import it on the event loop
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(path)),
        connect_args={"isolation_level": None, "timeout": BUSY_SECONDS},
        pool_size=2,
    )
    event.listen(engine.sync_engine, "connect", _set_pragmas)
    return engine


def _set_pragmas(connection: DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "secure_delete=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


async def _prepare(engine: AsyncEngine) -> bool:
    """Make the tables of a new file; return False if the file is another program's or another version's."""
    async with engine.begin() as connection:
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
        identity = [
            (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar_one()
            for name in ("application_id", "user_version", "schema_version")
        ]
        if identity[2] == 0:
            await connection.run_sync(TABLES.create_all)
            for statement in CREATE_WORDS:
                await connection.exec_driver_sql(statement)
            await connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            await connection.exec_driver_sql(f"PRAGMA user_version = {FORMAT}")
            return True
        return identity[:2] == [APPLICATION_ID, FORMAT]
