"""Converts replies and errors of pydantic-ai to those of Loopline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pydantic_ai as ai
from pydantic_ai import exceptions as library
from pydantic_ai.usage import RequestUsage

from loopline import errors, models
from loopline.bridge.request import replay_of
from loopline.models.safe_text import MIN_SECRET_CHARACTERS, redact
from loopline.tools import ProviderNames

LIMITS = models.ReplyLimits()
"""The maximum size of a reply from pydantic-ai."""


class BridgedReplyParser:
    """Parses a reply while it is received; the text of the reply is the text of all deltas."""

    def __init__(
        self, model: str, names: ProviderNames, thinking_fields: frozenset[str], family: str
    ) -> None:
        self._model = model
        self._names = names
        self._thinking_fields = thinking_fields
        self._family = family
        self._calls_begun = self._size = 0
        self._text: list[str] = []
        self._thinking: list[str] = []

    def feed(self, event: ai.ModelResponseStreamEvent) -> Sequence[models.TextDelta]:
        """Return the text that an event adds.

        Raises:
            ModelReplyTooLarge: the reply exceeds the limit of bytes or calls.
        """
        deltas: list[models.TextDelta] = []
        match event:
            case ai.PartStartEvent(
                part=ai.ToolCallPart(args=args)
            ):  # arguments are parsed at the end of the reply
                self._calls_begun += 1
                self._size += len(str(args or ""))
            case ai.PartDeltaEvent(delta=ai.ToolCallPartDelta(args_delta=args)):
                self._size += len(str(args or ""))
            case (
                ai.PartStartEvent(part=ai.TextPart(content=str(text)))
                | ai.PartDeltaEvent(delta=ai.TextPartDelta(content_delta=str(text)))
            ) if text:
                self._text.append(text)
                deltas.append(models.TextDelta(text=text))
            case (
                ai.PartStartEvent(part=ai.ThinkingPart(content=str(text)))
                | ai.PartDeltaEvent(delta=ai.ThinkingPartDelta(content_delta=str(text)))
            ) if text:
                self._thinking.append(text)
                deltas.append(models.TextDelta(text=text, channel="thinking"))
            case _:
                pass
        self._size += sum(len(delta.text) for delta in deltas)
        if self._calls_begun > LIMITS.calls or self._size > LIMITS.bytes:
            maximum = f"{LIMITS.bytes:,} bytes and {LIMITS.calls:,} calls"
            raise errors.ModelReplyTooLarge(f"{self._model}: at most {maximum} of a reply are read")
        return deltas

    def reply(self, response: ai.ModelResponse) -> models.Reply:
        """Return the complete reply. A call that the output limit cut off is not reported as a problem.

        Raises:
            ModelStreamBroken: the library reports an incomplete reply.
            ModelOverloaded: the server reported that it failed.
        """
        if response.state in ("incomplete", "interrupted"):
            raise errors.ModelStreamBroken(f"{self._model}: the reply ended without a stop reason")
        if response.finish_reason == "error":
            raise errors.ModelOverloaded(f"{self._model}: the server ended the reply with an error")
        calls, problem = self._calls(response)
        stop = _stop(response, is_calling=bool(calls or problem))
        return models.Reply(
            text="".join(self._text) or _refusal(response),
            calls=calls,
            thinking="".join(self._thinking),
            echo=replay_of(response, self._thinking_fields, self._family),
            problem="" if stop == "length" else problem,
            stop_reason=stop,
            usage=_usage(response.usage),
        )

    def reply_ended_by(self, problem: str) -> models.Reply:
        """Return the text and thinking that were received before the problem, as a reply without calls."""
        return models.Reply(
            text="".join(self._text),
            thinking="".join(self._thinking),
            problem=problem,
            stop_reason="stop",
            usage=models.Usage(unreported=1),
        )

    def _calls(self, response: ai.ModelResponse) -> tuple[tuple[models.ToolCall, ...], str]:
        """Return the calls with valid arguments, and the problem of the first invalid call, or an empty text."""
        calls = list[models.ToolCall]()
        problem = ""
        for part in response.parts:
            if not isinstance(part, ai.ToolCallPart):
                continue
            name = self._names.name(part.tool_name)
            arguments = _arguments(part)
            if isinstance(arguments, models.BrokenJson):
                problem = problem or f"The call of {name} cannot be read: {arguments.problem}"
            else:
                call = models.ToolCall(
                    name=name, arguments=arguments, provider_id=part.tool_call_id
                )
                calls.append(call)
        return tuple(calls), problem


def _arguments(part: ai.ToolCallPart) -> models.JsonObject | models.BrokenJson:
    """Return the arguments of a call: a text is parsed, None is an empty object, invalid JSON is a `BrokenJson`."""
    match part.args:
        case dict() as arguments:
            return arguments
        case str(written):
            return models.parse_object(written)
        case None:
            return {}


def _stop(response: ai.ModelResponse, *, is_calling: bool) -> models.StopReason:
    """Return the stop reason: "refusal" or "length" if reported, otherwise "tool_use" if calling, or "stop"."""
    match response.finish_reason:
        case "content_filter":
            return "refusal"
        case "length":
            return "length"
        case _:
            return "tool_use" if is_calling else "stop"


def _refusal(response: ai.ModelResponse) -> str:
    """Return the text of a refusal, which the library reports in the provider details."""
    match response.provider_details:
        case {"refusal": str(refusal)}:
            return refusal
        case _:
            return ""


def _usage(usage: RequestUsage) -> models.Usage:
    """Return the token counts. Cached tokens are part of the input in pydantic-ai, as in Loopline."""
    if not usage.has_values():
        return models.Usage(unreported=1)
    details = {"reasoning_tokens": 0, **usage.details}
    return models.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=details["reasoning_tokens"],
    )


LIBRARY_ERRORS = (
    library.AgentRunError,
    library.UserError,
    ImportError,
    library.FallbackExceptionGroup,
)
"""The errors that pydantic-ai raises when a request fails."""

_EXCERPT_CHARACTERS = 600
_MISSING_VARIABLE = "environment variable"
_CONNECTION_PHASES = ("connect", "pool")
_TIMEOUT_STATUSES = (408, 504)


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """The names that error messages about a model use, and the secrets that they do not contain.

    `url` is the URL of the server without secrets, or an empty text if the library does not report it.
    """

    model: str
    key: str
    secrets: tuple[str, ...] = field(default=(), repr=False)
    url: str = ""

    def message(self, words: str) -> str:
        """Return the text of an error message: the model and the words without secrets."""
        return self._redact(f"{self.model}: {words}")

    def excerpt(self, text: str) -> str:
        """Return the first 600 characters of a server's text; secrets are redacted before it is cut."""
        return self._redact(text)[:_EXCERPT_CHARACTERS]

    def _redact(self, text: str) -> str:
        return redact(text, (key for key in self.secrets if len(key) >= MIN_SECRET_CHARACTERS))


