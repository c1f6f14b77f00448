"""The three extensions: a Guard around a call, a RoundHook between rounds, a Middleware around a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from typing_extensions import TypeIs

from loopline.clock import Alarm, Clock
from loopline.errors import LooplineError, StoreError
from loopline.models import JsonObject
from loopline.react.state import ReactStateV2, TurnPayload, repetitions
from loopline.timeline import Batch, Effect, ExitReason, ToolResult, TurnResult


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedCall:
    """A call before it runs; its tool exists, and its arguments are valid.

    `earlier_calls` counts the earlier calls of the turn by tool; `failures` counts the failed calls of the turn with the
    same tool and arguments. `deps` is the argument of `Harness.open`.
    """

    call_id: str
    tool: str
    effect: Effect
    arguments: JsonObject
    turn_id: str
    conversation: str
    user: str
    earlier_calls: dict[str, int]
    failures: int = 0
    deps: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Allow:
    """The call may run; if `arguments` are set, they replace those of the call."""

    arguments: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """The call does not run; the model reads the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """The call waits until `people` people approve it: the user, and others by their names."""

    question: str
    people: int = 1


Verdict = Allow | Deny | Ask


class Guard(Protocol):
    """Checks calls before they run and filters their results; if `before` raises, calls that do not only read are denied."""

    async def before(self, call: GuardedCall) -> Verdict:
        """Return the verdict on the call."""
        ...

    async def after(self, call: GuardedCall, text: str) -> str:
        """Return the text of the result for the model; `text` is the text of the tool."""
        ...


@dataclass(frozen=True, slots=True)
class Reminder:
    """A notice that the model reads before its next decision; `code` is its kind."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Hold:
    """The answer is not accepted yet; the model reads the text."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the turn; the text is recorded as a notice, which the model reads if it is asked for a last answer."""

    reason: ExitReason
    text: str = ""


RoundHookResult = Reminder | Hold | Stop | None
RoundHook = Callable[[ReactStateV2], RoundHookResult]
"""A pure function of the state that is called before each decision and, with `answer` set, for each answer."""

Run = Callable[[TurnPayload], Awaitable[TurnResult[Any]]]


class Middleware(Protocol):
    """Wraps a whole run."""

    async def __call__(self, payload: TurnPayload, run: Run) -> TurnResult[Any]:
        """Return the result of the turn, by calling `run` or instead of it."""
        ...


class Extensions(Struct, frozen=True, kw_only=True):
    """The extensions of a bundle: hooks between rounds, and middleware around the whole run."""

    round_hooks: Sequence[RoundHook] = ()
    middleware: Sequence[Middleware] = ()


T = TypeVar("T")
logger: logging.Logger = logging.getLogger("loopline")

PRIORITY = 100
FAILURES = 5
COOLDOWN_SECONDS = 30.0

BeforeHook = Callable[[TurnPayload], Awaitable[TurnPayload | TurnResult[Any] | None]]
"""Returns another payload, a result that replaces the run, or None to keep the payload."""
AfterHook = Callable[[TurnPayload, TurnResult[Any]], Awaitable[TurnResult[Any] | None]]
"""Returns another result, or None to keep the result."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Middleware with a priority; middleware with a lower priority wraps middleware with a higher one."""

    middleware: Middleware
    priority: int = PRIORITY


def in_order(layers: Iterable[Middleware | Layer]) -> tuple[Middleware, ...]:
    """Return the middleware sorted by priority, then in the given order; the first is the outermost."""
    entries = [entry if isinstance(entry, Layer) else Layer(entry) for entry in layers]
    return tuple(entry.middleware for entry in sorted(entries, key=lambda layer: layer.priority))


def wrap(run: Run, layers: Iterable[Middleware | Layer]) -> Run:
    """Return the run wrapped in middleware: the first middleware gets the payload first and the result last."""
    for middleware in reversed(in_order(layers)):
        run = partial(middleware, run=run)
    return run


def before_run(*hooks: BeforeHook) -> Middleware:
    """Return middleware that calls `hooks` in order before the run.

    A hook returns another payload, a result that replaces the run, or None to change nothing.
    """

    async def middleware(payload: TurnPayload, run: Run) -> TurnResult[Any]:
        """Run with the payload that the hooks changed, or return the first result of a hook without a run."""
        for hook in hooks:
            match await hook(payload):
                case None:
                    pass
                case TurnResult() as instead:
                    return instead
                case changed:
                    payload = changed
        return await run(payload)

    return middleware


