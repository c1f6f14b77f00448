"""How long a model is waited for, and what becomes of the connection when nobody waits any more."""

from __future__ import annotations

import asyncio

import pytest

from loopline.errors import ModelTimedOut
from loopline.models import Timeouts
from loopline.providers.http import HttpModel
from tests.providers.local_model import asked, model_at, saying
from tests.support.peers.http_server import Pause, Peer, Send, Step
from tests.support.peers.streams import APART

SOON = 0.3
HEAD = Send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", "head")
PIECE = Send(b'data: {"choices": [{"delta": {"content": "Tea"}}]}\n\n', "packet")
ALIVE = (Send(b": still here\n\n", "packet"), Pause(APART))
REFUSED = Send(b"HTTP/1.1 500 Oh\r\nContent-Length: 9\r\n\r\nNot", "packet")
SILENT = Pause(60.0)
PHASES: dict[str, tuple[Step, ...]] = {
    "before the head": (SILENT,),
    "behind the head": (HEAD, SILENT),
    "behind a piece": (HEAD, PIECE, SILENT),
    "with signs of life": (HEAD, PIECE, *ALIVE * 200),
}


@pytest.mark.parametrize("phase", PHASES)
async def test_the_time_for_a_whole_reply_ends_in_the_middle_of_a_silence(phase: str) -> None:
    timeouts = Timeouts(read=30.0, total=SOON)
    async with saying(*PHASES[phase]) as peer, model_at(peer, "chat", timeouts) as model:
        with pytest.raises(ModelTimedOut, match=r"no whole reply in 0\.3 s"):
            await asked(model)
        await peer.until(lambda it: it.connections.open == 0)


async def test_the_time_between_two_pieces_is_told_apart() -> None:
    timeouts = Timeouts(read=SOON, total=30.0)
    async with saying(HEAD, PIECE, SILENT) as peer, model_at(peer, "chat", timeouts) as model:
        with pytest.raises(ModelTimedOut, match="nothing came for too long"):
            await asked(model)


@pytest.mark.parametrize("phase", [*PHASES, "in a refusal"])
async def test_whoever_stops_waiting_closes_the_connection(phase: str) -> None:
    steps = PHASES.get(phase, (REFUSED, SILENT))
    async with saying(*steps) as peer, model_at(peer, "chat", Timeouts()) as model:
        await given_up(model, peer)


async def given_up(model: HttpModel, peer: Peer) -> None:
    """Ask, stop waiting, and see the connection go."""
    waiting = asyncio.ensure_future(asked(model))
    await peer.until(lambda it: it.connections.opened == 1)
    await asyncio.sleep(0.1)  # for what the server has to say
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await peer.until(lambda it: it.connections.open == 0)


async def test_whoever_stops_waiting_while_tls_is_agreed_closes_the_connection() -> None:
    async with saying(SILENT) as peer:
        mute = Peer(url=peer.url.replace("http", "https"))
        async with model_at(mute, "chat", Timeouts()) as model:
            await given_up(model, peer)
