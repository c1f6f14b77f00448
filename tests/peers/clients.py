"""The vendors' own clients, pointed at a peer; they ask once and do not ask again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
from anthropic import AsyncAnthropic
from anthropic.types import MessageParam
from openai import AsyncOpenAI

from tests.support.peers.http_server import Peer

SECONDS = 10.0
GPT = "gpt-5.5"
CLAUDE = "claude-opus-5-5"
HELLO: list[MessageParam] = [{"role": "user", "content": "Hello"}]


@asynccontextmanager
async def openai_at(
    peer: Peer, *, retries: int = 0, seconds: float = SECONDS
) -> AsyncGenerator[AsyncOpenAI, None]:
    async with (
        httpx2.AsyncClient(trust_env=False, verify=False, timeout=seconds) as http,
        AsyncOpenAI(
            base_url=f"{peer.url}/v1",
            api_key="a key",
            max_retries=retries,
            timeout=seconds,
            http_client=http,
        ) as client,
    ):
        yield client


@asynccontextmanager
async def anthropic_at(
    peer: Peer, *, retries: int = 0, seconds: float = SECONDS
) -> AsyncGenerator[AsyncAnthropic, None]:
    async with (
        httpx2.AsyncClient(trust_env=False, verify=False, timeout=seconds) as http,
        AsyncAnthropic(
            base_url=peer.url,
            api_key="a key",
            max_retries=retries,
            timeout=seconds,
            http_client=http,
        ) as client,
    ):
        yield client
