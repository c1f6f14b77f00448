"""Thinking that goes back to its provider: exactly as it came, in its place, and only as long as it may."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loopline.models import (
    AssistantMessage,
    Capabilities,
    Model,
    ModelFacts,
    Options,
    Prompt,
    ReasoningReplay,
    ToolCall,
    ToolSpec,
    UserMessage,
    find_model_facts,
)
from loopline.models.prompt import cost
from loopline.timeline import Decision, RangeSummary, RoundStart, SystemMessage, Thinking
from tests.bridge.bridged_model import bridged_at
from tests.providers.flat_request import wired
from tests.providers.test_faults import PATHS
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.behaviors import Behaviour
from tests.support.peers.call_replies import Call
from tests.support.peers.http_server import Peer
from tests.support.peers.openai_like import openai_like
from tests.support.workbench import at_work, bodies, workbench

SUMMARIZED = {"type": "adaptive", "display": "summarized"}
COUNT = Call("w__count", '{"number": 7}', "toolu_1")
OPUS = find_model_facts("anthropic:claude-opus-5-5")


@asynccontextmanager
async def opus(path: str, peer: Peer) -> AsyncGenerator[Model, None]:
    """Claude Opus at this server, by Loopline's own model or by that of pydantic-ai."""
    name = "claude-opus-5-5"
    if path == "own":
        yield wired("messages", peer.url, Capabilities(tail=OPUS.tail), OPUS, name)
    else:
        async with bridged_at(peer, "messages", name) as bridged:
            yield bridged


@pytest.mark.parametrize("path", PATHS)
async def test_signed_blocks_of_anthropic_go_back_in_their_order_with_texts_and_ids_untouched(
    path: str,
) -> None:
    first = ant.Says(
        " I look. ",
        thinking=(ant.Thinking("Hm.", "c2ln"), ant.Redacted("c2VhbA==")),
        more=(ant.Thinking("", "bW9yZQ=="), COUNT),
    )
    async with (
        anthropic_like(first, ant.Says("It is 7.")) as peer,
        opus(path, peer) as model,
        at_work(model) as talk,
    ):
        await talk.say("go")
        (thought,) = await bodies(talk, Thinking)
    body: Any = peer.requests[1].body
    *before, assistant, result = body["messages"][:4] if path == "own" else body["messages"]
    if path == "own":
        assert before[-1]["clear_at"] == "next_user_message"
    else:
        (asked_for,) = before
        assert [record["text"][:8] for record in asked_for["content"]] == ["[ar:turn", "ANNOUNCE"]
    assert assistant["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "c2VhbA=="},
        {"type": "text", "text": " I look. "},
        {"type": "thinking", "thinking": "", "signature": "bW9yZQ=="},
        {"type": "tool_use", "id": "toolu_1", "name": "w__count", "input": {"number": 7}},
    ]
    assert result["content"][0]["tool_use_id"] == "toolu_1"
    assert thought.text == "Hm."


async def test_reasoning_of_openai_goes_back_encrypted_and_the_tail_lies_in_the_result() -> None:
    facts = find_model_facts("openai:gpt-5.5")
    looked = oai.Says("I look.", (COUNT,), reasoning="Hm.")
    async with openai_like(looked, oai.Says("It is 7.")) as peer:
        model = wired(
            "responses", f"{peer.url}/v1", Capabilities(tail=facts.tail), facts, "gpt-5.5"
        )
        async with at_work(model) as talk:
            await talk.say("go")
    body: Any = peer.requests[1].body
    assert [item.get("type", "said") for item in body["input"]] == [
        *["said", "reasoning", "message", "function_call", "function_call_output"]
    ]
    assert body["input"][1]["encrypted_content"]
    call, output = body["input"][3:]
    assert call["call_id"] == output["call_id"] == "toolu_1"
    assert json.loads(call["arguments"]) == {"number": 7}
    assert [part["text"][:8] for part in output["output"]] == ["[tc:turn", "ANNOUNCE"]
    assert body["include"] == ["reasoning.encrypted_content"]
    keys = {str(request.body["prompt_cache_key"]) for request in peer.requests}
    assert len(keys) == 1


async def test_reasoning_that_only_its_server_could_read_is_not_sent_back() -> None:
    facts = ModelFacts(api="responses")  # nothing asks for the encrypted content
    looked = oai.Says("I look.", (COUNT,), reasoning="Hm.")
    async with openai_like(looked, oai.Says("It is 7.")) as peer:
        model = wired("responses", f"{peer.url}/v1", facts=facts)
        async with at_work(model) as talk:
            await talk.say("go")
            decisions = await bodies(talk, Decision)
    assert [decision.echo for decision in decisions] == [None, None]
    assert b"reasoning" not in peer.requests[1].raw


