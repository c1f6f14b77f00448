"""The dialect of the AI SDK's UI message stream, version 1: parts of a message, calls of tools, sources, data."""

from __future__ import annotations

from collections.abc import Iterator

from loopline.events.dialects.client_run import FollowedRun, NamedChange, notice_of, plan_data
from loopline.events.dialects.encoder import RecordDraft
from loopline.events.turn_events import (
    AnswerGiven,
    AnswerStarted,
    CallFinished,
    CallStarted,
    CitedSource,
    EventMeta,
    InputRequested,
    InputTaken,
    RoundStarted,
    TurnEvent,
    TurnFinished,
    TurnPaused,
)
from loopline.models import JsonObject
from loopline.timeline import ExitReason, FileAdded, Plan, is_hosted

_FINISH: dict[ExitReason, str] = {
    "complete": "stop",
    "max_iterations": "length",
    "deadline": "length",
    "budget": "length",
    "refused": "content-filter",
    "error": "error",
}
_LEFT = frozenset({"stopped", "interrupted"})


class Vercel(FollowedRun):
    """The dialect of the UI message stream. A turn is a message of the assistant, a round is a step of it."""

    _has_step: bool = False

    def _start(self, meta: EventMeta, event: TurnEvent) -> Iterator[RecordDraft]:
        del event
        self._has_step = False
        yield _draft("start", {"messageId": meta.turn_id})

    def _part(self, named: NamedChange) -> RecordDraft:
        change = named.change
        kind = f"{'reasoning' if named.is_reasoning else 'text'}-{change.kind}"
        data: JsonObject = {"type": kind, "id": change.part_id}
        if change.kind == "delta":
            data |= {"delta": change.text}
        if change.is_void:
            data |= {"providerMetadata": {"loopline": {"void": True}}}
        return RecordDraft(kind, data, change.durable, change.streamed)

    def _words(self, meta: EventMeta, event: TurnEvent) -> Iterator[RecordDraft]:
        match event:
            case RoundStarted() | AnswerStarted():
                yield from self._next_step(has_step=True)
            case InputRequested():
                yield _request(event, self._request_id(event))
            case CallStarted() | CallFinished():
                yield from _call(event)
            case AnswerGiven(sources=sources):
                yield from map(_source, (item for item in sources if item.source is not None))
            case TurnPaused() | TurnFinished():
                yield from self._next_step(has_step=False)
                yield from _end(event)
            case FileAdded() if is_hosted(event):
                yield _file(event, self._url(meta, event))
            case _:
                yield from _data(event)

    def _url(self, meta: EventMeta, file: FileAdded) -> JsonObject:
        """Return the URL of a file of the run that a client follows; of others there is none."""
        run = self._followed(meta)
        return (
            {} if run is None or run.file_url is None else {"url": run.file_url(meta.turn_id, file)}
        )

    def _next_step(self, *, has_step: bool) -> Iterator[RecordDraft]:
        if self._has_step:
            yield _draft("finish-step", {})
        self._has_step = has_step
        if has_step:
            yield _draft("start-step", {})


def _file(file: FileAdded, url: JsonObject | None = None) -> RecordDraft:
    name: JsonObject = {"path": f"{file.area}/{file.path}", "version": file.version}
    content: JsonObject = {"mime": file.mime, "size": file.size, **(url or {})}
    return _draft("data-file", {"data": {**name, **content}})


def _draft(kind: str, data: JsonObject, *, durable: bool = True) -> RecordDraft:
    return RecordDraft(kind, {"type": kind, **data}, durable)


def _call(event: CallStarted | CallFinished) -> Iterator[RecordDraft]:
    match event:
        case CallStarted(call_id=call_id, tool=tool, arguments=arguments):
            started: JsonObject = {"toolCallId": call_id, "toolName": tool, "dynamic": True}
            yield _draft("tool-input-start", started)
            yield _draft("tool-input-available", {**started, "input": arguments})
        case CallFinished(call=call, result=result):
            output: JsonObject = {"toolCallId": call.call_id}
            match result.status:
                case "ok":
                    shown: JsonObject = {"output": result.text, "dynamic": True}
                    yield _draft("tool-output-available", {**output, **shown})
                case "denied":
                    yield _draft("tool-output-denied", output)
                case "error" | "interrupted" | "stopped":
                    failure: JsonObject = {"errorText": result.text, "dynamic": True}
                    yield _draft("tool-output-error", {**output, **failure})


def _request(event: InputRequested, request_id: str) -> RecordDraft:
    call_id = event.call.call_id
    if event.kind == "approval":
        return _draft("tool-approval-request", {"approvalId": request_id, "toolCallId": call_id})
    data: JsonObject = {"toolCallId": call_id, "question": event.question}
    if event.form is not None:
        data["form"] = event.form
    return _draft("data-question", {"id": request_id, "data": data})


def _source(cited: CitedSource) -> RecordDraft:
    source = cited.source
    assert source is not None
    row: JsonObject = {"sourceId": f"{cited.sid}", "title": source.title or source.url}
    if source.url.startswith(("https://", "http://")):
        return _draft("source-url", {**row, "url": source.url})
    document: JsonObject = {"mediaType": "text/plain", "filename": source.url}
    return _draft("source-document", {**row, **document})


def _data(event: TurnEvent) -> Iterator[RecordDraft]:
    """Yield a data part for what the protocol has no part for; the next one of the same id replaces it."""
    match event:
        case Plan() as plan:
            yield _draft("data-plan", {"id": plan.snapshot.plan_id, "data": plan_data(plan)})
        case FileAdded(visibility="external") as file:
            yield _file(file)
        case InputTaken(kind=kind, text=text):
            yield _draft("data-input", {"data": {"kind": kind, "text": text}})
        case _:
            notice = notice_of(event)
            if notice is not None:
                transient: JsonObject = {} if notice.durable else {"transient": True}
                data: JsonObject = {"data": notice.value, **transient}
                yield _draft(f"data-{notice.name}", data, durable=notice.durable)


def _end(event: TurnPaused | TurnFinished) -> Iterator[RecordDraft]:
    if event.reason in _LEFT:
        yield _draft("abort", {"reason": event.reason})
        return
    match event:
        case TurnPaused():
            yield _draft("finish", {"finishReason": "tool-calls"})
        case TurnFinished(reason=reason):
            if reason == "error":
                yield _draft("error", {"errorText": event.error or reason})
            usage: JsonObject = {
                "inputTokens": event.usage.input_tokens,
                "outputTokens": event.usage.output_tokens,
            }
            metadata: JsonObject = {"exitReason": reason, "usage": usage}
            finish: JsonObject = {"finishReason": _FINISH.get(reason, "other")}
            yield _draft("finish", {**finish, "messageMetadata": metadata})
