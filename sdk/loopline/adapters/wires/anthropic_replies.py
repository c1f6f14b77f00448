"""Replies of Anthropic's messages, as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopline.adapters.wires.bytes import a_count, an_object, tool_name
from loopline.adapters.wires.failing import Account, failed_midway, piece
from loopline.adapters.wires.wired import Coming
from loopline.models import Echo, Json, JsonObject, StopReason, TextDelta, Usage

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


class ComingMessage(Coming):
    """A reply on its way."""

    def __init__(self, offered: tuple[str, ...], account: Account) -> None:
        super().__init__(offered, account)
        self._stop = ""
        self._blocks: dict[int, JsonObject] = {}

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
                self._stop = str(said or self._stop)
                self._count(an_object(event.get("usage")))
            case "message_stop":
                self.is_over = True
            case "error":
                raise failed_midway(event, self.account)
            case _:  # a ping, or what is newer than this
                pass
        return ()

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it ended."""
        return _STOPS.get(self._stop, "stop") if self._stop else None

    @property
    def echo(self) -> Echo | None:
        """The blocks, where thinking that was finished is among them."""
        blocks = [block for block in self._blocks.values() if _is_whole(block)]
        thinks = any(block.get("type") in THOUGHTS for block in blocks)
        return Echo(wire=WIRE, parts=tuple(blocks)) if thinks else None

    def _begun(self, index: Json, block: JsonObject) -> Sequence[TextDelta]:
        said = {"name", "input"} if block.get("type") == "tool_use" else set[str]()
        self._blocks[a_count(index)] = {
            name: value for name, value in block.items() if name not in said
        }
        match block.get("type"):
            case "tool_use":
                self.calls.add(
                    index=a_count(index),
                    provider_id=str(block.get("id") or ""),
                    name=tool_name(str(block.get("name") or ""), self.offered),
                    arguments=an_object(block.get("input")) or None,
                )
                return ()
            case "text":
                return self.heard(str(block.get("text") or ""))
            case "thinking":
                return self.heard(str(block.get("thinking") or ""), is_thought=True)
            case _:
                return ()

    def _added(self, index: Json, delta: JsonObject) -> Sequence[TextDelta]:
        match delta.get("type"):
            case "text_delta":
                return self.heard(self._kept(index, "text", delta))
            case "thinking_delta":
                return self.heard(self._kept(index, "thinking", delta), is_thought=True)
            case "signature_delta":
                self._kept(index, "signature", delta)
                return ()
            case "input_json_delta":
                written = str(delta.get("partial_json") or "")
                self.calls.add(index=a_count(index), provider_id="", name="", arguments=written)
                return ()
            case _:
                return ()

    def _kept(self, index: Json, name: str, delta: JsonObject) -> str:
        """A piece of a block, which goes on."""
        said, block = str(delta.get(name) or ""), self._blocks.setdefault(a_count(index), {})
        block[name] = str(block.get(name) or "") + said
        return said

    def _count(self, said: JsonObject) -> None:
        """What was used: later counts stand in for earlier ones, and the input is all of it."""
        used = self.usage
        read = _counted(said, "cache_read_input_tokens", used.cache_read_tokens)
        written = _counted(said, "cache_creation_input_tokens", used.cache_write_tokens)
        fresh = used.input_tokens - used.cache_read_tokens - used.cache_write_tokens
        self.usage: Usage = Usage(
            input_tokens=_counted(said, "input_tokens", fresh) + read + written,
            output_tokens=_counted(said, "output_tokens", used.output_tokens),
            cache_read_tokens=read,
            cache_write_tokens=written,
        )


def _is_whole(block: JsonObject) -> bool:
    """Whether it can be sent again: thinking needs its signature, and text something in it."""
    match block.get("type"):
        case "thinking":
            return bool(block.get("signature"))
        case "text":
            return bool(str(block.get("text") or "").strip())
        case _:
            return True


def _counted(said: JsonObject, name: str, before: int) -> int:
    return a_count(said[name]) if said.get(name) is not None else before
