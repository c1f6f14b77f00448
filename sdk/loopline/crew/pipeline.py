"""The quality pipeline: hooks before and after the run of an agent, isolated from the run and from each other.

Hooks that are added during a run are called from the next run on. The run continues without a hook that fails, takes
too long or is blocked by its circuit breaker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from loopline.clock import Clock, done_within
from loopline.crew.dispatcher import AgentCall, AgentResult
from loopline.errors import LooplineError, StoreError, ToolError
from loopline.models import Json
from loopline.react.extensions import PRIORITY, CircuitBreaker, TimeLimit
from loopline.search import EmbeddingError, SharedEmbedder, cosines
from loopline.timeline import TurnResult

T = TypeVar("T")
Hook = TypeVar("Hook")
logger: logging.Logger = logging.getLogger("loopline")

HOOK_SECONDS = 30.0
"""Seconds that a hook may take; the time stops while an agent works for the hook."""

RunAgent = Callable[[AgentCall], Awaitable[TurnResult]]
"""Runs an agent, for a hook or as the run itself, and returns the result.

Raises:
    ToolError: the run could not be begun, or its code failed.
"""

CompareMeaning = Callable[[str, str], Awaitable[float | None]]
"""Returns the cosine similarity of two texts by the bundle's embedder; None without an embedder, or if it fails."""

RecallLessons = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns lessons of the user's earlier turns about such a task, at most the given number."""


async def no_lessons(task: str, most: int, /) -> Sequence[str]:
    """Return no lessons, for a run that cannot search the memory."""
    del task, most
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedRun:
    """The run that a hook is called for: the call of the agent, and `dispatch`, which runs other agents for the hook.

    `nearness` compares the meaning of two texts, and `recall` finds lessons for a task.
    """

    call: AgentCall
    dispatch: RunAgent
    nearness: CompareMeaning
    recall: RecallLessons


@dataclass(frozen=True, slots=True)
class NewCall:
    """A hook before the run has changed the call of the agent."""

    call: AgentCall


@dataclass(frozen=True, slots=True)
class SkipRun:
    """The agent does not run: this is its answer. Hooks after the run are called as always."""

    answer: str


@dataclass(frozen=True, slots=True)
class SkipHooks:
    """The remaining hooks of this phase are not called; the result is kept, or replaced by `result` if it is set."""

    result: AgentResult | None = None


PreOutcome = NewCall | SkipRun | SkipHooks | None
PostOutcome = AgentResult | SkipHooks | None


class PreHook(Protocol):
    """A hook that is called before an agent runs."""

    async def before(self, run: HookedRun) -> PreOutcome:
        """Return the change to the run, or None to leave it unchanged."""
        ...


class PostHook(Protocol):
    """A hook that is called after an agent has run, also if it failed."""

    async def after(self, run: HookedRun, result: AgentResult) -> PostOutcome:
        """Return another result, or None to keep `result`."""
        ...


@dataclass(slots=True, eq=False)
class _HookEntry(Generic[Hook]):
    """A hook of a pipeline with its circuit breaker, which all runs share; `number` is unique in the pipeline."""

    hook: Hook
    priority: int
    number: int
    circuit: CircuitBreaker


