"""A peer is a real HTTP/1.1 server: it keeps connections, counts them, and breaks them as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import pytest

from loopline.models.json import JsonObject
from tests.peers.clients import GPT
from tests.support.peers.behaviors import Cut, HalfClosed, Silence, Status
from tests.support.peers.http_server import Peer
from tests.support.peers.openai_like import CHAT, openai_like
from tests.support.peers.openai_replies import Says
from tests.support.peers.streams import Framing, pieces_of

HELLO: JsonObject = {"role": "user", "content": "Größe?"}
WHOLE: JsonObject = {"model": GPT, "messages": [HELLO]}
STREAMED: JsonObject = {**WHOLE, "stream": True}


@asynccontextmanager
async def at(peer: Peer) -> AsyncGenerator[httpx2.AsyncClient, None]:
    async with httpx2.AsyncClient(base_url=peer.url, trust_env=False, verify=False) as client:
        yield client


async def raw(peer: Peer, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a request for a completion is under way."""
    _, _, port = peer.url.rpartition(":")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def test_requests_are_kept_in_order_with_path_headers_and_body() -> None:
    async with openai_like(Says("One."), Says("Two.")) as peer, at(peer) as client:
        one = await client.post(CHAT, json=WHOLE, headers={"X-Number": "1"})
        two = await client.post(CHAT, json=STREAMED)
        three = await client.post(CHAT, json=WHOLE)
    assert peer.bodies == [WHOLE, STREAMED, WHOLE]
    assert {(request.method, request.path) for request in peer.requests} == {("POST", CHAT)}
    assert peer.requests[0].headers["x-number"] == "1"
    assert one.text.count("One.") == three.text.count("Two.") == two.text.count("[DONE]") == 1


async def test_a_connection_is_kept_for_the_next_request() -> None:
    async with openai_like(Says("Hello"), Status(429), Says("Hello")) as peer:
        async with at(peer) as client:
            for body in (STREAMED, WHOLE, WHOLE):
                await client.post(CHAT, json=body)
            assert (peer.connections.opened, peer.connections.open) == (1, 1)
        await peer.until(lambda peer: peer.connections.open == 0)
    assert peer.connections.opened == 1


async def test_requests_at_once_have_connections_of_their_own() -> None:
    async with openai_like(Silence(Says("Hello"), 0.1)) as peer, at(peer) as client:
        asked = [client.post(CHAT, json=WHOLE) for _ in range(4)]
        answers = await asyncio.gather(*asked)
        assert peer.connections.opened == 4
    assert [answer.status_code for answer in answers] == [200] * 4


async def test_a_chunked_request_is_read_whole() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b'{"model": "a model", '
        yield b'"messages": []}'

    async with openai_like(Says("Hello")) as peer, at(peer) as client:
        await client.post(CHAT, content=pieces())
    assert peer.bodies == [{"model": "a model", "messages": []}]


async def test_a_cut_is_a_reset_and_not_an_end() -> None:
    async with openai_like(Cut(Says("Hello"), after_chunks=2)) as peer:
        reader, writer = await raw(peer, b'{"stream": true}')
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_a_cut_is_at_the_byte_it_is_told() -> None:
    async with openai_like(Cut(Says("Hello"), after_bytes=33)) as peer:
        reader, writer = await raw(peer, b'{"stream": true}')
        assert await reader.readexactly(33)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()


async def test_a_half_closed_connection_ends_and_is_still_open() -> None:
    async with openai_like(HalfClosed(Says("Hello"), after_chunks=1)) as peer:
        reader, writer = await raw(peer, b'{"stream": true}')
        assert (await reader.read()).count(b"data: ") == 1
        assert peer.connections.open == 1
        writer.close()
        await peer.until(lambda peer: peer.connections.open == 0)


async def test_a_connection_may_be_half_closed_behind_a_whole_answer() -> None:
    async with openai_like(HalfClosed(Says("Hello")), Says("Hello")) as peer, at(peer) as client:
        for _ in range(2):
            assert (await client.post(CHAT, json=WHOLE)).status_code == 200
        assert peer.connections.opened == 2


async def test_a_character_can_be_cut_between_two_packets() -> None:
    framing = Framing(packets="characters")
    packets: list[bytes] = []
    async with openai_like(Says("世", framing=framing)) as peer:
        reader, writer = await raw(peer, b'{"stream": true}')
        while not packets or b"[DONE]" not in packets[-1]:
            packets.append(await reader.read(2**16))
        writer.close()
    split = [packet for packet in packets if packet[-1:] in "世".encode()]
    assert len(split) == 2


async def cut_behind(chunks: int) -> None:
    """Ask a peer that is to cut there, and wait until the connection has ended."""
    async with openai_like(Cut(Says("Hello"), after_chunks=chunks)) as peer:
        _, writer = await raw(peer, b'{"stream": true}')
        await peer.until(lambda peer: len(peer.requests) == 1 and not peer.connections.open)
        writer.close()


async def test_what_goes_wrong_in_a_peer_fails_the_test_that_asked_it() -> None:
    with pytest.raises(ValueError, match="behind chunk 99 is no place"):
        await cut_behind(99)


async def test_a_peer_without_behaviours_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one behaviour"):
        await openai_like().__aenter__()


async def test_a_peer_that_is_left_closes_what_is_open() -> None:
    async with openai_like(Silence(Says("Hello"))) as peer:
        reader, writer = await raw(peer, b"{}")
        await peer.until(lambda peer: len(peer.requests) == 1)
    assert await reader.read() == b""
    assert peer.connections.open == 0
    writer.close()


@pytest.mark.parametrize(
    ("pieces", "cut"),
    [
        (1, ["abcdef"]),
        (4, ["a", "bc", "d", "ef"]),
        (99, [*"abcdef"]),
        ((2, 5), ["ab", "cde", "f"]),
        ((0, 6, 9), ["abcdef"]),
    ],
)
def test_a_text_comes_in_pieces_none_of_which_is_empty(
    pieces: int | tuple[int, ...], cut: list[str]
) -> None:
    assert pieces_of("abcdef", pieces) == cut
    assert pieces_of("", pieces) == []
