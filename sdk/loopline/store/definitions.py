"""The tables of the store, and every SQL statement, as SQLAlchemy Core constructs that a dialect compiles.

They are compiled for SQLite into the module `statements`, which the stores import, because importing SQLAlchemy takes
longer than reading a conversation. The module `postgres_statements` translates them for PostgreSQL.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    Table,
    Text,
    UniqueConstraint,
    Update,
    and_,
    bindparam,
    cast,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    union_all,
)
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.types import TypeEngine

tables: MetaData = MetaData()


def _make_columns(kind: type[TypeEngine[Any]], *names: str) -> list[Column[Any]]:
    """Return columns of that type that cannot be null."""
    return [Column(name, kind, nullable=False) for name in names]


meta: Table = Table(
    "meta",
    tables,
    Column("key", Text, primary_key=True),
    *_make_columns(Text, "value"),
)

conversations: Table = Table(
    "conversations",
    tables,
    Column("id", Integer, primary_key=True),
    *_make_columns(Text, "tenant", "project", "user", "name"),
    Column("uid", Text, nullable=False, unique=True),
    *_make_columns(Text, "title"),
    *_make_columns(Integer, "turns", "term", "started_at"),
    UniqueConstraint("tenant", "project", "user", "name"),
    CheckConstraint("id > 0"),
)

# Times are milliseconds since 1970 in UTC. The primary key is the rowid: with rows of 1 KB a table WITHOUT ROWID is
# three times as large. `digest` is the digest in the chain (`timeline.chain`), `bytes` the size of all bodies of the
# conversation up to this row. Ids below 1 are refused, because a trigger sees -1 as the id of a new row.
blocks: Table = Table(
    "blocks",
    tables,
    Column("id", Integer, primary_key=True),
    Column("conversation", Integer, ForeignKey("conversations.id"), nullable=False),
    *_make_columns(Integer, "seq", "turn", "round", "n", "ts", "term"),
    *_make_columns(Text, "type"),
    *_make_columns(Integer, "version"),
    *_make_columns(Text, "body"),
    Column("blob", Text),
    Column("digest", LargeBinary),
    Column("bytes", Integer),
    UniqueConstraint("conversation", "seq"),
    CheckConstraint("id > 0"),
)
Index("blocks_by_turn", blocks.c.conversation, blocks.c.turn)
Index(
    "blocks_by_blob",
    blocks.c.blob,
    sqlite_where=blocks.c.blob.is_not(None),
)

appends: Table = Table(
    "appends",
    tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    Column("key", Text, primary_key=True),
    *_make_columns(Integer, "last_seq"),
    sqlite_with_rowid=False,
)

# The blocks that a fork inherits: the blocks from `first` to `last` of each owner.
segments: Table = Table(
    "segments",
    tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    Column("last", Integer, primary_key=True),
    *_make_columns(Integer, "first"),
    Column("owner", Integer, ForeignKey("conversations.id"), nullable=False),
    sqlite_with_rowid=False,
)
Index("segments_by_owner", segments.c.owner)

tombstones: Table = Table(
    "tombstones",
    tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    *_make_columns(Integer, "at"),
)

# The blobs of forgotten conversations that have not been removed yet.
purges: Table = Table("purges", tables, Column("blob", Text, primary_key=True))

# The leases of runners. `ends` is in milliseconds since the boot of the machine.
leases: Table = Table(
    "leases",
    tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    *_make_columns(Integer, "generation"),
    *_make_columns(Text, "boot"),
    *_make_columns(Integer, "ends"),
)


Query = Select[*tuple[Any, ...]]

# Values about the store itself.


def _is_listed(column: Column[Any], name: str) -> ColumnElement[bool]:
    """Return the condition that the column is in the parameter with that name, a JSON array."""
    return column.in_(select(_listed(name)))


def _listed(name: str) -> ColumnElement[Any]:
    """Return the column of the values in the parameter with that name, a JSON array."""
    return func.json_each(bindparam(name)).table_valued("value").c.value


SELECT_META = select(meta.c.value).where(meta.c.key == bindparam("key"))
INSERT_META = meta.insert()
DELETE_META = meta.delete().where(meta.c.key == bindparam("name"))

# One conversation.

_KEY = (
    conversations.c.tenant,
    conversations.c.project,
    conversations.c.user,
    conversations.c.name,
)
_IS_NAMED = and_(*(column == bindparam(column.name) for column in _KEY))
"""The condition that the row is the conversation with this key."""

_newest = blocks.alias("newest")
_newest_own = (
    select(_newest.c.id)
    .where(_newest.c.conversation == conversations.c.id)
    .order_by(_newest.c.seq.desc())
    .limit(1)
    .scalar_subquery()
)
_shown = blocks.alias("shown")
_newest_inherited = (
    select(_shown.c.id)
    .join_from(
        segments,
        _shown,
        and_(_shown.c.conversation == segments.c.owner, _shown.c.seq == segments.c.last),
    )
    .where(segments.c.conversation == conversations.c.id)
    .order_by(segments.c.last.desc())
    .limit(1)
    .scalar_subquery()
)
_NEWEST_BLOCK = func.coalesce(_newest_own, _newest_inherited)
"""The id of the last block of a conversation, which may be an inherited block."""

_head = (
    select(func.max(blocks.c.seq))
    .where(blocks.c.conversation == conversations.c.id)
    .scalar_subquery()
)
_last_inherited_seq = (
    select(func.max(segments.c.last))
    .where(segments.c.conversation == conversations.c.id)
    .scalar_subquery()
)
_WITH_TOMBSTONES = conversations.outerjoin(
    tombstones, tombstones.c.conversation == conversations.c.id
)
_head_row = blocks.alias("head_row")
_states: Query = (
    select(
        conversations.c.id,
        conversations.c.turns,
        conversations.c.term,
        _head,
        _last_inherited_seq,
        tombstones.c.at,
        _head_row.c.digest,
        _head_row.c.bytes,
    )
    .select_from(_WITH_TOMBSTONES)
    .join(_head_row, _head_row.c.id == _NEWEST_BLOCK, isouter=True)
)
SELECT_STATE = _states.where(_IS_NAMED)
SELECT_STATES = _states.where(_is_listed(conversations.c.id, "rows"))
SELECT_HEADS = select(conversations.c.id, conversations.c.term, _head).where(
    _is_listed(conversations.c.id, "rows")
)
SELECT_ID: Query = select(conversations.c.id).where(_IS_NAMED)
SELECT_FORGOTTEN_AT = (
    select(tombstones.c.at)
    .join_from(tombstones, conversations, tombstones.c.conversation == conversations.c.id)
    .where(_IS_NAMED)
)
INSERT_CONVERSATION = (
    conversations.insert()
    .values(**{column.name: bindparam(column.name) for column in (*_KEY, conversations.c.uid)})
    .values(title="", turns=0, term=0, started_at=0)
    .returning(conversations.c.id)
)


def _update_conversation(**columns: ColumnElement[Any] | str | int) -> Update:
    return conversations.update().where(conversations.c.id == bindparam("row")).values(**columns)


UPDATE_START = _update_conversation(
    turns=bindparam("turns"), title=bindparam("title"), started_at=bindparam("started")
)
UPDATE_TURNS = _update_conversation(turns=bindparam("turns"))
UPDATE_TERM = _update_conversation(term=bindparam("term"))

# Appends.

_block_values: dict[str, ColumnElement[Any]] = {
    column.name: bindparam(column.name) for column in blocks.c if column is not blocks.c.id
}
INSERT_BLOCK = blocks.insert().values(
    {**_block_values, "blob": func.nullif(bindparam("blob"), literal_column("''"))}
)
INSERT_APPEND = appends.insert()
SELECT_APPEND = select(appends.c.last_seq).where(
    appends.c.conversation == bindparam("conversation"), appends.c.key == bindparam("key")
)
SELECT_TURNS = (
    select(appends.c.key, blocks.c.turn)
    .join_from(
        appends,
        blocks,
        and_(blocks.c.conversation == appends.c.conversation, blocks.c.seq == appends.c.last_seq),
    )
    .where(
        appends.c.conversation == bindparam("conversation"),
        _is_listed(appends.c.key, "keys"),
    )
)
_in_turns = _is_listed(blocks.c.turn, "turns")
_counted_types = select(blocks.c.turn, blocks.c.type, func.count()).group_by(
    blocks.c.turn, blocks.c.type
)
COUNT_TYPES = _counted_types.where(blocks.c.conversation == bindparam("conversation"), _in_turns)
# A separate statement, so that SQLite searches these rows by seq and those of the statement above by turn.
COUNT_TYPES_SINCE = COUNT_TYPES.where(blocks.c.seq > bindparam("head"))
COUNT_INHERITED_TYPES = _counted_types.join_from(
    segments, blocks, segments.c.owner == blocks.c.conversation
).where(
    segments.c.conversation == bindparam("conversation"),
    _in_turns,
    (blocks.c.seq + 0).between(segments.c.first, segments.c.last),
)

# Reading blocks and summaries.

_POSITION = (
    blocks.c.seq,
    blocks.c.turn,
    blocks.c.round,
    blocks.c.n,
    blocks.c.ts,
    blocks.c.term,
)
_BODY_BYTES = cast(blocks.c.body, LargeBinary).label("body")
"""The stored text as bytes: the digest and the decoder use the bytes, which saves creating a string."""
_IS_OWN_AFTER = and_(blocks.c.conversation == bindparam("owner"), blocks.c.seq > bindparam("after"))
_IS_IN_PART = and_(_IS_OWN_AFTER, blocks.c.seq <= bindparam("until"))
# `+ 0` hides the columns from the planner, which would otherwise scan the segment instead of looking up positions.
_IS_AT_POSITION = and_(
    blocks.c.conversation == bindparam("owner"),
    (blocks.c.seq + 0) > bindparam("after"),
    (blocks.c.seq + 0) <= bindparam("until"),
    _is_listed(blocks.c.seq, "positions"),
)
"""The condition that the block is in the segment, and its seq in `positions`, a JSON array."""


# The types in the parameter `types`, a JSON array, with the range of names of their subtypes: names are compared by
# code points, and `/` follows `.`.
_listed_types = _listed("types")
_types = (
    select(
        cast(_listed_types, Text).label("name"),
        cast(_listed_types, Text).concat(".").label("first"),
        cast(_listed_types, Text).concat("/").label("last"),
    )
    .cte("types")
    .prefix_with("MATERIALIZED")
)
_HAS_TYPE = or_(
    bindparam("types", type_=Text).is_(None),
    exists().where(
        or_(
            blocks.c.type == _types.c.name,
            and_(blocks.c.type >= _types.c.first, blocks.c.type < _types.c.last),
        )
    ),
)
"""The condition that the block has one of the `types` or a type below one; null matches every block."""
_IS_IN_TURN = blocks.c.turn == bindparam("turn")


_trimmed_name = func.rtrim(conversations.c.name, "0123456789.")
_IS_CHILD = and_(
    _trimmed_name != conversations.c.name,
    func.length(_trimmed_name) > len("~c"),
    func.substr(_trimmed_name, func.length(_trimmed_name) - 1) == "~c",
)
"""The same condition as in `parent_name`: the name without its last digits and dots ends in `~c`."""

_exits = blocks.alias("ends")
_last_exit_turn = (
    select(_exits.c.turn)
    .where(_exits.c.conversation == conversations.c.id, _exits.c.type == "react.exit")
    .order_by(_exits.c.seq.desc())
    .limit(1)
    .scalar_subquery()
)
_WAS_ACTIVE = (
    or_(bindparam("after", type_=Integer).is_(None), blocks.c.ts > bindparam("after")),
    or_(bindparam("before", type_=Integer).is_(None), blocks.c.ts < bindparam("before")),
)


def _matches_parameter(column: Column[Any]) -> ColumnElement[bool]:
    """Return the condition that the column equals the parameter with its name; null matches every value."""
    return or_(bindparam(column.name, type_=Text).is_(None), column == bindparam(column.name))


_selected = select(
    *_POSITION, blocks.c.type, blocks.c.version, _BODY_BYTES, blocks.c.blob, blocks.c.digest
).limit(bindparam("limit", type_=Integer))
_in_part = _selected.where(_IS_IN_PART)
_typed = _in_part.where(_HAS_TYPE)
SELECT_SEGMENTS = (
    select(conversations.c.id, segments.c.owner, segments.c.first, segments.c.last)
    .join_from(conversations, segments, segments.c.conversation == conversations.c.id, isouter=True)
    .where(_IS_NAMED)
    .order_by(segments.c.last)
)
SELECT_BLOCKS = _in_part.order_by(blocks.c.seq)
SELECT_BLOCKS_OF_TYPES = _typed.order_by(blocks.c.seq)
SELECT_BLOCKS_OF_TURN = _typed.where(_IS_IN_TURN).order_by(blocks.c.seq)
SELECT_BLOCKS_FROM_END = _typed.where(
    or_(bindparam("turn", type_=Integer).is_(None), _IS_IN_TURN)
).order_by(blocks.c.seq.desc())
SELECT_BLOCKS_AT = _selected.where(_IS_AT_POSITION).order_by(blocks.c.seq)
_summaries = select(
    *_KEY,
    conversations.c.uid,
    blocks.c.seq,
    conversations.c.turns,
    conversations.c.title,
    conversations.c.started_at,
    blocks.c.ts,
    func.coalesce(_last_inherited_seq, 0).label("inherited"),
).join_from(conversations, blocks, blocks.c.id == _NEWEST_BLOCK)
_listed_summaries = _summaries.where(~_IS_CHILD).order_by(blocks.c.ts.desc(), blocks.c.id.desc())
SELECT_SUMMARY = _summaries.where(_IS_NAMED)
SELECT_SUMMARIES = _listed_summaries.where(*map(_matches_parameter, _KEY[:3]), *_WAS_ACTIVE).limit(
    bindparam("limit", type_=Integer)
)
SELECT_UNFINISHED = _listed_summaries.where(
    conversations.c.id.in_(select(leases.c.conversation)),
    func.coalesce(_last_exit_turn, 0) < conversations.c.turns,
)
SELECT_DIGESTS = select(blocks.c.seq, blocks.c.digest).where(_IS_AT_POSITION)


# Leases.

SELECT_LEASE = select(leases.c.generation, leases.c.boot, leases.c.ends).where(
    leases.c.conversation == bindparam("row")
)
INSERT_LEASE = leases.insert()
_update_lease = leases.update().where(leases.c.conversation == bindparam("row"))
UPDATE_LEASE = _update_lease.values(
    generation=bindparam("generation"), boot=bindparam("boot"), ends=bindparam("ends")
)
RENEW_LEASE = _update_lease.values(ends=bindparam("ends"))

# Forks.

_inherited = select(segments.c.owner, segments.c.first, segments.c.last).where(
    segments.c.conversation == bindparam("row")
)
SELECT_INHERITED = _inherited.order_by(segments.c.last)
_first_own_seq = (
    select(func.coalesce(func.max(segments.c.last), 0) + 1)
    .where(segments.c.conversation == bindparam("row"))
    .scalar_subquery()
)
# The segments that a conversation inherits up to a seq, then its own blocks up to that seq (as owner 0).
SELECT_SHOWN = union_all(
    _inherited.where(segments.c.first <= bindparam("seq")),
    select(
        literal(0, Integer).label("owner"),
        _first_own_seq.label("first"),
        bindparam("seq", type_=Integer).label("last"),
    ).where(_first_own_seq <= bindparam("seq")),
)
INSERT_SEGMENT = segments.insert()
# The ids of a conversation's rows rise with their seq, so the index by turn answers this without reading rows.
_last_block = (
    select(blocks.c.id)
    .where(blocks.c.conversation == bindparam("owner"), blocks.c.seq == bindparam("last"))
    .scalar_subquery()
)
SELECT_NEWEST_TURN = (
    select(blocks.c.turn)
    .where(blocks.c.conversation == bindparam("owner"), blocks.c.id <= _last_block)
    .order_by(blocks.c.turn.desc())
    .limit(1)
)
SELECT_ORIGIN = select(conversations.c.title, conversations.c.started_at).where(
    conversations.c.id == bindparam("row")
)
SELECT_FORKS = (
    select(conversations.c.id, conversations.c.name)
    .where(
        conversations.c.id.in_(
            select(segments.c.conversation).where(segments.c.owner == bindparam("owner"))
        )
    )
    .order_by(_last_inherited_seq.desc(), conversations.c.id.desc())
)
SELECT_KEY: Query = select(*_KEY).where(conversations.c.id == bindparam("row"))
# Names with the same beginning are neighbours in the index: all `~c…` are between `~c` and `~d`.
SELECT_NAMED_BETWEEN = (
    select(conversations.c.id, conversations.c.name)
    .where(
        *(column == bindparam(column.name) for column in _KEY[:-1]),
        conversations.c.name > bindparam("begin"),
        conversations.c.name < bindparam("end"),
        ~exists().where(tombstones.c.conversation == conversations.c.id),
    )
    .order_by(conversations.c.id)
)

# Forgetting.

INSERT_TOMBSTONE = tombstones.insert()
INSERT_PURGES = purges.insert().from_select(
    ["blob"],
    select(blocks.c.blob)
    .where(
        blocks.c.conversation == bindparam("row"),
        blocks.c.blob.is_not(None),
        ~exists().where(purges.c.blob == blocks.c.blob),
    )
    .distinct(),
)
DELETE_CONTENT = tuple(
    table.delete().where(table.c.conversation == bindparam("row"))
    for table in (blocks, appends, segments)
)
CLEAR_CONVERSATION = _update_conversation(title="", started_at=0, term=conversations.c.term + 1)
SELECT_PURGEABLE = select(purges.c.blob).where(~exists().where(blocks.c.blob == purges.c.blob))
DELETE_PURGES = purges.delete()
# A forgotten conversation is listed in `meta` until its traces outside of the store are removed too.
SELECT_FORGETTING: Query = (
    select(*_KEY)
    .select_from(meta.join(conversations, conversations.c.id == cast(meta.c.value, Integer)))
    .where(meta.c.key > bindparam("begin"), meta.c.key < bindparam("end"))
    .order_by(conversations.c.id)
)
SELECT_SCHEDULED: Query = (
    select(*_KEY, meta.c.value)
    .select_from(
        meta.join(
            conversations,
            conversations.c.id
            == cast(func.replace(meta.c.key, bindparam("begin"), literal_column("''")), Integer),
        )
    )
    .where(meta.c.key > bindparam("begin"), meta.c.key < bindparam("end"))
)
# Wake-ups of workers. The ids of rows grow in the order of commits, as there is one writer at a time.

SELECT_LAST_ID = select(func.coalesce(func.max(blocks.c.id), 0))
SELECT_INPUTS_AFTER: Query = (
    select(*_KEY)
    .join_from(blocks, conversations, blocks.c.conversation == conversations.c.id)
    .where(
        blocks.c.id > bindparam("last"),
        or_(
            blocks.c.type.in_(
                [
                    literal_column(f"'{kind}'")
                    for kind in ("user.prompt", "user.answer", "user.retry", "user.schedule")
                ]
            ),
            and_(
                blocks.c.type == literal_column("'turn.header'"),
                # The `_` stands for a colon, which would begin a parameter.
                blocks.c.body.like(literal_column("'%\"handed_over\"_true%'")),
            ),
        ),
    )
    .distinct()
)
SELECT_REFERENCED_BLOBS = select(blocks.c.blob).where(blocks.c.blob.is_not(None)).distinct()

# Audits.

SELECT_CONVERSATIONS: Query = (
    select(conversations.c.id, *_KEY, tombstones.c.at)
    .select_from(_WITH_TOMBSTONES)
    .order_by(conversations.c.id)
)
SELECT_CONVERSATION = SELECT_CONVERSATIONS.where(_IS_NAMED)
SELECT_LINKS: Query = (
    select(
        blocks.c.id,
        *_POSITION,
        blocks.c.version,
        cast(blocks.c.type, LargeBinary).label("type"),
        _BODY_BYTES,
        blocks.c.blob,
        blocks.c.digest,
    )
    .where(_IS_OWN_AFTER)
    .order_by(blocks.c.seq)
    .limit(bindparam("limit", type_=Integer))
)

# The tables in the order in which they are created, each with its indexes.
CREATE_TABLES = {
    table.name: (
        CreateTable(table),
        *map(CreateIndex, sorted(table.indexes, key=lambda index: str(index.name))),
    )
    for table in tables.sorted_tables
}
