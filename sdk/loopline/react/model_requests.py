"""Requests to a model: their limits in tokens, their reservation from a quota, and their repetition after failures."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from math import ceil
from secrets import token_hex
from types import AsyncGeneratorType
from typing import Literal, Protocol

from msgspec import Struct, structs

from loopline import errors
from loopline.clock import Clock
from loopline.models import Capabilities, Model, Prompt, Reply, TextDelta, Usage, well_formed
from loopline.models.prompt import cost_of_prompt, estimate
from loopline.prompt import MAX_FACTOR
from loopline.react.quota import Amount, OutOfBudget, RequestEstimate
from loopline.tasks import LONG_TEXT, text_parts
from loopline.timeline import ModelOverflowed, OverflowLesson

logger: logging.Logger = logging.getLogger("loopline")

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0
SHORTEST_REPLY = 256
"""The least output limit, in tokens, to which a reply is shortened for a rate limit."""


_UNBILLED = (
    errors.ModelRateLimited,
    errors.ModelOverloaded,
    errors.ModelUnreachable,
    errors.ModelRequestError,
    errors.ModelAccessError,
    errors.ModelOverflow,
    OutOfBudget,
)
"""Errors of a request that the provider has not begun to work on."""


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Repeats requests that failed temporarily, at most `retries` times.

    The delay is exponential backoff with full jitter, at most 60 s, and at least the server's Retry-After; if that is
    more than 60 s, the request is not repeated. `on_retry` is called for each failed attempt with its number, its error
    and the seconds until the next attempt. With `has_fallback` a request that timed out is not repeated, because another
    model is tried at once.
    """

    clock: Clock
    retries: int
    has_fallback: bool = False
    on_retry: Callable[[int, errors.ModelUnavailable, float], Awaitable[None]] | None = None
    jitter: Callable[[], float] = random.random

    def delay(self, attempt: int, error: errors.ModelUnavailable) -> float | None:
        """Return the seconds to wait after the failed attempt `attempt`, counted from 1.

        Return None if the request is not repeated: `attempt` is above `retries`, the server's Retry-After is above 60 s, or the
        request timed out and there is another model to try. Otherwise the delay is random, at most 2 ** (attempt - 1) seconds
        and 60 s, but at least the Retry-After.
        """
        if attempt > self.retries or (
            self.has_fallback and isinstance(error, errors.ModelTimedOut)
        ):
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
    on_piece: Callable[[TextDelta], None],
    retries: RetryPolicy,
) -> Reply:
    """Request a reply, with retries; `on_piece` receives its pieces as they arrive, a long piece in parts.

    Raises:
        ModelError: the request failed, or its stream broke off or ended without a reply.
    """
    attempt = 1
    while True:
        try:
            reply = await _stream_once(model, prompt, on_piece)
            return reply if reply.attempt == attempt else structs.replace(reply, attempt=attempt)
        except errors.ModelUnavailable as error:
            seconds = retries.delay(attempt, error)
            if seconds is None:
                raise
            prompt = _shorten_reply(prompt, error)
            if retries.on_retry is not None:
                await retries.on_retry(attempt, error, seconds)
            await retries.clock.sleep(seconds)
        attempt += 1


def _shorten_reply(prompt: Prompt, error: errors.ModelUnavailable) -> Prompt:
    """Return the prompt with a lower output limit if it exceeds a rate limit by itself and a shorter reply would fit."""
    if not isinstance(error, errors.ModelRateLimited) or not error.excess:
        return prompt
    output = (prompt.options.output_limit or 0) - error.excess
    if output < SHORTEST_REPLY:
        return prompt
    return structs.replace(prompt, options=replace(prompt.options, output_limit=output))


async def _stream_once(
    model: Model, prompt: Prompt, on_piece: Callable[[TextDelta], None]
) -> Reply:
    reply: Reply | None = None
    pieces = model.stream(prompt)
    try:
        async for piece in pieces:
            match piece:
                case TextDelta(text=text):
                    if len(text) <= LONG_TEXT:
                        on_piece(piece)
                        continue
                    async for part in text_parts(text):
                        on_piece(structs.replace(piece, text=part))
                case Reply():
                    reply = _check_usage(model, piece)
    except (errors.CassetteError, errors.ModelError, errors.StoreError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise errors.ModelError(f"{model.name}: {cause}") from error
    finally:
        # An abandoned stream settles its usage when it is closed. The first class is the common one, and checked faster.
        if isinstance(pieces, (AsyncGeneratorType, AsyncGenerator)):
            await pieces.aclose()
    if reply is None:
        raise errors.ModelError(f"{model.name}: the stream ended without a reply")
    return reply


MOST_TOKENS = 1_000_000_000
"""More tokens in one request are a fault of the provider's report: windows are a thousand times smaller."""


def _check_usage(model: Model, reply: Reply) -> Reply:
    """Return the reply; if its provider reported impossible counts, its usage is unreported, and budgets estimate it."""
    usage = reply.usage
    counts = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
    )
    if min(counts) >= 0 and max(counts) <= MOST_TOKENS:
        return reply
    logger.warning("%s reported an impossible usage, which is estimated: %s", model.name, usage)
    return structs.replace(reply, usage=Usage(unreported=1))


