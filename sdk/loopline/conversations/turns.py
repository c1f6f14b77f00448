"""Turns and their boundaries: one at a time in a conversation, each begun once and ended once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakValueDictionary

from loopline.clock import Clock
from loopline.conversations.leading import Leading
from loopline.errors import LeaseLost, LooplineError, StoreError
from loopline.events import Event, Listen
from loopline.react import Limits, TurnPayload, TurnResult, late_input, recalled, result
from loopline.timeline import (
    Block,
    Conversation,
    Recorder,
    Timeline,
    TimelineLog,
    UserPrompt,
    turn_id,
)

Hear = Callable[[Event], None]

_log = logging.getLogger("loopline")
_inside: ContextVar[frozenset[Conversation]] = ContextVar("_inside", default=frozenset())


class Process(Protocol):
    """What a turn does: it records into the turn, and returns what came of it."""

    async def __call__(
        self, recorder: Recorder, payload: TurnPayload, limits: Limits, listen: Listen
    ) -> TurnResult:
        """Run the turn; `turn.header` is the first thing it records, `react.exit` is not its own."""
        ...


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[TurnResult]
    stopping: bool = False


class Turns:
    """Runs the turns of a harness's conversations."""

    def __init__(self, log: TimelineLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._running: dict[Conversation, _Running] = {}
        self._queues: WeakValueDictionary[Conversation, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[TurnResult]] = set()

    async def run(
        self, conversation: Conversation, number: int, process: Process, hear: Hear | None
    ) -> TurnResult:
        """Run the turn of that number once the conversation is free.

        A turn that another runner left unfinished is ended first, as interrupted; one that was asked
        for before this one, and that nobody has run, is run first.

        Raises:
            LooplineError: this is called from within a turn of the conversation.
        """
        self.check_outside(conversation)
        return await self._apart(self._led(conversation, number, process, Limits(), hear))

    async def resume(
        self, conversation: Conversation, process: Process, limits: Limits, hear: Hear | None
    ) -> TurnResult:
        """Carry on the oldest turn that was cut off, or begin the oldest that was never begun.

        Raises:
            LooplineError: there is none, or this is called from within a turn of the conversation.
        """
        self.check_outside(conversation)
        return await self._apart(self._led(conversation, None, process, limits, hear))

    async def stop(self, conversation: Conversation) -> None:
        """End the running turn, and wait until it has ended; without one nothing happens."""
        running = self._running.get(conversation)
        if running is not None:
            running.stopping = True
            running.task.cancel()
            await asyncio.wait([running.task])

    async def close(self) -> None:
        """Stop every turn that still runs; those that wait for their turn stay pending."""
        for conversation in list(self._running):
            await self.stop(conversation)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def check_outside(self, conversation: Conversation) -> None:
        """Refuse to wait for a conversation from within its own turn, which would be for ever.

        Raises:
            LooplineError: this is called from within a turn of the conversation.
        """
        if conversation in _inside.get():
            raise LooplineError(
                f"conversation {conversation.name!r} is held by the very turn that says this: "
                "return it as the tool's result, or use followup"
            )

    async def _apart(self, led: Coroutine[Any, Any, TurnResult]) -> TurnResult:
        """Run in a task of its own, so that `stop` ends the turn and not whoever waits for it."""
        task = asyncio.create_task(led)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # it is in the log; the cancellation is what the caller hears of
            raise

    async def _led(
        self,
        conversation: Conversation,
        number: int | None,
        process: Process,
        limits: Limits,
        hear: Hear | None,
    ) -> TurnResult:
        _inside.set(_inside.get() | {conversation})
        queue = self._queues.setdefault(conversation, asyncio.Lock())
        async with queue, self._log.lease(conversation) as term:
            timeline = Timeline(await self._log.read(conversation))
            chosen = _to_carry_on(timeline) if number is None else number
            lead = Leading(self._log, self._clock, conversation, timeline, term)
            _replay(timeline, chosen, hear)
            end = timeline.turn(chosen).exit
            if end is not None:
                return result(timeline, chosen, end.reason, end.error)
            await lead.interrupt_others(chosen)
            running = self._begin(conversation)
            try:
                for turn in [turn for turn in timeline.unbegun if turn.number < chosen]:
                    await self._run_for_another(lead, turn.number, process, running)
                recorder = await lead.recorder(chosen, hear or _nobody)
                if running.stopping:
                    await lead.end(recorder, "stopped", status="stopped")
                    return result(timeline, chosen, "stopped")
                return await self._bounded(lead, recorder, process, limits, hear, running)
            finally:
                del self._running[conversation]

    def _begin(self, conversation: Conversation) -> _Running:
        task = asyncio.current_task()
        if task is None:
            raise LooplineError("a turn runs in a task")
        self._running[conversation] = _Running(task)
        return self._running[conversation]

    async def _run_for_another(
        self, lead: Leading, number: int, process: Process, running: _Running
    ) -> None:
        """Run a turn whose sender has not come to it, or has died; it hears of it from the log."""
        if running.stopping:
            return
        recorder = await lead.recorder(number, _nobody)
        try:
            await self._bounded(lead, recorder, process, Limits(), None, running)
        except StoreError:
            raise
        except LooplineError as error:
            _log.warning("%s was run for its sender, and failed: %s", turn_id(number), error)

    async def _bounded(
        self,
        lead: Leading,
        recorder: Recorder,
        process: Process,
        limits: Limits,
        hear: Hear | None,
        running: _Running,
    ) -> TurnResult:
        payload, asked = _asked(recorder)
        try:
            done = await process(recorder, payload, {**asked, **limits}, hear or _nobody)
        except asyncio.CancelledError:
            await lead.end(recorder, "stopped", status="stopped")
            if not running.stopping:
                raise
            running.task.uncancel()
            return result(recorder.timeline, recorder.number, "stopped")
        except LeaseLost:
            raise
        except Exception as error:
            await lead.end(recorder, "error", str(error))
            raise
        await lead.end(recorder, done.exit_reason, done.error)
        return replace(done, late_input=late_input(recorder.timeline))


def _to_carry_on(timeline: Timeline) -> int:
    waiting = [*timeline.cut, *timeline.unbegun]
    if not waiting:
        raise LooplineError("there is nothing to carry on: every turn has ended; say something")
    return waiting[0].number


def _asked(recorder: Recorder) -> tuple[TurnPayload, Limits]:
    """What the turn is about and under which limits, as the log has it."""
    match recorder.turn.prompt:
        case Block(body=UserPrompt(text=text, limits=limits), ts=ts):
            payload = TurnPayload(
                text=text,
                conversation=recorder.conversation.name,
                turn_id=turn_id(recorder.number),
                ts=ts,
                tenant=recorder.conversation.tenant,
                project=recorder.conversation.project,
                user=recorder.conversation.user,
            )
            return payload, recalled(limits)
        case _:
            raise LooplineError(f"{turn_id(recorder.number)} has no prompt to answer to")


def _replay(timeline: Timeline, number: int, hear: Hear | None) -> None:
    """Let the listener hear what the turn holds already: its prompt, at least."""
    if hear is None:
        return
    for block in timeline:
        if block.turn == number:
            hear(block)


def _nobody(event: Event) -> None:
    """Hear nothing."""
