"""Messages as Anthropic sends them: a document, or events from message_start to message_stop.

Source: platform.claude.com/docs/en/build-with-claude/streaming and /api/messages, by the types of the
official `anthropic` package 2.11; read on 2026-11-20.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopline.models.json import Json, JsonObject
from tests.support.peers import anthropic_replies as replies
from tests.support.peers.call_replies import Call, model_of, named_after
from tests.support.peers.http_server import Request
from tests.support.peers.streams import Event, Reply, Stream, document, event


def message(
    says: replies.Says, blocks: Sequence[replies.Block], usage: replies.Usage, asked: Request
) -> Reply:
    headers = {"request-id": named_after(asked, "req")}
    if asked.body.get("stream") is True:
        events = tuple(_events(says, blocks, usage, asked))
        return Stream(events=events, framing=says.framing, headers=headers)
    content: list[Json] = [replies.block_of(block) for block in blocks]
    whole_record: JsonObject = {"content": content, **_ending(says), "usage": usage.told()}
    return document({**_begun(asked), **whole_record}, headers=headers)


def _begun(asked: Request) -> JsonObject:
    return {
        "id": named_after(asked, "msg"),
        "type": "message",
        "role": "assistant",
        "model": model_of(asked),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
    }


def _ending(says: replies.Says) -> JsonObject:
    details: Json = None
    if says.stopped == "refusal":
        details = {"type": "refusal", "category": None, "explanation": says.refusal}
    return {
        "stop_reason": says.stopped,
        "stop_sequence": says.stop_sequence,
        "stop_details": details,
    }


def _events(
    says: replies.Says, blocks: Sequence[replies.Block], usage: replies.Usage, asked: Request
) -> Iterator[Event]:
    record: JsonObject = {**_begun(asked), "usage": {**usage.told(), "output_tokens": 1}}
    yield _named({"type": "message_start", "message": record})
    pings = [_named({"type": "ping"})] * says.pings
    for index, block in enumerate(blocks):
        place: JsonObject = {"index": index}
        opened = _named({"type": "content_block_start", **place, "content_block": _opened(block)})
        yield from (opened, *pings)
        pings = []
        for delta in _deltas(says, block):
            yield _named({"type": "content_block_delta", **place, "delta": delta})
        yield _named({"type": "content_block_stop", **place})
    yield from pings
    yield _named({"type": "message_delta", "delta": _ending(says), "usage": usage.told_last()})
    yield _named({"type": "message_stop"})


def _named(body: JsonObject) -> Event:
    return event(body, str(body["type"]))


def _opened(block: replies.Block) -> JsonObject:
    match block:
        case replies.Text():
            return replies.block_of(replies.Text(""))
        case replies.Thinking():
            return replies.block_of(replies.Thinking("", signature=""))
        case replies.Redacted():
            return replies.block_of(block)
        case Call():
            return replies.block_of(Call(block.name, "", block.id))


def _deltas(says: replies.Says, block: replies.Block) -> Iterator[JsonObject]:
    match block:
        case replies.Text():
            for piece in says.cut(block.text):
                yield {"type": "text_delta", "text": piece}
        case replies.Thinking():
            for piece in says.cut(block.text):
                yield {"type": "thinking_delta", "thinking": piece}
            yield {"type": "signature_delta", "signature": block.signature}
        case replies.Redacted():
            pass
        case Call():
            pieces = [block.arguments] if says.whole_arguments else says.cut(block.arguments)
            for piece in ("", *pieces):
                yield {"type": "input_json_delta", "partial_json": piece}
