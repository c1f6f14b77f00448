"""OpenAI's Responses API: requests to `/responses`, and their streamed replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopline import models
from loopline.errors import ModelOverloaded, ModelRequestError
from loopline.models.prompt import Channel, choose_call_id
from loopline.providers.failures import Credentials, parse_chunk, reports_error, stream_error
from loopline.providers.http import HttpModel
from loopline.providers.openai_chat import usage_in
from loopline.providers.reply_parser import CallPiece, ReplyParser
from loopline.providers.request_bytes import (
    CallForm,
    Field,
    data_url,
    encode_json,
    is_image,
    message_bytes,
    openai_schema,
    provider_name,
)

FAMILY = "responses"
"""Replies of this family are replayed unchanged."""
_THINKING_TYPES = frozenset({"reasoning"})
REASONING = "reasoning.encrypted_content"
"""The value of `include` that requests encrypted thinking, which can be replayed without a stored response."""


class OpenAiResponses(HttpModel):
    """A model that is called at `/responses`; the server stores no response."""

    path = "/responses"

    def new_parser(self, offered: tuple[str, ...]) -> ReplyParser:
        """Return a parser for the next reply."""
        return ResponsesReplyParser(offered, self.credentials)

    def tool(self, spec: models.ToolSpec) -> models.JsonObject:
        """Return a tool in the form of the API."""
        return {
            "type": "function",
            "name": provider_name(spec.name),
            "description": spec.description,
            "parameters": spec.parameters,
            "strict": False,
        }

    def fields(self, prompt: models.Prompt) -> Iterator[Field]:
        """Yield the fields of a request; the tail is the last message, or for "inside" part of a last tool result.

        The system text is in `instructions`, or in a first developer message if any JSON is requested.
        """
        encoded = (message_bytes(message, FAMILY, _items) for message in prompt.messages)
        items = [item for item in encoded if item]
        if prompt.tail:
            match prompt.messages[-1:]:
                case [models.ToolMessage() as last] if prompt.tail_kind == "inside":
                    parts: models.Json = [
                        *_parts(last),
                        {"type": "input_text", "text": prompt.tail},
                    ]
                    items[-1] = encode_json(_output(last, parts))
                case _:
                    items.append(encode_json({"role": "user", "content": prompt.tail}))
        yield "model", self.model
        if prompt.system and _is_any_json(prompt):
            items.insert(0, encode_json({"role": "developer", "content": prompt.system}))
        elif prompt.system:
            yield "instructions", prompt.system
        if prompt.tools:
            yield "tools", self.tools_json(prompt.tools)
        yield "input", b"[%s]" % b",".join(items)
        yield from self._options(prompt)

    def _options(self, prompt: models.Prompt) -> Iterator[tuple[str, models.Json]]:
        """Yield the fields of a request that depend on options and facts; it is streamed, and `store` is false."""
        options = prompt.options
        yield "stream", True
        yield "store", False
        if self.facts.thinking == "summarized":
            yield "include", [REASONING]
        if self.facts.cache_key and prompt.cache_key:
            yield "prompt_cache_key", prompt.cache_key
        if prompt.tools and options.force_tool:
            name = provider_name(options.force_tool)
            yield "tool_choice", {"type": "function", "name": name}
        elif prompt.tools and not options.allow_calls:
            yield "tool_choice", "none"
        if options.json_form is not None:
            form = openai_schema(options.json_form)
            yield "text", {"format": {"type": "json_schema", **form}}
        elif _is_any_json(prompt):
            yield "text", {"format": {"type": "json_object"}}
        if options.output_limit is not None:
            yield "max_output_tokens", options.output_limit
        yield from self.setting_fields(prompt)
        if effort := self.effort(prompt):
            yield "reasoning", {"effort": effort, "summary": "auto"}


def _is_any_json(prompt: models.Prompt) -> bool:
    """Return whether the reply must be any JSON object. The API then requires the word JSON outside of instructions."""
    return prompt.options.json_object and prompt.options.json_form is None


def _items(message: models.Message) -> Iterator[models.JsonObject]:
    """Yield the input items of a message; a reply that can be replayed has its received items."""
    match message:
        case models.UserMessage(text=text, attachments=()):
            yield {"role": "user", "content": text}
        case models.UserMessage():
            yield {"role": "user", "content": _parts(message)}
        case models.ToolMessage(text=text, attachments=attachments):
            yield _output(message, _parts(message) if attachments else text)
        case models.AssistantMessage() if items := _CALL.replay(message, FAMILY, _THINKING_TYPES):
            yield from items
        case models.AssistantMessage(text=text, calls=calls):
            if text.strip():
                yield {"role": "assistant", "content": text}
            for call in calls:
                yield _CALL.call(call, FAMILY)


def _call_fields(call: models.ToolCall) -> models.JsonObject:
    return {"name": provider_name(call.name), "arguments": models.dumps(call.arguments)}


_CALL = CallForm("function_call", "call_id", _call_fields)


def _output(result: models.ToolMessage, output: models.Json) -> models.JsonObject:
    return {
        "type": "function_call_output",
        "call_id": choose_call_id(result, FAMILY),
        "output": output,
    }


def _parts(message: models.UserMessage | models.ToolMessage) -> list[models.Json]:
    """Return the text of a message and its files."""
    files = (part for attached in message.attachments for part in _encode_file(attached))
    return [{"type": "input_text", "text": message.text}, *files]


def _encode_file(attached: models.Attached) -> Iterator[models.JsonObject]:
    """Yield the line that names a file, and the file itself if its data is sent."""
    yield {"type": "input_text", "text": attached.text}
    if attached.data and is_image(attached):
        yield {"type": "input_image", "image_url": data_url(attached), "detail": "high"}
    elif attached.data:
        yield {"type": "input_file", "filename": attached.name, "file_data": data_url(attached)}


class ResponsesReplyParser(ReplyParser):
    """Parses a response while it is received."""

    size: int
    usage: models.Usage | None

    def __init__(self, offered: tuple[str, ...], credentials: Credentials) -> None:
        super().__init__(offered, credentials)
        self._status = self._incomplete_reason = ""
        self._refused = self._thinks = False
        self._items: list[models.JsonObject] = []

    def feed(self, data: str) -> Sequence[models.TextDelta]:
        """Decode an event of the stream and return the text it adds; none if it repeats earlier events or is unknown.

        Raises:
            ModelError: the event reports an error or a failed response, or is not a JSON object.
        """
        event = parse_chunk(data, self.credentials)
        delta = models.text_in(event, "delta")
        index = models.count_in(event, "output_index")
        match models.text_in(event, "type"):
            case "response.output_text.delta":
                return self.add(delta)
            case "response.refusal.delta":
                self._refused = True
                return self.add(delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self.add(delta, "thinking")
            case "response.function_call_arguments.delta":
                self.calls.add(CallPiece(index, arguments=delta))
            case "response.output_item.added":
                self._start(index, models.object_in(event, "item"))
            case "response.output_item.done":
                self.size += len(data)
                self._store(models.object_in(event, "item"))
            case "response.completed" | "response.incomplete":
                self._end(models.object_in(event, "response"))
            case "response.failed":
                self._end({**models.object_in(event, "response"), "status": "failed"})
            case "error":
                raise stream_error(event, self.credentials)
            case _:
                pass
        return ()

    def feed_document(self, data: str) -> Iterator[models.TextDelta]:
        """Decode a response that was sent as one document, and yield its texts.

        Raises:
            ModelRequestError: the document does not have items.
            ModelError: the response reports an error, or failed.
        """
        response = parse_chunk(data, self.credentials)
        items = models.objects_in(response, "output")
        if not items:
            raise ModelRequestError(f"{self.credentials.model}: the response is not a reply")
        for index, item in enumerate(items):
            self._start(index, item)
            yield from self._add_texts(item)
            self._store(item)
        self._end(response)

    def _start(self, index: int, item: models.JsonObject) -> None:
        """Start an item; only a call has content at its start."""
        match item:
            case {"type": "function_call", **fields}:
                call_id = models.text_in(fields, "call_id")
                arguments = {"arguments": None, **fields}["arguments"]
                name = models.text_in(fields, "name")
                self.calls.add(CallPiece(index, call_id, name, arguments))
            case _:
                pass

    def _add_texts(self, item: models.JsonObject) -> Iterator[models.TextDelta]:
        """Yield the texts of an item: summaries as thinking, contents as answer or thinking; note a refusal."""
        for part in models.objects_in(item, "summary"):
            yield from self.add(models.text_in(part, "text"), "thinking")
        channel: Channel = "thinking" if models.text_in(item, "type") == "reasoning" else "answer"
        for part in models.objects_in(item, "content"):
            refusal = models.text_in(part, "refusal")
            self._refused = self._refused or bool(refusal)
            yield from self.add(refusal or models.text_in(part, "text"), channel)

    def _store(self, item: models.JsonObject) -> None:
        """Store an item to replay it: a call without its name and arguments, reasoning only if it is encrypted."""
        match item:
            case {"type": "reasoning", "encrypted_content": sealed} if sealed:
                self._thinks = True
            case {"type": "reasoning"}:
                return  # only a server that stored the item could decode it
            case {"type": "function_call"}:
                call_fields = ("name", "arguments")
                item = {name: value for name, value in item.items() if name not in call_fields}
            case _:
                pass
        self._items.append(item)

    def _end(self, response: models.JsonObject) -> None:
        """End the reply with its status and usage.

        Raises the error that the response reports, or a ModelOverloaded if it failed or was cancelled without one.
        """
        if reports_error(response):
            raise stream_error(response, self.credentials)
        self.is_over = True
        self._status = models.text_in(response, "status") or "completed"
        if self._status in ("failed", "cancelled"):
            raise ModelOverloaded(
                f"{self.credentials.model}: the response has {self._status!r} as its status, "
                "and the server gave no reason: try again"
            )
        details = models.object_in(response, "incomplete_details")
        self._incomplete_reason = models.text_in(details, "reason")
        self.usage = usage_in(response, "input", "output") or self.usage

    @property
    def stop_reason(self) -> models.StopReason | None:
        """The reason for the end of the reply, or None if the server has not sent it."""
        if not self._status:
            return None
        if self._refused or self._incomplete_reason == "content_filter":
            return "refusal"
        if self._status == "incomplete":
            return "length"
        return "tool_use" if self.calls else "stop"

    @property
    def echo(self) -> models.ReasoningReplay | None:
        """The items in the order of the reply, or None if the reply has no thinking."""
        return (
            models.ReasoningReplay(wire=FAMILY, parts=tuple(self._items)) if self._thinks else None
        )
