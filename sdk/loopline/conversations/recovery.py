"""Recovery: the unfinished turns of a store are resumed, each once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from loopline import timeline as tl
from loopline.conversations import turn_order
from loopline.conversations.schedule import MessageSchedule
from loopline.conversations.turns import Request, Turns
from loopline.errors import ConflictError, LooplineError
from loopline.react import result

_log = logging.getLogger("loopline")
RecoveryStatus = Literal["resumed", "waiting", "running", "skipped", "failed"]
REQUEST_SECONDS = 0.1
"""How long a message of this harness may be stored before its turn is requested here."""
MOST_UNBEGUN = 100
"""How many of the newest messages and begins of turns of a conversation are read to see whether a runner has begun one."""
_BEGINS = tl.BodyUnion[tl.TurnHeader | tl.Exit](tl.TurnHeader | tl.Exit)
NEVER_STARTED = (
    "no bundle has begun a turn here, so nobody knows which one was asked: resume it yourself"
)


@dataclass(frozen=True, slots=True)
class Recovery:
    """The outcome for one unfinished turn.

    `status` is "resumed" (with a `result`), "waiting" for the user to answer `result.pending`, "running" in another process,
    "skipped" or "failed" (with a `reason`). `bundle` is the id of the bundle that a skipped turn belongs to.
    """

    conversation: tl.ConversationKey
    turn_id: str
    status: RecoveryStatus
    result: tl.TurnResult[Any] | None = None
    reason: str = ""
    bundle: str = ""


class _NothingToResume(LooplineError):
    """Another process resumed or ended the turn after the conversation was read."""


class _CutOffAgain(LooplineError):
    """The turn was resumed once before, and that process has gone too."""


LeftTurns = dict[tl.ConversationKey, tuple[int, list[Recovery]]]
"""The outcomes of conversations where nothing could be done, with the seq of the last block then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoveries:
    """Resumes the unfinished turns of a harness's bundle in a store.

    With `unbegun_since` it also starts prompts that were sent since then and that no process has started.
    The conversations in `left` are not read again until they have a new block.
    """

    log: tl.TimelineLog
    turns: Turns
    left: LeftTurns
    on_outcome: Callable[[Recovery], None] | None
    unbegun_since: datetime | None = None

    async def carry_on(self, slots: asyncio.Semaphore) -> list[Recovery]:
        """Append due scheduled messages and resume all unfinished turns; each conversation uses one of the `slots`.

        Returns the outcomes in the order of their ends.

        Subscribers of a conversation receive a notice of each turn that is skipped, with the reason.
        An unexpected error of one turn is raised when all turns have ended.
        """
        outcomes: list[Recovery] = []
        due = await self._begin_scheduled()
        summaries = [*await self.log.unfinished()]
        if self.unbegun_since is not None:  # as after a kill right after the first message
            recent = await self.log.conversations(after=self.unbegun_since)
            summaries += [summary for summary in recent if await is_unbegun(self.log, summary)]
        listed = {summary.conversation for summary in summaries}
        summaries += [summary for summary in due if summary.conversation not in listed]
        for conversation in self.left.keys() - {summary.conversation for summary in summaries}:
            del self.left[conversation]
        work = [self._work(summary, slots, outcomes) for summary in summaries]
        # A fault in one leaves the others at their turns: whoever is cancelled ends its turn for good.
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if outcome is not None:
                raise outcome
        return outcomes

    async def _begin_scheduled(self) -> list[tl.ConversationSummary]:
        """Append the scheduled messages that are due, and return their conversations."""
        now, due = self.turns.clock.now(), list[tl.ConversationSummary]()
        for conversation, at in await self.log.scheduled():
            if at > now:
                break
            await self.begin_scheduled(conversation)
            summary = await self.log.find(conversation)
            due += [summary] if summary is not None else []
        return due

    async def begin_scheduled(self, conversation: tl.ConversationKey) -> datetime | None:
        """Append the scheduled messages of this bundle that are due, and return the time of its next one, None without one.

        An error is logged and None is returned, so that other turns of the conversation run.
        """
        schedule, order = MessageSchedule(self.log, conversation), self.turns.order()
        try:
            return await schedule.begin_due(self.turns.clock.now(), order.may_begin)
        except LooplineError as error:
            _log.warning("%r: scheduled messages were not begun: %s", conversation.name, error)
            return None

    async def _work(
        self, summary: tl.ConversationSummary, slots: asyncio.Semaphore, outcomes: list[Recovery]
    ) -> None:
        """Run the turns of a conversation in one slot until none is left or an outcome repeats; report each outcome.

        If the conversation is unchanged since its turns were left, their outcomes are reported again without a read.
        """
        async with slots:
            head, left = self.left.get(summary.conversation, (-1, []))
            if head == summary.head:
                for known in left:
                    self._tell(known, outcomes)
                return
            found: list[Recovery] = []
            while outcome := await self.run_next(summary):
                if outcome.turn_id in {known.turn_id for known in found}:
                    break
                found.append(outcome)
                self._tell(outcome, outcomes)
            if all(map(_lasts, found)):
                self.left[summary.conversation] = (summary.head, found)

    def _tell(self, outcome: Recovery, outcomes: list[Recovery]) -> None:
        """Add an outcome to `outcomes`, notify subscribers if the turn was skipped, and call `on_outcome`."""
        outcomes.append(outcome)
        if outcome.status == "skipped":
            self.turns.notify(
                outcome.conversation, f"{outcome.turn_id} is not run here: {outcome.reason}"
            )
        if self.on_outcome is not None:
            self.on_outcome(outcome)

    async def run_next(self, summary: tl.ConversationSummary) -> Recovery | None:
        """Resume the oldest unfinished turn, or begin the oldest queued one, and wait for its end.

        Returns the outcome, or None if the conversation has no such turn. If its blocks cannot be read, the outcome names
        the newest turn of the summary.

        An error is not raised: the outcome is "failed" with the reason, or "running" if another runner has the turn.
        """
        status: RecoveryStatus
        conversation, number = summary.conversation, summary.turns
        try:
            timeline = await self.turns.newest(conversation)
            turn = turn_order.turn_to_take(timeline, summary.inherited)
            if turn is None:
                return None
            number = turn.number
            prompt = turn.prompt.body if turn.prompt and turn.header is None else None
            is_own = isinstance(prompt, tl.UserPrompt) and prompt.sender == self.turns.sender
            if is_own and not self.turns.is_requested(conversation):
                # Its `say` may have stored it a moment ago, and requests it now.
                await asyncio.sleep(REQUEST_SECONDS)
            if self.turns.is_requested(conversation):
                raise ConflictError(f"conversation {conversation.name!r} is run here")
            outcome = await self._reason_to_leave(conversation, timeline, turn)
            return outcome or await self._resume(summary, number)
        except _NothingToResume:
            return None
        except _CutOffAgain as error:
            status, reason = "skipped", str(error)
        except ConflictError:
            status, reason = "running", ""
        except LooplineError as error:
            status, reason = "failed", str(error)
        return Recovery(conversation, tl.turn_id(number), status, reason=reason)

    async def _reason_to_leave(
        self, conversation: tl.ConversationKey, timeline: tl.Timeline, turn: tl.Turn
    ) -> Recovery | None:
        """Return the outcome of a turn that must not be resumed, None if it may be."""
        name = tl.turn_id(turn.number)
        if turn.is_paused:
            paused = result(timeline, turn.number, "paused")
            return Recovery(conversation, name, "waiting", paused)
        bundle = turn_order.bundle_of(timeline, turn)
        reason = await self.turns.order().refusal(timeline, turn) if bundle else NEVER_STARTED
        if not reason or (not bundle and self.unbegun_since is not None):
            return None
        return Recovery(conversation, name, "skipped", reason=reason, bundle=bundle)

    async def _resume(self, summary: tl.ConversationSummary, number: int) -> Recovery:
        """Run the turn under its lease and return its result; raise if it was run already or was cut off again.

        Raises:
            ConflictError: another process holds the lease.
        """
        conversation = summary.conversation

        async def choose(timeline: tl.Timeline) -> int:
            """Return the number of the turn if it is still unfinished under the lease."""
            turn = turn_order.turn_to_take(timeline, summary.inherited)
            if (
                turn is None
                or turn.number != number
                or await self._reason_to_leave(conversation, timeline, turn)
            ):
                raise _NothingToResume(f"{tl.turn_id(number)} is no longer left behind")
            if turn_order.is_cut_off_again(turn):
                # Known only by who holds the conversation: another process may be at it now.
                raise _CutOffAgain(turn_order.CUT_OFF_AGAIN)
            return number

        request = Request(conversation=conversation, choose=choose, wait=False, adopted=True)
        outcome = await self.turns.run(request)
        return Recovery(conversation, tl.turn_id(number), "resumed", outcome)


async def is_unbegun(log: tl.TimelineLog, summary: tl.ConversationSummary) -> bool:
    """Return whether the conversation has messages and no runner has begun a turn in it.

    What a fork shows of its parent, and what was imported, does not count.
    """
    types = ["user.prompt", "turn.header", "react.exit", "conv.imported"]
    blocks = await log.read(
        summary.conversation, after=summary.inherited, types=types, last=MOST_UNBEGUN
    )
    has_message = False
    for block in reversed(blocks):
        if isinstance(block.body, tl.Imported):
            break
        if _BEGINS.has(block.body):
            return False
        has_message = True
    return has_message


def _lasts(outcome: Recovery) -> bool:
    """Return whether the outcome can change only after a new block of the conversation."""
    return outcome.status in ("waiting", "skipped") and outcome.reason != NEVER_STARTED
