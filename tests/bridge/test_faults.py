"""Faults by way of pydantic-ai's own classes: which error each is, and that it is asked once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic_ai import ModelSettings
from pydantic_ai.models.fallback import FallbackModel

from loopline.bridge.bridged_model import BridgedModel
from loopline.errors import (
    ModelAccessError,
    ModelError,
    ModelOverflow,
    ModelOverloaded,
    ModelRateLimited,
    ModelTimedOut,
    ModelUnreachable,
)
from loopline.models import JsonObject, TextDelta
from tests.bridge.bridged_model import CLASSES, asking, bridged_at
from tests.providers.flat_request import KEY
from tests.providers.local_model import PROMPT, asked
from tests.providers.test_faults import MEANT, peer_of
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.behaviors import Status
from tests.support.peers.openai_like import openai_like

FAULTS = (
    *("reset before the head", "reset in the middle", "half closed", "broken json"),
    *("overloaded in the middle", "400", "401", "429", "500", "529"),
)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("wire", CLASSES)
async def test_a_fault_is_the_error_that_it_means_and_nobody_asks_again(
    wire: str, fault: str
) -> None:
    async with peer_of(wire, fault) as peer, bridged_at(peer, wire) as model:
        with pytest.raises(ModelError) as raised:
            await asked(model)
    assert type(raised.value) is MEANT[fault]
    assert str(raised.value).startswith(f"{wire}:m: ")
    assert len(peer.requests) == 1


@pytest.mark.parametrize(
    ("wire", "fault"),
    [("messages", "silent before the head"), ("responses", "silent in the middle")],
)
async def test_a_silence_lasts_as_long_as_the_model_was_made_to_wait(wire: str, fault: str) -> None:
    model_settings = ModelSettings(timeout=1.0)
    async with (
        peer_of(wire, fault) as peer,
        bridged_at(peer, wire, settings=model_settings) as model,
    ):
        with pytest.raises(ModelTimedOut):
            await asked(model)


@pytest.mark.parametrize("wire", CLASSES)
async def test_a_key_is_in_no_error_and_in_no_name(wire: str) -> None:
    record: JsonObject = {
        "error": {"message": f"No such key: {KEY}", "type": "authentication_error"}
    }
    refusing = anthropic_like if wire == "messages" else openai_like
    async with refusing(Status(401, body=record)) as peer, bridged_at(peer, wire) as model:
        with pytest.raises(ModelAccessError, match="No such key: …") as raised:
            await asked(model)
    variable = "ANTHROPIC_API_KEY" if wire == "messages" else "OPENAI_API_KEY"
    assert str(raised.value).endswith(f"check {variable}")
    assert raised.value.__suppress_context__
    assert KEY not in repr(model)


async def test_an_overflow_is_told_with_its_window() -> None:
    body: JsonObject = {
        "error": {
            "code": "context_length_exceeded",
            "message": "This model's maximum context length is 8192 tokens.",
        }
    }
    async with openai_like(Status(400, body=body)) as peer, bridged_at(peer, "chat") as model:
        with pytest.raises(ModelOverflow) as raised:
            await asked(model)
    assert raised.value.window == 8_192


async def test_a_call_that_its_server_cannot_read_is_a_malformed_reply() -> None:
    body: JsonObject = {
        "error": {
            "code": "tool_use_failed",
            "message": "Failed to call a function.",
            "failed_generation": '<function=find{"name": "tea"',
        }
    }
    async with openai_like(Status(400, body=body)) as peer, bridged_at(peer, "chat") as model:
        _, reply = await asked(model)
    assert reply.problem.startswith("The call cannot be read: chat:m: Failed to call a function.")
    assert '<function=find{"name": "tea"' in reply.problem
    assert (reply.calls, reply.stop_reason) == ((), "stop")


async def test_a_server_says_after_how_long_to_ask_again() -> None:
    late = Status(429, headers={"Retry-After": "7"})
    async with openai_like(late) as peer, bridged_at(peer, "chat") as model:
        with pytest.raises(ModelRateLimited) as raised:
            await asked(model)
    assert raised.value.retry_after == 7.0


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    async with openai_like(oai.Says("Tea.")) as peer:
        pass
    async with bridged_at(peer, "chat") as model:
        with pytest.raises(ModelUnreachable, match=f"no connection to {peer.url}"):
            await asked(model)


async def test_models_that_ask_one_another_fail_as_the_last_of_them() -> None:
    async with openai_like(Status(400), Status(503)) as peer:
        fallback_model = FallbackModel(asking(peer, "chat"), asking(peer, "responses"))
        model = BridgedModel("both", fallback_model)
        with pytest.raises(ModelOverloaded):
            await asked(model)
        await model.close(failed=True)
    assert len(peer.requests) == 2


@pytest.mark.parametrize("wire", CLASSES)
async def test_whoever_stops_listening_closes_the_connection(wire: str) -> None:
    async with peer_of(wire, "silent in the middle") as peer, bridged_at(peer, wire) as model:
        replies = model.stream(PROMPT)
        assert isinstance(await anext(replies), TextDelta)
        waiting = asyncio.ensure_future(_emptied(replies))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await peer.until(lambda it: it.connections.open == 0)


async def _emptied(replies: AsyncIterator[object]) -> None:
    async for _ in replies:
        pass
