"""The dialect of the AI SDK's UI message stream, version 1: a message in parts, tool calls, sources and data."""

from __future__ import annotations

from collections.abc import Iterator

from loopline.events import turn_events as turns
from loopline.events.dialects import client_run
from loopline.events.dialects.client_run import draft_with_type
from loopline.events.dialects.encoder import RecordDraft
from loopline.events.dialects.streamed_text import PartChange
from loopline.models import JsonObject, dumps, one_line
from loopline.timeline import ExitReason, FileAdded, Plan, Source, is_hosted

_FINISH: dict[ExitReason, str] = {
    "complete": "stop",
    "max_iterations": "length",
    "deadline": "length",
    "budget": "length",
    "refused": "content-filter",
    "error": "error",
}
_ABORTED = frozenset({"stopped", "interrupted"})


class Vercel(client_run.FollowedRun):
    """The dialect of the UI message stream. A turn is a message of the assistant, and each round is one of its steps."""

    _has_step: bool = False

    def _start(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        del event
        self._has_step = False
        branch = self._run.branch if self._run else ""
        yield draft_with_type("start", {"messageId": f"{branch}{meta.turn_id}"})

    def _part(self, change: PartChange) -> RecordDraft:
        """Create the draft for a change of a text or reasoning; metadata marks a void part."""
        kind = f"{'reasoning' if change.is_reasoning else 'text'}-{change.kind}"
        data: JsonObject = {"type": kind, "id": change.part_id}
        if change.kind == "delta":
            data |= {"delta": change.text}
        if change.is_void:
            data |= {"providerMetadata": {"loopline": {"void": True}}}
        return RecordDraft(kind, data, change.durable, change.streamed)

    def _event_drafts(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield the drafts for an event, without those of its parts; a result from the client itself yields none."""
        match event:
            case turns.RoundStarted() | turns.AnswerStarted():
                yield from self._next_step(has_step=True)
            case turns.InputRequested(kind="client", call=call):
                yield draft_with_type(
                    "tool-input-available", {**_call_fields(call), "input": call.arguments}
                )
            case turns.InputRequested():
                yield _request(event, self._request_id(event))
            case turns.CallFinished(call=call) if self._client_result(call) is not None:
                pass
            case turns.CallStarted() | turns.CallFinished():
                yield from _call(event)
            case turns.AnswerGiven(sources=sources):
                yield from (_source(item.sid, item.source) for item in sources if item.source)
            case turns.TurnPaused() | turns.TurnFinished():
                yield from self._next_step(has_step=False)
                yield from _end(event)
            case FileAdded() if is_hosted(event):
                run = self._find_run(meta)
                file_url = run.file_url if run else None
                yield _file(event, file_url(meta.turn_id, event) if file_url else "")
            case _:
                yield from _data(event)

    def _next_step(self, *, has_step: bool) -> Iterator[RecordDraft]:
        if self._has_step:
            yield draft_with_type("finish-step", {})
        self._has_step = has_step
        if has_step:
            yield draft_with_type("start-step", {})


def _file(file: FileAdded, url: str = "") -> RecordDraft:
    data = client_run.file_data(file)
    if url:
        data["url"] = url
    return draft_with_type("data-file", {"data": data})


def _call_fields(call: turns.CallStarted) -> JsonObject:
    """Return the id and the name of a call. A call that the client runs is not dynamic, so that its page knows the tool."""
    fields: JsonObject = {"toolCallId": call.call_id, "toolName": call.tool}
    return fields if call.is_for_client else {**fields, "dynamic": True}


def _call(event: turns.CallStarted | turns.CallFinished) -> Iterator[RecordDraft]:
    """Yield the parts for the input or the result of a call; the input of a client's call is not completed yet."""
    match event:
        case turns.CallStarted(arguments=arguments):
            started = _call_fields(event)
            yield draft_with_type("tool-input-start", started)
            if event.is_for_client:  # a client that has the whole input runs the call at once
                delta: JsonObject = {
                    "toolCallId": event.call_id,
                    "inputTextDelta": dumps(arguments),
                }
                yield draft_with_type("tool-input-delta", delta)
                return
            yield draft_with_type("tool-input-available", {**started, "input": arguments})
        case turns.CallFinished(call=call, result=result):
            output: JsonObject = {"toolCallId": call.call_id}
            dynamic: JsonObject = {} if call.is_for_client else {"dynamic": True}
            match result.status:
                case "ok":
                    shown: JsonObject = {"output": result.text, **dynamic}
                    yield draft_with_type("tool-output-available", {**output, **shown})
                case "denied":
                    yield draft_with_type("tool-output-denied", output)
                case "error" | "interrupted" | "stopped":
                    failure: JsonObject = {"errorText": result.text, **dynamic}
                    yield draft_with_type("tool-output-error", {**output, **failure})


def _request(event: turns.InputRequested, request_id: str) -> RecordDraft:
    """Create the request of an approval, or for any other kind a question with its form, if it has one."""
    call_id = event.call.call_id
    if event.kind == "approval":
        return draft_with_type(
            "tool-approval-request", {"approvalId": request_id, "toolCallId": call_id}
        )
    data: JsonObject = {"toolCallId": call_id, "question": event.question}
    if event.form is not None:
        data["form"] = event.form
    return draft_with_type("data-question", {"id": request_id, "data": data})


def _source(sid: int, source: Source) -> RecordDraft:
    row: JsonObject = {"sourceId": f"{sid}", "title": source.title or source.url}
    if source.url.startswith(("https://", "http://")):
        return draft_with_type("source-url", {**row, "url": source.url})
    document: JsonObject = {"mediaType": "text/plain", "filename": source.url}
    return draft_with_type("source-document", {**row, **document})


def _data(event: turns.TurnEvent) -> Iterator[RecordDraft]:
    """Yield a data part for an event that the protocol does not define; a later part with the same id replaces it.

    Internal files, and events without a notice, yield none. Progress is not durable.
    """
    match event:
        case Plan() as plan:
            yield draft_with_type(
                "data-plan", {"id": plan.snapshot.plan_id, "data": client_run.plan_data(plan)}
            )
        case FileAdded(visibility="external") as file:
            yield _file(file)
        case turns.InputTaken(kind=kind, text=text):
            yield draft_with_type("data-input", {"data": {"kind": kind, "text": text}})
        case _:
            notice = client_run.notice_of(event)
            if notice is not None:
                transient: JsonObject = {} if notice.durable else {"transient": True}
                data: JsonObject = {"data": notice.value, **transient}
                # The name of a custom event in an imported document may have a line break.
                name = f"data-{one_line(notice.name)}"
                yield draft_with_type(name, data, durable=notice.durable)


def _end(event: turns.TurnPaused | turns.TurnFinished) -> Iterator[RecordDraft]:
    """Yield `abort` for a stopped or interrupted run; otherwise `finish`, after an `error` if the turn failed."""
    if event.reason in _ABORTED:
        yield draft_with_type("abort", {"reason": event.reason})
        return
    match event:
        case turns.TurnPaused():
            yield draft_with_type("finish", {"finishReason": "tool-calls"})
        case turns.TurnFinished(reason=reason):
            if reason == "error":
                yield draft_with_type("error", {"errorText": event.error or reason})
            usage: JsonObject = {
                "inputTokens": event.usage.input_tokens,
                "outputTokens": event.usage.output_tokens,
            }
            metadata: JsonObject = {"exitReason": reason, "usage": usage}
            finish_reason = "length" if event.truncated else _FINISH.get(reason, "other")
            finish: JsonObject = {"finishReason": finish_reason}
            yield draft_with_type("finish", {**finish, "messageMetadata": metadata})
