"""A prompt as pydantic-ai has it: messages, what may be called, and settings."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from pydantic_ai import (
    BinaryContent,
    CachePoint,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    ModelSettings,
    TextPart,
    ToolCallPart,
    ToolDefinition,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP as BUDGETS
from pydantic_ai.settings import ThinkingLevel

from loopline.adapters.pydantic_ai.reasoning import parts_of
from loopline.models import (
    AssistantMessage,
    Attached,
    JsonForm,
    Prompt,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from loopline.models.prompt import breaks_off, echo_for, sent_id
from loopline.tools import ProviderNames, provider_names

CacheMarks = Literal["none", "with words", "anywhere"]
"""Where a cache point may stand: nowhere, only beside what the user said, or behind anything."""

_THINKING: Mapping[str, ThinkingLevel] = {
    "none": False,
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}


def names_in(prompt: Prompt) -> ProviderNames:
    """What the tools of a prompt are called on the way, those that only its messages name too."""
    return provider_names([*(tool.name for tool in prompt.tools), *_called(prompt)])


def _called(prompt: Prompt) -> Iterator[str]:
    for message in prompt.messages:
        match message:
            case AssistantMessage(calls=calls):
                yield from (call.name for call in calls)
            case ToolMessage(name=name):
                yield name
            case UserMessage():
                pass


def user_content(message: UserMessage) -> list[UserContent]:
    """What a message of the user consists of: its text, its files; a text of nothing is nothing."""
    said: list[UserContent] = [message.text] if message.text.strip() else []
    for attached in message.attachments:
        said.extend(_attached(attached))
    return said


def _attached(attached: Attached) -> Iterator[UserContent]:
    """The line of a file, and the file where it is given; images are looked at closely."""
    yield attached.text
    if attached.data:
        content = b64decode(attached.data)
        yield BinaryContent(content, media_type=attached.mime, vendor_metadata={"detail": "high"})


def assistant_parts(
    message: AssistantMessage, names: ProviderNames, family: str
) -> list[ModelResponsePart]:
    """What a message of the model consists of."""
    echo = echo_for(message, family)
    parts = [] if echo is None else parts_of(echo, message, names)
    return parts or _written(message, names, family)


def _written(
    message: AssistantMessage, names: ProviderNames, family: str
) -> list[ModelResponsePart]:
    said: list[ModelResponsePart] = [TextPart(message.text)] if message.text.strip() else []
    calls = [
        ToolCallPart(names.provider_name(call.name), call.arguments, sent_id(call, family))
        for call in message.calls
    ]
    return [*said, *calls]


def _tool_part(message: ToolMessage, names: ProviderNames, family: str) -> ToolReturnPart:
    return ToolReturnPart(
        names.provider_name(message.name),
        message.text,
        sent_id(message, family),
        outcome="success" if message.ok else "failed",
    )


class RequestBuilder:
    """Messages on the way to pydantic-ai: neighbours on the user's side are one request.

    A cache point stands within what the user said. Behind anything else it opens what the user says
    next, and if that is nothing it stands alone, where it may.
    """

    def __init__(self, names: ProviderNames, marks: CacheMarks, family: str) -> None:
        self.messages: list[ModelMessage] = []
        self._names = names
        self._family = family
        self._marks = marks
        self._owed = False

    def take(self, message: UserMessage | AssistantMessage | ToolMessage, *, point: bool) -> None:
        """Add a message; `point` says that a cache point stands behind it."""
        match message:
            case UserMessage():
                self.hear(user_content(message), point=point)
            case ToolMessage():
                self._request().append(_tool_part(message, self._names, self._family))
                self._owed |= point
            case AssistantMessage():
                self._pay()
                parts = assistant_parts(message, self._names, self._family)
                if parts:
                    self.messages.append(ModelResponse(parts))
                self._owed = point

    def hear(self, content: list[UserContent], *, point: bool = False) -> None:
        """Add what the user says."""
        if not content:
            self._owed |= point
            return
        before = [CachePoint()] if self._owed and self.messages else []
        after = [CachePoint()] if point else []
        self._owed = False
        self._request().append(self._part([*before, *content, *after]))

    def _part(self, content: list[UserContent]) -> UserPromptPart:
        """A text alone where no cache point can come to it later; else its form would change."""
        match content:
            case [str(text)] if self._marks == "none":
                return UserPromptPart(text)
            case _:
                return UserPromptPart(content)

    def _pay(self) -> None:
        if self._owed and self._marks == "anywhere" and self._is_request():
            self._request().append(UserPromptPart([CachePoint()]))
        self._owed = False

    def _is_request(self) -> bool:
        return bool(self.messages) and isinstance(self.messages[-1], ModelRequest)

    def _request(self) -> list[ModelRequestPart]:
        """The parts of the request that is being made."""
        match self.messages:
            case [*_, ModelRequest(parts=list() as parts)]:
                return parts
            case _:
                parts = list[ModelRequestPart]()
                self.messages.append(ModelRequest(parts))
                return parts


def messages_of(
    prompt: Prompt, names: ProviderNames, marks: CacheMarks, family: str
) -> list[ModelMessage]:
    """The messages of a prompt, the tail as the last of them.

    `family` are those whose replies go back as they came.
    """
    points = set[int]() if marks == "none" else set(prompt.cache_points)
    conversation = RequestBuilder(names, marks, family)
    for number, message in enumerate(prompt.messages, start=1):
        conversation.take(message, point=number in points)
    conversation.hear([prompt.tail] if prompt.tail else [])
    return conversation.messages


def parameters_of(prompt: Prompt, names: ProviderNames) -> ModelRequestParameters:
    """The system text, what may be called, and what form the text is to have."""
    given = ModelRequestParameters(
        function_tools=[_tool(tool, names) for tool in prompt.tools],
        instruction_parts=[InstructionPart(prompt.system)] if prompt.system else [],
    )
    match prompt.options.json_form:
        case JsonForm(name=name, schema=schema, strict=True):
            return replace(
                given,
                output_mode="native",
                output_object=OutputObjectDefinition(schema, name=name, strict=True),
            )
        case None if not prompt.options.json_object:
            return given
        case _:  # providers differ in what they make of a schema that leaves something open
            return replace(
                given,
                output_mode="prompted",
                output_object=OutputObjectDefinition({"type": "object"}),
                prompted_output_template=False,  # which object is said by the prompt itself
            )


def _tool(tool: ToolSpec, names: ProviderNames) -> ToolDefinition:
    return ToolDefinition(
        name=names.provider_name(tool.name),
        description=tool.description,
        parameters_json_schema=tool.parameters,
        strict=False,  # the schema travels as it is
    )


def settings_of(
    prompt: Prompt, names: ProviderNames, family: str, *, by_budget: bool, most: int | None
) -> ModelSettings:
    """What this request asks for; what it leaves open stays with the model.

    `by_budget` says that a model thinks by a number of tokens, and only when it is asked to; `most` is
    what may be written, None where the library decides.
    """
    options, settings = prompt.options, ModelSettings()
    if options.output_limit is not None:
        settings["max_tokens"] = options.output_limit
    if options.stop:
        settings["stop_sequences"] = list(options.stop)
    if prompt.tools and options.force_tool:
        settings["tool_choice"] = [names.provider_name(options.force_tool)]
    elif prompt.tools and not options.allow_calls:
        settings["tool_choice"] = "none"
    level = _THINKING.get(options.reasoning_effort)
    if by_budget:
        settings["thinking"] = _within_budget(prompt, level, family, most)
    elif level is not None:
        settings["thinking"] = level
    return settings


def _within_budget(
    prompt: Prompt, level: ThinkingLevel | None, family: str, most: int | None
) -> ThinkingLevel:
    """The hardest thinking up to this that leaves room for the reply.

    A forced call excludes it, and so do calls without theirs.
    """
    if not level or prompt.options.force_tool or breaks_off(prompt, family):
        return False
    room = most or BUDGETS["max"] + 1
    fitting: list[ThinkingLevel] = [
        one for one, budget in BUDGETS.items() if budget <= BUDGETS[level] and budget < room
    ]
    return max(fitting, key=lambda one: BUDGETS[one], default=False)
