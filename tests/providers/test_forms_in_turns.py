"""Turns with replies in the forms of single providers: what is repaired, refused, sent back, and given up."""

from __future__ import annotations

from typing import Any

import pytest

import loopline
from loopline.errors import ModelOverflow, ModelReplyTooLarge
from loopline.models import (
    Capabilities,
    ClosingModel,
    Json,
    JsonObject,
    Price,
    ReplyLimits,
    Usage,
    find_model_facts,
)
from loopline.timeline import Decision, Notice
from tests.providers.flat_request import wired
from tests.providers.local_model import asked, model_at
from tests.providers.recorded import FAILED, FILTERED
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.behaviors import Status
from tests.support.peers.http_server import Peer, Request, Step, serving
from tests.support.peers.openai_like import openai_like
from tests.support.peers.overflow_errors import OPENAI_COMPATIBLE
from tests.support.peers.pairing_server import Paired, paired
from tests.support.peers.streams import Event, Stream, event, on_the_wire
from tests.support.workbench import at_work, bodies

DETAILS: JsonObject = {"type": "reasoning.text", "text": "Hm.", "signature": "c2ln", "index": 0}
SIGNED: JsonObject = {"google": {"thought_signature": "EjQKMgEM"}}


def _chunk(delta: JsonObject, finish: str | None = None) -> Event:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _call(**more: Json) -> JsonObject:
    function: JsonObject = {"name": "w__count", "arguments": '{"number": 7}'}
    return {"tool_calls": [{"id": "tool_x1", "type": "function", "function": function, **more}]}


class Scripted:
    """A server that sends one list of events a request, and the last one again and again."""

    def __init__(self, *replies: list[Event]) -> None:
        self._left = list(replies)

    def __call__(self, request: Request) -> list[Step]:
        del request
        events = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        return on_the_wire(Stream(events=tuple(events)))


ANSWER = [_chunk({"content": "It is 7."}, "stop"), Event("[DONE]")]


@pytest.mark.parametrize("in_a_stream", [False, True])
async def test_a_call_that_its_server_cannot_read_is_written_anew(in_a_stream: bool) -> None:
    broken = Scripted([_chunk({"content": "I look."}), event({"error": FAILED})], ANSWER)
    refused = openai_like(Status(400, body={"error": FAILED}), oai.Says("It is 7."))
    async with (
        serving(Peer(), broken) if in_a_stream else refused as peer,
        at_work(wired("chat", f"{peer.url}/v1")) as talk,
    ):
        result = await talk.say("go")
        (notice,) = await bodies(talk, Notice)
    assert (result.answer, notice.code) == ("It is 7.", "malformed_reply")
    assert "Failed to call a function" in notice.text
    assert b"Failed to call a function" in peer.requests[1].raw


async def test_what_a_filter_holds_back_is_answered_by_the_next_model() -> None:
    async with (
        openai_like(Status(400, body={"error": FILTERED})) as filtered,
        openai_like(oai.Says("It is 7.")) as peer,
        at_work(
            (wired("chat", f"{filtered.url}/v1"), wired("chat", f"{peer.url}/v1", model="n"))
        ) as talk,
    ):
        result = await talk.say("go")
    assert (result.answer, len(filtered.requests)) == ("It is 7.", 1)


@pytest.mark.parametrize(
    ("message", "back"),
    [
        ([_chunk({"reasoning_details": [DETAILS]})], {"reasoning_details": [DETAILS]}),
        ([_chunk({"reasoning": "Hm."})], {}),
    ],
)
async def test_details_of_reasoning_go_back_to_the_model_that_wrote_them(
    message: list[Event], back: JsonObject
) -> None:
    served = Scripted([*message, _chunk(_call(index=0), "tool_calls")], ANSWER)
    facts = find_model_facts("openrouter:google/gemini-3-pro")
    async with (
        serving(Peer(), served) as peer,
        at_work(wired("chat", f"{peer.url}/v1", facts=facts)) as talk,
    ):
        await talk.say("go")
    body: Any = peer.requests[1].body
    called, result = body["messages"][2:4]
    assert {name: value for name, value in called.items() if name.startswith("reason")} == back
    assert called["tool_calls"][0]["id"] == result["tool_call_id"] == ("tool_x1" if back else "c1")


