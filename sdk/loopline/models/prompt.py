"""The prompt of a request and the reply to it: messages, tools, options, calls and usage."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Literal

from msgspec import Struct

from loopline.models.json import Json, JsonObject, dumps
from loopline.models.settings import ModelSettings

Purpose = Literal["decision", "answer", "summary", "selection", "title", "search", "lesson"]
ProtocolName = Literal["native", "json", "tagged", "thought_action"]
"""The form of decisions: the provider's own tool calls, or text in one of three forms."""
AnswerWay = Literal["schema", "tool", "words"]
"""How an answer is restricted to a type: by the provider, as arguments of a tool, or by instructions."""
TailKind = Literal["dropped", "inside", "kept", "cleared"]
"""The treatment of the tail, the changing end of a prompt, in the next request.

`dropped` is a last message that the next request omits; `inside` is the last text of the last message, which is omitted
too. `kept` is an ordinary message, which stays. `cleared` is a message that stays too, but the provider hides it from the
model when there is a newer message.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model sees it: its id `<alias>.<function>`, its description, and the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: JsonObject

    def __str__(self) -> str:
        return f"{self.name}: {self.description}"


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call of a tool by the model. `call_id` is our id, `provider_id` the provider's.

    `echoed_on` is the family of models to which the call is sent back unchanged, as its provider wrote it; or "".
    """

    name: str
    arguments: JsonObject
    call_id: str = ""
    provider_id: str = ""
    echoed_on: str = ""

    def __repr__(self) -> str:
        # Stored digests depend on this text, so its fields must not change.
        return (
            f"ToolCall(name={self.name!r}, arguments={self.arguments!r}, call_id={self.call_id!r}, "
            f"provider_id={self.provider_id!r})"
        )

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """An attached file, or an image of a result, in a prompt.

    `text` starts with a line that names the file, and has the file's text or a reason if the model does not get the file.
    `data` is the file in base64, or "" if the model does not get it; `tokens` is its cost.
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


def _quote(text: str) -> str:
    """Return `repr(text)`; for long ASCII texts this takes a quarter of the time."""
    # Every message is digested by its repr, so this is on the path of every round.
    if not text.isascii() or "'" in text:
        return repr(text)
    return f"'{text.encode('unicode_escape').decode()}'"


class _SentMessage(Struct, frozen=True, kw_only=True, dict=True):
    """The cached bytes of a message."""

    @cached_property
    def wire(self) -> dict[str, bytes]:
        """The encoded message by API: a cache that is filled when the message is sent, and not part of the content."""
        return {}


class UserMessage(_SentMessage, frozen=True, kw_only=True):
    """A message of the user or of the loop to the model, with its files.

    With `passing`, the provider hides the message from the model when there is a newer message.
    """

    text: str
    passing: bool = False
    attachments: tuple[Attached, ...] = ()

    def __repr__(self) -> str:
        # Without files the field is omitted, because old digests are of messages without it.
        files = f", attachments={self.attachments!r}" if self.attachments else ""
        return f"UserMessage(text={_quote(self.text)}{files})"

    def __str__(self) -> str:
        return "\n".join(["user: " + self.text, *map(str, self.attachments)])


class ReasoningReplay(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reply with thinking as its provider wrote it; later requests must repeat it unchanged.

    `wire` is the family of models that wrote the reply and accepts it. `parts` are its content blocks or items in order;
    calls in them omit the fields that the `ToolCall` has. If `bound`, the reply may only follow the messages to which it
    replied.
    """

    wire: str
    parts: tuple[JsonObject, ...]
    bound: bool = True

    def __str__(self) -> str:
        return "\n".join(map(repr, self.parts))