@dataclass(slots=True, eq=False, kw_only=True)
class QualityPipeline:
    """Hooks around the runs of agents: a lower priority first, equal priorities in the order in which they were added.

    With `enabled` False no hook is called. A hook may take `hook_seconds`. `generation` counts the hooks that were added.
    """

    clock: Clock
    enabled: bool = True
    hook_seconds: float = HOOK_SECONDS
    embedder: SharedEmbedder | None = None
    generation: int = field(default=0, init=False)
    _before: tuple[_HookEntry[PreHook], ...] = field(default=(), init=False)
    _after: tuple[_HookEntry[PostHook], ...] = field(default=(), init=False)
    _runs_in_flight: int = field(default=0, init=False)
    _draining: bool = field(default=False, init=False)
    _idle: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def add_before(self, hook: PreHook, priority: int = PRIORITY) -> None:
        """Add a hook before the run.

        Raises:
            LooplineError: the pipeline is being drained.
        """
        self._before = self._insert_hook(self._before, hook, priority)

    def add_after(self, hook: PostHook, priority: int = PRIORITY) -> None:
        """Add a hook after the run.

        Raises:
            LooplineError: the pipeline is being drained.
        """
        self._after = self._insert_hook(self._after, hook, priority)

    def _insert_hook(
        self, entries: Sequence[_HookEntry[Hook]], hook: Hook, priority: int
    ) -> tuple[_HookEntry[Hook], ...]:
        """Return the entries with the hook, sorted by priority; raise a LooplineError if the pipeline is drained."""
        if self._draining:
            raise LooplineError("the pipeline is being drained: it accepts no more hooks")
        self.generation += 1
        entry = _HookEntry(hook, priority, self.generation, CircuitBreaker(self.clock))
        return tuple(sorted([*entries, entry], key=attrgetter("priority")))

    async def run(
        self,
        call: AgentCall,
        execute: RunAgent,
        dispatch: Callable[[int], RunAgent],
        recall: RecallLessons = no_lessons,
    ) -> AgentResult:
        """Run an agent with `execute`, and return its result as changed by the hooks before and after the run.

        A ToolError of the run becomes the error of the result.

        `dispatch` maps the number of a hook to the function with which the hook runs other agents.

        Raises:
            StoreError: the store failed.
        """
        if not (self._calls_hooks and (self._before or self._after)):
            return await _execute(call, execute)
        after = self._after  # hooks that are added from now on are not called for this run
        with self._count_run():
            call, answer = await self._call_before(self._before, call, dispatch, recall)
            if answer is None:
                result = await _execute(call, execute)
            else:
                result = AgentResult(call=call, text=answer)
            return await self._call_after(after, result, dispatch)

    async def prepare(self, call: AgentCall, dispatch: Callable[[int], RunAgent]) -> AgentCall:
        """Return the call as changed by the hooks before the run, without running the agent.

        Hooks find no lessons here, and the answer of a hook that skips the run is dropped.
        """
        if not self._calls_hooks:
            return call
        with self._count_run():
            call, _ = await self._call_before(self._before, call, dispatch, no_lessons)
        return call

    async def review(self, result: AgentResult, dispatch: Callable[[int], RunAgent]) -> AgentResult:
        """Return a result as the hooks after the run change it."""
        if not self._calls_hooks:
            return result
        with self._count_run():
            return await self._call_after(self._after, result, dispatch)

    async def drain(self, seconds: float) -> bool:
        """Stop calling hooks for new runs, and wait at most `seconds` for the runs in flight.

        Returns whether all of them have ended.
        """
        self._draining = True
        if self._runs_in_flight:
            await done_within(self.clock, seconds, self._idle.wait())
        return not self._runs_in_flight

    @property
    def _calls_hooks(self) -> bool:
        return self.enabled and not self._draining

    @contextmanager
    def _count_run(self) -> Generator[None]:
        """Count a run as in flight inside this context."""
        self._runs_in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._runs_in_flight -= 1
            if not self._runs_in_flight:
                self._idle.set()

    async def _call_before(
        self,
        entries: Sequence[_HookEntry[PreHook]],
        call: AgentCall,
        dispatch: Callable[[int], RunAgent],
        recall: RecallLessons,
    ) -> tuple[AgentCall, str | None]:
        """Return the call as changed by the hooks, and the answer of a hook that skips the run, otherwise None.

        The changed call of a hook is ignored if its task is blank.
        """
        for entry in entries:
            match await self._isolate(entry, entry.hook.before, call, dispatch, recall):
                case NewCall(call=changed):
                    # An empty task could not be run, so it is a mistake of the hook.
                    call = changed if changed.task.strip() else call
                case SkipRun(answer=answer):
                    return call, answer
                case SkipHooks():
                    break
                case None:
                    pass
        return call, None

    async def _call_after(
        self,
        entries: Sequence[_HookEntry[PostHook]],
        result: AgentResult,
        dispatch: Callable[[int], RunAgent],
    ) -> AgentResult:
        """Call the hooks in order, each with the result of the previous hook, until one returns `SkipHooks`."""
        for entry in entries:
            review = partial(_review, entry.hook, result)
            match await self._isolate(entry, review, result.call, dispatch, no_lessons):
                case AgentResult() as changed:
                    result = changed
                case SkipHooks(result=changed):
                    result = changed or result
                    break
                case None:
                    pass
        return result

    async def _isolate(
        self,
        entry: _HookEntry[Hook],
        work: Callable[[HookedRun], Awaitable[T]],
        call: AgentCall,
        dispatch: Callable[[int], RunAgent],
        recall: RecallLessons,
    ) -> T | None:
        """Return the outcome of a hook; None if it is blocked, fails or takes too long.

        The time of the agents that it runs does not count. A failure is logged; several in a row block
        the hook for some time.

        Raises:
            StoreError: the store failed.
        """
        if not entry.circuit.try_call():
            return None
        time = TimeLimit(self.hook_seconds, self.clock)
        run_agent = dispatch(entry.number)

        def run_untimed(call: AgentCall) -> Awaitable[TurnResult]:
            return time.exclude(lambda: run_agent(call))

        run = HookedRun(call=call, dispatch=run_untimed, nearness=self._compare, recall=recall)
        try:
            outcome = await time.limit(work(run), entry.hook)
        except StoreError:
            raise  # without its store the run cannot go on
        except Exception:
            logger.exception("%r failed, and the run goes on without it", entry.hook)
            entry.circuit.record_failure()
            return None
        entry.circuit.record_success()
        return outcome

    async def _compare(self, first: str, second: str, /) -> float | None:
        """Return the cosine of two texts; None without an embedder, or if it fails, which is logged."""
        embedder = self.embedder
        if embedder is None:
            return None
        try:
            return await asyncio.to_thread(_cosine, embedder, first, second)
        except EmbeddingError as error:
            logger.warning("texts could not be compared by their vectors: %s", error)
            return None


async def _review(hook: PostHook, result: AgentResult, run: HookedRun) -> PostOutcome:
    return await hook.after(run, result)


def _cosine(embedder: SharedEmbedder, first: str, second: str) -> float:
    before, after = embedder.get().embed_passages([first, second])
    return cosines(before, [after])[0]


async def _execute(call: AgentCall, execute: RunAgent) -> AgentResult:
    try:
        return AgentResult(call=call, result=await execute(call))
    except ToolError as error:
        return AgentResult(call=call, error=str(error))


def with_notes(result: AgentResult, notes: Mapping[str, Json]) -> AgentResult:
    """Return the result with these notes added; a note of the same name is replaced."""
    return replace(result, notes={**result.notes, **notes})