@pytest.mark.parametrize("family", ["deepseek:deepseek-v4-pro", "groq:openai/gpt-oss-20b"])
async def test_plain_thinking_goes_back_only_to_servers_that_take_it(family: str) -> None:
    facts = find_model_facts(family)
    looked = oai.Says("I look.", (COUNT,), reasoning="Hm.")
    async with openai_like(looked, oai.Says("It is 7.")) as peer:
        model = wired("chat", f"{peer.url}/v1", facts=facts)
        async with at_work(model) as talk:
            await talk.say("go")
    body: Any = peer.requests[1].body
    back = [
        message.get("reasoning_content")
        for message in body["messages"]
        if message["role"] == "assistant"
    ]
    assert back == (["Hm."] if facts.thinking_field else [None])


async def test_plain_thinking_outlives_an_epoch_for_it_is_bound_to_nothing() -> None:
    facts = find_model_facts("deepseek:deepseek-v4-pro")
    replies: list[Behaviour[oai.Says]] = [
        oai.Says("I look.", (COUNT,), reasoning="Hm."),
        oai.Says(
            "", (Call("react__hide", _hide("tc:turn_1.c1.result"), "call_2"),), reasoning="So."
        ),
        oai.Says("It is 7."),
    ]
    async with openai_like(*replies) as peer:
        model = wired("chat", f"{peer.url}/v1", facts=facts)
        async with at_work(model) as talk:
            await talk.say("go")
            epochs = {start.epoch for start in await bodies(talk, RoundStart)}
    body: Any = peer.requests[2].body
    back = [
        message["reasoning_content"]
        for message in body["messages"]
        if message["role"] == "assistant"
    ]
    assert (back, epochs) == (["Hm.", "So."], {1, 2})


async def test_the_first_that_goes_to_make_room_is_thinking() -> None:
    deep = ant.Thinking("Hm. " * 1_500)
    replies = [
        ant.Says("", (Call("w__count", '{"number": 1}', f"toolu_{n}"),), (deep,)) for n in range(9)
    ]
    async with anthropic_like(*replies, ant.Says("Done.")) as peer:
        capabilities = Capabilities(tail=OPUS.tail, window=12_000, output_limit=1_000)
        async with at_work(wired("messages", peer.url, capabilities, OPUS)) as talk:
            result = await talk.say("go")
            notices = await bodies(talk, SystemMessage)
            summed = await bodies(talk, RangeSummary)
    assert (result.answer, len(peer.requests), summed) == ("Done.", 10, [])
    assert notices
    assert all("thought in earlier rounds is no longer shown" in item.text for item in notices)


def test_a_reply_that_goes_back_as_it_came_is_counted_once() -> None:
    text = "What it said. " * 50
    echo = ReasoningReplay(wire="anthropic", parts=({"type": "text", "text": text},))
    plain, echoed = AssistantMessage(text=text), AssistantMessage(text=text, echo=echo)
    assert cost(echoed) == pytest.approx(cost(plain), rel=0.1)


def test_text_beside_thinking_that_goes_back_is_counted_too() -> None:
    text = "What it said. " * 50
    echo = ReasoningReplay(wire="openai", parts=({"reasoning_content": "Hm."},), bound=False)
    plain, echoed = AssistantMessage(text=text), AssistantMessage(text=text, echo=echo)
    assert cost(echoed) > 0.9 * cost(plain)


def test_plain_thinking_of_one_model_is_not_for_another_that_takes_none() -> None:
    echo = ReasoningReplay(wire="openai", parts=({"reasoning_content": "Hm."},), bound=False)
    prompt = Prompt(system="", messages=(AssistantMessage(text="Yes?", echo=echo),))
    for known, thought in [
        (find_model_facts("deepseek:deepseek-v4-pro"), "Hm."),
        (ModelFacts(), None),
    ]:
        (message,) = json.loads(wired("chat", facts=known).body(prompt))["messages"]
        assert message.get("reasoning_content") == thought


@pytest.mark.parametrize("tail", ["dropped", "inside"])
def test_a_call_without_thinking_says_so_to_a_server_that_refuses_its_absence(tail: Any) -> None:
    called = AssistantMessage(text="", calls=(ToolCall(name="w.count", arguments={}),))
    prompt = Prompt(
        system="",
        messages=(UserMessage(text="go"), AssistantMessage(text="Yes?"), called),
        tail_kind=tail,
    )
    for known, field in [(find_model_facts("deepseek:deepseek-v4-pro"), ""), (ModelFacts(), None)]:
        body = json.loads(wired("chat", facts=known).body(prompt))
        _, said, asked = body["messages"]
        assert (said.get("reasoning_content"), asked.get("reasoning_content")) == (None, field)


