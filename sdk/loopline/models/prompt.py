"""The prompt of a request and the reply to it: messages, tools, options, calls and usage."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Literal

from msgspec import Struct

from loopline.models.json import Json, JsonObject, dumps

Purpose = Literal["decision", "answer", "summary", "selection", "title", "search", "lesson"]
ProtocolName = Literal["native", "json", "tagged", "thought_action"]
"""How decisions travel: as the provider's own calls, or as text of one of three forms."""
AnswerWay = Literal["schema", "tool", "words"]
"""How an answer is held to a type: by the provider, as arguments of a tool, or by instructions."""
TailKind = Literal["dropped", "inside", "kept", "cleared"]
"""What happens to the volatile end of a prompt in the next request.

`dropped` is a last message that the next request leaves out; `inside`, the last text of the last message,
left out too. `kept` is an ordinary message, which stays. `cleared` stays as well, and the provider itself
hides it from the model once there is a newer message.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model sees it: its id `<alias>.<function>`, its description, and a JSON Schema."""

    name: str
    description: str
    parameters: JsonObject

    def __str__(self) -> str:
        return f"{self.name}: {self.description}"


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call of a tool by the model. `call_id` is ours, `provider_id` the provider's.

    `echoed_on` is the family to which it goes back as its provider wrote it, empty if to none.
    """

    name: str
    arguments: JsonObject
    call_id: str = ""
    provider_id: str = ""
    echoed_on: str = ""

    def __repr__(self) -> str:
        # Digests are made of it.
        return (
            f"ToolCall(name={self.name!r}, arguments={self.arguments!r}, call_id={self.call_id!r}, "
            f"provider_id={self.provider_id!r})"
        )

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A file that the user attached, or an image that a result shows, as a prompt shows it.

    `text` is a line that names the file; it also replaces the file for a model that does not get it. `data` is the file
    in base64, empty if the model does not get it; `tokens` is its cost.
    """

    ref: str
    name: str
    mime: str
    sha256: str
    text: str
    tokens: int = 0
    data: str = field(default="", repr=False, compare=False)

    def __str__(self) -> str:
        return self.text


def _quoted(text: str) -> str:
    """Return `repr(text)`, a long text of ASCII in a quarter of the time."""
    if not text.isascii() or "'" in text:
        return repr(text)
    return f"'{text.encode('unicode_escape').decode()}'"


class _SentMessage(Struct, frozen=True, kw_only=True, dict=True):
    """What messages have in common."""

    @cached_property
    def wire(self) -> dict[str, bytes]:
        """The bytes of the message for each API, as far as they were made; they are no part of the content."""
        return {}


class UserMessage(_SentMessage, frozen=True, kw_only=True):
    """A message of the user or of the loop to the model, with its files.

    A `passing` one is shown to the model only until there is a newer message, if the provider sees to
    that.
    """

    text: str
    passing: bool = False
    attachments: tuple[Attached, ...] = ()

    def __repr__(self) -> str:
        # The digest of a message without files stays the same as before messages had files.
        files = f", attachments={self.attachments!r}" if self.attachments else ""
        return f"UserMessage(text={_quoted(self.text)}{files})"

    def __str__(self) -> str:
        return "\n".join(["user: " + self.text, *map(str, self.attachments)])


