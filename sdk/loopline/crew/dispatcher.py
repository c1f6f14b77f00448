"""The dispatcher: runs calls of agents concurrently up to a limit, and returns their results in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from loopline.clock import Clock, elapsed_ms
from loopline.crew.agents import Agents
from loopline.crew.handoff import Handoff, parse_handoff
from loopline.errors import ToolError
from loopline.events import AgentEvent, AgentEventType, go_duration
from loopline.models import Json
from loopline.tasks import cancel_all
from loopline.timeline import ReflectionDue, Source, TurnResult
from loopline.tools import AskUser

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCall:
    """A call of an agent: the agent's name, its task, and further context and lessons of earlier work for its prompt."""

    agent: str
    task: str
    context: str = ""
    lessons: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """The outcome of a call: the result of its run, or the error that prevented a result.

    If `text` is set, it replaces the answer of the run. `notes` are findings of hooks by name, and `reflections` the
    requests for lessons.
    """

    call: AgentCall
    result: TurnResult | None = None
    error: str = ""
    text: str | None = None
    notes: Mapping[str, Json] = field(default_factory=dict[str, Json])
    reflections: tuple[ReflectionDue, ...] = ()

    @property
    def answer(self) -> str:
        """The `text` if it is set, otherwise the answer of the run; empty without a run."""
        if self.text is not None:
            return self.text
        return "" if self.result is None else self.result.answer

    @property
    def sources(self) -> Sequence[Source]:
        """The sources that the answer cites by `[1]`, `[2]` and so on."""
        return () if self.result is None else self.result.sources

    @property
    def problem(self) -> str:
        """The reason why the agent did not finish its task, or an empty text."""
        if self.result is None:
            return "" if self.text is not None and not self.error else self.error or "no result"
        if self.result.exit_reason == "complete":
            return ""
        return self.result.error or self.result.exit_reason

    @property
    def handoff(self) -> Handoff:
        """The handoff that the answer contains."""
        return parse_handoff(self.answer)


ExecuteAgent = Callable[[AgentCall, int], Awaitable[AgentResult]]
"""Runs one call and returns its outcome; the index, from 0, is its position among the calls of the dispatcher.

Raises:
    ToolError: the run could not be begun, or its code failed.
"""


async def run_all(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at once, and return their results in order; if some fail, raise the error of the first failed one.

    All have ended when this returns or raises: a failure does not cancel the other coroutines.
    """
    running = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*running, return_exceptions=True)
    finally:
        await cancel_all(*running)
    return [task.result() for task in running]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    """Runs calls of agents at once, as many as there are free `slots`, a semaphore that other dispatchers may share.

    For each call `on_event` receives one start event and then one end event; a call that is cancelled while it is queued
    has only the end event. The first call has the id `call_id`, the next calls `<call_id>.2` and so on.
    """

    agents: Agents
    execute: ExecuteAgent
    clock: Clock
    slots: asyncio.Semaphore
    on_event: Callable[[AgentEvent], None]
    call_id: str = ""
    results: dict[int, AgentResult] = field(default_factory=dict[int, AgentResult], init=False)

    @property
    def reflections(self) -> tuple[ReflectionDue, ...]:
        """The requests for lessons of the calls that have ended, in the order of the calls."""
        results = (self.results[index] for index in sorted(self.results))
        return tuple(due for result in results for due in result.reflections)

    async def dispatch(self, calls: Sequence[AgentCall], first: int = 0) -> list[AgentResult]:
        """Run the calls and return their results in the order of the calls; `first` is the index of the first call.

        All calls have ended when this returns or raises.

        Raises:
            StoreError: the store failed.
            AskUser: an agent asks the user.
        """
        total = first + len(calls)
        return await run_all(
            [self._run_queued(call, first + index, total) for index, call in enumerate(calls)]
        )

    async def _run_queued(self, call: AgentCall, index: int, total: int) -> AgentResult:
        """Wait for a free slot and run the call; if it is cancelled while it waits, emit an event that it failed."""
        try:
            await self.slots.acquire()
        except asyncio.CancelledError:
            self._report("Failed", call, index, total, error="cancelled before it was begun")
            raise
        try:
            return await self._run(call, index, total)
        finally:
            self.slots.release()

    async def _run(self, call: AgentCall, index: int, total: int) -> AgentResult:
        """Emit a start event, run the call, emit an end event, and return the result, which is also stored by index.

        A ToolError, such as for an unknown agent, is returned as the error of a result; other errors are raised.
        """
        start = self.clock.elapsed()
        self._report("Started", call, index, total)
        error = "cancelled"
        try:
            self.agents.find(call.agent)
            outcome = self.results[index] = await self.execute(call, index)
            error = outcome.problem
        except AskUser:
            error = "it waits for the user"
            raise
        except ToolError as failure:
            error = str(failure)
            outcome = AgentResult(call=call, error=error)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            duration = go_duration(elapsed_ms(self.clock, start))
            kind: AgentEventType = "Failed" if error else "Completed"
            self._report(kind, call, index, total, duration=duration, error=error)
        return outcome

    def _report(
        self,
        kind: AgentEventType,
        call: AgentCall,
        index: int,
        total: int,
        *,
        duration: str = "",
        error: str = "",
    ) -> None:
        """Pass an event about a call to `on_event`, with the id of the call and its index in the `total` calls."""
        self.on_event(
            AgentEvent(
                type=kind,
                call_id=self.call_id if index == 0 else f"{self.call_id}.{index + 1}",
                agent=call.agent,
                task=call.task,
                duration=duration,
                error=error,
                index=index,
                total=total,
            )
        )


def feedback(results: Sequence[AgentResult]) -> str:
    """Render the results for the calling model: the status and output of each agent, and advice on failures.

    The marks `[1]` of each result are renumbered to positions in the list of the sources of all results.
    """
    offset = 0
    parts: list[str] = []
    for number, outcome in enumerate(results, 1):
        parts.append(_render_result(number, outcome, offset))
        offset += len(outcome.sources)
    failed = [outcome for outcome in results if outcome.problem]
    if failed:
        names = ", ".join(dict.fromkeys(outcome.call.agent for outcome in failed))
        parts.append(
            f"{len(failed)} of {len(results)} did not finish ({names}): correct the task and call the agent "
            "again, or go on without it."
        )
    return "\n\n".join(parts)


def _render_result(number: int, outcome: AgentResult, offset: int) -> str:
    """Render a result: agent and status and, with an answer, the handoff and the notes of the hooks."""
    status = f"failed: {outcome.problem}" if outcome.problem else "completed"
    heading = f"({number}) {outcome.call.agent}, {status}"
    if not outcome.answer.strip():
        return heading
    handoff = outcome.handoff.with_positions(len(outcome.sources), offset)
    notes = [f"{name}: {value}" for name, value in outcome.notes.items()]
    return "\n".join([heading, f"{handoff}", *notes])
