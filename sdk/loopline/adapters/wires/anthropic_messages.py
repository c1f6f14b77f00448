"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loopline.adapters.wires.bytes import (
    a_count,
    an_object,
    encoded,
    joined,
    part,
    tool_name,
    wire_name,
)
from loopline.adapters.wires.failing import Account, failed_midway, piece
from loopline.adapters.wires.wired import Coming, WireModel
from loopline.models import (
    AssistantMessage,
    Json,
    JsonObject,
    Message,
    Prompt,
    StopReason,
    TextDelta,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)

WIRE = "anthropic"
VERSION = "2023-06-01"
MARKERS = 4
"""So many `cache_control` markers a request may carry."""
_MARK = b',"cache_control":{"type":"ephemeral"}}'
_STOPS: Mapping[str, StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_use",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


class AnthropicMessages(WireModel):
    """A model behind `/v1/messages`."""

    path = "/v1/messages"

    @property
    def headers(self) -> Mapping[str, str]:
        """The key and the version of the interface."""
        return {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "anthropic-version": VERSION,
            "x-api-key": self.account.key,
        }

    def coming(self, offered: tuple[str, ...]) -> Coming:
        """What reads the next reply."""
        return _Coming(offered, self.account)

    def tool(self, spec: ToolSpec) -> bytes:
        """A tool as it travels."""
        return _tool(spec)

    def body(self, prompt: Prompt) -> bytes:
        """The request as it travels."""
        fields = [
            ("model", encoded(self.model)),
            ("max_tokens", encoded(prompt.options.output_limit or self.abilities.output_limit)),
            ("stream", b"true"),
        ]
        if prompt.system:
            text: JsonObject = {"type": "text", "text": prompt.system}
            marked = prompt.cache_points and len(prompt.cache_points) < MARKERS
            fields.append(
                ("system", b"[%s]" % (_marked(encoded(text)) if marked else encoded(text)))
            )
        if prompt.tools:
            fields.append(("tools", self.tools(prompt.tools)))
            fields += [("tool_choice", encoded(one)) for one in _choice(prompt)]
        if self.facts.thinking_off:
            fields.append(("thinking", encoded({"type": self.facts.thinking_off})))
        fields.append(("messages", _messages(prompt)))
        return joined(fields)


def _choice(prompt: Prompt) -> Iterator[JsonObject]:
    if prompt.options.force_tool:
        yield {"type": "tool", "name": wire_name(prompt.options.force_tool)}
    elif not prompt.options.allow_calls:
        yield {"type": "none"}


def _tool(spec: ToolSpec) -> bytes:
    return encoded(
        {
            "name": wire_name(spec.name),
            "description": spec.description,
            "input_schema": spec.parameters,
        }
    )


def _messages(prompt: Prompt) -> bytes:
    """The messages, neighbours of one side in one; the last block before each cache point is marked."""
    points, turns = set(prompt.cache_points), list[tuple[bytes, list[bytes]]]()
    for number, message in enumerate(prompt.messages, start=1):
        blocks = part(message, WIRE, _blocks)
        if not blocks:
            continue
        role = b"assistant" if isinstance(message, AssistantMessage) else b"user"
        if not turns or turns[-1][0] != role:
            turns.append((role, []))
        turns[-1][1].append(_marked(blocks) if number in points else blocks)
    if prompt.tail:
        if not turns or turns[-1][0] != b"user":
            turns.append((b"user", []))
        turns[-1][1].append(encoded({"type": "text", "text": prompt.tail}))
    written = [
        b'{"role":"%s","content":[%s]}' % (role, b",".join(blocks)) for role, blocks in turns
    ]
    return b"[%s]" % b",".join(written)


def _marked(blocks: bytes) -> bytes:
    """The blocks, of which the last one ends a prefix to keep."""
    return blocks[:-1] + _MARK


def _blocks(message: Message) -> bytes:
    """The content blocks of a message, with commas between them; a text of nothing is none."""
    return b",".join(encoded(block) for block in _content(message))


def _content(message: Message) -> Iterator[JsonObject]:
    match message:
        case ToolMessage(call_id=call_id, text=text, ok=ok):
            result: JsonObject = {"type": "tool_result", "tool_use_id": call_id, "content": text}
            yield result if ok else {**result, "is_error": True}
        case UserMessage(text=text):
            if text.strip():
                yield {"type": "text", "text": text}
        case AssistantMessage(text=text, calls=calls):
            if text.strip():
                yield {"type": "text", "text": text.rstrip()}
            for call in calls:
                yield {
                    "type": "tool_use",
                    "id": call.call_id,
                    "name": wire_name(call.name),
                    "input": call.arguments,
                }


class _Coming(Coming):
    """A reply on its way."""

    def __init__(self, offered: tuple[str, ...], account: Account) -> None:
        super().__init__(offered, account)
        self._stop = ""

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
                wrong = an_object(event.get("error"))
                kind, words = str(wrong.get("type") or ""), str(wrong.get("message") or "")
                raise failed_midway(kind, words, self.account)
            case _:  # a ping, or what is newer than this
                pass
        return ()

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it ended."""
        return _STOPS.get(self._stop, "stop") if self._stop else None

    def _begun(self, index: Json, block: JsonObject) -> Sequence[TextDelta]:
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
                return self.heard(str(delta.get("text") or ""))
            case "thinking_delta":
                return self.heard(str(delta.get("thinking") or ""), is_thought=True)
            case "input_json_delta":
                written = str(delta.get("partial_json") or "")
                self.calls.add(index=a_count(index), provider_id="", name="", arguments=written)
                return ()
            case _:
                return ()

    def _count(self, said: JsonObject) -> None:
        """What was used: later counts stand in for earlier ones, and the input is all of it."""
        used = self.usage
        read = _counted(said, "cache_read_input_tokens", used.cache_read_tokens)
        written = _counted(said, "cache_creation_input_tokens", used.cache_write_tokens)
        fresh = used.input_tokens - used.cache_read_tokens - used.cache_write_tokens
        self.usage = Usage(
            input_tokens=_counted(said, "input_tokens", fresh) + read + written,
            output_tokens=_counted(said, "output_tokens", used.output_tokens),
            cache_read_tokens=read,
            cache_write_tokens=written,
        )


def _counted(said: JsonObject, name: str, before: int) -> int:
    return a_count(said[name]) if said.get(name) is not None else before
