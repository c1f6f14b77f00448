"""OpenAI's responses, for the models that want them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from loopline.adapters.wires.bytes import (
    data_url,
    encoded,
    given_back,
    is_image,
    joined,
    part,
    wire_name,
)
from loopline.adapters.wires.response_events import THOUGHTS, WIRE, ComingResponse
from loopline.adapters.wires.wired import Coming, WireModel, bearing, schema_of
from loopline.models import (
    AssistantMessage,
    Attached,
    Json,
    JsonObject,
    Message,
    Prompt,
    ToolMessage,
    ToolSpec,
    UserMessage,
    dumps,
)
from loopline.models.call_ids import echo_for, sent_id

REASONING = "reasoning.encrypted_content"
"""What has to be asked for where nothing is stored, so that thinking can go back."""


class OpenAiResponses(WireModel):
    """A model behind `/responses`; nothing is stored there."""

    path = "/responses"

    @property
    def headers(self) -> Mapping[str, str]:
        """The key as a bearer's, if there is one."""
        return bearing(self.account)

    def coming(self, offered: tuple[str, ...]) -> Coming:
        """What reads the next reply."""
        return ComingResponse(offered, self.account)

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
