"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from loopline.adapters.providers.failures import Credentials, failed_midway, piece
from loopline.adapters.providers.http_model import HttpModel
from loopline.adapters.providers.reply_parser import ReplyParser
from loopline.adapters.providers.request_bytes import (
    PartialObject,
    a_count,
    a_list,
    a_text,
    an_object,
    encoded,
    given_back,
    is_image,
    joined,
    part,
    tool_name,
    wire_name,
)
from loopline.errors import ModelRequestError
from loopline.models import (
    AssistantMessage,
    Attached,
    BrokenJson,
    Json,
    JsonObject,
    Message,
    Prompt,
    ReasoningReplay,
    StopReason,
    TextDelta,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
    parse_object,
)
from loopline.models.prompt import breaks_off, echo_for, sent_id

VERSION = "2023-06-01"
BETAS = "mid-conversation-system-clear-at-2026-08-21,thinking-binding-controls-2026-08-01"
"""For models whose thinking is bound: tails that are cleared, and thinking that is dropped, not refused."""
BUDGETS: Mapping[str, int] = {"minimal": 1_024, "low": 4_096, "medium": 16_384, "high": 32_768}
"""So many tokens of thinking for an effort, where a model wants a number; more than `high` is `high`."""
LEAST_BUDGET = 1_024
MARKERS = 4
"""So many `cache_control` markers a request may carry."""
_ASSISTANT, _USER = b'"role":"assistant"', b'"role":"user"'
_SYSTEM = b'"role":"system","clear_at":"next_user_message"'
_DROPPED: JsonObject = {"prefix_mismatch_behavior": "drop_block"}
_MARK = b',"cache_control":{"type":"ephemeral"}}'


class AnthropicMessages(HttpModel):
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
            **({"anthropic-beta": BETAS} if self._is_bound else {}),
        }

    @property
    def _is_bound(self) -> bool:
        """Whether its thinking is bound to all that stands before it."""
        return self.facts.tail == "cleared"

    def coming(self, offered: tuple[str, ...]) -> ReplyParser:
        """What reads the next reply."""
        return AnthropicReplyParser(offered, self.account)

    def tool(self, spec: ToolSpec) -> bytes:
        """A tool as it travels."""
        return _tool(spec)

    def body(self, prompt: Prompt) -> bytes:
        """The request as it travels."""
        most = prompt.options.output_limit or self.capabilities.output_limit
        fields = [
            ("model", encoded(self.model)),
            ("max_tokens", encoded(most)),
            ("stream", b"true"),
        ]
        if prompt.options.stop and self.facts.stop:
            fields.append(("stop_sequences", encoded(list(prompt.options.stop))))
        if prompt.system:
            text: JsonObject = {"type": "text", "text": prompt.system}
            marked = prompt.cache_points and len(prompt.cache_points) < MARKERS
            fields.append(
                ("system", b"[%s]" % (_marked(encoded(text)) if marked else encoded(text)))
            )
        if prompt.tools:
            fields.append(("tools", self.tools(prompt.tools)))
            fields += [("tool_choice", encoded(one)) for one in _choice(prompt)]
        fields += [(name, encoded(value)) for name, value in self._thinking(prompt, most)]
        if output := self._output(prompt):
            fields.append(("output_config", encoded(output)))
        fields.append(("messages", _messages(prompt)))
        return joined(fields)

    def _thinking(self, prompt: Prompt, most: int) -> Iterator[tuple[str, JsonObject]]:
        """Whether and how hard to think; nothing where that is the model's to decide."""
        facts, asked = self.facts, prompt.options.reasoning_effort
        budget = self._budget(prompt, most) if facts.thinking_by == "budget" else None
        is_barred = facts.thinking_by == "adaptive" and bool(prompt.options.force_tool)
        if facts.thinking_off and (asked == "none" or budget == 0 or is_barred):
            yield "thinking", {"type": facts.thinking_off}
        elif budget:
            yield "thinking", {"type": "enabled", "budget_tokens": budget}
        elif self._is_bound:
            yield "thinking", {**self._adaptive, "block_binding": _DROPPED}
        elif facts.thinking_by == "unasked" or (facts.thinking_by == "adaptive" and asked):
            yield "thinking", self._adaptive

    @property
    def _adaptive(self) -> JsonObject:
        """Thinking that is the model's to measure, with its text where that must be asked for."""
        display = self.facts.thinking_display
        return {"type": "adaptive", **({"display": display} if display else {})}

    def _output(self, prompt: Prompt) -> JsonObject:
        """How hard to work on the output, and the form it is to have."""
        off = self.facts.thinking_off and prompt.options.reasoning_effort == "none"
        effort, form = "" if off else self.effort(prompt), prompt.options.json_form
        output: JsonObject = {"effort": effort} if effort else {}
        if form is not None and form.strict:
            output["format"] = {"type": "json_schema", "schema": form.schema}
        return output

    def _budget(self, prompt: Prompt, most: int) -> int:
        """The tokens to think with, 0 for none: a forced call excludes it, and so do calls without theirs."""
        asked = prompt.options.reasoning_effort
        if asked in ("", "none") or prompt.options.force_tool or breaks_off(prompt, WIRE):
            return 0
        budget = min(BUDGETS.get(asked, BUDGETS["high"]), most - LEAST_BUDGET)
        return budget if budget >= LEAST_BUDGET else 0


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
    points, side, written = set(prompt.cache_points), b"", list[bytes]()
    tail = UserMessage(text=prompt.tail, passing=prompt.tail_kind == "cleared")
    for number, message in enumerate((*prompt.messages, tail), start=1):
        blocks = part(message, WIRE, _blocks)
        if not blocks:
            continue
        role = _role(message)
        if role == _SYSTEM and side != _USER:
            role = _USER  # what the system says stands behind the user's side and nowhere else
        between = b"," if role == side else b'%s{%s,"content":[' % (b"]}," if side else b"", role)
        side = role
        written += [between, _marked(blocks) if number in points else blocks]
    return b"[%s%s]" % (b"".join(written), b"]}" if side else b"")


