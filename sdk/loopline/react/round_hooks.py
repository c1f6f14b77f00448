"""Ready-made round hooks: what tells a turn that it goes in circles, fails, or answers too soon.

Each is a pure function of the state. How often it should have spoken follows from the calls so far, how
often it has from the notices, so a turn that is carried on hears nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from loopline.errors import LooplineError
from loopline.react.extensions import Hold, Nudge, Nudged, Reminder, Stop
from loopline.react.loop_options import LoopOptions
from loopline.react.state import ReactStateV2, repeated
from loopline.timeline import Batch, ToolResult

CYCLE = "cycle_warning"
SELF_CHECK = "self_check"
COMPLETION_CHECK = "completion_check"
FAILURE = "failure_reflection"

CHECKLIST = """\
- Is every part of what was asked answered?
- Does each statement rest on something that a tool gave?
- Has anything been left open that a further call would settle?"""
"""What the policy `completion_check` has the model ask itself."""

ESCALATES_AT = 3
"""Rounds in a row in which a call failed, from which the words are stronger."""


def nudges_of(policies: LoopOptions) -> Iterator[Nudge]:
    """Those that the policies switch on, in the order in which they are asked."""
    if policies.stagnation_rounds:
        yield stagnation(policies.stagnation_rounds)
    if policies.cycle_warning_rounds:
        yield cycle_warning(policies.cycle_warning_rounds)
    if policies.failure_reflection:
        yield failure_reflection()
    if policies.self_check_rounds:
        yield self_check(policies.self_check_rounds)
    if policies.completion_check:
        yield completion_check(CHECKLIST)


def cycle_warning(after: int = 3) -> Nudge:
    """Warn once when the same calls have been made so often over, and again in the next cycle."""
    _check(after, "after", least=2)

    def nudge(state: ReactStateV2) -> Nudged:
        if not _between(state) or state.same_calls < after:
            return None
        return _said(state, CYCLE, _cycles(state.batches, after), _cycle_text(state))

    return nudge


def stagnation(after: int = 3) -> Nudge:
    """End the turn when the same calls have been made so often over."""
    _check(after, "after", least=2)

    def nudge(state: ReactStateV2) -> Nudged:
        if not _between(state) or state.same_calls < after:
            return None
        return Stop("stagnation", _again(state))

    return nudge


def self_check(every: int = 6, goal: str = "") -> Nudge:
    """Have the model look up from its work after every so many rounds with calls; `goal` is quoted."""
    _check(every, "every")
    asked = f"\nWhat was asked: {goal}" if goal else ""

    def nudge(state: ReactStateV2) -> Nudged:
        rounds = sum(bool(batch.calls) for batch in state.batches)
        if not _acted(state) or rounds % every:
            return None
        text = (
            f"[Self-check] {rounds} rounds with calls are over. Before the next one: what was found, "
            "what is still missing, and is this the shortest way there? If there is enough, answer."
        )
        return _said(state, SELF_CHECK, rounds // every, text + asked)

    return nudge


def completion_check(checklist: str, *, after: int = 3, longest: int = 800) -> Nudge:
    """Hold one answer of the turn until the model has gone through the checklist.

    Only turns that have made calls in `after` rounds are held, and answers of at most `longest`
    characters.
    """
    _check(after, "after", least=0)
    _check(longest, "longest")

    def nudge(state: ReactStateV2) -> Nudged:
        rounds = sum(bool(batch.calls) for batch in state.batches)
        if state.answer is None or len(state.answer) > longest or rounds < after:
            return None
        if state.exhausted or state.notices.get(COMPLETION_CHECK, 0):
            return None
        text = f"Before this is the answer, check it:\n{checklist}\nThen answer, changed or not."
        return Hold(COMPLETION_CHECK, text)

    return nudge


def failure_reflection() -> Nudge:
    """After a round in which a call failed, ask for another way; more firmly from the third in a row on."""

    def nudge(state: ReactStateV2) -> Nudged:
        if not _acted(state) or not _failed(state.batches[-1]):
            return None
        due = sum(map(_failed, state.batches))
        return _said(state, FAILURE, due, _failure_text(state.batches))

    return nudge


def _check(count: int, name: str, least: int = 1) -> None:
    if count < least:
        raise LooplineError(f"{name} must be {least} or more, not {count}")


def _between(state: ReactStateV2) -> bool:
    """Whether another decision is about to be made, and no answer is on the table."""
    return state.answer is None and not state.exhausted


def _acted(state: ReactStateV2) -> bool:
    """Whether the newest round made calls, and another decision is about to be made."""
    return _between(state) and bool(state.batches) and bool(state.batches[-1].calls)


def _said(state: ReactStateV2, code: str, due: int, text: str) -> Reminder | None:
    """What is to be said, unless the turn has been told as often as was due."""
    return Reminder(code, text) if state.notices.get(code, 0) < due else None


def _cycles(batches: Sequence[Batch], after: int) -> int:
    """How many times so far the same calls have come to be made so often over."""
    times = [0, *repeated(batches)]
    return sum(before < after <= now for before, now in pairwise(times))


def _again(state: ReactStateV2) -> str:
    return f"The same calls were made {state.same_calls} times over: {_tools(state.batches[-1])}."


def _cycle_text(state: ReactStateV2) -> str:
    return (
        f"{_again(state)} Do not expect other results: use what they gave, call something else or with "
        "other arguments, or answer."
    )


def _tools(batch: Batch) -> str:
    return ", ".join(dict.fromkeys(call.tool for call in batch.calls))


def _failures(batch: Batch) -> list[ToolResult]:
    """The results of calls that failed; what the user has cut off did not."""
    return [one for one in batch.results.values() if one.status in ("error", "denied")]


def _failed(batch: Batch) -> bool:
    """Whether a call failed, and none of them waits any more."""
    return len(batch.results) == len(batch.calls) and bool(_failures(batch))


def _failure_text(batches: Sequence[Batch]) -> str:
    failures = _failures(batches[-1])
    statuses = {result.status for result in failures}
    tools = ", ".join(dict.fromkeys(result.tool for result in failures))
    row = 0
    for batch in reversed(batches):
        if not _failed(batch):
            break
        row += 1
    every = (
        "Every call of the last round" if len(failures) == len(batches[-1].calls) else "Some calls"
    )
    if statuses == {"denied"}:
        words = f"None of these calls is permitted: {tools}. Asking again changes nothing."
    else:
        words = f"{every} failed: {tools}. Read the errors and say what was wrong."
    if row >= ESCALATES_AT:
        return (
            f"{words} That is {row} rounds in a row: stop trying this. Take another way that needs "
            "none of these calls, or answer with what there is and say what could not be done."
        )
    return f"{words} Correct it, or take another way."
