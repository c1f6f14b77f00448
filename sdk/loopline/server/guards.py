"""What every request passes before a route sees it: the size of its body, its host, its origin, its rate."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopline.server.metrics import ServerMetrics
from loopline.server.principals import Principal
from loopline.server.problems import RequestProblem, response_to

SENDERS = 10_000
"""How many senders the rates remember; the one that was idle longest is forgotten first."""
MINUTE = 60.0
POLICY_VIOLATION = 1008
"""The code of RFC 6455 with which a socket is refused."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


@dataclass(slots=True)
class _Allowance:
    """How many requests a sender may still make, at that time."""

    requests: float
    at: float


class RequestRates:
    """A bucket of requests for every user, which is filled again over a minute."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._allowances = OrderedDict[tuple[str, str, str], _Allowance]()

    def check(self, principal: Principal) -> None:
        """Take a request from the bucket of its sender.

        Raises:
            RequestProblem: the bucket is empty.
        """
        key = principal.tenant, principal.project, principal.user
        now = time.monotonic()
        allowance = self._allowances.pop(key, None) or _Allowance(self._per_minute, now)
        refill = (now - allowance.at) * self._per_minute / MINUTE
        allowance.requests = min(allowance.requests + refill, self._per_minute)
        allowance.at = now
        self._allowances[key] = allowance
        if len(self._allowances) > SENDERS:
            self._allowances.popitem(last=False)
        if allowance.requests < 1:
            wait = (1 - allowance.requests) * MINUTE / self._per_minute
            raise RequestProblem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"a user may make {self._per_minute} requests a minute",
                headers={"Retry-After": f"{int(wait) + 1}"},
            )
        allowance.requests -= 1


class BodyTooLarge(HTTPException):
    """More bytes came than a body may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large_text(limit))


class RequestGuard:
    """The outermost layer of the app: it refuses what is too large or comes from elsewhere, and counts the rest.

    `is_local` is a server without authentication: it answers only to names of this machine, and to pages of it, so that
    a page that a browser shows cannot reach it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        body_bytes: int,
        is_local: bool,
        origins: Sequence[str],
        metrics: ServerMetrics,
    ) -> None:
        self._app = app
        self._body_bytes = body_bytes
        self._is_local = is_local
        self._origins = frozenset(origins)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "websocket" and self._problem(Headers(scope=scope), scope) is not None:
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._body_bytes, self._metrics)
        problem = self._problem(Headers(scope=scope), scope)
        if problem is not None:
            await response_to(problem)(scope, receive, exchange.send)
            return
        await self._app(scope, exchange.receive, exchange.send)

    def _problem(self, headers: Headers, scope: Scope) -> RequestProblem | None:
        length = _header(headers, "content-length") or "0"
        if not length.isascii() or not length.isdigit():
            return RequestProblem(HTTPStatus.BAD_REQUEST, "Content-Length is no number")
        if len(length) > len(str(self._body_bytes)) or int(length) > self._body_bytes:
            return RequestProblem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _too_large_text(self._body_bytes)
            )
        if not self._is_local:
            return None
        client = HTTPConnection(scope).client
        host = _header(headers, "host")
        is_here = client is None or is_loopback(client.host)
        if not is_here or not is_loopback(_host(f"//{host}")):
            return RequestProblem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "without authentication only this machine is served: ask for localhost",
            )
        origin = _header(headers, "origin")
        if origin and origin not in self._origins and not is_loopback(_host(origin)):
            return RequestProblem(HTTPStatus.FORBIDDEN, "pages of other servers are not served")
        return None


class _Exchange:
    """A request and its response: the bytes that came are counted, and headers are added."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limit: int, metrics: ServerMetrics
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limit = self._left = limit
        self._metrics = metrics
        self._began = time.monotonic()

    async def receive(self) -> Message:
        """Receive the next part of the request.

        Raises:
            BodyTooLarge: there are more bytes than a body may have.
        """
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message["body"]) if "body" in message else 0
            if self._left < 0:
                raise BodyTooLarge(self._limit)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            self._count(int(message["status"]))
        await self._send(message)

    def _count(self, status: int) -> None:
        path = "unknown"
        if "route" in self._scope:  # else no route had that path, which a sender may choose freely
            path = str(getattr(self._scope["route"], "path", path))
        seconds = time.monotonic() - self._began
        self._metrics.count_request(str(self._scope["method"]), path, status, seconds)


def is_loopback(host: str) -> bool:
    """Return whether a name or address means this machine, and cannot mean another."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _too_large_text(limit: int) -> str:
    return f"a request may have {limit:,} bytes"


def _header(headers: Headers, name: str) -> str:
    """Return the first header of that name, empty without one."""
    return next(iter(headers.getlist(name)), "")


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