class ReasoningReplay(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reply with thinking as its provider wrote it; the provider wants it back unchanged.

    `wire` is the family of models that it came from and may go back to. `parts` are content blocks or
    items in their order; calls among them lack what the calls themselves say. A `bound` reply goes back
    only behind the messages that it came behind.
    """

    wire: str
    parts: tuple[JsonObject, ...]
    bound: bool = True

    def __str__(self) -> str:
        return "\n".join(map(repr, self.parts))


class AssistantMessage(_SentMessage, frozen=True, kw_only=True):
    """A message of the model, with its calls.

    A provider that wants its reply back gets the `echo` instead.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    echo: ReasoningReplay | None = None

    def __repr__(self) -> str:
        # Digests are made of it, as of the calls.
        return f"AssistantMessage(text={_quoted(self.text)}, calls={self.calls!r})"

    def __str__(self) -> str:
        lines = [*([self.text] if self.text else []), *map(str, self.calls)]
        return "assistant: " + "\n".join(lines)


class ToolMessage(_SentMessage, frozen=True, kw_only=True):
    """The result of a call, with the images that it shows; `provider_id` and `echoed_on` are those of the call."""

    call_id: str
    name: str
    text: str
    ok: bool = True
    attachments: tuple[Attached, ...] = ()
    provider_id: str = ""
    echoed_on: str = ""

    def __repr__(self) -> str:
        # The digest of a result without images stays the same as before results had images.
        images = f", attachments={self.attachments!r}" if self.attachments else ""
        return (
            f"ToolMessage(call_id={self.call_id!r}, name={self.name!r}, text={_quoted(self.text)}, "
            f"ok={self.ok!r}{images})"
        )

    def __str__(self) -> str:
        return "\n".join([f"tool {self.name}: {self.text}", *map(str, self.attachments)])


Message = UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonForm:
    """The form of a JSON object: a JSON Schema under a name of letters, digits, `_` and `-`.

    A `strict` one leaves nothing open, so that a provider can hold a model to it.
    """

    name: str
    schema: JsonObject
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the model must answer.

    `protocol` is how a decision travels. `json_object` asks the provider for a text that is one JSON
    object, `json_form` for one of this form. `force_tool` names the tool that must be called.
    `output_limit` is in tokens. `reasoning_effort` is empty if the model decides. The reply ends before
    any of the texts in `stop`, if the provider supports that.
    """

    allow_calls: bool = True
    protocol: ProtocolName = "native"
    force_tool: str = ""
    json_object: bool = False
    json_form: JsonForm | None = None
    output_limit: int | None = None
    reasoning_effort: str = ""
    stop: tuple[str, ...] = ()


class Prompt(Struct, frozen=True, kw_only=True):
    """One request. `tail` is its end, which changes in every round, and `tail_kind` how the next request treats it.

    `cache_points` are rising numbers of messages; the provider is asked to cache the prompt up to each. Requests with
    the same `cache_key` begin alike.
    """

    system: str
    tools: tuple[ToolSpec, ...] = ()
    messages: tuple[Message, ...] = ()
    tail: str = ""
    tail_kind: TailKind = "dropped"
    options: Options = Options()
    purpose: Purpose = "decision"
    cache_points: tuple[int, ...] = ()
    cache_key: str = ""

    @property
    def last_assistant_message(self) -> AssistantMessage | None:
        """The last message of the model."""
        replies = (item for item in reversed(self.messages) if isinstance(item, AssistantMessage))
        return next(replies, None)

    def __str__(self) -> str:
        parts = [self.system, *map(str, self.tools), *map(str, self.messages), self.tail]
        return "\n\n".join(part for part in parts if part)


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tokens of requests, as the provider reported them.

    `input_tokens` include those read from a cache or written into one, `output_tokens` include
    `reasoning_tokens`. `unreported` counts the requests whose server reported nothing: their tokens are
    in no sum.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    unreported: int = 0

    @property
    def total_tokens(self) -> int:
        """The input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, usage: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + usage.input_tokens,
            output_tokens=self.output_tokens + usage.output_tokens,
            cache_read_tokens=self.cache_read_tokens + usage.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + usage.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + usage.reasoning_tokens,
            unreported=self.unreported + usage.unreported,
        )


NO_USAGE = Usage()
"""The usage of a reply whose tokens nobody reported, and of no request."""

StopReason = Literal["stop", "tool_use", "length", "refusal"]


