"""What pydantic-ai raises, as one of our errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

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

from loopline.errors import (
    ModelAccessError,
    ModelError,
    ModelOverflow,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
    ModelStreamBroken,
    ModelTimedOut,
    ModelUnreachable,
)
from loopline.models import overflow, wait_seconds

FAULTS = (AgentRunError, UserError, ImportError, FallbackExceptionGroup)
"""What pydantic-ai raises when a model cannot be asked."""

_LONGEST = 600
_SHORTEST_SECRET = 8
_VARIABLE = "environment variable"
_NOT_SENT = ("connect", "pool")
_LATE = (408, 504)


@dataclass(frozen=True, slots=True)
class Asker:
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


def failure(error: BaseException, asker: Asker) -> ModelError:
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


def problem_of(error: BaseException, asker: Asker) -> str:
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


def _refused(error: ModelAPIError, asker: Asker) -> ModelError:
    """The more telling kinds come first: most are kinds of what is below them."""
    words = asker.says(_words(error))
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    too_long = overflow(status, f"{error.body or error}")
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
