"""What comes from pydantic-ai while a model writes, and the reply when it is over."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic_ai import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.usage import RequestUsage

from loopline.adapters.pydantic_ai.echoing import echo_of
from loopline.errors import ModelOverloaded, ModelReplyTooLarge, ModelStreamBroken
from loopline.models import (
    BrokenJson,
    JsonObject,
    Reply,
    ReplyLimits,
    StopReason,
    TextDelta,
    ToolCall,
    Usage,
    whole_object,
)
from loopline.tools import WireNames

LIMITS = ReplyLimits()
"""How much of a reply by way of pydantic-ai is read."""


class Hearing:
    """A reply on its way; what was told on the way is what the reply has."""

    def __init__(
        self, model: str, names: WireNames, thinking_fields: frozenset[str], family: str
    ) -> None:
        self._model = model
        self._names = names
        self._thinking_fields = thinking_fields
        self._family = family
        self._begun = self._size = 0
        self._text: list[str] = []
        self._thoughts: list[str] = []

    def take(self, event: ModelResponseStreamEvent) -> Iterator[TextDelta]:
        """What an event adds.

        Raises:
            ModelReplyTooLarge: it makes the reply hold more than is read of one.
        """
        self._measure(event)
        match event:
            case (
                PartStartEvent(part=TextPart(content=str(text)))
                | PartDeltaEvent(delta=TextPartDelta(content_delta=str(text)))
            ) if text:
                self._text.append(text)
                yield TextDelta(text=text)
            case (
                PartStartEvent(part=ThinkingPart(content=str(text)))
                | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text)))
            ) if text:
                self._thoughts.append(text)
                yield TextDelta(text=text, channel="thinking")
            case _:  # calls are taken whole, when the reply is over
                pass

    def _measure(self, event: ModelResponseStreamEvent) -> None:
        """Count what comes, and stop what holds too much."""
        match event:
            case PartStartEvent(part=ToolCallPart(args=args)):
                self._begun += 1
                self._size += len(str(args or ""))
            case PartDeltaEvent(delta=ToolCallPartDelta(args_delta=args)):
                self._size += len(str(args or ""))
            case PartStartEvent(part=TextPart(content=text) | ThinkingPart(content=text)):
                self._size += len(text)
            case PartDeltaEvent(
                delta=TextPartDelta(content_delta=str(text))
                | ThinkingPartDelta(content_delta=str(text))
            ):
                self._size += len(text)
            case _:
                pass
        if self._begun > LIMITS.calls or self._size > LIMITS.bytes:
            most = f"{LIMITS.bytes:,} bytes and {LIMITS.calls:,} calls"
            raise ModelReplyTooLarge(f"{self._model}: at most {most} of a reply are read")

    def reply(self, response: ModelResponse) -> Reply:
        """The reply, whole; half a call that the output limit cut off is no problem of its own.

        Raises:
            ModelStreamBroken: nothing said that it was over.
            ModelOverloaded: it ended for a fault of the server.
        """
        if response.state in ("incomplete", "interrupted"):
            raise ModelStreamBroken(f"{self._model}: the reply ended without a reason")
        if response.finish_reason == "error":
            raise ModelOverloaded(f"{self._model}: the server gave the reply up")
        calls, problem = self._calls(response)
        stop = _stop(response, is_calling=bool(calls or problem))
        return Reply(
            text="".join(self._text) or _refusal(response),
            calls=calls,
            thinking="".join(self._thoughts),
            echo=echo_of(response, self._thinking_fields, self._family),
            problem="" if stop == "length" else problem,
            stop_reason=stop,
            usage=_usage(response.usage),
        )

    def ended(self, problem: str) -> Reply:
        """The reply that such a problem ended; no call of it counts."""
        return Reply(
            text="".join(self._text),
            thinking="".join(self._thoughts),
            problem=problem,
            stop_reason="stop",
            usage=Usage(unreported=1),
        )

    def _calls(self, response: ModelResponse) -> tuple[tuple[ToolCall, ...], str]:
        """The calls, and what is wrong with the first one that cannot be read."""
        calls, problem = list[ToolCall](), ""
        for part in response.parts:
            if not isinstance(part, ToolCallPart):
                continue
            name = self._names.name(part.tool_name)
            arguments = _arguments(part)
            if isinstance(arguments, BrokenJson):
                problem = problem or f"The call of {name} cannot be read: {arguments.problem}"
            else:
                call = ToolCall(name=name, arguments=arguments, provider_id=part.tool_call_id)
                calls.append(call)
        return tuple(calls), problem


def _arguments(part: ToolCallPart) -> JsonObject | BrokenJson:
    match part.args:
        case dict() as arguments:
            return arguments
        case str(written):
            return whole_object(written)
        case None:
            return {}


def _stop(response: ModelResponse, *, is_calling: bool) -> StopReason:
    match response.finish_reason:
        case "content_filter":
            return "refusal"
        case "length":
            return "length"
        case _:
            return "tool_use" if is_calling else "stop"


def _refusal(response: ModelResponse) -> str:
    """The words of a refusal, where they come beside the text."""
    said: object = (response.provider_details or {}).get("refusal")
    return said if isinstance(said, str) else ""


def _usage(said: RequestUsage) -> Usage:
    """The tokens: in both libraries what a cache read or wrote is part of the input."""
    if not said.has_values():
        return Usage(unreported=1)
    return Usage(
        input_tokens=said.input_tokens,
        output_tokens=said.output_tokens,
        cache_read_tokens=said.cache_read_tokens,
        cache_write_tokens=said.cache_write_tokens,
        reasoning_tokens=said.details.get("reasoning_tokens", 0),
    )
