"""What a model is asked: system text, tools, messages and a tail, all of them values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from loopline.models.json import JsonObject

Purpose = Literal["decision", "answer", "summary", "selection", "title"]
ProtocolName = Literal["native", "json", "tagged", "thought_action"]
"""How decisions travel: as the provider's own calls, or as text of one of three forms."""
AnswerWay = Literal["schema", "tool", "words"]
"""How an answer is held to a type: by the provider, as arguments of a tool, or by instructions."""
TailKind = Literal["dropped", "inside", "kept", "cleared"]
"""What becomes of the volatile end of a prompt in the next request.

`dropped` is a last message that is gone then; `inside`, the last text of the last message, gone too.
`kept` is a message like others, which stays. `cleared` stays as well, and the provider itself no longer
shows it to the model once something newer was said.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a model sees of a tool: its id `<alias>.<function>`, its purpose, and a JSON Schema."""

    name: str
    description: str
    parameters: JsonObject

    def __str__(self) -> str:
        return f"{self.name}: {self.description}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool the model wants run. `call_id` is ours; `provider_id` is what the wire called it.

    `echoed_on` is the wire on which it goes back as its provider wrote it, empty where on none.
    """

    name: str
    arguments: JsonObject
    call_id: str = ""
    provider_id: str = ""
    echoed_on: str = field(default="", repr=False)

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A file that the user attached, as a prompt shows it.

    `text` is a line that says which it is, and what stands for it where the model is not given the file
    itself. `data` is the file in base64, empty where the text stands for it; `tokens` is what it costs.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """Something said to the model from the user's side, with the files that came with it.

    One that is `passing` is shown to the model only until something newer is said, where the provider
    sees to that. `wire` holds the bytes of a message by the wire that made them; it is no part of what
    is said.
    """

    text: str
    passing: bool = field(default=False, repr=False)
    attachments: tuple[Attached, ...] = ()
    wire: dict[str, bytes] = field(
        init=False, repr=False, compare=False, default_factory=dict[str, bytes]
    )

    def __repr__(self) -> str:
        # A digest of a message without files is what it was before there were any.
        files = f", attachments={self.attachments!r}" if self.attachments else ""
        return f"UserMessage(text={self.text!r}{files})"

    def __str__(self) -> str:
        return "\n".join(["user: " + self.text, *map(str, self.attachments)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningReplay:
    """A reply with thinking as its provider wrote it, which wants it back unchanged.

    `wire` is the way it came, and the only one it goes back. `parts` are content blocks or items in
    their order; those that are calls lack what the calls say already. What is `bound` goes back only
    behind what it came behind.
    """

    wire: str
    parts: tuple[JsonObject, ...]
    bound: bool = True

    def __str__(self) -> str:
        return "\n".join(map(repr, self.parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage:
    """Something the model said before, with the calls it made.

    A provider that has given an `echo` of it gets that instead.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    echo: ReasoningReplay | None = field(default=None, repr=False)
    wire: dict[str, bytes] = field(
        init=False, repr=False, compare=False, default_factory=dict[str, bytes]
    )

    def __str__(self) -> str:
        said = [self.text, *map(str, self.calls)] if self.text else [str(c) for c in self.calls]
        return "assistant: " + "\n".join(said)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMessage:
    """What came of one call; `provider_id` and `echoed_on` are those of the call."""

    call_id: str
    name: str
    text: str
    ok: bool = True
    provider_id: str = field(default="", repr=False)
    echoed_on: str = field(default="", repr=False)
    wire: dict[str, bytes] = field(
        init=False, repr=False, compare=False, default_factory=dict[str, bytes]
    )

    def __str__(self) -> str:
        return f"tool {self.name}: {self.text}"


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
    """How the request is to be answered.

    `protocol` is how a decision travels; `json_object` asks the provider to see to it that the text is
    one JSON object, `json_form` that it has this form. `force_tool` names the one tool that must be called. `output_limit` is in tokens.
    `reasoning_effort` is empty where the model decides. The reply ends before any of the texts in `stop`,
    where the provider sees to that.
    """

    allow_calls: bool = True
    protocol: ProtocolName = "native"
    force_tool: str = ""
    json_object: bool = False
    json_form: JsonForm | None = None
    output_limit: int | None = None
    reasoning_effort: str = ""
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request. `tail` is its volatile end, and `tail_kind` what the next request will have of it.

    `cache_points` are numbers of messages, rising: up to there the provider is asked to keep the prompt.
    Requests with the same `cache_key` begin alike.
    """

    system: str
    tools: tuple[ToolSpec, ...] = ()
    messages: tuple[Message, ...] = ()
    tail: str = ""
    tail_kind: TailKind = "dropped"
    options: Options = field(default_factory=Options)
    purpose: Purpose = "decision"
    cache_points: tuple[int, ...] = ()
    cache_key: str = ""

    @property
    def last_assistant_message(self) -> AssistantMessage | None:
        """What the model said last."""
        said = (one for one in reversed(self.messages) if isinstance(one, AssistantMessage))
        return next(said, None)

    def __str__(self) -> str:
        parts = [self.system, *map(str, self.tools), *map(str, self.messages), self.tail]
        return "\n\n".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens a request cost, as the provider reported them.

    `input_tokens` are all of the prompt, those read from a cache or written into one included, and
    `output_tokens` all that was written, `reasoning_tokens` included. `unreported` counts the requests
    whose server did not say what they used: their tokens are in no sum.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    unreported: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            unreported=self.unreported + other.unreported,
        )


StopReason = Literal["stop", "tool_use", "length", "refusal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back, whole, at which attempt; `problem` says what of it could not be read.

    There is an `echo` where the provider wants its thinking back. `discarded` is text that its protocol
    found to be no part of the decision.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    echo: ReasoningReplay | None = None
    problem: str = ""
    stop_reason: StopReason = "stop"
    usage: Usage = field(default_factory=Usage)
    attempt: int = 1
    discarded: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of the reply while it is being written."""

    text: str
    channel: Literal["answer", "thinking"] = "answer"


