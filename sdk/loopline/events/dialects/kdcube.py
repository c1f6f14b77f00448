"""What KDCube wraps every event in, and the counters of its deltas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from loopline.events.dialects.encoder import RecordDraft
from loopline.events.turn_events import (
    UNANSWERED,
    AnswerGiven,
    AnswerStarted,
    CallFinished,
    CallStarted,
    ChildFinished,
    ChildStarted,
    CitedSource,
    ContextCompacted,
    CustomEmitted,
    DecisionMade,
    EventMeta,
    InputAccepted,
    InputRequested,
    InputTaken,
    ProgressReported,
    RoundStarted,
    SelectionStarted,
    TextReset,
    TextStreamed,
    TurnEvent,
    TurnFinished,
    TurnPaused,
    TurnStarted,
)
from loopline.models import Json, JsonObject, Usage
from loopline.timeline import ConversationKey, ResultStatus, iso_time

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
class KdCubeEvent:
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

    def around(self, at: EventMeta, agent: str, event: KdCubeEvent) -> JsonObject:
        """The event with every field of the envelope."""
        owner = self.conversation
        return {
            "type": event.type,
            "timestamp": iso_time(at.ts),
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


def emitted(moment: CustomEmitted) -> KdCubeEvent:
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
    return KdCubeEvent(
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


class DeltaCounters:
    """How many deltas each channel has had, and which channels are still open."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._open = list[str]()

    def piece(self, channel: str, text: str) -> KdCubeEvent:
        """The next delta of a channel."""
        if channel not in self._open:
            self._open.append(channel)
        return self._next(channel, text, completed=False)

    def ends(self, *, keep: str = "") -> list[KdCubeEvent]:
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

    def _next(self, channel: str, text: str, *, completed: bool) -> KdCubeEvent:
        index = self._counts.get(channel, 0)
        self._counts[channel] = index + 1
        return KdCubeEvent(
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


_STATUSES: dict[ResultStatus, Status] = {
    "ok": "completed",
    "denied": "skipped",
    "error": "error",
    "interrupted": "error",
    "stopped": "error",
}


class KdCube:
    """The agent of every event is the bundle."""

    def __init__(self, conversation: ConversationKey) -> None:
        self._envelope = Envelope(conversation)
        self._agent = ""
        self._deltas = DeltaCounters()

    def say(self, at: EventMeta, moment: TurnEvent) -> Iterator[RecordDraft]:
        """The words for a moment; what ends deltas comes before, and does not last."""
        match moment:
            case TurnStarted(bundle=bundle):
                self._agent, self._deltas = bundle, DeltaCounters()
            case _:
                pass
        for event in self._endings(moment):
            yield self._word(at, event, lasts=False)
        for event in _said(moment):
            yield self._word(at, event)
        for event in self._written(moment):
            yield self._word(at, event)

    def _word(self, at: EventMeta, event: KdCubeEvent, *, lasts: bool = True) -> RecordDraft:
        name = "reset" if event.type == "reset" else event.route
        return RecordDraft(name, self._envelope.around(at, self._agent, event), lasts)

    def _endings(self, moment: TurnEvent) -> list[KdCubeEvent]:
        match moment:
            case DecisionMade(purpose="decision"):
                return self._deltas.ends(keep="answer")
            case AnswerGiven() | TurnPaused() | TurnFinished():
                return self._deltas.ends()
            case _:
                return []

    def _written(self, moment: TurnEvent) -> Iterator[KdCubeEvent]:
        match moment:
            case TextStreamed(channel=channel, text=text):
                yield self._deltas.piece(channel, text)
            case TextReset(channel=channel) if self._deltas.void(channel):
                void: JsonObject = {"channel": channel, "marker": marker(channel)}
                yield KdCubeEvent(
                    type="reset", route="chat_delta", step=channel, status="skipped", data=void
                )
            case _:
                pass


def _said(moment: TurnEvent) -> Iterable[KdCubeEvent]:
    match moment:
        case CustomEmitted():
            yield emitted(moment)
        case TurnStarted(prompt=prompt, bundle=bundle):
            yield KdCubeEvent(
                type="chat.start",
                route="chat_start",
                step="turn",
                status="started",
                data={"message": prompt, "bundle_id": bundle},
            )
        case RoundStarted() | DecisionMade():
            yield from _round(moment)
        case CallStarted() | CallFinished() | InputRequested() | ChildStarted() | ChildFinished():
            yield _call(moment)
        case AnswerStarted() | AnswerGiven():
            yield from _answer(moment)
        case TurnPaused() | TurnFinished():
            yield from _end(moment)
        case _:
            yield from _beside(moment)


def _step(step: str, status: Status, title: str, data: JsonObject) -> KdCubeEvent:
    return KdCubeEvent(
        type="chat.step", route="chat_step", step=step, status=status, title=title, data=data
    )


def _round(moment: RoundStarted | DecisionMade) -> Iterator[KdCubeEvent]:
    match moment:
        case RoundStarted(iteration=iteration, limit=limit):
            data: JsonObject = {"iteration": iteration, "max_iterations": limit}
            yield _step("react.round", "started", f"Round {iteration}", data)
        case DecisionMade(purpose="decision", iteration=iteration):
            yield KdCubeEvent(
                type="solver.react.decision",
                route="chat_step",
                step="react.decision",
                status="error" if moment.is_unreadable else "completed",
                title=f"Round {iteration}",
                data={
                    "iteration": iteration,
                    "thought": moment.thought,
                    "calls": moment.calls,
                    "model": moment.model,
                    "stop_reason": moment.stop_reason,
                    "usage": _usage(moment.usage),
                },
            )
        case DecisionMade():
            pass


def _call(
    moment: CallStarted | CallFinished | InputRequested | ChildStarted | ChildFinished,
) -> KdCubeEvent:
    match moment:
        case CallStarted(tool=tool) as call:
            return _step(tool, "started", tool, _named(call))
        case CallFinished(call=call, status=status, text=text, elapsed_ms=elapsed_ms):
            ended: JsonObject = {
                "arguments": moment.ran_with,
                "result": text,
                "result_status": status,
                "elapsed_ms": elapsed_ms,
                "artifact": moment.artifact,
            }
            return _step(call.tool, _STATUSES[status], call.tool, {**_named(call), **ended})
        case InputRequested(call=call, kind=kind, question=question):
            asked: JsonObject = {"kind": kind, "question": question}
            return _step(call.tool, "running", question, {**_named(call), **asked})
        case ChildStarted(call=call, conversation=name):
            return _step("react.child", "started", name, {**_named(call), "child": name})
        case ChildFinished(call=call, conversation=name, reason=reason):
            failed = reason in UNANSWERED
            child: JsonObject = {"child": name, "exit_reason": reason}
            data: JsonObject = {**_named(call), **child, "usage": _usage(moment.usage)}
            return _step("react.child", "error" if failed else "completed", name, data)


def _named(call: CallStarted) -> JsonObject:
    return {
        "call_id": call.call_id,
        "tool": call.tool,
        "arguments": call.arguments,
        "iteration": call.iteration,
        "index": call.index,
        "total": call.total,
    }


def _answer(moment: AnswerStarted | AnswerGiven) -> Iterator[KdCubeEvent]:
    match moment:
        case AnswerStarted():
            yield _step("answer", "started", "", {})
        case AnswerGiven(text=text, flag=flag, sources=sources):
            if sources:
                items: list[Json] = [
                    _citation(number, cited) for number, cited in enumerate(sources, start=1)
                ]
                yield KdCubeEvent(
                    type="chat.citations",
                    route="chat_step",
                    step="citations",
                    status="completed",
                    data={"count": len(items), "items": items},
                )
            yield _step("answer", "completed", "", {"answer": text, "flag": flag})


def _citation(number: int, cited: CitedSource) -> JsonObject:
    """A source under the number that the answer shows."""
    named: JsonObject = {"number": number, "sid": cited.sid}
    source = cited.source
    if source is None:
        return named
    return {
        **named,
        "title": source.title,
        "url": source.url,
        "source_type": source.source_type,
        "objective_relevance": source.objective_relevance,
        "published_time_iso": source.published_time_iso,
        "favicon_url": source.favicon_url,
    }


def _end(moment: TurnPaused | TurnFinished) -> Iterator[KdCubeEvent]:
    match moment:
        case TurnPaused(reason=reason, calls=calls):
            waiting: list[Json] = [*calls]
            yield KdCubeEvent(
                type="conv.status",
                route="conv_status",
                step="turn",
                status="running",
                data={"state": "waiting", "exit_reason": reason, "calls": waiting},
            )
        case TurnFinished(reason=reason):
            failed = reason == "error"
            status: Status = "error" if failed else "completed"
            yield KdCubeEvent(
                type="accounting.usage",
                route="chat_service",
                step="accounting",
                status="completed",
                data={"usage": _usage(moment.usage), "cost": moment.cost},
            )
            yield KdCubeEvent(
                type="chat.conversation.turn.completed",
                route="chat_service",
                step="turn",
                status=status,
                data={"exit_reason": reason, "rounds": moment.rounds},
            )
            yield KdCubeEvent(
                type="chat.error" if failed else "chat.complete",
                route="chat_error" if failed else "chat_complete",
                step="turn",
                status=status,
                data={
                    **({"error": moment.error} if failed else {}),
                    "final_answer": moment.answer,
                    "exit_reason": reason,
                    "rounds": moment.rounds,
                    "elapsed_ms": moment.elapsed_ms,
                },
            )


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_creation_tokens": usage.cache_write_tokens,
    }


def _beside(moment: TurnEvent) -> Iterator[KdCubeEvent]:
    match moment:
        case InputAccepted(kind=kind, text=text):
            yield KdCubeEvent(
                type="queue.continuation.accepted",
                route="chat_service",
                step="continuation",
                status="completed",
                data={"status": f"{kind}_accepted", "kind": kind, "text": text},
            )
        case InputTaken(kind=kind, text=text, said=said):
            yield _step(kind, "completed", "", {"text": text, "said": said})
        case ContextCompacted(before=before, after=after):
            sizes: JsonObject = {"messages_before": before, "messages_after": after}
            yield _step("context.compaction", "completed", "", sizes)
        case SelectionStarted(total=total):
            yield _step("tools.selection", "running", "", {"total_tools": total})
        case ProgressReported(channel=channel, text=text, call_id=call_id):
            call: JsonObject = {"call_id": call_id} if call_id else {}
            yield _step(channel, "running", text, {"text": text, **call})
        case _:
            pass