def _role(message: Message) -> bytes:
    """Who says it; what passes is said by the system, until the user's side says more."""
    match message:
        case AssistantMessage():
            return _ASSISTANT
        case UserMessage(passing=True):
            return _SYSTEM
        case UserMessage() | ToolMessage():
            return _USER


def _marked(blocks: bytes) -> bytes:
    """The blocks, of which the last one ends a prefix to keep."""
    return blocks[:-1] + _MARK


def _blocks(message: Message) -> bytes:
    """The content blocks of a message, with commas between them; a text of nothing is none."""
    return b",".join(encoded(block) for block in _content(message))


def _content(message: Message) -> Iterator[JsonObject]:
    match message:
        case ToolMessage(text=text, ok=ok):
            of = sent_id(message, WIRE)
            result: JsonObject = {"type": "tool_result", "tool_use_id": of, "content": text}
            yield result if ok else {**result, "is_error": True}
        case UserMessage(text=text, attachments=attachments):
            if text.strip():
                yield {"type": "text", "text": text}
            for attached in attachments:
                yield from _attached(attached)
        case AssistantMessage() if blocks := given_back(
            echo_for(message, WIRE), THOUGHTS, partial(_call, message)
        ):
            yield from blocks
        case AssistantMessage(text=text, calls=calls):
            if text.strip():
                yield {"type": "text", "text": text.rstrip()}
            for call in calls:
                yield {
                    "type": "tool_use",
                    "id": sent_id(call, WIRE),
                    "name": wire_name(call.name),
                    "input": call.arguments,
                }


def _call(message: AssistantMessage, block: JsonObject) -> JsonObject | None:
    if block.get("type") != "tool_use":
        return block
    for call in message.calls:
        if call.provider_id == block.get("id"):
            return {**block, "name": wire_name(call.name), "input": call.arguments}
    return None


def _attached(attached: Attached) -> Iterator[JsonObject]:
    """The line of a file, and the file where it is given."""
    yield {"type": "text", "text": attached.text}
    if attached.data:
        source: JsonObject = {
            "type": "base64",
            "media_type": attached.mime,
            "data": attached.data,
        }
        yield {"type": "image" if is_image(attached) else "document", "source": source}


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


class AnthropicReplyParser(ReplyParser):
    """A reply on its way."""

    def __init__(self, offered: tuple[str, ...], account: Credentials) -> None:
        super().__init__(offered, account)
        self._stop = ""
        self._blocks: dict[int, PartialObject] = {}

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
    def echo(self) -> ReasoningReplay | None:
        """The blocks, where thinking that was finished is among them."""
        whole = [_with_input(block.whole) for block in self._blocks.values()]
        blocks = [block for block in whole if _is_whole(block)]
        thinks = any(a_text(block.get("type")) in THOUGHTS for block in blocks)
        return ReasoningReplay(wire=WIRE, parts=tuple(blocks)) if thinks else None

    def _begun(self, index: Json, block: JsonObject) -> Sequence[TextDelta]:
        said = {"name", "input"} if block.get("type") == "tool_use" else set[str]()
        kept = {name: value for name, value in block.items() if name not in said}
        self._blocks[a_count(index)] = PartialObject(kept)
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
        block = self._blocks.setdefault(index, PartialObject())
        if a_text(block.fields.get("type")) in _SERVED:
            block.add(_INPUT, written)
            self._grow(len(written))
        else:
            self.calls.add(index=index, provider_id="", name="", arguments=written)

    def _kept(self, index: Json, name: str, delta: JsonObject) -> str:
        """A piece of a block, which goes on."""
        said = a_text(delta.get(name))
        self._blocks.setdefault(a_count(index), PartialObject()).add(name, said)
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
    given = parse_object(a_text(block[_INPUT]))
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
