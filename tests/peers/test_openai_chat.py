"""OpenAI's own client reads of a chat completion what was scripted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import pytest
from openai import ContentFilterFinishReasonError, LengthFinishReasonError
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall

from tests.peers.clients import GPT, openai_at
from tests.support.peers.call_replies import Call
from tests.support.peers.openai_like import openai_like
from tests.support.peers.openai_replies import Finish, Odd, Says, Usage
from tests.support.peers.streams import Framing

CALLS = (
    Call("search", '{"query":"größe","limit":3}', "call_a"),
    Call("read", '{"ref":"ks:readme"}', "call_b"),
)
USAGE = Usage(prompt=100, completion=20, cached=64, written=8, reasoning=5)


async def whole(says: Says) -> ChatCompletion:
    async with openai_like(says) as peer, openai_at(peer) as client:
        return await client.chat.completions.create(
            model=GPT, messages=[{"role": "user", "content": "Hello"}]
        )


async def accumulated(says: Says) -> ChatCompletion:
    """The completion as the client's own helper puts it together."""
    async with (
        openai_like(says) as peer,
        openai_at(peer) as client,
        client.chat.completions.stream(
            model=GPT,
            messages=[{"role": "user", "content": "Hello"}],
            stream_options={"include_usage": True},
        ) as stream,
    ):
        return await stream.get_final_completion()


async def chunks(says: Says, *, usage: bool = True) -> list[ChatCompletionChunk]:
    async with openai_like(says) as peer, openai_at(peer) as client:
        stream = await client.chat.completions.create(
            model=GPT,
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            stream_options={"include_usage": usage},
        )
        return [chunk async for chunk in stream]


@dataclass
class Heard:
    """What a reader adds up over the chunks."""

    text: str = ""
    refusal: str = ""
    reasoning: str = ""
    roles: list[str] = field(default_factory=list[str])
    calls: list[ChoiceDeltaToolCall] = field(default_factory=list[ChoiceDeltaToolCall])
    finish: str = ""


def heard(chunks: list[ChatCompletionChunk]) -> Heard:
    all_of_it = Heard()
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        delta = choice.delta
        all_of_it.text += delta.content or ""
        all_of_it.refusal += delta.refusal or ""
        all_of_it.reasoning += str((delta.model_extra or {}).get("reasoning_content", ""))
        all_of_it.roles += [delta.role] if delta.role else []
        all_of_it.calls += delta.tool_calls or []
        all_of_it.finish = choice.finish_reason or all_of_it.finish
    return all_of_it


def named(completion: ChatCompletion) -> list[Call]:
    tool_calls = completion.choices[0].message.tool_calls or []
    return [
        Call(call.function.name, call.function.arguments, call.id)
        for call in tool_calls
        if call.type == "function"
    ]


Read: TypeAlias = Callable[[Says], Awaitable[ChatCompletion]]
streamed_or_not = pytest.mark.parametrize("read", [whole, accumulated])


@streamed_or_not
async def test_text_reasoning_and_usage_are_what_was_said(read: Read) -> None:
    completion = await read(Says("Grüße, 世界!", reasoning="Hm.", usage=USAGE))
    choice = completion.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Grüße, 世界!", "stop")
    assert (choice.message.model_extra or {})["reasoning_content"] == "Hm."
    usage = completion.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.completion_tokens_details is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (100, 20, 120)
    assert usage.prompt_tokens_details.cached_tokens == 64
    assert usage.prompt_tokens_details.cache_write_tokens == 8
    assert usage.completion_tokens_details.reasoning_tokens == 5


@streamed_or_not
async def test_parallel_calls_are_what_was_called(read: Read) -> None:
    completion = await read(Says("Let me look.", calls=CALLS, pieces=5))
    assert named(completion) == list(CALLS)
    assert completion.choices[0].message.content == "Let me look."
    assert completion.choices[0].finish_reason == "tool_calls"


@streamed_or_not
async def test_a_refusal_is_no_text(read: Read) -> None:
    message = (await read(Says(refusal="I cannot help with that."))).choices[0].message
    assert (message.content or None, message.refusal) == (None, "I cannot help with that.")


@streamed_or_not
async def test_the_model_is_the_one_that_was_asked(read: Read) -> None:
    assert (await read(Says("Yes."))).model == GPT


async def test_a_call_without_text_has_no_content() -> None:
    completion = await whole(Says(calls=CALLS[:1]))
    assert completion.choices[0].message.content is None


