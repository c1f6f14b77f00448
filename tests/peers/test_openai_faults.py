"""Each fault of an OpenAI-like peer shows in OpenAI's own client as that client's fault."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import openai
import pytest

from tests.peers.clients import GPT, openai_at
from tests.support.peers import behaviors, overflow_errors
from tests.support.peers.openai_like import openai_like
from tests.support.peers.openai_replies import Says

LONG = Says("Once upon a time", pieces=6)
SOON = 0.2


async def told(client: openai.AsyncOpenAI) -> str:
    stream = await client.chat.completions.create(
        model=GPT, messages=[{"role": "user", "content": "Hello"}], stream=True
    )
    texts = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
    return "".join(texts)


async def ask(behaviour: behaviors.Behaviour[Says], seconds: float = 10.0) -> str:
    """What a client without patience is told."""
    async with openai_like(behaviour) as peer, openai_at(peer, seconds=seconds) as client:
        return await told(client)


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (413, openai.APIStatusError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
        (529, openai.InternalServerError),
    ],
)
async def test_a_status_is_an_error_of_its_class(
    code: int, raised: type[openai.APIStatusError]
) -> None:
    with pytest.raises(raised) as caught:
        await ask(behaviors.Status(code))
    assert caught.value.status_code == code
    assert caught.value.type


async def test_a_status_says_what_it_was_made_to_say() -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        await ask(
            behaviors.Status(429, fault=behaviors.Fault(kind="tokens", message="Too many tokens."))
        )
    assert caught.value.type == "tokens"
    assert "Too many tokens." in caught.value.message


async def test_a_refusal_may_be_no_json() -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        await ask(behaviors.Status(503, b"<html>upstream is away</html>"))
    assert caught.value.response.text == "<html>upstream is away</html>"


@pytest.mark.parametrize("server", overflow_errors.OPENAI_COMPATIBLE)
async def test_an_overflow_is_refused_in_the_words_of_each_server(server: str) -> None:
    overflow = overflow_errors.OPENAI_COMPATIBLE[server]
    with pytest.raises(openai.APIStatusError) as caught:
        await ask(overflow)
    assert caught.value.status_code == overflow.code
    assert caught.value.response.json() == overflow.body


async def waited(header: str) -> float:
    """The seconds between two requests of a client that is told this Retry-After."""
    refused = behaviors.Status(429, headers={"Retry-After": header})
    async with openai_like(refused, LONG) as peer, openai_at(peer, retries=1) as client:
        asking = asyncio.create_task(told(client))
        await peer.until(lambda peer: len(peer.requests) == 1)
        first = time.monotonic()
        await peer.until(lambda peer: len(peer.requests) == 2)
        second = time.monotonic()
        assert await asking == "Once upon a time"
    return second - first


async def test_a_client_waits_as_many_seconds_as_it_is_told() -> None:
    assert 0.25 <= await waited("0.3") < 5


async def test_a_client_waits_until_the_date_it_is_told() -> None:
    date = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
    await waited(format_datetime(date, usegmt=True))
    assert datetime.now(UTC) >= date


async def test_silence_before_the_head_is_a_timeout() -> None:
    with pytest.raises(openai.APITimeoutError):
        await ask(behaviors.Silence(LONG), SOON)


async def test_silence_within_a_stream_is_a_timeout() -> None:
    with pytest.raises(openai.APITimeoutError):
        await ask(behaviors.Silence(LONG, after_chunks=2), SOON)


async def test_after_a_short_silence_the_rest_is_said() -> None:
    assert await ask(behaviors.Silence(LONG, 0.05, after_chunks=2)) == "Once upon a time"
    assert await ask(behaviors.Silence(LONG, 0.05)) == "Once upon a time"


@pytest.mark.parametrize("after_bytes", [0, 1, 40, 200, 500])
async def test_a_cut_at_a_byte_is_a_connection_error(after_bytes: int) -> None:
    with pytest.raises(openai.APIConnectionError):
        await ask(behaviors.Cut(LONG, after_bytes=after_bytes))


@pytest.mark.parametrize("after_chunks", [0, 1, 3])
async def test_a_cut_or_a_half_closed_stream_is_a_connection_error(after_chunks: int) -> None:
    with pytest.raises(openai.APIConnectionError):
        await ask(behaviors.Cut(LONG, after_chunks=after_chunks))
    with pytest.raises(openai.APIConnectionError):
        await ask(behaviors.HalfClosed(LONG, after_chunks=after_chunks))


async def test_what_came_before_a_cut_was_read() -> None:
    texts: list[str] = []
    async with openai_like(behaviors.Cut(LONG, after_chunks=4)) as peer, openai_at(peer) as client:
        stream = await client.chat.completions.create(
            model=GPT, messages=[{"role": "user", "content": "Hello"}], stream=True
        )

        async def read() -> None:
            async for chunk in stream:
                texts.append(chunk.choices[0].delta.content or "")

        with pytest.raises(openai.APIConnectionError):
            await read()
    assert texts == ["", "On", "ce ", "upo"]


async def test_malformed_json_in_a_chunk_is_a_json_error() -> None:
    with pytest.raises(json.JSONDecodeError):
        await ask(behaviors.Malformed(LONG, chunk=2))


async def test_an_error_in_the_middle_of_a_stream_is_raised() -> None:
    with pytest.raises(openai.APIError, match="The GPU fell out"):
        await ask(behaviors.BrokenOff(LONG, 3, behaviors.Fault(message="The GPU fell out.")))


async def test_faults_may_be_faults_of_faults() -> None:
    with pytest.raises(openai.APIConnectionError):
        await ask(behaviors.Cut(behaviors.Silence(LONG, 0.05, after_chunks=1), after_chunks=2))


async def test_a_peer_notices_that_a_silent_client_has_gone() -> None:
    async with openai_like(behaviors.Silence(LONG, after_chunks=1)) as peer:
        async with openai_at(peer) as client:
            asking = asyncio.create_task(told(client))
            await peer.until(lambda peer: len(peer.requests) == 1)
            assert peer.connections.open == 1
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        await peer.until(lambda peer: peer.connections.open == 0)


async def test_another_path_is_not_found() -> None:
    async with openai_like(LONG) as peer, openai_at(peer) as client:
        with pytest.raises(openai.NotFoundError):
            await client.models.list()
        assert await told(client) == "Once upon a time"
