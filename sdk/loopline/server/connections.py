"""The connections of a server under uvicorn: limits on their number, and on time and size until the sender is known."""

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

from loopline.server.bundle_host import bundle_host
from loopline.server.guards import UNLOCK
from loopline.server.problems import RequestProblem
from loopline.server.request_access import FIRST_PACKET_BYTES, UNKNOWN, SharedLimit
from loopline.server.settings import ServerSettings

HEADER_BYTES = 64 * 1024
HEADER_SECONDS = 10.0
"""How long the headers of a request may take."""
DESCRIPTORS = 65_536
"""The number of file descriptors that a server requests, if its hard limit allows it."""
RESERVED = 128
DESCRIPTORS_OF_A_TURN = 2
FEWEST = 64
LOG_SECONDS = 60.0
ACCEPTED_AT_ONCE = 16
"""How many connections the event loop accepts before it can refuse one. Each has a file descriptor by then."""
GRACE_SECONDS = 1
"""How long requests may take to end after their turns are handed over."""
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)
_log = logging.getLogger("loopline")


def raise_descriptor_limit() -> None:
    """Raise the limit of open files of this process to its hard limit, at most to `DESCRIPTORS`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections(settings: ServerSettings, descriptors: int) -> int:
    """Return how many connections may be open if the process may have `descriptors` files open.

    Descriptors for the store, blobs and sandboxes are reserved. The result is at most twice the number of listeners and
    turns, or `FEWEST` if that is more, because a server cannot serve more.
    """
    useful = max(2 * (settings.listeners + settings.turns), FEWEST)
    if descriptors == resource.RLIM_INFINITY:
        return useful
    reserved = min(RESERVED + DESCRIPTORS_OF_A_TURN * settings.turns, descriptors // 2)
    return min(descriptors - reserved, useful)


class LogForwarder(logging.Handler):
    """Passes the records of uvicorn to the log of the package, except exceptions of requests, which are logged there already."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on the record."""
        if not record.getMessage().startswith("Exception in ASGI application"):
            _log.handle(record)


_LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"forward": {"class": f"{__name__}.{LogForwarder.__name__}"}},
    "loggers": {"uvicorn": {"handlers": ["forward"], "level": "WARNING", "propagate": False}},
}


class ConnectionConfig(uvicorn.Config):
    """The uvicorn configuration of a server that limits its connections."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        super().__init__(
            app,
            host=host,
            port=port,
            log_config=_LOGGING,
            log_level="warning",
            access_log=False,
            server_header=False,
            backlog=ACCEPTED_AT_ONCE,
            http=HttpConnection,
            ws=SocketConnection,
            ws_per_message_deflate=False,  # a packet of 8 KiB could have megabytes in it
            h11_max_incomplete_event_size=HEADER_BYTES,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        bundles = bundle_host(app)
        self.body_bytes: SharedLimit = bundles.body_bytes
        self.descriptors: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most_connections: int = most_connections(bundles.settings, self.descriptors)
        self._logged_at = -LOG_SECONDS

    def log_full(self) -> None:
        """Log that connections are refused, at most once a minute."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            _log.warning(
                "connections are refused: %d are open, and at most %d files may be open (ulimit -n)",
                self.most_connections,
                self.descriptors,
            )


def _config(config: uvicorn.Config) -> ConnectionConfig:
    assert isinstance(config, ConnectionConfig)
    return config


class HttpConnection(H11Protocol):
    """A connection that is refused if too many are open, and closed if no request arrives in `HEADER_SECONDS`."""

    _is_idle = True
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or refuse it with 503 if too many are open."""
        super().connection_made(cast("asyncio.Transport", transport))
        config = _config(self.config)
        if len(self.connections) > config.most_connections:
            config.log_full()
            self.transport.write(FULL)
            self.transport.close()
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout and discard the connection."""
        self._begin_request()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, and cancel the timeout if a request has begun."""
        scope = self.scope
        super().data_received(data)
        if self.scope is not scope:
            self._begin_request()
        elif self._is_idle:
            self._await_request()

    def on_response_complete(self) -> None:
        """Wait for the next request, which may be in the buffer already."""
        scope = self.scope
        self._is_idle = True
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
    """The received part of a packet. Its bytes count towards the shared limit of body bytes."""

    def __init__(self, body_bytes: SharedLimit) -> None:
        super().__init__(FIRST_PACKET_BYTES)
        self._body_bytes = body_bytes
        self._reserved_bytes = 0

    def extend(self, event: events.TextMessage | events.BytesMessage) -> None:
        """Add a part of a packet.

        Raises:
            FrameTooLargeError: the packet is too large, or too many bytes are being received.
        """
        super().extend(event)
        try:
            self._body_bytes.add(UNKNOWN, self.length - self._reserved_bytes)
        except RequestProblem as error:
            raise FrameTooLargeError from error
        self._reserved_bytes = self.length

    def clear(self) -> None:
        """Discard the packet, and release its bytes from the shared limit."""
        super().clear()
        self._body_bytes.subtract(UNKNOWN, self._reserved_bytes)
        self._reserved_bytes = 0


class SocketConnection(WSProtocol):
    """A WebSocket whose packets are limited to `FIRST_PACKET_BYTES` until it has authenticated."""

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
        """Discard the connection and its last packet."""
        self.buffer.clear()
        super().connection_lost(exc)

    def _unlock(self) -> None:
        self.buffer.max_length = self.config.ws_max_size
