"""The file of a cassette: one JSON object a line, from which every byte can be restored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeAlias, TypeVar

from loopline.errors import CassetteError
from loopline.models import Json, JsonObject, as_object, dumps

VERSION = 1
COMPLETE, ABANDONED = "whole", "left"
"""How a response ends: it is complete, or nobody read on. Any other end is the name of an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTimes:
    """The times a clock told between two requests: on the event loop, and in other threads.

    `elapsed` are monotonic seconds since the beginning, on the event loop alone.
    """

    loop: tuple[datetime, ...] = ()
    threads: tuple[datetime, ...] = ()
    elapsed: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CassetteHeader:
    """The first line: when the run began, its model strings, and the variables of their base URLs."""

    at: datetime
    loopline: str = ""
    models: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A request as it was sent, without secrets; `times` are those since the request before."""

    url: str
    headers: Mapping[str, str]
    content: bytes
    number: int = 0
    times: ClockTimes = field(default_factory=ClockTimes)

    @property
    def body(self) -> Json:
        """The JSON of its content, None if there is none."""
        try:
            body: Json = json.loads(self.content)
        except ValueError:
            return None
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedResponse:
    """The response to the request of that number, in the pieces it came in; status 0 if none came.

    `said` is the message of the error that ended it.
    """

    number: int
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    pieces: tuple[bytes, ...] = ()
    end: str = COMPLETE
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CassetteEnd:
    """The last line, with the times since the last request."""

    times: ClockTimes


Line: TypeAlias = RecordedRequest | RecordedResponse | CassetteEnd


def encode_line(line: CassetteHeader | Line) -> bytes:
    """Return the line with its line end. Bytes that are no UTF-8 are escaped as lone surrogates."""
    return f"{dumps(_document(line))}\n".encode("utf-8", "backslashreplace")


def read_cassette(file: Path) -> tuple[CassetteHeader, list[Line]]:
    """Return the lines of a cassette; a last line that was cut off is left out.

    Raises:
        CassetteError: the file cannot be read, is no cassette, or one of a later version.
    """
    try:
        first, *lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise CassetteError(f"{file} cannot be replayed: {error.strerror}") from error
    header = _parse(file, 1, first, _decode_header)
    complete = lines[:-1]  # what no line end follows was cut off
    return header, [
        _parse(file, number, line, _decode_line) for number, line in enumerate(complete, 2)
    ]


T = TypeVar("T")


def _parse(file: Path, number: int, line: bytes, decode: Callable[[Json], T]) -> T:
    try:
        return decode(json.loads(line))
    except (ValueError, KeyError, TypeError) as error:
        raise CassetteError(f"{file}, line {number}: {error}") from error


def _document(line: CassetteHeader | Line) -> JsonObject:
    match line:
        case CassetteHeader():
            return {
                "type": "cassette",
                "version": VERSION,
                "loopline": line.loopline,
                "at": line.at.isoformat(),
                "models": list[Json](line.models),
                "settings": dict(line.settings),
            }
        case RecordedRequest():
            return {
                "type": "request",
                "number": line.number,
                "url": line.url,
                "headers": dict(line.headers),
                "clock": _clock(line.times),
                **_content(line),
            }
        case RecordedResponse():
            return {
                "type": "response",
                "number": line.number,
                "status": line.status,
                "headers": dict(line.headers),
                "pieces": [_text(piece) for piece in line.pieces],
                "end": line.end,
                "said": line.said,
            }
        case CassetteEnd():
            return {"type": "close", "clock": _clock(line.times)}


def _content(request: RecordedRequest) -> JsonObject:
    """Return the JSON of a request if that restores its bytes, else its text."""
    body = request.body
    is_exact = dumps(body).encode("utf-8", "surrogatepass") == request.content
    return {"body": body} if is_exact else {"text": _text(request.content)}


def _clock(times: ClockTimes) -> JsonObject:
    return {
        "loop": [time.isoformat() for time in times.loop],
        "threads": [time.isoformat() for time in times.threads],
        "elapsed": list[Json](times.elapsed),
    }


def _decode_header(document: Json) -> CassetteHeader:
    match document:
        case {"type": "cassette", "version": int(version)} if version != VERSION:
            raise ValueError(f"a cassette of version {version}, and this loopline reads {VERSION}")
        case {
            "type": "cassette",
            "loopline": str(loopline),
            "at": str(at),
            "models": list(models),
            "settings": dict(settings),
        }:
            return CassetteHeader(
                at=datetime.fromisoformat(at),
                loopline=loopline,
                models=tuple(map(_string, models)),
                settings=_strings(settings),
            )
        case _:
            raise ValueError("this is not how a cassette begins")


def _decode_line(document: Json) -> Line:
    match document:
        case {
            "type": "request",
            "number": int(number),
            "url": str(url),
            "headers": dict(headers),
            "clock": dict(clock),
        }:
            return RecordedRequest(
                number=number,
                url=url,
                headers=_strings(headers),
                content=_decode_content(as_object(document)),
                times=_decode_times(clock),
            )
        case {
            "type": "response",
            "number": int(number),
            "status": int(status),
            "headers": dict(headers),
            "pieces": list(pieces),
            "end": str(end),
            "said": str(said),
        }:
            return RecordedResponse(
                number=number,
                status=status,
                headers=_strings(headers),
                pieces=tuple(_bytes(_string(piece)) for piece in pieces),
                end=end,
                said=said,
            )
        case {"type": "close", "clock": dict(clock)}:
            return CassetteEnd(times=_decode_times(clock))
        case _:
            raise ValueError("this is no line of a cassette")


def _decode_content(request: JsonObject) -> bytes:
    if "text" in request:
        return _bytes(_string(request["text"]))
    return dumps(request["body"]).encode("utf-8", "surrogatepass")


def _decode_times(clock: Mapping[str, Json]) -> ClockTimes:
    def times(value: Json) -> tuple[datetime, ...]:
        return tuple(datetime.fromisoformat(_string(text)) for text in _list(value))

    elapsed = tuple(_seconds(value) for value in _list(clock["elapsed"]))
    return ClockTimes(loop=times(clock["loop"]), threads=times(clock["threads"]), elapsed=elapsed)


def _strings(values: Mapping[str, Json]) -> dict[str, str]:
    return {name: _string(value) for name, value in values.items()}


def _string(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _seconds(value: Json) -> float:
    if not isinstance(value, float):
        raise TypeError(f"{value!r} is no number of seconds")
    return value


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