@pytest.mark.parametrize(
    ("finish", "raised"),
    [("length", LengthFinishReasonError), ("content_filter", ContentFilterFinishReasonError)],
)
async def test_what_is_cut_short_is_raised_by_the_helper(
    finish: Finish, raised: type[Exception]
) -> None:
    says = Says("Once upon", finish=finish)
    with pytest.raises(raised):
        await accumulated(says)
    assert heard(await chunks(says)).finish == finish


async def test_without_being_asked_a_stream_tells_no_usage() -> None:
    read = await chunks(Says("Hello", usage=USAGE), usage=False)
    assert [chunk.usage for chunk in read if chunk.usage] == []
    assert all(chunk.choices for chunk in read)


async def test_usage_comes_in_a_last_chunk_without_choices() -> None:
    *before, last = await chunks(Says("Hello", usage=USAGE))
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == 120
    assert all(chunk.usage is None for chunk in before)


async def test_usage_may_come_unasked() -> None:
    last = (await chunks(Says("Hello", odd=Odd(usage="last")), usage=False))[-1]
    assert (last.choices, last.usage is not None) == ([], True)


async def test_usage_may_come_with_the_finish_reason() -> None:
    last = (await chunks(Says("Hello", odd=Odd(usage="finish"))))[-1]
    assert last.usage is not None
    assert last.choices[0].finish_reason == "stop"


async def test_usage_may_grow_from_chunk_to_chunk() -> None:
    read = await chunks(Says("Hello", usage=USAGE, odd=Odd(usage="every")))
    completion_tokens = [chunk.usage.completion_tokens for chunk in read if chunk.usage]
    assert len(completion_tokens) == len(read)
    assert completion_tokens == sorted(completion_tokens)
    assert completion_tokens[-1] == 20


@pytest.mark.parametrize(("role", "times"), [("first", 1), ("never", 0)])
async def test_a_role_comes_first_or_never(role: Literal["first", "never"], times: int) -> None:
    read = heard(await chunks(Says("Hello", odd=Odd(role=role))))
    assert read.roles == ["assistant"] * times
    assert read.text == "Hello"


async def test_a_role_may_come_in_every_delta() -> None:
    assert len(heard(await chunks(Says("Hello", pieces=4, odd=Odd(role="every")))).roles) == 5


async def test_every_call_may_have_the_index_0() -> None:
    deltas = heard(await chunks(Says(calls=CALLS, odd=Odd(reuses_index=True)))).calls
    assert {delta.index for delta in deltas} == {0}
    assert [delta.id for delta in deltas if delta.id] == ["call_a", "call_b"]


async def test_calls_may_have_no_ids() -> None:
    deltas = heard(await chunks(Says(calls=CALLS, odd=Odd(omits_ids=True)))).calls
    assert {delta.id for delta in deltas} == {None}
    assert {delta.index for delta in deltas} == {0, 1}


async def test_arguments_may_come_whole() -> None:
    deltas = heard(await chunks(Says(calls=CALLS, odd=Odd(whole_arguments=True)))).calls
    arguments = [delta.function.arguments for delta in deltas if delta.function]
    assert arguments == [call.arguments for call in CALLS]


async def test_the_deltas_of_two_calls_may_take_turns() -> None:
    says = Says(calls=CALLS, pieces=2, odd=Odd(interleaves=True))
    assert [delta.index for delta in heard(await chunks(says)).calls] == [0, 1, 0, 1, 0, 1]
    assert named(await accumulated(says)) == list(CALLS)


@pytest.mark.parametrize("at", range(1, len("<think>Hm.</think>Yes.")))
async def test_think_tags_are_cut_anywhere(at: int) -> None:
    says = Says("Yes.", reasoning="Hm.", pieces=(at,), odd=Odd(think_tags=True))
    read = await chunks(says)
    texts = [choice.delta.content for chunk in read for choice in chunk.choices]
    pieces = [text for text in texts if text]
    assert ("".join(pieces), len(pieces[0])) == ("<think>Hm.</think>Yes.", at)
    assert heard(read).reasoning == ""


@pytest.mark.parametrize(
    "framing",
    [
        Framing(ending="\r\n"),
        Framing(ending="\r"),
        Framing(comment=" keep-alive"),
        Framing(comment="", blank_lines=2),
        Framing(space=False),
        Framing(packets="characters"),
        Framing(packets=50, ending="\r\n", comment=" still here"),
    ],
)
async def test_a_stream_reads_the_same_however_it_lies_on_the_wire(framing: Framing) -> None:
    assert heard(await chunks(Says("Größe: 世界 🙂", pieces=1, framing=framing))).text == (
        "Größe: 世界 🙂"
    )


async def test_a_stream_may_end_without_its_last_line() -> None:
    assert heard(await chunks(Says("Hello", odd=Odd(omits_done=True)))).text == "Hello"
