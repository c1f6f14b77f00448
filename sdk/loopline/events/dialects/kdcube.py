"""The dialect of KDCube: events in envelopes, each on its route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct, field

from loopline import timeline
from loopline.events import turn_events as turns
from loopline.events.dialects.client_run import FileUrl
from loopline.events.dialects.encoder import RecordDraft
from loopline.models import Json, JsonObject, Usage

Route = Literal[
    "chat_start",
    "chat_step",
    "chat_delta",
    "chat_complete",
    "chat_error",
    "chat_service",
    "conv_status",
]
StepStatus = Literal["started", "running", "completed", "error", "skipped"]
Marker = Literal["thinking", "answer", "timeline_text", "canvas", "subsystem", "tool"]

_MARKERS: dict[str, Marker] = {
    "thinking": "thinking",
    "answer": "answer",
    "notes": "timeline_text",
    "canvas": "canvas",
    "tool": "tool",
}
_CUSTOM_ROUTES: dict[str, Route] = {"chat_delta": "chat_delta", "chat_service": "chat_service"}
_STATUSES: dict[timeline.ResultStatus, StepStatus] = {
    "ok": "completed",
    "denied": "skipped",
    "error": "error",
    "interrupted": "error",
    "stopped": "error",
}


class KdCubeEvent(Struct, frozen=True):
    """An event of KDCube before it has its envelope."""

    type: str
    route: Route
    step: str
    status: str
    title: str = ""
    markdown: str = ""
    agent: str = ""
    data: JsonObject = field(default_factory=JsonObject)
    delta: JsonObject | None = None


class KdCube:
    """The dialect of KDCube. The agent of every event is the bundle."""

    def __init__(
        self, conversation: timeline.ConversationKey, file_url: FileUrl | None = None
    ) -> None:
        self._conversation = conversation
        self._file_url = file_url
        self._agent = ""
        self._deltas = _DeltaCounters()

    def drafts(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield the drafts for a turn event; first the drafts, not durable, that complete the streamed channels."""
        if isinstance(event, turns.TurnStarted):
            self._agent = event.bundle
            self._deltas = _DeltaCounters()
        for ending in self._endings(event):
            yield self._draft(meta, ending, durable=False)
        for kdcube_event in (*_events(event), *self._text(event)):
            yield self._draft(meta, kdcube_event)
        if isinstance(event, timeline.FileAdded) and timeline.is_hosted(event):
            yield self._draft(meta, self._file(meta, event))

    def _draft(
        self, meta: turns.EventMeta, event: KdCubeEvent, *, durable: bool = True
    ) -> RecordDraft:
        """Create a draft with the event in its envelope, named by its route, or `reset` for a reset.

        An event without an agent gets the bundle of the turn as its agent.
        """
        name = "reset" if event.type == "reset" else event.route
        owner = self._conversation
        envelope: JsonObject = {
            "type": event.type,
            "timestamp": timeline.iso_time(meta.ts),
            "ts": round(meta.ts.timestamp() * 1000),
            "service": {
                "request_id": f"{owner.name}:{meta.turn_id}",
                "tenant": owner.tenant,
                "project": owner.project,
                "user": owner.user,
                "user_type": "registered",
            },
            "conversation": {
                "session_id": owner.name,
                "conversation_id": owner.name,
                "turn_id": meta.turn_id,
            },
            "event": {
                "agent": event.agent or self._agent,
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
        return RecordDraft(name, envelope, durable)

    def _file(self, meta: turns.EventMeta, file: timeline.FileAdded) -> KdCubeEvent:
        """Create the event for an output file, with its resource name and, if there is a `file_url`, its URL."""
        name = file.path.rpartition("/")[2]
        item: JsonObject = {
            "filename": name,
            "path": f"outputs/{file.path}",
            "version": file.version,
            "mime": file.mime,
            "size_bytes": file.size,
            "visibility": file.visibility,
            "tool_call_id": file.call_id,
            "rn": str(timeline.hosted_name(self._conversation, meta.turn_id, file)),
        }
        if self._file_url is not None:
            item["url"] = self._file_url(meta.turn_id, file)
        data: JsonObject = {"count": 1, "items": [item]}
        return KdCubeEvent("chat.files", "chat_step", "files", "completed", name, data=data)

    def _endings(self, event: turns.TurnEvent) -> list[KdCubeEvent]:
        """Complete the channels that an event ends, and return their last deltas; a decision keeps `answer` open."""
        match event:
            case turns.DecisionMade(decision=timeline.Decision(purpose="decision")):
                return self._deltas.end(keep="answer")
            case turns.AnswerGiven() | turns.TurnPaused() | turns.TurnFinished():
                return self._deltas.end()
            case _:
                return []

    def _text(self, event: turns.TurnEvent) -> Iterator[KdCubeEvent]:
        """Yield the delta for streamed text, or a reset of a channel that has text; none for other events."""
        match event:
            case turns.TextStreamed(channel=channel, text=text):
                yield self._deltas.next(channel, text)
            case turns.TextReset(channel=channel) if self._deltas.reset(channel):
                data: JsonObject = {"channel": channel, "marker": _marker(channel)}
                yield KdCubeEvent("reset", "chat_delta", channel, "skipped", data=data)
            case _:
                pass


class _DeltaCounters:
    """The number of deltas of each channel, and the channels that are not completed."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._open: list[str] = []

    def next(self, channel: str, text: str) -> KdCubeEvent:
        """Create the next delta of a channel."""
        if channel not in self._open:
            self._open.append(channel)
        return self._delta(channel, text, completed=False)

    def end(self, *, keep: str = "") -> list[KdCubeEvent]:
        """Complete the open channels, except `keep`; return the last delta of each."""
        ending = [channel for channel in self._open if channel != keep]
        self._open = [channel for channel in self._open if channel == keep]
        return [self._delta(channel, "", completed=True) for channel in ending]

    def reset(self, channel: str) -> bool:
        """Discard the text of a channel, and return whether it had any."""
        if channel not in self._open:
            return False
        self._open.remove(channel)
        del self._counts[channel]
        return True

    def _delta(self, channel: str, text: str, *, completed: bool) -> KdCubeEvent:
        """Create a delta with the next index of its channel, from 0, and count it."""
        index = self._counts.get(channel, 0)
        self._counts[channel] = index + 1
        status = "completed" if completed else "running"
        delta: JsonObject = {"text": text, "marker": _marker(channel)}
        delta |= {"index": index, "completed": completed}
        return KdCubeEvent("chat.delta", "chat_delta", channel, status, delta=delta)


def _marker(channel: str) -> Marker:
    """Return KDCube's name of a channel, `subsystem` for an unknown one."""
    return _MARKERS.get(channel, "subsystem")


def _step(step: str, status: StepStatus, title: str, data: JsonObject) -> KdCubeEvent:
    return KdCubeEvent("chat.step", "chat_step", step, status, title=title, data=data)


def _service(type: str, step: str, status: StepStatus, data: JsonObject) -> KdCubeEvent:
    return KdCubeEvent(type, "chat_service", step, status, data=data)


def _events(event: turns.TurnEvent) -> Iterator[KdCubeEvent]:
    """Yield the events for a turn event, without those of streamed text and files; none if it is ignored."""
    match event:
        case turns.TurnStarted(prompt=prompt, bundle=bundle):
            started: JsonObject = {"message": prompt, "bundle_id": bundle}
            yield KdCubeEvent("chat.start", "chat_start", "turn", "started", data=started)
        case turns.RoundStarted(iteration=iteration, limit=limit):
            data: JsonObject = {"iteration": iteration, "max_iterations": limit}
            yield _step("react.round", "started", f"Round {iteration}", data)
        case turns.DecisionMade(decision=timeline.Decision(purpose="decision")):
            yield _decision(event)
        case (
            turns.CallStarted()
            | turns.CallFinished()
            | turns.InputRequested()
            | turns.ChildStarted()
            | turns.ChildFinished()
        ):
            yield _call(event)
        case turns.AnswerStarted():
            yield _step("answer", "started", "", {})
        case turns.AnswerGiven():
            yield from _answer(event)
        case turns.TurnPaused(calls=calls, reason=reason):
            state: JsonObject = {"state": "waiting", "exit_reason": reason}
            state["calls"] = list[Json](calls)
            yield KdCubeEvent("conv.status", "conv_status", "turn", "running", data=state)
        case turns.TurnFinished():
            yield from _finish(event)
        case _:
            yield from _input_or_progress(event)


def _decision(event: turns.DecisionMade) -> KdCubeEvent:
    """Create the step for a decision; its status is "error" if it is malformed and was not cut off at the limit."""
    made = event.decision
    status = "error" if event.is_unreadable else "completed"
    data: JsonObject = {
        "iteration": event.iteration,
        "thought": event.thought,
        "calls": made.calls,
        "model": made.model,
        "stop_reason": made.stop_reason,
        "usage": _usage(made.usage),
    }
    return KdCubeEvent(
        "solver.react.decision",
        "chat_step",
        "react.decision",
        status,
        f"Round {event.iteration}",
        data=data,
    )


def _call(
    event: turns.CallStarted
    | turns.CallFinished
    | turns.InputRequested
    | turns.ChildStarted
    | turns.ChildFinished,
) -> KdCubeEvent:
    """Create the step for a call, its result, request or child run; a denied call has the status "skipped"."""
    match event:
        case turns.CallStarted(tool=tool) as call:
            return _step(tool, "started", tool, _call_data(call))
        case turns.CallFinished(call=call, result=result):
            data: JsonObject = {
                "arguments": event.ran_with,
                "result": result.text,
                "result_status": result.status,
                "elapsed_ms": result.elapsed_ms,
                "artifact": result.artifact,
            }
            status = _STATUSES[result.status]
            return _step(call.tool, status, call.tool, {**_call_data(call), **data})
        case turns.InputRequested(call=call, kind=kind, question=question):
            request: JsonObject = {"kind": kind, "question": question}
            return _step(call.tool, "running", question, {**_call_data(call), **request})
        case turns.ChildStarted(call=call, conversation=name):
            return _step("react.child", "started", name, {**_call_data(call), "child": name})
        case turns.ChildFinished(call=call, child=child):
            name = child.conversation
            usage = _usage(child.usage)
            run: JsonObject = {"child": name, "exit_reason": child.reason, "usage": usage}
            ended: StepStatus = "error" if child.reason in turns.UNANSWERED else "completed"
            return _step("react.child", ended, name, {**_call_data(call), **run})


def _call_data(call: turns.CallStarted) -> JsonObject:
    """Return the fields that every step of a call has: its id, tool, arguments, round, and position in the round."""
    return {
        "call_id": call.call_id,
        "tool": call.tool,
        "arguments": call.arguments,
        "iteration": call.iteration,
        "index": call.index,
        "total": call.total,
    }


def _answer(event: turns.AnswerGiven) -> Iterator[KdCubeEvent]:
    """Yield the citations if the answer has sources, then the completed step with the text and its flag."""
    if event.sources:
        items: list[Json] = [
            _citation(number, cited) for number, cited in enumerate(event.sources, start=1)
        ]
        data: JsonObject = {"count": len(items), "items": items}
        yield KdCubeEvent("chat.citations", "chat_step", "citations", "completed", data=data)
    yield _step("answer", "completed", "", {"answer": event.text, "flag": event.flag})


def _citation(number: int, cited: turns.CitedSource) -> JsonObject:
    """Return the data of a source; `number` is its number in the answer. An unknown source has only its numbers."""
    citation: JsonObject = {"number": number, "sid": cited.sid}
    source = cited.source
    if source is None:
        return citation
    return {
        **citation,
        "title": source.title,
        "url": source.url,
        "source_type": source.source_type,
        "objective_relevance": source.objective_relevance,
        "published_time_iso": source.published_time_iso,
        "favicon_url": source.favicon_url,
    }


def _finish(event: turns.TurnFinished) -> Iterator[KdCubeEvent]:
    """Yield the usage, the completion of the turn, and `chat.complete`, or `chat.error` for the reason "error"."""
    failed = event.reason == "error"
    status: StepStatus = "error" if failed else "completed"
    spent: JsonObject = {"usage": _usage(event.usage), "cost": event.cost}
    yield _service("accounting.usage", "accounting", "completed", spent)
    data: JsonObject = {"exit_reason": event.reason, "rounds": event.rounds}
    yield _service("chat.conversation.turn.completed", "turn", status, data)
    end: JsonObject = {"error": event.error} if failed else {}
    end |= {"final_answer": event.answer, **data, "elapsed_ms": event.elapsed_ms}
    if failed:
        yield KdCubeEvent("chat.error", "chat_error", "turn", status, data=end)
    else:
        yield KdCubeEvent("chat.complete", "chat_complete", "turn", status, data=end)


def _usage(usage: Usage) -> JsonObject:
    """Return the token counts by KDCube's names, without reasoning tokens."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_creation_tokens": usage.cache_write_tokens,
    }


def _input_or_progress(event: turns.TurnEvent) -> Iterator[KdCubeEvent]:
    """Yield the event for an input, progress, a compaction or a custom event; none for other events."""
    match event:
        case timeline.CustomEvent():
            yield _custom(event)
        case turns.InputAccepted(kind=kind, text=text):
            accepted: JsonObject = {"status": f"{kind}_accepted", "kind": kind, "text": text}
            yield _service("queue.continuation.accepted", "continuation", "completed", accepted)
        case turns.InputTaken(kind=kind, text=text, input_seq=seq):
            yield _step(kind, "completed", "", {"text": text, "said": seq})
        case timeline.RangeSummary(messages_before=before, messages_after=after):
            sizes: JsonObject = {"messages_before": before, "messages_after": after}
            yield _step("context.compaction", "completed", "", sizes)
        case turns.ProgressReported(channel="tools", total=total) if total:
            yield _step("tools.selection", "running", "", {"total_tools": total})
        case turns.ProgressReported(channel=channel, text=text, call_id=call_id):
            call: JsonObject = {"call_id": call_id} if call_id else {}
            yield _step(channel, "running", text, {"text": text, **call})
        case _:
            pass


def _custom(event: timeline.CustomEvent) -> KdCubeEvent:
    """Create the event that a `ChatCommunicator` sent, or for other custom events a step with the event's name.

    Its route is only `chat_step`, `chat_delta` or `chat_service`, so that a custom event cannot end a turn.
    """
    match event.data:
        case {"event": dict() as header, "data": dict() as data, "delta": delta, "route": route}:
            pass
        case data:
            header, delta, route = JsonObject(), None, "chat_step"
    own: JsonObject = data if isinstance(data, dict) else {"value": data}
    call: JsonObject = {"call_id": event.call_id} if event.call_id else {}
    return KdCubeEvent(
        type=event.name,
        route=_CUSTOM_ROUTES.get(str(route), "chat_step"),
        step=_text_field(header, "step", event.name),
        status=_text_field(header, "status", "completed"),
        title=_text_field(header, "title"),
        markdown=_text_field(header, "markdown"),
        agent=_text_field(header, "agent"),
        data={**call, **own},
        delta=delta if isinstance(delta, dict) else None,
    )


def _text_field(header: JsonObject, name: str, default: str = "") -> str:
    value = header.get(name)
    return value if isinstance(value, str) else default
