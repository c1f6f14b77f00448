"""Recording: each request and its response go into a file as they travel."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from importlib.metadata import version
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Final

import httpx2

from loopline.adapters.providers.cassettes.cassette_file import (
    LEFT,
    WHOLE,
    CassetteEnd,
    CassetteHeader,
    ClockTimes,
    Line,
    RecordedRequest,
    RecordedResponse,
    written,
)
from loopline.clock import Alarm, Clock
from loopline.errors import CassetteError
from loopline.models.safe_text import SHORTEST, secrets_in, without_secrets


class CassetteRecorder:
    """A cassette that is being written; `clock` keeps what it tells, for the replay."""

    def __init__(
        self, file: Path, clock: Clock, models: Sequence[str], settings: Mapping[str, str]
    ) -> None:
        """`models` are the chain's model strings, `settings` the variables of their base URLs."""
        self.clock: RecordingClock = RecordingClock(clock)
        self._file = file
        self._models, self._settings = tuple(models), settings
        self._requests = 0
        self._writing = Lock()
        self._open: FileIO | None = None

    async def begin(self) -> None:
        """Make the file, and keep times from here on: those before depend on what lies beside.

        Raises:
            CassetteError: the file is there already, or cannot be written.
        """
        head = CassetteHeader(
            at=self.clock.now(),
            loopline=version("loopline"),
            models=self._models,
            settings=self._settings,
        )
        self._open = await asyncio.to_thread(self._made)
        await self.keep(head)
        self.clock.taken()

    def client(self, by: httpx2.AsyncClient) -> httpx2.AsyncClient:
        """A client that records what it sends by another one."""
        return httpx2.AsyncClient(transport=_Recorded(by, self))

    async def asked(self, request: RecordedRequest) -> int:
        """Keep a request; its number."""
        self._requests += 1
        line = replace(request, number=self._requests, times=self.clock.taken())
        await self.keep(line)
        return line.number

    async def keep(self, line: CassetteHeader | Line) -> None:
        """Write a line; what comes when the recording is over has no part in it.

        Raises:
            CassetteError: it cannot be written.
        """
        await asyncio.to_thread(self._write, line)

    async def close(self) -> None:
        """End the file."""
        await self.keep(CassetteEnd(times=self.clock.taken()))
        made, self._open = self._open, None
        if made is not None:
            made.close()

    def _made(self) -> FileIO:
        try:
            return FileIO(self._file, "x")
        except FileExistsError as error:
            raise CassetteError(
                f"{self._file} is there already: replay it, or remove it to record anew"
            ) from error
        except OSError as error:
            raise self._unwritable(error) from error

    def _write(self, line: CassetteHeader | Line) -> None:
        left = memoryview(written(line))
        try:
            with self._writing:
                while left and self._open is not None:
                    left = left[self._open.write(left) or 0 :]
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> CassetteError:
        return CassetteError(f"{self._file} cannot be written: {error.strerror}")


def asked(request: httpx2.Request, keys: Secrets) -> RecordedRequest:
    """A request as a cassette has it."""
    (content,) = keys.hidden_in((request.content,))
    return RecordedRequest(
        url=keys.hidden(without_secrets(str(request.url))),
        headers=sent(request.headers),
        content=content,
    )


class _Recorded(httpx2.AsyncBaseTransport):
    """Sends by a client, which has the proxies and certificates of any other, and records."""

    def __init__(self, client: httpx2.AsyncClient, recording: CassetteRecorder) -> None:
        self._client = client
        self._recording = recording

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        keys = Secrets.of(request.headers, str(request.url))
        request.headers["accept-encoding"] = "identity"  # so that the cassette can be read
        number = await self._recording.asked(asked(request, keys))
        came = _Coming(self._recording, RecordedResponse(number=number, end=LEFT), keys)
        try:
            response = await self._client.send(request, stream=True)
        except httpx2.TransportError as error:
            came.failed(error)
            await came.keep()
            raise
        except asyncio.CancelledError:
            await came.keep()
            raise
        came.began(response)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Heard(response, came),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._client.aclose()


@dataclass(slots=True)
class _Coming:
    """A response on its way into a cassette; its line is written when it is over."""

    recording: CassetteRecorder
    response: RecordedResponse
    keys: Secrets
    pieces: list[bytes] = field(default_factory=list[bytes])

    def began(self, response: httpx2.Response) -> None:
        """There is a response."""
        kept = received(response.headers)
        headers = {name: self.keys.hidden(value) for name, value in kept.items()}
        self.response = replace(self.response, status=response.status_code, headers=headers)

    def ended(self) -> None:
        """It came whole."""
        self.response = replace(self.response, end=WHOLE)

    def failed(self, error: httpx2.TransportError) -> None:
        """It broke off, or never came."""
        said = self.keys.hidden(str(error))
        self.response = replace(self.response, end=type(error).__name__, said=said)

    async def keep(self) -> None:
        """Write the line."""
        pieces = self.keys.hidden_in(tuple(self.pieces))
        await self.recording.keep(replace(self.response, pieces=pieces))


