"""What lies before the blocks that a conversation was opened with: read when somebody asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopline.refs import ArtifactRef, BlockRef, CallRef, FileRef, PlanRef, Ref, SummaryRef
from loopline.timeline.blocks import Block
from loopline.timeline.log import ConversationKey, TimelineLog
from loopline.timeline.timeline import Timeline, turn_number


@dataclass(slots=True)
class _Read:
    whole: Timeline | None = None


class Past:
    """Older blocks of a conversation, as far as a timeline of it goes.

    What was read whole is kept with the timeline, so that it is read once.
    """

    def __init__(self, log: TimelineLog, conversation: ConversationKey, timeline: Timeline) -> None:
        self._log = log
        self._conversation = conversation
        self._timeline = timeline
        self._read = timeline.folded(_Read, "past", _Read)

    async def whole(self) -> Timeline:
        """The conversation from its first block on."""
        held, base = self._timeline, self._timeline.base
        if not base.covers:
            return held
        whole = self._read.whole
        if whole is None:
            found = await self._log.read(self._conversation, limit=base.covers)
            whole = self._read.whole = Timeline(found)
        whole.extend(held.after(whole.seq))
        return whole

    async def holding(self, ref: Ref) -> Timeline:
        """A timeline in which `find` finds what it finds in the whole."""
        match ref:
            case BlockRef(turn_id=turn_id) | CallRef(turn_id=turn_id):
                return await self._with(turn_number(turn_id))
            case (
                ArtifactRef(turn_id=turn_id)
                | SummaryRef(turn_id=turn_id)
                | FileRef(turn_id=turn_id)
            ):
                return await self._with(turn_number(turn_id))
            case PlanRef() if self._timeline.find(ref) is None:
                return Timeline(await self.of_type("react.plan"))
            case _:
                return self._timeline

    async def of_type(self, kind: str) -> Sequence[Block]:
        """Return every block of a stored type, oldest first."""
        held = self._timeline
        if not held.base.covers:
            return [block for block in held.blocks if block.type == kind]
        found = await self._log.read(self._conversation, types=[kind])
        return [block for block in found if block.seq <= held.seq]

    async def _with(self, turn: int) -> Timeline:
        """A timeline in which that turn is whole."""
        held = self._timeline
        if not held.base.covers or held.has_whole(turn):
            return held
        if self._read.whole is not None:
            return await self.whole()
        found = await self._log.read(self._conversation, turn=turn)
        return Timeline(block for block in found if block.seq <= held.seq)
