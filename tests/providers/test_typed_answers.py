"""A typed answer on each wire: how it is asked for beside tools, and what comes of the reply."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import pytest
from pydantic import BaseModel

from loopline.models import Capabilities, Json, JsonObject, find_model_facts
from tests.providers.flat_request import wired
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.call_replies import Call
from tests.support.peers.http_server import Peer
from tests.support.peers.openai_like import openai_like
from tests.support.workbench import at_work


class Advice(BaseModel):
    """How to steep a tea."""

    kind: str
    minutes: int


TEXT = '{"kind": "green", "minutes": 3}'
ADVICE = Advice(kind="green", minutes=3)
SCHEMA = Capabilities(json_schema=True, schema_beside_tools=True)
WIRES = ["chat", "responses", "messages"]
Spoken = tuple[str, Sequence[Call]]


def serving(wire: str, *replies: Spoken) -> AbstractAsyncContextManager[Peer]:
    if wire == "messages":
        return anthropic_like(*(ant.Says(text, tuple(calls)) for text, calls in replies))
    return openai_like(*(oai.Says(text, tuple(calls)) for text, calls in replies))


def url(wire: str, peer: Peer) -> str:
    return peer.url if wire == "messages" else f"{peer.url}/v1"


def form_in(wire: str, body: JsonObject) -> Json:
    """The schema to which a request wants the text held."""
    match wire, body:
        case "chat", {"response_format": {"json_schema": {"schema": schema, "strict": True}}}:
            return schema
        case "responses", {"text": {"format": {"schema": schema, "strict": True}}}:
            return schema
        case "messages", {"output_config": {"format": {"schema": schema}}}:
            return schema
        case _:
            return None


@pytest.mark.parametrize("wire", WIRES)
async def test_a_provider_holds_the_text_to_the_schema_while_tools_are_offered(wire: str) -> None:
    look = ("", [Call("w__count", '{"number": 7}', "call_1")])
    async with (
        serving(wire, look, (TEXT, [])) as peer,
        at_work(wired(wire, url(wire, peer), SCHEMA)) as talk,
    ):
        result = await talk.say("Green?", output_type=Advice)
    assert result.output == ADVICE
    for request in peer.requests:
        body: JsonObject = json.loads(request.raw)
        assert "w__count" in str(body["tools"])
        assert form_in(wire, body) == {
            **Advice.model_json_schema(),
            "required": ["kind", "minutes"],
            "additionalProperties": False,
        }


@pytest.mark.parametrize("wire", WIRES)
async def test_a_tool_takes_the_answer_where_a_provider_does_not_hold_the_text(wire: str) -> None:
    answer = ("", [Call("react__answer", TEXT, "call_1")])
    async with (
        serving(wire, ("Three.", []), answer, ("Bye.", [])) as peer,
        at_work(wired(wire, url(wire, peer))) as talk,
    ):
        result = await talk.say("Green?", output_type=Advice)
        after = await talk.say("And now?")
    assert (result.output, result.rounds, after.answer) == (ADVICE, 2, "Bye.")
    offered = [
        "react__answer" in str(json.loads(request.raw)["tools"]) for request in peer.requests
    ]
    assert offered == [True, True, False]
    assert all(form_in(wire, json.loads(request.raw)) is None for request in peer.requests)


@pytest.mark.parametrize("wire", WIRES)
async def test_the_last_answer_is_forced_by_the_tool_that_takes_it(wire: str) -> None:
    look = ("", [Call("w__count", '{"number": 7}', "call_1")])
    answer = ("", [Call("react__answer", TEXT, "call_2")])
    async with (
        serving(wire, look, answer) as peer,
        at_work(wired(wire, url(wire, peer))) as talk,
    ):
        result = await talk.say("Green?", output_type=Advice, max_iterations=1)
    assert (result.output, result.ok, result.exit_reason) == (ADVICE, False, "max_iterations")
    assert "react__answer" in str(json.loads(peer.requests[-1].raw)["tool_choice"])


def test_only_models_whose_makers_say_so_are_held_to_a_schema_beside_tools() -> None:
    texts = ["openai:gpt-5.5", "openai:gpt-4o", "anthropic:claude-opus-5", "openai-chat:gpt-4.1"]
    not_held = [
        "ollama:qwen3",
        "groq:openai/gpt-oss-120b",
        "openai:unheard",
        "deepseek:deepseek-v4-pro",
    ]
    assert all(find_model_facts(name).schema_beside_tools for name in texts)
    assert not any(find_model_facts(name).schema_beside_tools for name in not_held)
