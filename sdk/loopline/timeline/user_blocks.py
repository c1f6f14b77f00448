"""The blocks of some types in all conversations of a user, such as facts and approval rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loopline.timeline.blocks import Block, BodyUnion
from loopline.timeline.bodies import Imported
from loopline.timeline.log import ConversationKey, ConversationSummary, TimelineLog

_IMPORTS = BodyUnion[Imported](Imported)


@dataclass(slots=True)
class _ReadBlocks:
    uid: str
    head: int
    blocks: list[Block]


class UserBlocks:
    """Reads the blocks of some types, and keeps them, so that a further call reads only later blocks.

    Blocks that were imported are left out, because their author may be a stranger.
    """

    def __init__(self, log: TimelineLog, types: Sequence[str]) -> None:
        self._log = log
        self._types = [*types, Imported.type]
        self._read: dict[ConversationKey, _ReadBlocks] = {}

    async def of_user(
        self, *, user: str, project: str, tenant: str
    ) -> list[tuple[ConversationKey, Block]]:
        """Return the blocks in all conversations of a user, each with its conversation."""
        summaries = await self._log.conversations(user=user, project=project, tenant=tenant)
        return [
            (summary.conversation, block)
            for summary in summaries
            for block in await self._of_conversation(summary)
        ]

    async def _of_conversation(self, summary: ConversationSummary) -> Sequence[Block]:
        key = summary.conversation
        kept = self._read.get(key)
        if kept is None or kept.uid != summary.uid:
            kept = _ReadBlocks(summary.uid, 0, [])
        if kept.head < summary.head:
            blocks = await self._log.read(key, after=kept.head, types=self._types)
            head = max([summary.head, *(block.seq for block in blocks)])
            kept = _ReadBlocks(summary.uid, head, _drop_imported([*kept.blocks, *blocks]))
        self._read[key] = kept
        return kept.blocks


def _drop_imported(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks after the last import."""
    own: list[Block] = []
    for block in blocks:
        if _IMPORTS.has(block.body):
            own.clear()
        else:
            own.append(block)
    return own
