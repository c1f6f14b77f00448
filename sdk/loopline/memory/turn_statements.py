"""The tables of the index of past turns, and the statements on them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

from sqlalchemy import (
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    UniqueConstraint,
    and_,
    delete,
    exists,
    func,
    insert,
    literal_column,
    not_,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from loopline.memory.turn_index import TEXTS_TO_RANK, IndexedConversation
from loopline.memory.turn_texts import Owner, Target, TurnQuery, TurnText
from loopline.search import QueryTerm, name_parts
from loopline.timeline import ConversationKey

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
PARAMETERS = 500
"""How many values a statement lists at most."""

TABLES = MetaData()
CONVERSATIONS = Table(
    "conversation",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("project", String, nullable=False),
    Column("user", String, nullable=False),
    Column("name", String, nullable=False),
    Column("uid", String, nullable=False),
    Column("head", Integer, nullable=False),
    UniqueConstraint("tenant", "project", "user", "name"),
)
TEXTS = Table(
    "turn_text",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("conversation", Integer, ForeignKey("conversation.id"), nullable=False),
    Column("turn", Integer, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("start", Integer, nullable=False),
    Column("input_seq", Integer, nullable=False),
    Column("target", String, nullable=False),
    Column("ts", Integer, nullable=False),
    Column("ref", String, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    UniqueConstraint("conversation", "seq", "start"),
    Index("turn_text_by_turn", "conversation", "turn"),
    Index("turn_text_by_digest", "digest"),
)
# A digest is that of a text and its owner, so a vector belongs to one owner, whatever others said.
VECTORS = Table(
    "vector",
    TABLES,
    Column("digest", LargeBinary, primary_key=True),
    Column("embedder", LargeBinary, primary_key=True),
    Column("data", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
# The text itself is in the table of words. `owner` holds one word for each owner, so that a search
# reads the rows of one owner only, however many others there are.
WORDS = Table(
    "words",
    MetaData(),
    Column("rowid", Integer),
    Column("owner", String),
    Column("body", String),
    Column("names", String),
    Column("rank", Float),
)
CREATE_WORDS = (
    "CREATE VIRTUAL TABLE words USING fts5(owner, body, names, tokenize='porter unicode61')",
    "INSERT INTO words(words, rank) VALUES('rank', 'bm25(0.0, 1.0, 0.5)')",
)
PURGE_WORDS = "INSERT INTO words(words) VALUES('optimize')"
TextRow = tuple[int, str, int, int, int, int, Target, int, str, str]


def is_owned_by(owner: Owner) -> ColumnElement[bool]:
    """Return whether a conversation is the owner's."""
    table = CONVERSATIONS.c
    return and_(
        table.tenant == owner.tenant, table.project == owner.project, table.user == owner.user
    )


def _owner_word(owner: Owner) -> str:
    return f"o{owner.digest.hex()}"


def embedder_digest(key: str) -> bytes:
    """Return the short name of an embedder's key."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def has_vector(embedder: str) -> ColumnElement[bool]:
    """Return whether a vector is that of a text, made by the embedder."""
    vector = VECTORS.c
    return and_(vector.digest == TEXTS.c.digest, vector.embedder == embedder_digest(embedder))


def find_conversation(conversation: ConversationKey) -> Select[int, str, int]:
    """Return the number, uid and head of a conversation."""
    table = CONVERSATIONS.c
    named = table.name == conversation.name
    return select(table.id, table.uid, table.head).where(is_owned_by(Owner.of(conversation)), named)


async def insert_conversation(
    connection: AsyncConnection, conversation: ConversationKey, progress: IndexedConversation
) -> int:
    """Add a conversation, and return its number."""
    statement = insert(CONVERSATIONS).values(
        tenant=conversation.tenant,
        project=conversation.project,
        user=conversation.user,
        name=conversation.name,
        uid=progress.uid,
        head=progress.head,
    )
    result = await connection.execute(statement.returning(CONVERSATIONS.c.id))
    return int(result.scalar_one())


async def insert_texts(
    connection: AsyncConnection, conversation: int, owner: Owner, texts: Sequence[TurnText]
) -> None:
    """Add texts of a conversation, and their words."""
    if not texts:
        return
    newest = (await connection.execute(select(func.max(TEXTS.c.id)))).scalar_one_or_none()
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
            "digest": owner.text_digest(text.text),
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
    await connection.execute(insert(TEXTS), rows)
    await connection.execute(insert(WORDS), words)


async def remove_conversation(connection: AsyncConnection, conversation: int) -> None:
    """Remove a conversation with its texts and vectors."""
    await remove_texts(connection, conversation)
    rows = delete(CONVERSATIONS).where(CONVERSATIONS.c.id == conversation)
    await connection.execute(rows)


async def remove_texts(
    connection: AsyncConnection, conversation: int, *conditions: ColumnElement[bool]
) -> None:
    """Remove texts of a conversation, and the vectors that no other text has."""
    chosen = and_(TEXTS.c.conversation == conversation, *conditions)
    numbers = select(TEXTS.c.id).where(chosen)
    digests = (await connection.execute(select(TEXTS.c.digest).where(chosen))).scalars().all()
    await connection.execute(delete(WORDS).where(WORDS.c.rowid.in_(numbers)))
    await connection.execute(delete(TEXTS).where(chosen))
    used = exists().where(TEXTS.c.digest == VECTORS.c.digest)
    for first in range(0, len(digests), PARAMETERS):
        removed = VECTORS.c.digest.in_(digests[first : first + PARAMETERS])
        await connection.execute(delete(VECTORS).where(removed, not_(used)))


def quoted(term: str) -> str:
    """Return the term as the full-text query spells it."""
    return f'"{term}"'


def _match(owner: Owner, expression: str) -> ColumnElement[bool]:
    matched = f"owner : {_owner_word(owner)} AND {{body names}} : ({expression})"
    return literal_column("words").op("MATCH", is_comparison=True)(matched)


async def counted_terms(connection: AsyncConnection, query: TurnQuery) -> tuple[QueryTerm, ...]:
    """Return the terms, each with the share of the owner's texts that have it."""
    if not query.terms:
        return ()
    owned = select(func.count()).select_from(TEXTS.join(CONVERSATIONS))
    texts = (await connection.execute(owned.where(is_owned_by(query.owner)))).scalar_one()
    terms: list[QueryTerm] = []
    for term in query.terms:
        holding = select(func.count()).select_from(WORDS)
        holding = holding.where(_match(query.owner, quoted(term)))
        count = (await connection.execute(holding)).scalar_one()
        terms.append(QueryTerm(term, count / (texts or 1)))
    return tuple(terms)


