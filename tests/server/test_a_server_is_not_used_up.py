"""What a server has room for is given back, whatever its clients do."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest
from fastapi import FastAPI
from starlette.requests import ClientDisconnect
from starlette.types import Message

from loopline.server import ServerSettings, app
from loopline.server.listener import bundle_host
from loopline.server.problems import RequestProblem
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP


@pytest.fixture
async def served() -> AsyncGenerator[FastAPI]:
    opened = app(SHOP, store="memory:", model=EchoModel(), settings=ServerSettings(turns=2))
    await bundle_host(opened).open()
    yield opened
    await bundle_host(opened).close()


async def test_a_client_that_leaves_before_the_first_byte_is_no_listener(served: FastAPI) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            raise OSError("the client has gone")

    scope = {
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
    with suppress(ClientDisconnect, OSError):
        await served(scope, receive, send)
    assert bundle_host(served).listeners == 0


async def test_a_turn_has_its_place_while_it_is_sent(served: FastAPI) -> None:
    host = bundle_host(served)
    with host.turn_slot():
        with host.turn_slot(), pytest.raises(RequestProblem, match="2 turns run already"):
            host.turn_slot().__enter__()
        with host.turn_slot():
            pass
