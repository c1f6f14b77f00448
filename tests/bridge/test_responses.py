"""Replies by way of pydantic-ai's own classes, from servers that speak their wires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pydantic_ai import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from loopline.bridge.bridged_model import BridgedModel
from loopline.errors import ModelError
from loopline.models import Usage
from tests.bridge.bridged_model import CLASSES, bridged_at
from tests.providers.flat_request import KEY
from tests.providers.local_model import PROMPT, asked
from tests.providers.test_keys import leaks
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.behaviors import Fault, Status
from tests.support.peers.call_replies import Call
from tests.support.peers.http_server import Peer
from tests.support.peers.openai_like import openai_like

CALLS = (
    Call("shop__find", '{"name": "tea"}', "call_1"),
    Call("shop__find", '{"name": "pie"}', "call_2"),
)
WANTED = [("shop.find", {"name": "tea"}), ("shop.find", {"name": "pie"})]


@asynccontextmanager
async def saying(wire: str, calls: tuple[Call, ...]) -> AsyncGenerator[Peer, None]:
    """A server of that wire that thinks, says a word and calls; of 131 tokens it has read 100."""
    if wire == "messages":
        usage = ant.Usage(read=100, written=20)
        says = ant.Says("I look.", calls, (ant.Thinking("Hm, tea."),), usage=usage)
        async with anthropic_like(says) as peer:
            yield peer
    else:
        used = oai.Usage(prompt=131, cached=100, written=20)
        async with openai_like(oai.Says("I look.", calls, "Hm, tea.", usage=used)) as peer:
            yield peer


@pytest.mark.parametrize("wire", CLASSES)
async def test_a_reply_is_what_was_said(wire: str) -> None:
    async with saying(wire, CALLS) as peer, bridged_at(peer, wire) as model:
        deltas, reply = await asked(model)
    assert (reply.text, reply.thinking, reply.stop_reason) == ("I look.", "Hm, tea.", "tool_use")
    assert [(call.name, call.arguments) for call in reply.calls] == WANTED
    assert [call.provider_id for call in reply.calls] == ["call_1", "call_2"]
    assert reply.usage == Usage(
        input_tokens=131, output_tokens=7, cache_read_tokens=100, cache_write_tokens=20
    )
    assert "".join(delta.text for delta in deltas if delta.channel == "answer") == "I look."
    assert "".join(delta.text for delta in deltas if delta.channel == "thinking") == "Hm, tea."
    assert len(deltas) > 2


@pytest.mark.parametrize("wire", CLASSES)
async def test_half_a_call_is_a_problem_beside_the_one_that_is_whole(wire: str) -> None:
    broken = (CALLS[0], Call("shop__find", '{"name": "pi', "call_2"))
    async with saying(wire, broken) as peer, bridged_at(peer, wire) as model:
        _, reply = await asked(model)
    assert reply.problem.startswith("The call of shop.find cannot be read")
    assert [(call.name, call.arguments) for call in reply.calls] == WANTED[:1]


ENDS = [
    ("chat", oai.Says("Tea.", finish="length"), "length", "Tea."),
    ("chat", oai.Says(refusal="I cannot."), "refusal", "I cannot."),
    ("responses", oai.Says("Tea.", finish="length"), "length", "Tea."),
    ("responses", oai.Says(refusal="I cannot."), "refusal", "I cannot."),
    ("messages", ant.Says("Tea.", stop="max_tokens"), "length", "Tea."),
    ("messages", ant.Says("No.", stop="refusal"), "refusal", "No."),
    ("messages", ant.Says("Tea."), "stop", "Tea."),
]


@pytest.mark.parametrize(("wire", "message", "stop", "text"), ENDS)
async def test_why_a_reply_ended_is_told(
    wire: str, message: oai.Says | ant.Says, stop: str, text: str
) -> None:
    server = anthropic_like(message) if isinstance(message, ant.Says) else openai_like(message)
    async with server as peer, bridged_at(peer, wire) as model:
        _, reply = await asked(model)
    assert (reply.stop_reason, reply.text) == (stop, text)


@pytest.mark.parametrize("before", [0, 590, 595])
@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_no_part_of_a_key_is_in_an_error_wherever_it_is_cut(wire: str, before: int) -> None:
    echo = Status(400, fault=Fault(message=f"{'x' * before}{KEY} is no key"))
    async with openai_like(echo) as peer, bridged_at(peer, wire) as model:
        with pytest.raises(ModelError) as raised:
            await asked(model)
    assert ("…" in str(raised.value), leaks(str(raised.value), KEY)) == (True, [])


async def test_a_model_that_is_a_function_is_one_too() -> None:
    async def say(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | DeltaToolCalls]:
        yield "I "
        yield "look."
        yield {0: DeltaToolCall("shop__find", '{"name": ', tool_call_id="a")}
        yield {0: DeltaToolCall(json_args='"tea"}')}

    model = BridgedModel("mine", FunctionModel(stream_function=say))
    deltas, reply = await asked(model, PROMPT)
    assert [delta.text for delta in deltas] == ["I ", "look."]
    assert (reply.text, reply.stop_reason) == ("I look.", "tool_use")
    assert [(call.name, call.arguments) for call in reply.calls] == WANTED[:1]


async def test_any_number_of_requests_share_a_client_and_a_closed_model_makes_another() -> None:
    async with openai_like(oai.Says("Tea.")) as peer, bridged_at(peer, "chat") as model:
        replies = await asyncio.gather(*(asked(model) for _ in range(20)))
        await model.close(failed=False)
        await peer.until(lambda it: it.connections.open == 0)
        replies.append(await asked(model))
    assert {reply.text for _, reply in replies} == {"Tea."}