async def test_the_signature_of_a_call_goes_back_with_the_call() -> None:
    served = Scripted([_chunk(_call(extra_content=SIGNED), "stop")], ANSWER)
    async with (
        serving(Peer(), served) as peer,
        at_work(wired("chat", f"{peer.url}/v1")) as talk,
    ):
        await talk.say("go")
    body: Any = peer.requests[1].body
    (call,) = next(message["tool_calls"] for message in body["messages"] if "tool_calls" in message)
    assert (call["extra_content"], call["id"]) == (SIGNED, "tool_x1")


async def test_what_one_model_sealed_is_not_for_another() -> None:
    sealed = [_chunk({"reasoning_details": [DETAILS]}), _chunk(_call(index=0), "tool_calls")]
    away = [event({"error": {"code": 503, "message": "away"}})]
    async with (
        serving(Peer(), Scripted(sealed, away)) as peer,
        openai_like(oai.Says("It is 7.")) as other,
        at_work(
            (wired("chat", f"{peer.url}/v1"), wired("chat", f"{other.url}/v1", model="n"))
        ) as talk,
    ):
        result = await talk.say("go")
    assert result.answer == "It is 7."
    assert (b"c2ln" in peer.requests[1].raw, b"c2ln" in other.requests[0].raw) == (True, False)
    assert paired(other.requests[0]) == Paired(("c1",), ("c1",))


@pytest.mark.parametrize("server", OPENAI_COMPATIBLE)
async def test_a_prompt_that_is_too_long_is_told_in_the_words_of_many_servers(server: str) -> None:
    wire = "responses" if "responses" in server else "chat"
    async with (
        openai_like(OPENAI_COMPATIBLE[server]) as peer,
        model_at(peer, wire) as model,
    ):
        with pytest.raises(ModelOverflow):
            await asked(model)


async def test_a_reply_of_very_many_calls_is_given_up_while_it_streams() -> None:
    calls = [_chunk(_numbered(n)) for n in range(8_000)]
    async with serving(Peer(), Scripted([*calls])) as peer, model_at(peer, "chat") as model:
        with pytest.raises(ModelReplyTooLarge, match="at most 16,777,216 bytes and 256 calls"):
            await asked(model)


def _numbered(number: int) -> JsonObject:
    function: JsonObject = {"name": "shop__find", "arguments": "{}"}
    return {"tool_calls": [{"index": number, "id": f"call_{number}", "function": function}]}


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_a_reply_of_more_bytes_than_are_read_is_given_up(wire: str) -> None:
    text = "Tea, and more of it. " * 1_000
    limits = ReplyLimits(bytes=10_000)
    model = f"{'anthropic' if wire == 'messages' else 'openai'}:m"
    peers = (
        anthropic_like(ant.Says(text, pieces=50))
        if wire == "messages"
        else openai_like(oai.Says(text, pieces=50))
    )
    async with peers as peer:
        facts = find_model_facts("anthropic:m" if wire == "messages" else "openai:gpt-5.5")
        url = peer.url if wire == "messages" else f"{peer.url}/v1"
        made = loopline.model(
            model,
            base_url=url,
            facts=None if wire == "chat" else facts,
            reply_limits=limits,
        )
        with pytest.raises(ModelReplyTooLarge):
            await asked(made)
        assert isinstance(made, ClosingModel)
        await made.close(failed=False)


async def test_a_reply_whose_tokens_nobody_reported_says_so_and_has_no_price() -> None:
    free = Price(input=1, output=1, cache_read=1, cache_write=1)
    async with openai_like(oai.Says("Tea.", usage=None)) as peer:
        priced = wired("chat", f"{peer.url}/v1", Capabilities(price=free))
        async with at_work(priced) as talk:
            result = await talk.say("go")
            (decided,) = await bodies(talk, Decision)
    assert (result.usage, decided.cost) == (Usage(unreported=1), None)


async def test_tokens_of_reasoning_are_told_as_part_of_what_was_written() -> None:
    used = oai.Usage(completion=70, reasoning=50)
    async with openai_like(oai.Says("Tea.", usage=used)) as peer:
        for wire in ("chat", "responses"):
            async with model_at(peer, wire) as model:
                _, reply = await asked(model)
            assert (reply.usage.output_tokens, reply.usage.reasoning_tokens) == (70, 50)


def test_a_dated_alias_of_claude_is_known_as_its_family() -> None:
    assert find_model_facts("anthropic:claude-sonnet-4-0") == find_model_facts(
        "anthropic:claude-sonnet-4"
    )
    assert find_model_facts("anthropic:claude-opus-4-0") == find_model_facts(
        "anthropic:claude-opus-4"
    )
