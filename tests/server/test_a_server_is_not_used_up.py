"""What a server has room for is given back, whatever its clients do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest
from fastapi import FastAPI
from msgspec import structs
from starlette.requests import ClientDisconnect
from starlette.types import Message

from loopline.models import JsonObject
from loopline.server import ServerSettings, app
from loopline.server.bundle_host import bundle_host
from loopline.server.problems import RequestProblem
from loopline.server.request_access import Listeners
from loopline.timeline import ConversationKey
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, in_process, streamed_messages
from tests.support.waiting import until

SCOPE: dict[str, object] = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.4"},
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/conversations/default/default/c1/events",
    "query_string": b"",
    "headers": [(b"host", b"localhost")],
    "client": ("127.0.0.1", 50_000),
    "server": ("127.0.0.1", 8_000),
}
KEY = ConversationKey(name="c1")


@pytest.fixture
async def served() -> AsyncGenerator[FastAPI]:
    opened = app(SHOP, store="memory:", model=EchoModel(), settings=ServerSettings(turns=2))
    await bundle_host(opened).open()
    yield opened
    await bundle_host(opened).close()


async def test_a_client_that_leaves_before_the_first_byte_is_no_listener(served: FastAPI) -> None:
    statuses = list[int]()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
            raise OSError("the client has gone")

    with suppress(ClientDisconnect, OSError):
        await served({**SCOPE}, receive, send)
    assert statuses == [200]
    assert bundle_host(served).listeners.count == 0


async def test_a_turn_has_its_place_while_it_is_sent(served: FastAPI) -> None:
    host = bundle_host(served)
    key = ConversationKey(name="c1")
    async with host.turn_slot(key):
        async with host.turn_slot(key):
            with pytest.raises(RequestProblem, match="2 turns run already"):
                await host.turn_slot(key).__aenter__()
        async with host.turn_slot(key):
            pass


async def test_a_client_that_goes_while_it_does_not_read_leaves_nothing_behind(
    served: FastAPI,
) -> None:
    host, is_gone = bundle_host(served), asyncio.Event()

    async def receive() -> Message:
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body" and b"retry" not in message["body"]:
            is_gone.set()
            await asyncio.Event().wait()

    await host.harnesses[0].conversation("c1").say("tea")
    await served({**SCOPE, "asgi": {"version": "3.0", "spec_version": "2.3"}}, receive, send)
    assert (host.listeners.count, host.broadcasts.open_count) == (0, 0)


async def test_a_connection_that_is_lost_says_so_before_more_is_written(served: FastAPI) -> None:
    """A transport says in the next step of the event loop that its connection is lost."""
    host, is_gone, is_lost = bundle_host(served), asyncio.Event(), False
    written = list[Message]()

    async def receive() -> Message:
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal is_lost
        if is_lost and not is_gone.is_set():
            written.append(message)
        if message["type"] == "http.response.body" and b"retry" not in message["body"]:
            is_lost = True
            asyncio.get_running_loop().call_soon(is_gone.set)

    await host.harnesses[0].conversation("c1").say("tea " * 100_000)
    await served({**SCOPE, "asgi": {"version": "3.0", "spec_version": "2.3"}}, receive, send)
    assert (is_lost, written) == (True, [])


def test_a_user_has_a_share_of_the_places_for_listeners() -> None:
    listeners = Listeners(4, 2)
    ann, bob = structs.replace(KEY, user="ann"), structs.replace(KEY, user="bob")
    places = [listeners.take(ann) for _ in range(2)]
    with pytest.raises(RequestProblem, match="a user may have 2 streams open") as refused:
        listeners.take(structs.replace(ann, name="c2"))
    assert refused.value.status == 429
    places += [listeners.take(bob) for _ in range(2)]
    with pytest.raises(RequestProblem, match="4 streams are open already"):
        listeners.take(structs.replace(KEY, user="eve"))
    for place in [*places, *places]:
        place.close()
    assert listeners.count == 0
    listeners.take(ann)
    assert listeners.count == 1


@pytest.mark.parametrize(("path", "body"), streamed_messages("tea").items())
async def test_a_message_whose_stream_has_no_place_is_not_sent(path: str, body: JsonObject) -> None:
    opened = app(SHOP, store="memory:", model=EchoModel(), settings=ServerSettings(listeners=0))
    async with in_process(opened) as client:
        answer = await client.post(path, json=body, headers={"Accept": "text/event-stream"})
        assert answer.status_code == 503
        assert not await bundle_host(opened).log.conversations()


async def test_a_slow_client_gets_comments_only_between_records() -> None:
    settings = ServerSettings(keep_alive_seconds=0.01)
    served = app(SHOP, store="memory:", model=EchoModel(), settings=settings)
    host, is_gone, received = bundle_host(served), asyncio.Event(), bytearray()

    async def receive() -> Message:
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            received.extend(message["body"])
            await asyncio.sleep(0.03)

    def is_idle_after(turns: int) -> bool:
        is_idle = received.endswith(b"\n\n:\n\n:\n\n")
        return is_idle and received.count(b"event: react.exit") == turns

    await host.open()
    talk = host.harnesses[0].conversation("c1")
    await talk.say("tea")
    scope = {**SCOPE, "asgi": {"version": "3.0", "spec_version": "2.3"}}
    listening = asyncio.create_task(served(scope, receive, send))
    await until(lambda: is_idle_after(1))
    await talk.say("tea " * 50_000)
    await until(lambda: is_idle_after(2))
    is_gone.set()
    await listening
    records = [part for part in received.split(b"\n\n") if b"data: " in part]
    assert all(json.loads(record.rpartition(b"data: ")[2]) for record in records)
    await host.close()
