"""A server behind an HTTP address: the streamable transport of the SDK, with bounds on what it may send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from loopline.bundle import McpConnectionSettings
from loopline.mcp.transports import MESSAGE_BYTES

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 3_600.0
"""Seconds without a byte after which a reply is given up; the time of a call is limited elsewhere."""
NOT_FOUND = 404
_SESSION = "mcp-session-id"


class HttpEndpoint:
    """The address of a server. `ending` says why its session ended, empty while it is open."""

    last_words = ""

    def __init__(self, settings: McpConnectionSettings, auth: httpx2.Auth | None = None) -> None:
        self._settings = settings
        self._auth = auth
        self.ending: str = ""
        self.ended: asyncio.Event = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[TransportStreams, None]:
        """Connect, and end the session on the server in the end."""
        async with (
            httpx2.AsyncClient(
                headers=dict(self._settings.headers),
                timeout=httpx2.Timeout(IDLE_SECONDS, connect=CONNECT_SECONDS),
                auth=self._auth,
                event_hooks={"response": [self._watch]},
            ) as client,
            streamable_http_client(
                self._settings.url, http_client=client, max_sse_event_size=MESSAGE_BYTES
            ) as streams,
        ):
            yield streams

    async def _watch(self, response: httpx2.Response) -> None:
        """Bound a reply in one document; events are bounded one by one."""
        if response.status_code == NOT_FOUND and _SESSION in response.request.headers:
            self.ending = "it has forgotten the session"
            self.ended.set()
        stream = response.stream
        is_event_stream = "event-stream" in response.headers.get("content-type", "")
        if not is_event_stream and isinstance(stream, httpx2.AsyncByteStream):
            response.stream = _BoundedStream(stream)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MESSAGE_BYTES:
                raise httpx2.ReadError(f"the reply has more than {MESSAGE_BYTES:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