def limits_of(query: TurnQuery) -> ColumnElement[bool]:
    """Return whether the query may find a text, its ordinal aside."""
    conversation, row = CONVERSATIONS.c, TEXTS.c
    conditions = [
        is_owned_by(query.owner),
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


def select_texts() -> Select[int, str, int, int, int, int, Target, int, str, str]:
    """Return the texts with their number, conversation and words, to be limited."""
    row = TEXTS.c
    return select(
        row.id,
        CONVERSATIONS.c.name,
        row.turn,
        row.seq,
        row.start,
        row.input_seq,
        row.target,
        row.ts,
        row.ref,
        WORDS.c.body,
    ).select_from(
        WORDS.join(TEXTS, row.id == WORDS.c.rowid).join(
            CONVERSATIONS, CONVERSATIONS.c.id == row.conversation
        )
    )


def vectors_of(owner: Owner, embedder: str) -> Select[bytes, bytes]:
    """Return the vector of each different text of the owner, by its digest."""
    of_texts = select(TEXTS.c.digest).join(CONVERSATIONS).where(is_owned_by(owner))
    vector = VECTORS.c
    return select(vector.digest, vector.data).where(
        vector.embedder == embedder_digest(embedder), vector.digest.in_(of_texts)
    )


def digests_of(query: TurnQuery) -> Select[int, bytes]:
    """Return the number and the digest of each text that the query may find."""
    return select(TEXTS.c.id, TEXTS.c.digest).join(CONVERSATIONS).where(limits_of(query))


def matching_texts(
    query: TurnQuery, expression: str
) -> Select[int, str, int, int, int, int, Target, int, str, str]:
    """Return the texts that match best by words."""
    return (
        select_texts()
        .where(_match(query.owner, expression), limits_of(query))
        .order_by(WORDS.c.rank)
        .limit(max(TEXTS_TO_RANK, 8 * query.limit))
    )


def is_nth_turn(query: TurnQuery) -> ColumnElement[bool]:
    """Return whether a turn is the one that the ordinal names in its conversation."""
    ordinal = query.ordinal or 0
    if ordinal > 0:
        return TEXTS.c.turn == ordinal
    last = (
        select(TEXTS.c.conversation, func.max(TEXTS.c.turn).label("turn"))
        .select_from(TEXTS.join(CONVERSATIONS))
        .where(limits_of(query))
        .group_by(TEXTS.c.conversation)
        .subquery()
    )
    named = select(last.c.turn + 1 + ordinal).where(last.c.conversation == TEXTS.c.conversation)
    return TEXTS.c.turn == named.correlate(TEXTS).scalar_subquery()


def texts_of_turns(
    query: TurnQuery, named: ColumnElement[bool] | None
) -> Select[int, str, int, int, int, int, Target, int, str, str]:
    """Return the texts of the newest turns, or of the newest of those that are named."""
    row = TEXTS.c
    limits = [limits_of(query), row.start == 0, *([] if named is None else [named])]
    newest = (
        select(row.conversation, row.turn)
        .select_from(TEXTS.join(CONVERSATIONS))
        .where(*limits)
        .group_by(row.conversation, row.turn)
        .order_by(func.max(row.ts).desc())
        .limit(query.limit)
        .subquery()
    )
    of_newest = and_(newest.c.conversation == row.conversation, newest.c.turn == row.turn)
    return select_texts().join(newest, of_newest).where(limits_of(query), row.start == 0)


def text_of(values: TextRow) -> TurnText:
    """Return the text of a row."""
    _, conversation, turn, seq, start, input_seq, target, ts, ref, body = values
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
    milliseconds, remainder = divmod(moment - _EPOCH, _MILLISECOND)
    return milliseconds + (up and remainder > timedelta(0))
