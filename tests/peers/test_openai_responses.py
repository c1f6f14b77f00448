"""OpenAI's own client reads of a response what was scripted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

import pytest
from openai import APIError
from openai.types.responses import Response, ResponseStreamEvent

from tests.peers.clients import GPT, openai_at
from tests.support.peers.behaviors import Behaviour, BrokenOff, Fault
from tests.support.peers.call_replies import Call
from tests.support.peers.openai_like import openai_like
from tests.support.peers.openai_replies import Odd, Says, Usage
from tests.support.peers.streams import Framing

CALLS = (Call("search", '{"query":"größe"}', "call_a"), Call("read", "{}", "call_b"))
USAGE = Usage(prompt=100, completion=20, cached=64, written=8, reasoning=5)


async def whole(says: Says) -> Response:
    async with openai_like(says) as peer, openai_at(peer) as client:
        return await client.responses.create(
            model=GPT, input="Hello", include=["reasoning.encrypted_content"]
        )


async def accumulated(says: Says) -> Response:
    """The response as the client's own helper puts it together."""
    async with (
        openai_like(says) as peer,
        openai_at(peer) as client,
        client.responses.stream(
            model=GPT, input="Hello", include=["reasoning.encrypted_content"]
        ) as stream,
    ):
        return await stream.get_final_response()


async def events(behaviour: Behaviour[Says]) -> list[ResponseStreamEvent]:
    async with openai_like(behaviour) as peer, openai_at(peer) as client:
        stream = await client.responses.create(model=GPT, input="Hello", stream=True)
        return [event async for event in stream]


Read: TypeAlias = Callable[[Says], Awaitable[Response]]
streamed_or_not = pytest.mark.parametrize("read", [whole, accumulated])


@streamed_or_not
async def test_text_and_usage_are_what_was_said(read: Read) -> None:
    response = await read(Says("Grüße, 世界!", usage=USAGE))
    assert (response.output_text, response.status) == ("Grüße, 世界!", "completed")
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (100, 20, 120)
    assert usage.input_tokens_details.cached_tokens == 64
    assert usage.input_tokens_details.cache_write_tokens == 8
    assert usage.output_tokens_details.reasoning_tokens == 5


@streamed_or_not
async def test_calls_are_what_was_called(read: Read) -> None:
    output = (await read(Says("Let me look.", calls=CALLS))).output
    made = [item for item in output if item.type == "function_call"]
    assert [Call(call.name, call.arguments, call.call_id) for call in made] == list(CALLS)
    assert [item.type for item in output] == ["message", "function_call", "function_call"]


@streamed_or_not
async def test_reasoning_is_an_item_before_the_text(read: Read) -> None:
    reasoning, message = (await read(Says("Yes.", reasoning="Hm, hm."))).output
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.summary] == ["Hm, hm."]
    assert reasoning.encrypted_content
    assert message.type == "message"


@streamed_or_not
async def test_a_refusal_is_a_part_of_the_message(read: Read) -> None:
    (message,) = (await read(Says(refusal="I cannot help with that."))).output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "refusal"
    assert part.refusal == "I cannot help with that."


async def test_reasoning_is_only_encrypted_for_those_who_ask() -> None:
    async with openai_like(Says(reasoning="Hm.")) as peer, openai_at(peer) as client:
        (item,) = (await client.responses.create(model=GPT, input="Hello")).output
    assert item.type == "reasoning"
    assert item.encrypted_content is None


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_a_response_that_is_cut_short_is_incomplete(
    finish: Literal["length", "content_filter"], reason: str
) -> None:
    says = Says("Once upon", finish=finish)
    last = (await events(says))[-1]
    assert last.type == "response.incomplete"
    for response in (last.response, await whole(says)):
        assert response.incomplete_details is not None
        assert (response.status, response.incomplete_details.reason) == ("incomplete", reason)


async def test_a_response_can_fail_in_its_stream() -> None:
    failed = Fault(kind="rate_limit_exceeded", message="Slow down.")
    last = (await events(Says("Once upon", failed=failed)))[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert (last.response.error.code, last.response.error.message) == (
        "rate_limit_exceeded",
        "Slow down.",
    )


async def test_events_are_numbered_without_a_gap() -> None:
    read = await events(Says("Hello", calls=CALLS, reasoning="Hm.", refusal="No."))
    assert [event.sequence_number for event in read] == list(range(len(read)))


async def test_an_error_can_be_an_event_of_its_own() -> None:
    fault = Fault(kind="server_error", message="It broke.")
    last = (await events(BrokenOff(Says("Hello"), 5, fault)))[-1]
    assert last.type == "error"
    assert (last.code, last.message, last.sequence_number) == ("server_error", "It broke.", 5)


async def test_an_error_event_with_an_inner_object_is_raised() -> None:
    fault = Fault(kind="server_error", message="It broke.", nested=True)
    with pytest.raises(APIError, match="It broke"):
        await events(BrokenOff(Says("Hello"), 5, fault))


async def test_arguments_may_come_in_one_delta() -> None:
    read = await events(Says(calls=CALLS, odd=Odd(whole_arguments=True)))
    deltas = [item.delta for item in read if item.type == "response.function_call_arguments.delta"]
    assert deltas == [call.arguments for call in CALLS]


@pytest.mark.parametrize(
    "framing", [Framing(ending="\r\n"), Framing(comment=" x"), Framing(packets="characters")]
)
async def test_a_stream_reads_the_same_however_it_lies_on_the_wire(framing: Framing) -> None:
    read = await events(Says("Größe: 世界", pieces=2, framing=framing))
    deltas = [event.delta for event in read if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "Größe: 世界"
