"""The connection to a server: requests, which are repeated when a connection is lost, and the errors for refusals."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2
from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode

from loopline.clock import Clock
from loopline.errors import AttachmentError, ConflictError, LooplineError
from loopline.models import JsonObject, is_loopback, one_line
from loopline.timeline import ApprovalMode, GrantedRule

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 60.0
"""How long a stream may be silent before its connection counts as lost. A server sends a comment every 15 seconds."""
LINE_BYTES = 64 * 2**20
"""The longest line of a stream that is buffered."""
RETRY_SECONDS = 60.0
"""How long a request is repeated while the server cannot be reached."""
FIRST_WAIT = 0.1
LONGEST_WAIT = 5.0
REFUSED = 400
"""The lowest status of a refusal."""
_RETRIED = frozenset(
    {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)

Document = TypeVar("Document")


def http_client(url: str, key: str) -> httpx2.AsyncClient:
    """Return a client that will send the key to the server at `url`. It does not connect yet.

    Raises:
        LooplineError: `url` is not an address of a server, or would carry the key unencrypted to another machine.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LooplineError(f"{url!r} is not an address of a server: it must begin with https://")
    if key and parts.scheme != "https" and not is_loopback(parts.hostname):
        raise LooplineError(
            f"{url} would get the key unencrypted: use https://, or a tunnel to this machine"
        )
    return httpx2.AsyncClient(
        base_url=url.rstrip("/"),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx2.Timeout(IDLE_SECONDS, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(max_connections=None),
    )


class ServerProblem(LooplineError):
    """A server refused a request; `action_by` says who must act: client, user, operator or author."""

    def __init__(self, message: str, *, status: int, action_by: str = "client") -> None:
        super().__init__(message)
        self.status = status
        self.action_by = action_by


class ServerUnreachable(LooplineError):
    """A server could not be reached for too long, or the connection of a request that cannot be repeated was lost."""


class _ProblemDocument(Struct):
    detail: str = ""
    action_by: str = "client"


FormFile = tuple[str, tuple[str | None, bytes, str]]
"""A part of a form: its field, and the file name, bytes and media type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRequest:
    """A request with a body of bytes or with the parts of a form.

    If it is not `repeatable`, it is sent again only if the server did not take it.
    """

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: bytes | None = None
    form: Sequence[FormFile] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    repeatable: bool = True


class Reconnection:
    """The waits between attempts. Each wait doubles, and the attempts end after `limit_seconds`."""

    def __init__(self, clock: Clock, limit_seconds: float) -> None:
        self._clock = clock
        self._limit_seconds = limit_seconds
        self._since: float | None = None
        self._seconds = FIRST_WAIT

    def succeed(self) -> None:
        """Start over with the shortest wait, because the server answered."""
        self._since = None
        self._seconds = FIRST_WAIT

    async def wait(self, error: Exception, at_least: float = 0.0) -> None:
        """Wait before the next attempt, at least `at_least` seconds and at most `LONGEST_WAIT`.

        Raises:
            ServerUnreachable: the attempts have failed for `limit_seconds`; `error` is the last failure.
        """
        now = self._clock.elapsed()
        if self._since is None:
            self._since = now
        if now - self._since >= self._limit_seconds:
            raise ServerUnreachable(
                f"the server could not be reached for {self._limit_seconds:g} s: {error}"
            ) from error
        await self._clock.sleep(max(self._seconds, min(at_least, LONGEST_WAIT)))
        self._seconds = min(self._seconds * 2, LONGEST_WAIT)


@contextmanager
def _connection_errors() -> Generator[None]:
    """Raise failures of the transport as `ConnectionError`, or `ConnectionRefusedError` if there was no connection."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise ConnectionRefusedError(f"{type(error).__name__} {error}".rstrip()) from error
    except (httpx2.TransportError, httpx2.StreamError) as error:
        raise ConnectionError(f"{type(error).__name__} {error}".rstrip()) from error


async def read_body(response: httpx2.Response) -> bytes:
    """Read the whole body.

    Raises:
        ConnectionError: the connection was lost.
    """
    with _connection_errors():
        return await response.aread()


async def read_lines(response: httpx2.Response) -> AsyncGenerator[str, None]:
    """Yield the lines of the body without their line feeds. Text after the last line feed is dropped.

    Raises:
        ConnectionError: the connection was lost or silent for `IDLE_SECONDS`, or a line is longer than `LINE_BYTES`.
    """
    partial = list[bytes]()  # the pieces of a line are joined once, when it ends
    size = 0
    with _connection_errors():
        async for chunk in response.aiter_bytes():
            first, *lines = chunk.split(b"\n")
            partial.append(first)
            size += len(first)
            if lines:
                lines.insert(0, b"".join(partial))
                partial = [lines.pop()]
                size = len(partial[0])
            for line in lines:
                yield line.decode(errors="replace")
            if size > LINE_BYTES:
                raise ConnectionError(f"a line of the stream has more than {LINE_BYTES:,} bytes")


@dataclass(frozen=True, slots=True)
class ServerConnection:
    """A client of one server. It repeats a request if its connection was lost."""

    client: httpx2.AsyncClient
    clock: Clock
    retry_seconds: float = RETRY_SECONDS

    def reconnection(self) -> Reconnection:
        """Return the waits for a new request."""
        return Reconnection(self.clock, self.retry_seconds)

    @asynccontextmanager
    async def exchange(self, request: ServerRequest) -> AsyncGenerator[httpx2.Response]:
        """Send a request once, and yield the response with its headers; the body is still to be read.

        Raises:
            ConnectionRefusedError: the connection was refused or timed out before the request was sent.
            ConnectionError: the connection was lost, or was silent for `IDLE_SECONDS`.
        """
        message = self.client.build_request(
            request.method,
            request.path,
            params=list(request.query),
            content=request.body,
            files=list(request.form) or None,
            headers=request.headers,
        )
        with _connection_errors():
            response = await self.client.send(message, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    async def send(self, request: ServerRequest) -> bytes:
        """Send a request until it is answered, and return the body of the answer.

        It is sent again if the connection was lost, or if the status is 429, 503 or 504.

        Raises:
            LooplineError: the server refuses, as in `problem_of`.
            ServerUnreachable: the server could not be reached for `retry_seconds`, or a request that is not repeatable may
                have been carried out.
        """
        attempts = self.reconnection()
        while True:
            try:
                async with self.exchange(request) as response:
                    body = await read_body(response)
            except ConnectionError as error:
                if not request.repeatable and not isinstance(error, ConnectionRefusedError):
                    raise ServerUnreachable(
                        f"the connection was lost, and the request may have been carried out: {error}"
                    ) from error
                await attempts.wait(error)
                continue
            if response.status_code < REFUSED:
                return body
            if response.status_code == HTTPStatus.GATEWAY_TIMEOUT and not request.repeatable:
                problem = problem_of(response.status_code, body)
                raise ServerUnreachable(
                    f"a proxy did not wait, and the request may have been carried out: {problem}"
                )
            await wait_or_raise(attempts, response, body)

    async def read(
        self, request: ServerRequest, kind: type[Document], required: Sequence[str] = ()
    ) -> Document:
        """Send a request and decode the answer as `kind`.

        Fields in `required` must be in the answer even if `kind` has a default for them.

        Raises:
            LooplineError: the server refuses, as in `problem_of`, or the answer is not a document of that kind.
            ServerUnreachable: as in `send`.
        """
        body = await self.send(request)
        value = _decode_answer(request, body, kind)
        fields = _decode_answer(request, body, dict[str, Raw]) if required else {}
        for name in required:
            if name not in fields:
                raise _unknown_answer(request, f"has no {name!r}: the server has another version")
        return value

    async def read_field(self, request: ServerRequest, name: str, kind: type[Document]) -> Document:
        """Send a request, and decode the field `name` of the answer as `kind`. Errors are those of `read`."""
        fields = await self.read(request, dict[str, Raw], [name])
        return _decode_answer(request, fields[name], kind)


def _decode_answer(request: ServerRequest, body: bytes | Raw, kind: type[Document]) -> Document:
    try:
        return decode(body, type=kind)
    except (DecodeError, RecursionError) as error:
        text = f"is not that of a Loopline server: {error}"
        raise _unknown_answer(request, text) from error


def _unknown_answer(request: ServerRequest, text: str) -> ServerProblem:
    message = f"{request.path}: the answer {text}"
    return ServerProblem(message, status=HTTPStatus.BAD_GATEWAY, action_by="operator")


async def wait_or_raise(attempts: Reconnection, response: httpx2.Response, body: bytes) -> None:
    """Wait if the status is 429, 503 or 504, at least the seconds of `Retry-After`, up to `LONGEST_WAIT`.

    Raises:
        LooplineError: the server refuses the request with another status, as in `problem_of`.
        ServerUnreachable: the attempts have failed for too long.
    """
    problem = problem_of(response.status_code, body)
    if response.status_code not in _RETRIED:
        raise problem
    retry = response.headers.get("retry-after", "")
    await attempts.wait(problem, float(retry) if retry.isascii() and retry.isdigit() else 0.0)


def problem_of(status: int, body: bytes) -> LooplineError:
    """Return the error for a refusal.

    It is a `ConflictError` for 409, an `AttachmentError` for 422 if the user must act, and otherwise a `ServerProblem`.
    A body that cannot be decoded is quoted up to 200 bytes, and then the operator must act.
    """
    try:
        document = decode(body, type=_ProblemDocument)
    except (DecodeError, RecursionError):
        document = _ProblemDocument(action_by="operator")
    shown = one_line(body[:200].decode(errors="replace"))
    text = document.detail or f"the server answered {status}: {shown}"
    if status == HTTPStatus.CONFLICT:
        return ConflictError(text)
    if status == HTTPStatus.UNPROCESSABLE_ENTITY and document.action_by == "user":
        return AttachmentError(text)
    return ServerProblem(text, status=status, action_by=document.action_by)


class PrincipalDocument(Struct):
    """The owner of the key, and the ids of the served bundles."""

    tenant: str
    project: str
    user: str
    roles: tuple[str, ...]
    bundles: tuple[str, ...]


class PositionDocument(Struct):
    """The position of a stored message."""

    turn_id: str
    seq: int


class ModeDocument(Struct):
    """The approval mode of a conversation, and its rules."""

    mode: ApprovalMode
    rules: list[GrantedRule]


class ScheduledDocument(Struct):
    """A message of a conversation that waits for its time."""

    id: str
    at: datetime
    text: str
    every: str
    zone: str


class ApprovalDocument(Struct):
    """A call that awaits approval, with its signed approval."""

    call_id: str
    approval: str


class StatusDocument(Struct):
    """The newest seq of a conversation, its turns that can be resumed, and those that no bundle resumes, with reasons."""

    last_seq: int
    resumable_turns: tuple[str, ...]
    left_turns: dict[str, str]


class BlocksDocument(Struct):
    """A page of blocks. `next_after` is the seq after which the next page begins, None for the last page."""

    blocks: tuple[JsonObject, ...]
    next_after: int | None


class ListedDocument(Struct):
    """A conversation in a list."""

    conversation_id: str
    last_activity_at: str
    started_at: str
    title: str | None