class RequestQuota(Protocol):
    """A budget from which a request reserves before it is sent, and settles its usage after it; one request at a time."""

    @property
    def is_limited(self) -> bool:
        """Whether requests must reserve."""
        ...

    def check_time(self) -> None:
        """Check that there is time for a request.

        Raises:
            OutOfBudget: the time is over.
        """
        ...

    async def reserve(self, need: RequestEstimate) -> int:
        """Reserve a request and return its output limit; wait while requests of other runs reserve the needed budget.

        Raises:
            OutOfBudget: the remaining budget is too small.
        """
        ...

    def settle(self, used: Amount) -> None:
        """Replace the reservation of a request by its usage."""
        ...

    def estimate(self, usage: Usage, cost: float) -> None:
        """Record that the usage of the settled request is estimated, because the provider did not report it."""
        ...


class MeteredModel(Struct, frozen=True):
    """A model with a quota, from which each attempt of a request is reserved.

    `tokens` is the estimated input of a request if it is already known; `factor` is the ratio of the tokens that the
    model counts to the estimated tokens.
    """

    model: Model
    quota: RequestQuota
    tokens: int | None = None
    factor: float = 1.0

    @property
    def name(self) -> str:
        """The model string."""
        return self.model.name

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the model."""
        return self.model.capabilities

    def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Stream the reply, with the output limit lowered to the remaining budget.

        Raises:
            OutOfBudget: the remaining budget is too small, or the time is over.
            ModelError: the request failed, or its stream broke off.
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
        texts: list[str] = []
        settled = False
        pieces = self.model.stream(capped)
        try:
            async for piece in pieces:
                match piece:
                    case TextDelta(text=text):
                        texts.append(text)
                    case Reply():
                        piece = _check_usage(self, piece)
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
        """Settle a request by its estimate: an abandoned attempt, or a reply without usage."""
        usage = Usage(input_tokens=need.input, output_tokens=output)
        cost = self.capabilities.cost(usage) or 0.0
        self.quota.settle(Amount(need.input + output, cost))
        self.quota.estimate(usage, cost)


_PLAIN_ERRORS: tuple[tuple[type[errors.LooplineError], str], ...] = (
    (errors.ModelRateLimited, "the model gets too many requests at the moment: try again later"),
    (errors.ModelOverloaded, "the model is overloaded at the moment: try again later"),
    (errors.ModelTimedOut, "the model did not answer in time: try again later"),
    (errors.ModelUnreachable, "the model cannot be reached at the moment: try again later"),
    (errors.ModelStreamBroken, "the model's answer broke off: try again"),
    (errors.ModelUnavailable, "the model is not available at the moment: try again later"),
    (errors.ModelOverflow, "the request is too long for the model: begin a new conversation"),
    (errors.ModelReplyTooLarge, "the model's answer was too long: ask for less at once"),
    (errors.ModelRequestError, "the model refused the request"),
    (errors.ModelAccessError, "the model may not be used"),
    (errors.ModelError, "the model failed"),
    (errors.BundleError, "the bundle failed"),
    (errors.PropertyError, "the bundle failed"),
    (errors.KnowledgeError, "the knowledge of the bundle cannot be used"),
)
"""The texts of errors for the users of a service, from the most specific class to the most general one."""


class PrivateErrors(Struct, frozen=True):
    """A model whose errors have plain texts without details of the provider, for a service with users of its own.

    An error has the class and the values of the original one, and a text such as `the model may not be used (error
    1f2e3d4c)`. The original text is logged under the same id.
    """

    model: Model

    @property
    def name(self) -> str:
        """The model string."""
        return self.model.name

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the model."""
        return self.model.capabilities

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Stream the reply.

        Raises:
            ModelError: the request failed; also for other errors of the model's code.
        """
        pieces = self.model.stream(prompt)
        try:
            async for piece in pieces:
                yield piece
        except (errors.CassetteError, OutOfBudget, errors.StoreError):
            raise
        except Exception as error:
            failure = error if isinstance(error, errors.ModelError) else errors.ModelError()
            raise _plain_error(failure, error, f"the model {self.name}") from error
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()


def hide_details(error: Exception) -> Exception:
    """Convert an error that ends a turn to the error that the users of a service see.

    An error of the bundle, its properties or its knowledge gets a plain text with an id, and an error that is not a
    LooplineError becomes a RuntimeError with such a text. The original text, which may name the author's files, is logged
    under the same id. Other errors are returned unchanged.
    """
    if isinstance(error, errors.BundleError | errors.PropertyError | errors.KnowledgeError):
        return _plain_error(error, error, "the bundle")
    if not isinstance(error, errors.LooplineError):
        return RuntimeError(_log_details("the turn failed", error, "the turn"))
    return error


def _plain_error(kind: errors.LooplineError, error: Exception, origin: str) -> errors.LooplineError:
    """Return an error like `kind` with a plain text, and log the text of `error`."""
    plain_kind, text = next(row for row in _PLAIN_ERRORS if isinstance(kind, row[0]))
    plain = plain_kind(_log_details(text, error, origin))
    plain.__dict__.update(kind.__dict__)  # such as the seconds to wait
    return plain


def _log_details(text: str, error: Exception, origin: str) -> str:
    """Log the error under a new id, and return the text with the id."""
    number = token_hex(4)
    logger.error("error %s of %s: %s: %s", number, origin, type(error).__name__, error)
    return f"{text} (error {number})"


SMALLEST_WINDOW = 1_024
"""A smaller window in an error is ignored: models have larger ones, but an error may subtract the reply from the window
(vllm-project/vllm 33418)."""
MARGIN = 1.1
"""The assumed ratio of a prompt's tokens to their estimate when the rest of a learned window is used for the reply."""
RESERVED_SHARE = 4
"""At least a quarter of a learned window is reserved for the reply before content is dropped."""
OVERFLOW_SHARE = 0.8
"""The share to which a prompt is reduced if the request should have fit the window in the error."""


