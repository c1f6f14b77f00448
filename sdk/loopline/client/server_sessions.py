"""The session of a client with a server of conversations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from urllib.parse import urlsplit

from loopline.errors import LooplineError
from loopline.models import is_loopback

IDLE_SECONDS = 60.0
"""A server sends a comment into a quiet stream every fifteen seconds: after so many the connection is lost."""


class ServerExchange(Protocol):
    """The answer to a request, whose body is still to be read."""

    @property
    def status(self) -> int:
        """The status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names are found in any case."""
        ...

    async def body(self) -> bytes:
        """Return the whole body.

        Raises:
            ConnectionError: the connection was lost.
        """
        ...

    def lines(self) -> AsyncGenerator[str, None]:
        """Yield the lines of the body, without their ends.

        Raises:
            ConnectionError: the connection was lost, or was silent for too long.
        """
        ...


class ServerSession(Protocol):
    """Requests to one server, with one key."""

    def exchange(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AbstractAsyncContextManager[ServerExchange]:
        """Send a request, and yield its answer once its headers are there.

        Raises:
            ConnectionRefusedError: there is no connection; nothing was sent.
            ConnectionError: the connection was lost, or was silent for too long.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


def server_session(url: str, key: str) -> ServerSession:
    """Return a session with a server; nothing is sent yet.

    Raises:
        LooplineError: the URL is no address of a server, or a key could be read by others on its way.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LooplineError(f"{url!r} is no address of a server: it begins with https://")
    if key and parts.scheme != "https" and not is_loopback(parts.hostname):
        raise LooplineError(
            f"{url} would get the key unencrypted: use https://, or a tunnel to this machine"
        )
    from loopline.client.http_session import HttpSession

    return HttpSession(url.rstrip("/"), key, idle_seconds=IDLE_SECONDS)
