"""Recording a cassette: requests and responses are written to a file as they travel, without secrets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from importlib.metadata import version
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Final

import httpx2
from msgspec.structs import replace

from loopline.clock import Alarm, Clock
from loopline.errors import CassetteError
from loopline.models.safe_text import MIN_SECRET_CHARACTERS, secrets_in, without_secrets
from loopline.providers.cassettes.cassette_file import (
    ABANDONED,
    COMPLETE,
    CassetteEnd,
    CassetteHeader,
    ClockTimes,
    Line,
    RecordedRequest,
    RecordedResponse,
    encode_line,
)

FINEST = 6
"""The decimals of a second that are recorded."""
REQUEST_HEADERS: Final = frozenset(
    {"accept", "anthropic-beta", "anthropic-version", "content-type"}
)
"""The headers of a request that are recorded."""
RESPONSE_HEADERS: Final = frozenset(
    {"content-encoding", "content-type", "location", "request-id", "retry-after", "retry-after-ms"}
    | {"x-request-id", "x-should-retry"}
)
"""The headers of a response that are recorded, beside those with `ratelimit` in their names."""
CLIENT_HEADERS: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "host", "transfer-encoding", "user-agent"}
)
"""Headers that any client sends: they are not recorded, and no secrets."""
HIDDEN = "…"


class CassetteRecorder:
    """A cassette that is being written; `clock` records the times it tells, for the replay."""

    def __init__(
        self, file: Path, clock: Clock, models: Sequence[str], settings: Mapping[str, str]
    ) -> None:
        """`models` are the chain's model strings, `settings` the variables of their base URLs."""
        self.clock: RecordingClock = RecordingClock(clock)
        self._path = file
        self._models, self._settings = tuple(models), settings
        self._requests = 0
        self._writing = Lock()
        self._file: FileIO | None = None

    async def begin(self) -> None:
        """Create the file, and record times from here on: earlier ones depend on the surroundings.

        Raises:
            CassetteError: the file exists already, or cannot be written.
        """
        header = CassetteHeader(
            at=self.clock.now(),
            loopline=version("loopline"),
            models=self._models,
            settings=self._settings,
        )
        self._file = await asyncio.to_thread(self._create)
        await self.write(header)
        self.clock.take_times()

    def client(self, sender: httpx2.AsyncClient) -> httpx2.AsyncClient:
        """Return a client that records what it sends by another one."""
        return httpx2.AsyncClient(transport=_RecordingTransport(sender, self))

    async def write_request(self, request: RecordedRequest) -> int:
        """Write a request and return its number."""
        self._requests += 1
        line = replace(request, number=self._requests, times=self.clock.take_times())
        await self.write(line)
        return line.number

    async def write(self, line: CassetteHeader | Line) -> None:
        """Write a line; nothing is written once the recording is over.

        Raises:
            CassetteError: it cannot be written.
        """
        await asyncio.to_thread(self._write, line)

    async def close(self) -> None:
        """End the file."""
        await self.write(CassetteEnd(times=self.clock.take_times()))
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _create(self) -> FileIO:
        try:
            return FileIO(self._path, "x")
        except FileExistsError as error:
            raise CassetteError(
                f"{self._path} exists already: replay it, or remove it to record anew"
            ) from error
        except OSError as error:
            raise self._unwritable(error) from error

    def _write(self, line: CassetteHeader | Line) -> None:
        unwritten = memoryview(encode_line(line))
        try:
            with self._writing:
                while unwritten and self._file is not None:
                    unwritten = unwritten[self._file.write(unwritten) or 0 :]
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> CassetteError:
        return CassetteError(f"{self._path} cannot be written: {error.strerror}")


class RecordingClock:
    """A clock that records each time it tells, until the times are taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = clock.elapsed()
        self._loop: list[datetime] = []
        self._threads: list[datetime] = []
        self._elapsed: list[float] = []

    def now(self) -> datetime:
        """Return the time, which is recorded."""
        now = self._clock.now()
        (self._loop if is_on_event_loop() else self._threads).append(now)
        return now

    def elapsed(self) -> float:
        """Return the seconds since the recording began, which are recorded."""
        elapsed = round(self._clock.elapsed() - self._start, FINEST)
        if is_on_event_loop():
            self._elapsed.append(elapsed)
        return elapsed

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._clock.sleep(seconds)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Call `ring` once after so many seconds."""
        return self._clock.alarm(seconds, ring)

    def new_id(self) -> str:
        """Return a new unique name."""
        return self._clock.new_id()

    def take_times(self) -> ClockTimes:
        """Return the times told since the last call."""
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