def after_run(*hooks: AfterHook) -> Middleware:
    """Return middleware that calls `hooks` in order after the run; each receives the result of the previous hook.

    A hook that returns None does not change the result.
    """

    async def middleware(payload: TurnPayload, run: Run) -> TurnResult[Any]:
        result = await run(payload)
        for hook in hooks:
            changed = await hook(payload, result)
            result = result if changed is None else changed
        return result

    return middleware


def timeout(middleware: Middleware, seconds: float, clock: Clock) -> Middleware:
    """Limit the time of middleware before the run and after it; the run itself does not count.

    Middleware that takes longer is cancelled and not waited for, and can no longer begin a run. Then TimeoutError is
    raised; a `Breaker` around it uses the plain run instead.
    """

    async def run_limited(payload: TurnPayload, run: Run) -> TurnResult[Any]:
        """Run the middleware; raise TimeoutError if it takes longer than `seconds` before or after its run."""
        time = TimeLimit(seconds, clock)

        def run_untimed(payload: TurnPayload) -> Awaitable[TurnResult[Any]]:
            return time.exclude(lambda: run(payload))

        return await time.limit(middleware(payload, run_untimed), middleware)

    return run_limited


class TimeLimit:
    """The seconds that an extension may take; they stop while the run that it extends is working."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._alarm: Alarm | None = None
        self._runs = 0

    async def limit(self, work: Awaitable[T], extension: object) -> T:
        """Return the result of `work`, which is the work of `extension`.

        Work that takes longer is cancelled and not waited for.

        Raises:
            TimeoutError: the work took longer.
            LooplineError: the work cancelled itself.
        """
        working = asyncio.ensure_future(work)
        self._start()
        try:
            awaited: list[asyncio.Future[T] | asyncio.Future[None]] = [working, self._is_over]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise TimeoutError(f"{extension!r} took longer than {self._seconds:g} s")
            if working.cancelled():
                raise LooplineError(f"{extension!r} cancelled its own work")
            return working.result()
        except asyncio.CancelledError:
            working.cancel()
            await asyncio.wait([working])
            raise
        finally:
            self._stop()
            self._end()
            working.cancel()
            working.add_done_callback(_retrieve_exception)

    async def exclude(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `begin` without counting its time; the time starts anew when no run is in progress.

        Raises:
            LooplineError: the time is over, so the run is not begun.
        """
        if self._is_over.done():
            raise LooplineError("it is too late for this run: the turn has gone on without it")
        self._stop()
        self._runs += 1
        try:
            return await begin()
        finally:
            self._runs -= 1
            if not self._runs and not self._is_over.done():
                self._start()

    def _start(self) -> None:
        self._alarm = self._clock.alarm(self._seconds, self._end)

    def _stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _end(self) -> None:
        if not self._is_over.done():
            self._is_over.set_result(None)


def _retrieve_exception(working: asyncio.Future[T]) -> None:
    """Read the exception of work that is not waited for, since asyncio warns of exceptions that are never read."""
    if not working.cancelled():
        working.exception()


@dataclass(slots=True, eq=False)
class CircuitBreaker:
    """Blocks calls after too many failures in a row.

    After `failures` failures in a row calls are blocked for `cooldown_seconds`. Then one call is tried; further calls are
    blocked for the same time again, or until that call succeeds.
    """

    clock: Clock
    failures: int = FAILURES
    cooldown_seconds: float = COOLDOWN_SECONDS
    _failures_in_row: int = field(default=0, init=False)
    _blocked_until: float = field(default=0.0, init=False)

    def try_call(self) -> bool:
        """Return whether a call may be made now; after the cooldown True once, and then the calls are blocked again."""
        if self._failures_in_row < self.failures:
            return True
        if self.clock.elapsed() < self._blocked_until:
            return False
        self._block()
        return True

    def record_failure(self) -> None:
        """Count a call that failed."""
        self._failures_in_row += 1
        self._block()

    def record_success(self) -> None:
        """Forget the failures, because a call succeeded."""
        self._failures_in_row = 0

    def _block(self) -> None:
        self._blocked_until = self.clock.elapsed() + self.cooldown_seconds


