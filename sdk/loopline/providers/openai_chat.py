"""OpenAI's Chat Completions API: requests to `/chat/completions`, which many servers accept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from loopline import models
from loopline.models.prompt import choose_call_id, echo_for
from loopline.providers.http import HttpModel
from loopline.providers.openai_chunks import DETAILS, FAMILY, ChatReplyParser
from loopline.providers.reply_parser import ReplyParser
from loopline.providers.request_bytes import (
    Field,
    data_url,
    encode_json,
    is_image,
    join_parts,
    message_bytes,
    openai_schema,
    provider_name,
)

INSIDE_KEY = "openai.inside"
IMAGES_KEY = "openai.images"


class OpenAiChat(HttpModel):
    """A model that is called at `/chat/completions`."""

    path = "/chat/completions"

    @cached_property
    def family(self) -> str:
        """The family of this model: encrypted thinking is replayed only to the model that encrypted it."""
        return f"{FAMILY}:{self.name}"

    @cached_property
    def _bytes_key(self) -> str:
        """The key of a message's bytes: they depend on the model and on its thinking field."""
        return f"{self.family} {self.facts.thinking_field}"

    def new_parser(self, offered: tuple[str, ...]) -> ReplyParser:
        """Return a parser for the next reply."""
        return ChatReplyParser(offered, self.credentials, self.facts.thinking_field, self.family)

    def tool(self, spec: models.ToolSpec) -> models.JsonObject:
        """Return a tool in the form of the API."""
        function: models.JsonObject = {
            "name": provider_name(spec.name),
            "description": spec.description,
            "parameters": spec.parameters,
        }
        return {"type": "function", "function": function}

    def fields(self, prompt: models.Prompt) -> Iterator[Field]:
        """Yield the fields of a request."""
        if prompt.tail_kind == "inside":
            messages = self._messages_with_tail_inside(prompt)
        else:
            messages = [*self._messages(prompt)]
            if prompt.tail:
                messages.append(encode_json({"role": "user", "content": prompt.tail}))
        if prompt.system:
            messages.insert(0, encode_json({"role": "system", "content": prompt.system}))
        yield "model", self.model
        yield "messages", b"[%s]" % b",".join(messages)
        if prompt.tools:
            yield "tools", self.tools_json(prompt.tools)
        yield from self._options(prompt)

    def _options(self, prompt: models.Prompt) -> Iterator[tuple[str, models.Json]]:
        options = prompt.options
        yield "stream", True
        yield "stream_options", {"include_usage": True}
        if prompt.tools and options.force_tool:
            function: models.JsonObject = {"name": provider_name(options.force_tool)}
            yield "tool_choice", {"type": "function", "function": function}
        elif prompt.tools and not options.allow_calls:
            yield "tool_choice", "none"
        if options.json_form is not None:
            form = openai_schema(options.json_form)
            yield "response_format", {"type": "json_schema", "json_schema": form}
        elif options.json_object:
            yield "response_format", {"type": "json_object"}
        if options.output_limit is not None:
            yield self.facts.output_parameter, options.output_limit
        if options.stop and self.facts.stop:
            yield "stop", list(options.stop)
        yield from self.setting_fields(prompt)
        if self.facts.cache_key and prompt.cache_key:
            yield "prompt_cache_key", prompt.cache_key
        if self.facts.thinking_off == "disabled" and options.reasoning_effort == "none":
            yield "thinking", {"type": "disabled"}
        elif effort := self.effort(prompt):
            yield "reasoning_effort", effort

    def _messages(self, prompt: models.Prompt) -> Iterator[bytes]:
        """Yield the messages; the images of the results of a round follow them in one user message."""
        images: list[bytes] = []
        for message in prompt.messages:
            if images and not isinstance(message, models.ToolMessage):
                yield _image_message(images)
                images.clear()
            yield self._message(message)
            if isinstance(message, models.ToolMessage) and message.attachments:
                images.append(message_bytes(message, IMAGES_KEY, _images))
        if images:
            yield _image_message(images)

    def _message(self, message: models.Message) -> bytes:
        return message_bytes(message, self._bytes_key, self._fields)

    def _fields(self, message: models.Message) -> Iterator[models.JsonObject]:
        match message:
            case models.UserMessage(text=text, attachments=()):
                yield {"role": "user", "content": text}
            case models.UserMessage():
                yield {"role": "user", "content": [*_content(message)]}
            case models.ToolMessage(text=text):
                call_id = choose_call_id(message, self.family)
                yield {"role": "tool", "tool_call_id": call_id, "content": text}
            case models.AssistantMessage():
                yield self._assistant(message)

    def _assistant(self, message: models.AssistantMessage) -> models.JsonObject:
        """Return a message of the model. A message with calls always has the thinking field, which may be empty."""
        fields: models.JsonObject = {"role": "assistant", "content": message.text or None}
        echo = echo_for(message, self.family)
        field = self.facts.thinking_field
        replayed, extras = ({}, {}) if echo is None else _split(echo)
        if field and message.calls and DETAILS not in replayed:
            fields[field] = ""
        fields.update((name, replayed[name]) for name in (DETAILS, field) if name in replayed)
        if message.calls:
            fields["tool_calls"] = [self._call(call, extras) for call in message.calls]
        return fields

    def _call(
        self, call: models.ToolCall, extras: Mapping[str, models.JsonObject]
    ) -> models.JsonObject:
        call_id = choose_call_id(call, self.family)
        function: models.JsonObject = {
            "name": provider_name(call.name),
            "arguments": models.dumps(call.arguments),
        }
        extra = extras.get(call_id, {})
        return {"id": call_id, "type": "function", "function": function, **extra}

    def _messages_with_tail_inside(self, prompt: models.Prompt) -> list[bytes]:
        """Return the messages for a server that refuses a user message directly after a tool result.

        The text of such a user message is appended to the tool result.
        """
        messages: list[tuple[bytes, list[bytes]]] = []
        for message in prompt.messages:
            match message:
                case models.AssistantMessage():
                    messages.append((self._message(message), []))
                case models.ToolMessage():
                    call_id = encode_json(choose_call_id(message, self.family))
                    head = b'{"role":"tool","tool_call_id":%s,"content":[' % call_id
                    messages.append((head, [message_bytes(message, INSIDE_KEY, _content)]))
                case models.UserMessage():
                    _append_text(messages, message_bytes(message, INSIDE_KEY, _content))
        if prompt.tail:
            _append_text(messages, join_parts(_content(models.UserMessage(text=prompt.tail))))
        return [head + b",".join(texts) + b"]}" if texts else head for head, texts in messages]


