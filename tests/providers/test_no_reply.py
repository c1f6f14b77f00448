"""Responses that are no reply: other places, pages, documents, and refusals that do not end."""

from __future__ import annotations

import pytest

from loopline.errors import (
    ModelAccessError,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
)
from loopline.models import JsonObject, Timeouts
from loopline.providers.http import ERROR_BYTES
from tests.providers.flat_request import KEY
from tests.providers.local_model import PATIENT, asked, model_at, saying
from tests.support.peers.behaviors import Status
from tests.support.peers.http_server import Pause, Peer, Reset, Send, Step
from tests.support.peers.openai_like import openai_like
from tests.support.peers.streams import document, on_the_wire

COMPLETION: JsonObject = {
    "object": "chat.completion",
    "choices": [{"message": {"role": "assistant", "content": "Tea."}, "finish_reason": "stop"}],
}


async def refused(answer: Status) -> tuple[Peer, ModelError]:
    """What a model says to this answer."""
    async with openai_like(answer) as peer, model_at(peer, "chat") as model:
        with pytest.raises(ModelError) as raised:
            await asked(model)
    return peer, raised.value


@pytest.mark.parametrize("code", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed_and_says_from_where_to_where(code: int) -> None:
    text = f"https://elsewhere.example/v1?key={KEY}"
    peer, error = await refused(Status(code, b"", {"Location": text}))
    place = f"chat:m: {peer.url}/v1/chat/completions"
    assert str(error) == (
        f"{place} redirects to https://elsewhere.example/v1?key=…: change the base URL ({code})"
    )
    assert isinstance(error, ModelRequestError)
    assert len(peer.requests) == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Status(200, b"<html>Hi.</html>", {"Content-Type": "text/html"}), "text/html"),
        (Status(200, b"data: {}"), "text/plain; charset=utf-8"),
    ],
)
async def test_what_is_no_stream_is_told_with_its_place_and_its_kind(
    answer: Status, kind: str
) -> None:
    peer, error = await refused(answer)
    text = f"chat:m: {peer.url}/v1/chat/completions"
    assert str(error) == f"{text} answers with {kind}, not with a stream of events (200)"
    assert isinstance(error, ModelRequestError)


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_a_document_that_is_no_reply_is_told(wire: str) -> None:
    async with saying(*_whole({"hello": 1})) as peer, model_at(peer, wire) as model:
        with pytest.raises(ModelRequestError, match=f"^{wire}:m: the response is not a "):
            await asked(model)


async def test_a_whole_completion_in_place_of_a_stream_is_read() -> None:
    async with saying(*_whole(COMPLETION)) as peer, model_at(peer, "chat") as model:
        assert (await asked(model))[1].text == "Tea."


def _whole(body: JsonObject) -> list[Step]:
    return on_the_wire(document(body))


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        ({"error": {"code": 429, "message": "Too many."}}, ModelRateLimited),
        ({"error": {"message": "Upstream is away."}}, ModelOverloaded),
        ({"error": "Upstream is away."}, ModelOverloaded),
    ],
)
async def test_an_error_may_come_with_a_status_of_200(
    body: JsonObject, meant: type[ModelError]
) -> None:
    _, error = await refused(Status(200, body))
    assert type(error) is meant


async def test_what_does_not_say_what_it_is_is_read_as_a_stream_of_events() -> None:
    data = b'data: {"choices": [{"delta": {"content": "T\xc3\xa9"}, "finish_reason": "stop"}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data)
    async with saying(Send(head + data, "body")) as peer, model_at(peer, "chat") as model:
        _, reply = await asked(model)
    assert reply.text == "Té"


async def test_an_event_without_data_is_none() -> None:
    data = (
        b"retry: 3000\n\nid: 7\nevent: ping\n\n"
        b'data: {"choices": [{"delta": {"content": "Tea."}, "finish_reason": "stop"}]}\n\n'
    )
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data)
    async with saying(Send(head + data, "body")) as peer, model_at(peer, "chat") as model:
        assert (await asked(model))[1].text == "Tea."


HEAD = Send(b"HTTP/1.1 401 Unauthorized\r\nTransfer-Encoding: chunked\r\n\r\n", "head")
BEGUN = Send(b"9\r\nWrong key\r\n", "chunk")
MUCH = Send(b"%x\r\n%s\r\n" % (2 * ERROR_BYTES, b"Wrong key" + b"." * (2 * ERROR_BYTES)), "packet")
UNENDING: dict[str, tuple[Step, ...]] = {
    "too long": (HEAD, MUCH, Pause(60.0)),
    "too slow": (HEAD, BEGUN, Pause(60.0)),
    "broken off": (HEAD, BEGUN, Pause(0.1), Reset()),
}


@pytest.mark.parametrize("how", UNENDING)
async def test_a_refusal_that_does_not_end_is_told_by_its_beginning(how: str) -> None:
    timeouts = Timeouts(total=0.5) if how == "too slow" else PATIENT
    async with saying(*UNENDING[how]) as peer, model_at(peer, "chat", timeouts) as model:
        with pytest.raises(ModelAccessError, match="chat:m: Wrong key"):
            await asked(model)
        await peer.until(lambda it: it.connections.open == 0)
