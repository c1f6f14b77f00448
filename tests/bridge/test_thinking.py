"""Thinking by way of pydantic-ai: it goes back as it came, and is asked for as the model takes it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Literal, TypeAlias

import pytest
from msgspec import structs
from openai import AsyncOpenAI
from pydantic_ai import (
    BinaryImage,
    FilePart,
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    ModelSettings,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models.cerebras import CerebrasModel
from pydantic_ai.models.crusoe import CrusoeModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import (
    AgentInfo,
    DeltaThinkingCalls,
    DeltaThinkingPart,
    DeltaToolCall,
    DeltaToolCalls,
    FunctionModel,
)
from pydantic_ai.models.ollama import OllamaModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.models.zai import ZaiModel
from pydantic_ai.providers import Provider
from pydantic_ai.providers.cerebras import CerebrasProvider
from pydantic_ai.providers.crusoe import CrusoeProvider
from pydantic_ai.providers.deepseek import DeepSeekProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.zai import ZaiProvider

from loopline.bridge.bridged_model import BridgedModel
from loopline.bridge.request import parts_of, replay_of
from loopline.errors import ModelReplyTooLarge
from loopline.models import AssistantMessage, Options, ToolCall
from loopline.testing import FakeClock
from loopline.timeline import Decision, Exit, RoundStart
from loopline.tools import provider_names
from tests.bridge.bridged_model import asking, body_of, bridged_at
from tests.providers.flat_request import KEY
from tests.providers.local_model import asked
from tests.providers.test_requests import PROMPT
from tests.providers.test_tails import calls, extend_one_another, talked, thoughts
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.call_replies import Call
from tests.support.peers.http_server import Peer
from tests.support.peers.openai_like import openai_like
from tests.support.peers.signing_server import signing
from tests.support.workbench import at_work, bodies, workbench

Reasoning: TypeAlias = Literal["reasoning", "reasoning_content"]
OPUS = "claude-opus-5-5"
COUNT = Call("w__count", '{"number": 7}', "call_1")
LOOKED = oai.Says("I look.", (COUNT,), reasoning="Hm.")


def thinking_replies(turns: int, rounds: int) -> list[ant.Says]:
    """Replies that all think before the text, and often behind it."""
    drawn, replies = Random(1), list[ant.Says]()
    for turn in range(turns):
        for number in range(turn * rounds, (turn + 1) * rounds):
            made = [replace(call, id=f"{number}_{call.id}") for call in calls(drawn, turn)]
            more = (*thoughts(drawn, number), *made)
            first = ant.Thinking(f"Hm {number}.")
            replies.append(ant.Says(f" note {number} ", thinking=(first,), more=more))
        replies.append(ant.Says(f"Done {turn}.", thinking=(ant.Thinking("Well."),)))
    return replies


async def test_rounds_that_all_think_are_taken_by_a_server_that_checks_each_thought() -> None:
    clock, drawn = FakeClock(), Random(1)
    async with (
        signing(*thinking_replies(6, 6), minimum=0, clock=clock) as peer,
        bridged_at(peer, "messages", OPUS) as model,
    ):
        model.capabilities = replace(model.capabilities, window=32_000, output_limit=2_000)
        bundle = workbench(keep_recent_turns=3, keep_recent_intact_turns=1)
        async with at_work(model, bundle, clock=clock) as talk:
            await talked(talk, drawn, clock)
            starts, ends = await bodies(talk, RoundStart), await bodies(talk, Exit)
    assert {end.reason for end in ends} == {"complete"}
    assert len(starts) == len(peer.requests) > 30  # none was refused, and none sent twice
    assert any(item.opened_by for item in starts[1:])
    assert sum(b'"signature"' in request.raw for request in peer.requests) > 20
    extend_one_another(peer.requests, starts, tails=0)


async def test_reasoning_of_openai_goes_back_encrypted_and_outlives_the_tail() -> None:
    said = (LOOKED, oai.Says("It is 7."))
    async with (
        openai_like(*said) as peer,
        bridged_at(peer, "responses", "gpt-5.5") as model,
        at_work(model) as talk,
    ):
        await talk.say("go")
    body: Any = peer.requests[1].body
    assert [item.get("type", "said") for item in body["input"]] == [
        *["said", "reasoning", "message", "function_call", "function_call_output", "said"]
    ]
    _, thought, _, call, output, tail = body["input"]
    assert (thought["encrypted_content"], thought["summary"][0]["text"]) == ("SG0u", "Hm.")
    assert call["call_id"] == output["call_id"] == "call_1"
    assert tail["content"].startswith("ANNOUNCE")
    assert body["reasoning"]["context"] == "all_turns"  # else it would end with the tail


def _chatting(client: AsyncOpenAI, vendor: str) -> OpenAIChatModel:
    if vendor == "deepseek":
        return OpenAIChatModel("deepseek-v4-pro", provider=DeepSeekProvider(openai_client=client))
    return OpenAIChatModel("gpt-5", provider=OpenAIProvider(openai_client=client))


@pytest.mark.parametrize("vendor", ["deepseek", "openai"])
async def test_plain_thinking_goes_back_only_to_servers_that_take_it(vendor: str) -> None:
    async with (
        openai_like(LOOKED, oai.Says("It is 7.")) as peer,
        AsyncOpenAI(base_url=f"{peer.url}/v1", api_key=KEY) as client,
        at_work(BridgedModel("m", _chatting(client, vendor))) as talk,
    ):
        await talk.say("go")
        decisions = await bodies(talk, Decision)
    body: Any = peer.requests[1].body
    back = [
        message.get("reasoning_content")
        for message in body["messages"]
        if message["role"] == "assistant"
    ]
    assert back == (["Hm."] if vendor == "deepseek" else [None])
    echo = decisions[0].echo
    assert (echo is not None and not echo.bound) == (vendor == "deepseek")
    assert b"<think" not in peer.requests[1].raw


PLAIN: Sequence[tuple[type[OpenAIChatModel], type[Provider[AsyncOpenAI]], str, Reasoning]] = [
    (CerebrasModel, CerebrasProvider, "gpt-oss", "reasoning"),
    (CrusoeModel, CrusoeProvider, "gpt-oss", "reasoning"),
    (OllamaModel, OllamaProvider, "gpt-oss", "reasoning"),
    (ZaiModel, ZaiProvider, "glm-5", "reasoning_content"),
]


@pytest.mark.parametrize(("kind", "provider", "name", "field"), PLAIN)
async def test_plain_thinking_goes_back_in_the_field_in_which_it_came(
    kind: type[OpenAIChatModel],
    provider: Callable[..., Provider[AsyncOpenAI]],
    name: str,
    field: Reasoning,
) -> None:
    looked = oai.Says("I look.", (COUNT,), "Hm.", odd=oai.Odd(reasoning_field=field))
    async with (
        openai_like(looked, oai.Says("It is 7.")) as peer,
        AsyncOpenAI(base_url=f"{peer.url}/v1", api_key=KEY) as client,
        at_work(BridgedModel("m", kind(name, provider=provider(openai_client=client)))) as talk,
    ):
        await talk.say("go")
    body: Any = peer.requests[1].body
    (message,) = [message for message in body["messages"] if message["role"] == "assistant"]
    assert message.get(field) == "Hm."


async def test_a_model_that_is_a_function_gets_its_thinking_back_in_its_place() -> None:
    heard: list[list[ModelMessage]] = []

    async def thoughtful(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | DeltaToolCalls | DeltaThinkingCalls]:
        heard.append(messages)
        if len(messages) > 1:
            yield "It is 7."
            return
        yield {0: DeltaThinkingPart(content="Hm.", signature="c2ln")}
        yield "I look."
        yield {2: DeltaThinkingPart(content="So.", signature="bW9yZQ==")}
        yield {3: DeltaToolCall("w__count", '{"number": 7}', tool_call_id="call_1")}

    async with at_work(BridgedModel("m", FunctionModel(stream_function=thoughtful))) as talk:
        await talk.say("go")
    assert [(part.part_kind, getattr(part, "content", None)) for part in heard[1][1].parts] == [
        *[("thinking", "Hm."), ("text", "I look."), ("thinking", "So."), ("tool-call", None)]
    ]


def test_every_field_of_a_part_survives_and_a_call_that_was_never_made_is_left_out() -> None:
    details = {"thought_signature": "c2ln", "unset": None}
    parts: list[ModelResponsePart] = [
        ThinkingPart("Hm.", id="rs_1", signature="seal", provider_name="p"),
        ThinkingPart("And so.", id="rs_1", provider_name="p"),
        TextPart(
            "I look.", id="msg_1", provider_name="p", provider_details={"phase": "commentary"}
        ),
        FilePart(BinaryImage(b"\xff\x00", media_type="image/png")),
        ToolCallPart("w__count", {"number": 7}, "a", provider_name="p", provider_details=details),
    ]
    never = ToolCallPart("w__count", '{"num', "b")
    echo = replay_of(ModelResponse([*parts, never]), frozenset(), "pydantic-ai:p")
    assert echo is not None
    call = ToolCall(name="w.count", arguments={"number": 7}, call_id="c1", provider_id="a")
    message = AssistantMessage(text="", calls=(call,))
    stored = structs.replace(echo, parts=tuple(json.loads(json.dumps(echo.parts))))
    assert parts_of(stored, message, provider_names(["w.count"])) == parts
    assert "number" not in str(echo)


@pytest.mark.parametrize(
    ("wire", "model", "tail"),
    [
        ("messages", OPUS, "kept"),
        ("openrouter", "anthropic/claude-opus-5.5", "kept"),
        ("messages", "claude-sonnet-5", "dropped"),
        ("responses", "gpt-5.5", "dropped"),
    ],
)
def test_the_tail_stays_where_thinking_is_bound_to_it(wire: str, model: str, tail: str) -> None:
    made = asking(Peer(), wire, model)
    assert BridgedModel("m", made).capabilities.tail == tail
    fallback_model = FallbackModel(asking(Peer(), "chat"), made)
    assert BridgedModel("m", fallback_model).capabilities.tail == tail
    assert BridgedModel("m", WrapperModel(fallback_model)).capabilities.tail == tail


HARD = Options(reasoning_effort="high", output_limit=20_000)
EFFORTS = [
    (OPUS, Options(), None, None),
    (OPUS, HARD, {"type": "adaptive"}, {"effort": "high"}),
    ("claude-sonnet-5", Options(reasoning_effort="none"), {"type": "disabled"}, None),
    ("claude-haiku-4-5", Options(), None, None),
    ("claude-haiku-4-5", HARD, {"type": "enabled", "budget_tokens": 16_384}, None),
    (
        "claude-haiku-4-5",
        replace(HARD, output_limit=16_000),
        {"type": "enabled", "budget_tokens": 10_000},
        None,
    ),
    ("claude-haiku-4-5", replace(HARD, force_tool="w.look"), None, None),
]


@pytest.mark.parametrize(("model", "options", "thinking", "output"), EFFORTS)
async def test_an_effort_is_asked_for_as_the_model_takes_it(
    model: str, options: Options, thinking: object, output: object
) -> None:
    prompt = structs.replace(PROMPT, options=options, messages=PROMPT.messages[:1])
    body = await body_of(anthropic_like(ant.Says("Tea.")), "messages", model, prompt)
    assert (body.get("thinking"), body.get("output_config")) == (thinking, output)


async def test_a_budget_is_less_than_what_the_model_was_made_to_write() -> None:
    hard = Options(reasoning_effort="high")
    prompt = structs.replace(PROMPT, options=hard, messages=PROMPT.messages[:1])
    settings = ModelSettings(max_tokens=3_000)
    server = anthropic_like(ant.Says("Tea."))
    body = await body_of(server, "messages", "claude-haiku-4-5", prompt, settings)
    assert body["max_tokens"] > body.get("thinking", {}).get("budget_tokens", 0)


async def test_a_reply_of_very_many_calls_is_given_up() -> None:
    calls = tuple(Call("shop__find", "{}", f"call_{n}") for n in range(300))
    async with (
        openai_like(oai.Says("", calls)) as peer,
        bridged_at(peer, "chat") as model,
    ):
        with pytest.raises(ModelReplyTooLarge):
            await asked(model)


async def test_no_budget_is_asked_for_behind_calls_whose_thinking_is_gone() -> None:
    prompt = structs.replace(PROMPT, options=HARD, messages=PROMPT.messages[:4])
    server = anthropic_like(ant.Says("Tea."))
    assert "thinking" not in await body_of(server, "messages", "claude-haiku-4-5", prompt)