@dataclass(slots=True, eq=False)
class Breaker:
    """Protects a run from middleware that raises: the error is logged, and the plain run is used instead.

    If the middleware had already begun the run, the result of that run is used and the run is not repeated; an error of
    the run itself is raised. After `failures` errors in a row the middleware is skipped for `cooldown_seconds`; the first
    error after that skips it again. Use one breaker for many turns.
    """

    middleware: Middleware
    clock: Clock
    failures: int = FAILURES
    cooldown_seconds: float = COOLDOWN_SECONDS
    _circuit: CircuitBreaker = field(init=False)

    def __post_init__(self) -> None:
        self._circuit = CircuitBreaker(self.clock, self.failures, self.cooldown_seconds)

    async def __call__(self, payload: TurnPayload, run: Run) -> TurnResult[Any]:
        """Return the result of the middleware, or of the plain run if the middleware raises.

        Raises:
            StoreError: the store failed.
        """
        if not self._circuit.try_call():  # it has failed too often lately
            return await run(payload)
        observed = _ObservedRun(run)
        try:
            result = _check_result(self.middleware, await self.middleware(payload, observed))
        except StoreError:
            raise
        except Exception as error:
            await observed.wait()
            if observed.error is error:
                raise
            if observed.error is not None:
                raise observed.error from error
            logger.exception("%r broke, so the plain run is used", self.middleware)
            self._circuit.record_failure()
        else:
            self._circuit.record_success()
            return result
        finally:
            observed.closed = True
        return await run(payload) if observed.result is None else observed.result


class _ObservedRun:
    """A run for middleware that stores its last result or error, and counts the runs in progress."""

    def __init__(self, run: Run) -> None:
        self.result: TurnResult[Any] | None = None
        self.error: Exception | None = None
        self.closed = False
        self.running = 0
        self._run = run
        self._over = asyncio.Event()

    async def __call__(self, payload: TurnPayload) -> TurnResult[Any]:
        if self.closed:
            raise LooplineError("it is too late for this run: its turn has gone on without it")
        self.running += 1
        self.error = None
        try:
            self.result = await self._run(payload)
        except Exception as error:
            self.error = error
            raise
        finally:
            self.running -= 1
            self._over.set()
        return self.result

    async def wait(self) -> None:
        """Wait until no run is in progress."""
        while self.running:
            self._over.clear()
            await self._over.wait()


def _check_result(middleware: Middleware, result: object) -> TurnResult[Any]:
    if not _is_result(result):
        raise TypeError(f"{middleware!r} must return a TurnResult, not {result!r}")
    return result


def _is_result(value: object) -> TypeIs[TurnResult[Any]]:
    return isinstance(value, TurnResult)


CYCLE = "cycle_warning"
SELF_CHECK = "self_check"
COMPLETION_CHECK = "completion_check"
FAILURE_REFLECTION = "failure_reflection"

CHECKLIST = """\
- Is every part of what was asked answered?
- Does each statement rest on something that a tool gave?
- Has anything been left open that a further call would settle?"""
"""The questions of the option `completion_check`."""

ESCALATES_AT = 3
"""The number of rounds in a row with a failed call from which the reminder is firmer."""


def cycle_warning(after: int = 3) -> RoundHook:
    """Return a hook that warns the model when the same calls have been made `after` times in a row.

    It warns once in each cycle of repeated calls.

    Raises:
        LooplineError: `after` is less than 2.
    """
    _check_count(after, "after", minimum=2)

    def hook(state: ReactStateV2) -> RoundHookResult:
        """Return a reminder if equal calls were made `after` times or more in a row, once for each cycle, or None."""
        if not _may_decide(state) or state.same_calls < after:
            return None
        text = (
            f"{_repetition_text(state)} Do not expect other results: use what they gave, call something else or "
            "with other arguments, or answer."
        )
        return _reminder(state, CYCLE, _cycles(state.batches, after), text)

    return hook


