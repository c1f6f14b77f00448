"""Chat completions as OpenAI sends them: a document, or `data:` chunks that end in [DONE].

Source: platform.openai.com, API reference, "Chat Completions" and its streaming events, by the types
of the official `openai` package 3.52; read on 2026-11-20.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, zip_longest

from loopline.models.json import Json, JsonObject
from tests.support.peers.call_replies import CREATED, Call, model_of, named_after
from tests.support.peers.http_server import Request
from tests.support.peers.openai_replies import Says, Usage
from tests.support.peers.streams import Event, Reply, Stream, document, event


def chat(says: Says, asked: Request) -> Reply:
    if asked.body.get("stream") is True:
        done = () if says.odd.omits_done else (Event("[DONE]"),)
        events = tuple(event(chunk) for chunk in _chunks(says, asked))
        return Stream(events=(*events, *done), framing=says.framing)
    return document(_completion(says, asked))


def _completion(says: Says, asked: Request) -> JsonObject:
    message: JsonObject = {
        "role": "assistant",
        "content": says.content or None,
        "refusal": says.refusal or None,
    }
    if says.apart:
        message[says.odd.reasoning_field] = says.apart
    if says.calls:
        message["tool_calls"] = [_whole_call(call, says) for call in says.calls]
    choice: JsonObject = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": says.finished,
    }
    record: JsonObject = {} if says.usage is None else {"usage": says.usage.of_chat()}
    return {**_envelope(asked, "chat.completion"), "choices": [choice], **record}


def _whole_call(call: Call, says: Says) -> JsonObject:
    name: JsonObject = {} if says.odd.omits_ids else {"id": call.id}
    function: JsonObject = {"name": call.name, "arguments": call.arguments}
    return {**name, "type": "function", "function": function}


def _envelope(asked: Request, kind: str) -> JsonObject:
    return {
        "id": named_after(asked, "chatcmpl"),
        "object": kind,
        "created": CREATED,
        "model": model_of(asked),
        "service_tier": "default",
    }


def _chunks(says: Says, asked: Request) -> Iterator[JsonObject]:
    envelope = _envelope(asked, "chat.completion.chunk")
    deltas = list(_deltas(says))
    choices = [*(_choice(delta, None) for delta in deltas), _choice({}, says.finished)]
    wanted = _wants_usage(asked)
    for number, choice in enumerate(choices, 1):
        told = _usage_within(says, number, len(choices), wanted)
        yield {**envelope, "choices": [choice], **told}
    last = says.odd.usage == "last" or (says.odd.usage == "asked" and wanted)
    if says.usage is not None and last:
        yield {**envelope, "choices": [], "usage": says.usage.of_chat()}


def _choice(delta: JsonObject, finish: str | None) -> JsonObject:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _usage_within(says: Says, number: int, of: int, wanted: bool) -> JsonObject:
    """What a chunk with a choice says of usage."""
    match says.odd.usage, says.usage:
        case "every", Usage() as usage:
            so_far = Usage(
                prompt=usage.prompt,
                completion=usage.completion * number // of,
                cached=usage.cached,
                written=usage.written,
                reasoning=usage.reasoning * number // of,
            )
            return {"usage": so_far.of_chat()}
        case "finish", Usage() as usage if number == of:
            return {"usage": usage.of_chat()}
        case _:
            return {"usage": None} if wanted else {}


def _wants_usage(asked: Request) -> bool:
    match asked.body.get("stream_options"):
        case {"include_usage": True}:
            return True
        case _:
            return False


def _deltas(says: Says) -> Iterator[JsonObject]:
    role: JsonObject = {"role": "assistant"}
    if says.odd.role != "never":
        yield {**role, "content": None if says.calls and not says.content else ""}
    every: JsonObject = role if says.odd.role == "every" else {}
    for field, text in (
        (says.odd.reasoning_field, says.apart),
        ("content", says.content),
        ("refusal", says.refusal),
    ):
        for piece in says.cut(text):
            yield {**every, field: piece}
    for delta in _in_order(says):
        yield {**every, "tool_calls": [delta]}


def _in_order(says: Says) -> Iterator[JsonObject]:
    parts = [list(_call_deltas(says, at, call)) for at, call in enumerate(says.calls)]
    if says.odd.interleaves:
        turns = chain.from_iterable(zip_longest(*parts))
        return (delta for delta in turns if delta is not None)
    return chain.from_iterable(parts)


def _call_deltas(says: Says, at: int, call: Call) -> Iterator[JsonObject]:
    index: dict[str, Json] = {"index": 0 if says.odd.reuses_index else at}
    whole_arguments = call.arguments if says.odd.whole_arguments else ""
    opening = _whole_call(Call(call.name, whole_arguments, call.id), says)
    yield {**index, **opening}
    for piece in says.cut("" if whole_arguments else call.arguments):
        yield {**index, "function": {"arguments": piece}}
