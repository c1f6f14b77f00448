"""The tool `react.background`: the model lists its calls in the background, waits for one of them, or stops it."""

from __future__ import annotations

from loopline.errors import ToolError
from loopline.models import JsonObject, ToolSpec
from loopline.timeline import BackgroundStop, ConversationKey, Timeline
from loopline.tools import parameters
from loopline.tools.functions import RerunnableTool
from loopline.tools.invocation import Background, ToolInvocation
from loopline.tools.outcome import Outcome

WAIT_SECONDS = 60
MOST_SECONDS = 600


class BackgroundTool(RerunnableTool):
    """The tool that lists, awaits and stops the calls of a conversation that run in the background."""

    spec: ToolSpec = ToolSpec(
        name="react.background",
        description=(
            "Calls that run in the background: mode=list names them, wait waits until call_id has ended, stop "
            "stops call_id. A result comes as a message by itself, also without waiting."
        ),
        parameters=parameters.object_schema(
            {
                "mode": {"type": "string", "enum": ["list", "wait", "stop"]},
                "call_id": {"type": "string", "description": "Such as c3; for wait and stop."},
                "seconds": parameters.limit_schema(WAIT_SECONDS, MOST_SECONDS),
            },
            "mode",
        ),
    )

    def __init__(self, background: Background, conversation: ConversationKey) -> None:
        self._background = background
        self._conversation = conversation

    def parse(self, arguments: JsonObject) -> tuple[str, str, int]:
        """Return the mode, the id of the call, which may be empty for a list, and the seconds to wait, 60 by default.

        Raises:
            ToolError: the mode is unknown, `call_id` is missing for wait or stop, or `seconds` is not from 1 to 600.
        """
        mode = parameters.text_argument(arguments, "mode")
        if mode not in ("list", "wait", "stop"):
            raise ToolError(f"mode={mode!r}: react.background knows list, wait and stop")
        call_id = parameters.optional_text(arguments, "call_id").strip()
        if mode != "list" and not call_id:
            raise ToolError(f"call_id: mode={mode!r} needs the id of a call, such as c3")
        seconds = parameters.integer_argument(arguments, "seconds", WAIT_SECONDS, MOST_SECONDS)
        return mode, call_id, seconds

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the running calls (mode list), wait at most `seconds` for a call (wait), or request its stop (stop).

        The mode wait says whether the call has ended. It returns at once for a call that does not run in the background.

        Raises:
            ToolError: an argument is invalid, or the call to stop does not run in the background.
        """
        mode, call_id, seconds = self.parse(arguments)
        running = _running(call.timeline)
        if mode == "list":
            lines = [f"- {id}: {tool}" for id, tool in running.items()]
            return Outcome(text="\n".join(lines) or "No call runs in the background.")
        if call_id not in running and mode == "wait":
            return Outcome(
                text=f"{call_id} does not run in the background. If it had a result, a message has it."
            )
        if call_id not in running:
            names = ", ".join(running) or "none does"
            raise ToolError(f"no call {call_id!r} runs in the background: {names}")
        if mode == "stop":
            text = f"{call_id} is being stopped: a message says when it has ended."
            return Outcome(text=text, bodies=(BackgroundStop(call_id=call_id),))
        await self._background.wait(self._conversation, call_id, seconds)
        if call_id in _running(call.timeline):
            return Outcome(text=f"{call_id} still runs. Its result comes as a message.")
        return Outcome(text=f"{call_id} has ended. Its result follows as a message.")


def _running(timeline: Timeline) -> dict[str, str]:
    """Return the tools of the calls that run in the background, by call id."""
    return {id: _tool_of(data) for id, (_, data) in timeline.background.calls.items()}


def _tool_of(data: object) -> str:
    match data:
        case {"tool": str(tool)}:
            return tool
        case _:
            return ""
