"""The inbox of a conversation: what its user says while a turn runs, kept before anybody hears it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loopline.conversations.child_runs import check_own
from loopline.errors import LooplineError
from loopline.files import with_unique_names
from loopline.models import well_formed
from loopline.timeline import (
    Block,
    Body,
    ConversationKey,
    Entry,
    Feedback,
    RoundStart,
    TimelineLog,
    UserAttachment,
    UserFollowup,
    UserRecalled,
    UserSteer,
    check_body,
    open_timeline,
    turn_id,
)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the user said is in the log, at this place."""

    seq: int
    turn: int

    @property
    def turn_id(self) -> str:
        """The turn as refs name it."""
        return turn_id(self.turn)


class InterruptQueue:
    """What was said waits in the log until one round takes it, or it is recalled, whichever comes first.

    `steered` is called when the turn that runs here should look at once; `seen` gives the last place that
    was read here, None when nothing was.
    """

    def __init__(
        self,
        log: TimelineLog,
        conversation: ConversationKey,
        *,
        steered: Callable[[], None],
        last_seq: Callable[[], int | None],
    ) -> None:
        self._log = log
        self._conversation = conversation
        self._steered = steered
        self._last_seq = last_seq

    async def followup(self, text: str, files: Sequence[UserAttachment] = ()) -> Receipt:
        """Add something, which the running turn answers to as well, or else the next one.

        Raises:
            LooplineError: the conversation has not begun.
        """
        turn = await self._newest("there is nothing to follow up: say something first")
        return await self._add(UserFollowup(text=checked_text(text)), turn, files)

    async def steer(self, text: str, files: Sequence[UserAttachment] = ()) -> Receipt:
        """Have the running turn go another way: what it is writing or looking up is cut off for this.

        Raises:
            LooplineError: the conversation has not begun.
        """
        turn = await self._newest("there is nothing to steer: say something first")
        receipt = await self._add(UserSteer(text=checked_text(text)), turn, files)
        self._steered()
        return receipt

    async def recall(self, receipt: Receipt) -> bool:
        """Take back what was said, unless a round has taken it; whether it was taken back."""
        receipt_of_recall = await self.append(UserRecalled(said=receipt.seq), receipt.turn)
        for block in await self._log.read(self._conversation, after=receipt.seq):
            match block.body:
                case UserRecalled(said=receipt.seq):
                    return block.seq == receipt_of_recall.seq  # else it was taken back before
                case RoundStart(takes=takes) if receipt.seq in takes:
                    return False
                case _:
                    pass
        return False

    async def pending(self) -> Sequence[Block]:
        """What no round has taken yet and nobody has recalled, in order."""
        timeline = await open_timeline(self._log, self._conversation)
        return list(timeline.pending.values())

    async def _add(self, body: Body, turn: int, files: Sequence[UserAttachment]) -> Receipt:
        """Keep it, with files whose names nothing in the turn has."""
        if files:
            attached = await self._log.read(
                self._conversation, types=["user.attachment"], turn=turn
            )
            names = [
                block.body.name for block in attached if isinstance(block.body, UserAttachment)
            ]
            files = with_unique_names(files, names)
        return await self.append(body, turn, files)

    async def append(self, body: Body, turn: int, files: Sequence[UserAttachment] = ()) -> Receipt:
        """Keep what a user may say at any time, and the files that come with it, all of it or nothing.

        It is in the log when this returns.

        Raises:
            LooplineError: this is a child run, which may only be judged.
        """
        check_body(body)
        if not isinstance(body, Feedback):
            check_own(self._conversation)
        last_seq = self._last_seq()
        if last_seq is None:
            summary = await self._log.find(self._conversation)
            last_seq = summary.head if summary else 0
        entries = [Entry(body=entry_body, turn=turn) for entry_body in (body, *files)]
        blocks = await self._log.append(self._conversation, entries, seen=last_seq)
        block = blocks[-len(entries)]
        return Receipt(block.seq, block.turn)

    async def _newest(self, otherwise: str) -> int:
        summary = await self._log.find(self._conversation)
        if summary is None:
            raise LooplineError(otherwise)
        return summary.turns


def checked_text(text: str) -> str:
    """The text, when it says something.

    Raises:
        LooplineError: it is empty.
    """
    if not text.strip():
        raise LooplineError("there is nothing in it: say something")
    return well_formed(text)
