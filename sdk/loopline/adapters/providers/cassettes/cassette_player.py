"""Replaying: what was recorded is served again, to the byte, without a network."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import AnyStr, Final

import httpx2

from loopline.adapters.providers.cassettes.cassette_file import (
    LEFT,
    WHOLE,
    CassetteEnd,
    ClockTimes,
    RecordedRequest,
    RecordedResponse,
    read,
)
from loopline.adapters.providers.cassettes.cassette_recorder import Secrets, asked, is_on_event_loop
from loopline.adapters.providers.json_fields import as_list, as_object
from loopline.clock import Alarm, SystemClock
from loopline.errors import CassetteError
from loopline.models import Json, dumps

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


class CassettePlayer:
    """A cassette that is read: each recorded response is served once, in the order of recording."""

    def __init__(self, file: Path) -> None:
        """Read the file. Blocks.

        Raises:
            CassetteError: it cannot be read, or is no cassette.
        """
        self._file = file
        self._head, lines = read(file)
        self._requests: list[RecordedRequest] = []
        self._left: defaultdict[_Key, deque[RecordedRequest]] = defaultdict(deque)
        self._responses: dict[int, RecordedResponse] = {}
        times = dict[int, ClockTimes]()
        for line in lines:
            match line:
                case RecordedRequest():
                    recorded = _comparable(line)
                    self._requests.append(recorded)
                    self._left[_key(recorded)].append(recorded)
                    times[line.number - 1] = line.times
                case RecordedResponse():
                    self._responses[line.number] = line
                case CassetteEnd():
                    times[len(self._requests)] = line.times
        self.clock: ReplayClock = ReplayClock(self._head.at, times)

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

    def response(self, request: RecordedRequest) -> RecordedResponse:
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

    def _missed(self, request: RecordedRequest) -> str:
        if not self._requests:
            return f"{self._file} holds no request at all"
        near = nearest(self._requests, request)
        return (
            f"{self._file} holds no such request; the nearest is number {near.number} of "
            f"{len(self._requests)}, and differs first at {difference(near, request)}"
        )


_Key = tuple[str, tuple[tuple[str, str], ...], bytes]


def _key(request: RecordedRequest) -> _Key:
    return request.url, tuple(sorted(request.headers.items())), request.content


def _comparable(request: RecordedRequest) -> RecordedRequest:
    """The request without the key of its cache, which follows from the conversation's name."""
    return replace(request, content=_CACHE_KEY.sub(b"", request.content))


class _Replayed(httpx2.AsyncBaseTransport):
    """Answers from a cassette."""

    def __init__(self, replay: CassettePlayer) -> None:
        self._replay = replay

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        came = self._replay.response(asked(request, Secrets.of(request.headers, str(request.url))))
        if not came.status:
            raise _error(came)
        return httpx2.Response(came.status, headers=came.headers, stream=_Played(came))


class _Played(httpx2.AsyncByteStream):
    """A recorded body, piece by piece, up to how it ended."""

    def __init__(self, came: RecordedResponse) -> None:
        self._came = came

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        for piece in self._came.pieces:
            yield piece
        if self._came.end != WHOLE:
            raise _error(self._came)


def _error(came: RecordedResponse) -> httpx2.TransportError:
    if came.end == LEFT:
        return httpx2.ReadTimeout("in the recorded run nobody read on")
    return ERRORS.get(came.end, httpx2.RemoteProtocolError)(came.said)


