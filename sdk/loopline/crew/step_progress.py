"""Progress of a step of a graph: what its run thinks and calls, while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loopline.events import Delta, Event
from loopline.models import JsonObject
from loopline.timeline import Block, BodyUnion, Decision, GraphStep, ToolCalled

_ReadBody = Decision | ToolCalled
_READ = BodyUnion[_ReadBody](_ReadBody)


@dataclass(slots=True, eq=False)
class StepProgress:
    """The listener to the run of a step, which tells of each call as an `iteration`, and of each `thinking_delta`."""

    tell: Callable[[GraphStep, JsonObject], None]
    step: GraphStep
    iteration: int = 0

    def __call__(self, event: Event) -> None:
        """Tell of the event, if it is of the step's work."""
        match event:
            case Delta(type="delta", channel="thinking", text=text):
                self._tell({"event": "thinking_delta", "text": text})
            case Delta():
                pass
            case Block(body=body):
                if _READ.has(body):
                    self._take(body)

    def _take(self, body: _ReadBody) -> None:
        match body:
            case Decision(purpose=purpose):
                self.iteration += purpose == "decision"
            case ToolCalled(call_id=call_id, tool=tool):
                called: JsonObject = {"call_id": call_id, "tool": tool}
                self._tell({"event": "iteration", "iteration": self.iteration, **called})

    def _tell(self, data: JsonObject) -> None:
        self.tell(self.step, {"status": "running", **data})
