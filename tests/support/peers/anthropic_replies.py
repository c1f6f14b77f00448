"""What an Anthropic-like server is made to say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

from loopline.models.json import Json, JsonObject
from tests.support.peers.behaviors import Speech
from tests.support.peers.call_replies import Call
from tests.support.peers.streams import PLAIN, Framing, pieces_of

Stop: TypeAlias = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
]


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """A thinking block; its text is empty where a model keeps it to itself, its signature never."""

    text: str
    signature: str = "c2lnbmVk"


@dataclass(frozen=True, slots=True)
class Redacted:
    """A thinking block that only the provider can read."""

    data: str = "c2VhbGVk"


Block: TypeAlias = Text | Thinking | Redacted | Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens; `read` and `written` are none of the input's, `thinking` part of the output's."""

    input: int = 11
    output: int = 7
    read: int = 0
    written: int = 0
    written_1h: int = 0
    thinking: int = 0

    def told(self) -> JsonObject:
        return {
            "input_tokens": self.input,
            "cache_creation_input_tokens": self.written + self.written_1h,
            "cache_read_input_tokens": self.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.written,
                "ephemeral_1h_input_tokens": self.written_1h,
            },
            "output_tokens": self.output,
            "output_tokens_details": {"thinking_tokens": self.thinking},
            "service_tier": "standard",
        }

    def told_last(self) -> JsonObject:
        """As the message_delta of a stream has it, in totals."""
        told = self.told()
        del told["cache_creation"], told["service_tier"]
        return told


COUNTED = Usage()


@dataclass(frozen=True, slots=True)
class Says(Speech):
    """A reply of a model: thinking, text, calls, then `more` in its own order.

    Each part comes in so many pieces or cut at these places. Without `stop` it is "tool_use" with
    calls, else "end_turn". `refusal` explains a stop for that reason.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinking: tuple[Thinking | Redacted, ...] = ()
    more: tuple[Block, ...] = ()
    usage: Usage = COUNTED
    stop: Stop | None = None
    stop_sequence: str | None = None
    refusal: str | None = None
    pieces: int | tuple[int, ...] = 3
    whole_arguments: bool = False
    """A call's input comes in one delta."""
    pings: int = 1
    framing: Framing = PLAIN

    @property
    def blocks(self) -> tuple[Block, ...]:
        text = (Text(self.text),) if self.text else ()
        return (*self.thinking, *text, *self.calls, *self.more)

    @property
    def stopped(self) -> Stop:
        calls = any(isinstance(block, Call) for block in self.blocks)
        return self.stop or ("tool_use" if calls else "end_turn")

    def cut(self, text: str) -> list[str]:
        return pieces_of(text, self.pieces)


def block_of(block: Block) -> JsonObject:
    """The block as a message has it; a call whose input is not JSON has none."""
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case Thinking():
            return {"type": "thinking", "thinking": block.text, "signature": block.signature}
        case Redacted():
            return {"type": "redacted_thinking", "data": block.data}
        case Call():
            record: JsonObject = {"type": "tool_use", "id": block.id, "name": block.name}
            return {**record, "input": _input(block.arguments)}


def _input(arguments: str) -> Json:
    try:
        value: Json = json.loads(arguments)
    except ValueError:
        value = {}
    return value
