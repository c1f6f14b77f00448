"""The quality pipeline: hooks before and after the run of an agent, isolated from it and from each other.

A run sees the hooks that there were when it began. A hook that fails, takes too long or is switched off by its
breaker changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from loopline.clock import Alarm, Clock, done_within
from loopline.crew.dispatcher import AgentCall, AgentResult
from loopline.errors import LooplineError, StoreError, ToolError
from loopline.models import Json
from loopline.search import EmbeddingError, SharedEmbedder, cosines
from loopline.timeline import TurnResult

T = TypeVar("T")
logger: logging.Logger = logging.getLogger("loopline")

PRIORITY = 100
HOOK_SECONDS = 30.0
"""Seconds that a hook may work; while an agent works for it, its time stands still."""
FAILURES = 5
COOLDOWN_SECONDS = 30.0


class RunAgent(Protocol):
    """Has an agent work, for a hook or as the run itself."""

    def __call__(self, call: AgentCall, /) -> Awaitable[TurnResult]:
        """Return the result of the run.

        Raises:
            ToolError: the run could not be begun, or its code failed.
        """
        ...


class MeasureNearness(Protocol):
    """Compares the meaning of two texts by the bundle's embedder."""

    def __call__(self, first: str, second: str, /) -> Awaitable[float | None]:
        """Return the cosine of their vectors; None without an embedder, or if it fails."""
        ...


async def _no_nearness(first: str, second: str, /) -> float | None:
    del first, second
    return None


class RecallLessons(Protocol):
    """Finds lessons of the user's earlier turns."""

    def __call__(self, task: str, most: int, /) -> Awaitable[Sequence[str]]:
        """Return at most so many lessons that are about such a task."""
        ...


async def no_lessons(task: str, most: int, /) -> Sequence[str]:
    """Return none: nothing is remembered here."""
    del task, most
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedRun:
    """The run that a hook is called for: what the agent was asked, and `dispatch`, which has other agents work.

    `nearness` compares the meaning of two texts, and `recall` finds lessons.
    """

    call: AgentCall
    dispatch: RunAgent
    nearness: MeasureNearness = _no_nearness
    recall: RecallLessons = no_lessons


@dataclass(frozen=True, slots=True)
class NewCall:
    """A hook before the run has changed what the agent is asked."""

    call: AgentCall


@dataclass(frozen=True, slots=True)
class SkipRun:
    """The agent does not run: this is its answer. Hooks after the run are called as always."""

    answer: str


@dataclass(frozen=True, slots=True)
class SkipHooks:
    """The remaining hooks of this phase are not called; the result, if there is one, stands."""

    result: AgentResult | None = None


PreOutcome = NewCall | SkipRun | SkipHooks | None
PostOutcome = AgentResult | SkipHooks | None


class PreHook(Protocol):
    """A hook that is called before an agent runs."""

    async def before(self, run: HookedRun) -> PreOutcome:
        """Return what changes, or None."""
        ...


class PostHook(Protocol):
    """A hook that is called after an agent has run, also if it failed."""

    async def after(self, run: HookedRun, result: AgentResult) -> PostOutcome:
        """Return another result, or None."""
        ...


@dataclass(slots=True, eq=False)
class _Isolated:
    """A hook with its priority and its circuit breaker, which all runs share."""

    hook: object
    priority: int
    clock: Clock
    number: int
    failures: int = 0
    closed_until: float = 0.0

    @property
    def is_off(self) -> bool:
        """Whether the breaker keeps the hook from being called now."""
        return self.failures >= FAILURES and self.clock.elapsed() < self.closed_until

    async def call(
        self,
        work: Callable[[RunAgent], Awaitable[T]],
        dispatch: RunAgent,
        seconds: float,
    ) -> T | None:
        """Return what the hook returns; None if it fails or takes too long.

        Raises:
            StoreError: the store failed.
        """
        try:
            outcome = await _limited(work, dispatch, seconds, self.clock)
        except StoreError:
            raise
        except Exception:
            logger.exception("%r failed, and the run goes on without it", self.hook)
            self.failures += 1
            self.closed_until = self.clock.elapsed() + COOLDOWN_SECONDS
            return None
        self.failures = 0
        return outcome


