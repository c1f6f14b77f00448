"""Whole turns by way of pydantic-ai: strings, models that were made, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from pydantic_ai import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from loopline import Harness
from loopline.errors import ModelAccessError, ModelError
from loopline.harness.model_choice import ModelChoice
from loopline.testing import FakeClock
from loopline.timeline import Decision, TurnHeader
from tests.bridge.bridged_model import asking
from tests.providers.flat_request import markers, parts
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.behaviors import Status
from tests.support.peers.call_replies import Call
from tests.support.peers.openai_like import openai_like
from tests.support.peers.signing_server import signing
from tests.support.workbench import bodies, workbench

LOOK = (Call("w__count", '{"number": 7}', "call_1"),)


@pytest.mark.parametrize(
    "model", ["pydantic-ai:openai:gpt-5.5", "pydantic-ai:openai-chat:some-model"]
)
async def test_a_string_of_pydantic_ai_is_asked_by_it(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with openai_like(oai.Says("I look.", LOOK), oai.Says("It is 7.")) as peer:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{peer.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-mine")
        async with Harness.open(workbench(), store="memory:", model=model) as harness:
            talk = harness.conversation("c")
            result = await talk.say("How many?")
            (header,) = await bodies(talk, TurnHeader)
        await peer.until(lambda it: it.connections.open == 0)
    assert (result.answer, result.rounds, header.model) == ("It is 7.", 2, model)
    assert result.usage.input_tokens == 22
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


async def test_twenty_rounds_are_taken_by_a_server_that_checks_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = [
        ant.Says(f"note {n}", (Call("w__count", f'{{"number": {n}}}', f"toolu_{n}"),))
        for n in range(19)
    ]
    async with signing(*rounds, ant.Says("Done.")) as peer:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", peer.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-1")
        model = "pydantic-ai:anthropic:claude-sonnet-5"
        async with Harness.open(workbench(), store="memory:", model=model) as harness:
            talk = harness.conversation("c")
            result = await talk.say("go", max_iterations=30)
            decisions = await bodies(talk, Decision)
    assert (result.answer, len(peer.requests)) == ("Done.", 20)
    assert all(decision.usage.cache_read_tokens > 0 for decision in decisions[5:])
    flat = [parts(request.body)[:-1] for request in peer.requests]  # less the tail
    assert all(after[: len(before)] == before for before, after in pairwise(flat))
    last = peer.requests[-1].body
    assert markers(last)[-1] == len(parts(last)) - 2  # directly before the tail
    assert result.cost is not None
    assert result.cost > 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nobody:gpt", "begin it with openai:, .* by way of pydantic-ai, with .*google:"),
        ("pydantic-ai:gpt-5", "begin it with openai:"),
        ("cohere:some-model", r"pydantic-ai-slim\[cohere\]"),
    ],
)
def test_a_string_that_names_no_model_says_what_is_possible(
    model: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CO_API_KEY", "a key")
    with pytest.raises(ModelError, match=message):
        Harness.open(workbench(), store="memory:", model=model)


def test_a_key_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ModelAccessError, match="ANTHROPIC_API_KEY"):
        Harness.open(workbench(), store="memory:", model="pydantic-ai:anthropic:claude-opus-5")


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
