"""OpenAI's chat completions, as OpenAI and many other servers speak them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from loopline.adapters.wires.bytes import (
    a_count,
    a_list,
    an_object,
    data_url,
    encoded,
    is_image,
    joined,
    part,
    tool_name,
    wire_name,
)
from loopline.adapters.wires.failing import Account, failed_midway, piece
from loopline.adapters.wires.thinking import ThinkTags
from loopline.adapters.wires.wired import Coming, WireModel, bearing, schema_of
from loopline.models import (
    AssistantMessage,
    Attached,
    Echo,
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
    dumps,
)
from loopline.models.call_ids import echo_for, sent_id

WIRE = "openai"
WIRE_INSIDE = "openai.inside"
_DONE = "[DONE]"


class OpenAiChat(WireModel):
    """A model behind `/chat/completions`."""

    path = "/chat/completions"

    @property
    def headers(self) -> Mapping[str, str]:
        """The key as a bearer's, if there is one."""
        return bearing(self.account)

    def coming(self, offered: tuple[str, ...]) -> Coming:
        """What reads the next reply."""
        return _Coming(offered, self.account, self.facts.thinking_field)

    def tool(self, spec: ToolSpec) -> bytes:
        """A tool as it travels."""
        return _tool(spec)

    def body(self, prompt: Prompt) -> bytes:
        """The request as it travels."""
        made = _inside if prompt.tail_kind == "inside" else _messages
        messages = made(prompt, self.facts.thinking_field)
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


def _messages(prompt: Prompt, thinking_field: str) -> list[bytes]:
    messages = [_whole(message, thinking_field) for message in prompt.messages]
    if prompt.tail:
        messages.append(encoded({"role": "user", "content": prompt.tail}))
    return messages


def _inside(prompt: Prompt, thinking_field: str) -> list[bytes]:
    """The messages for a server that takes nothing of the user's behind a result.

    What is said from the user's side goes into the message before, as a further text of it.
    """
    written = list[tuple[bytes, list[bytes]]]()
    for message in prompt.messages:
        match message:
            case AssistantMessage():
                written.append((_whole(message, thinking_field), []))
            case ToolMessage():
                of = encoded(sent_id(message, WIRE))
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


def _whole(message: Message, thinking_field: str) -> bytes:
    """The bytes of a message, which are other ones where thinking has a field."""
    wire = f"{WIRE}.{thinking_field}" if thinking_field else WIRE
    return part(message, wire, partial(_encoded, thinking_field))


def _encoded(thinking_field: str, message: Message) -> bytes:
    """A message; where thinking has a field, calls have it even without any."""
    match message:
        case UserMessage(text=text, attachments=()):
            return encoded({"role": "user", "content": text})
        case UserMessage():
            return b'{"role":"user","content":[%s]}' % _content(message)
        case ToolMessage(text=text):
            return encoded(
                {"role": "tool", "tool_call_id": sent_id(message, WIRE), "content": text}
            )
        case AssistantMessage(text=text, calls=calls):
            echo = echo_for(message, WIRE)
            said: JsonObject = {"role": "assistant", "content": text or None}
            if thinking_field and calls:
                said[thinking_field] = ""
            if thinking_field and echo is not None:
                said.update(echo.parts[0])
            if calls:
                said["tool_calls"] = [
                    {
                        "id": sent_id(call, WIRE),
                        "type": "function",
                        "function": {
                            "name": wire_name(call.name),
                            "arguments": dumps(call.arguments),
                        },
                    }
                    for call in calls
                ]
            return encoded(said)


def _attached(attached: Attached) -> Iterator[JsonObject]:
    """The line of a file, and the file where it is given; the form is that of "File inputs"."""
    yield {"type": "text", "text": attached.text}
    if attached.data and is_image(attached):
        image: JsonObject = {"url": data_url(attached), "detail": "high"}
        yield {"type": "image_url", "image_url": image}
    elif attached.data:
        file: JsonObject = {"filename": attached.name, "file_data": data_url(attached)}
        yield {"type": "file", "file": file}


def _chunk(data: str, account: Account) -> JsonObject:
    chunk = piece(data, account)
    if chunk.get("error"):
        raise failed_midway(chunk, account)
    return chunk


class _Coming(Coming):
    """A reply on its way."""

    def __init__(self, offered: tuple[str, ...], account: Account, thinking_field: str) -> None:
        super().__init__(offered, account)
        self._thinking_field = thinking_field
        self._tags = ThinkTags()
        self._finish = ""
        self._refused = False

    def take(self, data: str) -> Iterator[TextDelta]:
        """What a chunk adds."""
        if data == _DONE:
            self.is_over = True
            return
        chunk = _chunk(data, self.account)
        usage = an_object(chunk.get("usage"))
        if usage:
            self.usage = _usage(usage)
        for choice in map(an_object, a_list(chunk.get("choices"))):
            self._finish = str(choice.get("finish_reason") or self._finish)
            delta = an_object(choice.get("delta")) or an_object(choice.get("message"))
            for one in map(an_object, a_list(delta.get("tool_calls"))):
                self._take_call(one)
            yield from self._take_text(delta)

    def rest(self) -> Iterator[TextDelta]:
        """What was held back for half a tag."""
        yield from self._told(self._tags.close())

    @property
    def echo(self) -> Echo | None:
        """The thinking, where the server wants it back."""
        if not self._thinking_field or not self.thoughts:
            return None
        return Echo(wire=WIRE, parts=({self._thinking_field: self.thoughts},), bound=False)

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it ended."""
        if self._refused or self._finish == "content_filter":
            return "refusal"
        if self._finish == "length":
            return "length"
        if not self._finish:
            return None
        return "tool_use" if self.calls else "stop"

    def _take_call(self, part_of: JsonObject) -> None:
        function, index = an_object(part_of.get("function")), part_of.get("index")
        name = str(function.get("name") or "")
        self.calls.add(
            index=index if isinstance(index, int) else None,
            provider_id=str(part_of.get("id") or ""),
            name=tool_name(name, self.offered) if name else "",
            arguments=function.get("arguments"),
        )

    def _take_text(self, delta: JsonObject) -> Iterator[TextDelta]:
        refusal = str(delta.get("refusal") or "")
        self._refused = self._refused or bool(refusal)
        thought = str(delta.get("reasoning_content") or delta.get("reasoning") or "")
        yield from self.heard(thought, is_thought=True)
        text = delta.get("content")
        if isinstance(text, str) and text:
            yield from self._told(self._tags.feed(text))
        yield from self.heard(refusal)

    def _told(self, deltas: Iterable[TextDelta]) -> Iterator[TextDelta]:
        for delta in deltas:
            yield from self.heard(delta.text, is_thought=delta.channel == "thinking")


def _usage(said: JsonObject) -> Usage:
    details = an_object(said.get("prompt_tokens_details"))
    cached = details.get("cached_tokens") or said.get("prompt_cache_hit_tokens")
    return Usage(
        input_tokens=a_count(said.get("prompt_tokens")),
        output_tokens=a_count(said.get("completion_tokens")),
        cache_read_tokens=a_count(cached),
        cache_write_tokens=a_count(details.get("cache_write_tokens")),
    )
