"""Converts prompts to requests of pydantic-ai: messages, tools and settings."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, cast

import pydantic_ai as ai
from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP as BUDGETS
from pydantic_ai.settings import ThinkingLevel

from loopline import models
from loopline.models.prompt import breaks_off, choose_call_id, echo_for
from loopline.tools import ProviderNames, provider_names

FAMILY = "pydantic-ai"
"""The first part of the family names of bridged models, before the name of the provider."""
_PARTS: TypeAdapter[list[ai.ModelResponsePart]] = TypeAdapter(
    list[ai.ModelResponsePart], config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
)


def replay_of(
    response: ai.ModelResponse, thinking_fields: frozenset[str], family: str
) -> models.ReasoningReplay | None:
    """Return the parts of a reply to replay in later requests, or None if the provider requires no part of it.

    Calls are stored without name and arguments. `thinking_fields` are the fields in which the provider expects plain
    thinking.
    """
    required = [part for part in response.parts if _is_required(part, thinking_fields)]
    if not required:
        return None
    parts: list[models.JsonObject] = _PARTS.dump_python(
        [*_complete(response, required)], mode="json", exclude_none=True
    )
    bound = any(isinstance(part, ai.ThinkingPart) and part.signature for part in required)
    return models.ReasoningReplay(
        wire=family, parts=tuple(map(_remove_call_fields, parts)), bound=bound
    )


def parts_of(
    echo: models.ReasoningReplay, message: models.AssistantMessage, names: ProviderNames
) -> list[ai.ModelResponsePart]:
    """Return the replayed parts of a message, without calls that were not made and without thinking at the end."""
    completed = [_restore_call_fields(part, message, names) for part in echo.parts]
    parts = _PARTS.validate_json(models.dumps([part for part in completed if part is not None]))
    while parts and isinstance(parts[-1], ai.ThinkingPart):
        parts.pop()
    return parts


def _is_required(part: ai.ModelResponsePart, thinking_fields: frozenset[str]) -> bool:
    """Return whether the provider requires a part: it has a signature, provider details, or thinking to replay."""
    match part:
        case ai.ThinkingPart(signature=str(signature)) if signature:
            return True
        case ai.ThinkingPart(id=str(name)) if name in thinking_fields:
            return True
        case _:
            return bool(part.provider_details)


def _complete(
    response: ai.ModelResponse, required: list[ai.ModelResponsePart]
) -> Iterator[ai.ModelResponsePart]:
    """Yield the parts that can be replayed, without blank texts and without thinking that is not required.

    Thinking is also replayed if required thinking has the same id.
    """
    items = {part.id for part in required if isinstance(part, ai.ThinkingPart) and part.id}
    for part in response.parts:
        match part:
            case ai.ThinkingPart(id=item) if part not in required and item not in items:
                pass
            case ai.TextPart(content=text) if part not in required and not text.strip():
                pass
            case _:
                yield part


def _remove_call_fields(part: models.JsonObject) -> models.JsonObject:
    """Return a tool-call part without `tool_name` and `args`; other parts unchanged."""
    match part:
        case {"part_kind": "tool-call"}:
            return {
                name: value for name, value in part.items() if name not in ("tool_name", "args")
            }
        case _:
            return part


def _restore_call_fields(
    part: models.JsonObject, message: models.AssistantMessage, names: ProviderNames
) -> models.JsonObject | None:
    """Return a part with the name and arguments of its call, or None if the call was not made."""
    match part:
        case {"part_kind": "tool-call", "tool_call_id": str(provider_id)}:
            for call in message.calls:
                if call.provider_id == provider_id:
                    name = names.provider_name(call.name)
                    return {**part, "tool_name": name, "args": call.arguments}
            return None
        case _:
            return part


CacheMarks = Literal["none", "with words", "anywhere"]
"""The allowed positions of a cache point: none, in a user message with other content, or after any message."""

_THINKING: Mapping[str, ThinkingLevel] = {
    "none": False,
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}


def names_in(prompt: models.Prompt) -> ProviderNames:
    """Return the provider names of the tools of a prompt and of all tools in its messages."""
    names = [tool.name for tool in prompt.tools]
    for message in prompt.messages:
        match message:
            case models.AssistantMessage(calls=calls):
                names += [call.name for call in calls]
            case models.ToolMessage(name=name):
                names.append(name)
            case models.UserMessage():
                pass
    return provider_names(names)


def _user_content(message: models.UserMessage) -> list[ai.UserContent]:
    """Return the text of a message if it is not blank, and its files; images have full detail."""
    return [*([message.text] if message.text.strip() else []), *_file_content(message)]


def _file_content(message: models.UserMessage | models.ToolMessage) -> list[ai.UserContent]:
    """Return the text of each attachment, and after it its data, if it has data; the text of the message is not included."""
    content = list[ai.UserContent]()
    for attached in message.attachments:
        content.append(attached.text)
        if attached.data:
            data = b64decode(attached.data)
            metadata = {"detail": "high"}
            content.append(
                ai.BinaryContent(data, media_type=attached.mime, vendor_metadata=metadata)
            )
    return content


def _assistant_parts(
    message: models.AssistantMessage, names: ProviderNames, family: str
) -> list[ai.ModelResponsePart]:
    """Return the recorded parts of a reply of this family; without any, its text, if not blank, and its calls."""
    echo = echo_for(message, family)
    parts = [] if echo is None else parts_of(echo, message, names)
    if parts:
        return parts
    texts: list[ai.ModelResponsePart] = [ai.TextPart(message.text)] if message.text.strip() else []
    calls = [
        ai.ToolCallPart(
            names.provider_name(call.name), call.arguments, choose_call_id(call, family)
        )
        for call in message.calls
    ]
    return [*texts, *calls]


class RequestBuilder:
    """Builds the messages for pydantic-ai; consecutive user messages and tool results are joined to one request.

    A cache point must be part of a user message. After other messages it is put before the content of the next user
    message, or into its own message if none follows and `marks` allows it.
    """

    def __init__(self, names: ProviderNames, marks: CacheMarks, family: str) -> None:
        self.messages: list[ai.ModelMessage] = []
        self._names = names
        self._family = family
        self._marks = marks
        self._owes_point = False
        self._images: list[ai.UserContent] = []

    def add(
        self,
        message: models.UserMessage | models.AssistantMessage | models.ToolMessage,
        *,
        point: bool,
    ) -> None:
        """Add a message, and a cache point after it if `point` is set."""
        match message:
            case models.UserMessage():
                self._place_images()
                self.add_user_content(_user_content(message), point=point)
            case models.ToolMessage():
                name = self._names.provider_name(message.name)
                call_id = choose_call_id(message, self._family)
                outcome: Literal["success", "failed"] = "success" if message.ok else "failed"
                part = ai.ToolReturnPart(name, message.text, call_id, outcome=outcome)
                self._request().append(part)
                self._images += _file_content(message)
                self._owes_point |= point
            case models.AssistantMessage():
                self._place_images()
                self._place_point()
                parts = _assistant_parts(message, self._names, self._family)
                if parts:
                    self.messages.append(ai.ModelResponse(parts))
                self._owes_point = point

    def add_user_content(self, content: list[ai.UserContent], *, point: bool = False) -> None:
        """Add the content of a user message after an owed cache point; if it is empty, only remember `point`."""
        if not content:
            self._owes_point |= point
            return
        before = [ai.CachePoint()] if self._owes_point and self.messages else []
        after = [ai.CachePoint()] if point else []
        self._owes_point = False
        self._request().append(self._part([*before, *content, *after]))

    def add_tail(self, tail: str) -> None:
        """Add the tail as the last message, if it is not empty."""
        self._place_images()
        self.add_user_content([tail] if tail else [])

    def _place_images(self) -> None:
        """Add the images of the results so far as user content, because not every provider accepts images in results."""
        self.add_user_content(self._images)
        self._images = []

    def _part(self, content: list[ai.UserContent]) -> ai.UserPromptPart:
        """Return a user part. It is a plain text only if no cache point can be added to it later."""
        match content:
            case [str(text)] if self._marks == "none":
                return ai.UserPromptPart(text)
            case _:
                return ai.UserPromptPart(content)

    def _place_point(self) -> None:
        """Add an owed cache point to a request at the end, if points may be anywhere; it is then no longer owed."""
        match self.messages:
            case [*_, ai.ModelRequest()] if self._owes_point and self._marks == "anywhere":
                self._request().append(ai.UserPromptPart([ai.CachePoint()]))
            case _:
                pass
        self._owes_point = False

    def _request(self) -> list[ai.ModelRequestPart]:
        """Return the parts of the last message if it is a request, or else the parts of a new request."""
        match self.messages:
            case [*_, ai.ModelRequest(parts=list() as parts)]:
                return parts
            case _:
                parts = list[ai.ModelRequestPart]()
                self.messages.append(ai.ModelRequest(parts))
                return parts


def messages_of(
    prompt: models.Prompt, names: ProviderNames, marks: CacheMarks, family: str
) -> list[ai.ModelMessage]:
    """Return the messages of a prompt, and its tail as the last message.

    Replies of the `family` are replayed unchanged.
    """
    points = set[int]() if marks == "none" else set(prompt.cache_points)
    builder = RequestBuilder(names, marks, family)
    for number, message in enumerate(prompt.messages, start=1):
        builder.add(message, point=number in points)
    builder.add_tail(prompt.tail)
    return builder.messages


def parameters_of(prompt: models.Prompt, names: ProviderNames) -> ModelRequestParameters:
    """Return the system text, the tools, and the JSON form of the reply; a form that is not strict is any object."""
    parameters = ModelRequestParameters(
        function_tools=[_tool(tool, names) for tool in prompt.tools],
        instruction_parts=[ai.InstructionPart(prompt.system)] if prompt.system else [],
    )
    match prompt.options.json_form:
        case models.JsonForm(name=name, schema=schema, strict=True):
            return replace(
                parameters,
                output_mode="native",
                output_object=OutputObjectDefinition(schema, name=name, strict=True),
            )
        case None if not prompt.options.json_object:
            return parameters
        case _:  # providers do not agree about schemas that are not strict
            return replace(
                parameters,
                output_mode="prompted",
                output_object=OutputObjectDefinition({"type": "object"}),
                prompted_output_template=False,  # the prompt itself describes the object
            )


def _tool(tool: models.ToolSpec, names: ProviderNames) -> ai.ToolDefinition:
    """Convert a tool to a definition of pydantic-ai with the provider's name and an unchanged schema."""
    return ai.ToolDefinition(
        name=names.provider_name(tool.name),
        description=tool.description,
        parameters_json_schema=tool.parameters,
        strict=False,  # the library does not change the schema
    )