@pytest.mark.parametrize(
    ("effort", "sent"),
    [
        ("", (None, None)),
        ("none", ({"type": "disabled"}, None)),
        ("medium", (None, "medium")),
    ],
)
def test_deepseek_takes_efforts_and_has_another_word_for_none(effort: str, sent: object) -> None:
    prompt = Prompt(
        system="", messages=(UserMessage(text="go"),), options=Options(reasoning_effort=effort)
    )
    body = json.loads(
        wired("chat", facts=find_model_facts("deepseek:deepseek-v4-pro")).body(prompt)
    )
    assert (body.get("thinking"), body.get("reasoning_effort")) == sent


@pytest.mark.parametrize("path", PATHS)
async def test_thinking_of_a_reply_that_was_cut_off_has_no_signature_and_stays_here(
    path: str,
) -> None:
    cut = ant.Says(
        "",
        thinking=(ant.Thinking("Well."), ant.Thinking("Hm", "")),
        more=(ant.Text("Half"),),
        stop="max_tokens",
    )
    async with (
        anthropic_like(cut, ant.Says(" an answer.")) as peer,
        opus(path, peer) as model,
        at_work(model) as talk,
    ):
        result = await talk.say("go")
        (thought,) = await bodies(talk, Thinking)
    assert (result.answer, thought.text) == ("Half an answer.", "Well.Hm")
    assert b'"thinking":"Well."' in peer.requests[1].raw
    assert b"Hm" not in peer.requests[1].raw


async def test_an_epoch_drops_the_thinking_before_it() -> None:
    replies: list[Behaviour[ant.Says]] = [
        ant.Says("", (COUNT,), thinking=(ant.Thinking("First."),)),
        ant.Says("", (Call("react__hide", _hide("tc:turn_1.c1.result"), "toolu_2"),)),
        ant.Says("Done.", thinking=(ant.Thinking("Then."),)),
        ant.Says("Again."),
    ]
    async with anthropic_like(*replies) as peer:
        model = wired("messages", peer.url, Capabilities(tail=OPUS.tail), OPUS)
        async with at_work(model, workbench()) as talk:
            await talk.say("go")
            await talk.say("and then?")
    assert [b"First." in request.raw for request in peer.requests] == [False, True, False, False]
    assert [b"Then." in request.raw for request in peer.requests] == [False, False, False, True]


@pytest.mark.parametrize(
    ("family", "effort", "thinking", "output"),
    [
        ("claude-opus-4-6", "", None, None),
        ("claude-opus-4-6", "high", {"type": "adaptive"}, {"effort": "high"}),
        ("claude-opus-4-6", "none", {"type": "disabled"}, None),
        ("claude-opus-4-8", "", None, None),
        ("claude-opus-4-8", "high", SUMMARIZED, {"effort": "high"}),
        ("claude-fable-5", "", SUMMARIZED, None),
        ("claude-sonnet-5-5", "none", {"type": "between_tools"}, None),
        ("claude-sonnet-4-5", "", {"type": "disabled"}, None),
        ("claude-sonnet-4-5", "low", {"type": "enabled", "budget_tokens": 4_096}, None),
    ],
)
def test_an_effort_is_asked_for_as_the_model_takes_it(
    family: str, effort: str, thinking: object, output: object
) -> None:
    options = Options(reasoning_effort=effort, output_limit=20_000)
    prompt = Prompt(system="", messages=(UserMessage(text="Tea?"),), options=options)
    model = wired("messages", facts=find_model_facts(f"anthropic:{family}"))
    body = json.loads(model.body(prompt))
    assert (body.get("thinking"), body.get("output_config")) == (thinking, output)


@pytest.mark.parametrize(
    ("family", "thinking"),
    [
        ("claude-sonnet-4-5", {"type": "disabled"}),
        ("claude-opus-4-6", {"type": "disabled"}),
        ("claude-opus-4-7", {"type": "disabled"}),
        ("claude-opus-5", SUMMARIZED),
    ],
)
def test_a_forced_call_is_made_without_thinking_where_the_two_exclude_each_other(
    family: str, thinking: object
) -> None:
    options = Options(reasoning_effort="high", output_limit=20_000, force_tool="w.count")
    spec = ToolSpec(name="w.count", description="Counts.", parameters={"type": "object"})
    prompt = Prompt(system="", tools=(spec,), messages=(UserMessage(text="go"),), options=options)
    body = json.loads(wired("messages", facts=find_model_facts(f"anthropic:{family}")).body(prompt))
    assert body["tool_choice"] == {"type": "tool", "name": "w__count"}
    assert body["thinking"] == thinking


def _hide(path: str) -> str:
    return json.dumps({"path": path, "replacement": "seen"})
