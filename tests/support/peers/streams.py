"""Replies before they are bytes: one JSON document, or a stream of server-sent events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from typing import Literal, TypeAlias

from loopline.models.json import Json, JsonObject, dumps
from tests.support.peers.http_server import Pause, Send, Step

APART = 0.02
"""Seconds between two packets that are to arrive one by one."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event; most of OpenAI's have no name."""

    data: str
    name: str = ""


def event(body: JsonObject, name: str = "") -> Event:
    return Event(dumps(body), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """How events lie on the wire; a reader of the format has to take each of these."""

    ending: Literal["\n", "\r\n", "\r"] = "\n"
    comment: str | None = None
    """Written as a comment line before each event, and once more within it."""
    blank_lines: int = 0
    """More than the one that ends an event."""
    space: bool = True
    """One space behind the colon of a field."""
    packets: Literal["events", "characters"] | int = "events"
    """What goes into one packet: an event, so many bytes, or no whole multi-byte character."""

    def lay(self, one: Event) -> bytes:
        colon = ": " if self.space else ":"
        comments = [] if self.comment is None else [f":{self.comment}"]
        name = [f"event{colon}{one.name}"] if one.name else []
        data = [f"data{colon}{line}" for line in one.data.split("\n")]
        lines = [*comments, *name, *comments, *data, *[""] * (1 + self.blank_lines)]
        return "".join(line + self.ending for line in lines).encode()

    def cut(self, data: bytes) -> list[bytes]:
        """The bytes packet by packet."""
        match self.packets:
            case "events":
                numbers = list[int]()
            case "characters":
                numbers = [at for at in range(len(data)) if data[at] & 0xC0 == 0x80]
            case size:
                numbers = list(range(size, len(data), size))
        return [data[start:end] for start, end in pairwise([0, *numbers, len(data)])]


PLAIN = Framing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    events: tuple[Event, ...]
    framing: Framing = PLAIN
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Reply: TypeAlias = Whole | Stream


def document(body: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Whole:
    return Whole(body=dumps(body).encode(), status=status, headers=headers or {})


def on_the_wire(reply: Reply) -> list[Step]:
    """The reply as HTTP: with its length, or chunked, one chunk an event."""
    match reply:
        case Whole():
            length = str(len(reply.body))
            head = _head(
                reply.status, reply.content_type, reply.headers, ("Content-Length", length)
            )
            return [Send(head, "head"), Send(reply.body, "body")]
        case Stream():
            chunked = ("Transfer-Encoding", "chunked")
            head = _head(200, "text/event-stream; charset=utf-8", reply.headers, chunked)
            chunks = [step for event in reply.events for step in _chunk(event, reply.framing)]
            return [Send(head, "head"), *chunks, Send(b"0\r\n\r\n", "body")]


def _chunk(one: Event, framing: Framing) -> Iterator[Step]:
    laid = framing.lay(one)
    *before, last = framing.cut(laid)
    opening = b"%x\r\n" % len(laid)
    for packet in before:
        yield Send(opening + packet, "packet")
        yield Pause(APART)
        opening = b""
    yield Send(opening + last + b"\r\n", "chunk")


def _head(status: int, kind: str, headers: Mapping[str, str], body: tuple[str, str]) -> bytes:
    fields = {"Content-Type": kind, **headers, body[0]: body[1]}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {_phrase(status)}\r\n{lines}\r\n".encode("latin-1")


def _phrase(status: int) -> str:
    known = {item.value: item.phrase for item in HTTPStatus}
    return known.get(status, "Overloaded" if status == 529 else "Unknown")


def pieces_of(text: str, pieces: int | tuple[int, ...]) -> list[str]:
    """The text in so many pieces of about one length, or cut at these places; none is empty."""
    match pieces:
        case int():
            count = max(1, min(pieces, len(text)))
            counts = [len(text) * at // count for at in range(1, count)]
        case _:
            counts = sorted({at for at in pieces if 0 < at < len(text)})
    return [text[start:end] for start, end in pairwise([0, *counts, len(text)]) if text]