class Reply(Struct, frozen=True, kw_only=True):
    """A complete reply, and at which attempt it came; `problem` says what of it could not be read.

    `echo` is set if the provider wants its thinking back. `discarded` is text that the protocol found to be
    no part of the decision.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    echo: ReasoningReplay | None = None
    problem: str = ""
    stop_reason: StopReason = "stop"
    usage: Usage = NO_USAGE
    attempt: int = 1
    discarded: str = ""


Channel = Literal["answer", "thinking"]


class TextDelta(Struct, frozen=True, kw_only=True):
    """A piece of the reply while it is being written."""

    text: str
    channel: Channel = "answer"


def is_of_family(wire: str, family: str) -> bool:
    """Return whether a reply of the family `wire` may go back to `family`.

    A family is an API, or an API and a provider: `pydantic-ai:mistral`. A reply that names no provider, as
    in older stores, goes back to all of its API.
    """
    return family == wire or family.startswith(f"{wire}:")


def is_beside(echo: ReasoningReplay) -> bool:
    """Return whether it goes back beside the text, as fields of a chat message, and not in its place."""
    return is_of_family("openai", echo.wire)


def count_named_calls(echo: ReasoningReplay, calls: Sequence[ToolCall]) -> int:
    """Return how many of these calls a part of the reply names by the provider's id."""
    return sum(any(call.provider_id in part.values() for part in echo.parts) for call in calls)


def sent_id(call: ToolCall | ToolMessage, family: str) -> str:
    """Return the id under which a call, or its result, is sent to this family.

    The provider's own id is sent only with the reply that it came in, and only to the family that wrote
    both; otherwise ours.
    """
    is_echoed = bool(call.echoed_on) and is_of_family(call.echoed_on, family)
    return call.provider_id if is_echoed else call.call_id


def echo_for(message: AssistantMessage, family: str) -> ReasoningReplay | None:
    """Return the reply unchanged for the family that wrote it; None if its text and calls are sent instead.

    It contains all of the reply's calls or none: plain thinking names no call, so it is sent beside the calls.
    """
    echo, calls = message.echo, message.calls
    if echo is None or not is_of_family(echo.wire, family):
        return None
    if all(call.echoed_on for call in calls):
        return echo
    return None if echo.bound or count_named_calls(echo, calls) else echo


def breaks_off(prompt: Prompt, family: str) -> bool:
    """Return whether this family would have to continue behind calls whose thinking it cannot see."""
    message = prompt.last_assistant_message
    return message is not None and bool(message.calls) and echo_for(message, family) is None


_PLAIN = (string.ascii_letters + " ").encode()


def estimate(text: str) -> int:
    """Return a safe estimate: four letters or spaces to a token, and two bytes of everything else.

    Digits, punctuation and other scripts are what tokenizers split finest; a Chinese character of
    three bytes counts for one and a half.
    """
    data = text.encode("utf-8", "surrogatepass")
    dense = len(data.translate(None, _PLAIN))
    return -(-(len(data) - dense) // 4) + -(-dense // 2)


def fitting(entries: Sequence[str], limit: int | None) -> list[str]:
    """Return the first entries that together cost at most `limit` tokens, each on lines of its own."""
    if limit is None:
        return list(entries)
    totals = accumulate(estimate(f"{entry}\n") for entry in entries)
    return [entry for entry, total in zip(entries, totals, strict=True) if total <= limit]


def cost(message: Message) -> int:
    """Return the tokens of a message as it is sent: with its files, or as its provider gets it back."""
    return cost_of_text(message, repr(message)) + cost_of_files(message)


def cost_of_text(message: Message, written: str) -> int:
    """Return the tokens of a message without its files; `written` is its repr."""
    match message:
        case UserMessage(passing=True):
            return 0  # the provider has forgotten it
        case AssistantMessage(text=text, calls=calls, echo=ReasoningReplay() as echo):
            text_tokens = estimate(text) if is_beside(echo) else 0
            return text_tokens + estimate(str(echo)) + sum(estimate(repr(call)) for call in calls)
        case _:
            return estimate(written)


def cost_of_prompt(prompt: Prompt) -> int:
    """Return the tokens of a request, by the same estimate."""
    tools: list[Json] = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in prompt.tools
    ]
    texts = [prompt.system, prompt.tail, *([dumps(tools)] if tools else [])]
    return sum(map(cost, prompt.messages)) + sum(map(estimate, texts))


def cost_of_files(message: Message) -> int:
    """Return the tokens of the files that the model is given with a message."""
    match message:
        case UserMessage(attachments=attachments) | ToolMessage(attachments=attachments):
            return sum([attached.tokens for attached in attachments]) if attachments else 0
        case _:
            return 0
