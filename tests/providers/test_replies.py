"""Replies on each wire, from servers of every habit."""

from __future__ import annotations

import pytest

from loopline.models import Usage
from tests.providers.local_model import asked, model_at
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.call_replies import Call
from tests.support.peers.openai_like import openai_like

CALLS = (
    Call("shop__find", '{"name": "tea"}', "call_1"),
    Call("shop__find", '{"name": "pie"}', "call_2"),
)
WANTED = [("shop.find", {"name": "tea"}), ("shop.find", {"name": "pie"})]
ODD = {
    "ordinary": oai.Odd(),
    "index 0 alone": oai.Odd(reuses_index=True),
    "no ids": oai.Odd(omits_ids=True, whole_arguments=True),
    "index 0 and no ids": oai.Odd(reuses_index=True, omits_ids=True, whole_arguments=True),
    "whole arguments": oai.Odd(whole_arguments=True),
    "interleaved": oai.Odd(interleaves=True),
    "role in every chunk": oai.Odd(role="every"),
    "no role": oai.Odd(role="never"),
    "usage in the last chunk": oai.Odd(usage="last"),
    "usage with the end": oai.Odd(usage="finish"),
    "usage in every chunk": oai.Odd(usage="every"),
    "another field for thoughts": oai.Odd(reasoning_field="reasoning"),
    "thoughts in tags": oai.Odd(think_tags=True),
    "no last line": oai.Odd(omits_done=True),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("pieces", [1, 3, 40])
async def test_a_chat_completion_is_what_was_said_whatever_the_habits(
    odd: oai.Odd, pieces: int
) -> None:
    sent_reply = oai.Says("I look.", CALLS, "Hm, tea.", pieces=pieces, odd=odd)
    async with openai_like(sent_reply) as peer, model_at(peer, "chat") as model:
        deltas, reply = await asked(model)
    assert (reply.text, reply.thinking, reply.stop_reason) == ("I look.", "Hm, tea.", "tool_use")
    assert [(call.name, call.arguments) for call in reply.calls] == WANTED
    assert reply.usage == Usage(input_tokens=11, output_tokens=7)
    assert "".join(delta.text for delta in deltas if delta.channel == "answer") == "I look."
    assert "".join(delta.text for delta in deltas if delta.channel == "thinking") == "Hm, tea."


async def test_a_response_is_what_was_said() -> None:
    sent_reply = oai.Says("I look.", CALLS, "Hm, tea.", usage=oai.Usage(cached=5))
    async with openai_like(sent_reply) as peer, model_at(peer, "responses") as model:
        deltas, reply = await asked(model)
    assert (reply.text, reply.thinking, reply.stop_reason) == ("I look.", "Hm, tea.", "tool_use")
    assert [(call.name, call.arguments) for call in reply.calls] == WANTED
    assert reply.usage == Usage(input_tokens=11, output_tokens=7, cache_read_tokens=5)
    assert len(deltas) > 2


@pytest.mark.parametrize("pieces", [1, 3, 40])
async def test_a_message_is_what_was_said(pieces: int) -> None:
    usage = ant.Usage(read=100, written=20)
    thoughts = (ant.Thinking("Hm, tea."), ant.Redacted())
    sent_reply = ant.Says("I look.", CALLS, thoughts, usage=usage, pieces=pieces)
    async with anthropic_like(sent_reply) as peer, model_at(peer, "messages") as model:
        deltas, reply = await asked(model)
    assert (reply.text, reply.thinking, reply.stop_reason) == ("I look.", "Hm, tea.", "tool_use")
    assert [(call.name, call.arguments) for call in reply.calls] == WANTED
    assert reply.usage == Usage(
        input_tokens=131, output_tokens=7, cache_read_tokens=100, cache_write_tokens=20
    )
    assert {delta.channel for delta in deltas} == {"answer", "thinking"}


ENDS = [
    ("chat", oai.Says("Tea.", finish="length"), "length"),
    ("chat", oai.Says("Tea.", finish="content_filter"), "refusal"),
    ("chat", oai.Says(refusal="I cannot."), "refusal"),
    ("chat", oai.Says("Tea."), "stop"),
    ("responses", oai.Says("Tea.", finish="length"), "length"),
    ("responses", oai.Says(refusal="I cannot."), "refusal"),
    ("responses", oai.Says("Tea."), "stop"),
]


@pytest.mark.parametrize(("wire", "message", "stop"), ENDS)
async def test_why_a_reply_of_openai_ended_is_told(wire: str, message: oai.Says, stop: str) -> None:
    async with openai_like(message) as peer, model_at(peer, wire) as model:
        _, reply = await asked(model)
    assert reply.stop_reason == stop


STOPS: list[tuple[ant.Stop, str]] = [
    ("end_turn", "stop"),
    ("stop_sequence", "stop"),
    ("pause_turn", "stop"),
    ("max_tokens", "length"),
    ("model_context_window_exceeded", "length"),
    ("refusal", "refusal"),
]


@pytest.mark.parametrize(("stop", "message"), STOPS)
async def test_why_a_message_ended_is_told(stop: ant.Stop, message: str) -> None:
    sent_reply = ant.Says("Tea.", stop=stop)
    async with anthropic_like(sent_reply) as peer, model_at(peer, "messages") as model:
        _, reply = await asked(model)
    assert reply.stop_reason == message


async def test_half_a_call_is_a_problem_unless_the_output_limit_cut_it_off() -> None:
    half = (Call("shop__find", '{"name": "te', "call_1"),)
    replies = (oai.Says(calls=half), oai.Says(calls=half, finish="length"))
    async with openai_like(*replies) as peer, model_at(peer, "chat") as model:
        (_, broken), (_, cut) = await asked(model), await asked(model)
    assert ("cannot be read" in broken.problem, broken.calls) == (True, ())
    assert (cut.problem, cut.stop_reason) == ("", "length")


async def test_a_call_whose_arguments_the_output_limit_cut_off_whole_is_none() -> None:
    named = (Call("shop__find", '{"name": "tea"}', "call_1"), Call("shop__find", "", "call_2"))
    replies = (oai.Says(calls=named), oai.Says(calls=named, finish="length"))
    async with openai_like(*replies) as peer, model_at(peer, "chat") as model:
        (_, ended), (_, cut) = await asked(model), await asked(model)
    assert [call.arguments for call in ended.calls] == [{"name": "tea"}, {}]
    assert [call.arguments for call in cut.calls] == [{"name": "tea"}]


async def test_the_key_goes_in_the_header_of_its_wire_and_nowhere_else() -> None:
    async with openai_like(oai.Says("Tea.")) as peer, model_at(peer, "chat") as model:
        await asked(model)
    async with anthropic_like(ant.Says("Tea.")) as other, model_at(other, "messages") as model:
        await asked(model)
    (chat,), (messages,) = peer.requests, other.requests
    assert chat.headers["authorization"] == "Bearer sk-secret-of-mine"
    assert messages.headers["x-api-key"] == "sk-secret-of-mine"
    assert messages.headers["anthropic-version"] == "2023-06-01"
    assert b"sk-secret" not in chat.raw + messages.raw