class _HookTime:
    """The time of one hook; it stands still while an agent works for it."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seconds = seconds
        self._clock = clock
        self._alarm: Alarm | None = None
        self._waits = 0

    def begin(self) -> None:
        """Start the time, for the whole of it."""
        self._alarm = self._clock.alarm(self._seconds, self._ring)

    def end(self) -> None:
        """Stop the time."""
        if self._alarm is not None:
            self._alarm.cancel()

    def dispatcher(self, dispatch: RunAgent) -> RunAgent:
        """Return `dispatch` with the time stopped while its agent works; it begins none once the time is over."""

        async def timed(call: AgentCall) -> TurnResult:
            if self.late.done():
                raise LooplineError("it is too late for this hook: the run has gone on without it")
            self.end()
            self._waits += 1
            try:
                return await dispatch(call)
            finally:
                self._waits -= 1
                if not self._waits and not self.late.done():
                    self.begin()

        return timed

    def _ring(self) -> None:
        if not self.late.done():
            self.late.set_result(None)


async def _limited(
    work: Callable[[RunAgent], Awaitable[T]], dispatch: RunAgent, seconds: float, clock: Clock
) -> T:
    time = _HookTime(seconds, clock)
    working = asyncio.ensure_future(work(time.dispatcher(dispatch)))
    time.begin()
    try:
        awaited: list[asyncio.Future[T] | asyncio.Future[None]] = [working, time.late]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise TimeoutError(f"the hook took longer than {seconds:g} s")
        return working.result()
    finally:
        time.end()
        if not time.late.done():
            time.late.set_result(None)
        working.cancel()
        working.add_done_callback(_retrieve_outcome)


def _retrieve_outcome(working: asyncio.Future[T]) -> None:
    if not working.cancelled():
        working.exception()


@dataclass(slots=True, eq=False, kw_only=True)
class QualityPipeline:
    """Hooks around the runs of agents: those with a lower priority first, else in the order in which they were added.

    With `enabled` False a run is the agent's alone. `generation` counts the changes of the hooks.
    """

    clock: Clock
    enabled: bool = True
    hook_seconds: float = HOOK_SECONDS
    embedder: SharedEmbedder | None = None
    generation: int = field(default=0, init=False)
    _before: tuple[tuple[_Isolated, PreHook], ...] = field(default=(), init=False)
    _after: tuple[tuple[_Isolated, PostHook], ...] = field(default=(), init=False)
    _in_flight: int = field(default=0, init=False)
    _draining: bool = field(default=False, init=False)
    _idle: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def add_before(self, hook: PreHook, priority: int = PRIORITY) -> None:
        """Add a hook before the run.

        Raises:
            LooplineError: the pipeline is being drained.
        """
        added = [*self._before, (self._isolated(hook, priority), hook)]
        self._before = tuple(sorted(added, key=lambda entry: entry[0].priority))

    def add_after(self, hook: PostHook, priority: int = PRIORITY) -> None:
        """Add a hook after the run.

        Raises:
            LooplineError: the pipeline is being drained.
        """
        added = [*self._after, (self._isolated(hook, priority), hook)]
        self._after = tuple(sorted(added, key=lambda entry: entry[0].priority))

    def _isolated(self, hook: object, priority: int) -> _Isolated:
        if self._draining:
            raise LooplineError("the pipeline is being drained: it takes no more hooks")
        self.generation += 1
        return _Isolated(hook, priority, self.clock, self.generation)

    async def run(
        self,
        call: AgentCall,
        execute: RunAgent,
        dispatch: Callable[[int], RunAgent],
        recall: RecallLessons = no_lessons,
    ) -> AgentResult:
        """Run an agent between the hooks, and return what is made of its result.

        `dispatch` gives each hook, by its number, what has other agents work for it.

        Raises:
            StoreError: the store failed.
        """
        before, after = self._before, self._after
        if self._draining or not self.enabled or not (before or after):
            return await _executed(call, execute)
        with self._counted():
            call, answer = await self._begin(call, before, dispatch, recall)
            if answer is None:
                result = await _executed(call, execute)
            else:
                result = AgentResult(call=call, text=answer)
            return await self._finish(result, after, dispatch)

    @contextmanager
    def _counted(self) -> Generator[None]:
        """Count what goes on inside as in flight."""
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def prepare(self, call: AgentCall, dispatch: Callable[[int], RunAgent]) -> AgentCall:
        """Return the call as the hooks before the run change it, without a run."""
        if self._draining or not self.enabled:
            return call
        with self._counted():
            call, _ = await self._begin(call, self._before, dispatch, no_lessons)
        return call

    async def review(self, result: AgentResult, dispatch: Callable[[int], RunAgent]) -> AgentResult:
        """Return a result as the hooks after the run change it."""
        if self._draining or not self.enabled:
            return result
        with self._counted():
            return await self._finish(result, self._after, dispatch)

    async def drain(self, seconds: float) -> bool:
        """Take no more hooks, and wait at most so long for the runs between hooks; return whether all have ended."""
        self._draining = True
        if self._in_flight:
            await done_within(self.clock, seconds, self._idle.wait())
        return not self._in_flight

    async def _begin(
        self,
        call: AgentCall,
        hooks: Sequence[tuple[_Isolated, PreHook]],
        dispatch: Callable[[int], RunAgent],
        recall: RecallLessons,
    ) -> tuple[AgentCall, str | None]:
        """Return the call as the hooks change it, and the answer if one of them has it."""
        for isolated, hook in hooks:
            if isolated.is_off:
                continue
            work = partial(self._call_before, hook, call, recall)
            match await isolated.call(work, dispatch(isolated.number), self.hook_seconds):
                case NewCall(call=changed):
                    call = changed if changed.task.strip() else call
                case SkipRun(answer=answer):
                    return call, answer
                case SkipHooks():
                    break
                case None:
                    pass
        return call, None

    async def _finish(
        self,
        result: AgentResult,
        hooks: Sequence[tuple[_Isolated, PostHook]],
        dispatch: Callable[[int], RunAgent],
    ) -> AgentResult:
        for isolated, hook in hooks:
            if isolated.is_off:
                continue
            work = partial(self._call_after, hook, result)
            match await isolated.call(work, dispatch(isolated.number), self.hook_seconds):
                case AgentResult() as changed:
                    result = changed
                case SkipHooks(result=changed):
                    result = changed or result
                    break
                case None:
                    pass
        return result

    async def _call_before(
        self, hook: PreHook, call: AgentCall, recall: RecallLessons, dispatch: RunAgent
    ) -> PreOutcome:
        run = HookedRun(call=call, dispatch=dispatch, nearness=self._nearness, recall=recall)
        return await hook.before(run)

    async def _call_after(
        self, hook: PostHook, result: AgentResult, dispatch: RunAgent
    ) -> PostOutcome:
        run = HookedRun(call=result.call, dispatch=dispatch, nearness=self._nearness)
        return await hook.after(run, result)

    async def _nearness(self, first: str, second: str, /) -> float | None:
        embedder = self.embedder
        if embedder is None:
            return None
        try:
            return await asyncio.to_thread(_cosine, embedder, first, second)
        except EmbeddingError as error:
            logger.warning("texts could not be compared by their vectors: %s", error)
            return None


def _cosine(embedder: SharedEmbedder, first: str, second: str) -> float:
    before, after = embedder.get().embed_passages([first, second])
    return cosines(before, [after])[0]


async def _executed(call: AgentCall, execute: RunAgent) -> AgentResult:
    try:
        return AgentResult(call=call, result=await execute(call))
    except ToolError as error:
        return AgentResult(call=call, error=str(error))


def with_notes(result: AgentResult, notes: Mapping[str, Json]) -> AgentResult:
    """Return the result with more notes about it."""
    return replace(result, notes={**result.notes, **notes})
