"""The index of past turns in a SQLite FTS5 file, through SQLAlchemy's async engine on aiosqlite."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from importlib import import_module
from pathlib import Path

from sqlalchemy import (
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    UniqueConstraint,
    and_,
    delete,
    event,
    func,
    insert,
    literal_column,
    not_,
    select,
    update,
)
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from loopline.errors import StoreError
from loopline.memory import (
    TEXTS_TO_RANK,
    IndexedConversation,
    Owner,
    Target,
    TurnCandidates,
    TurnIndexDamaged,
    TurnQuery,
    TurnText,
)
from loopline.search import QueryTerm, name_parts
from loopline.timeline import ConversationKey

APPLICATION_ID = 0x4C4F4F4D  # "LOOM"
FORMAT = 1
BUSY_SECONDS = 5.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SIDECARS = ("", "-wal", "-shm", "-journal")

_TABLES = MetaData()
_CONVERSATIONS = Table(
    "conversation",
    _TABLES,
    Column("id", Integer, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("project", String, nullable=False),
    Column("user", String, nullable=False),
    Column("name", String, nullable=False),
    Column("uid", String, nullable=False),
    Column("head", Integer, nullable=False),
    UniqueConstraint("tenant", "project", "user", "name"),
)
_TEXTS = Table(
    "turn_text",
    _TABLES,
    Column("id", Integer, primary_key=True),
    Column("conversation", Integer, ForeignKey("conversation.id"), nullable=False),
    Column("turn", Integer, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("start", Integer, nullable=False),
    Column("input_seq", Integer, nullable=False),
    Column("target", String, nullable=False),
    Column("ts", Integer, nullable=False),
    Column("ref", String, nullable=False),
    UniqueConstraint("conversation", "seq", "start"),
    Index("turn_text_by_turn", "conversation", "turn"),
)
# The text itself is in the table of words. `owner` holds one word for each owner, so that a search
# reads the rows of one owner only, however many others there are.
_WORDS = Table(
    "words",
    MetaData(),
    Column("rowid", Integer),
    Column("owner", String),
    Column("body", String),
    Column("names", String),
    Column("rank", Float),
)
_CREATE_WORDS = (
    "CREATE VIRTUAL TABLE words USING fts5(owner, body, names, tokenize='porter unicode61')",
    "INSERT INTO words(words, rank) VALUES('rank', 'bm25(0.0, 1.0, 0.5)')",
)
_PURGE_WORDS = "INSERT INTO words(words) VALUES('optimize')"
_TextRow = tuple[str, int, int, int, int, Target, int, str, str]


class MemoryFile:
    """An index of turns in a file. It is opened with the first use, and belongs to one event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engine: AsyncEngine | None = None
        self._opening = asyncio.Lock()

    async def indexed(self, owner: Owner) -> Mapping[str, IndexedConversation]:
        """Return how far each conversation of the owner is indexed."""
        table = _CONVERSATIONS.c
        query = select(table.name, table.uid, table.head).where(_owned(owner))
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
            row = (await connection.execute(_find(conversation))).one_or_none()
            if (None if row is None else IndexedConversation(uid=row.uid, head=row.head)) != before:
                return False
            if row is not None and row.uid != after.uid:
                await _remove(connection, row.id)
                row = None
            if row is None:
                number = await _insert_conversation(connection, conversation, after)
            else:
                number = int(row.id)
                progress = update(_CONVERSATIONS).where(_CONVERSATIONS.c.id == number)
                await connection.execute(progress.values(head=after.head))
            remaining = [text for text in texts if text.input_seq not in recalled]
            await _insert_texts(connection, number, Owner.of(conversation), remaining)
            if recalled:
                await _remove_texts(connection, number, _TEXTS.c.input_seq.in_(recalled))
        return True

    async def candidates(self, query: TurnQuery) -> TurnCandidates:
        """Return the texts to rank."""
        terms = [_quoted(term) for term in query.terms]
        async with self._reading() as connection:
            counted = await _counted_terms(connection, query)
            if query.ordinal is not None:
                statement = _texts_of_turns(query, _nth_turn(query))
            elif not terms:
                statement = _texts_of_turns(query, None)
            else:
                statement = _matching_texts(query, " OR ".join(terms))
            rows = (await connection.execute(statement)).all()
        return TurnCandidates(terms=counted, texts=tuple(map(_text_of, rows)))

    async def remove(self, conversation: ConversationKey) -> None:
        """Remove everything of a conversation, also from the pages of the file."""
        async with self._writing() as connection:
            row = (await connection.execute(_find(conversation))).one_or_none()
            if row is None:
                return
            await _remove(connection, row.id)
            await connection.exec_driver_sql(_PURGE_WORDS)
        async with self._reading() as connection:
            await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    async def clear(self) -> None:
        """Remove the file; the next use makes a new one."""
        await self.close()
        await asyncio.to_thread(_unlink, self._path)

    async def close(self) -> None:
        """Close the file."""
        engine, self._engine = self._engine, None
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
            await connection.run_sync(_TABLES.create_all)
            for statement in _CREATE_WORDS:
                await connection.exec_driver_sql(statement)
            await connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            await connection.exec_driver_sql(f"PRAGMA user_version = {FORMAT}")
            return True
        return identity[:2] == [APPLICATION_ID, FORMAT]


