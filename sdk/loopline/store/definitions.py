"""The tables of the store, and every SQL statement, as SQLAlchemy Core constructs that a dialect compiles.

They are compiled for SQLite into the module `statements`, which the stores import, because importing SQLAlchemy takes
longer than reading a conversation. The module `postgres_statements` translates them for PostgreSQL.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.types import TypeEngine

tables: sa.MetaData = sa.MetaData()


def _make_columns(kind: type[TypeEngine[Any]], *names: str) -> list[sa.Column[Any]]:
    """Return columns of that type that cannot be null."""
    return [sa.Column(name, kind, nullable=False) for name in names]


meta: sa.Table = sa.Table(
    "meta",
    tables,
    sa.Column("key", sa.Text, primary_key=True),
    *_make_columns(sa.Text, "value"),
)

conversations: sa.Table = sa.Table(
    "conversations",
    tables,
    sa.Column("id", sa.Integer, primary_key=True),
    *_make_columns(sa.Text, "tenant", "project", "user", "name"),
    sa.Column("uid", sa.Text, nullable=False, unique=True),
    *_make_columns(sa.Text, "title"),
    *_make_columns(sa.Integer, "turns", "term", "started_at"),
    sa.UniqueConstraint("tenant", "project", "user", "name"),
    sa.CheckConstraint("id > 0"),
)

# Times are milliseconds since 1970 in UTC. The primary key is the rowid: with rows of 1 KB a table WITHOUT ROWID is
# three times as large. `digest` is the digest in the chain (`timeline.chain`), `bytes` the size of all bodies of the
# conversation up to this row. Ids below 1 are refused, because a trigger sees -1 as the id of a new row.
blocks: sa.Table = sa.Table(
    "blocks",
    tables,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("conversation", sa.Integer, sa.ForeignKey("conversations.id"), nullable=False),
    *_make_columns(sa.Integer, "seq", "turn", "round", "n", "ts", "term"),
    *_make_columns(sa.Text, "type"),
    *_make_columns(sa.Integer, "version"),
    *_make_columns(sa.Text, "body"),
    sa.Column("blob", sa.Text),
    sa.Column("digest", sa.LargeBinary),
    sa.Column("bytes", sa.Integer),
    sa.UniqueConstraint("conversation", "seq"),
    sa.CheckConstraint("id > 0"),
)
sa.Index("blocks_by_turn", blocks.c.conversation, blocks.c.turn)
sa.Index(
    "blocks_by_blob",
    blocks.c.blob,
    sqlite_where=blocks.c.blob.is_not(None),
)

appends: sa.Table = sa.Table(
    "appends",
    tables,
    sa.Column("conversation", sa.Integer, sa.ForeignKey("conversations.id"), primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    *_make_columns(sa.Integer, "last_seq"),
    sqlite_with_rowid=False,
)

# The blocks that a fork inherits: the blocks from `first` to `last` of each owner.
segments: sa.Table = sa.Table(
    "segments",
    tables,
    sa.Column("conversation", sa.Integer, sa.ForeignKey("conversations.id"), primary_key=True),
    sa.Column("last", sa.Integer, primary_key=True),
    *_make_columns(sa.Integer, "first"),
    sa.Column("owner", sa.Integer, sa.ForeignKey("conversations.id"), nullable=False),
    sqlite_with_rowid=False,
)
sa.Index("segments_by_owner", segments.c.owner)

tombstones: sa.Table = sa.Table(
    "tombstones",
    tables,
    sa.Column("conversation", sa.Integer, sa.ForeignKey("conversations.id"), primary_key=True),
    *_make_columns(sa.Integer, "at"),
)

# The blobs of forgotten conversations that have not been removed yet.
purges: sa.Table = sa.Table("purges", tables, sa.Column("blob", sa.Text, primary_key=True))

# The leases of runners. `ends` is in milliseconds since the boot of the machine.
leases: sa.Table = sa.Table(
    "leases",
    tables,
    sa.Column("conversation", sa.Integer, sa.ForeignKey("conversations.id"), primary_key=True),
    *_make_columns(sa.Integer, "generation"),
    *_make_columns(sa.Text, "boot"),
    *_make_columns(sa.Integer, "ends"),
)


Query = sa.Select[*tuple[Any, ...]]

# Values about the store itself.


def _is_listed(column: sa.Column[Any], name: str) -> sa.ColumnElement[bool]:
    """Return the condition that the column is in the parameter with that name, a JSON array."""
    return column.in_(sa.select(_listed(name)))


def _listed(name: str) -> sa.ColumnElement[Any]:
    """Return the column of the values in the parameter with that name, a JSON array."""
    return sa.func.json_each(sa.bindparam(name)).table_valued("value").c.value


SELECT_META = sa.select(meta.c.value).where(meta.c.key == sa.bindparam("key"))
INSERT_META = meta.insert()
DELETE_META = meta.delete().where(meta.c.key == sa.bindparam("name"))

# One conversation.

_KEY = (
    conversations.c.tenant,
    conversations.c.project,
    conversations.c.user,
    conversations.c.name,
)
_IS_NAMED = sa.and_(*(column == sa.bindparam(column.name) for column in _KEY))
"""The condition that the row is the conversation with this key."""

_newest = blocks.alias("newest")
_newest_own = (
    sa.select(_newest.c.id)
    .where(_newest.c.conversation == conversations.c.id)
    .order_by(_newest.c.seq.desc())
    .limit(1)
    .scalar_subquery()
)
_shown = blocks.alias("shown")
_newest_inherited = (
    sa.select(_shown.c.id)
    .join_from(
        segments,
        _shown,
        sa.and_(_shown.c.conversation == segments.c.owner, _shown.c.seq == segments.c.last),
    )
    .where(segments.c.conversation == conversations.c.id)
    .order_by(segments.c.last.desc())
    .limit(1)
    .scalar_subquery()
)
_NEWEST_BLOCK = sa.func.coalesce(_newest_own, _newest_inherited)
"""The id of the last block of a conversation, which may be an inherited block."""

_head = (
    sa.select(sa.func.max(blocks.c.seq))
    .where(blocks.c.conversation == conversations.c.id)
    .scalar_subquery()
)
_last_inherited_seq = (
    sa.select(sa.func.max(segments.c.last))
    .where(segments.c.conversation == conversations.c.id)
    .scalar_subquery()
)
_WITH_TOMBSTONES = conversations.outerjoin(
    tombstones, tombstones.c.conversation == conversations.c.id
)
_head_row = blocks.alias("head_row")
_states: Query = (
    sa.select(
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
SELECT_HEADS = sa.select(conversations.c.id, conversations.c.term, _head).where(
    _is_listed(conversations.c.id, "rows")
)
SELECT_ID: Query = sa.select(conversations.c.id).where(_IS_NAMED)
SELECT_FORGOTTEN_AT = (
    sa.select(tombstones.c.at)
    .join_from(tombstones, conversations, tombstones.c.conversation == conversations.c.id)
    .where(_IS_NAMED)
)
INSERT_CONVERSATION = (
    conversations.insert()
    .values(**{column.name: sa.bindparam(column.name) for column in (*_KEY, conversations.c.uid)})
    .values(title="", turns=0, term=0, started_at=0)
    .returning(conversations.c.id)
)


def _update_conversation(**columns: sa.ColumnElement[Any] | str | int) -> sa.Update:
    return conversations.update().where(conversations.c.id == sa.bindparam("row")).values(**columns)


UPDATE_START = _update_conversation(
    turns=sa.bindparam("turns"), title=sa.bindparam("title"), started_at=sa.bindparam("started")
)
UPDATE_TURNS = _update_conversation(turns=sa.bindparam("turns"))
UPDATE_TERM = _update_conversation(term=sa.bindparam("term"))

# Appends.

_block_values: dict[str, sa.ColumnElement[Any]] = {
    column.name: sa.bindparam(column.name) for column in blocks.c if column is not blocks.c.id
}
INSERT_BLOCK = blocks.insert().values(
    {**_block_values, "blob": sa.func.nullif(sa.bindparam("blob"), sa.literal_column("''"))}
)
INSERT_APPEND = appends.insert()
SELECT_APPEND = sa.select(appends.c.last_seq).where(
    appends.c.conversation == sa.bindparam("conversation"), appends.c.key == sa.bindparam("key")
)
SELECT_TURNS = (
    sa.select(appends.c.key, blocks.c.turn)
    .join_from(
        appends,
        blocks,
        sa.and_(
            blocks.c.conversation == appends.c.conversation, blocks.c.seq == appends.c.last_seq
        ),
    )
    .where(
        appends.c.conversation == sa.bindparam("conversation"),
        _is_listed(appends.c.key, "keys"),
    )
)
_in_turns = _is_listed(blocks.c.turn, "turns")
_counted_types = sa.select(blocks.c.turn, blocks.c.type, sa.func.count()).group_by(
    blocks.c.turn, blocks.c.type
)
COUNT_TYPES = _counted_types.where(blocks.c.conversation == sa.bindparam("conversation"), _in_turns)
# A separate statement, so that SQLite searches these rows by seq and those of the statement above by turn.
COUNT_TYPES_SINCE = COUNT_TYPES.where(blocks.c.seq > sa.bindparam("head"))
COUNT_INHERITED_TYPES = _counted_types.join_from(
    segments, blocks, segments.c.owner == blocks.c.conversation
).where(
    segments.c.conversation == sa.bindparam("conversation"),
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
_BODY_BYTES = sa.cast(blocks.c.body, sa.LargeBinary).label("body")
"""The stored text as bytes: the digest and the decoder use the bytes, which saves creating a string."""
_IS_OWN_AFTER = sa.and_(
    blocks.c.conversation == sa.bindparam("owner"), blocks.c.seq > sa.bindparam("after")
)
_IS_IN_PART = sa.and_(_IS_OWN_AFTER, blocks.c.seq <= sa.bindparam("until"))
# `+ 0` hides the columns from the planner, which would otherwise scan the segment instead of looking up positions.
_IS_AT_POSITION = sa.and_(
    blocks.c.conversation == sa.bindparam("owner"),
    (blocks.c.seq + 0) > sa.bindparam("after"),
    (blocks.c.seq + 0) <= sa.bindparam("until"),
    _is_listed(blocks.c.seq, "positions"),
)
"""The condition that the block is in the segment, and its seq in `positions`, a JSON array."""


# The types in the parameter `types`, a JSON array, with the range of names of their subtypes: names are compared by
# code points, and `/` follows `.`.
_listed_types = _listed("types")
_types = (
    sa.select(
        sa.cast(_listed_types, sa.Text).label("name"),
        sa.cast(_listed_types, sa.Text).concat(".").label("first"),
        sa.cast(_listed_types, sa.Text).concat("/").label("last"),
    )
    .cte("types")
    .prefix_with("MATERIALIZED")
)
_HAS_TYPE = sa.or_(
    sa.bindparam("types", type_=sa.Text).is_(None),
    sa.exists().where(
        sa.or_(
            blocks.c.type == _types.c.name,
            sa.and_(blocks.c.type >= _types.c.first, blocks.c.type < _types.c.last),
        )
    ),
)
"""The condition that the block has one of the `types` or a type below one; null matches every block."""
_IS_IN_TURN = blocks.c.turn == sa.bindparam("turn")


_trimmed_name = sa.func.rtrim(conversations.c.name, "0123456789.")
_IS_CHILD = sa.and_(
    _trimmed_name != conversations.c.name,
    sa.func.length(_trimmed_name) > len("~c"),
    sa.func.substr(_trimmed_name, sa.func.length(_trimmed_name) - 1) == "~c",
)
"""The same condition as in `parent_name`: the name without its last digits and dots ends in `~c`."""

_exits = blocks.alias("ends")
_last_exit_turn = sa.func.coalesce(
    sa.select(_exits.c.turn)
    .where(_exits.c.conversation == conversations.c.id, _exits.c.type == "react.exit")
    .order_by(_exits.c.seq.desc())
    .limit(1)
    .correlate(conversations)
    .scalar_subquery(),
    0,
)
_prompts = blocks.alias("prompts")
_turn_blocks = blocks.alias("others")
_of_turn = sa.and_(
    _turn_blocks.c.conversation == _prompts.c.conversation, _turn_blocks.c.turn == _prompts.c.turn
)
_seq = sa.cast(_prompts.c.seq, sa.Text)
_recall = sa.literal_column("""'{"said":'""", sa.Text) + _seq + sa.literal_column("'}'", sa.Text)
# How many turns after the last exit never started, because their prompts were recalled.
_recalled_turns = (
    sa.select(sa.func.count())
    .where(
        _prompts.c.conversation == conversations.c.id,
        _prompts.c.turn > _last_exit_turn,
        _prompts.c.type == "user.prompt",
        sa.exists().where(
            _of_turn, _turn_blocks.c.type == "user.recalled", _turn_blocks.c.body == _recall
        ),
        ~sa.exists().where(_of_turn, _turn_blocks.c.type == "turn.header"),
    )
    .scalar_subquery()
)
_WAS_ACTIVE = (
    sa.or_(sa.bindparam("after", type_=sa.Integer).is_(None), blocks.c.ts > sa.bindparam("after")),
    sa.or_(
        sa.bindparam("before", type_=sa.Integer).is_(None), blocks.c.ts < sa.bindparam("before")
    ),
)


def _matches_parameter(column: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Return the condition that the column equals the parameter with its name; null matches every value."""
    return sa.or_(
        sa.bindparam(column.name, type_=sa.Text).is_(None), column == sa.bindparam(column.name)
    )


