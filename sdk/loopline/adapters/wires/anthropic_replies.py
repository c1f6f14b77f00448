"""Replies of Anthropic's messages, as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopline.adapters.wires.bytes import Growing, a_count, a_list, a_text, an_object, tool_name
from loopline.adapters.wires.failing import Account, failed_midway, piece
from loopline.adapters.wires.wired import Coming
from loopline.errors import ModelRequestError
from loopline.models import (
    BrokenJson,
    Echo,
    Json,
    JsonObject,
    StopReason,
    TextDelta,
    Usage,
    whole_object,
)

WIRE = "anthropic"
THOUGHTS = frozenset({"thinking", "redacted_thinking"})
_STOPS: Mapping[str, StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_use",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


_SERVED = frozenset({"server_tool_use", "mcp_tool_use"})
"""Calls that the server has made itself; their results are blocks of the same reply."""
_INPUT = " input"
"""Where the pieces of such a call's input are kept; no field is called so."""


class ComingMessage(Coming):
    """A reply on its way."""

    def __init__(self, offered: tuple[str, ...], account: Account) -> None:
        super().__init__(offered, account)
        self._stop = ""
        self._blocks: dict[int, Growing] = {}

    def take(self, data: str) -> Sequence[TextDelta]:
        """What an event adds."""
        event = piece(data, self.account)
        match event.get("type"):
            case "message_start":
                self._count(an_object(an_object(event.get("message")).get("usage")))
            case "content_block_start":
                return self._begun(event.get("index"), an_object(event.get("content_block")))
            case "content_block_delta":
                return self._added(event.get("index"), an_object(event.get("delta")))
            case "message_delta":
                said = an_object(event.get("delta")).get("stop_reason")
                self._stop = a_text(said) or self._stop
                self._count(an_object(event.get("usage")))
            case "message_stop":
                self._end()
            case "error":
                raise failed_midway(event, self.account)
            case _:  # a ping, or what is newer than this
                pass
        return ()

    def take_document(self, data: str) -> Sequence[TextDelta]:
        """What a whole message says."""
        message = piece(data, self.account)
        blocks = a_list(message.get("content"))
        if message.get("type") != "message" or not blocks:
            raise ModelRequestError(f"{self.account.model}: what came is no message")
        deltas = [self._begun(number, an_object(block)) for number, block in enumerate(blocks)]
        self._stop = a_text(message.get("stop_reason"))
        self._count(an_object(message.get("usage")))
        self._end()
        return [delta for said in deltas for delta in said]

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it ended."""
        return _STOPS.get(self._stop, "stop") if self._stop else None

    @property
    def echo(self) -> Echo | None:
        """The blocks, where thinking that was finished is among them."""
        whole = [_with_input(block.whole) for block in self._blocks.values()]
        blocks = [block for block in whole if _is_whole(block)]
        thinks = any(a_text(block.get("type")) in THOUGHTS for block in blocks)
        return Echo(wire=WIRE, parts=tuple(blocks)) if thinks else None

    def _begun(self, index: Json, block: JsonObject) -> Sequence[TextDelta]:
        said = {"name", "input"} if block.get("type") == "tool_use" else set[str]()
        kept = {name: value for name, value in block.items() if name not in said}
        self._blocks[a_count(index)] = Growing(kept)
        match block.get("type"):
            case "tool_use":
                self.calls.add(
                    index=a_count(index),
                    provider_id=a_text(block.get("id")),
                    name=tool_name(a_text(block.get("name")), self.offered),
                    arguments=an_object(block.get("input")) or None,
                )
                return ()
            case "text":
                return self.heard(a_text(block.get("text")))
            case "thinking":
                return self.heard(a_text(block.get("thinking")), is_thought=True)
            case _:
                return ()

    def _added(self, index: Json, delta: JsonObject) -> Sequence[TextDelta]:
        match delta.get("type"):
            case "text_delta":
                return self.heard(self._kept(index, "text", delta))
            case "thinking_delta":
                return self.heard(self._kept(index, "thinking", delta), is_thought=True)
            case "signature_delta":
                self._grow(len(self._kept(index, "signature", delta)))
                return ()
            case "input_json_delta":
                self._take_input(a_count(index), a_text(delta.get("partial_json")))
                return ()
            case _:
                return ()

    def _take_input(self, index: int, written: str) -> None:
        """The next piece of an input: of a call, or of one that the server makes itself."""
        block = self._blocks.setdefault(index, Growing())
        if a_text(block.fields.get("type")) in _SERVED:
            block.add(_INPUT, written)
            self._grow(len(written))
        else:
            self.calls.add(index=index, provider_id="", name="", arguments=written)

    def _kept(self, index: Json, name: str, delta: JsonObject) -> str:
        """A piece of a block, which goes on."""
        said = a_text(delta.get(name))
        self._blocks.setdefault(a_count(index), Growing()).add(name, said)
        return said

    def _count(self, said: JsonObject) -> None:
        """What was used: later counts stand in for earlier ones, and the input is all of it."""
        used = self.usage or Usage()
        read = _counted(said, "cache_read_input_tokens", used.cache_read_tokens)
        written = _counted(said, "cache_creation_input_tokens", used.cache_write_tokens)
        fresh = used.input_tokens - used.cache_read_tokens - used.cache_write_tokens
        details = an_object(said.get("output_tokens_details"))
        if said:
            self._use(
                Usage(
                    input_tokens=_counted(said, "input_tokens", fresh) + read + written,
                    output_tokens=_counted(said, "output_tokens", used.output_tokens),
                    cache_read_tokens=read,
                    cache_write_tokens=written,
                    reasoning_tokens=_counted(details, "thinking_tokens", used.reasoning_tokens),
                )
            )


def _with_input(block: JsonObject) -> JsonObject:
    """The block with the input whose pieces came; one that is no object is that of no call."""
    if _INPUT not in block:
        return block
    given = whole_object(a_text(block[_INPUT]))
    rest = {name: value for name, value in block.items() if name != _INPUT}
    return rest if isinstance(given, BrokenJson) else {**rest, "input": given}


def _is_whole(block: JsonObject) -> bool:
    """Whether it can be sent again: thinking needs its signature, and text something in it."""
    match block.get("type"):
        case "thinking":
            return bool(block.get("signature"))
        case "text":
            return bool(a_text(block.get("text")).strip())
        case None:
            return False
        case _:
            return True


def _counted(said: JsonObject, name: str, before: int) -> int:
    return a_count(said[name]) if said.get(name) is not None else before