class _Heard(httpx2.AsyncByteStream):
    """A response's body, which is recorded while it is read."""

    def __init__(self, response: httpx2.Response, came: _Coming) -> None:
        self._response = response
        self._came = came

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._response.aiter_raw()) as pieces:
                async for piece in pieces:
                    self._came.pieces.append(piece)
                    yield piece
        except httpx2.TransportError as error:
            self._came.failed(error)
            raise
        self._came.ended()

    async def aclose(self) -> None:
        await self._response.aclose()
        await self._came.keep()


FINEST = 6
"""The decimals of a second that are kept."""


class RecordingClock:
    """A clock that keeps each time it tells, until they are taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.elapsed()
        self._loop: list[datetime] = []
        self._threads: list[datetime] = []
        self._elapsed: list[float] = []

    def now(self) -> datetime:
        """The time, which is kept."""
        now = self._clock.now()
        (self._loop if is_on_event_loop() else self._threads).append(now)
        return now

    def elapsed(self) -> float:
        """Seconds since the recording began, which are kept."""
        elapsed = round(self._clock.elapsed() - self._began, FINEST)
        if is_on_event_loop():
            self._elapsed.append(elapsed)
        return elapsed

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._clock.sleep(seconds)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Have `ring` called once so many seconds have passed."""
        return self._clock.alarm(seconds, ring)

    def new_id(self) -> str:
        """A name nobody had before."""
        return self._clock.new_id()

    def taken(self) -> ClockTimes:
        """What was told since this was last asked."""
        times = ClockTimes(
            loop=tuple(self._loop), threads=tuple(self._threads), elapsed=tuple(self._elapsed)
        )
        self._loop, self._threads, self._elapsed = [], [], []
        return times


def is_on_event_loop() -> bool:
    """Return whether the caller runs on an event loop, and not in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


SENT: Final = frozenset({"accept", "anthropic-beta", "anthropic-version", "content-type"})
RECEIVED: Final = frozenset(
    {"content-encoding", "content-type", "location", "request-id", "retry-after", "retry-after-ms"}
    | {"x-request-id", "x-should-retry"}
)
"""Beside these, whatever has `ratelimit` in its name."""
CLIENTS: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "host", "transfer-encoding", "user-agent"}
)
"""What any client sends: it is not kept, and no secret."""
HIDDEN = "…"


@dataclass(frozen=True, slots=True)
class Secrets:
    """What must not be read in a cassette."""

    texts: tuple[str, ...]

    @classmethod
    def of(cls, headers: Mapping[str, str], url: str) -> Secrets:
        """The keys among the headers of a request, of eight characters or more, and those in its URL."""
        others = {name: value for name, value in headers.items() if name not in SENT | CLIENTS}
        keys = (value.rpartition(" ")[2] for value in others.values())
        return cls((*(key for key in keys if len(key) >= SHORTEST), *secrets_in(url)))

    def hidden(self, text: str) -> str:
        """The text without them."""
        (bare,) = self.hidden_in((text.encode("utf-8", "surrogatepass"),))
        return bare.decode("utf-8", "surrogatepass")

    def hidden_in(self, pieces: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """The pieces; in one piece where a secret had to be taken out of them."""
        whole = b"".join(pieces)
        bare = whole
        for secret in self.texts:
            bare = _as_written(secret).sub(HIDDEN.encode(), bare)
        return pieces if bare == whole else (bare,)


@lru_cache(maxsize=64)
def _as_written(secret: str) -> re.Pattern[bytes]:
    """Return a pattern of a secret in any case, each character as itself or as a URL or JSON escapes it."""
    return re.compile(b"".join(map(_character, secret)), re.IGNORECASE)


def _character(one: str) -> bytes:
    plain = one.encode("utf-8", "surrogatepass")
    url = b"".join(b"%%(?:25)*+%02x" % byte for byte in plain)
    json = b"".join(rb"\\u%04x" % unit for unit in _code_units(one))
    return b"(?:%s|%s|%s)" % (rb"\\?" + re.escape(plain), url, json)


def _code_units(text: str) -> list[int]:
    """Return the UTF-16 code units of a text, as JSON escapes them."""
    data = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2)]


def sent(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request that are kept."""
    return {name: value for name, value in headers.items() if name in SENT}


def received(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a response that are kept."""
    return {
        name: value for name, value in headers.items() if name in RECEIVED or "ratelimit" in name
    }