_selected = sa.select(
    *_POSITION, blocks.c.type, blocks.c.version, _BODY_BYTES, blocks.c.blob, blocks.c.digest
).limit(sa.bindparam("limit", type_=sa.Integer))
_in_part = _selected.where(_IS_IN_PART)
_typed = _in_part.where(_HAS_TYPE)
SELECT_SEGMENTS = (
    sa.select(conversations.c.id, segments.c.owner, segments.c.first, segments.c.last)
    .join_from(conversations, segments, segments.c.conversation == conversations.c.id, isouter=True)
    .where(_IS_NAMED)
    .order_by(segments.c.last)
)
SELECT_BLOCKS = _in_part.order_by(blocks.c.seq)
SELECT_BLOCKS_OF_TYPES = _typed.order_by(blocks.c.seq)
SELECT_BLOCKS_OF_TURN = _typed.where(_IS_IN_TURN).order_by(blocks.c.seq)
SELECT_BLOCKS_FROM_END = _typed.where(
    sa.or_(sa.bindparam("turn", type_=sa.Integer).is_(None), _IS_IN_TURN)
).order_by(blocks.c.seq.desc())
SELECT_BLOCKS_AT = _selected.where(_IS_AT_POSITION).order_by(blocks.c.seq)
_summaries = sa.select(
    *_KEY,
    conversations.c.uid,
    blocks.c.seq,
    conversations.c.turns,
    conversations.c.title,
    conversations.c.started_at,
    blocks.c.ts,
    sa.func.coalesce(_last_inherited_seq, 0).label("inherited"),
).join_from(conversations, blocks, blocks.c.id == _NEWEST_BLOCK)
_listed_summaries = _summaries.where(~_IS_CHILD).order_by(blocks.c.ts.desc(), blocks.c.id.desc())
SELECT_SUMMARY = _summaries.where(_IS_NAMED)
SELECT_SUMMARIES = _listed_summaries.where(*map(_matches_parameter, _KEY[:3]), *_WAS_ACTIVE).limit(
    sa.bindparam("limit", type_=sa.Integer)
)
SELECT_UNFINISHED = _listed_summaries.where(
    conversations.c.id.in_(sa.select(leases.c.conversation)),
    _last_exit_turn < conversations.c.turns,  # most conversations end here, without the next count
    _last_exit_turn + _recalled_turns < conversations.c.turns,
)
SELECT_DIGESTS = sa.select(blocks.c.seq, blocks.c.digest).where(_IS_AT_POSITION)


