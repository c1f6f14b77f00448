"""The communicator: a tool or a workflow sends events in the format of KDCube."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol, TypedDict, Unpack

from loopline.models import Json


class Emitter(Protocol):
    """An object that emits events: a tool's context or a workflow."""

    def emit(self, name: str, data: object = None, *, durable: bool = False) -> Awaitable[None]:
        """Send an event."""
        ...


class EventFields(TypedDict, total=False):
    """The optional fields of an event."""

    title: str
    data: Mapping[str, Json] | None
    markdown: str
    agent: str


class ChatCommunicator:
    """Sends events with ready-made fields from a tool or a workflow, through its `emit`.

    The name of each event is its type, such as `chat.step`. `start`, `complete` and `error` are sent as steps, because only
    the loop decides when a turn starts and ends. Each method raises the errors of `emit`.
    """

    def __init__(self, emitter: Emitter, *, durable: bool = False) -> None:
        """Send events by this emitter. With `durable`, all events except deltas are recorded."""
        self._emitter = emitter
        self._durable = durable

    def step(self, *, step: str, status: str, **fields: Unpack[EventFields]) -> Awaitable[None]:
        """Send a step of the work."""
        return self.event(type="chat.step", step=step, status=status, **fields)

    def delta(
        self,
        *,
        text: str,
        index: int,
        marker: str = "answer",
        completed: bool = False,
        agent: str = "",
    ) -> Awaitable[None]:
        """Send a part of a streamed text, which is never recorded.

        `marker` is the kind of text, and `index` the number of the part with this marker, from 0.
        """
        status = "completed" if completed else "running"
        envelope = _envelope(agent, marker, status, "", "")
        delta = {"text": text, "marker": marker, "index": index, "completed": completed}
        sent = {"event": envelope, "data": {}, "delta": delta, "route": "chat_delta"}
        return self._emitter.emit("chat.delta", sent)

    def event(
        self,
        *,
        type: str,
        step: str = "event",
        status: str = "completed",
        title: str = "",
        data: Mapping[str, Json] | None = None,
        markdown: str = "",
        agent: str = "",
        route: str = "chat_step",
    ) -> Awaitable[None]:
        """Send an event with any type and route; it is also recorded if the communicator is durable."""
        envelope = _envelope(agent, step, status, title, markdown)
        sent = {"event": envelope, "data": dict(data or {}), "delta": None, "route": route}
        return self._emitter.emit(type, sent, durable=self._durable)

    def service_event(
        self,
        *,
        type: str,
        step: str = "event",
        status: str = "completed",
        **fields: Unpack[EventFields],
    ) -> Awaitable[None]:
        """Send an event with the route of service events, outside the conversation."""
        return self.event(type=type, step=step, status=status, route="chat_service", **fields)

    def start(self, *, message: str, data: Mapping[str, Json] | None = None) -> Awaitable[None]:
        """Send a step that says that work on a message has started."""
        fields = {"message": message, **(data or {})}
        return self.event(type="chat.start", step="turn", status="started", data=fields)

    def complete(self, *, data: Mapping[str, Json]) -> Awaitable[None]:
        """Send a step that says that the work is complete."""
        return self.event(type="chat.complete", step="turn", status="completed", data=data)

    def error(
        self, *, message: str, title: str = "", data: Mapping[str, Json] | None = None
    ) -> Awaitable[None]:
        """Send a step with an error. The turn continues."""
        fields = {"error": message, **(data or {})}
        return self.event(type="chat.error", step="turn", status="error", title=title, data=fields)

    def emit(self, event: str, data: Mapping[str, Json]) -> Awaitable[None]:
        """Send data as an event with this name, without other fields."""
        return self._emitter.emit(event, data, durable=self._durable)


def _envelope(agent: str, step: str, status: str, title: str, markdown: str) -> dict[str, str]:
    return {"agent": agent, "step": step, "status": status, "title": title, "markdown": markdown}
