"""Turns and their boundaries: one at a time in a conversation, each begun once and ended once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from loopline.clock import Clock
from loopline.errors import LeaseLost, LooplineError
from loopline.events import Event, Listen
from loopline.react import Limits, TurnPayload, TurnResult, result
from loopline.timeline import (
    Conversation,
    Exit,
    ExitReason,
    Recorder,
    ResultStatus,
    Timeline,
    TimelineLog,
    ToolResult,
    UserPrompt,
    turn_id,
)

Hear = Callable[[Event], None]

_CUT: dict[ResultStatus, str] = {
    "stopped": "Stopped by the user before there was a result.",
    "interrupted": "The turn was cut off before there was a result.",
}


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

    async def run(
        self,
        conversation: Conversation,
        number: int,
        process: Process,
        limits: Limits,
        hear: Hear | None,
    ) -> TurnResult:
        """Run the turn of that number once the conversation is free.

        Turns that another runner left unfinished are ended first, as interrupted.
        """
        return await self._watched(self._led(conversation, number, process, limits, hear))

    async def resume(
        self, conversation: Conversation, process: Process, limits: Limits, hear: Hear | None
    ) -> TurnResult:
        """Carry on the oldest turn that was cut off, or begin the oldest that was never begun.

        Raises:
            LooplineError: there is none.
        """
        return await self._watched(self._led(conversation, None, process, limits, hear))

    async def stop(self, conversation: Conversation) -> None:
        """End the running turn, and wait until it has ended; without one nothing happens."""
        running = self._running.get(conversation)
        if running is not None:
            running.stopping = True
            running.task.cancel()
            await asyncio.wait([running.task])

    async def _watched(self, conduct: Coroutine[Any, Any, TurnResult]) -> TurnResult:
        """Run in a task of its own, so that `stop` ends the turn and not whoever waits for it."""
        task = asyncio.create_task(conduct)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            raise

    async def _led(
        self,
        conversation: Conversation,
        number: int | None,
        process: Process,
        limits: Limits,
        hear: Hear | None,
    ) -> TurnResult:
        task = asyncio.current_task()
        assert task is not None  # a coroutine that runs is always in a task
        listen: Listen = hear or _nobody
        async with self._log.lease(conversation) as term:
            timeline = Timeline(await self._log.read(conversation))
            chosen = _to_carry_on(timeline) if number is None else number
            writer = _Writer(self._log, self._clock, conversation, timeline, term, listen)
            recorder = await writer.recorder(chosen)
            if recorder.turn.exit is not None:
                return result(timeline, chosen, recorder.turn.exit.reason)
            await writer.interrupt_others(chosen)
            self._running[conversation] = _Running(task)
            try:
                return await self._bounded(recorder, writer, process, limits, listen)
            finally:
                del self._running[conversation]

    async def _bounded(
        self,
        recorder: Recorder,
        writer: _Writer,
        process: Process,
        limits: Limits,
        listen: Listen,
    ) -> TurnResult:
        try:
            done = await process(recorder, _payload(recorder), limits, listen)
        except asyncio.CancelledError:
            running = self._running[recorder.conversation]
            await writer.end(recorder, "stopped", status="stopped")
            if not running.stopping:
                raise
            running.task.uncancel()
            return result(recorder.timeline, recorder.number, "stopped")
        except LeaseLost:
            raise
        except Exception as error:
            await writer.end(recorder, "error", str(error))
            raise
        await writer.end(recorder, done.exit_reason, done.error)
        return done


class _Writer:
    """Ends turns: the open calls get their result, then comes `react.exit`."""

    def __init__(
        self,
        log: TimelineLog,
        clock: Clock,
        conversation: Conversation,
        timeline: Timeline,
        term: int,
        listen: Listen,
    ) -> None:
        self._log = log
        self._clock = clock
        self._conversation = conversation
        self._timeline = timeline
        self._term = term
        self._listen = listen
        self._start = clock.elapsed()

    async def recorder(self, number: int) -> Recorder:
        """The pen of a turn of the conversation."""
        summary = await self._log.find(self._conversation)
        return Recorder(
            self._log,
            self._timeline,
            conversation=self._conversation,
            uid=summary.uid if summary else "",
            turn=number,
            term=self._term,
            listener=self._listen,
        )

    async def interrupt_others(self, chosen: int) -> None:
        """End every turn that a runner began and left, save the chosen one."""
        for turn in self._timeline.cut:
            if turn.number != chosen:
                await self.end(await self.recorder(turn.number), "interrupted")

    async def end(
        self,
        recorder: Recorder,
        reason: ExitReason,
        error: str = "",
        *,
        status: ResultStatus = "interrupted",
    ) -> None:
        """Give the open calls of a turn a result that says why there is none, and end it."""
        recorder.round = recorder.turn.rounds
        cut = [
            ToolResult(call_id=call.call_id, tool=call.tool, text=_CUT[status], status=status)
            for call in recorder.turn.open_calls.values()
        ]
        if cut:
            await recorder.record(*cut)
        recorder.round = 0
        elapsed_ms = round((self._clock.elapsed() - self._start) * 1000, 3)
        rounds = recorder.turn.rounds
        await recorder.record(
            Exit(reason=reason, error=error, rounds=rounds, elapsed_ms=elapsed_ms)
        )


def _to_carry_on(timeline: Timeline) -> int:
    waiting = [*timeline.cut, *timeline.unbegun]
    if not waiting:
        raise LooplineError("there is nothing to carry on: every turn has ended; say something")
    return waiting[0].number


def _payload(recorder: Recorder) -> TurnPayload:
    """What the turn is about, as the log has it."""
    prompt = recorder.turn.prompt
    match prompt.body if prompt else None:
        case UserPrompt(text=text) if prompt is not None:
            return TurnPayload(
                text=text,
                conversation=recorder.conversation.name,
                turn_id=turn_id(recorder.number),
                ts=prompt.ts,
                tenant=recorder.conversation.tenant,
                project=recorder.conversation.project,
                user=recorder.conversation.user,
            )
        case _:
            raise LooplineError(f"{turn_id(recorder.number)} has no prompt to answer to")


def _nobody(event: Event) -> None:
    """Hear nothing."""
