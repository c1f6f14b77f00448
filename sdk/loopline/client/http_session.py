"""Requests to a server of conversations, through one pool of connections; answers are read as they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import httpx2

CONNECT_SECONDS = 10.0
LINE_BYTES = 64 * 2**20
"""The size up to which a line of a stream is held."""


@dataclass(frozen=True, slots=True)
class HttpExchange:
    """The answer to a request, whose body is still to be read."""

    _response: httpx2.Response

    @property
    def status(self) -> int:
        """The status."""
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names are found in any case."""
        return self._response.headers

    async def body(self) -> bytes:
        """Return the whole body.

        Raises:
            ConnectionError: the connection was lost.
        """
        with _translated():
            return await self._response.aread()

    async def lines(self) -> AsyncGenerator[str, None]:
        """Yield the lines of the body, which end with a line feed.

        Raises:
            ConnectionError: the connection was lost, was silent for too long, or a line has no end.
        """
        partial = b""
        with _translated():
            async for chunk in self._response.aiter_bytes():
                *lines, partial = (partial + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
                if len(partial) > LINE_BYTES:
                    raise ConnectionError(
                        f"a line of the stream has more than {LINE_BYTES:,} bytes"
                    )


class HttpSession:
    """Requests to one server, with one key."""

    def __init__(self, url: str, key: str, *, idle_seconds: float) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx2.Timeout(idle_seconds, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None),
        )

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[HttpExchange, None]:
        """Send a request, and yield its answer once its headers are there.

        Raises:
            ConnectionRefusedError: there is no connection; nothing was sent.
            ConnectionError: the connection was lost, or was silent for too long.
        """
        request = self._client.build_request(
            method, path, params=list(query), content=body, headers=headers
        )
        with _translated():
            response = await self._client.send(request, stream=True)
        try:
            yield HttpExchange(response)
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise ConnectionRefusedError(f"{type(error).__name__} {error}".rstrip()) from error
    except (httpx2.TransportError, httpx2.StreamError) as error:
        raise ConnectionError(f"{type(error).__name__} {error}".rstrip()) from error
