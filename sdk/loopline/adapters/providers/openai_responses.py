"""OpenAI's responses, for the models that want them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from loopline.adapters.providers.failures import Credentials, failed_midway, piece
from loopline.adapters.providers.http_model import HttpModel
from loopline.adapters.providers.reply_parser import ReplyParser
from loopline.adapters.providers.request_bytes import (
    a_count,
    a_list,
    a_text,
    an_object,
    bearing,
    data_url,
    encoded,
    given_back,
    is_image,
    joined,
    part,
    schema_of,
    tool_name,
    wire_name,
)
from loopline.errors import ModelRequestError
from loopline.models import (
    AssistantMessage,
    Attached,
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
    dumps,
)
from loopline.models.prompt import echo_for, sent_id

REASONING = "reasoning.encrypted_content"
"""What has to be asked for where nothing is stored, so that thinking can go back."""


class OpenAiResponses(HttpModel):
    """A model behind `/responses`; nothing is stored there."""

    path = "/responses"

    @property
    def headers(self) -> Mapping[str, str]:
        """The key as a bearer's, if there is one."""
        return bearing(self.account)

    def coming(self, offered: tuple[str, ...]) -> ReplyParser:
        """What reads the next reply."""
        return ResponsesReplyParser(offered, self.account)

    def tool(self, spec: ToolSpec) -> bytes:
        """A tool as it travels."""
        return _tool(spec)

    def body(self, prompt: Prompt) -> bytes:
        """The request as it travels."""
        items = [items for items in (part(one, WIRE, _items) for one in prompt.messages) if items]
        if prompt.tail:
            match prompt.messages[-1:]:
                case [ToolMessage() as last] if prompt.tail_kind == "inside":
                    items[-1] = encoded(_with_tail(last, prompt.tail))
                case _:
                    items.append(encoded({"role": "user", "content": prompt.tail}))
        fields = [("model", encoded(self.model))]
        if prompt.system and _is_any_json(prompt):
            items.insert(0, encoded({"role": "developer", "content": prompt.system}))
        elif prompt.system:
            fields.append(("instructions", encoded(prompt.system)))
        if prompt.tools:
            fields.append(("tools", self.tools(prompt.tools)))
        fields.append(("input", b"[%s]" % b",".join(items)))
        fields += [(name, encoded(value)) for name, value in self._options(prompt)]
        return joined(fields)

    def _options(self, prompt: Prompt) -> Iterator[tuple[str, Json]]:
        options = prompt.options
        yield "stream", True
        yield "store", False
        if self.facts.thinking == "summarized":
            yield "include", [REASONING]
        if self.facts.cache_key and prompt.cache_key:
            yield "prompt_cache_key", prompt.cache_key
        if prompt.tools and options.force_tool:
            yield "tool_choice", {"type": "function", "name": wire_name(options.force_tool)}
        elif prompt.tools and not options.allow_calls:
            yield "tool_choice", "none"
        if options.json_form is not None:
            yield "text", {"format": {"type": "json_schema", **schema_of(options.json_form)}}
        elif _is_any_json(prompt):
            yield "text", {"format": {"type": "json_object"}}
        if options.output_limit is not None:
            yield "max_output_tokens", options.output_limit
        if effort := self.effort(prompt):
            yield "reasoning", {"effort": effort, "summary": "auto"}


def _is_any_json(prompt: Prompt) -> bool:
    """Whether it is held to some JSON object, which is refused where only instructions speak of JSON."""
    return prompt.options.json_object and prompt.options.json_form is None


def _tool(spec: ToolSpec) -> bytes:
    return encoded(
        {
            "type": "function",
            "name": wire_name(spec.name),
            "description": spec.description,
            "parameters": spec.parameters,
            "strict": False,
        }
    )


def _items(message: Message) -> bytes:
    """The items of a message, with commas between them."""
    return b",".join(encoded(item) for item in _written(message))


def _written(message: Message) -> Iterator[JsonObject]:
    match message:
        case UserMessage(text=text, attachments=()):
            yield {"role": "user", "content": text}
        case UserMessage(text=text, attachments=attachments):
            parts: list[Json] = [{"type": "input_text", "text": text}]
            for attached in attachments:
                parts.extend(_attached(attached))
            yield {"role": "user", "content": parts}
        case ToolMessage(text=text) as result:
            yield _output(result, text)
        case AssistantMessage() if items := given_back(
            echo_for(message, WIRE), THOUGHTS, partial(_call, message)
        ):
            yield from items
        case AssistantMessage(text=text, calls=calls):
            if text.strip():
                yield {"role": "assistant", "content": text}
            for call in calls:
                yield {
                    "type": "function_call",
                    "call_id": sent_id(call, WIRE),
                    "name": wire_name(call.name),
                    "arguments": dumps(call.arguments),
                }


def _output(result: ToolMessage, said: Json) -> JsonObject:
    return {"type": "function_call_output", "call_id": sent_id(result, WIRE), "output": said}