def settings_of(
    prompt: models.Prompt,
    names: ProviderNames,
    family: str,
    *,
    by_budget: bool,
    output_limit: int | None,
) -> ai.ModelSettings:
    """Return the settings that a request changes.

    `by_budget` means that the model thinks only with a budget in tokens. `output_limit` is in tokens, or None for the
    default of the library.
    """
    options = prompt.options
    settings = ai.ModelSettings()
    if options.output_limit is not None:
        settings["max_tokens"] = options.output_limit
    if options.stop:
        settings["stop_sequences"] = list(options.stop)
    if options.settings is not None:
        settings = _sampling_of(options.settings) | settings
    if prompt.tools and options.force_tool:
        settings["tool_choice"] = [names.provider_name(options.force_tool)]
    elif prompt.tools and not options.allow_calls:
        settings["tool_choice"] = "none"
    level = _THINKING.get(options.reasoning_effort)
    if by_budget:
        settings["thinking"] = _limit_thinking(prompt, level, family, output_limit)
    elif level is not None:
        settings["thinking"] = level
    return settings


_SAME_NAMES = (
    "temperature",
    "top_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "parallel_tool_calls",
    "service_tier",
    "extra_body",
)


def _sampling_of(settings: models.ModelSettings) -> ai.ModelSettings:
    """Return the settings that do not depend on the prompt."""
    values = settings.values
    theirs = {name: values[name] for name in _SAME_NAMES if name in values}
    if settings.extra_headers:
        theirs |= {"extra_headers": dict(settings.extra_headers)}
    if settings.timeout is not None:
        theirs |= {"timeout": settings.timeout, "request_timeout": settings.timeout}
    return cast("ai.ModelSettings", theirs)


def _limit_thinking(
    prompt: models.Prompt, level: ThinkingLevel | None, family: str, output_limit: int | None
) -> ThinkingLevel:
    """Return the highest thinking level up to `level` with a budget below the output limit.

    Thinking is off if a call is forced, or if the thinking of earlier calls is lost.
    """
    if not level or prompt.options.force_tool or breaks_off(prompt, family):
        return False
    room = output_limit or BUDGETS["max"] + 1
    levels: list[ThinkingLevel] = [
        name for name, budget in BUDGETS.items() if budget <= BUDGETS[level] and budget < room
    ]
    return max(levels, key=lambda name: BUDGETS[name], default=False)
