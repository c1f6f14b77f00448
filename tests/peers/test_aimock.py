"""A server that others wrote, on all three wires: whole turns, faults, and the same as the vendors read."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from loopline import Harness
from loopline.errors import ModelRateLimited, ModelStreamBroken, ModelTimedOut
from loopline.events import Delta
from loopline.models import Json, JsonObject, Model, Prompt, ToolSpec, UserMessage
from loopline.testing import FakeClock
from loopline.timeline import Decision, ToolResult
from tests.peers.results import Result, of_reply, ours, theirs
from tests.providers.flat_request import WIRES
from tests.providers.local_model import PATIENT, asked, model_at
from tests.support.peers.call_replies import Call
from tests.support.peers.http_server import Peer
from tests.support.peers.npm_packages import install, node
from tests.support.workbench import bodies, said, workbench

PACKAGE = "@copilotkit/aimock@^1.43.0"
CONTROL = "/__aimock"

_SERVE = """
const { LLMock } = require('@copilotkit/aimock');
const mock = new LLMock({ port: 0, host: '127.0.0.1', logLevel: 'silent' });
mock.start().then((url) => console.log(url));
process.stdin.on('end', () => process.exit()).resume();  // it ends with whoever started it
"""


@contextmanager
def running(folder: Path) -> Generator[str, None, None]:
    with subprocess.Popen(
        [node(), "-e", _SERVE],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def saying(
    text: str = "", *calls: Call, usage: Mapping[str, Json] | None = None, **more: Json
) -> JsonObject:
    """A reply, as its fixtures write it; of `more` are `reasoning` and `finishReason`."""
    records: list[Json] = [
        {"name": call.name, "arguments": call.arguments, "id": call.id} for call in calls
    ]
    response: JsonObject = {"content": text} if text else {}
    if calls:
        response["toolCalls"] = records
    if usage is not None:
        response["usage"] = dict(usage)
    return {"response": {**response, **more}}


def limiting(seconds: int) -> JsonObject:
    """A refusal for the rate, that asks to wait so long."""
    kind: JsonObject = {"type": "rate_limit_error", "code": "rate_limit_exceeded"}
    error: JsonObject = {"message": "Slow down.", **kind}
    return {"response": {"error": error, "status": 429, "retryAfter": seconds}}


def overloaded() -> JsonObject:
    """A refusal because there is too much to do."""
    error: JsonObject = {"message": "Busy.", "type": "server_error"}
    return {"response": {"error": error, "status": 503}}


async def script(url: str, *entries: JsonObject) -> None:
    """Forget all that was, and answer each request with the next entry."""
    fixtures: list[Json] = [
        {**entry, "match": {"sequenceIndex": number}} for number, entry in enumerate(entries)
    ]
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
        for path, body in (("/reset", {}), ("/fixtures", {"fixtures": fixtures})):
            answer = await client.post(f"{url}{CONTROL}{path}", json=body)
            assert answer.is_success, answer.text


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
