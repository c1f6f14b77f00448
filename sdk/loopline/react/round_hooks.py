"""Ready-made round hooks: what tells a turn that it goes in circles, fails, or answers too soon.

Each is a pure function of the state. How often it should have spoken follows from the calls so far, how
often it has from the notices, so a turn that is carried on hears nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from loopline.errors import LooplineError
from loopline.react.extensions import Hold, Reminder, RoundHook, RoundHookResult, Stop
from loopline.react.loop_options import LoopOptions
from loopline.react.state import ReactStateV2, repetitions
from loopline.timeline import Batch, ToolResult

CYCLE = "cycle_warning"
SELF_CHECK = "self_check"
COMPLETION_CHECK = "completion_check"
FAILURE_REFLECTION = "failure_reflection"

CHECKLIST = """\
- Is every part of what was asked answered?
- Does each statement rest on something that a tool gave?
- Has anything been left open that a further call would settle?"""
"""What the option `completion_check` has the model ask itself."""

ESCALATES_AT = 3
"""Rounds in a row with a failed call from which the reminder is firmer."""


def configured_hooks(options: LoopOptions) -> Iterator[RoundHook]:
    """Yield the hooks that the options switch on, in the order in which they run."""
    if options.stagnation_rounds:
        yield stagnation(options.stagnation_rounds)
    if options.cycle_warning_rounds:
        yield cycle_warning(options.cycle_warning_rounds)
    if options.failure_reflection:
        yield failure_reflection()
    if options.self_check_rounds:
        yield self_check(options.self_check_rounds)
    if options.completion_check:
        yield completion_check(CHECKLIST)


def cycle_warning(after: int = 3) -> RoundHook:
    """Warn once when the same calls have been made `after` times, and once more in each new cycle."""
    _check_count(after, "after", minimum=2)

    def hook(state: ReactStateV2) -> RoundHookResult:
        if not _may_decide(state) or state.same_calls < after:
            return None
        text = (
            f"{_repetition_text(state)} Do not expect other results: use what they gave, call something else or "
            "with other arguments, or answer."
        )
        return _reminder(state, CYCLE, _cycles(state.batches, after), text)

    return hook


def stagnation(after: int = 3) -> RoundHook:
    """End the turn when the same calls have been made `after` times."""
    _check_count(after, "after", minimum=2)

    def hook(state: ReactStateV2) -> RoundHookResult:
        if not _may_decide(state) or state.same_calls < after:
            return None
        return Stop("stagnation", _repetition_text(state))

    return hook


def self_check(rounds_between: int = 6, goal: str = "") -> RoundHook:
    """Ask the model to check its progress after every `rounds_between` rounds with calls; `goal` is quoted."""
    _check_count(rounds_between, "rounds_between")
    goal_text = f"\nWhat was asked: {goal}" if goal else ""

    def hook(state: ReactStateV2) -> RoundHookResult:
        rounds = sum(bool(batch.calls) for batch in state.batches)
        if not _follows_calls(state) or rounds % rounds_between:
            return None
        text = (
            f"[Self-check] {rounds} rounds with calls are over. Before the next one: what was found, "
            "what is still missing, and is this the shortest way there? If there is enough, answer."
        )
        return _reminder(state, SELF_CHECK, rounds // rounds_between, text + goal_text)

    return hook


def completion_check(checklist: str, *, after: int = 3, longest: int = 800) -> RoundHook:
    """Hold one answer of the turn until the model has gone through the checklist.

    An answer is held only if it has at most `longest` characters, and the turn has made calls in `after` rounds.
    """
    _check_count(after, "after", minimum=0)
    _check_count(longest, "longest")

    def hook(state: ReactStateV2) -> RoundHookResult:
        rounds = sum(bool(batch.calls) for batch in state.batches)
        if state.answer is None or len(state.answer) > longest or rounds < after:
            return None
        if state.exhausted or state.notices.get(COMPLETION_CHECK, 0):
            return None
        text = f"Before this is the answer, check it:\n{checklist}\nThen answer, changed or not."
        return Hold(COMPLETION_CHECK, text)

    return hook


def failure_reflection() -> RoundHook:
    """Ask for another way after a round with a failed call; more firmly from the third in a row on."""

    def hook(state: ReactStateV2) -> RoundHookResult:
        if not _follows_calls(state) or not _has_failure(state.batches[-1]):
            return None
        due = sum(map(_has_failure, state.batches))
        return _reminder(state, FAILURE_REFLECTION, due, _failure_text(state.batches))

    return hook


def _check_count(count: int, name: str, minimum: int = 1) -> None:
    if count < minimum:
        raise LooplineError(f"{name} must be {minimum} or more, not {count}")


def _may_decide(state: ReactStateV2) -> bool:
    """Return whether another decision follows, and no answer is on the table."""
    return state.answer is None and not state.exhausted


def _follows_calls(state: ReactStateV2) -> bool:
    """Return whether the newest round made calls, and another decision follows."""
    return _may_decide(state) and bool(state.batches) and bool(state.batches[-1].calls)


def _reminder(state: ReactStateV2, code: str, due: int, text: str) -> Reminder | None:
    """Return the reminder, unless the turn was given as many as are due."""
    return Reminder(code, text) if state.notices.get(code, 0) < due else None


def _cycles(batches: Sequence[Batch], after: int) -> int:
    """Count how often the same calls have reached `after` repetitions."""
    times = [0, *repetitions(batches)]
    return sum(before < after <= now for before, now in pairwise(times))


def _repetition_text(state: ReactStateV2) -> str:
    tools = ", ".join(dict.fromkeys(call.tool for call in state.batches[-1].calls))
    return f"The same calls were made {state.same_calls} times over: {tools}."


def _failures(batch: Batch) -> list[ToolResult]:
    """Return the results of calls that failed; interrupted calls did not."""
    return [result for result in batch.results.values() if result.status in ("error", "denied")]


def _has_failure(batch: Batch) -> bool:
    """Return whether a call failed and none is pending."""
    return len(batch.results) == len(batch.calls) and bool(_failures(batch))


def _failure_text(batches: Sequence[Batch]) -> str:
    failures = _failures(batches[-1])
    statuses = {result.status for result in failures}
    tools = ", ".join(dict.fromkeys(result.tool for result in failures))
    failed_rounds = 0
    for batch in reversed(batches):
        if not _has_failure(batch):
            break
        failed_rounds += 1
    subject = (
        "Every call of the last round" if len(failures) == len(batches[-1].calls) else "Some calls"
    )
    if statuses == {"denied"}:
        sentence = f"None of these calls is permitted: {tools}. Asking again changes nothing."
    else:
        sentence = f"{subject} failed: {tools}. Read the errors and say what was wrong."
    if failed_rounds >= ESCALATES_AT:
        return (
            f"{sentence} That is {failed_rounds} rounds in a row: stop trying this. Take another way that needs "
            "none of these calls, or answer with what there is and say what could not be done."
        )
    return f"{sentence} Correct it, or take another way."