class AssistantMessage(_SentMessage, frozen=True, kw_only=True):
    """A message of the model, with its calls.

    `echo` is sent instead to a provider that requires its own reply unchanged.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    echo: ReasoningReplay | None = None

    def __repr__(self) -> str:
        # Stored digests depend on this text, so its fields must not change.
        return f"AssistantMessage(text={_quote(self.text)}, calls={self.calls!r})"

    def __str__(self) -> str:
        lines = [*([self.text] if self.text else []), *map(str, self.calls)]
        return "assistant: " + "\n".join(lines)


class ToolMessage(_SentMessage, frozen=True, kw_only=True):
    """The result of a call with its images; `provider_id` and `echoed_on` are those of the call."""

    call_id: str
    name: str
    text: str
    ok: bool = True
    attachments: tuple[Attached, ...] = ()
    provider_id: str = ""
    echoed_on: str = ""

    def __repr__(self) -> str:
        # Without images the field is omitted, because old digests are of results without it.
        images = f", attachments={self.attachments!r}" if self.attachments else ""
        return (
            f"ToolMessage(call_id={self.call_id!r}, name={self.name!r}, text={_quote(self.text)}, "
            f"ok={self.ok!r}{images})"
        )

    def __str__(self) -> str:
        return "\n".join([f"tool {self.name}: {self.text}", *map(str, self.attachments)])


Message = UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonForm:
    """The form of a JSON object: a JSON Schema, and a name of letters, digits, `_` and `-`.

    A provider can enforce a `strict` form, which lists all properties of each object.
    """

    name: str
    schema: JsonObject
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a request.

    `protocol` is the form of decisions. With `json_object` the provider restricts the text to a JSON object, with
    `json_form` to an object of that form. `force_tool` names the tool that must be called. `output_limit` is in tokens. A
    `reasoning_effort` of "" leaves the effort to the model. The reply ends before the first text of `stop`, if the provider
    supports that. `settings` are the settings that the model supports; their `stop`, `max_tokens` and `reasoning_effort` are
    in the other fields already. With None the model uses its own settings.
    """

    allow_calls: bool = True
    protocol: ProtocolName = "native"
    force_tool: str = ""
    json_object: bool = False
    json_form: JsonForm | None = None
    output_limit: int | None = None
    reasoning_effort: str = ""
    stop: tuple[str, ...] = ()
    settings: ModelSettings | None = None

    def with_settings(self, settings: ModelSettings) -> Options:
        """Return these options with the settings, which must be supported by the model.

        The lower output limit counts, an effort of the settings replaces that of the options, and stop texts are
        added.
        """
        limit = self.output_limit
        if settings.max_tokens is not None:
            limit = settings.max_tokens if limit is None else min(limit, settings.max_tokens)
        return replace(
            self,
            output_limit=limit,
            reasoning_effort=settings.reasoning_effort or self.reasoning_effort,
            stop=(*self.stop, *settings.stops),
            settings=settings,
        )


class Prompt(Struct, frozen=True, kw_only=True):
    """One request. `tail` is its end, which changes in every round; `tail_kind` is its treatment in the next request.

    `cache_points` are ascending numbers of messages; the provider should cache the prompt up to each of them. Requests with
    the same `cache_key` have a common prefix.
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

    def __str__(self) -> str:
        parts = [self.system, *map(str, self.tools), *map(str, self.messages), self.tail]
        return "\n\n".join(part for part in parts if part)


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tokens of requests, as the provider reported them.

    `input_tokens` include those read from a cache or written to it; `output_tokens` include `reasoning_tokens`.
    `unreported` counts the requests without a report of the server; their tokens are not included.
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
"""The usage without any request, and of a reply before its server reports tokens."""

StopReason = Literal["stop", "tool_use", "length", "refusal"]


class Reply(Struct, frozen=True, kw_only=True):
    """A complete reply; `attempt` is the number of the request that it answers, from 1.

    `problem` describes a part of the reply that could not be parsed. `echo` is set if later requests must repeat the reply
    unchanged. `discarded` is text that the protocol does not count as part of the decision.
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
    """Return whether a reply of the family `wire` may be sent back to `family`.

    A family is an API, or an API and a provider: `pydantic-ai:mistral`. A reply without a provider, as in older stores, may
    be sent to all providers with its API.
    """
    return family == wire or family.startswith(f"{wire}:")


