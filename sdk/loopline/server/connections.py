"""The connections of a server: how many may be open, and how long and how large they may be before their sender is known."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.wsproto_impl import (
    FrameTooLargeError,
    WebsocketBuffer,
    WSProtocol,
)
from uvicorn.server import ServerState
from wsproto import events

from loopline.server.guards import UNLOCK
from loopline.server.problems import RequestProblem
from loopline.server.request_access import FIRST_PACKET_BYTES, UNKNOWN, SharedLimit
from loopline.server.settings import ServerSettings

HEADER_BYTES = 64 * 1024
HEADER_SECONDS = 10.0
"""How long the headers of a request may take."""
DESCRIPTORS = 65_536
"""As many file descriptors a server asks for, if it may have them."""
RESERVED = 128
DESCRIPTORS_OF_A_TURN = 2
FEWEST = 64
SECONDS_BETWEEN_LINES = 60.0
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)
_log = logging.getLogger("loopline")


def raise_descriptor_limit() -> None:
    """Have this process open as many files and connections as it may, up to `DESCRIPTORS`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections(settings: ServerSettings, descriptors: int) -> int:
    """Return how many connections may be open, so that the store, blobs and sandboxes always get a descriptor.

    Twice the listeners and turns are more than a server can serve, however many descriptors it has.
    """
    useful = max(2 * (settings.listeners + settings.turns), FEWEST)
    if descriptors == resource.RLIM_INFINITY:
        return useful
    reserved = min(RESERVED + DESCRIPTORS_OF_A_TURN * settings.turns, descriptors // 2)
    return min(descriptors - reserved, useful)


class ConnectionConfig(uvicorn.Config):
    """The configuration of a server whose connections are limited."""

    def __init__(
        self,
        app: FastAPI,
        *,
        host: str,
        port: int,
        backlog: int,
        grace_seconds: int,
        settings: ServerSettings,
        body_bytes: SharedLimit,
    ) -> None:
        super().__init__(
            app,
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=backlog,
            http=HttpConnection,
            ws=SocketConnection,
            ws_per_message_deflate=False,  # a packet of 8 KiB could have megabytes in it
            h11_max_incomplete_event_size=HEADER_BYTES,
            timeout_graceful_shutdown=grace_seconds,
        )
        self.body_bytes = body_bytes
        self.descriptors: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most_connections: int = most_connections(settings, self.descriptors)
        self._told_at = -SECONDS_BETWEEN_LINES

    def tell_full(self) -> None:
        """Write to the log that connections are refused, at most once a minute."""
        now = time.monotonic()
        if now - self._told_at >= SECONDS_BETWEEN_LINES:
            self._told_at = now
            _log.warning(
                "connections are refused: %d are open, and %d files may be (ulimit -n)",
                self.most_connections,
                self.descriptors,
            )


def _config(config: uvicorn.Config) -> ConnectionConfig:
    assert isinstance(config, ConnectionConfig)
    return config


class HttpConnection(H11Protocol):
    """A connection that is refused if too many are open, and closed if no request comes."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = _config(config)
        self._is_idle = True
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, if there is room for it."""
        super().connection_made(cast("asyncio.Transport", transport))
        if len(self.connections) > self._limits.most_connections:
            self._limits.tell_full()
            self.transport.write(FULL)
            self.transport.close()
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._begin_request()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take data, and wait no longer for a request that is there."""
        scope = self.scope
        super().data_received(data)
        if self.scope is not scope:
            self._begin_request()
        elif self._is_idle:
            self._await_request()

    def on_response_complete(self) -> None:
        """Wait for the next request; it may be there already."""
        scope, self._is_idle = self.scope, True
        super().on_response_complete()
        if self.scope is not scope:
            self._begin_request()

    def _await_request(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.timeout_keep_alive_handler)

    def _begin_request(self) -> None:
        self._is_idle = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _CountedBuffer(WebsocketBuffer):
    """The part of a packet that has come; its bytes count as those of bodies do."""

    def __init__(self, body_bytes: SharedLimit) -> None:
        super().__init__(FIRST_PACKET_BYTES)
        self._body_bytes = body_bytes
        self._reserved_bytes = 0

    def extend(self, event: events.TextMessage | events.BytesMessage) -> None:
        """Add a part of a packet.

        Raises:
            FrameTooLargeError: the packet is too large, or too much is being sent.
        """
        super().extend(event)
        try:
            self._body_bytes.add(UNKNOWN, self.length - self._reserved_bytes)
        except RequestProblem as error:
            raise FrameTooLargeError from error
        self._reserved_bytes = self.length

    def clear(self) -> None:
        """Forget the packet."""
        super().clear()
        self._body_bytes.subtract(UNKNOWN, self._reserved_bytes)
        self._reserved_bytes = 0


class SocketConnection(WSProtocol):
    """A WebSocket whose packets are small until its sender is known."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, UNLOCK: self._unlock}, _loop)
        self.buffer: _CountedBuffer = _CountedBuffer(_config(config).body_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and what came of its last packet."""
        self.buffer.clear()
        super().connection_lost(exc)

    def _unlock(self) -> None:
        self.buffer.max_length = self.config.ws_max_size