@dataclass(frozen=True, slots=True)
class Secrets:
    """The texts that must not be readable in a cassette."""

    texts: tuple[str, ...]

    @classmethod
    def of(cls, request: httpx2.Request) -> Secrets:
        """Return the keys among the headers of a request, if they are long enough, and those in its URL."""
        harmless = REQUEST_HEADERS | CLIENT_HEADERS
        values = (value for name, value in request.headers.items() if name not in harmless)
        keys = (value.rpartition(" ")[2] for value in values)
        long_keys = (key for key in keys if len(key) >= MIN_SECRET_CHARACTERS)
        return cls((*long_keys, *secrets_in(str(request.url))))

    def hide(self, text: str) -> str:
        """Return the text without the secrets."""
        (redacted,) = self.hide_in((text.encode("utf-8", "surrogatepass"),))
        return redacted.decode("utf-8", "surrogatepass")

    def hide_in(self, pieces: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return the pieces without the secrets; as one piece if any was taken out."""
        content = redacted = b"".join(pieces)
        for secret in self.texts:
            redacted = _secret_pattern(secret).sub(HIDDEN.encode(), redacted)
        return pieces if redacted == content else (redacted,)


@lru_cache(maxsize=64)
def _secret_pattern(secret: str) -> re.Pattern[bytes]:
    """Return a pattern of a secret in any case, each character as itself or as a URL or JSON escapes it."""
    return re.compile(b"".join(map(_character_pattern, secret)), re.IGNORECASE)


def _character_pattern(character: str) -> bytes:
    plain = character.encode("utf-8", "surrogatepass")
    url = b"".join(b"%%(?:25)*+%02x" % byte for byte in plain)
    utf_16 = character.encode("utf-16-be", "surrogatepass")
    units = (int.from_bytes(utf_16[at : at + 2]) for at in range(0, len(utf_16), 2))
    json = b"".join(rb"\\u%04x" % unit for unit in units)
    return b"(?:%s|%s|%s)" % (rb"\\?" + re.escape(plain), url, json)


def recorded_request(request: httpx2.Request) -> RecordedRequest:
    """Return a request as a cassette has it."""
    secrets = Secrets.of(request)
    (content,) = secrets.hide_in((request.content,))
    headers = request.headers.items()
    return RecordedRequest(
        url=secrets.hide(without_secrets(str(request.url))),
        headers={name: value for name, value in headers if name in REQUEST_HEADERS},
        content=content,
    )


class _RecordingTransport(httpx2.AsyncBaseTransport):
    """Sends by a client, with its proxies and certificates, and records."""

    def __init__(self, client: httpx2.AsyncClient, recorder: CassetteRecorder) -> None:
        self._client = client
        self._recorder = recorder

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        secrets = Secrets.of(request)
        request.headers["accept-encoding"] = "identity"  # so that people can read the cassette
        number = await self._recorder.write_request(recorded_request(request))
        line = RecordedResponse(number=number, end=ABANDONED)
        try:
            response = await self._client.send(request, stream=True)
        except httpx2.TransportError as error:
            await self._recorder.write(_failed(line, error, secrets))
            raise
        except asyncio.CancelledError:
            await self._recorder.write(line)
            raise
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_RecordedStream(response, self._recorder, line, secrets),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._client.aclose()


class _RecordedStream(httpx2.AsyncByteStream):
    """A response's body, which is recorded while it is read; the line is written when it is over."""

    def __init__(
        self,
        response: httpx2.Response,
        recorder: CassetteRecorder,
        line: RecordedResponse,
        secrets: Secrets,
    ) -> None:
        headers = {
            name: secrets.hide(value)
            for name, value in response.headers.items()
            if name in RESPONSE_HEADERS or "ratelimit" in name
        }
        self._line = replace(line, status=response.status_code, headers=headers)
        self._response = response
        self._recorder = recorder
        self._secrets = secrets
        self._pieces: list[bytes] = []

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._response.aiter_raw()) as pieces:
                async for piece in pieces:
                    self._pieces.append(piece)
                    yield piece
        except httpx2.TransportError as error:
            self._line = _failed(self._line, error, self._secrets)
            raise
        self._line = replace(self._line, end=COMPLETE)

    async def aclose(self) -> None:
        await self._response.aclose()
        pieces = self._secrets.hide_in(tuple(self._pieces))
        await self._recorder.write(replace(self._line, pieces=pieces))


def _failed(
    line: RecordedResponse, error: httpx2.TransportError, secrets: Secrets
) -> RecordedResponse:
    """Return the line with the error that ended the response, or came in its place."""
    return replace(line, end=type(error).__name__, said=secrets.hide(str(error)))