class RequestLimits(Struct, frozen=True, kw_only=True):
    """The limits of requests to a model, in tokens.

    A prompt may have at most `room` tokens; prompt and reply together at most `window`. The reply gets the rest of the
    window, at most `output` and at least `reserved`.
    """

    window: int
    room: int
    output: int
    reserved: int

    def reply(self, tokens: int, *, longer: int = 0) -> int:
        """Return the output limit for a prompt of `tokens` tokens, doubled `longer` times if the window allows that."""
        output = max(self.reserved, min(self.output, self.window - ceil(tokens * MARGIN)))
        if not longer:
            return output
        most = min(self.window // 2, self.window - tokens)
        return max(output, min(output << longer, most), 1)


def request_limits(
    capabilities: Capabilities, lesson: OverflowLesson | None, turn: int
) -> RequestLimits:
    """Return the limits of a model's requests in a turn, given the lesson of its last refused request.

    A lesson of this turn limits prompt and reply. A lesson of an earlier turn counts only if the server has stated the
    window, and limits only the reply, so content is dropped again only after another refusal. A lesson is ignored if the
    capabilities of the model had another window then.
    """
    assumed = capabilities.window
    output = capabilities.output_limit
    room = assumed - output
    is_of_turn = lesson is not None and lesson.turn == turn
    if lesson is None or lesson.body.assumed != assumed or not (is_of_turn or lesson.body.named):
        return RequestLimits(window=assumed, room=room, output=output, reserved=output)
    body = lesson.body
    window = min(assumed, body.window if is_of_turn else body.named)
    reserved = _reserve_output(capabilities, window)
    if not is_of_turn:
        return RequestLimits(window=window, room=room, output=output, reserved=reserved)
    if body.output:
        output = min(output, body.output)
        reserved = min(reserved, output)
    return RequestLimits(window=window, room=window - reserved, output=output, reserved=reserved)


def learn_overflow(
    model: Model,
    error: errors.ModelOverflow,
    *,
    tokens: int,
    output: int,
    before: OverflowLesson | None,
) -> ModelOverflowed:
    """Return the body that records a refused request, with lower limits for the next request.

    The request had a prompt of about `tokens` tokens and an output limit of `output`. The output limit is lowered first;
    the window, and with it the content, only if that is not enough.
    """
    capabilities = model.capabilities
    prompt = error.prompt_tokens or 0
    prompt = prompt if prompt <= tokens * MAX_FACTOR else 0  # a larger number cannot be true
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
    error: errors.ModelOverflow,
    named: int,
    *,
    tokens: int,
    output: int,
) -> tuple[int, int]:
    """Return the window and the output limit of the next request; an output limit of 0 if content must be dropped."""
    if named:
        window = min(named, capabilities.window)
        reserved = _reserve_output(capabilities, window)
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


def _reserve_output(capabilities: Capabilities, window: int) -> int:
    """Return the tokens of a window that are reserved for the reply.

    That is a quarter of the window, at most the model's output limit; or more, if a prompt would otherwise have more room
    than in the window of the capabilities.
    """
    assumed = capabilities.window
    output = capabilities.output_limit
    return max(min(output, window // RESERVED_SHARE), window - (assumed - output))
