"""OpenAI's chat completions, as OpenAI and many other servers speak them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loopline.adapters.providers.http_model import HttpModel
from loopline.adapters.providers.openai_chunks import DETAILS, WIRE, ChatReplyParser
from loopline.adapters.providers.reply_parser import ReplyParser
from loopline.adapters.providers.request_bytes import (
    bearing,
    data_url,
    encoded,
    is_image,
    joined,
    part,
    schema_of,
    wire_name,
)
from loopline.models import (
    AssistantMessage,
    Attached,
    Json,
    JsonObject,
    Message,
    Prompt,
    ReasoningReplay,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
    dumps,
)
from loopline.models.prompt import echo_for, sent_id

WIRE_INSIDE = "openai.inside"


class OpenAiChat(HttpModel):
    """A model behind `/chat/completions`."""

    path = "/chat/completions"

    @property
    def headers(self) -> Mapping[str, str]:
        """The key as a bearer's, if there is one."""
        return bearing(self.account)

    @property
    def family(self) -> str:
        """Whose sealed replies go back to it: its own, for a seal is one model's."""
        return f"{WIRE}:{self.name}"

    def coming(self, offered: tuple[str, ...]) -> ReplyParser:
        """What reads the next reply."""
        return ChatReplyParser(offered, self.account, self.facts.thinking_field, self.family)

    def tool(self, spec: ToolSpec) -> bytes:
        """A tool as it travels."""
        return _tool(spec)

    def body(self, prompt: Prompt) -> bytes:
        """The request as it travels."""
        made = _inside if prompt.tail_kind == "inside" else _messages
        field = self.facts.thinking_field
        messages = made(prompt, _Writer(self.family, field, f"{self.family} {field}"))
        if prompt.system:
            messages.insert(0, encoded({"role": "system", "content": prompt.system}))
        fields = [("model", encoded(self.model)), ("messages", b"[%s]" % b",".join(messages))]
        if prompt.tools:
            fields.append(("tools", self.tools(prompt.tools)))
        fields += [(name, encoded(value)) for name, value in self._options(prompt)]
        return joined(fields)

    def _options(self, prompt: Prompt) -> Iterator[tuple[str, Json]]:
        options = prompt.options
        yield "stream", True
        yield "stream_options", {"include_usage": True}
        if prompt.tools and options.force_tool:
            named: JsonObject = {"name": wire_name(options.force_tool)}
            yield "tool_choice", {"type": "function", "function": named}
        elif prompt.tools and not options.allow_calls:
            yield "tool_choice", "none"
        if options.json_form is not None:
            yield (
                "response_format",
                {"type": "json_schema", "json_schema": schema_of(options.json_form)},
            )
        elif options.json_object:
            yield "response_format", {"type": "json_object"}
        if options.output_limit is not None:
            yield self.facts.output_parameter, options.output_limit
        if options.stop and self.facts.stop:
            yield "stop", list(options.stop)
        if self.facts.cache_key and prompt.cache_key:
            yield "prompt_cache_key", prompt.cache_key
        if self.facts.thinking_off == "disabled" and options.reasoning_effort == "none":
            yield "thinking", {"type": "disabled"}
        elif effort := self.effort(prompt):
            yield "reasoning_effort", effort


def _tool(spec: ToolSpec) -> bytes:
    function: JsonObject = {
        "name": wire_name(spec.name),
        "description": spec.description,
        "parameters": spec.parameters,
    }
    return encoded({"type": "function", "function": function})


@dataclass(frozen=True, slots=True)
class _Writer:
    """How messages are written for a model: whose replies go back to it, and where plain thinking does."""

    family: str
    thinking_field: str
    key: str

    def whole(self, message: Message) -> bytes:
        """The bytes of a message, which are other ones for another model, or with another field."""
        return part(message, self.key, self._encoded)

    def _encoded(self, message: Message) -> bytes:
        match message:
            case UserMessage(text=text, attachments=()):
                return encoded({"role": "user", "content": text})
            case UserMessage():
                return b'{"role":"user","content":[%s]}' % _content(message)
            case ToolMessage(text=text):
                call_id = sent_id(message, self.family)
                return encoded({"role": "tool", "tool_call_id": call_id, "content": text})
            case AssistantMessage():
                return encoded(self._said(message))

    def _said(self, message: AssistantMessage) -> JsonObject:
        """What the model said; where thinking has a field, calls have it even without any."""
        said: JsonObject = {"role": "assistant", "content": message.text or None}
        echo, field = echo_for(message, self.family), self.thinking_field
        fields, extras = ({}, {}) if echo is None else _split(echo)
        if field and message.calls and DETAILS not in fields:
            said[field] = ""
        said.update((name, fields[name]) for name in (DETAILS, field) if name in fields)
        if message.calls:
            said["tool_calls"] = [self._call(call, extras) for call in message.calls]
        return said

    def _call(self, call: ToolCall, extras: Mapping[str, JsonObject]) -> JsonObject:
        call_id = sent_id(call, self.family)
        function: JsonObject = {"name": wire_name(call.name), "arguments": dumps(call.arguments)}
        extra = extras.get(call_id, {})
        return {"id": call_id, "type": "function", "function": function, **extra}


def _split(echo: ReasoningReplay) -> tuple[JsonObject, dict[str, JsonObject]]:
    """The fields of a message, and those of its calls by their ids."""
    fields, *calls = echo.parts
    return fields, {
        str(call["id"]): {name: value for name, value in call.items() if name != "id"}
        for call in calls
    }


def _messages(prompt: Prompt, writer: _Writer) -> list[bytes]:
    messages = [writer.whole(message) for message in prompt.messages]
    if prompt.tail:
        messages.append(encoded({"role": "user", "content": prompt.tail}))
    return messages


def _inside(prompt: Prompt, writer: _Writer) -> list[bytes]:
    """The messages for a server that takes nothing of the user's behind a result.

    What is said from the user's side goes into the message before, as a further text of it.
    """
    written = list[tuple[bytes, list[bytes]]]()
    for message in prompt.messages:
        match message:
            case AssistantMessage():
                written.append((writer.whole(message), []))
            case ToolMessage():
                of = encoded(sent_id(message, writer.family))
                head = b'{"role":"tool","tool_call_id":%s,"content":[' % of
                written.append((head, [part(message, WIRE_INSIDE, _content)]))
            case UserMessage():
                _say(written, part(message, WIRE_INSIDE, _content))
    if prompt.tail:
        _say(written, _content(UserMessage(text=prompt.tail)))
    return [head + b",".join(texts) + b"]}" if texts else head for head, texts in written]


def _say(written: list[tuple[bytes, list[bytes]]], text: bytes) -> None:
    if not written or not written[-1][1]:
        written.append((b'{"role":"user","content":[', []))
    written[-1][1].append(text)


def _content(message: Message) -> bytes:
    """The parts of what is said or came, with commas between them."""
    parts: list[Json] = [{"type": "text", "text": message.text}]
    for attached in message.attachments if isinstance(message, UserMessage) else ():
        parts.extend(_attached(attached))
    return b",".join(map(encoded, parts))


def _attached(attached: Attached) -> Iterator[JsonObject]:
    """The line of a file, and the file where it is given; the form is that of "File inputs"."""
    yield {"type": "text", "text": attached.text}
    if attached.data and is_image(attached):
        image: JsonObject = {"url": data_url(attached), "detail": "high"}
        yield {"type": "image_url", "image_url": image}
    elif attached.data:
        file: JsonObject = {"filename": attached.name, "file_data": data_url(attached)}
        yield {"type": "file", "file": file}
