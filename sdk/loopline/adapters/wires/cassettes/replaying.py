"""Replaying: what was recorded is served again, to the byte, without a network."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx2

from loopline.adapters.wires.cassettes.clocks import RepeatingClock
from loopline.adapters.wires.cassettes.lines import (
    LEFT,
    WHOLE,
    Close,
    Request,
    Response,
    Times,
    read,
)
from loopline.adapters.wires.cassettes.nearest import difference, nearest
from loopline.adapters.wires.cassettes.recording import asked
from loopline.adapters.wires.cassettes.secrets import Secrets
from loopline.errors import CassetteError

_KINDS: Final[tuple[type[httpx2.TransportError], ...]] = (
    httpx2.ConnectTimeout,
    httpx2.ReadTimeout,
    httpx2.WriteTimeout,
    httpx2.PoolTimeout,
    httpx2.ReadError,
    httpx2.WriteError,
    httpx2.ConnectError,
    httpx2.CloseError,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
    httpx2.LocalProtocolError,
    httpx2.RemoteProtocolError,
)
_CACHE_KEY = re.compile(rb',"prompt_cache_key":"[0-9a-f]*"')
ERRORS: Final[Mapping[str, type[httpx2.TransportError]]] = {one.__name__: one for one in _KINDS}


class Replay:
    """A cassette that is read: each recorded response is served once, in the order of recording."""

    def __init__(self, file: Path) -> None:
        """Read the file. Blocks.

        Raises:
            CassetteError: it cannot be read, or is no cassette.
        """
        self._file = file
        self._head, lines = read(file)
        self._requests: list[Request] = []
        self._left: defaultdict[_Key, deque[Request]] = defaultdict(deque)
        self._responses: dict[int, Response] = {}
        times = dict[int, Times]()
        for line in lines:
            match line:
                case Request():
                    recorded = _comparable(line)
                    self._requests.append(recorded)
                    self._left[_key(recorded)].append(recorded)
                    times[line.number - 1] = line.times
                case Response():
                    self._responses[line.number] = line
                case Close():
                    times[len(self._requests)] = line.times
        self.clock: RepeatingClock = RepeatingClock(self._head.at, times)

    @property
    def models(self) -> Sequence[str]:
        """The model strings of the recorded chain."""
        return self._head.models

    @property
    def settings(self) -> Mapping[str, str]:
        """The base URLs that it was asked at, by their variables."""
        return self._head.settings

    async def begin(self) -> None:
        """Tell the recorded times from here on."""
        self.clock.go_on(0)

    def client(self) -> httpx2.AsyncClient:
        """A client that is answered by the cassette alone."""
        return httpx2.AsyncClient(transport=_Replayed(self))

    async def close(self) -> None:
        """Nothing is open."""

    def response(self, request: Request) -> Response:
        """What came of that request, the next time it was made.

        Raises:
            CassetteError: nothing is recorded; the message names the nearest request, and where it differs.
        """
        now = _comparable(request)
        left = self._left.get(_key(now))
        if left is None:
            raise CassetteError(self._missed(now))
        if not left:
            raise CassetteError(
                f"{self._file}: this request was recorded less often than it is made now"
            )
        found = left.popleft()
        self.clock.go_on(found.number)
        if found.number not in self._responses:
            raise CassetteError(
                f"{self._file} was cut off before the response to request {found.number}"
            )
        return self._responses[found.number]

    def _missed(self, request: Request) -> str:
        if not self._requests:
            return f"{self._file} holds no request at all"
        near = nearest(self._requests, request)
        return (
            f"{self._file} holds no such request; the nearest is number {near.number} of "
            f"{len(self._requests)}, and differs first at {difference(near, request)}"
        )


_Key = tuple[str, tuple[tuple[str, str], ...], bytes]


def _key(request: Request) -> _Key:
    return request.url, tuple(sorted(request.headers.items())), request.content


def _comparable(request: Request) -> Request:
    """The request without the key of its cache, which follows from the conversation's name."""
    return replace(request, content=_CACHE_KEY.sub(b"", request.content))


class _Replayed(httpx2.AsyncBaseTransport):
    """Answers from a cassette."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        came = self._replay.response(asked(request, Secrets.of(request.headers, str(request.url))))
        if not came.status:
            raise _error(came)
        return httpx2.Response(came.status, headers=came.headers, stream=_Played(came))


class _Played(httpx2.AsyncByteStream):
    """A recorded body, piece by piece, up to how it ended."""

    def __init__(self, came: Response) -> None:
        self._came = came

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        for piece in self._came.pieces:
            yield piece
        if self._came.end != WHOLE:
            raise _error(self._came)


def _error(came: Response) -> httpx2.TransportError:
    if came.end == LEFT:
        return httpx2.ReadTimeout("in the recorded run nobody read on")
    return ERRORS.get(came.end, httpx2.RemoteProtocolError)(came.said)