# Statements.


def _owned(owner: Owner) -> ColumnElement[bool]:
    table = _CONVERSATIONS.c
    return and_(
        table.tenant == owner.tenant, table.project == owner.project, table.user == owner.user
    )


def _owner_word(owner: Owner) -> str:
    name = repr((owner.tenant, owner.project, owner.user)).encode("utf-8", "surrogatepass")
    return f"o{blake2b(name, digest_size=12).hexdigest()}"


def _find(conversation: ConversationKey) -> Select[int, str, int]:
    table = _CONVERSATIONS.c
    named = table.name == conversation.name
    return select(table.id, table.uid, table.head).where(_owned(Owner.of(conversation)), named)


async def _insert_conversation(
    connection: AsyncConnection, conversation: ConversationKey, progress: IndexedConversation
) -> int:
    statement = insert(_CONVERSATIONS).values(
        tenant=conversation.tenant,
        project=conversation.project,
        user=conversation.user,
        name=conversation.name,
        uid=progress.uid,
        head=progress.head,
    )
    result = await connection.execute(statement.returning(_CONVERSATIONS.c.id))
    return int(result.scalar_one())


async def _insert_texts(
    connection: AsyncConnection, conversation: int, owner: Owner, texts: Sequence[TurnText]
) -> None:
    if not texts:
        return
    newest = (await connection.execute(select(func.max(_TEXTS.c.id)))).scalar_one_or_none()
    numbered = list(enumerate(texts, (newest or 0) + 1))
    rows = [
        {
            "id": number,
            "conversation": conversation,
            "turn": text.turn,
            "seq": text.seq,
            "start": text.start,
            "input_seq": text.input_seq,
            "target": text.target,
            "ts": _milliseconds(text.ts),
            "ref": text.ref,
        }
        for number, text in numbered
    ]
    owner_word = _owner_word(owner)
    words = [
        {
            "rowid": number,
            "owner": owner_word,
            "body": text.text,
            "names": name_parts(text.text),
        }
        for number, text in numbered
    ]
    await connection.execute(insert(_TEXTS), rows)
    await connection.execute(insert(_WORDS), words)


async def _remove(connection: AsyncConnection, conversation: int) -> None:
    await _remove_texts(connection, conversation)
    rows = delete(_CONVERSATIONS).where(_CONVERSATIONS.c.id == conversation)
    await connection.execute(rows)


async def _remove_texts(
    connection: AsyncConnection, conversation: int, *conditions: ColumnElement[bool]
) -> None:
    chosen = and_(_TEXTS.c.conversation == conversation, *conditions)
    numbers = select(_TEXTS.c.id).where(chosen)
    await connection.execute(delete(_WORDS).where(_WORDS.c.rowid.in_(numbers)))
    await connection.execute(delete(_TEXTS).where(chosen))


def _quoted(term: str) -> str:
    return f'"{term}"'


def _match(owner: Owner, expression: str) -> ColumnElement[bool]:
    matched = f"owner : {_owner_word(owner)} AND {{body names}} : ({expression})"
    return literal_column("words").op("MATCH", is_comparison=True)(matched)


