"""OpenAI's Chat Completions API: requests to `/chat/completions`, and replies as the many servers that imitate it send them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from loopline import models
from loopline.errors import ModelOverloaded, ModelRequestError
from loopline.models.prompt import Channel, choose_call_id, echo_for
from loopline.providers.failures import Credentials, parse_chunk, reports_error, stream_error
from loopline.providers.http import HttpModel
from loopline.providers.reply_parser import CallPiece, PartialObject, ReplyParser
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

FAMILY = "openai"
"""Plain thinking is replayed to any model of this family."""
DETAILS = "reasoning_details"
"""The field in which OpenRouter and compatible servers send encrypted or signed thinking."""
EXTRA = "extra_content"
"""The field in which Google sends the signature of a call."""
_DETAIL_TEXTS: tuple[str, ...] = ("text", "summary")
_DONE = "[DONE]"
_OPENING_TAG = "<think>"
_CLOSING_TAG = "</think>"
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
        """Yield the fields of a request; the tail is the last message, or part of it for the tail kind "inside"."""
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
        """Yield the fields of a request that depend on options and facts; it is streamed, with usage."""
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
        """Yield one API message for a message of the prompt; the files of a tool result are not in it."""
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
        """Return a tool call as JSON, with the provider's tool name and the extra fields received with the call."""
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
    """Return the fields that an echo adds to its message, and those that it adds to each call, by the call's id."""
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
        file: models.JsonObject = {"filename": attached.name, "file_data": data_url(attached)}
        yield {"type": "file", "file": file}


class ThinkTagParser:
    """Separates thinking from text. Thinking begins only with `<think>` at the start of a reply, and ends once."""

    def __init__(self) -> None:
        self._blanks: list[str] = []  # the white space at the start, which thinking drops
        self._pending = ""
        self._state = "before"

    def feed(self, text: str) -> list[models.TextDelta]:
        """Return the text and thinking in the next piece. The end of a piece that may be half a tag is buffered."""
        self._pending += text
        if self._state == "before":
            beginning = self._pending.lstrip()
            if beginning != self._pending:
                self._blanks.append(self._pending.removesuffix(beginning))
            self._pending = beginning.removeprefix(_OPENING_TAG)
            if beginning.startswith(_OPENING_TAG):
                self._state = "thinking"
            elif not _OPENING_TAG.startswith(beginning):
                return self.close()
        thinking = self._think() if self._state == "thinking" else []
        if self._state == "after":  # the answer begins without the line ends before it
            self._pending = self._pending.lstrip("\n")
            self._state = "answer" if self._pending else "after"
        return [*thinking, *(self.close() if self._state == "answer" else [])]

    def close(self) -> list[models.TextDelta]:
        """Return the buffered text at the end of the reply."""
        if self._state == "before":
            self._pending = "".join([*self._blanks, self._pending])
            self._state = "answer"
        return self._release(len(self._pending))

    def _think(self) -> list[models.TextDelta]:
        """Return the buffered thinking before `</think>`, without the tag; keep an end that may be half a tag."""
        end = self._pending.find(_CLOSING_TAG)
        if end < 0:
            sizes = range(len(_CLOSING_TAG) - 1, -1, -1)
            half = next(size for size in sizes if self._pending.endswith(_CLOSING_TAG[:size]))
            return self._release(len(self._pending) - half)
        thinking = self._release(end)
        self._pending = self._pending.removeprefix(_CLOSING_TAG)
        self._state = "after"
        return thinking

    def _release(self, length: int) -> list[models.TextDelta]:
        text = self._pending[:length]
        self._pending = self._pending[length:]
        channel: Channel = "thinking" if self._state == "thinking" else "answer"
        return [models.TextDelta(text=text, channel=channel)] if text else []


