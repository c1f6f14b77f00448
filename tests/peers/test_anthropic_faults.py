"""Each fault of an Anthropic-like peer shows in Anthropic's own client as that client's fault."""

from __future__ import annotations

import json

import anthropic
import httpx2
import pytest

from tests.peers.clients import CLAUDE, HELLO, anthropic_at
from tests.support.peers import behaviors, overflow_errors
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.anthropic_replies import Says

LONG = Says("Once upon a time", pieces=6)
SOON = 0.2


async def told(client: anthropic.AsyncAnthropic) -> str:
    stream = await client.messages.create(model=CLAUDE, max_tokens=100, messages=HELLO, stream=True)
    deltas = [event.delta async for event in stream if event.type == "content_block_delta"]
    return "".join(delta.text for delta in deltas if delta.type == "text_delta")


async def ask(behaviour: behaviors.Behaviour[Says], seconds: float = 10.0) -> str:
    """What a client without patience is told."""
    async with anthropic_like(behaviour) as peer, anthropic_at(peer, seconds=seconds) as client:
        return await told(client)


@pytest.mark.parametrize(
    ("code", "raised", "kind"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (401, anthropic.AuthenticationError, "authentication_error"),
        (403, anthropic.PermissionDeniedError, "permission_error"),
        (404, anthropic.NotFoundError, "not_found_error"),
        (413, anthropic.APIStatusError, "request_too_large"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (503, anthropic.InternalServerError, "api_error"),
        (529, anthropic.InternalServerError, "overloaded_error"),
    ],
)
async def test_a_status_is_an_error_of_its_class_and_type(
    code: int, raised: type[anthropic.APIStatusError], kind: str
) -> None:
    with pytest.raises(raised) as caught:
        await ask(behaviors.Status(code))
    assert (caught.value.status_code, caught.value.type) == (code, kind)


async def test_a_prompt_too_long_is_refused_in_tokens_and_in_bytes() -> None:
    with pytest.raises(
        anthropic.BadRequestError, match="prompt is too long: 212345 tokens > 200000"
    ):
        await ask(overflow_errors.ANTHROPIC)
    with pytest.raises(anthropic.APIStatusError, match="request_too_large"):
        await ask(overflow_errors.ANTHROPIC_BYTES)


async def test_a_client_that_retries_gets_what_is_next_in_the_script() -> None:
    refused = behaviors.Status(529, headers={"Retry-After": "0.05"})
    async with anthropic_like(refused, LONG) as peer, anthropic_at(peer, retries=1) as client:
        assert await told(client) == "Once upon a time"
    assert len(peer.requests) == 2


@pytest.mark.parametrize("kind", ["overloaded_error", "api_error"])
async def test_an_error_event_in_a_stream_is_raised(kind: str) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        await ask(behaviors.BrokenOff(LONG, 4, behaviors.Fault(kind=kind)))
    assert caught.value.type == kind


async def test_silence_is_a_timeout() -> None:
    with pytest.raises(anthropic.APITimeoutError):
        await ask(behaviors.Silence(LONG), SOON)
    with pytest.raises(httpx2.ReadTimeout):
        await ask(behaviors.Silence(LONG, after_chunks=3), SOON)


async def test_after_a_short_silence_the_rest_is_said() -> None:
    assert await ask(behaviors.Silence(LONG, 0.05, after_chunks=3)) == "Once upon a time"


async def test_a_cut_before_the_head_is_a_connection_error() -> None:
    with pytest.raises(anthropic.APIConnectionError):
        await ask(behaviors.Cut(LONG, after_bytes=10))


async def test_a_reset_within_a_stream_is_a_read_error() -> None:
    with pytest.raises(httpx2.ReadError):
        await ask(behaviors.Cut(LONG, after_chunks=3))


async def test_a_half_closed_stream_is_an_incomplete_one() -> None:
    with pytest.raises(httpx2.RemoteProtocolError, match="incomplete chunked read"):
        await ask(behaviors.HalfClosed(LONG, after_chunks=3))


async def test_malformed_json_in_an_event_is_a_json_error() -> None:
    with pytest.raises(json.JSONDecodeError):
        await ask(behaviors.Malformed(LONG, chunk=3))


async def test_another_path_is_not_found() -> None:
    async with anthropic_like(LONG) as peer, anthropic_at(peer) as client:
        with pytest.raises(anthropic.NotFoundError):
            await client.models.list()
