"""The file of a cassette: one JSON object in each line, from which every byte can be restored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, ValidationError, convert, field, to_builtins
from msgspec.structs import fields as fields_of

from loopline.errors import CassetteError
from loopline.models import Json, JsonObject, as_object, dumps

VERSION = 1
COMPLETE, ABANDONED = "whole", "left"
"""The ends of a response: it was complete, or its reader stopped early. Any other end is the name of an error."""
BUILTIN_TYPES = (bytes, datetime)
"""The types that the JSON has as text: bytes with surrogate escapes, times in the ISO format."""


class ClockTimes(Struct, frozen=True, kw_only=True):
    """The times that a clock returned between two requests: on the event loop, and in other threads.

    `elapsed` are monotonic seconds since the recording began, on the event loop only.
    """

    loop: tuple[datetime, ...] = ()
    threads: tuple[datetime, ...] = ()
    elapsed: tuple[float, ...] = ()


class CassetteHeader(Struct, frozen=True, kw_only=True, tag="cassette"):
    """The first line: when the run began, its model strings, and the variables of their base URLs."""

    version: int = VERSION
    loopline: str = ""
    at: datetime
    models: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])


class RecordedRequest(Struct, frozen=True, kw_only=True, tag="request"):
    """A request as it was sent, without secrets; `times` are those since the request before."""

    number: int = 0
    url: str
    headers: Mapping[str, str]
    times: ClockTimes = field(default_factory=ClockTimes, name="clock")
    content: bytes

    @property
    def body(self) -> Json:
        """The content as JSON, or None if it is not JSON."""
        try:
            body: Json = json.loads(self.content)
        except ValueError:
            return None
        return body


class RecordedResponse(Struct, frozen=True, kw_only=True, tag="response"):
    """The response to the request with the same number, in the pieces that were received.

    `status` is 0 if no response was received. `said` is the message of the error that ended it.
    """

    number: int
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    pieces: tuple[bytes, ...] = ()
    end: str = COMPLETE
    said: str = ""


class CassetteEnd(Struct, frozen=True, kw_only=True, tag="close"):
    """The last line, with the times since the last request."""

    times: ClockTimes = field(name="clock")


Line: TypeAlias = RecordedRequest | RecordedResponse | CassetteEnd
AnyLine: TypeAlias = CassetteHeader | Line


def encode_line(line: AnyLine) -> bytes:
    """Return the line with its line end. Bytes that are not UTF-8 are escaped as lone surrogates.

    The content of a request is stored as JSON in `body` if that restores its bytes, or else as text in `text`.
    """
    document = to_builtins(line, builtin_types=BUILTIN_TYPES)
    if isinstance(line, RecordedRequest):
        del document["content"]
        body = line.body
        is_exact = dumps(body).encode("utf-8", "surrogatepass") == line.content
        document |= {"body": body} if is_exact else {"text": line.content}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=_to_text)
    return f"{text}\n".encode("utf-8", "backslashreplace")


def read_cassette(file: Path) -> tuple[CassetteHeader, list[Line]]:
    """Return the header and the other lines of a cassette, without a last line that was cut off.

    Raises:
        CassetteError: the file cannot be read, is not a cassette, or is a cassette of another version.
    """
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise CassetteError(f"{file} cannot be replayed: {error.strerror}") from error
    header, *rest = (
        _parse(file, number, line) for number, line in enumerate(lines[:-1] or lines, 1)
    )
    if not isinstance(header, CassetteHeader):
        raise CassetteError(f"{file}, line 1: this is not the first line of a cassette")
    return header, [line for line in rest if not isinstance(line, CassetteHeader)]


def _parse(file: Path, number: int, line: bytes) -> AnyLine:
    """Parse one line of a cassette.

    Raises a CassetteError with the file and line number if the line is not valid or has another version.
    """
    try:
        document = as_object(json.loads(line))
        match document:
            case {"type": "cassette", "version": int(version)} if version != VERSION:
                raise ValueError(
                    f"the cassette has version {version}, and this loopline reads {VERSION}"
                )
            case _:
                return _decode(document)
    except ValidationError as error:
        position = "the first line" if number == 1 else "a line"
        raise CassetteError(
            f"{file}, line {number}: this is not {position} of a cassette: {error}"
        ) from error
    except (ValueError, TypeError) as error:
        raise CassetteError(f"{file}, line {number}: {error}") from error


def _decode(document: JsonObject) -> AnyLine:
    """Convert the JSON of a line to its object, with texts and the JSON body of a request as bytes.

    Raises:
        ValidationError: a field is missing or has another type.
    """
    fields: dict[str, object] = {**document}
    match document:
        case {"type": "request", "text": str(text)}:
            fields["content"] = _to_bytes(text)
        case {"type": "request", "body": body}:
            fields["content"] = dumps(body).encode("utf-8", "surrogatepass")
        case {"type": "response", "pieces": [*pieces]}:
            fields["pieces"] = [_to_bytes(piece) for piece in pieces if isinstance(piece, str)]
        case _:
            pass
    line: AnyLine = convert(fields, AnyLine, builtin_types=(bytes,))
    missing = {each.encode_name for each in fields_of(line)} - fields.keys()
    if missing:
        raise ValidationError(f"without {', '.join(sorted(missing))}")
    return line


def _to_text(value: object) -> str:
    """Encode bytes as UTF-8 with surrogate escapes, and a time as ISO text; raise a TypeError for other values."""
    match value:
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case datetime():
            return value.isoformat()
        case _:
            raise TypeError(f"{type(value).__name__} cannot be recorded")


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