BEFORE, AFTER = 20, 60
"""How many characters of a text are shown, before its first difference and from there on."""
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two requests first differ, such as `messages[3].content`, and what each has there."""

    path: str
    recorded: str
    now: str

    def __str__(self) -> str:
        return f"{self.path}: recorded {self.recorded}, now {self.now}"


def nearest(recorded: Sequence[RecordedRequest], now: RecordedRequest) -> RecordedRequest:
    """The one that shares most leading messages with it, then most leading bytes."""
    return max(recorded, key=lambda one: _alike(one, now))


def difference(recorded: RecordedRequest, now: RecordedRequest) -> Difference:
    """The first difference of two requests that differ: URL, headers, then body."""
    if recorded.url != now.url:
        return _texts("url", recorded.url, now.url)
    found = _between("headers", dict(recorded.headers), dict(now.headers))
    found = found or _between("", recorded.body, now.body)
    return found or _texts("body", repr(recorded.content), repr(now.content))


def _alike(one: RecordedRequest, other: RecordedRequest) -> tuple[int, int]:
    pairs = zip(_messages(one), _messages(other), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return same, _shared(one.content, other.content)


def _shared(one: AnyStr, other: AnyStr) -> int:
    """How long the beginning is that both have."""
    lengths = range(min(len(one), len(other)))
    return bisect_left(lengths, True, key=lambda n: one[: n + 1] != other[: n + 1])


def _messages(request: RecordedRequest) -> list[Json]:
    body = as_object(request.body)
    return as_list(body.get("messages", body.get("input")))


def _between(path: str, recorded: Json, now: Json) -> Difference | None:
    match recorded, now:
        case dict(), dict():
            names = dict.fromkeys([*recorded, *now])
            dot = f"{path}." if path else ""
            pairs = [(f"{dot}{name}", _at(recorded, name), _at(now, name)) for name in names]
        case list(), list():
            places = range(max(len(recorded), len(now)))
            pairs = [(f"{path}[{n}]", recorded[n : n + 1], now[n : n + 1]) for n in places]
        case str(), str():
            return None if recorded == now else _texts(path, recorded, now)
        case _:
            return None if recorded == now else _texts(path, dumps(recorded), dumps(now))
    for place, left, right in pairs:
        if not left or not right:
            return Difference(place, _only(left), _only(right))
        found = _between(place, left[0], right[0])
        if found is not None:
            return found
    return None


def _at(found: dict[str, Json], name: str) -> list[Json]:
    return [found[name]] if name in found else []


def _only(found: list[Json]) -> str:
    return _shortened(dumps(found[0])) if found else NOTHING


def _texts(path: str, recorded: str, now: str) -> Difference:
    at = _shared(recorded, now)
    return Difference(path, _shortened(recorded, at), _shortened(now, at))


def _shortened(text: str, at: int = 0) -> str:
    """The text about a place of it, in quotes."""
    start, end = max(at - BEFORE, 0), at + AFTER
    return dumps(f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}")


class ReplayClock:
    """A clock that tells recorded times, those between two requests between the same two.

    Who asks more often than was recorded is told the last one again, and before `go_on` when the
    recording began. Sleeping takes no real time; alarms ring, and ids are new, as ever.
    """

    def __init__(self, began: datetime, times: Mapping[int, ClockTimes]) -> None:
        """`times` are those after so many requests, up to the next."""
        self._times = times
        self._now, self._passed = began, 0.0
        self._real = SystemClock()
        self.go_on(-1)

    def go_on(self, requests: int) -> None:
        """So many requests have been made."""
        times = self._times.get(requests, ClockTimes())
        self._loop, self._threads = iter(times.loop), iter(times.threads)
        self._elapsed = iter(times.elapsed)

    def now(self) -> datetime:
        """The next time of those that were recorded."""
        self._now = next(self._loop if is_on_event_loop() else self._threads, self._now)
        return self._now

    def elapsed(self) -> float:
        """The next seconds of those that were recorded."""
        if is_on_event_loop():
            self._passed = next(self._elapsed, self._passed)
        return self._passed

    async def sleep(self, seconds: float) -> None:
        """Let others run."""
        del seconds
        await asyncio.sleep(0)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Have `ring` called once so many real seconds have passed."""
        return self._real.alarm(seconds, ring)

    def new_id(self) -> str:
        """16 random bytes."""
        return self._real.new_id()
