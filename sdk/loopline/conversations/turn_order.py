"""The order of turns: which harness runs a turn, and how earlier turns end.

A turn runs with the bundle through which its message was sent. A message that was sent after the question of a paused
turn ends that turn; a message that was sent before waits for the answer, and a stored answer is applied first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from loopline import timeline as tl
from loopline.errors import WrongBundle

MAX_RECOVERIES = 1
"""How often a turn is resumed unasked: one that ends its second process too may be the cause."""
CUT_OFF_AGAIN = "it was taken up before and cut off again: resume it yourself, or say something"
NOBODY = tl.Sender(bundle="")
"""The sender of a harness without a bundle, which runs no turn."""


@dataclass(frozen=True, slots=True)
class RunTurn:
    """An earlier turn runs first."""

    turn: tl.Turn


@dataclass(frozen=True, slots=True)
class EndTurn:
    """An unfinished turn ends as interrupted."""

    turn: tl.Turn


@dataclass(frozen=True, slots=True)
class WaitForTurn:
    """The requested turn waits until `sender` starts an earlier turn, or, if `sender` is None, until the user answers."""

    sender: tl.Sender | None = None


Step = RunTurn | EndTurn | WaitForTurn


@dataclass(slots=True)
class TurnOrder:
    """The order of turns as one request of a harness sees it.

    `absent` are harnesses that did not start their turn in time. `skipped` are turns that this harness may not run.
    """

    log: tl.TimelineLog
    own: tl.Sender
    absent: set[int] = field(default_factory=set[int])
    skipped: set[int] = field(default_factory=set[int])

    async def next_step(self, timeline: tl.Timeline, number: int, inherited: int) -> Step | None:
        """Return the step that precedes the turn of that number, None if it may run now.

        Messages up to the seq `inherited` come from the parent of a fork, so no sender waits for them.
        """
        turn = timeline.turn(number)
        if turn.prompt is None or turn.exit is not None:
            return None
        for unfinished_turn in timeline.unfinished:
            if unfinished_turn is not turn:
                return (
                    EndTurn(unfinished_turn)
                    if turn.header
                    else await self._before(timeline, unfinished_turn, turn)
                )
        if turn.header is not None:
            return None
        for queued in timeline.queued:
            if queued.number >= number or queued.number in self.skipped:
                continue
            if await self._is_elsewhere(queued, inherited):
                return WaitForTurn(sender_of(queued))
            if not await self.refusal(timeline, queued):
                return RunTurn(queued)
            self.skipped.add(queued.number)
        return WaitForTurn(sender_of(turn)) if await self._is_elsewhere(turn, inherited) else None

    async def _before(self, timeline: tl.Timeline, unfinished_turn: tl.Turn, turn: tl.Turn) -> Step:
        """Return the step for an unfinished turn before a new one: run it, end it, or wait for an answer."""
        seq, answers = turn.prompt.seq if turn.prompt else 0, unfinished_turn.new_answers
        is_first = unfinished_turn.asked_seq > seq or any(answered < seq for answered in answers)
        if unfinished_turn.stopped or unfinished_turn.inert:
            return EndTurn(unfinished_turn)
        if not unfinished_turn.pending or not is_first:
            return EndTurn(unfinished_turn)
        if not answers:
            return WaitForTurn()
        for answer in answers.values():
            if await self._is_present(answer.sender):
                return WaitForTurn(answer.sender)
        is_refused = unfinished_turn.number in self.skipped or await self.refusal(
            timeline, unfinished_turn
        )
        return EndTurn(unfinished_turn) if is_refused else RunTurn(unfinished_turn)

    async def check(self, timeline: tl.Timeline, turn: tl.Turn) -> None:
        """Refuse a turn that may not run with the bundle of this harness.

        Raises:
            WrongBundle: the turn may not run here; the message says why.
        """
        if refusal := await self.refusal(timeline, turn):
            raise WrongBundle(refusal)

    async def refusal(self, timeline: tl.Timeline, turn: tl.Turn) -> str:
        """Return the reason why this harness may not run the turn, "" if it may.

        It may run the turn if its bundle has the id of the bundle through which the prompt was sent, and its version is
        not earlier than the version of the prompt or the version that last ran the turn. A bundle without a version
        may not run a turn that has one. The version of an answer does not count: an answer belongs to the call that
        asked, and that call may exist only in the earlier version. A prompt without a sender belongs to the bundle
        that last ran a turn of the conversation.
        """
        if turn.header is None and sender_of(turn) == self.own:
            return ""
        needed = list(_bundles(turn))
        name = tl.turn_id(turn.number)
        bundle = bundle_of(timeline, turn)
        if bundle not in ("", self.own.bundle):
            return f"{name} is a turn of the bundle {bundle!r}, and this is {self.own.bundle!r}"
        later = await self._later_version(needed)
        if not later:
            return ""
        here = f"this is {self.own.version!r}, an earlier one"
        if not self.own.version:
            here = "this bundle has no version: give it one with Bundle(version=…)"
        return f"{name} needs version {later!r} of the bundle {bundle!r}, and {here}"

    async def may_begin(self, sender: tl.Sender | None) -> bool:
        """Return whether this harness may begin the turn of a scheduled message that was sent through `sender`."""
        if sender is None or sender == self.own:
            return True
        return sender.bundle == self.own.bundle and not await self._later_version([sender])

    async def _later_version(self, needed: Iterable[tl.Sender]) -> str:
        """Return the latest version of these senders that is later than that of this harness, "" without one."""
        versions = {sender.version for sender in needed} - {"", self.own.version}
        if not versions:
            return ""
        known = await self.log.versions(self.own.bundle)
        is_ordered = self.own.version and self.own.version in known
        own = known.index(self.own.version) if is_ordered else -1
        later = [version for version in known[own + 1 :] if version in versions]
        return later[-1] if later else ""

    async def _is_elsewhere(self, turn: tl.Turn, inherited: int) -> bool:
        """Return whether a live harness other than this one sent the prompt of a queued turn."""
        is_own = turn.prompt is not None and turn.prompt.seq > inherited
        return is_own and await self._is_present(sender_of(turn))

    async def _is_present(self, sender: tl.Sender | None) -> bool:
        if sender is None or sender.harness in self.absent | {0, self.own.harness}:
            return False
        return await self.log.is_present(sender)


def is_cut_off_again(turn: tl.Turn) -> bool:
    """Return whether the turn was resumed `MAX_RECOVERIES` times and cut off again.

    It is not if it is paused, was handed over, was put back with `retry`, or got an answer since.

    A runner that continues the turn after an answer of the user does not resume it in this sense. The last runner may be
    alive: only the lease of the conversation shows that.
    """
    header = turn.header
    return (
        header is not None
        and turn.exit is None
        and header.recoveries - turn.answered_recoveries >= MAX_RECOVERIES
        and not header.handed_over
        and not turn.put_back
        and not turn.is_answered
        and not turn.is_paused
    )


def turn_to_take(timeline: tl.Timeline, inherited: int) -> tl.Turn | None:
    """Return the turn that a process begins or resumes without a request, None if there is none.

    It is the next turn. If that was cut off again, it is the oldest queued one, whose message ends the other. Blocks up to
    the seq `inherited` are those of the parent of a fork. Its turns that have begun are taken only if the user has answered
    or resumed them in the fork, and its queued ones only before a message of the fork.
    """
    turn = timeline.next_turn
    if turn is None:
        return None
    is_of_parent = is_parents(turn, inherited)
    if not is_of_parent and not is_cut_off_again(turn):
        return turn
    own = [queued for queued in timeline.queued if _prompt_seq(queued) > inherited]
    if not own:
        return None if is_of_parent else turn
    return own[0] if turn.header is not None else turn


def is_parents(turn: tl.Turn, inherited: int) -> bool:
    """Return whether a turn has no block or answer after the seq `inherited`, and was not put back."""
    return newest_seq(turn) <= inherited and not turn.put_back


def newest_seq(turn: tl.Turn) -> int:
    """Return the seq of the newest block of a turn or answer to it; that of its message if it has not begun."""
    last = turn.latest_block.seq if turn.latest_block is not None else _prompt_seq(turn)
    return max([last, *turn.new_answers])


def was_leased(timeline: tl.Timeline, inherited: int) -> bool:
    """Return whether a runner has written to the conversation, so that each sweep of a worker finds its messages.

    Blocks that a fork inherits, up to the seq `inherited`, and imported blocks do not count.
    """
    for block in reversed(timeline.blocks):
        if block.seq <= inherited or isinstance(block.body, tl.Imported):
            return False
        if block.term:
            return True
    return False


def is_left(timeline: tl.Timeline, number: int, inherited: int) -> bool:
    """Return whether a turn that a person resumes must be put back, because no process resumes it without a request.

    It was cut off again, or is one of the parent of a fork. A new message is not left.
    """
    turn = timeline.turn(number)
    is_new = turn.header is None and _prompt_seq(turn) > inherited
    if is_new or turn.exit is not None or turn.is_paused:
        return False
    return is_cut_off_again(turn) or turn_to_take(timeline, inherited) is not turn


def _prompt_seq(turn: tl.Turn) -> int:
    return 0 if turn.prompt is None else turn.prompt.seq


def is_recalled(timeline: tl.Timeline, turn: tl.Turn) -> bool:
    """Return whether the message was recalled before its turn started."""
    return (
        turn.header is None
        and turn.exit is None
        and turn.prompt is not None
        and turn.prompt.seq not in timeline.pending
    )


def sender_of(turn: tl.Turn) -> tl.Sender | None:
    """Return the sender of the turn's prompt, None if the prompt names no sender."""
    if turn.prompt is None or not isinstance(turn.prompt.body, tl.UserPrompt):
        return None
    return turn.prompt.body.sender


def _bundles(turn: tl.Turn) -> Iterator[tl.Sender]:
    """Yield the bundle that the turn's prompt was sent through, and the bundle that last ran the turn."""
    sender = sender_of(turn)
    if sender is not None:
        yield sender
    if turn.header is not None:
        yield tl.Sender(bundle=turn.header.bundle, version=turn.header.version)


def bundle_of(timeline: tl.Timeline, turn: tl.Turn) -> str:
    """Return the id of the bundle that the turn was sent through, or of the bundle that last ran a turn, or ""."""
    for sender in _bundles(turn):
        return sender.bundle
    turns = reversed(timeline.turns.values())
    return next((turn.header.bundle for turn in turns if turn.header is not None), "")
