"""Requests to a model: their limits in tokens, their reservation from a quota, and their repetition after failures."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from math import ceil
from types import AsyncGeneratorType
from typing import Literal, Protocol

from msgspec import Struct, structs

from loopline.clock import Clock
from loopline.errors import (
    CassetteError,
    ModelAccessError,
    ModelError,
    ModelOverflow,
    ModelOverloaded,
    ModelRateLimited,
    ModelRequestError,
    ModelTimedOut,
    ModelUnavailable,
    ModelUnreachable,
    StoreError,
)
from loopline.models import Capabilities, Model, Prompt, Reply, TextDelta, Usage, well_formed
from loopline.models.prompt import cost_of_prompt, estimate
from loopline.prompt import MAX_FACTOR
from loopline.react.quota import Amount, OutOfBudget, RequestEstimate
from loopline.tasks import LONG_TEXT, text_parts
from loopline.timeline import ModelOverflowed, OverflowLesson

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
SHORTEST_REPLY = 256
"""The least output limit, in tokens, to which a reply is shortened for a rate limit."""


_UNBILLED = (
    ModelRateLimited,
    ModelOverloaded,
    ModelUnreachable,
    ModelRequestError,
    ModelAccessError,
    ModelOverflow,
    OutOfBudget,
)
"""Errors of a request that the provider has not begun to work on."""


class RetryPolicy(Struct, frozen=True, kw_only=True):
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
    """No request is sent for this decision or answer."""

    def __init__(self, reason: Literal["recalled", "budget"]) -> None:
        super().__init__(reason)
        self.reason = reason


async def request_reply(
    model: Model,
    prompt: Prompt,
    hear: Callable[[TextDelta], None],
    retries: RetryPolicy,
) -> Reply:
    """Return the model's reply; `hear` gets its pieces as they arrive, a long one in parts.

    Raises:
        ModelError: it could not be asked, broke off, or ended without a reply.
    """
    attempt = 1
    while True:
        try:
            reply = await _attempt(model, prompt, hear)
            return reply if reply.attempt == attempt else structs.replace(reply, attempt=attempt)
        except ModelUnavailable as error:
            seconds = retries.delay(attempt, error)
            if seconds is None:
                raise
            prompt = _within_rate(prompt, error)
            if retries.on_retry is not None:
                await retries.on_retry(attempt, error, seconds)
            await retries.clock.sleep(seconds)
        attempt += 1


def _within_rate(prompt: Prompt, error: ModelUnavailable) -> Prompt:
    """Return the request with a shorter reply if its tokens alone exceed a rate limit, as it is if that cannot help."""
    if not isinstance(error, ModelRateLimited) or not error.excess:
        return prompt
    output = (prompt.options.output_limit or 0) - error.excess
    if output < SHORTEST_REPLY:
        return prompt
    return structs.replace(prompt, options=replace(prompt.options, output_limit=output))


async def _attempt(model: Model, prompt: Prompt, hear: Callable[[TextDelta], None]) -> Reply:
    reply: Reply | None = None
    pieces = model.stream(prompt)
    try:
        async for piece in pieces:
            match piece:
                case TextDelta(text=text):
                    if len(text) <= LONG_TEXT:
                        hear(piece)
                        continue
                    async for part in text_parts(text):
                        hear(structs.replace(piece, text=part))
                case Reply():
                    reply = piece
    except (CassetteError, ModelError, StoreError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise ModelError(f"{model.name}: {cause}") from error
    finally:
        # One that is given up between two parts settles what it used. Most are of the first class.
        if isinstance(pieces, (AsyncGeneratorType, AsyncGenerator)):
            await pieces.aclose()
    if reply is None:
        raise ModelError(f"{model.name}: the stream ended without a reply")
    return reply


class RequestQuota(Protocol):
    """What a request reserves from before it is sent, and settles with after it. Requests of one do not overlap."""

    @property
    def is_limited(self) -> bool:
        """Return whether requests must reserve."""
        ...

    def check_time(self) -> None:
        """Refuse a request when its time is over.

        Raises:
            OutOfBudget: it is.
        """
        ...

    async def reserve(self, need: RequestEstimate) -> int:
        """Reserve a request and return its output limit; wait while others' requests hold what it needs.

        Raises:
            OutOfBudget: too little is left.
        """
        ...

    def settle(self, used: Amount) -> None:
        """Put what a request used in place of what was reserved for it."""
        ...

    def estimate(self, usage: Usage, cost: float) -> None:
        """Take note that the settled request was estimated, since nobody reported its usage."""
        ...


class MeteredModel(Struct, frozen=True):
    """A model whose requests reserve from a quota, each attempt of its own.

    `tokens` is the estimated input of a request, where it is known already; `factor` is by how much more the model
    counts than is estimated.
    """

    model: Model
    quota: RequestQuota
    tokens: int | None = None
    factor: float = 1.0

    @property
    def name(self) -> str:
        """Return the model string."""
        return self.model.name

    @property
    def capabilities(self) -> Capabilities:
        """Return what the model can do."""
        return self.model.capabilities

    def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Stream the reply, with the output capped to what is left.

        Raises:
            OutOfBudget: too little is left, or no time.
            ModelError: the model could not be asked, or broke off.
        """
        if self.quota.is_limited:
            return self._stream_within_quota(prompt)
        self.quota.check_time()
        return self.model.stream(prompt)

    async def _stream_within_quota(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        tokens = self.tokens
        if tokens is None:
            tokens = int(cost_of_prompt(prompt) * self.factor) + 1
        need = RequestEstimate.of(prompt, tokens, self.capabilities)
        output = await self.quota.reserve(need)
        capped = structs.replace(prompt, options=replace(prompt.options, output_limit=output))
        texts, settled, pieces = list[str](), False, self.model.stream(capped)
        try:
            async for piece in pieces:
                match piece:
                    case TextDelta(text=text):
                        texts.append(text)
                    case Reply():
                        self._settle(need, piece)
                        settled = True
                yield piece
        except _UNBILLED:
            if not texts and not settled:
                self.quota.settle(Amount())
                settled = True
            raise
        finally:
            if not settled:
                self._settle_estimated(need, estimate("".join(texts)))
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

    def _settle(self, need: RequestEstimate, reply: Reply) -> None:
        usage = reply.usage
        if not usage.input_tokens and not usage.output_tokens:
            texts = [reply.text, reply.thinking, *map(repr, reply.calls)]
            self._settle_estimated(need, sum(map(estimate, texts)))
            return
        cost = self.capabilities.cost(usage) or 0.0
        self.quota.settle(Amount(usage.input_tokens + usage.output_tokens, cost))

    def _settle_estimated(self, need: RequestEstimate, output: int) -> None:
        """Settle a request of which nobody says what it used: an attempt given up, or a reply without usage."""
        usage = Usage(input_tokens=need.input, output_tokens=output)
        cost = self.capabilities.cost(usage) or 0.0
        self.quota.settle(Amount(need.input + output, cost))
        self.quota.estimate(usage, cost)


SMALLEST_WINDOW = 1_024
"""A smaller window in an error is not believed: no model of today has one, but an error may subtract the reply from it
(vllm-project/vllm 33418)."""
MARGIN = 1.1
"""By how much a prompt may be larger than its estimate where a learned window is filled up with the reply."""
RESERVED_SHARE = 4
"""The reply keeps at least a quarter of a learned window before content is dropped."""
OVERFLOW_SHARE = 0.8
"""What is left of a prompt if the error names a window that the request would fit."""


class RequestLimits(Struct, frozen=True, kw_only=True):
    """What the requests to a model may have, in tokens.

    A prompt may have `room`. Prompt and reply together may have `window`; of it the reply gets what the prompt leaves,
    at most `output` and at least `reserved`.
    """

    window: int
    room: int
    output: int
    reserved: int

    def reply(self, tokens: int, *, longer: int = 0) -> int:
        """Return the output limit beside a prompt of so many tokens, doubled `longer` times as far as there is space."""
        output = max(self.reserved, min(self.output, self.window - ceil(tokens * MARGIN)))
        if not longer:
            return output
        most = min(self.window // 2, self.window - tokens)
        return max(output, min(output << longer, most), 1)


def request_limits(
    capabilities: Capabilities, lesson: OverflowLesson | None, turn: int
) -> RequestLimits:
    """Return the limits of a model's requests in a turn, given its latest lesson.

    A lesson of this turn limits prompt and reply. Of an earlier turn, only a window that the server named counts, and it
    limits only the reply: content is dropped again only if the server refuses it again. A lesson from the time when
    the model was taken to have another window does not count.
    """
    assumed, output = capabilities.window, capabilities.output_limit
    room = assumed - output
    is_of_turn = lesson is not None and lesson.turn == turn
    if lesson is None or lesson.body.assumed != assumed or not (is_of_turn or lesson.body.named):
        return RequestLimits(window=assumed, room=room, output=output, reserved=output)
    body = lesson.body
    window = min(assumed, body.window if is_of_turn else body.named)
    reserved = _reserved(capabilities, window)
    if not is_of_turn:
        return RequestLimits(window=window, room=room, output=output, reserved=reserved)
    if body.output:
        output = min(output, body.output)
        reserved = min(reserved, output)
    return RequestLimits(window=window, room=window - reserved, output=output, reserved=reserved)


def learn_overflow(
    model: Model, error: ModelOverflow, *, tokens: int, output: int, before: OverflowLesson | None
) -> ModelOverflowed:
    """Return what the refusal of a request teaches, so that the next request is smaller.

    The request had a prompt of about `tokens` and asked for at most `output`. A shorter reply comes first; content is
    dropped if that is not enough.
    """
    capabilities = model.capabilities
    prompt = error.prompt_tokens or 0
    prompt = prompt if prompt <= tokens * MAX_FACTOR else 0  # no text has so many tokens
    known = before.body.named if before and before.body.assumed == capabilities.window else 0
    named = error.window or 0
    is_new = SMALLEST_WINDOW <= named < max(tokens, prompt) + output
    named = named if is_new or named == known else 0
    window, lowered = _next_window(
        capabilities, error, named if is_new else 0, tokens=max(tokens, prompt), output=output
    )
    return ModelOverflowed(
        model=model.name,
        tokens=tokens,
        window=window,
        text=well_formed(str(error)),
        named=named,
        prompt=prompt,
        output=lowered,
        assumed=capabilities.window,
    )


def _next_window(
    capabilities: Capabilities,
    error: ModelOverflow,
    named: int,
    *,
    tokens: int,
    output: int,
) -> tuple[int, int]:
    """Return the window for the next request, and its output limit; 0 if content must be dropped."""
    if named:
        window = min(named, capabilities.window)
        reserved = _reserved(capabilities, window)
        lowered = min(window - ceil(tokens * MARGIN), capabilities.output_limit)
        if reserved <= lowered < output:
            return window, lowered
        if tokens > window - reserved:
            return window, 0
    lowered = max(tokens // 3, output // RESERVED_SHARE)
    if lowered <= output // 2 and not error.in_bytes:
        return capabilities.window, lowered
    room = int(tokens * (OVERFLOW_SHARE if error.window else 0.5))
    return room + min(capabilities.output_limit, room // 3), 0


def _reserved(capabilities: Capabilities, window: int) -> int:
    """Return the least that a reply gets of a window; the prompt never gets more than of the assumed window."""
    assumed, output = capabilities.window, capabilities.output_limit
    return max(min(output, window // RESERVED_SHARE), window - (assumed - output))
