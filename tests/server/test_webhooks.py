"""Webhooks: a turn in the background tells its end, signed, once more if it was not accepted, and to no address inside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import httpx2
import pytest

from loopline.clock import SystemClock
from loopline.server import ServerSettings, app
from loopline.server.webhooks import Webhooks, signature
from loopline.timeline import ConversationKey
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP

SECRET = b"a secret of the server"
HERE = "/conversations/default/default"


@dataclass(slots=True)
class Receiver:
    """A server that accepts a webhook after so many refusals."""

    refusals: int = 1
    url: str = ""
    received: list[tuple[dict[str, str], bytes]] = field(
        default_factory=list[tuple[dict[str, str], bytes]]
    )
    accepted: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:]
        pairs = (line.split(": ", 1) for line in head if line)
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        self.received.append((headers, body))
        is_accepted = len(self.received) > self.refusals
        status = "204 No Content" if is_accepted else "503 Service Unavailable"
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        writer.close()
        if is_accepted:
            self.accepted.set()


@pytest.fixture
async def receiver() -> AsyncGenerator[Receiver]:
    opened = Receiver()
    server = await asyncio.start_server(opened.answer, "127.0.0.1", 0)
    async with server:
        opened.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        yield opened


async def test_the_end_of_a_turn_is_told_signed_and_again_until_it_is_accepted(
    receiver: Receiver,
) -> None:
    settings = ServerSettings(webhook_secret=SECRET, webhook_networks=["127.0.0.0/8"])
    served = app(SHOP, store="memory:", model=EchoModel(), settings=settings)
    transport = httpx2.ASGITransport(app=served)
    async with (
        served.router.lifespan_context(served),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        body = {"text": "tea", "background": True, "webhook": receiver.url}
        sent = await client.post(f"{HERE}/c1/messages", json=body)
        assert sent.status_code == 202
        await receiver.accepted.wait()
    assert len(receiver.received) == 2
    for headers, content in receiver.received:
        message, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
        assert headers["webhook-signature"] == signature(SECRET, message, timestamp, content)
        told = json.loads(content)
        assert told["type"] == "turn.ended"
        assert (told["data"]["turn_id"], told["data"]["answer"]) == ("turn_1", "You said: tea")
    assert len({headers["webhook-id"] for headers, _ in receiver.received}) == 1


async def test_an_address_that_is_not_public_is_not_reached(receiver: Receiver) -> None:
    receiver.refusals = 0
    hooks = Webhooks(ServerSettings(webhook_secret=SECRET), SystemClock())
    key = ConversationKey(name="c1", user="ann", project="p", tenant="t")
    hooks.send(receiver.url, key, "turn_1", {})
    await asyncio.gather(*hooks.deliveries)
    await hooks.close()
    assert receiver.received == []


@pytest.mark.parametrize(
    ("secret", "url"),
    [
        (b"", "https://example.org/hook"),
        (SECRET, "http://example.org/hook"),
        (SECRET, "file:///etc/passwd"),
        (SECRET, "https://user@example.org/"),
        (SECRET, "https://[broken"),
    ],
)
async def test_a_webhook_that_cannot_be_sent_is_refused_before_the_message_is_stored(
    secret: bytes, url: str
) -> None:
    served = app(
        SHOP, store="memory:", model=EchoModel(), settings=ServerSettings(webhook_secret=secret)
    )
    transport = httpx2.ASGITransport(app=served)
    async with (
        served.router.lifespan_context(served),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        body = {"text": "tea", "background": True, "webhook": url}
        assert (await client.post(f"{HERE}/c1/messages", json=body)).status_code == 422
        assert (await client.get(f"{HERE}/c1/status")).status_code == 404
