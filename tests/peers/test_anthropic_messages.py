"""Anthropic's own client reads of a message what was scripted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from anthropic.types import Message, RawMessageStreamEvent

from tests.peers.clients import CLAUDE, HELLO, anthropic_at
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.anthropic_replies import Redacted, Says, Stop, Text, Thinking, Usage
from tests.support.peers.call_replies import Call
from tests.support.peers.streams import Framing

CALLS = (Call("search", '{"query":"größe"}', "toolu_a"), Call("read", "{}", "toolu_b"))
USAGE = Usage(input=100, output=20, read=64, written=8, written_1h=2, thinking=5)


async def whole(says: Says) -> Message:
    async with anthropic_like(says) as peer, anthropic_at(peer) as client:
        return await client.messages.create(model=CLAUDE, max_tokens=100, messages=HELLO)


async def accumulated(says: Says) -> Message:
    """The message as the client's own helper puts it together."""
    async with (
        anthropic_like(says) as peer,
        anthropic_at(peer) as client,
        client.messages.stream(model=CLAUDE, max_tokens=100, messages=HELLO) as stream,
    ):
        return await stream.get_final_message()


async def events(says: Says) -> list[RawMessageStreamEvent]:
    async with anthropic_like(says) as peer, anthropic_at(peer) as client:
        stream = await client.messages.create(
            model=CLAUDE, max_tokens=100, messages=HELLO, stream=True
        )
        return [event async for event in stream]


Read: TypeAlias = Callable[[Says], Awaitable[Message]]
streamed_or_not = pytest.mark.parametrize("read", [whole, accumulated])


@streamed_or_not
async def test_text_and_usage_are_what_was_said(read: Read) -> None:
    message = await read(Says("Grüße, 世界!", usage=USAGE))
    (block,) = message.content
    assert block.type == "text"
    assert (block.text, message.stop_reason, message.model) == ("Grüße, 世界!", "end_turn", CLAUDE)
    usage = message.usage
    assert (usage.input_tokens, usage.output_tokens) == (100, 20)
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (64, 10)
    assert usage.cache_creation is not None
    assert usage.cache_creation.ephemeral_5m_input_tokens == 8
    assert usage.cache_creation.ephemeral_1h_input_tokens == 2
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == 5


@streamed_or_not
async def test_calls_are_what_was_called(read: Read) -> None:
    message = await read(Says("Let me look.", calls=CALLS, pieces=5))
    contents = [block for block in message.content if block.type == "tool_use"]
    assert [(item.id, item.name, item.input) for item in contents] == [
        ("toolu_a", "search", {"query": "größe"}),
        ("toolu_b", "read", {}),
    ]
    assert message.stop_reason == "tool_use"


@streamed_or_not
async def test_thinking_comes_with_its_signature_before_the_rest(read: Read) -> None:
    thinking = (Thinking("Hm, hm.", "a signature"), Redacted("sealed"), Thinking("", "another"))
    first, sealed, empty, text = (await read(Says("Yes.", thinking=thinking))).content
    assert first.type == "thinking"
    assert (first.thinking, first.signature) == ("Hm, hm.", "a signature")
    assert sealed.type == "redacted_thinking"
    assert sealed.data == "sealed"
    assert empty.type == "thinking"
    assert (empty.thinking, empty.signature) == ("", "another")
    assert text.type == "text"


@streamed_or_not
async def test_blocks_may_come_in_any_order(read: Read) -> None:
    more = (Thinking("Again."), CALLS[0], Text("And then?"), CALLS[1])
    message = await read(Says("Let me look.", more=more))
    kinds = ["text", "thinking", "tool_use", "text", "tool_use"]
    assert [block.type for block in message.content] == kinds


@streamed_or_not
@pytest.mark.parametrize("stop", ["max_tokens", "pause_turn", "model_context_window_exceeded"])
async def test_a_message_says_why_it_stopped(read: Read, stop: Stop) -> None:
    message = await read(Says("Once upon", stop=stop))
    assert (message.stop_reason, message.stop_details) == (stop, None)


@streamed_or_not
async def test_a_stop_sequence_is_named(read: Read) -> None:
    message = await read(Says("Once", stop="stop_sequence", stop_sequence="END"))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")


@streamed_or_not
async def test_a_refusal_is_explained(read: Read) -> None:
    message = await read(Says(stop="refusal", refusal="Not that."))
    assert message.content == []
    assert message.stop_details is not None
    assert (message.stop_reason, message.stop_details.explanation) == ("refusal", "Not that.")


async def test_events_come_in_their_order() -> None:
    read = await events(Says("Yes.", thinking=(Thinking("Hm."),), pieces=1, pings=3))
    assert [event.type for event in read] == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_delta"),
        "content_block_stop",
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]


async def test_input_may_come_in_one_delta() -> None:
    read = await events(Says(calls=CALLS[:1], whole_arguments=True))
    deltas = [event.delta for event in read if event.type == "content_block_delta"]
    partial_jsons = [delta.partial_json for delta in deltas if delta.type == "input_json_delta"]
    assert partial_jsons == ["", CALLS[0].arguments]


@pytest.mark.parametrize(
    "framing",
    [
        Framing(ending="\r\n"),
        Framing(ending="\r"),
        Framing(comment=" keep-alive", blank_lines=2),
        Framing(space=False),
        Framing(packets="characters"),
        Framing(packets=60),
    ],
)
async def test_a_stream_reads_the_same_however_it_lies_on_the_wire(framing: Framing) -> None:
    (block,) = (await accumulated(Says("Größe: 世界 🙂", pieces=2, framing=framing))).content
    assert block.type == "text"
    assert block.text == "Größe: 世界 🙂"
