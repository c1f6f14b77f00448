"""What KDCube wraps every event in, and the counters of its deltas."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from loopline.events.moments import At, Emitted
from loopline.models import JsonObject
from loopline.timeline import ConversationKey, iso

Route = Literal[
    "chat_start",
    "chat_step",
    "chat_delta",
    "chat_complete",
    "chat_error",
    "chat_service",
    "conv_status",
]
Status = Literal["started", "running", "completed", "error", "skipped"]
Marker = Literal["thinking", "answer", "timeline_text", "canvas", "subsystem", "tool"]

_MARKERS: dict[str, Marker] = {
    "thinking": "thinking",
    "answer": "answer",
    "notes": "timeline_text",
    "canvas": "canvas",
    "tool": "tool",
}


_ROUTES: dict[str, Route] = {"chat_delta": "chat_delta", "chat_service": "chat_service"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What is said, before it is wrapped."""

    type: str
    route: Route
    step: str
    status: str
    title: str = ""
    markdown: str = ""
    agent: str = ""
    data: JsonObject = field(default_factory=JsonObject)
    delta: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """Whose events they are."""

    conversation: ConversationKey

    def around(self, at: At, agent: str, event: Event) -> JsonObject:
        """The event with every field of the envelope."""
        owner = self.conversation
        return {
            "type": event.type,
            "timestamp": iso(at.ts),
            "ts": _milliseconds(at.ts),
            "service": {
                "request_id": f"{owner.name}:{at.turn_id}",
                "tenant": owner.tenant,
                "project": owner.project,
                "user": owner.user,
                "user_type": "registered",
            },
            "conversation": {
                "session_id": owner.name,
                "conversation_id": owner.name,
                "turn_id": at.turn_id,
            },
            "event": {
                "agent": event.agent or agent,
                "step": event.step,
                "status": event.status,
                "title": event.title,
                "markdown": event.markdown,
            },
            "data": event.data,
            "delta": event.delta,
            "route": event.route,
            "extra": {},
        }


def emitted(moment: Emitted) -> Event:
    """The event of a tool or a workflow: what a `ChatCommunicator` has sent, else a step by its name.

    It never ends a turn: whatever its type, its route is that of a step, a delta or a service event.
    """
    match moment.data:
        case {"event": dict() as said, "data": dict() as data, "delta": delta, "route": route}:
            pass
        case data:
            said, delta, route = JsonObject(), None, "chat_step"
    own: JsonObject = data if isinstance(data, dict) else {"value": data}
    call: JsonObject = {"call_id": moment.call_id} if moment.call_id else {}
    return Event(
        type=moment.name,
        route=_ROUTES.get(str(route), "chat_step"),
        step=_text(said, "step", moment.name),
        status=_text(said, "status", "completed"),
        title=_text(said, "title"),
        markdown=_text(said, "markdown"),
        agent=_text(said, "agent"),
        data={**call, **own},
        delta=delta if isinstance(delta, dict) else None,
    )


def _text(said: JsonObject, name: str, otherwise: str = "") -> str:
    value = said.get(name)
    return value if isinstance(value, str) else otherwise


class Deltas:
    """How many deltas each channel has had, and which channels are still open."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._open = list[str]()

    def piece(self, channel: str, text: str) -> Event:
        """The next delta of a channel."""
        if channel not in self._open:
            self._open.append(channel)
        return self._next(channel, text, completed=False)

    def ends(self, *, keep: str = "") -> list[Event]:
        """The last deltas of the channels that are open, save the one that is kept open."""
        ending = [one for one in self._open if one != keep]
        self._open = [one for one in self._open if one == keep]
        return [self._next(channel, "", completed=True) for channel in ending]

    def void(self, channel: str) -> bool:
        """Begin a channel anew; whether it showed anything."""
        if channel not in self._open:
            return False
        self._open.remove(channel)
        del self._counts[channel]
        return True

    def _next(self, channel: str, text: str, *, completed: bool) -> Event:
        index = self._counts.get(channel, 0)
        self._counts[channel] = index + 1
        return Event(
            type="chat.delta",
            route="chat_delta",
            step=channel,
            status="completed" if completed else "running",
            delta={
                "text": text,
                "marker": marker(channel),
                "index": index,
                "completed": completed,
            },
        )


def marker(channel: str) -> Marker:
    """What KDCube calls the channel; one that it does not know is a subsystem's."""
    return _MARKERS.get(channel, "subsystem")


def _milliseconds(ts: datetime) -> int:
    return round(ts.timestamp() * 1000)
