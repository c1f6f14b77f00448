"""What comes from pydantic-ai while a model writes, and the reply when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

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
from pydantic_ai.exceptions import (
    AgentRunError,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UserError,
)
from pydantic_ai.usage import RequestUsage

from loopline.adapters.pydantic_ai.reasoning import echo_of
from loopline.errors import (
    ModelAccessError,
    ModelError,
    ModelOverflow,
    ModelOverloaded,
    ModelRateLimited,
    ModelReplyTooLarge,
    ModelRequestError,
    ModelStreamBroken,
    ModelTimedOut,
    ModelUnreachable,
)
from loopline.models import (
    BrokenJson,
    JsonObject,
    Reply,
    ReplyLimits,
    StopReason,
    TextDelta,
    ToolCall,
    Usage,
    find_overflow,
    parse_object,
    wait_seconds,
)
from loopline.tools import ProviderNames

LIMITS = ReplyLimits()
"""How much of a reply by way of pydantic-ai is read."""


class BridgedReplyParser:
    """A reply on its way; what was told on the way is what the reply has."""

    def __init__(
        self, model: str, names: ProviderNames, thinking_fields: frozenset[str], family: str
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
            return parse_object(written)
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


FAULTS = (AgentRunError, UserError, ImportError, FallbackExceptionGroup)
"""What pydantic-ai raises when a model cannot be asked."""

_LONGEST = 600
_SHORTEST_SECRET = 8
_VARIABLE = "environment variable"
_NOT_SENT = ("connect", "pool")
_LATE = (408, 504)


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """Who asks: the model's name for people, what its key is called, and what is never shown.

    `url` is where its server is, without what may be secret; empty where its library does not say.
    """

    model: str
    key: str
    secrets: tuple[str, ...] = field(default=(), repr=False)
    url: str = ""

    def says(self, words: str) -> str:
        """The words as an error of the model has them, with no secret in them."""
        text = f"{self.model}: {words}"
        for secret in self.secrets:
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "…")
        return text


def failure(error: BaseException, asker: ErrorContext) -> ModelError:
    """What an error means that came instead of a reply, or of a model."""
    match error:
        case FallbackExceptionGroup(exceptions=[*_, last]):
            return failure(last, asker)
        case ModelAPIError():
            return _refused(error, asker)
        case AgentRunError():
            return ModelStreamBroken(asker.says(str(error)[:_LONGEST]))
        case _ if _VARIABLE in str(error):
            return ModelAccessError(asker.says(str(error).partition(". To try ")[0]))
        case UserError():
            return ModelRequestError(asker.says(str(error)))
        case _:  # a package or a setting of the provider's own library is missing
            return ModelError(asker.says(f"{error}"))


def problem_of(error: BaseException, asker: ErrorContext) -> str:
    """What is wrong with a call that its server could not read; empty where that is not the error."""
    match error:
        case FallbackExceptionGroup(exceptions=[*_, last]):
            return problem_of(last, asker)
        case ModelAPIError(
            body={"code": "tool_use_failed"} | {"error": {"code": "tool_use_failed"}}
        ):
            return (
                f"The call cannot be read: {asker.says(f'{_words(error)}{_written(error.body)}')}"
            )
        case _:
            return ""


def _written(body: object) -> str:
    """What the model wrote for a call, where the error says it."""
    match body:
        case {"failed_generation": str(written)} | {"error": {"failed_generation": str(written)}}:
            return f": {written[:_LONGEST]}"
        case _:
            return ""


def _refused(error: ModelAPIError, asker: ErrorContext) -> ModelError:
    """The more telling kinds come first: most are kinds of what is below them."""
    words = asker.says(_words(error))
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    too_long = find_overflow(status, f"{error.body or error}")
    if too_long or status == 413 or isinstance(error, ModelContextWindowExceededError):
        return ModelOverflow(words, window=too_long.window if too_long else None)
    match error:
        case ModelAuthenticationError():
            return ModelAccessError(f"{words}: check {asker.key}")
        case ModelQuotaExceededError():
            return ModelAccessError(f"{words}: the account has nothing left to spend")
        case ModelConnectionError() if error.phase in _NOT_SENT:
            return ModelUnreachable(
                f"{words}: no connection to {asker.url}" if asker.url else words
            )
        case ModelTimeoutError() | ModelRequestTimeout():
            return ModelTimedOut(words)
        case ModelRateLimitError():
            return ModelRateLimited(words, retry_after=_wait(error))
        case ModelUnavailableError() | ModelServerError() if status not in _LATE:
            return ModelOverloaded(words, retry_after=_wait(error))
        case _:
            return _by_status(status, words, _wait(error))


def _by_status(status: int | None, words: str, seconds: float | None) -> ModelError:
    """What a status says where the kind of error does not say it."""
    match status:
        case None:
            return ModelStreamBroken(words)
        case 408 | 504:
            return ModelTimedOut(words, retry_after=seconds)
        case _ if status >= 500:
            return ModelOverloaded(words, retry_after=seconds)
        case _:
            return ModelRequestError(words)


def _wait(error: ModelAPIError) -> float | None:
    """How long the server asks to wait, in seconds."""
    if isinstance(error, ModelHTTPError) and error.headers:
        told = wait_seconds(error.headers, datetime.now(UTC))
        return error.retry_after if told is None else told
    return error.retry_after


def _words(error: ModelAPIError) -> str:
    match error.body:
        case {"message": str(words)} | {"error": {"message": str(words)}} | {"error": str(words)}:
            said = words
        case _:
            said = " ".join(str(error).split())
    told = said[:_LONGEST] or type(error).__name__
    return f"{told} ({error.status_code})" if isinstance(error, ModelHTTPError) else told
