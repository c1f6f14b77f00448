"""Records a cassette: requests and responses are written to a file without secrets while they are transferred."""

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
from loopline.models.safe_text import MIN_SECRET_CHARACTERS, remove_secrets, secrets_in
from loopline.providers.cassettes import cassette_file

DECIMALS = 6
"""The decimals of the recorded seconds."""
REQUEST_HEADERS: Final = frozenset(
    {"accept", "anthropic-beta", "anthropic-version", "content-type"}
)
"""The headers of a request that are recorded."""
RESPONSE_HEADERS: Final = frozenset(
    {"content-encoding", "content-type", "location", "request-id", "retry-after", "retry-after-ms"}
    | {"x-request-id", "x-should-retry"}
)
"""The headers of a response that are recorded, in addition to headers with `ratelimit` in their names."""
CLIENT_HEADERS: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "host", "transfer-encoding", "user-agent"}
)
"""Headers that every client sends: they are not recorded, and are not secret."""
HIDDEN = "…"


class CassetteRecorder:
    """Records a cassette; `clock` records the times that it returns, for the replay."""

    def __init__(
        self, file: Path, clock: Clock, models: Sequence[str], settings: Mapping[str, str]
    ) -> None:
        """`models` are the model strings of the chain, `settings` the base URLs by their variables."""
        self.clock: RecordingClock = RecordingClock(clock)
        self._path = file
        self._models = tuple(models)
        self._settings = settings
        self._requests = 0
        self._writing = Lock()
        self._file: FileIO | None = None

    async def begin(self) -> None:
        """Create the file and start to record times; times before this call are not reproducible.

        Raises:
            CassetteError: the file exists, or cannot be written.
        """
        header = cassette_file.CassetteHeader(
            at=self.clock.now(),
            loopline=version("loopline"),
            models=self._models,
            settings=self._settings,
        )
        self._file = await asyncio.to_thread(self._create)
        await self.write(header)
        self.clock.take_times()

    def client(self, sender: httpx2.AsyncClient) -> httpx2.AsyncClient:
        """Return a client that sends through `sender`, and records each request and response."""
        return httpx2.AsyncClient(transport=_RecordingTransport(sender, self))

    async def write_request(self, request: cassette_file.RecordedRequest) -> int:
        """Write a request with the times since the previous one, and return its number, from 1."""
        self._requests += 1
        line = replace(request, number=self._requests, times=self.clock.take_times())
        await self.write(line)
        return line.number

    async def write(self, line: cassette_file.CassetteHeader | cassette_file.Line) -> None:
        """Write a line to the file. After `close` this has no effect.

        Raises:
            CassetteError: the file cannot be written.
        """
        await asyncio.to_thread(self._write, line)

    async def close(self) -> None:
        """Write the last line and close the file; after a second call nothing is written.

        Raises:
            CassetteError: the file cannot be written.
        """
        await self.write(cassette_file.CassetteEnd(times=self.clock.take_times()))
        if self._file is not None:
            self._file.close()
            self._file = None

    def _create(self) -> FileIO:
        """Create the file in a folder that exists; raise a CassetteError if the file exists or cannot be written."""
        try:
            return FileIO(self._path, "x")
        except FileExistsError as error:
            raise CassetteError(
                f"{self._path} exists: replay it, or remove it to record again"
            ) from error
        except OSError as error:
            raise self._unwritable(error) from error

    def _write(self, line: cassette_file.CassetteHeader | cassette_file.Line) -> None:
        """Write a line if the file is open; this blocks. Raises a CassetteError if it cannot be written."""
        unwritten = memoryview(cassette_file.encode_line(line))
        try:
            with self._writing:
                while unwritten and self._file is not None:
                    unwritten = unwritten[self._file.write(unwritten) or 0 :]
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> CassetteError:
        return CassetteError(f"{self._path} cannot be written: {error.strerror}")