def is_field_echo(echo: ReasoningReplay) -> bool:
    """Return whether an echo is sent as additional fields of a chat message, and does not replace its text."""
    return is_of_family("openai", echo.wire)


def count_named_calls(echo: ReasoningReplay, calls: Sequence[ToolCall]) -> int:
    """Count the calls that a part of the reply names by the provider's id."""
    return sum(any(call.provider_id in part.values() for part in echo.parts) for call in calls)


def choose_call_id(call: ToolCall | ToolMessage, family: str) -> str:
    """Return the id of a call, or of its result, in a request to this family.

    It is the provider's id if the family gets the reply with the call unchanged, and our id if not.
    """
    is_echoed = bool(call.echoed_on) and is_of_family(call.echoed_on, family)
    return call.provider_id if is_echoed else call.call_id


def echo_for(message: AssistantMessage, family: str) -> ReasoningReplay | None:
    """Return the echo if it is sent unchanged to this family; None if the text and calls are sent instead.

    An echo contains all calls of its reply, or none of them: an echo of plain thinking is sent in addition to the calls.
    """
    echo = message.echo
    calls = message.calls
    if echo is None or not is_of_family(echo.wire, family):
        return None
    if all(call.echoed_on for call in calls):
        return echo
    return None if echo.bound or count_named_calls(echo, calls) else echo


def breaks_off(prompt: Prompt, family: str) -> bool:
    """Return whether the last reply of the model has calls, and its thinking cannot be sent to this family."""
    replies = (item for item in reversed(prompt.messages) if isinstance(item, AssistantMessage))
    message = next(replies, None)
    return message is not None and bool(message.calls) and echo_for(message, family) is None


_PLAIN = (string.ascii_letters + " ").encode()


def estimate(text: str) -> int:
    """Estimate the tokens of a text, rather too high: a token for four ASCII letters or spaces, or two other bytes.

    Tokenizers split digits, punctuation and other scripts into more tokens; a Chinese character of three bytes counts as
    one and a half.
    """
    data = text.encode("utf-8", "surrogatepass")
    dense = len(data.translate(None, _PLAIN))
    return -(-(len(data) - dense) // 4) + -(-dense // 2)


def fitting(entries: Sequence[str], limit: int | None) -> list[str]:
    """Return the first entries that have at most `limit` tokens together, with a line break after each; all for None."""
    if limit is None:
        return list(entries)
    totals = accumulate(estimate(f"{entry}\n") for entry in entries)
    return [entry for entry, total in zip(entries, totals, strict=True) if total <= limit]


def cost(message: Message) -> int:
    """Estimate the tokens of a message as it is sent, including its files and its echo."""
    return cost_of_text(message, repr(message)) + cost_of_files(message)


def cost_of_text(message: Message, written: str) -> int:
    """Estimate the tokens of a message without its files; `written` is its repr. A passing message costs 0."""
    match message:
        case UserMessage(passing=True):
            return 0  # the provider hides it from the model
        case AssistantMessage(text=text, calls=calls, echo=ReasoningReplay() as echo):
            text_tokens = estimate(text) if is_field_echo(echo) else 0
            return text_tokens + estimate(str(echo)) + sum(estimate(repr(call)) for call in calls)
        case _:
            return estimate(written)


def tools_text(specs: Sequence[ToolSpec]) -> str:
    """Return the tools as JSON, in the form that is stored and digested."""
    tools: list[Json] = [
        {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
        for spec in specs
    ]
    return dumps(tools)


def cost_of_prompt(prompt: Prompt) -> int:
    """Estimate the tokens of a complete request."""
    tools = tools_text(prompt.tools) if prompt.tools else ""
    texts = [prompt.system, prompt.tail, tools]
    return sum(map(cost, prompt.messages)) + sum(map(estimate, texts))


def cost_of_files(message: Message) -> int:
    """Return the tokens of the files that the model gets with a message."""
    match message:
        case UserMessage(attachments=attachments) | ToolMessage(attachments=attachments):
            return sum([attached.tokens for attached in attachments]) if attachments else 0
        case _:
            return 0
