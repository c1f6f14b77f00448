"""Whole turns over the wires, also by way of pydantic-ai: a model, a server, tools, and what the log has of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from pydantic_ai import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from loopline import Attachment, Harness
from loopline.errors import ModelAccessError, ModelError
from loopline.events import Delta
from loopline.harness.model_choice import ModelChoice
from loopline.models import JsonObject
from loopline.testing import FakeClock
from loopline.timeline import Decision, ModelOverflowed, RoundStart, TurnHeader
from tests.bridge.bridged_model import asking
from tests.providers.flat_request import markers, parts
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.behaviors import Behaviour, Cut, Status
from tests.support.peers.call_replies import Call
from tests.support.peers.openai_like import openai_like
from tests.support.peers.signing_server import signing
from tests.support.sample_files import pdf, png
from tests.support.workbench import at_work, bodies, said, workbench

KINDS = [f'"type":"{kind}"' for kind in ("image", "document", "input_image", "input_file")]
LOOK = (Call("w__count", '{"number": 7}', "call_1"),)


PYDANTIC_AI = "pydantic-ai:"


@pytest.mark.parametrize(
    "model",
    [
        *("openai:some-model", "openai:gpt-5.5", "ollama:qwen3:8b"),
        *(f"{PYDANTIC_AI}openai:gpt-5.5", f"{PYDANTIC_AI}openai-chat:some-model"),
    ],
)
async def test_a_turn_goes_over_the_wire_that_the_model_wants(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with openai_like(oai.Says("I look.", LOOK), oai.Says("It is 7.")) as peer:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{peer.url}/v1")
        monkeypatch.setenv("OLLAMA_BASE_URL", f"{peer.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-mine")
        async with at_work(model) as talk:
            result = await talk.say("How many?")
            (header,) = await bodies(talk, TurnHeader)
        await peer.until(lambda it: it.connections.open == 0)
    assert (result.answer, result.rounds, header.model) == ("It is 7.", 2, model)
    assert result.usage.input_tokens == 22
    assert [request.path for request in peer.requests] == [
        "/v1/responses" if model.endswith("openai:gpt-5.5") else "/v1/chat/completions"
    ] * 2
    assert b"[tc:turn_1.c1.result]\\n7" in peer.requests[1].raw


async def _counting(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | DeltaToolCalls]:
    if len(messages) == 1:
        yield {0: DeltaToolCall("w__count", '{"number": 7}', tool_call_id="a")}
    else:
        yield "It is 7."


@pytest.mark.parametrize("value", ["the model", "a chain", "a function"])
async def test_a_model_that_was_made_is_taken_as_it_is(value: str) -> None:
    function_model = FunctionModel(stream_function=_counting, model_name="counts")
    choices: dict[str, ModelChoice] = {
        "the model": function_model,
        "a chain": [function_model, "offline"],
        "a function": lambda: function_model,
    }
    async with Harness.open(workbench(), store="memory:", model=choices[value]) as harness:
        talk = harness.conversation("c")
        result = await talk.say("How many?")
        (header,) = await bodies(talk, TurnHeader)
        assert harness.model is harness.model
    assert (result.answer, header.model) == ("It is 7.", "pydantic-ai:function:counts")


async def test_who_asks_again_is_the_loop_alone() -> None:
    busy, clock = Status(429, headers={"Retry-After": "2"}), FakeClock()
    async with openai_like(busy, oai.Says("It is 7.")) as peer:
        made = asking(peer, "chat")
        async with Harness.open(workbench(), store="memory:", model=made, clock=clock) as harness:
            talk = harness.conversation("c")
            await talk.say("How many?")
            (decision,) = await bodies(talk, Decision)
    assert (decision.attempt, len(peer.requests)) == (2, 2)


async def test_a_server_in_anthropics_place_is_sent_messages_whatever_its_model_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with anthropic_like(ant.Says("Tea.")) as peer:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", peer.url)
        async with at_work("anthropic:ours") as talk:
            assert (await talk.say("go")).answer == "Tea."
    assert [request.path for request in peer.requests] == ["/v1/messages"]


@pytest.mark.parametrize(
    ("model", "forms"),
    [
        ("anthropic:claude-sonnet-5", ['"type":"image"', '"type":"document"']),
        ("openai:gpt-5.5", ['"type":"input_image"', '"type":"input_file"']),
        ("openai:some-model", []),
    ],
)
async def test_files_go_to_the_models_that_are_known_to_take_them(
    model: str, forms: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [Attachment("tea.png", png(30)), Attachment("plan.pdf", pdf("Tea is 4711."))]
    async with openai_like(oai.Says("Seen.")) as one, anthropic_like(ant.Says("Seen.")) as other:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{one.url}/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", other.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-1")
        async with at_work(model) as talk:
            result = await talk.say("Look.", attachments=files)
        (request,) = [*one.requests, *other.requests]
    assert result.answer == "Seen."
    sent = request.raw.decode()
    assert [form for form in KINDS if form in sent] == forms
    assert ("Tea is 4711." in sent) == (not forms)


async def test_a_turn_over_anthropics_wire_has_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ant.Says("I look.", LOOK, usage=ant.Usage(input=1_000, output=100))
    second = ant.Says("It is 7.", usage=ant.Usage(input=10, output=10, read=1_000))
    async with anthropic_like(first, second) as peer:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", peer.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-1")
        async with at_work("anthropic:claude-sonnet-5") as talk:
            result = await talk.say("How many?")
            prices = [decision.cost for decision in await bodies(talk, Decision)]
    assert result.answer == "It is 7."
    assert result.usage.cache_read_tokens == 1_000
    assert result.cost == pytest.approx(sum(price or 0 for price in prices))
    assert all(prices)


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("openai:gpt-5", "OPENAI_API_KEY"),
        ("anthropic:claude-sonnet-5", "ANTHROPIC_API_KEY"),
        (f"{PYDANTIC_AI}anthropic:claude-opus-5", "ANTHROPIC_API_KEY"),
    ],
)
def test_a_key_that_is_missing_is_named(
    model: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelAccessError, match=variable):
        Harness.open(workbench(), store="memory:", model=model)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gpt-5", "openai:"),
        ("openai:", "openai:"),
        ("nobody:gpt", "begin it with openai:, .* by way of pydantic-ai, with .*google:"),
        (f"{PYDANTIC_AI}gpt-5", "begin it with openai:"),
        ("cohere:some-model", r"pydantic-ai-slim\[cohere\]"),
    ],
)
def test_a_string_that_names_no_model_says_what_is_possible(
    model: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CO_API_KEY", "a key")
    with pytest.raises(ModelError, match=message):
        Harness.open(workbench(), store="memory:", model=model)


def test_without_the_package_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['pydantic_ai'] = None\n"
        "from loopline.harness.model_choice import resolve_models\n"
        "resolve_models('google:gemini')"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False
    )
    assert "pip install 'loopline[pydantic-ai]'" in ran.stderr
    assert "begin it with openai:" in ran.stderr


BUSY = Status(429, headers={"Retry-After": "2"})
CUT: Behaviour[oai.Says] = Cut(oai.Says("Half an answer " * 9, pieces=20), after_chunks=9)


@pytest.mark.parametrize("fault", [BUSY, Status(503), CUT], ids=["429", "503", "cut"])
async def test_a_fault_that_passes_costs_an_attempt_and_shows_nothing_twice(
    fault: Behaviour[oai.Says], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with openai_like(fault, oai.Says("It is 7.")) as peer:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{peer.url}/v1")
        async with at_work("openai:m") as talk:
            events = [event async for event in talk.stream("How many?")]
            (decision,) = await bodies(talk, Decision)
    assert (said(events), decision.attempt) == ("It is 7.", 2)
    types = {delta.type for delta in events if isinstance(delta, Delta) and delta.attempt == 1}
    assert types == ({"delta", "reset", "progress"} if fault is CUT else {"progress"})


async def test_what_is_void_is_named_by_the_attempt_that_was_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with openai_like(CUT, oai.Says("I look.", LOOK), oai.Says("It is 7.")) as peer:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{peer.url}/v1")
        async with at_work("openai:m") as talk:
            events = [event async for event in talk.stream("How many?")]
    rows = [(delta.type, delta.attempt) for delta in events if isinstance(delta, Delta)]
    assert [attempt for kind, attempt in rows if kind == "reset"] == [1, 2]


async def test_an_overflow_is_made_smaller_and_never_sent_the_same_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body: JsonObject = {
        "error": {"message": "This model's maximum context length is 12000 tokens."}
    }
    big = (Call("w__big", '{"size": 30000}', "call_1"),)
    script = (oai.Says(calls=big), oai.Says(calls=big), Status(400, body=body), oai.Says("Done."))
    async with openai_like(*script) as peer:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{peer.url}/v1")
        async with at_work("openai:m") as talk:
            result = await talk.say("go")
            (learned,) = await bodies(talk, ModelOverflowed)
    assert result.answer == "Done."
    assert learned.window <= 12_000
    refused, asked = peer.requests[-2:]
    assert len(asked.raw) < len(refused.raw)


@pytest.mark.parametrize(("by", "count"), [("", 50), (PYDANTIC_AI, 20)])
async def test_many_rounds_are_taken_by_a_server_that_checks_all_of_them(
    by: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = [
        ant.Says(f"note {n}", (Call("w__count", f'{{"number": {n}}}', f"toolu_{n}"),))
        for n in range(count - 1)
    ]
    async with signing(*rounds, ant.Says("Done.")) as peer:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", peer.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-1")
        model = f"{by}anthropic:claude-sonnet-5"
        async with at_work(model) as talk:
            result = await talk.say("go", max_iterations=60)
            decisions = await bodies(talk, Decision)
            epochs = {start.epoch for start in await bodies(talk, RoundStart)}
    assert (result.answer, len(peer.requests), epochs) == ("Done.", count, {1})
    assert all(decision.usage.cache_read_tokens > 0 for decision in decisions[5:])
    assert result.cost is not None
    assert result.cost > 0
    if by:
        flat = [parts(request.body)[:-1] for request in peer.requests]  # less the tail
        assert all(after[: len(before)] == before for before, after in pairwise(flat))
        last = peer.requests[-1].body
        assert markers(last)[-1] == len(parts(last)) - 2  # directly before the tail
