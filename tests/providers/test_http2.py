"""HTTP/2: spoken where it is offered, and left as soon as nobody listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loopline.models import TextDelta, Timeouts
from loopline.providers.http import HttpModel
from tests.providers.local_model import PROMPT, asked, model_at
from tests.providers.test_waiting import given_up
from tests.support.peers.http2 import certificate, http2_like
from tests.support.peers.http_server import Peer

PIECE = b'data: {"choices": [{"delta": {"content": "Tea"}}]}\n\n'
END = (
    b'data: {"choices": [{"delta": {"content": "."}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
)
WHOLE = (PIECE + END, True)


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A certificate and its key; clients trust it by the usual variable."""
    made, key = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    return made, key


@asynccontextmanager
async def answering(
    signed: tuple[Path, Path], *answers: tuple[bytes, bool]
) -> AsyncGenerator[tuple[Peer, HttpModel], None]:
    """A server with these answers, and a model there."""
    async with http2_like(signed, *answers) as peer, model_at(peer, "chat", Timeouts()) as model:
        yield peer, model


async def left(replies: AsyncIterator[object]) -> None:
    """Stop listening to it."""
    waiting = asyncio.ensure_future(anext(replies))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_replies_share_a_connection(signed: tuple[Path, Path]) -> None:
    async with answering(signed, WHOLE) as (peer, model):
        for _ in range(3):
            assert (await asked(model))[1].text == "Tea."
        assert peer.connections.opened == 1


@pytest.mark.parametrize("begun", [PIECE, b""], ids=["behind a piece", "behind the head"])
async def test_whoever_stops_waiting_closes_the_connection(
    signed: tuple[Path, Path], begun: bytes
) -> None:
    async with answering(signed, (begun, False), WHOLE) as (peer, model):
        await given_up(model, peer)
        assert (await asked(model))[1].text == "Tea."


async def test_who_stops_waiting_leaves_others_the_connection(signed: tuple[Path, Path]) -> None:
    async with answering(signed, WHOLE, (PIECE, False), WHOLE) as (peer, model):
        await asked(model)
        first, second = model.stream(PROMPT), model.stream(PROMPT)
        for replies in (first, second):
            assert isinstance(await anext(replies), TextDelta)
        await left(first)
        assert (peer.connections.open, peer.connections.opened) == (1, 1)
        assert [item async for item in second]
        await peer.until(lambda it: it.connections.open == 0)