class _ReasoningDetails:
    """The reasoning details of one reply, assembled in the form in which OpenRouter expects them again.

    The form is described under "Reasoning tokens" on openrouter.ai/docs. Consecutive pieces with the same type and
    index belong to one detail, but each encrypted piece is a complete detail.
    """

    def __init__(self) -> None:
        self._parts: list[PartialObject] = []
        self._kind: tuple[models.Json, models.Json] | None = None

    @property
    def parts(self) -> list[models.JsonObject]:
        """The details."""
        return [part.value for part in self._parts]

    def add(self, piece: models.JsonObject) -> str:
        """Add a piece, and return its readable text."""
        texts = {name: models.text_in(piece, name) for name in _DETAIL_TEXTS if name in piece}
        fields: models.JsonObject = {
            name: value
            for name, value in piece.items()
            if name not in _DETAIL_TEXTS and value is not None
        }
        described: models.JsonObject = {"type": None, "index": None, **fields}
        kind = (described["type"], described["index"])
        if kind != self._kind or kind[0] == "reasoning.encrypted":
            self._parts.append(PartialObject())
            self._kind = kind
        part = self._parts[-1]
        part.fields.update(fields)
        for name, text in texts.items():
            part.add(name, text)
        return "".join(texts.values())


def _call_piece(piece: models.JsonObject) -> CallPiece:
    """Parse a piece of a tool call; missing fields are empty, and an index that is not a number is None."""
    function = models.object_in(piece, "function")
    index = piece.get("index")
    extra = piece.get(EXTRA)
    return CallPiece(
        index if isinstance(index, int) else None,
        models.text_in(piece, "id"),
        models.text_in(function, "name"),
        function.get("arguments"),
        {EXTRA: extra} if extra else None,
    )


def _texts(content: models.Json) -> Sequence[tuple[str, bool]]:
    """Return the texts of a content, each with a flag for thinking; Mistral sends a list of parts."""
    if isinstance(content, str):
        return ((content, False),)
    texts: list[tuple[str, bool]] = []
    for part in map(models.as_object, models.as_list(content)):
        match part:
            case {"type": "text"}:
                texts.append((models.text_in(part, "text"), False))
            case {"type": "thinking", "thinking": thinking}:
                texts.append(("".join(text for text, _ in _texts(thinking)), True))
            case _:  # a reference, or a type that is newer than this
                pass
    return texts


def usage_in(document: models.JsonObject, sent: str, written: str) -> models.Usage | None:
    """Decode the field `usage` with the counts `<sent>_tokens` and `<written>_tokens`; None without the field."""
    fields = models.object_in(document, "usage")
    if not fields:
        return None
    input_details = models.object_in(fields, f"{sent}_tokens_details")
    output_details = models.object_in(fields, f"{written}_tokens_details")
    cached = models.count_in(input_details, "cached_tokens")
    return models.Usage(
        input_tokens=models.count_in(fields, f"{sent}_tokens"),
        output_tokens=models.count_in(fields, f"{written}_tokens"),
        cache_read_tokens=cached or models.count_in(fields, f"{sent}_cache_hit_tokens"),
        cache_write_tokens=models.count_in(input_details, "cache_write_tokens"),
        reasoning_tokens=models.count_in(output_details, "reasoning_tokens"),
    )