def _split(echo: models.ReasoningReplay) -> tuple[models.JsonObject, dict[str, models.JsonObject]]:
    """Return the replayed fields of the message, and the replayed fields of its calls by their ids."""
    fields, *calls = echo.parts
    return fields, {
        str(call["id"]): {name: value for name, value in call.items() if name != "id"}
        for call in calls
    }


def _append_text(messages: list[tuple[bytes, list[bytes]]], text: bytes) -> None:
    if not messages or not messages[-1][1]:
        messages.append((b'{"role":"user","content":[', []))
    messages[-1][1].append(text)


def _content(message: models.Message) -> Iterator[models.JsonObject]:
    yield {"type": "text", "text": message.text}
    yield from _images(message)


def _images(message: models.Message) -> Iterator[models.JsonObject]:
    """Yield the files of a message. In Chat Completions only user messages may have images, results may not."""
    for attached in () if isinstance(message, models.AssistantMessage) else message.attachments:
        yield from _encode_file(attached)


def _image_message(images: Sequence[bytes]) -> bytes:
    return b'{"role":"user","content":[' + b",".join(images) + b"]}"


def _encode_file(attached: models.Attached) -> Iterator[models.JsonObject]:
    """Yield the line that names a file, and the file itself if its data is sent, as in "File inputs"."""
    yield {"type": "text", "text": attached.text}
    if attached.data and is_image(attached):
        image: models.JsonObject = {"url": data_url(attached), "detail": "high"}
        yield {"type": "image_url", "image_url": image}
    elif attached.data:
        file: models.JsonObject = {
            "filename": attached.name,
            "file_data": data_url(attached),
        }
        yield {"type": "file", "file": file}
