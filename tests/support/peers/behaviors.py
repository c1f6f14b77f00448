"""What a peer does with a request: it says something, it refuses, or something goes wrong on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeAlias, TypeVar, final

from loopline.models.json import JsonObject
from tests.support.peers import streams
from tests.support.peers.http_server import Fin, Pause, Request, Reset, Respond, Send, Step


class Speech:
    """What a model says, in the nouns of a vendor."""

    __slots__ = ()


S = TypeVar("S", bound=Speech)
SayT_contra = TypeVar("SayT_contra", bound=Speech, contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a vendor reports: its word for the kind, its words for people; empty for the usual.

    `nested` puts both into an object of their own where OpenAI documents an event without one, and
    is seen to send one with it.
    """

    kind: str = ""
    message: str = ""
    nested: bool = False


USUAL = Fault()


class Vendor(Protocol[SayT_contra]):
    def refuses(self, asked: Request) -> streams.Reply | None:
        """What is answered to a request that it does not take; the script waits for the next."""
        ...

    def reply(self, says: SayT_contra, asked: Request) -> streams.Reply: ...

    def error(self, status: int, fault: Fault) -> JsonObject: ...

    def broken_off(self, fault: Fault, asked: Request, at: int) -> streams.Event:
        """The event of that number, by which a stream that has begun fails."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Status:
    """Refuse with this code; without a body, with the vendor's own for the code and the fault."""

    code: int
    body: JsonObject | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    fault: Fault = USUAL


@final
@dataclass(frozen=True, slots=True)
class Silence(Generic[S]):
    """Fall silent for `seconds`, before the head or behind so many chunks, then go on."""

    of: Behaviour[S]
    seconds: float = math.inf
    after_chunks: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Cut(Generic[S]):
    """Reset the connection behind so many bytes of the answer, its head among them, or chunks."""

    of: Behaviour[S]
    after_bytes: int | None = None
    after_chunks: int | None = None


@final
@dataclass(frozen=True, slots=True)
class HalfClosed(Generic[S]):
    """Write no more behind so many chunks, or behind the whole answer, and go on listening."""

    of: Behaviour[S]
    after_chunks: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Malformed(Generic[S]):
    """Say it, with JSON that breaks off in the event of this number; the rest follows."""

    of: S
    chunk: int = 1


@final
@dataclass(frozen=True, slots=True)
class BrokenOff(Generic[S]):
    """Say it as far as so many chunks, then report the fault and end; unstreamed, only report it."""

    of: S
    after_chunks: int = 2
    fault: Fault = USUAL


Behaviour: TypeAlias = (
    "S | Status | Silence[S] | Cut[S] | HalfClosed[S] | Malformed[S] | BrokenOff[S]"
)


def answering(behaviours: Sequence[Behaviour[S]], vendor: Vendor[S]) -> Respond:
    """One behaviour a request that is taken; then the last one again and again."""
    if not behaviours:
        raise ValueError("a peer does something: give it at least one behaviour")
    remaining_behaviours = list(reversed(behaviours))

    def respond(asked: Request) -> Sequence[Step]:
        refused = vendor.refuses(asked)
        if refused is not None:
            return streams.on_the_wire(refused)
        return steps(
            remaining_behaviours.pop()
            if len(remaining_behaviours) > 1
            else remaining_behaviours[0],
            asked,
            vendor,
        )

    return respond


def steps(behaviour: Behaviour[S], asked: Request, vendor: Vendor[S]) -> list[Step]:
    match behaviour:
        case Status():
            return streams.on_the_wire(_refusal(behaviour, vendor))
        case Silence():
            inner = steps(behaviour.of, asked, vendor)
            at = 0 if behaviour.after_chunks is None else _behind(inner, behaviour.after_chunks)
            return [*inner[:at], Pause(behaviour.seconds), *inner[at:]]
        case Cut():
            inner = steps(behaviour.of, asked, vendor)
            return [*_kept(behaviour, inner), Pause(streams.APART), Reset()]
        case HalfClosed():
            inner = steps(behaviour.of, asked, vendor)
            chunks = behaviour.after_chunks
            return [*(inner if chunks is None else inner[: _behind(inner, chunks)]), Fin()]
        case Malformed():
            return streams.on_the_wire(
                _malformed(vendor.reply(behaviour.of, asked), behaviour.chunk)
            )
        case BrokenOff():
            return streams.on_the_wire(_broken_off(behaviour, asked, vendor))
        case _:
            return streams.on_the_wire(vendor.reply(behaviour, asked))


def _refusal(status: Status, vendor: Vendor[S]) -> streams.Whole:
    match status.body:
        case bytes() as raw:
            kind = "text/plain; charset=utf-8"
            headers = status.headers
            return streams.Whole(body=raw, status=status.code, headers=headers, content_type=kind)
        case None:
            return streams.document(
                vendor.error(status.code, status.fault), status.code, status.headers
            )
        case body:
            return streams.document(body, status.code, status.headers)


def _malformed(reply: streams.Reply, at: int) -> streams.Reply:
    match reply:
        case streams.Whole():
            return replace(reply, body=reply.body[: len(reply.body) // 2])
        case streams.Stream():
            event = reply.events[at]
            broken = replace(event, data=event.data[: len(event.data) // 2])
            return replace(reply, events=(*reply.events[:at], broken, *reply.events[at + 1 :]))


def _broken_off(behaviour: BrokenOff[S], asked: Request, vendor: Vendor[S]) -> streams.Reply:
    reply = vendor.reply(behaviour.of, asked)
    match reply:
        case streams.Whole():
            return streams.document(vendor.error(500, behaviour.fault), 500)
        case streams.Stream():
            events = reply.events[: behaviour.after_chunks]
            failure = vendor.broken_off(behaviour.fault, asked, len(events))
            return replace(reply, events=(*events, failure))


def _kept(cut: Cut[S], inner: list[Step]) -> list[Step]:
    """What goes out before the cut."""
    if cut.after_chunks is not None:
        return inner[: _behind(inner, cut.after_chunks)]
    return _first(inner, cut.after_bytes or 0)


def _behind(inner: Sequence[Step], chunks: int) -> int:
    """The place behind so many chunks; behind the head where none are asked for."""
    places = [
        at
        for at, step in enumerate(inner, 1)
        if isinstance(step, Send) and step.ends in {"head", "chunk"}
    ]
    if chunks >= len(places):
        raise ValueError(f"behind chunk {chunks} is no place: this answer has {len(places) - 1}")
    return places[chunks]


def _first(inner: Sequence[Step], size: int) -> list[Step]:
    """As much of it as has so many bytes."""
    taken: list[Step] = []
    for step in inner:
        match step:
            case Send() if len(step.data) > size:
                return [*taken, Send(step.data[:size], "packet")]
            case Send():
                size -= len(step.data)
            case _:
                pass
        taken.append(step)
    return taken
