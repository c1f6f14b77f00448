"""The guard that every request passes before a route: it checks size, sender, host and origin, and counts."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopline.errors import LooplineError
from loopline.models import is_loopback
from loopline.server import problems, request_access
from loopline.server.bundle_host import BundleHost
from loopline.server.socket_io import SocketHost

UNLOCK = "loopline.unlock"
"""The key of the ASGI state for the function that removes the limits of a WebSocket connection, if there are any."""
POLICY_VIOLATION = 1008
"""The close code of RFC 6455 for a WebSocket that is refused."""
UNREAD_BYTES = 64 * 1024
"""If more bytes of a body are unread when the response begins, the connection is closed after it."""
PART_SECONDS = 30.0
"""How long the server waits for the next part of a body."""
SLOWEST_BYTES = 1024
"""The lowest rate of a body, in bytes per second, after its first `PART_SECONDS`."""
BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})
_ENCODED_SLASH = re.compile(rb"%2f", re.IGNORECASE)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


class BodyRefused(HTTPException):
    """A body is not read, or not to its end."""

    def __init__(self, problem: problems.RequestProblem) -> None:
        super().__init__(problem.status, str(problem), dict(problem.headers))
        self.problem = problem


class RequestGuard:
    """The outermost middleware of the app.

    It refuses bodies that are too large, reads a body only if its sender is authenticated, adds headers and counts
    responses. A server without authentication answers only requests from this machine, for a loopback host name, and
    of web pages only those of its own origin and of `ServerSettings.origins`.
    """

    def __init__(self, app: ASGIApp, *, host: BundleHost, sockets: SocketHost) -> None:
        self._app = app
        self._host = host
        self._sockets = sockets
        self._body_bytes = host.settings.body_bytes
        self._origins = frozenset(host.settings.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the app with its `RequestAccess` in the scope, or refuse it.

        A refused WebSocket is closed with `POLICY_VIOLATION`. A request that the shutdown cancels before its response is
        answered with 503.
        """
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope = _mark_slashes(scope)
        headers = Headers(scope=scope)
        problem = self._problem(headers, scope)
        scheme, _, credentials = _first_header(headers, "authorization").partition(" ")
        token = credentials.strip() if scheme.lower() == "bearer" else ""
        access = request_access.RequestAccess(token, self._host.admit)
        scope[request_access.KEY] = access
        if scope["type"] == "websocket":
            if problem is not None:
                await send({"type": "websocket.close", "code": POLICY_VIOLATION})
                return
            unlock: Callable[[], None] = scope.get("state", {}).get(UNLOCK, lambda: None)
            entry = request_access.SocketEntry(unlock)
            self._sockets.enter(scope, entry)
            await self._app(scope, _FirstPackets(entry, receive, send).receive, send)
            return
        exchange = _Exchange(scope, receive, send, access, self._host, self._sockets)
        try:
            if problem is not None:
                await problems.response_to(problem)(scope, receive, exchange.send)
            else:
                await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if not self._host.draining.is_set() or exchange.has_response:
                raise
            shutdown = problems.unavailable("the server is shutting down: send the request again")
            await problems.response_to(shutdown)(scope, receive, exchange.send)
        finally:
            exchange.release()

    def _problem(self, headers: Headers, scope: Scope) -> problems.RequestProblem | None:
        """Return the reason to refuse a request by its headers, or None."""
        length = _first_header(headers, "content-length") or "0"
        if not length.isascii() or not length.isdigit():
            return problems.RequestProblem(HTTPStatus.BAD_REQUEST, "Content-Length is not a number")
        if len(length) > len(str(self._body_bytes)) or int(length) > self._body_bytes:
            return _too_large(self._body_bytes)
        if not self._host.is_local:
            return None
        client = HTTPConnection(scope).client
        is_from_here = client is None or is_loopback(client.host)
        host_name = _host_name(f"//{_first_header(headers, 'host')}")
        if not is_from_here or not is_loopback(host_name):
            return problems.RequestProblem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "without authentication the server answers only this machine: use localhost in the URL",
            )
        if not self._is_of_allowed_page(headers):
            return problems.forbidden(
                "web pages of other origins may not use this server, also those of other ports: "
                "name the origin with --origin"
            )
        return None

    def _is_of_allowed_page(self, headers: Headers) -> bool:
        """Return whether a request is of a page of this server or of an allowed origin, or of no page.

        Browsers send `Origin` with all requests that could change something, and with all WebSockets. For other requests
        they send `Sec-Fetch-Site`; those that open a page are accepted, because the page that links to it cannot read it.
        """
        origin = _first_header(headers, "origin")
        if origin:
            own = _first_header(headers, "host").lower()
            is_own = origin.lower() in (f"http://{own}", f"https://{own}")
            return is_own or origin in self._origins
        is_of_other_page = _first_header(headers, "sec-fetch-site") in ("cross-site", "same-site")
        return not is_of_other_page or _first_header(headers, "sec-fetch-mode") == "navigate"