def _with_tail(result: ToolMessage, tail: str) -> JsonObject:
    """A result with the tail behind it."""
    return _output(result, [{"type": "input_text", "text": text} for text in (result.text, tail)])


def _call(message: AssistantMessage, item: JsonObject) -> JsonObject | None:
    if item.get("type") != "function_call":
        return item
    for call in message.calls:
        if call.provider_id == item.get("call_id"):
            return {**item, "name": wire_name(call.name), "arguments": dumps(call.arguments)}
    return None


def _attached(attached: Attached) -> Iterator[JsonObject]:
    """The line of a file, and the file where it is given."""
    yield {"type": "input_text", "text": attached.text}
    if attached.data and is_image(attached):
        yield {"type": "input_image", "image_url": data_url(attached), "detail": "high"}
    elif attached.data:
        yield {
            "type": "input_file",
            "filename": attached.name,
            "file_data": data_url(attached),
        }


WIRE = "responses"
THOUGHTS = frozenset({"reasoning"})


class ResponsesReplyParser(ReplyParser):
    """A reply on its way."""

    def __init__(self, offered: tuple[str, ...], account: Credentials) -> None:
        super().__init__(offered, account)
        self._status = self._why = ""
        self._refused = False

    def take(self, data: str) -> Sequence[TextDelta]:
        """What an event adds."""
        event = piece(data, self.account)
        said = a_text(event.get("delta"))
        match event.get("type"):
            case "response.output_text.delta":
                return self.heard(said)
            case "response.refusal.delta":
                self._refused = True
                return self.heard(said)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self.heard(said, is_thought=True)
            case "response.output_item.added":
                self._begun(event.get("output_index"), an_object(event.get("item")))
            case "response.output_item.done":
                self._grow(len(data))
                self._ended(an_object(event.get("item")))
            case "response.function_call_arguments.delta":
                index = a_count(event.get("output_index"))
                self.calls.add(index=index, provider_id="", name="", arguments=said)
            case "response.completed" | "response.incomplete" | "response.failed":
                self._take_end(an_object(event.get("response")))
            case "error":
                raise failed_midway(event, self.account)
            case _:  # what a delta has said already, or what is newer than this
                pass
        return ()

    def take_document(self, data: str) -> Iterator[TextDelta]:
        """What a whole response says."""
        response = piece(data, self.account)
        if not a_list(response.get("output")):
            raise ModelRequestError(f"{self.account.model}: what came is no response")
        for number, item in enumerate(map(an_object, a_list(response.get("output")))):
            self._begun(number, item)
            for piece_of in map(an_object, a_list(item.get("summary"))):
                yield from self.heard(a_text(piece_of.get("text")), is_thought=True)
            for piece_of in map(an_object, a_list(item.get("content"))):
                refusal = a_text(piece_of.get("refusal"))
                self._refused = self._refused or bool(refusal)
                is_thought = item.get("type") == "reasoning"
                yield from self.heard(
                    refusal or a_text(piece_of.get("text")), is_thought=is_thought
                )
            self._ended(item)
        self._take_end(response)

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it ended."""
        if not self._status:
            return None
        if self._refused or self._why == "content_filter":
            return "refusal"
        if self._status == "incomplete":
            return "length"
        return "tool_use" if self.calls else "stop"

    @property
    def echo(self) -> ReasoningReplay | None:
        """The items, where thinking is among them."""
        thinks = any(one.get("type") == "reasoning" for one in self.parts)
        return ReasoningReplay(wire=WIRE, parts=tuple(self.parts)) if thinks else None

    def _begun(self, index: Json, item: JsonObject) -> None:
        if item.get("type") == "function_call":
            self.calls.add(
                index=a_count(index),
                provider_id=a_text(item.get("call_id")),
                name=tool_name(a_text(item.get("name")), self.offered),
                arguments=item.get("arguments"),
            )

    def _ended(self, item: JsonObject) -> None:
        """Keep the item as it is, of a call what the call does not say itself."""
        if item.get("type") == "reasoning" and not item.get("encrypted_content"):
            return  # nobody but the server that stored it could read it again
        left_out = {"name", "arguments"} if item.get("type") == "function_call" else set[str]()
        self.parts.append({name: value for name, value in item.items() if name not in left_out})

    def _take_end(self, response: JsonObject) -> None:
        if response.get("error"):
            raise failed_midway(response, self.account)
        self._end()
        self._status = a_text(response.get("status")) or "completed"
        self._why = a_text(an_object(response.get("incomplete_details")).get("reason"))
        said = an_object(response.get("usage"))
        read = an_object(said.get("input_tokens_details"))
        written = an_object(said.get("output_tokens_details"))
        if said:
            self._use(
                Usage(
                    input_tokens=a_count(said.get("input_tokens")),
                    output_tokens=a_count(said.get("output_tokens")),
                    cache_read_tokens=a_count(read.get("cached_tokens")),
                    cache_write_tokens=a_count(read.get("cache_write_tokens")),
                    reasoning_tokens=a_count(written.get("reasoning_tokens")),
                )
            )
