"""Anthropic's Messages API: requests to `/v1/messages`, and their streamed replies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from msgspec import structs

from loopline import models
from loopline.errors import ModelRequestError
from loopline.models.prompt import breaks_off, choose_call_id
from loopline.providers.failures import Credentials, parse_chunk, stream_error
from loopline.providers.http import SAMPLING, HttpModel
from loopline.providers.reply_parser import CallPiece, PartialObject, ReplyParser
from loopline.providers.request_bytes import (
    CallForm,
    Field,
    encode_json,
    is_image,
    message_bytes,
    provider_name,
)

FAMILY = "anthropic"
"""Replies of this family are replayed unchanged."""
VERSION = "2023-06-01"
BETAS = "mid-conversation-system-clear-at-2026-08-21,thinking-binding-controls-2026-08-01"
"""For models that bind thinking to the prefix: the API clears tails, and drops thinking instead of refusing it."""
BUDGETS: Mapping[str, int] = {"minimal": 1_024, "low": 4_096, "medium": 16_384, "high": 32_768}
"""Thinking tokens for an effort, for models that require a number; a higher effort counts as `high`."""
MIN_BUDGET = 1_024
MAX_MARKERS = 4
"""The `cache_control` markers that a request may carry."""
_THINKING_TYPES = frozenset({"thinking", "redacted_thinking"})
_SERVER_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})
"""Calls that the server makes itself; their results are blocks of the same reply."""
_INPUT = " input"
"""The key under which the pieces of such a call's input are collected; no field of the API has this name."""
_COUNTS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
    "thinking_tokens": "reasoning_tokens",
}
"""The fields of a `Usage`, by their names in the API."""
_STOP_REASONS: Mapping[str, models.StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_use",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_ASSISTANT = b'"role":"assistant"'
_USER = b'"role":"user"'
_SYSTEM = b'"role":"system","clear_at":"next_user_message"'
_DROPPED: models.JsonObject = {"prefix_mismatch_behavior": "drop_block"}
_MARK = b',"cache_control":{"type":"ephemeral"}}'


class AnthropicMessages(HttpModel):
    """A model that is called at `/v1/messages`."""

    path = "/v1/messages"
    setting_names: ClassVar[tuple[str, ...]] = SAMPLING

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of each request: the key, the version of the API, and beta features."""
        return {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "anthropic-version": VERSION,
            "x-api-key": self.credentials.key,
            **({"anthropic-beta": BETAS} if self._binds_thinking else {}),
        }

    @property
    def _binds_thinking(self) -> bool:
        """Whether thinking is valid only after the same prefix."""
        return self.facts.tail == "cleared"

    def new_parser(self, offered: tuple[str, ...]) -> ReplyParser:
        """Return a parser for the next reply."""
        return AnthropicReplyParser(offered, self.credentials)

    def tool(self, spec: models.ToolSpec) -> models.JsonObject:
        """Return a tool in the form of the API."""
        return {
            "name": provider_name(spec.name),
            "description": spec.description,
            "input_schema": spec.parameters,
        }

    def fields(self, prompt: models.Prompt) -> Iterator[Field]:
        """Yield the fields of a streamed request; optional fields only if the prompt or the model needs them."""
        options = prompt.options
        limit = options.output_limit or self.capabilities.output_limit
        yield "model", self.model
        yield "max_tokens", limit
        yield "stream", True
        if options.stop and self.facts.stop:
            yield "stop_sequences", list(options.stop)
        if prompt.system:
            text = encode_json({"type": "text", "text": prompt.system})
            is_marked = prompt.cache_points and len(prompt.cache_points) < MAX_MARKERS
            yield "system", b"[%s]" % (_add_marker(text) if is_marked else text)
        if prompt.tools:
            yield "tools", self.tools_json(prompt.tools)
            if choice := _tool_choice(options):
                yield "tool_choice", choice
        yield from self._thinking(prompt, limit)
        yield from self.setting_fields(prompt)
        if output := self._output(prompt):
            yield "output_config", output
        yield "messages", _messages(prompt)

    def _thinking(
        self, prompt: models.Prompt, limit: int
    ) -> Iterator[tuple[str, models.JsonObject]]:
        """Yield the `thinking` field, which turns thinking on or off; no field if the model decides."""
        facts = self.facts
        effort = prompt.options.reasoning_effort
        budget = self._budget(prompt, limit) if facts.thinking_by == "budget" else None
        is_barred = facts.thinking_by == "adaptive" and bool(prompt.options.force_tool)
        if facts.thinking_off and (effort == "none" or budget == 0 or is_barred):
            yield "thinking", {"type": facts.thinking_off}
        elif budget:
            yield "thinking", {"type": "enabled", "budget_tokens": budget}
        elif self._binds_thinking:
            yield "thinking", {**self._adaptive, "block_binding": _DROPPED}
        elif facts.thinking_by == "unasked" or (facts.thinking_by == "adaptive" and effort):
            yield "thinking", self._adaptive

    @property
    def _adaptive(self) -> models.JsonObject:
        """The `thinking` field for an effort that the model chooses, with its text if the text must be requested."""
        display = self.facts.thinking_display
        return {"type": "adaptive", **({"display": display} if display else {})}

    def _output(self, prompt: models.Prompt) -> models.JsonObject:
        """Return the `output_config` field: the effort, and the schema of the output."""
        is_off = self.facts.thinking_off and prompt.options.reasoning_effort == "none"
        effort = "" if is_off else self.effort(prompt)
        form = prompt.options.json_form
        output: models.JsonObject = {"effort": effort} if effort else {}
        if form is not None and form.strict:
            output["format"] = {"type": "json_schema", "schema": form.schema}
        return output

    def _budget(self, prompt: models.Prompt, limit: int) -> int:
        """Return the budget for thinking, in tokens, for the reasoning effort of the prompt; 0 means no thinking.

        The budget is at most `limit`, the maximum of output tokens, minus `MIN_BUDGET`, so that the answer has room. It is 0 if
        the effort is empty or `none`, if a call is forced, if the thinking of the last calls cannot be sent again, or if fewer
        than `MIN_BUDGET` tokens are possible.
        """
        effort = prompt.options.reasoning_effort
        if effort in ("", "none") or prompt.options.force_tool or breaks_off(prompt, FAMILY):
            return 0
        budget = min(BUDGETS.get(effort, BUDGETS["high"]), limit - MIN_BUDGET)
        return budget if budget >= MIN_BUDGET else 0


def _tool_choice(options: models.Options) -> models.JsonObject:
    """Return the `tool_choice` field, which forces or forbids calls, or allows only one call; empty if it is not needed."""
    settings = options.settings
    parallel = None if settings is None else settings.parallel_tool_calls
    limit: models.JsonObject = (
        {} if parallel is None else {"disable_parallel_tool_use": not parallel}
    )
    if options.force_tool:
        name = provider_name(options.force_tool)
        return {"type": "tool", "name": name, **limit}
    if not options.allow_calls:
        return {"type": "none"}
    return {"type": "auto", **limit} if limit else {}


def _messages(prompt: models.Prompt) -> bytes:
    """Return the messages as JSON. Consecutive messages of one role are joined; cache points mark the last block.

    The tail is the last message. Messages without content are left out.
    """
    points = set(prompt.cache_points)
    current = b""
    pieces = list[bytes]()
    tail = models.UserMessage(text=prompt.tail, passing=prompt.tail_kind == "cleared")
    for number, message in enumerate((*prompt.messages, tail), start=1):
        blocks = message_bytes(message, FAMILY, _content)
        if not blocks:
            continue
        role = _role(message)
        if role == _SYSTEM and current != _USER:
            role = _USER  # the API accepts a system message only after a user message
        opening = b'%s{%s,"content":[' % (b"]}," if current else b"", role)
        pieces.append(b"," if role == current else opening)
        current = role
        pieces.append(_add_marker(blocks) if number in points else blocks)
    return b"[%s%s]" % (b"".join(pieces), b"]}" if current else b"")


def _role(message: models.Message) -> bytes:
    """Return the role of a message. A passing message has the role system, and the next user message clears it."""
    match message:
        case models.AssistantMessage():
            return _ASSISTANT
        case models.UserMessage(passing=True):
            return _SYSTEM
        case models.UserMessage() | models.ToolMessage():
            return _USER


def _add_marker(blocks: bytes) -> bytes:
    """Return the blocks with a cache marker in the last block."""
    return blocks[:-1] + _MARK


def _content(message: models.Message) -> Iterator[models.JsonObject]:
    """Yield the content blocks of a message; a blank text has no block."""
    match message:
        case models.ToolMessage(text=text, ok=ok, attachments=images):
            parts = list[models.Json](part for image in images for part in _encode_file(image))
            content: models.Json = [{"type": "text", "text": text}, *parts] if parts else text
            call_id = choose_call_id(message, FAMILY)
            failure: models.JsonObject = {} if ok else {"is_error": True}
            result: models.JsonObject = {"tool_use_id": call_id, "content": content}
            yield {"type": "tool_result", **result, **failure}
        case models.UserMessage(text=text, attachments=attachments):
            if text.strip():
                yield {"type": "text", "text": text}
            for attached in attachments:
                yield from _encode_file(attached)
        case models.AssistantMessage() if blocks := _CALL.replay(message, FAMILY, _THINKING_TYPES):
            yield from blocks
        case models.AssistantMessage(text=text, calls=calls):
            if text.strip():
                yield {"type": "text", "text": text.rstrip()}
            for call in calls:
                yield _CALL.call(call, FAMILY)


def _call_fields(call: models.ToolCall) -> models.JsonObject:
    return {"name": provider_name(call.name), "input": call.arguments}


_CALL = CallForm("tool_use", "id", _call_fields)


def _encode_file(attached: models.Attached) -> Iterator[models.JsonObject]:
    """Yield the line that names a file, and the file itself if its data is sent."""
    yield {"type": "text", "text": attached.text}
    if attached.data:
        kind = "image" if is_image(attached) else "document"
        source: models.JsonObject = {"media_type": attached.mime, "data": attached.data}
        yield {"type": kind, "source": {"type": "base64", **source}}


def _counts(usage: models.JsonObject) -> Mapping[str, int]:
    """Return the token counts by their fields of a `Usage`."""
    fields = {**usage, **models.object_in(usage, "output_tokens_details")}
    return {
        _COUNTS[name]: models.as_count(value)
        for name, value in fields.items()
        if name in _COUNTS and value is not None
    }


class AnthropicReplyParser(ReplyParser):
    """Parses a message while it is received."""

    is_over: bool
    size: int
    usage: models.Usage | None

    def __init__(self, offered: tuple[str, ...], credentials: Credentials) -> None:
        super().__init__(offered, credentials)
        self._stop_reason = ""
        # The latest counts; their input does not include cached tokens.
        self._fresh = models.Usage()
        self._blocks: defaultdict[int, PartialObject] = defaultdict(PartialObject)

    def feed(self, data: str) -> Sequence[models.TextDelta]:
        """Decode an event of the stream and return the text it adds; none for a ping and for unknown types.

        Raises:
            ModelError: the event reports an error, or is not a JSON object.
        """
        event = parse_chunk(data, self.credentials)
        index = models.count_in(event, "index")
        match models.text_in(event, "type"):
            case "content_block_delta":
                return self._extend(index, models.object_in(event, "delta"))
            case "content_block_start":
                self.size += len(data)  # all of the block is kept, so that it can be replayed
                return self._start(index, models.object_in(event, "content_block"))
            case "message_start":
                self._update(models.object_in(event, "message"))
            case "message_delta":
                stop_reason = models.text_in(models.object_in(event, "delta"), "stop_reason")
                self._update(event, stop_reason)
            case "message_stop":
                self.is_over = True
            case "error":
                raise stream_error(event, self.credentials)
            case _:
                pass
        return ()

    def feed_document(self, data: str) -> Sequence[models.TextDelta]:
        """Decode a message that was sent as one document, and return its texts.

        Raises:
            ModelRequestError: the document is not a message, or its content is empty.
            ModelStreamBroken: the document is not a JSON object.
        """
        message = parse_chunk(data, self.credentials)
        blocks = models.objects_in(message, "content")
        if models.text_in(message, "type") != "message" or not blocks:
            raise ModelRequestError(f"{self.credentials.model}: the response is not a message")
        deltas = [
            delta for index, block in enumerate(blocks) for delta in self._start(index, block)
        ]
        self._update(message, models.text_in(message, "stop_reason"))
        self.is_over = True
        return deltas

    @property
    def stop_reason(self) -> models.StopReason | None:
        """The reason for the end of the reply, or None if the server has not sent it."""
        return _STOP_REASONS.get(self._stop_reason, "stop") if self._stop_reason else None

    @property
    def echo(self) -> models.ReasoningReplay | None:
        """The blocks in the order of the reply, or None if the reply has no complete thinking."""
        blocks = [_parse_input(block.value) for block in self._blocks.values()]
        blocks = [block for block in blocks if _is_complete(block)]
        thinks = any(models.text_in(block, "type") in _THINKING_TYPES for block in blocks)
        return models.ReasoningReplay(wire=FAMILY, parts=tuple(blocks)) if thinks else None

    def _start(self, index: int, block: models.JsonObject) -> Sequence[models.TextDelta]:
        """Start a content block. It is replayed to the provider, a call without its name and input."""
        kind = models.text_in(block, "type")
        fields = block
        if kind == "tool_use":
            fields = {name: value for name, value in block.items() if name not in ("name", "input")}
            arguments = models.object_in(block, "input") or None
            self.calls.add(
                CallPiece(
                    index, models.text_in(block, "id"), models.text_in(block, "name"), arguments
                )
            )
        self._blocks[index] = PartialObject(fields)
        match kind:
            case "text":
                return self.add(models.text_in(block, "text"))
            case "thinking":
                return self.add(models.text_in(block, "thinking"), "thinking")
            case _:
                return ()

    def _extend(self, index: int, delta: models.JsonObject) -> Sequence[models.TextDelta]:
        """Add a piece to the text, the thinking, the signature or the input of a block."""
        match models.text_in(delta, "type"):
            case "text_delta":
                return self.add(self._add_piece(index, delta, "text"))
            case "thinking_delta":
                return self.add(self._add_piece(index, delta, "thinking"), "thinking")
            case "signature_delta":
                self.size += len(self._add_piece(index, delta, "signature"))
            case "input_json_delta":
                self._extend_input(index, models.text_in(delta, "partial_json"))
            case _:
                pass
        return ()

    def _add_piece(self, index: int, delta: models.JsonObject, name: str) -> str:
        text = models.text_in(delta, name)
        self._blocks[index].add(name, text)
        return text

    def _extend_input(self, index: int, text: str) -> None:
        """Add a piece of the input to the block if the server runs the call, otherwise to our tool call."""
        block = self._blocks[index]
        if models.text_in(block.fields, "type") in _SERVER_CALLS:
            block.add(_INPUT, text)
            self.size += len(text)
        else:
            self.calls.add(CallPiece(index, arguments=text))

    def _update(self, message: models.JsonObject, stop_reason: str = "") -> None:
        """Store the stop reason and the usage, if given; the stored input tokens include cached tokens."""
        self._stop_reason = stop_reason or self._stop_reason
        usage = models.object_in(message, "usage")
        if usage:
            fresh = self._fresh = structs.replace(self._fresh, **_counts(usage))
            cached = fresh.cache_read_tokens + fresh.cache_write_tokens
            self.usage = structs.replace(fresh, input_tokens=fresh.input_tokens + cached)


def _parse_input(block: models.JsonObject) -> models.JsonObject:
    """Return a call of the server with its collected input, or without input if it is not a JSON object."""
    if _INPUT not in block:
        return block
    arguments = models.parse_object(models.text_in(block, _INPUT))
    fields = {name: value for name, value in block.items() if name != _INPUT}
    return fields if isinstance(arguments, models.BrokenJson) else {**fields, "input": arguments}


def _is_complete(block: models.JsonObject) -> bool:
    """Return whether a block can be replayed: thinking needs a signature, and text must not be blank."""
    match block:
        case {"type": "thinking"}:
            return bool(models.text_in(block, "signature"))
        case {"type": "text"}:
            return bool(models.text_in(block, "text").strip())
        case _:
            return bool(models.text_in(block, "type"))