async def _counted_terms(connection: AsyncConnection, query: TurnQuery) -> tuple[QueryTerm, ...]:
    """Return the terms, each with the share of the owner's texts that have it."""
    if not query.terms:
        return ()
    owned = select(func.count()).select_from(_TEXTS.join(_CONVERSATIONS))
    texts = (await connection.execute(owned.where(_owned(query.owner)))).scalar_one()
    terms = list[QueryTerm]()
    for term in query.terms:
        holding = select(func.count()).select_from(_WORDS)
        holding = holding.where(_match(query.owner, _quoted(term)))
        count = (await connection.execute(holding)).scalar_one()
        terms.append(QueryTerm(term, count / (texts or 1)))
    return tuple(terms)


def _conditions(query: TurnQuery) -> ColumnElement[bool]:
    conversation, row = _CONVERSATIONS.c, _TEXTS.c
    conditions = [
        _owned(query.owner),
        row.target.in_(query.targets),
        not_(and_(conversation.name == query.current, row.turn >= query.before_turn)),
    ]
    if query.conversation is not None:
        conditions.append(conversation.name == query.conversation)
    if query.since is not None:
        conditions.append(row.ts >= _milliseconds(query.since, up=True))
    if query.until is not None:
        conditions.append(row.ts <= _milliseconds(query.until))
    return and_(*conditions)


def _selected() -> Select[str, int, int, int, int, Target, int, str, str]:
    row = _TEXTS.c
    return select(
        _CONVERSATIONS.c.name,
        row.turn,
        row.seq,
        row.start,
        row.input_seq,
        row.target,
        row.ts,
        row.ref,
        _WORDS.c.body,
    ).select_from(
        _WORDS.join(_TEXTS, row.id == _WORDS.c.rowid).join(
            _CONVERSATIONS, _CONVERSATIONS.c.id == row.conversation
        )
    )


def _matching_texts(
    query: TurnQuery, expression: str
) -> Select[str, int, int, int, int, Target, int, str, str]:
    return (
        _selected()
        .where(_match(query.owner, expression), _conditions(query))
        .order_by(_WORDS.c.rank)
        .limit(max(TEXTS_TO_RANK, 8 * query.limit))
    )


def _nth_turn(query: TurnQuery) -> ColumnElement[bool]:
    """Return whether a turn is the one that the ordinal names in its conversation."""
    ordinal = query.ordinal or 0
    if ordinal > 0:
        return _TEXTS.c.turn == ordinal
    last = (
        select(_TEXTS.c.conversation, func.max(_TEXTS.c.turn).label("turn"))
        .select_from(_TEXTS.join(_CONVERSATIONS))
        .where(_conditions(query))
        .group_by(_TEXTS.c.conversation)
        .subquery()
    )
    named = select(last.c.turn + 1 + ordinal).where(last.c.conversation == _TEXTS.c.conversation)
    return _TEXTS.c.turn == named.correlate(_TEXTS).scalar_subquery()


def _texts_of_turns(
    query: TurnQuery, named: ColumnElement[bool] | None
) -> Select[str, int, int, int, int, Target, int, str, str]:
    """Return the texts of the newest turns, or of the newest of those that are named."""
    row = _TEXTS.c
    limits = [_conditions(query), row.start == 0, *([] if named is None else [named])]
    newest = (
        select(row.conversation, row.turn)
        .select_from(_TEXTS.join(_CONVERSATIONS))
        .where(*limits)
        .group_by(row.conversation, row.turn)
        .order_by(func.max(row.ts).desc())
        .limit(query.limit)
        .subquery()
    )
    of_newest = and_(newest.c.conversation == row.conversation, newest.c.turn == row.turn)
    return _selected().join(newest, of_newest).where(_conditions(query), row.start == 0)


def _text_of(values: _TextRow) -> TurnText:
    conversation, turn, seq, start, input_seq, target, ts, ref, body = values
    return TurnText(
        conversation=conversation,
        turn=turn,
        seq=seq,
        start=start,
        input_seq=input_seq,
        target=target,
        ts=_EPOCH + ts * _MILLISECOND,
        ref=ref,
        text=body,
    )


def _milliseconds(moment: datetime, *, up: bool = False) -> int:
    """Return the whole milliseconds since 1970, rounded down, or `up`."""
    whole, rest = divmod(moment - _EPOCH, _MILLISECOND)
    return whole + (up and rest > timedelta(0))