def is_of_family(wire: str, family: str) -> bool:
    """Return whether what came on `wire` may go back to `family`.

    A family is a wire, or a wire and a provider on it: `pydantic-ai:mistral`. What names no provider,
    as older stores have it, goes back to all of its wire.
    """
    return family == wire or family.startswith(f"{wire}:")


def is_beside(echo: ReasoningReplay) -> bool:
    """Return whether it goes back beside the text, as fields of a chat message, and not for the text."""
    return is_of_family("openai", echo.wire)


def count_named_calls(echo: ReasoningReplay, calls: Sequence[ToolCall]) -> int:
    """Return how many of these calls have a part of the reply by the provider's id."""
    return sum(any(call.provider_id in part.values() for part in echo.parts) for call in calls)


def sent_id(of: ToolCall | ToolMessage, family: str) -> str:
    """Return the id under which a call, or its result, goes out to this family."""
    is_echoed = bool(of.echoed_on) and is_of_family(of.echoed_on, family)
    return of.provider_id if is_echoed else of.call_id


def echo_for(message: AssistantMessage, family: str) -> ReasoningReplay | None:
    """Return the reply as it goes back to this family; None where text and calls stand for it.

    It stands for all of its calls or for none: plain thinking goes beside calls that it does not name.
    """
    echo, calls = message.echo, message.calls
    if echo is None or not is_of_family(echo.wire, family):
        return None
    if all(call.echoed_on for call in calls):
        return echo
    return None if echo.bound or count_named_calls(echo, calls) else echo


def breaks_off(prompt: Prompt, family: str) -> bool:
    """Return whether this family would have to go on with calls whose thinking it cannot see."""
    said = prompt.last_assistant_message
    return said is not None and bool(said.calls) and echo_for(said, family) is None
