"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from loopline.adapters.wires.anthropic_replies import THOUGHTS, WIRE, ComingMessage
from loopline.adapters.wires.bytes import (
    encoded,
    given_back,
    is_image,
    joined,
    part,
    wire_name,
)
from loopline.adapters.wires.wired import Coming, WireModel
from loopline.models import (
    AssistantMessage,
    Attached,
    JsonObject,
    Message,
    Prompt,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from loopline.models.call_ids import breaks_off, echo_for, sent_id

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
            **({"anthropic-beta": BETAS} if self._is_bound else {}),
        }

    @property
    def _is_bound(self) -> bool:
        """Whether its thinking is bound to all that stands before it."""
        return self.facts.tail == "cleared"

    def coming(self, offered: tuple[str, ...]) -> Coming:
        """What reads the next reply."""
        return ComingMessage(offered, self.account)

    def tool(self, spec: ToolSpec) -> bytes:
        """A tool as it travels."""
        return _tool(spec)

    def body(self, prompt: Prompt) -> bytes:
        """The request as it travels."""
        most = prompt.options.output_limit or self.abilities.output_limit
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
