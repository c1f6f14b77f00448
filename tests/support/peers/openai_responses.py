"""Responses as OpenAI sends them: a document, or typed events with running numbers.

Source: platform.openai.com, API reference, "Responses" and its streaming events, by the types of the
official `openai` package 3.52; read on 2026-11-20.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator

from loopline.models.json import Json, JsonObject
from tests.support.peers.call_replies import CREATED, Call, model_of, named_after
from tests.support.peers.http_server import Request
from tests.support.peers.openai_replies import Says
from tests.support.peers.streams import Event, Reply, Stream, document, event


def respond(says: Says, asked: Request) -> Reply:
    if asked.body.get("stream") is not True:
        return document(_ended(says, asked))
    bodies = enumerate(_bodies(says, asked))
    events = (numbered(body, number) for number, body in bodies)
    return Stream(events=tuple(events), framing=says.framing)


def numbered(body: JsonObject, number: int) -> Event:
    """An event of that number, named after its type."""
    return event({**body, "sequence_number": number}, str(body["type"]))


def _bodies(says: Says, asked: Request) -> Iterator[JsonObject]:
    begun = _response(asked, "in_progress")
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    output = _output(says, asked)
    for index, item in enumerate(output):
        record: JsonObject = {"output_index": index}
        opened = {**item, "status": "in_progress"} | _empty(item)
        yield {"type": "response.output_item.added", **record, "item": opened}
        within: JsonObject = {**record, "item_id": item["id"]}
        for body in _within(says, item):
            yield {**body, **within}
        yield {"type": "response.output_item.done", **record, "item": item}
    ended = _ended(says, asked)
    yield {"type": f"response.{ended['status']}", "response": ended}


def _ended(says: Says, asked: Request) -> JsonObject:
    ended = _response(asked, _status(says))
    why = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(says.finished)
    details: Json = None if why is None or says.failed else {"reason": why}
    error: Json = None
    if says.failed is not None:
        failed = says.failed
        error = {"code": failed.kind or "server_error", "message": failed.message or "It failed."}
    usage: Json = None if says.usage is None else says.usage.of_response()
    output: list[Json] = [*_output(says, asked)]
    return {
        **ended,
        "output": output,
        "usage": usage,
        "incomplete_details": details,
        "error": error,
    }


def _status(says: Says) -> str:
    if says.failed is not None:
        return "failed"
    return "incomplete" if says.finished in {"length", "content_filter"} else "completed"


def _response(asked: Request, status: str) -> JsonObject:
    return {
        "id": named_after(asked, "resp"),
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.body.get("instructions"),
        "max_output_tokens": asked.body.get("max_output_tokens"),
        "metadata": {},
        "model": model_of(asked),
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": asked.body.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": asked.body.get("store", True),
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": asked.body.get("tools", []),
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def _output(says: Says, asked: Request) -> list[JsonObject]:
    items: list[JsonObject] = []
    if says.apart:
        items.append(_reasoning(says, asked))
    if says.content or says.refusal:
        items.append(_message(says, asked))
    items.extend(_call(call, at, asked) for at, call in enumerate(says.calls))
    return items


def _reasoning(says: Says, asked: Request) -> JsonObject:
    item: JsonObject = {
        "id": named_after(asked, "rs"),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": says.apart}],
        "status": "completed",
    }
    include = asked.body.get("include")
    if isinstance(include, list) and "reasoning.encrypted_content" in include:
        item["encrypted_content"] = b64encode(says.apart.encode()).decode()
    return item


def _message(says: Says, asked: Request) -> JsonObject:
    parts = [_text(says.content)] if says.content else []
    if says.refusal:
        parts.append({"type": "refusal", "refusal": says.refusal})
    status = "incomplete" if says.finished in {"length", "content_filter"} else "completed"
    return {
        "id": named_after(asked, "msg"),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [*parts],
    }


def _text(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(call: Call, at: int, asked: Request) -> JsonObject:
    return {
        "id": f"{named_after(asked, 'fc')}_{at}",
        "type": "function_call",
        "status": "completed",
        "arguments": call.arguments,
        "call_id": call.id,
        "name": call.name,
    }


def _empty(item: JsonObject) -> JsonObject:
    match item["type"]:
        case "message":
            return {"content": []}
        case "function_call":
            return {"arguments": ""}
        case _:
            return {"summary": []}


def _within(says: Says, item: JsonObject) -> Iterator[JsonObject]:
    match item["type"]:
        case "message":
            return _message_events(says)
        case "function_call":
            return _call_events(says, item)
        case _:
            return _reasoning_events(says)


def _message_events(says: Says) -> Iterator[JsonObject]:
    index = 0
    if says.content:
        record: JsonObject = {"content_index": index}
        yield {"type": "response.content_part.added", **record, "part": _text("")}
        for piece in says.cut(says.content):
            delta: JsonObject = {"delta": piece, "logprobs": []}
            yield {"type": "response.output_text.delta", **record, **delta}
        whole_record: JsonObject = {"text": says.content, "logprobs": []}
        yield {"type": "response.output_text.done", **record, **whole_record}
        yield {"type": "response.content_part.done", **record, "part": _text(says.content)}
        index += 1
    if says.refusal:
        record = {"content_index": index}
        part: JsonObject = {"type": "refusal", "refusal": ""}
        yield {"type": "response.content_part.added", **record, "part": part}
        for piece in says.cut(says.refusal):
            yield {"type": "response.refusal.delta", **record, "delta": piece}
        yield {"type": "response.refusal.done", **record, "refusal": says.refusal}
        part = {"type": "refusal", "refusal": says.refusal}
        yield {"type": "response.content_part.done", **record, "part": part}


def _call_events(says: Says, item: JsonObject) -> Iterator[JsonObject]:
    arguments = str(item["arguments"])
    for piece in [arguments] if says.odd.whole_arguments else says.cut(arguments):
        yield {"type": "response.function_call_arguments.delta", "delta": piece}
    whole_record: JsonObject = {"name": item["name"], "arguments": arguments}
    yield {"type": "response.function_call_arguments.done", **whole_record}


def _reasoning_events(says: Says) -> Iterator[JsonObject]:
    record: JsonObject = {"summary_index": 0}
    kind = "response.reasoning_summary"
    part: JsonObject = {"type": "summary_text", "text": ""}
    yield {"type": f"{kind}_part.added", **record, "part": part}
    for piece in says.cut(says.apart):
        yield {"type": f"{kind}_text.delta", **record, "delta": piece}
    yield {"type": f"{kind}_text.done", **record, "text": says.apart}
    part = {"type": "summary_text", "text": says.apart}
    yield {"type": f"{kind}_part.done", **record, "part": part}
