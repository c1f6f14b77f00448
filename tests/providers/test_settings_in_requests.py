"""Settings of models as they are sent: the fields of each API, the headers, and the time for a reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

import loopline
from loopline import Harness, ModelSettings
from loopline.errors import ModelRequestError, ModelTimedOut
from loopline.models import Options, Prompt, find_model_facts
from tests.bridge.bridged_model import Listener, bridged_at
from tests.providers.flat_request import KEY, wired
from tests.providers.local_model import PROMPT
from tests.support.peers import openai_replies as oai
from tests.support.peers.behaviors import Silence
from tests.support.peers.openai_like import openai_like
from tests.support.workbench import workbench

SETTINGS = ModelSettings(
    temperature=0.25,
    top_p=0.5,
    seed=7,
    stop=["END"],
    max_tokens=99,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    parallel_tool_calls=False,
    service_tier="flex",
    extra_body={"top_k": 3},
)


def prompt_with(settings: ModelSettings, prompt: Prompt = PROMPT) -> Prompt:
    return structs.replace(prompt, options=Options(output_limit=500).with_settings(settings))


def body(wire: str, model: str, settings: ModelSettings, prompt: Prompt = PROMPT) -> Any:
    facts = find_model_facts(model)
    return json.loads(wired(wire, facts=facts).body(prompt_with(settings, prompt)))


def test_chat_completions_get_every_setting() -> None:
    sent = body("chat", "openai:gpt-4.1", SETTINGS)
    expected = {
        "temperature": 0.25,
        "top_p": 0.5,
        "seed": 7,
        "stop": ["END"],
        "max_completion_tokens": 99,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "parallel_tool_calls": False,
        "service_tier": "flex",
        "top_k": 3,
    }
    assert {name: sent[name] for name in expected} == expected


def test_messages_have_their_own_names() -> None:
    settings = SETTINGS.without(["seed", "presence_penalty", "frequency_penalty", "top_p"])
    sent = body("messages", "anthropic:claude-sonnet-4-5", settings)
    expected = {
        "temperature": 0.25,
        "stop_sequences": ["END"],
        "max_tokens": 99,
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "service_tier": "flex",
        "top_k": 3,
    }
    assert {name: sent[name] for name in expected} == expected
    assert "parallel_tool_calls" not in sent


def test_responses_have_their_own_names() -> None:
    settings = ModelSettings(
        temperature=0.25,
        top_p=0.5,
        max_tokens=99,
        reasoning_effort="none",
        parallel_tool_calls=False,
        service_tier="flex",
    )
    sent = body("responses", "openai:gpt-5.6", settings)
    expected = {
        "temperature": 0.25,
        "top_p": 0.5,
        "max_output_tokens": 99,
        "reasoning": {"effort": "none", "summary": "auto"},
        "parallel_tool_calls": False,
        "service_tier": "flex",
    }
    assert {name: sent[name] for name in expected} == expected


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_without_settings_a_request_has_none_of_their_fields(wire: str) -> None:
    sent = json.loads(wired(wire).body(PROMPT))
    names = {"temperature", "top_p", "seed", "service_tier", "parallel_tool_calls"}
    assert not names & sent.keys()


@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_without_tools_nothing_is_said_about_parallel_calls(wire: str) -> None:
    settings = ModelSettings(parallel_tool_calls=False)
    sent = body(wire, "openai:gpt-4.1", settings, structs.replace(PROMPT, tools=()))
    assert "parallel_tool_calls" not in sent


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_an_extra_field_replaces_the_field_of_its_name(wire: str) -> None:
    settings = ModelSettings(temperature=0.25, extra_body={"temperature": 0.75})
    text = wired(wire).body(prompt_with(settings)).decode()
    assert text.count('"temperature"') == 1
    assert json.loads(text)["temperature"] == 0.75


def test_a_reply_is_never_longer_than_the_loop_allows() -> None:
    assert (
        body("chat", "openai:gpt-4.1", ModelSettings(max_tokens=600))["max_completion_tokens"]
        == 500
    )


async def test_settings_of_a_model_are_sent_with_each_of_its_requests() -> None:
    settings = ModelSettings(
        temperature=0.25, extra_headers={"X-Gateway-Token": "g-1"}, extra_body={"top_k": 3}
    )
    async with openai_like(oai.Says("Tea.")) as peer:
        model = loopline.model(
            "openai:llama-3", base_url=f"{peer.url}/v1", api_key=KEY, settings=settings
        )
        async for _ in model.stream(PROMPT):
            pass
        async with Harness.open(workbench(), store="memory:", model=model) as harness:
            conversation = harness.conversation("c")
            await conversation.say("Tea?", settings=ModelSettings(temperature=0.75))
            stored = str(await conversation.export())
    alone, in_turn = peer.requests
    for request in (alone, in_turn):
        assert request.headers["x-gateway-token"] == "g-1"
        assert request.headers["authorization"] == f"Bearer {KEY}"
    bodies = [request.body for request in (alone, in_turn)]
    assert [(body["temperature"], body["top_k"]) for body in bodies] == [(0.25, 3), (0.75, 3)]
    assert "g-1" not in stored


def test_a_model_with_a_setting_that_it_does_not_support_is_not_made() -> None:
    with pytest.raises(ModelRequestError, match=r"openai:gpt-5 does not support temperature=0\.2"):
        loopline.model("openai:gpt-5", api_key=KEY, settings=ModelSettings(temperature=0.2))


@pytest.mark.parametrize("name", ["openai:llama-3", "openai:gpt-5.5"])
async def test_a_reply_that_takes_longer_than_the_timeout_is_given_up(name: str) -> None:
    async with openai_like(Silence(oai.Says("Tea."))) as peer:
        settings = ModelSettings(timeout=0.2)
        model = loopline.model(name, base_url=f"{peer.url}/v1", settings=settings)
        with pytest.raises(ModelTimedOut):
            async for _ in model.stream(PROMPT):
                pass


async def test_a_bridged_model_gets_the_settings_by_its_own_names() -> None:
    settings = ModelSettings(
        temperature=0.25,
        seed=7,
        stop=["END"],
        max_tokens=99,
        timeout=5.0,
        extra_headers={"X-Trace": "1"},
        extra_body={"top_k": 3},
    )
    listener = Listener()
    await listener.ask(prompt_with(settings))
    [asked] = listener.asked
    sent: dict[str, Any] = {**(asked.model_settings or {})}
    expected = {
        "temperature": 0.25,
        "seed": 7,
        "stop_sequences": ["END"],
        "max_tokens": 99,
        "timeout": 5.0,
        "request_timeout": 5.0,
        "extra_headers": {"X-Trace": "1"},
        "extra_body": {"top_k": 3},
    }
    assert {name: sent[name] for name in expected} == expected


async def test_a_bridged_model_supports_what_its_class_sends() -> None:
    async with openai_like(oai.Says("Tea.")) as peer:
        async with bridged_at(peer, "chat", "gpt-4.1") as chat:
            assert chat.capabilities.accepts.seed
            assert chat.capabilities.accepts.sampling == "always"
        async with bridged_at(peer, "chat", "gpt-5") as thinking:
            assert thinking.capabilities.accepts.sampling == "never"
        async with bridged_at(peer, "messages") as messages:
            assert not messages.capabilities.accepts.seed