# Leases.

SELECT_LEASE = sa.select(leases.c.generation, leases.c.boot, leases.c.ends).where(
    leases.c.conversation == sa.bindparam("row")
)
INSERT_LEASE = leases.insert()
_update_lease = leases.update().where(leases.c.conversation == sa.bindparam("row"))
UPDATE_LEASE = _update_lease.values(
    generation=sa.bindparam("generation"), boot=sa.bindparam("boot"), ends=sa.bindparam("ends")
)
RENEW_LEASE = _update_lease.values(ends=sa.bindparam("ends"))

# Forks.

_inherited = sa.select(segments.c.owner, segments.c.first, segments.c.last).where(
    segments.c.conversation == sa.bindparam("row")
)
SELECT_INHERITED = _inherited.order_by(segments.c.last)
_first_own_seq = (
    sa.select(sa.func.coalesce(sa.func.max(segments.c.last), 0) + 1)
    .where(segments.c.conversation == sa.bindparam("row"))
    .scalar_subquery()
)
# The segments that a conversation inherits up to a seq, then its own blocks up to that seq (as owner 0).
SELECT_SHOWN = sa.union_all(
    _inherited.where(segments.c.first <= sa.bindparam("seq")),
    sa.select(
        sa.literal(0, sa.Integer).label("owner"),
        _first_own_seq.label("first"),
        sa.bindparam("seq", type_=sa.Integer).label("last"),
    ).where(_first_own_seq <= sa.bindparam("seq")),
)
INSERT_SEGMENT = segments.insert()
# The ids of a conversation's rows rise with their seq, so the index by turn answers this without reading rows.
_last_block = (
    sa.select(blocks.c.id)
    .where(blocks.c.conversation == sa.bindparam("owner"), blocks.c.seq == sa.bindparam("last"))
    .scalar_subquery()
)
SELECT_NEWEST_TURN = (
    sa.select(blocks.c.turn)
    .where(blocks.c.conversation == sa.bindparam("owner"), blocks.c.id <= _last_block)
    .order_by(blocks.c.turn.desc())
    .limit(1)
)
SELECT_ORIGIN = sa.select(conversations.c.title, conversations.c.started_at).where(
    conversations.c.id == sa.bindparam("row")
)
SELECT_FORKS = (
    sa.select(conversations.c.id, conversations.c.name)
    .where(
        conversations.c.id.in_(
            sa.select(segments.c.conversation).where(segments.c.owner == sa.bindparam("owner"))
        )
    )
    .order_by(_last_inherited_seq.desc(), conversations.c.id.desc())
)
SELECT_KEY: Query = sa.select(*_KEY).where(conversations.c.id == sa.bindparam("row"))
# Names with the same beginning are neighbours in the index: all `~c…` are between `~c` and `~d`.
SELECT_NAMED_BETWEEN = (
    sa.select(conversations.c.id, conversations.c.name)
    .where(
        *(column == sa.bindparam(column.name) for column in _KEY[:-1]),
        conversations.c.name > sa.bindparam("begin"),
        conversations.c.name < sa.bindparam("end"),
        ~sa.exists().where(tombstones.c.conversation == conversations.c.id),
    )
    .order_by(conversations.c.id)
)