def stagnation(after: int = 3) -> RoundHook:
    """Return a hook that ends the turn with the reason "stagnation" if the same calls were made `after` times in a row.

    A cycle of a few rounds counts like one round, and equal calls in one round are counted, too. `on_exhausted` decides
    whether the model writes a last answer.

    Raises:
        LooplineError: `after` is less than 2.
    """
    _check_count(after, "after", minimum=2)

    def hook(state: ReactStateV2) -> RoundHookResult:
        if not _may_decide(state) or state.same_calls < after:
            return None
        return Stop("stagnation", _repetition_text(state))

    return hook


def self_check(rounds_between: int = 6, goal: str = "") -> RoundHook:
    """Return a hook that asks the model to check its progress after every `rounds_between` rounds with calls.

    A `goal` is quoted in the reminder.

    Raises:
        LooplineError: `rounds_between` is less than 1.
    """
    _check_count(rounds_between, "rounds_between")
    goal_text = f"\nWhat was asked: {goal}" if goal else ""

    def hook(state: ReactStateV2) -> RoundHookResult:
        """Return a self-check reminder after each `rounds_between` rounds with calls, or None."""
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
    """Return a hook that holds one answer of the turn, and asks the model to check it against the checklist.

    An answer is held only if it has at most `longest` characters and the turn has made calls in at least `after`
    rounds.

    Raises:
        LooplineError: `after` is less than 0, or `longest` is less than 1.
    """
    _check_count(after, "after", minimum=0)
    _check_count(longest, "longest")

    def hook(state: ReactStateV2) -> RoundHookResult:
        """Hold one short answer of a turn that made calls in at least `after` rounds; return None otherwise."""
        rounds = sum(bool(batch.calls) for batch in state.batches)
        if state.answer is None or len(state.answer) > longest or rounds < after:
            return None
        if state.exhausted or state.notices.get(COMPLETION_CHECK, 0):
            return None
        text = f"Before this is the answer, check it:\n{checklist}\nThen answer, changed or not."
        return Hold(COMPLETION_CHECK, text)

    return hook


def failure_reflection() -> RoundHook:
    """Return a hook that asks the model for another way after a round with a failed or denied call.

    The reminder is firmer from the third such round in a row.
    """

    def hook(state: ReactStateV2) -> RoundHookResult:
        if not _follows_calls(state) or not _has_failure(state.batches[-1]):
            return None
        failed_rounds = sum(map(_has_failure, state.batches))
        return _reminder(state, FAILURE_REFLECTION, failed_rounds, _failure_text(state.batches))

    return hook


def _check_count(count: int, name: str, minimum: int = 1) -> None:
    if count < minimum:
        raise LooplineError(f"{name} must be {minimum} or more, not {count}")


def _may_decide(state: ReactStateV2) -> bool:
    """Return whether another decision may follow, and the state is without an answer."""
    return state.answer is None and not state.exhausted


def _follows_calls(state: ReactStateV2) -> bool:
    """Return whether the newest round made calls, and another decision may follow."""
    return _may_decide(state) and bool(state.batches) and bool(state.batches[-1].calls)


def _reminder(state: ReactStateV2, code: str, due: int, text: str) -> Reminder | None:
    """Return the reminder if the turn has had fewer than `due` reminders with this code."""
    return Reminder(code, text) if state.notices.get(code, 0) < due else None


def _cycles(batches: Sequence[Batch], after: int) -> int:
    """Count how often repeated calls have reached `after` repetitions."""
    times = [0, *repetitions(batches)]
    return sum(before < after <= now for before, now in pairwise(times))


def _repetition_text(state: ReactStateV2) -> str:
    tools = ", ".join(dict.fromkeys(call.tool for call in state.batches[-1].calls))
    return f"The same calls were made {state.same_calls} times over: {tools}."


def _failures(batch: Batch) -> list[ToolResult]:
    """Return the results of calls that failed or were denied, without interrupted calls."""
    return [result for result in batch.results.values() if result.status in ("error", "denied")]


def _has_failure(batch: Batch) -> bool:
    """Return whether a call of the round failed and every call has a result."""
    return len(batch.results) == len(batch.calls) and bool(_failures(batch))


def _failure_text(batches: Sequence[Batch]) -> str:
    """Return the reminder about failed or denied calls; it is firmer from `ESCALATES_AT` failed rounds in a row."""
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
