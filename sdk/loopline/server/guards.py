"""What every request passes before a route sees it: the size of its body, its sender, its host, its origin, its rate."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopline.errors import LooplineError
from loopline.models import is_loopback
from loopline.server import request_access
from loopline.server.principals import Principal
from loopline.server.problems import RequestProblem, problem_of, response_to
from loopline.server.request_access import UNKNOWN, BodyBytes, RequestAccess, Sender, sender_of

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
"""The bounds of the histogram of response times, in seconds."""


@dataclass(slots=True)
class ServerMetrics:
    """What a server has counted since it began."""

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter[tuple[str, str, int]])
    seconds: Counter[float] = field(default_factory=Counter[float])
    seconds_sum: float = 0.0
    turns: Counter[str] = field(default_factory=Counter[str])

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a response, and the time until its first byte."""
        self.requests[method, route, status] += 1
        self.seconds_sum += seconds
        for bound in BUCKETS:
            if seconds <= bound:
                self.seconds[bound] += 1

    def text(self, gauges: Mapping[str, int]) -> str:
        """Return all metrics; the gauges are what there is at this moment."""
        lines = ["# TYPE loopline_requests_total counter"]
        for (method, route, status), count in sorted(self.requests.items()):
            labels = f'method="{method}",route="{_escaped(route)}",status="{status}"'
            lines.append(f"loopline_requests_total{{{labels}}} {count}")
        lines.append("# TYPE loopline_response_seconds histogram")
        total = sum(self.requests.values())
        for bound in BUCKETS:
            lines.append(f'loopline_response_seconds_bucket{{le="{bound}"}} {self.seconds[bound]}')
        lines.append(f'loopline_response_seconds_bucket{{le="+Inf"}} {total}')
        lines.append(f"loopline_response_seconds_sum {self.seconds_sum:.6f}")
        lines.append(f"loopline_response_seconds_count {total}")
        lines.append("# TYPE loopline_turns_total counter")
        for reason, count in sorted(self.turns.items()):
            lines.append(f'loopline_turns_total{{exit_reason="{reason}"}} {count}')
        for name, value in gauges.items():
            lines += [f"# TYPE loopline_{name} gauge", f"loopline_{name} {value}"]
        return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


SENDERS = 10_000
"""How many senders the rates remember; the one that was idle longest is forgotten first."""
MINUTE = 60.0
UNLOCK = "loopline.unlock"
"""Where a server that limits its connections puts the function that takes the limits of a WebSocket away."""
POLICY_VIOLATION = 1008
"""The code of RFC 6455 with which a socket is refused."""
FIRST_PACKET_BYTES = 8 * 1024
"""A socket authenticates by its first packet: until then it may send so many bytes, in each packet or body."""
FIRST_PACKET_SECONDS = 5.0
UNREAD_BYTES = 64 * 1024
"""With more than that of a body that nobody reads, the connection is closed behind the answer."""
PIECE_SECONDS = 30.0
"""How long the next piece of a body may take."""
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
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


class BodyRefused(HTTPException):
    """A body is not read, or not to its end."""

    def __init__(self, problem: RequestProblem) -> None:
        super().__init__(problem.status, str(problem), dict(problem.headers))
        self.problem = problem


class SocketEntry:
    """A WebSocket on its way in; `open` takes its limits away, once its sender is known."""

    def __init__(self, unlock: Callable[[], None] = lambda: None) -> None:
        """Begin with the limits; `unlock` takes away those of the connection itself."""
        self.is_open: bool = False
        self._unlock = unlock

    def open(self) -> None:
        """Let the socket send as much as it may."""
        self.is_open = True
        self._unlock()