class ChatReplyParser(ReplyParser):
    """Parses a chat completion while it is received. Encrypted thinking is replayed unchanged to models of `family`."""

    is_over: bool
    size: int
    usage: models.Usage | None

    def __init__(
        self, offered: tuple[str, ...], credentials: Credentials, thinking_field: str, family: str
    ) -> None:
        super().__init__(offered, credentials)
        self._thinking_field = thinking_field
        self._family = family
        self._details = _ReasoningDetails()
        self._tags = ThinkTagParser()
        self._finish_reason = ""
        self._refused = False

    def feed(self, data: str) -> Sequence[models.TextDelta]:
        """Decode a chunk and return the text it adds; none for the end mark `[DONE]`.

        Raises:
            ModelError: the chunk reports an error, or is not a JSON object.
        """
        if data.strip() == _DONE:
            self.is_over = True
            return ()
        return self._take(self._parse(data))

    def feed_document(self, data: str) -> Sequence[models.TextDelta]:
        """Decode a completion that was sent as one document, and return its texts.

        Raises:
            ModelRequestError: the document does not have choices.
            ModelError: the document reports an error, or is not a JSON object.
        """
        completion = self._parse(data)
        if not models.objects_in(completion, "choices"):
            raise ModelRequestError(
                f"{self.credentials.model}: the response is not a chat completion"
            )
        self.is_over = True
        return self._take(completion)

    def _parse(self, data: str) -> models.JsonObject:
        chunk = parse_chunk(data, self.credentials)
        if reports_error(chunk):
            raise stream_error(chunk, self.credentials)
        return chunk

    def flush(self) -> Sequence[models.TextDelta]:
        """Return the text that was buffered as half a tag."""
        return self._add_deltas(self._tags.close())

    @property
    def echo(self) -> models.ReasoningReplay | None:
        """The thinking to replay: encrypted, signed, or plain in its own field; None if the server expects no replay."""
        calls: list[models.JsonObject] = [
            {"id": provider_id, **extra}
            for provider_id, extra in self.calls.extras.items()
            if provider_id
        ]
        field = self._thinking_field
        plain: models.JsonObject = {field: self.thinking} if field and self.thinking else {}
        details = self._details.parts
        if details or any(EXTRA in call for call in calls):
            fields: models.JsonObject = {DETAILS: [*details]} if details else plain
            bound = any(models.text_in(detail, "signature") for detail in details)
            return models.ReasoningReplay(wire=self._family, parts=(fields, *calls), bound=bound)
        return models.ReasoningReplay(wire=FAMILY, parts=(plain,), bound=False) if plain else None

    @property
    def stop_reason(self) -> models.StopReason | None:
        """The reason for the end; without a reason, `[DONE]` ends a reply with content and complete calls."""
        if not self._finish_reason:
            has_content = bool(self.calls) or bool(self._text)
            if not (self.is_over and has_content and self.calls.are_complete):
                return None
        if self._refused or self._finish_reason == "content_filter":
            return "refusal"
        if self._finish_reason == "length":
            return "length"
        return "tool_use" if self.calls else "stop"

    def reply(self) -> models.Reply:
        """Return the complete reply.

        Raises:
            ModelOverloaded: the server reported that it failed.
            ModelStreamBroken: the reply has no stop reason.
        """
        if self._finish_reason == "error":
            raise ModelOverloaded(
                f"{self.credentials.model}: the server ended the reply with an error"
            )
        return super().reply()

    def _take(self, chunk: models.JsonObject) -> list[models.TextDelta]:
        self.usage = usage_in(chunk, "prompt", "completion") or self.usage
        choices = models.objects_in(chunk, "choices")
        return [delta for choice in choices for delta in self._take_choice(choice)]

    def _take_choice(self, choice: models.JsonObject) -> Iterator[models.TextDelta]:
        """Add a choice of a chunk, or of a completion that was sent as one document; yield its texts."""
        self._finish_reason = models.text_in(choice, "finish_reason") or self._finish_reason
        delta = models.object_in(choice, "delta") or models.object_in(choice, "message")
        for call in models.objects_in(delta, "tool_calls"):
            self.calls.add(_call_piece(call))
        thinking = models.text_in(delta, "reasoning_content") or models.text_in(delta, "reasoning")
        details = models.objects_in(delta, DETAILS)
        if details:
            self.size += len(str(details))
            detailed = "".join([self._details.add(piece) for piece in details])
            thinking = thinking or detailed
        yield from self.add(thinking, "thinking")
        for text, is_thinking in _texts(delta["content"]) if "content" in delta else ():
            if is_thinking:
                yield from self.add(text, "thinking")
            else:
                self.size += len(text)
                yield from self._add_deltas(self._tags.feed(text))
        refusal = models.text_in(delta, "refusal")
        self._refused = self._refused or bool(refusal)
        yield from self.add(refusal)

    def _add_deltas(self, deltas: Sequence[models.TextDelta]) -> Sequence[models.TextDelta]:
        """Append the deltas, which are not counted again: the text is counted before its tags are parsed."""
        for delta in deltas:
            (self._thinking if delta.channel == "thinking" else self._text).append(delta.text)
        return deltas