# Forgetting.

INSERT_TOMBSTONE = tombstones.insert()
INSERT_PURGES = purges.insert().from_select(
    ["blob"],
    sa.select(blocks.c.blob)
    .where(
        blocks.c.conversation == sa.bindparam("row"),
        blocks.c.blob.is_not(None),
        ~sa.exists().where(purges.c.blob == blocks.c.blob),
    )
    .distinct(),
)
DELETE_CONTENT = tuple(
    table.delete().where(table.c.conversation == sa.bindparam("row"))
    for table in (blocks, appends, segments)
)
CLEAR_CONVERSATION = _update_conversation(title="", started_at=0, term=conversations.c.term + 1)
SELECT_PURGEABLE = sa.select(purges.c.blob).where(
    ~sa.exists().where(blocks.c.blob == purges.c.blob)
)
DELETE_PURGES = purges.delete()
# A forgotten conversation is listed in `meta` until its traces outside of the store are removed too.
SELECT_FORGETTING: Query = (
    sa.select(*_KEY)
    .select_from(meta.join(conversations, conversations.c.id == sa.cast(meta.c.value, sa.Integer)))
    .where(meta.c.key > sa.bindparam("begin"), meta.c.key < sa.bindparam("end"))
    .order_by(conversations.c.id)
)
SELECT_SCHEDULED: Query = (
    sa.select(*_KEY, meta.c.value)
    .select_from(
        meta.join(
            conversations,
            conversations.c.id
            == sa.cast(
                sa.func.replace(meta.c.key, sa.bindparam("begin"), sa.literal_column("''")),
                sa.Integer,
            ),
        )
    )
    .where(meta.c.key > sa.bindparam("begin"), meta.c.key < sa.bindparam("end"))
)
# Wake-ups of workers. The ids of rows grow in the order of commits, as there is one writer at a time.

