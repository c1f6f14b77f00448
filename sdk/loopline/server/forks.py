"""The forks of a conversation as a tree, which is found by the blocks that they share."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from loopline.timeline import (
    Block,
    BodyUnion,
    ConversationKey,
    ConversationSummary,
    RoundStart,
    TimelineLog,
    iso_time,
)

FAMILY = 200
"""The most conversations of a tree; those that were active first are left out."""
_STARTS = BodyUnion[RoundStart](RoundStart)


class ForkRow(BaseModel):
    """A conversation of a tree.

    `parent` is the conversation whose blocks up to `seq` it has; both are empty or 0 for the root. `turn_id` and `round` are
    those of its first own round, and `model` is the model of that round.
    """

    conversation: str
    parent: str = ""
    seq: int = 0
    turn_id: str = ""
    round: int = 0
    model: str = ""
    turns: int
    head: int
    last_activity_at: str


class ForksAnswer(BaseModel):
    """The conversations of a tree of forks, those that inherit the fewest blocks first."""

    items: list[ForkRow]


async def read_forks(log: TimelineLog, summary: ConversationSummary) -> ForksAnswer:
    """Return the tree that a conversation is part of.

    A fork begins with the first block of its parent, so all conversations of a tree have the same start time. The parent of a
    fork is the conversation that wrote the last block that the fork inherits.
    """
    key = summary.conversation
    listed = await log.conversations(user=key.user, project=key.project, tenant=key.tenant)
    family = [item for item in listed if item.started_at == summary.started_at][:FAMILY]
    family.sort(key=lambda item: (item.inherited, item.conversation.name))
    return ForksAnswer(items=[await _row(log, item, family) for item in family])


async def _row(
    log: TimelineLog, summary: ConversationSummary, family: Sequence[ConversationSummary]
) -> ForkRow:
    key, seq = summary.conversation, summary.inherited
    row = ForkRow(
        conversation=key.name,
        turns=summary.turns,
        head=summary.head,
        last_activity_at=iso_time(summary.last_activity_at),
    )
    if not seq:
        return row
    last = await _block(log, key, seq)
    for candidate in family:
        is_possible = candidate.inherited < seq <= candidate.head and candidate.uid != summary.uid
        if is_possible and await _block(log, candidate.conversation, seq) == last:
            row.parent, row.seq = candidate.conversation.name, seq
            break
    starts = await log.read(key, after=seq, limit=1, types=["react.round.start"])
    for block, start in _STARTS.among(starts):
        row.turn_id, row.round, row.model = block.turn_id, block.round, start.model
    return row


async def _block(log: TimelineLog, key: ConversationKey, seq: int) -> Block | None:
    blocks = await log.read(key, after=seq - 1, limit=1)
    return blocks[0] if blocks else None
