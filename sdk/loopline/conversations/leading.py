"""What the owner of a conversation's lease may do: begin turns, and end them."""

from __future__ import annotations

from loopline.clock import Clock
from loopline.events import Listen
from loopline.models import well_formed
from loopline.timeline import (
    Conversation,
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


class Leading:
    """A term in a conversation."""

    def __init__(
        self,
        log: TimelineLog,
        clock: Clock,
        conversation: Conversation,
        timeline: Timeline,
        term: int,
    ) -> None:
        self._log = log
        self._clock = clock
        self._conversation = conversation
        self._timeline = timeline
        self._term = term
        self._begun: dict[int, float] = {}

    async def recorder(self, number: int, listen: Listen) -> Recorder:
        """The pen of a turn; its time begins now."""
        self._begun[number] = self._clock.elapsed()
        summary = await self._log.find(self._conversation)
        return Recorder(
            self._log,
            self._timeline,
            conversation=self._conversation,
            uid=summary.uid if summary else "",
            turn=number,
            term=self._term,
            listener=listen,
        )

    async def interrupt_others(self, chosen: int) -> None:
        """End every turn that a runner began and left, save the chosen one."""
        for turn in self._timeline.cut:
            if turn.number != chosen:
                await self.end(await self.recorder(turn.number, lambda _: None), "interrupted")

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
        seconds = self._clock.elapsed() - self._begun[recorder.number]
        await recorder.record(
            Exit(
                reason=reason,
                error=well_formed(error),
                rounds=recorder.turn.rounds,
                elapsed_ms=round(seconds * 1000, 3),
            )
        )
