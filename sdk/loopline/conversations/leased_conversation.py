"""What the owner of a conversation's lease may do: begin turns, and end them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from loopline.clock import Clock
from loopline.models import well_formed
from loopline.timeline import (
    Block,
    ConversationKey,
    Exit,
    ExitReason,
    Recorder,
    ResultStatus,
    Timeline,
    TimelineLog,
    ToolResult,
)

_CUT: dict[ResultStatus, str] = {
    "stopped": "Stopped by the user before there was a result.",
    "interrupted": "The turn was cut off before there was a result.",
}


async def settled(step: Coroutine[Any, Any, None]) -> None:
    """Take a step to its end although cancelled meanwhile; the cancellation is raised after it."""
    task, cancelled = asyncio.ensure_future(step), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


class LeasedConversation:
    """A term in a conversation."""

    def __init__(
        self,
        log: TimelineLog,
        clock: Clock,
        conversation: ConversationKey,
        uid: str,
        timeline: Timeline,
        term: int,
        end_children: EndChildren,
    ) -> None:
        self._log = log
        self._clock = clock
        self._term = term
        self._end_children = end_children
        self.conversation = conversation
        self.uid = uid
        self.timeline = timeline

    def recorder(self, number: int, listen: Callable[[Block], None]) -> Recorder:
        """The pen of a turn; its time passes from now on."""
        return Recorder(
            self._log,
            self.timeline,
            conversation=self.conversation,
            uid=self.uid,
            turn=number,
            term=self._term,
            clock=self._clock,
            listener=listen,
        )

    async def interrupt_others(
        self, chosen: int, watched: Callable[[int], Callable[[Block], None]]
    ) -> None:
        """End every turn that a runner began and left, save the chosen one."""
        for turn in self.timeline.unfinished:
            if turn.number != chosen:
                recorder = self.recorder(turn.number, watched(turn.number))
                await settled(self.end(recorder, "interrupted"))

    async def end(
        self,
        recorder: Recorder,
        reason: ExitReason,
        error: str = "",
        *,
        status: ResultStatus = "interrupted",
        by_bundle: bool = False,
    ) -> None:
        """Give the open calls of a turn a result that says why there is none, and end it.

        Its child runs that have not ended, such as one that waits for the user, end before it. `by_bundle` says
        that it was the bundle's own code that failed.
        """
        recorder.round = recorder.turn.rounds
        await self._end_children(self, recorder, status)
        cut = [
            ToolResult(call_id=call.call_id, tool=call.tool, text=_CUT[status], status=status)
            for call in recorder.turn.open_calls.values()
        ]
        if cut:
            await recorder.record(*cut)
        recorder.round = 0
        await recorder.record(
            Exit(
                reason=reason,
                error=well_formed(error),
                by_bundle=by_bundle,
                rounds=recorder.turn.rounds,
                elapsed_ms=recorder.elapsed_ms,
            )
        )


EndChildren = Callable[[LeasedConversation, Recorder, ResultStatus], Awaitable[None]]
"""Ends the child runs of a turn that have not ended, such as one that waits for the user, and records in the turn
what each of them used."""
