"""A server that others wrote, on all three wires: whole turns, faults, and the same as the vendors read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from loopline import Harness
from loopline.errors import ModelRateLimited, ModelStreamBroken, ModelTimedOut
from loopline.events import Delta
from loopline.models import JsonObject, Model, Prompt, ToolSpec, UserMessage
from loopline.testing import FakeClock
from loopline.timeline import Decision, ToolResult
from tests.peers.results import Result, of_reply, ours, theirs
from tests.providers.flat_request import WIRES
from tests.providers.local_model import PATIENT, asked, model_at
from tests.support.peers.aimock import (
    PACKAGE,
    limiting,
    overloaded,
    running,
    saying,
    script,
)
from tests.support.peers.call_replies import Call
from tests.support.peers.http_server import Peer
from tests.support.peers.npm_packages import install
from tests.support.workbench import bodies, said, workbench

pytestmark = pytest.mark.service
TEXT = "Tea, and more of it. " * 8
USAGE = {"prompt_tokens": 11, "completion_tokens": 7}
FIND = ToolSpec(
    name="find",
    description="Look something up.",
    parameters={"type": "object", "properties": {"name": {"type": "string"}}},
)
PROMPT = Prompt(system="You keep a shop.", tools=(FIND,), messages=(UserMessage(text="Tea?"),))
TWO_CALLS = (Call("find", '{"name":"größe"}', "call_1"), Call("find", "{}", "call_2"))
MODELS = {
    "chat": "openai:m",
    "responses": "openai:gpt-5.5",
    "messages": "anthropic:claude-sonnet-5",
}

on_every_wire = pytest.mark.parametrize("wire", WIRES)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("aimock")
    install(folder, PACKAGE)
    with running(folder) as url:
        yield url


@pytest.fixture
def peer(address: str, monkeypatch: pytest.MonkeyPatch) -> Peer:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{address}/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", address)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a key")
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    return Peer(address)


@on_every_wire
async def test_a_turn_makes_parallel_calls_and_answers(peer: Peer, wire: str) -> None:
    looks = [Call("w__count", f'{{"number": {n}}}', f"call_{n}") for n in (7, 8)]
    await script(peer.url, saying("I look.", *looks, usage=USAGE), saying("It is 15.", usage=USAGE))
    async with Harness.open(workbench(), store="memory:", model=MODELS[wire]) as harness:
        talk = harness.conversation("c")
        result = await talk.say("How many?")
        results = [result.text for result in await bodies(talk, ToolResult)]
    assert (result.answer, result.rounds, result.exit_reason) == ("It is 15.", 2, "complete")
    assert sorted(results) == ["7", "8"]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (22, 14)


@on_every_wire
@pytest.mark.parametrize(
    "entry",
    [saying(TEXT, usage=USAGE), saying("I look.", *TWO_CALLS, usage=USAGE), saying("", *TWO_CALLS)],
    ids=["text", "text and two calls", "two calls and no usage"],
)
async def test_the_vendors_client_reads_the_same(peer: Peer, wire: str, entry: JsonObject) -> None:
    await script(peer.url, entry, entry)
    assert of_reply(await ours(peer, wire, PROMPT)) == await theirs(peer, wire, PROMPT)


@on_every_wire
async def test_a_thought_is_no_part_of_the_answer(peer: Peer, wire: str) -> None:
    await script(peer.url, saying("Tea.", reasoning="Hm.", usage=USAGE))
    reply = await ours(peer, wire, PROMPT)
    assert (reply.thinking, of_reply(reply)) == ("Hm.", Result("Tea.", (), 11, 7))


@on_every_wire
async def test_an_answer_that_the_limit_cut_off_says_so(peer: Peer, wire: str) -> None:
    """On responses it says that it is completed, with the status incomplete; OpenAI does not."""
    await script(peer.url, saying("Tea, and", finishReason="length"))
    assert (await ours(peer, wire, PROMPT)).stop_reason == "length"


@on_every_wire
async def test_a_refusal_is_said_as_if_it_were_none(peer: Peer, wire: str) -> None:
    """Vendors mark a refusal; this server drops it. Refusals need the servers of this repository."""
    await script(peer.url, saying("Tea.", refusal="I cannot help with that."))
    reply = await ours(peer, wire, PROMPT)
    assert (reply.text, reply.stop_reason) == ("Tea.", "stop")


@on_every_wire
async def test_it_counts_no_cached_tokens_even_where_it_was_told_to(peer: Peer, wire: str) -> None:
    """The vendors do, in three places; what is read of them is held against our own servers."""
    cached: JsonObject = {**USAGE, "prompt_tokens_details": {"cached_tokens": 5}}
    await script(peer.url, saying("Tea.", usage=cached))
    assert (await ours(peer, wire, PROMPT)).usage.cache_read_tokens == 0


@on_every_wire
async def test_a_limit_of_the_rate_says_for_how_long(peer: Peer, wire: str) -> None:
    await script(peer.url, limiting(7))
    with pytest.raises(ModelRateLimited, match="Slow down") as raised:
        await ours(peer, wire, PROMPT)
    assert raised.value.retry_after == 7.0


FAULTS = {
    "429": limiting(7),
    "503": overloaded(),
    "cut before the head": {**saying(TEXT), "truncateAfterChunks": 4},
    "cut in the text": {**saying(TEXT), "chunkSize": 10, "latency": 5, "truncateAfterChunks": 9},
}


@on_every_wire
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_that_passes_costs_an_attempt_and_shows_nothing_twice(
    peer: Peer, wire: str, fault: str
) -> None:
    await script(peer.url, FAULTS[fault], saying(TEXT, usage=USAGE))
    async with Harness.open(
        workbench(), store="memory:", model=MODELS[wire], clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        events = [event async for event in talk.stream("Tea?")]
        (decision,) = await bodies(talk, Decision)
    assert (said(events), decision.attempt) == (TEXT.strip(), 2)
    resets = {
        delta.attempt for delta in events if isinstance(delta, Delta) and delta.type == "reset"
    }
    assert resets == ({1} if fault == "cut in the text" else set())


@on_every_wire
async def test_what_was_cut_had_been_told_up_to_there(peer: Peer, wire: str) -> None:
    await script(peer.url, FAULTS["cut in the text"])
    texts = list[str]()
    async with model_at(peer, wire) as model:
        with pytest.raises(ModelStreamBroken):
            await _heard(model, texts)
    assert len(texts) > 1
    assert TEXT.startswith("".join(texts))


async def _heard(model: Model, heard: list[str]) -> None:
    async for piece in model.stream(PROMPT):
        heard.append(piece.text)


@on_every_wire
async def test_a_stream_that_pauses_for_too_long_is_given_up(peer: Peer, wire: str) -> None:
    slow: JsonObject = {**saying(TEXT), "latency": 2_000}
    await script(peer.url, slow, {**slow, "latency": 1})
    hasty = replace(PATIENT, read=0.1)
    async with model_at(peer, wire, hasty) as model:
        with pytest.raises(ModelTimedOut):
            await asked(model, PROMPT)
    async with model_at(peer, wire) as model:
        assert (await asked(model, PROMPT))[1].text == TEXT
