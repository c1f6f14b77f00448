"""Live messages: what the processes of a store send each other, as short texts."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import count
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, astuple

from loopline.events import Delta
from loopline.models import well_formed, well_formed_json
from loopline.timeline import ConversationKey

FRAGMENT = "~"
"""The first character of a part of a long message; all other messages are JSON and begin with `[`."""
HEADER_BYTES = 100
"""More bytes than the header of a part has."""
BYTES_OF_CHARACTER = 4
MOST_PARTS = 256
_SMALL_NUMBER = re.compile(r"[0-9]{1,3}")
MOST_PARTIAL_MESSAGES = 64
LARGEST_MESSAGE = 1_000_000
"""The most characters of a message; deltas that do not fit are left to the log."""
logger: logging.Logger = logging.getLogger("loopline")
S = TypeVar("S", bound=Struct)


class Interest(Struct, frozen=True, array_like=True, tag="interest"):
    """A process has listeners of these conversations, now or for some seconds more."""

    process: str
    conversations: list[str]


class Disinterest(Struct, frozen=True, array_like=True, tag="disinterest"):
    """A process has no more listeners of these conversations."""

    process: str
    conversations: list[str]


class Greeting(Struct, frozen=True, array_like=True, tag="greeting"):
    """A process has connected, and asks the others to repeat their interests."""

    process: str


class NewInput(Struct, frozen=True, array_like=True, tag="input"):
    """The log of a conversation has a new input of a user, or the conversation was forgotten."""

    process: str
    conversation: str


class KeysChanged(Struct, frozen=True, array_like=True, tag="keys"):
    """A key was revoked: servers check the keys of open streams at once."""

    process: str


class LiveDelta(Struct, frozen=True, array_like=True):
    """A delta, with the seq of the last block that its turn had published before it."""

    at: int
    type: str
    channel: str
    text: str = ""
    attempt: int = 1
    total: int = 0
    call_id: str = ""
    name: str = ""
    data: Any = None

    @classmethod
    def encode(cls, at: int, delta: Delta) -> LiveDelta:
        """Convert a delta; lone surrogates become escapes."""
        return cls(
            at=at,
            type=delta.type,
            channel=well_formed(delta.channel),
            text=well_formed(delta.text),
            attempt=delta.attempt,
            total=delta.total,
            call_id=well_formed(delta.call_id),
            name=well_formed(delta.name),
            data=well_formed_json(delta.data),
        )

    def decode(self) -> Delta | None:
        """Convert it back; None if its type is not one that a turn publishes."""
        if self.type not in _TYPES:
            return None
        values = asdict(self)
        del values["at"]
        return Delta(**values)


_TYPES = frozenset({"delta", "reset", "progress", "compaction", "pending", "custom"})


class TurnEvents(Struct, frozen=True, array_like=True, tag="events"):
    """Events of a running turn: its deltas, and the seq of its newest block, which is in the log.

    `run` has the term of the runner's lease, and a number that grows in its process. `number` counts the messages of a
    run without a gap.
    """

    process: str
    conversation: str
    run: tuple[int, int]
    number: int
    turn: int
    head: int
    deltas: list[LiveDelta]


LiveMessage = Interest | Disinterest | Greeting | NewInput | KeysChanged | TurnEvents
_DECODER: msgspec.json.Decoder[LiveMessage] = msgspec.json.Decoder(LiveMessage)
_ENCODER = msgspec.json.Encoder()


def conversation_digest(conversation: ConversationKey) -> str:
    """Return the name of a conversation in messages: a digest, from which its name cannot be read."""
    names = msgspec.json.encode(astuple(conversation))
    return blake2b(names, digest_size=16).hexdigest()


def encode_message(message: LiveMessage, limit_bytes: int, ids: Iterator[int]) -> list[str]:
    """Encode a message as texts of at most `limit_bytes` bytes in UTF-8; return no text if it is too long.

    `ids` number the long messages of the process.
    """
    encoded = _ENCODER.encode(message)
    text = encoded.decode()
    if len(encoded) <= limit_bytes:
        return [text]
    size = limit_bytes - HEADER_BYTES
    if len(encoded) != len(text):
        size //= BYTES_OF_CHARACTER
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    if len(text) > LARGEST_MESSAGE or len(parts) > MOST_PARTS:
        return []
    header = f"{FRAGMENT}{message.process} {next(ids)}"
    return [f"{header} {index} {len(parts)} {part}" for index, part in enumerate(parts)]


class MessageReader:
    """Decodes the messages of other processes, and joins the parts of long ones. Malformed texts are ignored."""

    def __init__(self) -> None:
        self._partial: OrderedDict[tuple[str, str], list[str]] = OrderedDict()

    def read(self, text: str) -> LiveMessage | None:
        """Return the message that a text completes; None for a part of a longer message and for a malformed text."""
        if text.startswith(FRAGMENT):
            text = self._join(text)
            if not text:
                return None
        try:
            return _DECODER.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            logger.debug("a malformed live message was ignored: %s", error)
            return None

    def _join(self, text: str) -> str:
        """Add a part of a long message; return the message after its last part, before that or after a loss ""."""
        process, _, numbered = text.removeprefix(FRAGMENT).partition(" ")
        header = numbered.split(" ", 3)
        if len(header) < 4 or not all(map(_SMALL_NUMBER.fullmatch, header[1:3])):
            return ""
        number, index, total, part = header
        parts = self._partial.pop((process, number), [])
        if int(index) != len(parts) or not 0 < int(total) <= MOST_PARTS:
            return ""  # a part was lost
        parts.append(part)
        if len(parts) == int(total):
            return "".join(parts)
        self._partial[process, number] = parts
        if len(self._partial) > MOST_PARTIAL_MESSAGES:
            self._partial.popitem(last=False)
        return ""


def key_change(limit_bytes: int) -> list[str]:
    """Return the texts that tell all servers of a store to check the keys of their open streams."""
    return encode_message(KeysChanged(""), limit_bytes, count())


def split_digests(digests: Sequence[str], size: int) -> Iterator[list[str]]:
    """Yield the digests in lists of at most `size`."""
    for start in range(0, len(digests), size):
        yield list(digests[start : start + size])
