"""Faults on each wire and in each phase, by Loopline's own models and by pydantic-ai's: which error it is, and no leaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from pydantic_ai import ModelSettings
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel

import loopline
from loopline.bridge.bridged_model import BridgedModel
from loopline.errors import (
    ModelAccessError,
    ModelError,
    ModelOverflow,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
    ModelStreamBroken,
    ModelTimedOut,
    ModelUnreachable,
)
from loopline.models import JsonObject, Model, TextDelta, Timeouts
from tests.bridge.bridged_model import asking, bridged_at
from tests.providers.flat_request import KEY, WIRES
from tests.providers.local_model import PATIENT, PROMPT, QUICK, asked, model_at, read_on
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.behaviors import (
    Behaviour,
    BrokenOff,
    Cut,
    Fault,
    HalfClosed,
    Malformed,
    Silence,
    Speech,
    Status,
)
from tests.support.peers.http_server import Peer
from tests.support.peers.openai_like import openai_like

TEXT = "Tea, and more of it. " * 8


@asynccontextmanager
async def peer_of(wire: str, fault: str) -> AsyncGenerator[Peer, None]:
    """A server of that wire, with the fault of that name."""
    if wire == "messages":
        async with anthropic_like(_made(fault, ant.Says(TEXT, pieces=12))) as peer:
            yield peer
    else:
        async with openai_like(_made(fault, oai.Says(TEXT, pieces=12))) as peer:
            yield peer


def waited(fault: str) -> Timeouts:
    """How long such a server is waited for: only a silence is to be over soon."""
    return QUICK if fault.startswith("silent") else PATIENT


SayT = TypeVar("SayT", bound=Speech)


def _made(fault: str, says: SayT) -> Behaviour[SayT]:
    match fault:
        case "silent before the head":
            return Silence(says)
        case "silent in the middle":
            return Silence(says, after_chunks=8)
        case "reset before the head":
            return Cut(says, after_bytes=0)
        case "reset in the middle":
            return Cut(says, after_chunks=8)
        case "half closed":
            return HalfClosed(says, after_chunks=8)
        case "broken json":
            return Malformed(says, chunk=1)
        case "overloaded in the middle":
            return BrokenOff(says, after_chunks=8, fault=Fault(kind="overloaded_error"))
        case code:
            return Status(int(code))


MEANT: dict[str, type[ModelError]] = {
    "silent before the head": ModelTimedOut,
    "silent in the middle": ModelTimedOut,
    "reset before the head": ModelStreamBroken,
    "reset in the middle": ModelStreamBroken,
    "half closed": ModelStreamBroken,
    "broken json": ModelStreamBroken,
    "overloaded in the middle": ModelOverloaded,
    "400": ModelRequestError,
    "401": ModelAccessError,
    "403": ModelAccessError,
    "404": ModelRequestError,
    "429": ModelRateLimited,
    "500": ModelOverloaded,
    "503": ModelOverloaded,
    "529": ModelOverloaded,
}


PATHS = ("own", "pydantic-ai")
"""The models of each wire: Loopline's own, and those of pydantic-ai's classes."""


@asynccontextmanager
async def model_by(
    path: str, peer: Peer, wire: str = "chat", timeouts: Timeouts = PATIENT
) -> AsyncGenerator[Model, None]:
    """A model of that path, which speaks the wire with the server."""
    if path == "own":
        async with model_at(peer, wire, timeouts) as model:
            yield model
    else:
        made = ModelSettings(timeout=timeouts.read)
        async with bridged_at(peer, wire, settings=made) as bridged:
            yield bridged


@pytest.mark.parametrize("fault", MEANT)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("path", PATHS)
async def test_a_fault_is_the_error_that_it_means_and_is_asked_once(
    path: str, wire: str, fault: str
) -> None:
    async with (
        peer_of(wire, fault) as peer,
        model_by(path, peer, wire, waited(fault)) as model,
    ):
        with pytest.raises(ModelError) as raised:
            await asked(model)
    assert type(raised.value) is MEANT[fault]
    assert str(raised.value).startswith(f"{wire}:m: ")
    assert KEY not in str(raised.value)
    assert len(peer.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("path", PATHS)
async def test_a_key_is_in_no_error_and_in_no_name(path: str, wire: str) -> None:
    record: JsonObject = {
        "error": {"message": f"No such key: {KEY}", "type": "authentication_error"}
    }
    refusing = anthropic_like if wire == "messages" else openai_like
    async with refusing(Status(401, body=record)) as peer, model_by(path, peer, wire) as model:
        with pytest.raises(ModelAccessError, match="No such key: …") as raised:
            await asked(model)
    of_class = "ANTHROPIC_API_KEY" if wire == "messages" else "OPENAI_API_KEY"
    variable = "THE_KEY" if path == "own" else of_class
    assert str(raised.value).endswith(f"check {variable}")
    assert raised.value.__suppress_context__ or path == "own"
    assert KEY not in repr(model)


@pytest.mark.parametrize("path", PATHS)
async def test_a_server_that_is_not_there_is_unreachable(path: str) -> None:
    async with openai_like(oai.Says("Tea.")) as peer:
        pass
    async with model_by(path, peer) as model:
        with pytest.raises(ModelUnreachable, match=f"no connection to {peer.url}"):
            await asked(model)


async def test_the_key_of_a_model_in_others_is_in_no_error() -> None:
    record: JsonObject = {"error": {"message": f"No such key: {KEY}"}}
    async with openai_like(Status(401, body=record)) as peer:
        model = BridgedModel("m", WrapperModel(FallbackModel(asking(peer, "chat"))))
        with pytest.raises(ModelError, match="No such key: …"):
            await asked(model)
        await model.close(failed=True)


async def test_models_that_ask_one_another_fail_as_the_last_of_them() -> None:
    async with openai_like(Status(400), Status(503)) as peer:
        fallback_model = FallbackModel(asking(peer, "chat"), asking(peer, "responses"))
        model = BridgedModel("both", fallback_model)
        with pytest.raises(ModelOverloaded):
            await asked(model)
        await model.close(failed=True)
    assert len(peer.requests) == 2


async def test_an_error_of_a_connection_names_the_url_without_secrets_and_what_sets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with openai_like(oai.Says("Tea.")) as peer:
        pass
    host = peer.url.removeprefix("http://")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://me:hunter22@{host}/v1?token=hunter33")
    for name, api in (("openai:llama", "chat/completions"), ("openai:gpt-5.5", "responses")):
        with pytest.raises(ModelUnreachable) as raised:
            await asked(loopline.model(name))
        assert f"no connection to {peer.url}/v1/{api}, which OPENAI_BASE_URL sets" in str(
            raised.value
        )
        assert "hunter" not in str(raised.value)
    with pytest.raises(ModelUnreachable, match="which base_url sets"):
        await asked(loopline.model("openai:llama", base_url=f"{peer.url}/v1"))


@pytest.mark.parametrize("path", PATHS)
async def test_a_server_says_after_how_long_to_ask_again(path: str) -> None:
    late = Status(429, headers={"Retry-After": "7"})
    async with openai_like(late) as peer, model_by(path, peer) as model:
        with pytest.raises(ModelRateLimited) as raised:
            await asked(model)
    assert raised.value.retry_after == 7.0


def refusal(code: str, message: str, **more: str) -> Status:
    """Return an error of chat completions."""
    error: JsonObject = {"code": code, "message": message, **more}
    return Status(400, body={"error": error})


@pytest.mark.parametrize("path", PATHS)
async def test_an_overflow_is_told_with_its_window(path: str) -> None:
    told = "This model's maximum context length is 8192 tokens."
    refusing = refusal("context_length_exceeded", told)
    async with openai_like(refusing) as peer, model_by(path, peer) as model:
        with pytest.raises(ModelOverflow) as raised:
            await asked(model)
    assert raised.value.window == 8_192


async def test_a_call_that_its_server_cannot_read_is_a_malformed_reply() -> None:
    written = '<function=find{"name": "tea"'
    refusing = refusal("tool_use_failed", "Failed to call a function.", failed_generation=written)
    async with openai_like(refusing) as peer, bridged_at(peer, "chat") as model:
        _, reply = await asked(model)
    assert reply.problem.startswith("The call cannot be read: chat:m: Failed to call a function.")
    assert written in reply.problem
    assert (reply.calls, reply.stop_reason) == ((), "stop")


async def test_a_reply_that_takes_too_long_in_all_is_given_up() -> None:
    at_once = Timeouts(total=0.0)
    async with openai_like(oai.Says(TEXT)) as peer, model_at(peer, "chat", at_once) as model:
        with pytest.raises(ModelTimedOut, match="no whole reply in 0 s"):
            await asked(model)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("path", PATHS)
async def test_whoever_stops_listening_closes_the_connection(path: str, wire: str) -> None:
    silent = peer_of(wire, "silent in the middle")
    async with silent as peer, model_by(path, peer, wire) as model:
        replies = model.stream(PROMPT)
        assert isinstance(await anext(replies), TextDelta)
        await read_on(replies, 0.05)
        await peer.until(lambda it: it.connections.open == 0)


async def test_a_file_of_certificates_that_is_none_is_told_and_may_be_mended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with openai_like(oai.Says("Tea.")) as peer, model_at(peer, "chat") as model:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
        with pytest.raises(ModelUnreachable, match="the HTTP client cannot be created"):
            await asked(model)
        monkeypatch.delenv("SSL_CERT_FILE")
        assert (await asked(model))[1].text == "Tea."


async def test_any_number_of_first_requests_share_one_client() -> None:
    async with openai_like(oai.Says("Tea.")) as peer, model_at(peer, "chat") as model:
        replies = await asyncio.gather(*(asked(model) for _ in range(20)))
        await asked(model)
    assert {reply.text for _, reply in replies} == {"Tea."}
    assert peer.connections.opened <= 20