class _Exchange:
    """A request and its response.

    The body is read only if the sender is authenticated, its bytes count towards the shared limit until the response
    begins, and the response gets the safety headers.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        access: request_access.RequestAccess,
        host: BundleHost,
        sockets: SocketHost,
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._access = access
        self._host = host
        self._sockets = sockets
        self._began = time.monotonic()
        self._reading_since: float | None = None
        self._sender: request_access.Sender | None = None
        self._limit = host.settings.body_bytes
        self._remaining = self._limit
        self._reserved_bytes = 0
        self._is_of_socket = sockets.covers(scope)  # now, because a router changes the path
        self._unread = _body_length(scope, self._limit)
        self.has_response: bool = False

    async def receive(self) -> Message:
        """Receive the next part of the request.

        Raises:
            BodyRefused: the sender is not authenticated, or the body is too large or too slow, or too many bytes are
                being received.
        """
        if not self._unread:
            return self._count_body(await self._receive())
        try:
            await self._authenticate()
            async with asyncio.timeout(self._part_seconds()):
                return self._count_body(await self._receive())
        except LooplineError as error:
            raise BodyRefused(problems.problem_of(error)) from error
        except TimeoutError:
            text = f"the body is too slow: send a part each {PART_SECONDS:g} s, and {SLOWEST_BYTES:,} bytes a second"
            raise BodyRefused(problems.RequestProblem(HTTPStatus.REQUEST_TIMEOUT, text)) from None

    def _part_seconds(self) -> float:
        """Return how long the server waits for the next part of the body: at most `PART_SECONDS`.

        Raises:
            TimeoutError: after its first `PART_SECONDS`, the body is slower than `SLOWEST_BYTES` per second.
        """
        now = self._host.clock.elapsed()
        if self._reading_since is None:
            self._reading_since = now
        allowed = PART_SECONDS + (self._limit - self._remaining) / SLOWEST_BYTES
        remaining = allowed - (now - self._reading_since)
        if remaining <= 0:
            raise TimeoutError
        return min(remaining, PART_SECONDS)

    async def _authenticate(self) -> None:
        """Store the authenticated sender, if it is not stored yet.

        A socket before its first packet is `UNKNOWN`, and its limit is `FIRST_PACKET_BYTES`.

        Raises:
            Unauthenticated: the token is missing, wrong or expired.
            RequestProblem: the sender makes too many requests, 429.
        """
        if self._sender is not None:
            return
        if not self._is_of_socket:
            self._sender = request_access.sender_of(await self._access.principal())
            return
        principal = self._sockets.sender(self._scope)
        if principal is None:
            self._sender = request_access.UNKNOWN
            self._limit = request_access.FIRST_PACKET_BYTES
            self._remaining = request_access.FIRST_PACKET_BYTES
        else:
            self._sender = request_access.sender_of(principal)

    def _count_body(self, message: Message) -> Message:
        """Count the bytes of a part against the limits, and return the part.

        Raises:
            BodyRefused: the body is too large, or the headers have neither its length nor `Transfer-Encoding`.
            RequestProblem: too many bytes are being received, 429 or 503.
        """
        if message["type"] != "http.request":
            return message
        count = len(message.get("body", b""))
        if count and self._sender is None:  # a body that no header announced
            raise BodyRefused(
                problems.RequestProblem(HTTPStatus.LENGTH_REQUIRED, "the body has no length")
            )
        self._remaining -= count
        if self._remaining < 0:
            raise BodyRefused(_too_large(self._limit))
        if self._sender is not None:
            self._host.body_bytes.add(self._sender, count)
            self._reserved_bytes += count
        is_last = not message.get("more_body", False)
        self._unread = 0 if is_last else max(self._unread - count, 1)
        return message

    def release(self) -> None:
        """Release the bytes of the body from the shared limit."""
        if self._sender is not None and self._reserved_bytes:
            self._host.body_bytes.subtract(self._sender, self._reserved_bytes)
            self._reserved_bytes = 0

    async def send(self, message: Message) -> None:
        """Send a part of the response. The first part releases the body, which has been read by then."""
        if message["type"] == "http.response.start":
            self.has_response = True
            self.release()
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if self._unread > UNREAD_BYTES:
                headers["Connection"] = "close"
            self._count_response(int(message["status"]))
        await self._send(message)

    def _count_response(self, status: int) -> None:
        path = "unknown"  # a path without a route could be any text, so it is not counted by itself
        if "route" in self._scope:
            path = str(getattr(self._scope["route"], "path", path))
        seconds = time.monotonic() - self._began
        self._host.metrics.count_request(str(self._scope["method"]), path, status, seconds)


class _FirstPackets:
    """The packets of a WebSocket. Until its sender is known, their size and the waiting time are limited."""

    def __init__(self, entry: request_access.SocketEntry, receive: Receive, send: Send) -> None:
        self._entry = entry
        self._receive = receive
        self._send = send
        self._ends_at = asyncio.get_running_loop().time() + request_access.FIRST_PACKET_SECONDS

    async def receive(self) -> Message:
        """Receive the next packet.

        A socket that has not authenticated is closed after `FIRST_PACKET_SECONDS`, and at a packet above
        `FIRST_PACKET_BYTES`.
        """
        while not self._entry.is_open:
            try:
                async with asyncio.timeout_at(self._ends_at):
                    message = await self._receive()
            except TimeoutError:
                if self._entry.is_open:
                    break
                return await self._close()
            is_small = _packet_bytes(message) <= request_access.FIRST_PACKET_BYTES
            return message if is_small or self._entry.is_open else await self._close()
        return await self._receive()

    async def _close(self) -> Message:
        await self._send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}


def _mark_slashes(scope: Scope) -> Scope:
    """Return the scope with each `%2F` of its path as `request_access.SLASH`; unchanged if a middleware has rewritten the path."""
    parts = [unquote(part) for part in _ENCODED_SLASH.split(scope.get("raw_path") or b"")]
    is_marked = len(parts) > 1 and "/".join(parts) == scope["path"]
    return {**scope, "path": request_access.SLASH.join(parts)} if is_marked else scope


def _packet_bytes(message: Message) -> int:
    """Return the number of bytes in a WebSocket message, of a text in UTF-8; 0 for a message without data."""
    match message:
        case {"bytes": bytes(data)}:
            return len(data)
        case {"text": str(text)}:
            return len(text.encode())
        case _:
            return 0


def _body_length(scope: Scope, limit: int) -> int:
    """Return the length of the body by the headers: 0 without a body, `limit + 1` if it is unknown or too large."""
    headers = Headers(scope=scope)
    length = _first_header(headers, "content-length")
    if length.isascii() and length.isdigit() and len(length) <= len(str(limit)):
        return int(length)
    is_http_1 = str(scope["http_version"]).startswith("1")
    # Since HTTP/2 a body needs no header.
    may_have_body = not is_http_1 and scope["method"] in BODY_METHODS
    if length or "transfer-encoding" in headers or may_have_body:
        return limit + 1
    return 0


def _too_large(limit: int) -> problems.RequestProblem:
    text = f"a request may have {limit:,} bytes"
    return problems.RequestProblem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)


def _first_header(headers: Headers, name: str) -> str:
    return headers.get(name, "")


def _host_name(url: str) -> str:
    """Return the host of a URL in lower case, or an empty text if the URL is malformed."""
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
