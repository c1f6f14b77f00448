"""What a key opened ends when it is revoked; the turns that it began go on."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.types import Message

from loopline.models import JsonObject
from loopline.server import ApiKeys, Principal, Unauthenticated, add_key, app, revoke_key
from loopline.server.bundle_host import bundle_host
from loopline.server.open_tokens import OpenTokens
from tests.doors.command import wait_for
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, serving, streamed_messages
from tests.support.waiting import until

ANN = Principal(tenant="acme", project="tea", user="ann")
HERE = "/conversations/acme/tea/c1"
WAIT = "call shop.wait name=6"
"""Longer than a key counts that was revoked."""
STREAMS = streamed_messages(WAIT, HERE)
IN_THE_SUITE = (f"{HERE}/messages", "/v1/chat/completions")


@dataclass(frozen=True, slots=True)
class Place:
    """A server with a key that is to be revoked, and another of the same user."""

    url: str
    keys: Path
    key: str
    other: str

    def client(self, key: str) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {key}", "Accept": "text/event-stream"}
        return httpx2.Client(base_url=self.url, timeout=60, headers=headers, verify=False)

    def bodies(self, kind: str) -> list[JsonObject]:
        with self.client(self.other) as client:
            answer = client.get(f"{HERE}/blocks", params={"types": kind})
        return [row["body"] for row in answer.json()["blocks"]] if answer.is_success else []


@pytest.fixture
def place(tmp_path: Path) -> Generator[Place]:
    file = tmp_path / "keys.json"
    key, other = add_key(file, ANN), add_key(file, ANN)
    served = app(SHOP, store="memory:", model=EchoModel(), auth=ApiKeys.read(file))
    with serving(served) as url:
        yield Place(url, file, key, other)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if path in IN_THE_SUITE else pytest.mark.campaign)
        for path in STREAMS
    ],
)
def test_a_stream_ends_when_its_key_is_revoked_and_its_turn_goes_on(
    path: str, place: Place
) -> None:
    with place.client(place.key) as client:
        with client.stream("POST", path, json=STREAMS[path]) as response:
            assert response.status_code == 200
            wait_for(lambda: bool(place.bodies("react.tool.call")))
            assert revoke_key(place.keys, place.key)
            text = response.read().decode()
        assert client.get("/me").status_code == 401
    assert text.endswith(": the API key is missing or unknown\n\n")
    assert "react.exit" not in text
    assert place.bodies("react.exit") == []
    wait_for(lambda: bool(place.bodies("react.exit")))
    [end] = place.bodies("react.exit")
    assert end["reason"] == "complete"


def test_a_listener_ends_when_its_key_is_revoked_and_that_of_another_key_does_not(
    place: Place,
) -> None:
    with place.client(place.key) as client, place.client(place.other) as other:
        client.post(f"{HERE}/messages", json={"text": "tea", "background": True})
        with (
            client.stream("GET", f"{HERE}/events") as response,
            other.stream("GET", f"{HERE}/events") as staying,
        ):
            lines = staying.iter_lines()
            assert revoke_key(place.keys, place.key)
            assert response.read().endswith(b": the API key is missing or unknown\n\n")
            other.post(f"{HERE}/messages", json={"text": "milk"})
            assert any("You said: milk" in line for line in lines)


async def test_a_socket_ends_when_its_key_is_revoked(place: Place) -> None:
    page: Any = import_module("socketio").AsyncClient(reconnection=False)
    await page.connect(place.url, auth={"token": place.key}, transports=["websocket"])
    await asyncio.to_thread(revoke_key, place.keys, place.key)
    refused = await page.call("conv_status.get", {"conversation_id": "c1"}, timeout=20)
    assert refused["status"] == 401
    await asyncio.wait_for(page.wait(), 60)
    assert not page.connected


class Changing:
    """An authenticator whose answers a test chooses."""

    def __init__(self) -> None:
        self.answer: Principal | Exception = ANN
        self.asked = 0

    async def authenticate(self, token: str) -> Principal:
        del token
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Unauthenticated("it has expired"), "it has expired"),
        (OSError("no network"), "could not be checked"),
        (Principal(tenant="acme", project="tea", user="bob"), "belongs to another user"),
    ],
    ids=["refused", "broken", "another user"],
)
async def test_a_token_is_checked_once_for_all_that_it_opened(
    answer: Principal | Exception, reason: str
) -> None:
    auth, ends = Changing(), asyncio.Queue[str]()
    tokens = OpenTokens(auth)
    left = tokens.add("token", ANN, ends.put_nowait)
    for _ in range(3):
        tokens.add("token", ANN, ends.put_nowait)
    tokens.discard("token", left)
    auth.answer = answer
    assert all([reason in await asyncio.wait_for(ends.get(), 60) for _ in range(3)])
    assert (auth.asked, ends.qsize()) == (1, 0)


async def test_a_token_is_checked_at_once_when_another_process_revokes_a_key() -> None:
    auth = Changing()
    tokens = OpenTokens(auth)
    ended = list[str]()
    stream = tokens.add("t", ANN, ended.append)
    await asyncio.sleep(0)
    tokens.check_now()
    for _ in range(10):
        await asyncio.sleep(0)
    assert auth.asked == 1
    auth.answer = Unauthenticated("it was revoked")
    tokens.check_now()
    for _ in range(10):
        await asyncio.sleep(0)
    assert ended == ["it was revoked"]
    tokens.discard("t", stream)


async def test_the_reason_why_a_stream_ends_is_not_sent_within_a_record() -> None:
    auth = Changing()
    served = app(SHOP, store="memory:", model=EchoModel(), auth=auth)
    host, bodies = bundle_host(served), list[bytes]()

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])
            if message["more_body"] and not message["body"].endswith(b"\n\n"):
                auth.answer = Unauthenticated("it was revoked")
                host.tokens.check_now()
                await asyncio.Event().wait()

    await host.open()
    talk = host.harnesses[0].conversation("c1", user="ann", project="tea", tenant="acme")
    await talk.say("tea")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": f"{HERE}/events",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"authorization", b"Bearer t")],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8_000),
    }
    listening = asyncio.create_task(served(scope, receive, send))
    await until(lambda: any(b"react.exit" in body for body in bodies))
    await talk.say("tea " * 50_000)
    await asyncio.wait_for(listening, 20)
    assert bodies[-1] == b""
    await host.close()