def model_error(error: BaseException, context: ErrorContext) -> errors.ModelError:
    """Return Loopline's error for an error of pydantic-ai, or for the last one in a group of a fallback model."""
    match error:
        case library.FallbackExceptionGroup(exceptions=[*_, last]):
            return model_error(last, context)
        case library.ModelAPIError():
            return _api_error(error, context)
        case library.AgentRunError():
            return errors.ModelStreamBroken(context.message(context.excerpt(str(error))))
        case _ if _MISSING_VARIABLE in str(error):
            return errors.ModelAccessError(context.message(str(error).partition(". To try ")[0]))
        case library.UserError():
            return errors.ModelRequestError(context.message(str(error)))
        case _:  # a package or a setting of the provider is missing
            return errors.ModelError(context.message(f"{error}"))


def call_problem(error: BaseException, context: ErrorContext) -> str:
    """Return the problem if the server reports that it could not parse a call, or else an empty text."""
    match error:
        case library.FallbackExceptionGroup(exceptions=[*_, last]):
            return call_problem(last, context)
        case library.ModelAPIError(
            body={"code": "tool_use_failed"} | {"error": {"code": "tool_use_failed"}}
        ):
            return f"The call cannot be read: {context.message(_words(error, context) + _quote_generation(error.body, context))}"
        case _:
            return ""


def _quote_generation(body: object, context: ErrorContext) -> str:
    """Return the output of the model that the error quotes, after a colon; empty if it quotes none."""
    match body:
        case {"failed_generation": str(text)} | {"error": {"failed_generation": str(text)}}:
            return f": {context.excerpt(text)}"
        case _:
            return ""


def _api_error(error: library.ModelAPIError, context: ErrorContext) -> errors.ModelError:
    """Return the error for a failed request. Subclasses are matched before their bases."""
    words = context.message(_words(error, context))
    status = error.status_code if isinstance(error, library.ModelHTTPError) else None
    text = f"{error.body or error}"
    overflow = models.find_overflow(status, text)
    rate = models.find_token_rate(text)
    if rate and not isinstance(
        error, library.ModelAuthenticationError | library.ModelQuotaExceededError
    ):
        return models.rate_error(words, rate, _wait(error))
    if overflow or status == 413 or isinstance(error, library.ModelContextWindowExceededError):
        return models.overflow_error(words, status, overflow)
    match error:
        case library.ModelAuthenticationError():
            return errors.ModelAccessError(f"{words}: check {context.key}")
        case library.ModelQuotaExceededError():
            return errors.ModelAccessError(f"{words}: the account has no credit left")
        case library.ModelConnectionError() if error.phase in _CONNECTION_PHASES:
            return errors.ModelUnreachable(
                f"{words}: no connection to {context.url}" if context.url else words
            )
        case library.ModelTimeoutError() | library.ModelRequestTimeout():
            return errors.ModelTimedOut(words)
        case library.ModelRateLimitError():
            return errors.ModelRateLimited(words, retry_after=_wait(error))
        case library.ModelUnavailableError() | library.ModelServerError() if (
            status not in _TIMEOUT_STATUSES
        ):
            return errors.ModelOverloaded(words, retry_after=_wait(error))
        case _:
            return _error_by_status(status, words, _wait(error))


def _error_by_status(status: int | None, words: str, seconds: float | None) -> errors.ModelError:
    """Return the error for a status; used if the class of the error does not decide."""
    match status:
        case None:
            return errors.ModelStreamBroken(words)
        case 408 | 504:
            return errors.ModelTimedOut(words, retry_after=seconds)
        case _ if status >= 500:
            return errors.ModelOverloaded(words, retry_after=seconds)
        case _:
            return errors.ModelRequestError(words)


def _wait(error: library.ModelAPIError) -> float | None:
    """Return the seconds to wait that the server requests, or None."""
    if isinstance(error, library.ModelHTTPError) and error.headers:
        seconds = models.wait_seconds(error.headers, datetime.now(UTC))
        return error.retry_after if seconds is None else seconds
    return error.retry_after


def _words(error: library.ModelAPIError, context: ErrorContext) -> str:
    """Return an excerpt of the server's message, or of the error's text, with the HTTP status if there is one."""
    match error.body:
        case {"message": str(words)} | {"error": {"message": str(words)}} | {"error": str(words)}:
            pass
        case _:
            words = " ".join(str(error).split())
    excerpt = context.excerpt(words) or type(error).__name__
    return (
        f"{excerpt} ({error.status_code})" if isinstance(error, library.ModelHTTPError) else excerpt
    )
