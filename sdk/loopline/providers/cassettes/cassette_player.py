"""Replaying a cassette: recorded responses are served again, to the byte, without a network."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import AnyStr, Final

import httpx2
from msgspec.structs import replace

from loopline.clock import SystemClock
from loopline.errors import CassetteError
from loopline.models import Json, dumps
from loopline.providers.cassettes.cassette_file import (
    ABANDONED,
    COMPLETE,
    CassetteEnd,
    ClockTimes,
    RecordedRequest,
    RecordedResponse,
    read_cassette,
)
from loopline.providers.cassettes.cassette_recorder import is_on_event_loop, record_request


def _list_subclasses(error: type[httpx2.TransportError]) -> Iterator[type[httpx2.TransportError]]:
    yield error
    for subclass in error.__subclasses__():
        yield from _list_subclasses(subclass)


ERRORS: Final = {error.__name__: error for error in _list_subclasses(httpx2.TransportError)}
_CACHE_KEY = re.compile(rb',"prompt_cache_key":"[0-9a-f]*"')
BEFORE = 20
AFTER = 60
"""How many characters of a text are shown before its first difference, and after it."""
NOTHING = "nothing"


class CassettePlayer:
    """Replays a cassette: each recorded response is returned once, in the order of recording.

    `models` are the model strings of the recorded chain, `settings` its base URLs by their variables.
    """

    def __init__(self, file: Path) -> None:
        """Load the file. Blocks.

        Raises:
            CassetteError: the file cannot be read, or is not a cassette.
        """
        self._file = file
        header, lines = read_cassette(file)
        self.models: Sequence[str] = header.models
        self.settings: Mapping[str, str] = header.settings
        self._requests: list[RecordedRequest] = []
        self._unserved: defaultdict[_Key, deque[RecordedRequest]] = defaultdict(deque)
        self._responses: dict[int, RecordedResponse] = {}
        times: dict[int, ClockTimes] = {}
        for line in lines:
            match line:
                case RecordedRequest():
                    request = _remove_cache_key(line)
                    self._requests.append(request)
                    self._unserved[_key(request)].append(request)
                    times[line.number - 1] = line.times
                case RecordedResponse():
                    self._responses[line.number] = line
                case CassetteEnd():
                    times[len(self._requests)] = line.times
        self.clock: ReplayClock = ReplayClock(header.at, times)

    async def begin(self) -> None:
        """Start the clock at the first recorded time."""
        self.clock.move_to(0)

    def client(self) -> httpx2.AsyncClient:
        """Return a client that gets all responses from the cassette, without a network."""
        return httpx2.AsyncClient(transport=_ReplayTransport(self))

    async def close(self) -> None:
        """Close the player, which has no open file."""

    def response(self, request: RecordedRequest) -> RecordedResponse:
        """Return the response to the first recorded request that equals `request` and was not replayed yet.

        Requests are equal if their URL, recorded headers and body are equal; the prompt cache key is ignored. Different
        requests may arrive in another order than they were recorded. The clock moves to the recorded time of the request.

        Raises:
            CassetteError: the request was not recorded, and the message names the most similar request and the first
                difference; or it is sent more often than it was recorded; or the cassette ends before the response.
        """
        request = _remove_cache_key(request)
        unserved = self._unserved.get(_key(request))
        if unserved is None:
            raise CassetteError(self._missing(request))
        if not unserved:
            raise CassetteError(
                f"{self._file}: this request is sent more often than it was recorded"
            )
        number = unserved.popleft().number
        self.clock.move_to(number)
        if number not in self._responses:
            raise CassetteError(f"{self._file} was cut off before the response to request {number}")
        return self._responses[number]

    def _missing(self, request: RecordedRequest) -> str:
        """Return the message for an unrecorded request: the most similar request and the first difference."""
        if not self._requests:
            return f"{self._file} has no requests"
        nearest = max(self._requests, key=lambda recorded: _likeness(recorded, request))
        return (
            f"{self._file} does not have this request; the most similar is number {nearest.number} of "
            f"{len(self._requests)}, and differs first at {_difference(nearest, request)}"
        )


_Key = tuple[str, tuple[tuple[str, str], ...], bytes]


def _key(request: RecordedRequest) -> _Key:
    return request.url, tuple(sorted(request.headers.items())), request.content


def _remove_cache_key(request: RecordedRequest) -> RecordedRequest:
    """Return the request without its cache key, which depends on the name of the conversation."""
    return replace(request, content=_CACHE_KEY.sub(b"", request.content))


class _ReplayTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport that returns responses from a cassette."""

    def __init__(self, player: CassettePlayer) -> None:
        self._player = player

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the recorded response, or raise the recorded transport error if no response was received.

        Raises:
            CassetteError: the request was not recorded, or was sent more often than recorded.
        """
        recorded = self._player.response(record_request(request))
        if not recorded.status:
            raise _error(recorded)
        return httpx2.Response(
            recorded.status, headers=recorded.headers, stream=_ReplayedStream(recorded)
        )


class _ReplayedStream(httpx2.AsyncByteStream):
    """A recorded body in its original pieces; raises the recorded error at the end, if there is one."""

    def __init__(self, recorded: RecordedResponse) -> None:
        self._recorded = recorded

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        for piece in self._recorded.pieces:
            yield piece
        if self._recorded.end != COMPLETE:
            raise _error(self._recorded)


def _error(recorded: RecordedResponse) -> httpx2.TransportError:
    if recorded.end == ABANDONED:
        return httpx2.ReadTimeout("the recorded run stopped receiving here")
    return ERRORS.get(recorded.end, httpx2.RemoteProtocolError)(recorded.said)


class ReplayClock(SystemClock):
    """A clock that returns recorded times, each between the same two requests as in the recording.

    After the last recorded time it repeats that time. Before `begin` it returns the start time of the recording.
    Sleeping takes no real time. Alarms and ids are real.
    """

    def __init__(self, start: datetime, times: Mapping[int, ClockTimes]) -> None:
        """`times` are the recorded times by the number of requests before them."""
        self._times = times
        self._now = start
        self._seconds = 0.0
        self.move_to(-1)

    def move_to(self, requests: int) -> None:
        """Continue with the times that were recorded after this number of requests."""
        times = self._times.get(requests, ClockTimes())
        self._loop = iter(times.loop)
        self._threads = iter(times.threads)
        self._elapsed = iter(times.elapsed)

    def now(self) -> datetime:
        """Return the next recorded time."""
        self._now = next(self._loop if is_on_event_loop() else self._threads, self._now)
        return self._now

    def elapsed(self) -> float:
        """Return the next recorded monotonic time, in seconds."""
        if is_on_event_loop():
            self._seconds = next(self._elapsed, self._seconds)
        return self._seconds

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run."""
        del seconds
        await asyncio.sleep(0)


