"""Requests to a model: each whole or not at all, and repeated where that may help."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

from loopline.clock import Clock
from loopline.errors import (
    CassetteError,
    ModelError,
    ModelTimedOut,
    ModelUnavailable,
    StoreError,
)
from loopline.models import Model, Prompt, Reply, TextDelta
from loopline.timeline.tasks import LONG_TEXT, text_parts

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a request is repeated when the model may answer later.

    The delay is exponential backoff with full jitter, at most 60 s, and honours Retry-After; a server that asks for
    more than 60 s is not waited for. `on_retry` is called for each failed attempt with its number, its error and the
    seconds until the next. With `has_fallback` a request that timed out is not repeated: another model is tried at
    once.
    """

    clock: Clock
    retries: int
    has_fallback: bool = False
    on_retry: Callable[[int, ModelUnavailable, float], Awaitable[None]] | None = None
    jitter: Callable[[], float] = random.random

    def delay(self, attempt: int, error: ModelUnavailable) -> float | None:
        """Return the seconds until the next attempt, or None if there is none."""
        if attempt > self.retries or (self.has_fallback and isinstance(error, ModelTimedOut)):
            return None
        retry_after = error.retry_after or 0.0
        if retry_after > LONGEST_WAIT_SECONDS:
            return None
        ceiling = min(FIRST_WAIT_SECONDS * 2.0 ** (attempt - 1), LONGEST_WAIT_SECONDS)
        return max(retry_after, self.jitter() * ceiling)


class RequestSkipped(Exception):
    """No model is asked for this decision or answer."""

    def __init__(self, reason: Literal["recalled", "budget"]) -> None:
        super().__init__(reason)
        self.reason = reason


async def request_reply(
    model: Model,
    prompt: Prompt,
    hear: Callable[[TextDelta], None],
    patience: RetryPolicy | None = None,
) -> Reply:
    """Return the model's reply; `hear` gets its pieces as they arrive, a long one in parts.

    Raises:
        ModelError: it could not be asked, broke off, or ended without a reply.
    """
    attempt = 1
    while True:
        try:
            return replace(await _attempt(model, prompt, hear), attempt=attempt)
        except ModelUnavailable as error:
            seconds = patience.delay(attempt, error) if patience else None
            if patience is None or seconds is None:
                raise
            if patience.on_retry is not None:
                await patience.on_retry(attempt, error, seconds)
            await patience.clock.sleep(seconds)
        attempt += 1


async def _attempt(model: Model, prompt: Prompt, hear: Callable[[TextDelta], None]) -> Reply:
    reply: Reply | None = None
    pieces = model.stream(prompt)
    try:
        async for piece in pieces:
            match piece:
                case TextDelta(text=text) if len(text) > LONG_TEXT:
                    async for part in text_parts(text):
                        hear(replace(piece, text=part))
                case TextDelta():
                    hear(piece)
                case Reply():
                    reply = piece
    except (CassetteError, ModelError, StoreError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise ModelError(f"{model.name}: {cause}") from error
    finally:
        if isinstance(
            pieces, AsyncGenerator
        ):  # one that is given up between two parts settles what it used
            await pieces.aclose()
    if reply is None:
        raise ModelError(f"{model.name}: the stream ended without a reply")
    return reply