class RecordingClock:
    """A clock that records each time that it returns, until `take_times` is called."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = clock.elapsed()
        self._loop: list[datetime] = []
        self._threads: list[datetime] = []
        self._elapsed: list[float] = []

    def now(self) -> datetime:
        """Return the current time, and record it."""
        now = self._clock.now()
        (self._loop if is_on_event_loop() else self._threads).append(now)
        return now

    def elapsed(self) -> float:
        """Return the seconds since the recording began, and record them if the caller is on an event loop."""
        elapsed = round(self._clock.elapsed() - self._start, DECIMALS)
        if is_on_event_loop():
            self._elapsed.append(elapsed)
        return elapsed

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._clock.sleep(seconds)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Call `ring` once after this number of seconds."""
        return self._clock.alarm(seconds, ring)

    def new_id(self) -> str:
        """Return a new unique name."""
        return self._clock.new_id()

    def take_times(self) -> cassette_file.ClockTimes:
        """Return the times that were recorded since the last call."""
        times = cassette_file.ClockTimes(
            loop=tuple(self._loop), threads=tuple(self._threads), elapsed=tuple(self._elapsed)
        )
        self._loop = []
        self._threads = []
        self._elapsed = []
        return times


def is_on_event_loop() -> bool:
    """Return whether the current thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Secrets:
    """The texts that are removed from a cassette."""

    texts: tuple[str, ...]

    @classmethod
    def of(cls, request: httpx2.Request) -> Secrets:
        """Return the secrets of a request: long values of headers that are not known to be harmless, and keys in the URL."""
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
        """Return the pieces with each secret replaced by `…`; joined to one piece if a secret was replaced."""
        content = redacted = b"".join(pieces)
        for secret in self.texts:
            redacted = _secret_pattern(secret).sub(HIDDEN.encode(), redacted)
        return pieces if redacted == content else (redacted,)


@lru_cache(maxsize=64)
def _secret_pattern(secret: str) -> re.Pattern[bytes]:
    """Return a pattern that matches a secret in any case, with characters escaped for URLs or JSON."""
    return re.compile(b"".join(map(_character_pattern, secret)), re.IGNORECASE)


def _character_pattern(character: str) -> bytes:
    """Return a pattern for a character: plain or after a backslash, URL-encoded once or more, or JSON-escaped."""
    plain = character.encode("utf-8", "surrogatepass")
    url = b"".join(b"%%(?:25)*+%02x" % byte for byte in plain)
    utf_16 = character.encode("utf-16-be", "surrogatepass")
    units = (int.from_bytes(utf_16[at : at + 2]) for at in range(0, len(utf_16), 2))
    json = b"".join(rb"\\u%04x" % unit for unit in units)
    return b"(?:%s|%s|%s)" % (rb"\\?" + re.escape(plain), url, json)


def record_request(request: httpx2.Request) -> cassette_file.RecordedRequest:
    """Return the recorded form of a request, without secrets and with only the headers in `REQUEST_HEADERS`."""
    secrets = Secrets.of(request)
    (content,) = secrets.hide_in((request.content,))
    headers = request.headers.items()
    return cassette_file.RecordedRequest(
        url=secrets.hide(remove_secrets(str(request.url))),
        headers={name: value for name, value in headers if name in REQUEST_HEADERS},
        content=content,
    )


class _RecordingTransport(httpx2.AsyncBaseTransport):
    """An HTTP transport that sends through a client, with its proxies and certificates, and records."""

    def __init__(self, client: httpx2.AsyncClient, recorder: CassetteRecorder) -> None:
        self._client = client
        self._recorder = recorder

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Record the request, send it without compression, and return a response that is recorded while it is read.

        A transport error or a cancellation before the response is recorded and raised again.
        """
        secrets = Secrets.of(request)
        request.headers["accept-encoding"] = (
            "identity"  # compressed pieces would not be readable in the file
        )
        number = await self._recorder.write_request(record_request(request))
        line = cassette_file.RecordedResponse(number=number, end=cassette_file.ABANDONED)
        try:
            response = await self._client.send(request, stream=True)
        except httpx2.TransportError as error:
            await self._recorder.write(_add_error(line, error, secrets))
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
    """The body of a response, which is recorded while it is received; its line is written when it is closed."""

    def __init__(
        self,
        response: httpx2.Response,
        recorder: CassetteRecorder,
        line: cassette_file.RecordedResponse,
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
            self._line = _add_error(self._line, error, self._secrets)
            raise
        self._line = replace(self._line, end=cassette_file.COMPLETE)

    async def aclose(self) -> None:
        await self._response.aclose()
        pieces = self._secrets.hide_in(tuple(self._pieces))
        await self._recorder.write(replace(self._line, pieces=pieces))


def _add_error(
    line: cassette_file.RecordedResponse, error: httpx2.TransportError, secrets: Secrets
) -> cassette_file.RecordedResponse:
    """Return the line with the error that ended or replaced the response."""
    return replace(line, end=type(error).__name__, said=secrets.hide(str(error)))