def _likeness(recorded: RecordedRequest, now: RecordedRequest) -> tuple[int, int]:
    """Return the number of equal messages, and the number of equal bytes, both from the start of two requests."""
    pairs = zip(_messages(recorded), _messages(now), strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return shared, _common_length(recorded.content, now.content)


def _common_length(first: AnyStr, second: AnyStr) -> int:
    """Return the length of the longest common prefix."""
    lengths = range(min(len(first), len(second)))
    return bisect_left(lengths, True, key=lambda n: first[: n + 1] != second[: n + 1])


def _messages(request: RecordedRequest) -> list[Json]:
    match request.body:
        case {"messages": list(messages)} | {"input": list(messages)}:
            return messages
        case _:
            return []


def _difference(recorded: RecordedRequest, now: RecordedRequest) -> str:
    """Describe the first difference of two requests, in URL, headers or body, with its position and both values."""
    if recorded.url != now.url:
        return _text_difference("url", recorded.url, now.url)
    difference = _json_difference("headers", dict(recorded.headers), dict(now.headers))
    difference = difference or _json_difference("", recorded.body, now.body)
    return difference or _text_difference("body", repr(recorded.content), repr(now.content))


def _json_difference(path: str, recorded: Json, now: Json) -> str | None:
    """Describe the first difference of two values, in the order of recorded fields, with its path; None if equal."""
    match recorded, now:
        case dict(), dict():
            dot = f"{path}." if path else ""
            pairs = [
                (f"{dot}{name}", _values_at(recorded, name), _values_at(now, name))
                for name in dict.fromkeys([*recorded, *now])
            ]
        case list(), list():
            indexes = range(max(len(recorded), len(now)))
            pairs = [(f"{path}[{n}]", recorded[n : n + 1], now[n : n + 1]) for n in indexes]
        case str(), str():
            return None if recorded == now else _text_difference(path, recorded, now)
        case _:
            return None if recorded == now else _text_difference(path, dumps(recorded), dumps(now))
    for inner, before, after in pairs:
        if not before or not after:
            return f"{inner}: recorded {_show_value(before)}, now {_show_value(after)}"
        difference = _json_difference(inner, before[0], after[0])
        if difference is not None:
            return difference
    return None


def _values_at(fields: dict[str, Json], name: str) -> list[Json]:
    return [fields[name]] if name in fields else []


def _show_value(values: list[Json]) -> str:
    return _excerpt(dumps(values[0])) if values else NOTHING


def _text_difference(path: str, recorded: str, now: str) -> str:
    at = _common_length(recorded, now)
    return f"{path}: recorded {_excerpt(recorded, at)}, now {_excerpt(now, at)}"


def _excerpt(text: str, at: int = 0) -> str:
    """Return the text around a position, as a JSON string."""
    start = max(at - BEFORE, 0)
    end = at + AFTER
    return dumps(f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}")