SELECT_LAST_ID = sa.select(sa.func.coalesce(sa.func.max(blocks.c.id), 0))
SELECT_INPUTS_AFTER: Query = (
    sa.select(*_KEY)
    .join_from(blocks, conversations, blocks.c.conversation == conversations.c.id)
    .where(
        blocks.c.id > sa.bindparam("last"),
        sa.or_(
            blocks.c.type.in_(
                [
                    sa.literal_column(f"'{kind}'")
                    for kind in ("user.prompt", "user.answer", "user.retry", "user.schedule")
                ]
            ),
            sa.and_(
                blocks.c.type == sa.literal_column("'turn.header'"),
                # The `_` stands for a colon, which would begin a parameter.
                blocks.c.body.like(sa.literal_column("'%\"handed_over\"_true%'")),
            ),
        ),
    )
    .distinct()
)
SELECT_REFERENCED_BLOBS = sa.select(blocks.c.blob).where(blocks.c.blob.is_not(None)).distinct()

# Audits.

SELECT_CONVERSATIONS: Query = (
    sa.select(conversations.c.id, *_KEY, tombstones.c.at)
    .select_from(_WITH_TOMBSTONES)
    .order_by(conversations.c.id)
)
SELECT_CONVERSATION = SELECT_CONVERSATIONS.where(_IS_NAMED)
SELECT_LINKS: Query = (
    sa.select(
        blocks.c.id,
        *_POSITION,
        blocks.c.version,
        sa.cast(blocks.c.type, sa.LargeBinary).label("type"),
        _BODY_BYTES,
        blocks.c.blob,
        blocks.c.digest,
    )
    .where(_IS_OWN_AFTER)
    .order_by(blocks.c.seq)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)

# The tables in the order in which they are created, each with its indexes.
CREATE_TABLES = {
    table.name: (
        CreateTable(table),
        *map(CreateIndex, sorted(table.indexes, key=lambda index: str(index.name))),
    )
    for table in tables.sorted_tables
}
