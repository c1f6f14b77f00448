"""Requests to a server: what is repeated when a connection is lost, and what its refusals are here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode

from loopline.client.http_session import HttpSession
from loopline.clock import Clock
from loopline.errors import AttachmentError, ConflictError, LooplineError
from loopline.models import JsonObject, is_loopback, one_line

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
    return HttpSession(url.rstrip("/"), key, idle_seconds=IDLE_SECONDS)


RETRY_SECONDS = 60.0
"""How long a request is repeated while the server cannot be reached."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
REFUSED = 400
"""The lowest status that is a refusal."""
_RETRIED = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)

Document = TypeVar("Document")


class ServerProblem(LooplineError):
    """A server refused a request; `action_by` says who must act: client, user, operator or author."""

    def __init__(self, message: str, *, status: int, action_by: str = "client") -> None:
        super().__init__(message)
        self.status = status
        self.action_by = action_by


class ServerUnreachable(LooplineError):
    """A server could not be reached for too long, or a request that must not be repeated was lost."""


class _ProblemDocument(Struct):
    detail: str = ""
    action_by: str = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRequest:
    """A request; one that is not `repeatable` is sent again only if it was not sent at all."""

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    repeatable: bool = True


class Reconnection:
    """Waits between attempts, each time longer, until the server could not be reached for too long."""

    def __init__(self, clock: Clock, limit_seconds: float) -> None:
        self._clock = clock
        self._limit_seconds = limit_seconds
        self._since: float | None = None
        self._seconds = FIRST_WAIT

    def succeed(self) -> None:
        """Begin anew: something came."""
        self._since, self._seconds = None, FIRST_WAIT

    async def wait(self, error: Exception, at_least: float = 0.0) -> None:
        """Wait before the next attempt.

        Raises:
            ServerUnreachable: there were attempts for long enough.
        """
        now = self._clock.elapsed()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._limit_seconds:
            raise ServerUnreachable(
                f"the server could not be reached for {self._limit_seconds:g} s: {error}"
            ) from error
        await self._clock.sleep(max(self._seconds, min(at_least, LONGEST_WAIT)))
        self._seconds = min(self._seconds * 2, LONGEST_WAIT)


@dataclass(frozen=True, slots=True)
class ServerConnection:
    """The session with one server, which repeats what was lost on the way."""

    session: ServerSession
    clock: Clock
    retry_seconds: float = RETRY_SECONDS

    def reconnection(self) -> Reconnection:
        """Return the waits of one request."""
        return Reconnection(self.clock, self.retry_seconds)

    @asynccontextmanager
    async def exchange(self, request: ServerRequest) -> AsyncGenerator[ServerExchange]:
        """Send a request once, and yield its answer.

        Raises:
            ConnectionError: the connection was lost.
        """
        async with self.session.exchange(
            request.method,
            request.path,
            query=request.query,
            body=request.body,
            headers=request.headers,
        ) as exchange:
            yield exchange

    async def send(self, request: ServerRequest) -> bytes:
        """Return the body of the answer.

        Raises:
            ServerProblem: the server refuses.
            ServerUnreachable: it could not be reached for too long.
        """
        attempts = self.reconnection()
        while True:
            try:
                async with self.exchange(request) as exchange:
                    body = await exchange.body()
            except ConnectionError as error:
                if not request.repeatable and not isinstance(error, ConnectionRefusedError):
                    raise ServerUnreachable(
                        f"the connection was lost, and the request may have been carried out: {error}"
                    ) from error
                await attempts.wait(error)
                continue
            if exchange.status < REFUSED:
                return body
            await wait_or_raise(attempts, exchange, body)

    async def read(
        self, request: ServerRequest, kind: type[Document], whole: Sequence[str] = ()
    ) -> Document:
        """Return the answer as a value of this kind; the fields of `whole` must be there although the value has defaults.

        Raises:
            ServerProblem: the server refuses, or what answers is no such server.
            ServerUnreachable: it could not be reached for too long.
        """
        body = await self.send(request)
        try:
            value = decode(body, type=kind)
            fields = decode(body, type=dict[str, Raw]) if whole else {}
            if missing := [name for name in whole if name not in fields]:
                raise ServerProblem(
                    f"{request.path}: the answer has no {missing[0]!r}: the server has another version",
                    status=HTTPStatus.BAD_GATEWAY,
                    action_by="operator",
                )
        except (DecodeError, RecursionError) as error:
            raise ServerProblem(
                f"{request.path}: this is no answer of such a server: {error}",
                status=HTTPStatus.BAD_GATEWAY,
                action_by="operator",
            ) from error
        return value


async def wait_or_raise(attempts: Reconnection, exchange: ServerExchange, body: bytes) -> None:
    """Wait if the server may take the request later.

    Raises:
        LooplineError: it refuses for good.
    """
    problem = problem_of(exchange.status, body)
    if exchange.status not in _RETRIED:
        raise problem
    retry = exchange.headers.get("retry-after", "")
    await attempts.wait(problem, float(retry) if retry.isascii() and retry.isdigit() else 0.0)


def problem_of(status: int, body: bytes) -> LooplineError:
    """Return what a refusal is here."""
    try:
        document = decode(body, type=_ProblemDocument)
    except (DecodeError, RecursionError):
        document = _ProblemDocument(action_by="operator")
    text = (
        document.detail
        or f"the server answered {status}: {one_line(body[:200].decode(errors='replace'))}"
    )
    if status == HTTPStatus.CONFLICT:
        return ConflictError(text)
    if status == HTTPStatus.UNPROCESSABLE_ENTITY and document.action_by == "user":
        return AttachmentError(text)
    return ServerProblem(text, status=status, action_by=document.action_by)


class PrincipalDocument(Struct):
    """Whom the key names."""

    tenant: str
    project: str
    user: str
    roles: tuple[str, ...]
    bundles: tuple[str, ...]


class PlaceDocument(Struct):
    """Where a message is stored."""

    turn_id: str
    seq: int


class DoneDocument(Struct):
    """Whether there was something to do, and it was done."""

    done: bool


class _ApprovalDocument(Struct):
    call_id: str
    approval: str


class ApprovalsDocument(Struct):
    """The calls that await approval, each with its signed approval."""

    approvals: tuple[_ApprovalDocument, ...]


class ForkDocument(Struct):
    """The conversation that a fork began."""

    conversation_id: str


class StatusMeta(Struct):
    """How far a conversation is."""

    last_seq: int
    pending_calls: tuple[str, ...]
    resumable_turns: tuple[str, ...]
    left_turns: dict[str, str]


class StatusDocument(Struct):
    """Whether a conversation runs."""

    meta: StatusMeta


class BlocksDocument(Struct):
    """Some blocks, and the seq after which there are more."""

    blocks: tuple[JsonObject, ...]
    next_after: int | None


class ListedDocument(Struct):
    """A conversation in a list."""

    conversation_id: str
    last_activity_at: str
    started_at: str
    title: str | None


class ListDocument(Struct):
    """The conversations of a user."""

    items: tuple[ListedDocument, ...]