class Sockets(Protocol):
    """What the guard asks of the sockets, whose senders are known by a packet and not by a header."""

    def covers(self, scope: Scope) -> bool:
        """Return whether a request is one of a socket."""
        ...

    def sender(self, scope: Scope) -> Principal | None:
        """Return the sender of the socket that a request names; None if nobody is known yet."""
        ...

    def enter(self, scope: Scope, entry: SocketEntry) -> None:
        """Have `entry` opened once the sender of this WebSocket is known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """What the guard needs of the server: how senders are admitted, its limits, and its counters."""

    admit: Callable[[str], Awaitable[Principal]]
    sockets: Sockets
    body_bytes: int
    bodies: BodyBytes
    is_local: bool
    is_ending: Callable[[], bool]
    origins: Sequence[str]
    metrics: ServerMetrics


class RequestGuard:
    """The outermost layer of the app: it refuses what is too large, from elsewhere or of nobody, and counts the rest.

    A body is read only if its sender is known. `is_local` is a server without authentication: it answers only to
    names of this machine, and to pages of it, so that a page that a browser shows cannot reach it.
    """

    def __init__(self, app: ASGIApp, *, settings: GuardSettings) -> None:
        self._app = app
        self._settings = settings
        self._body_bytes = settings.body_bytes
        self._is_local = settings.is_local
        self._origins = frozenset(settings.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        problem = self._problem(headers, scope)
        token = _header(headers, "authorization")
        scheme, _, credentials = token.partition(" ")
        is_bearer = scheme.lower() == "bearer"
        access = RequestAccess(credentials.strip() if is_bearer else "", self._settings.admit)
        scope[request_access.KEY] = access
        if scope["type"] == "websocket":
            if problem is not None:
                await send({"type": "websocket.close", "code": POLICY_VIOLATION})
                return
            entry = SocketEntry(_unlock(scope))
            self._settings.sockets.enter(scope, entry)
            await self._app(scope, _FirstPackets(entry, receive, send).receive, send)
            return
        exchange = _Exchange(scope, receive, send, access, self._settings)
        try:
            if problem is not None:
                await response_to(problem)(scope, receive, exchange.send)
            else:
                await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if not self._settings.is_ending() or exchange.is_answered:
                raise
            await response_to(_ending_problem())(scope, receive, exchange.send)
        finally:
            exchange.release()

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
    """A request and its response: its body is read if the sender is known, its bytes are counted, headers are added."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        access: RequestAccess,
        settings: GuardSettings,
    ) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._access = access
        self._settings = settings
        self._metrics = settings.metrics
        self._began = time.monotonic()
        self._sender: Sender | None = None
        self._limit = self._left = settings.body_bytes
        self._reserved_bytes = 0
        self._is_of_socket = settings.sockets.covers(scope)  # a router changes the path
        self._unread = _announced(scope, settings.body_bytes)
        self.is_answered: bool = False

    async def receive(self) -> Message:
        """Receive the next part of the request.

        Raises:
            BodyRefused: nobody known sends the body, or too many bytes are being sent.
            BodyTooLarge: there are more bytes than a body may have.
        """
        if not self._unread:
            return self._checked(await self._receive())
        try:
            await self._authenticate()
            async with asyncio.timeout(PIECE_SECONDS):
                return self._checked(await self._receive())
        except LooplineError as error:
            raise BodyRefused(problem_of(error)) from error
        except TimeoutError:
            text = f"nothing of the body came for {PIECE_SECONDS:g} s"
            raise BodyRefused(RequestProblem(HTTPStatus.REQUEST_TIMEOUT, text)) from None

    async def _authenticate(self) -> None:
        """Learn whose body it is; before its first packet a socket is nobody's, and may send little."""
        if self._sender is not None:
            return
        if not self._is_of_socket:
            self._sender = sender_of(await self._access.principal())
            return
        principal = self._settings.sockets.sender(self._scope)
        self._sender = UNKNOWN if principal is None else sender_of(principal)
        if principal is None:
            self._limit = self._left = FIRST_PACKET_BYTES

    def _checked(self, message: Message) -> Message:
        if message["type"] != "http.request":
            return message
        count = len(message.get("body", b""))
        if count and self._sender is None:  # a body that no header announced
            raise BodyRefused(RequestProblem(HTTPStatus.LENGTH_REQUIRED, "the body has no length"))
        self._left -= count
        if self._left < 0:
            raise BodyTooLarge(self._limit)
        if self._sender is not None:
            self._settings.bodies.take(self._sender, count)
            self._reserved_bytes += count
        is_last = not message.get("more_body", False)
        self._unread = 0 if is_last else max(self._unread - count, 1)
        return message

    def release(self) -> None:
        """Give back the room of the body."""
        if self._sender is not None and self._reserved_bytes:
            self._settings.bodies.release(self._sender, self._reserved_bytes)
            self._reserved_bytes = 0

    async def send(self, message: Message) -> None:
        """Send a part of the response; by then the body has been read, and needs no room."""
        if message["type"] == "http.response.start":
            self.is_answered = True
            self.release()
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if self._unread > UNREAD_BYTES:
                headers["Connection"] = "close"
            self._count(int(message["status"]))
        await self._send(message)

    def _count(self, status: int) -> None:
        path = "unknown"
        if "route" in self._scope:  # else no route had that path, which a sender may choose freely
            path = str(getattr(self._scope["route"], "path", path))
        seconds = time.monotonic() - self._began
        self._metrics.count_request(str(self._scope["method"]), path, status, seconds)


class _FirstPackets:
    """What a WebSocket sends: until its sender is known little, and not for long."""

    def __init__(self, entry: SocketEntry, receive: Receive, send: Send) -> None:
        self._entry = entry
        self._receive = receive
        self._send = send
        self._ends_at = asyncio.get_running_loop().time() + FIRST_PACKET_SECONDS

    async def receive(self) -> Message:
        """Receive the next packet; a socket that is nobody's is closed after some seconds."""
        while not self._entry.is_open:
            try:
                async with asyncio.timeout_at(self._ends_at):
                    message = await self._receive()
            except TimeoutError:
                if self._entry.is_open:
                    break
                return await self._close()
            is_small = _packet_bytes(message) <= FIRST_PACKET_BYTES
            return message if is_small or self._entry.is_open else await self._close()
        return await self._receive()

    async def _close(self) -> Message:
        await self._send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}


def _packet_bytes(message: Message) -> int:
    data = message.get("bytes") or message.get("text") or b""
    return len(data.encode()) if isinstance(data, str) else len(data)


def _unlock(scope: Scope) -> Callable[[], None]:
    """Return what takes the limits of the connection away, if the server that runs the app has some."""
    unlock: Callable[[], None] = scope.get("state", {}).get(UNLOCK, lambda: None)
    return unlock


def _announced(scope: Scope, most: int) -> int:
    """Return how many bytes of a body are announced; of a body without a length more than it may have."""
    headers = Headers(scope=scope)
    length = _header(headers, "content-length")
    if length.isascii() and length.isdigit() and len(length) <= len(str(most)):
        return int(length)
    is_framed = not str(scope["http_version"]).startswith(
        "1"
    )  # then no header says that there is one
    if length or "transfer-encoding" in headers or (is_framed and scope["method"] in WITH_BODY):
        return most + 1
    return 0


def _ending_problem() -> RequestProblem:
    return RequestProblem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the server ends: send it again",
        headers=request_access.RETRY,
    )


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
