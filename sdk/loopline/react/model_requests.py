"""Requests to a model: the quota of a turn, the limits of requests in tokens, and their repetition after failures.

A quota is the budget of a turn and its child runs together, in tokens and US dollars. Each request reserves its
estimated input and its output limit before it is sent, and settles its usage after it. The quota of a child run has its
parent's quota as parent, so a request is also reserved from every run above it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from math import ceil
from types import AsyncGeneratorType
from typing import Literal, Protocol

from msgspec import Struct, field, structs

from loopline import errors
from loopline.clock import Clock
from loopline.models import (
    Capabilities,
    Model,
    Price,
    Prompt,
    Reply,
    TextDelta,
    Usage,
    WrappedModel,
    well_formed,
)
from loopline.models.prompt import NO_USAGE, cost_of_prompt, estimate
from loopline.prompt import MAX_FACTOR
from loopline.react.loop_options import LoopOptions
from loopline.tasks import LONG_TEXT, text_parts
from loopline.timeline import ModelOverflowed, OverflowLesson, Recorder, Turn, parent_name

logger: logging.Logger = logging.getLogger("loopline")

MIN_OUTPUT = 256
"""A request is not sent if it can have fewer output tokens, unless its output limit is lower."""
ANSWER_OUTPUT = 1_000
"""Output tokens that are reserved for a forced answer."""
ANSWER_INPUT = 1_000
"""Input tokens that are reserved for a forced answer."""
ANSWER_SHARE = 0.25
"""The largest share of a limit that is reserved for a forced answer."""

_LOWEST_ESTIMATE = 0.95
"""The lowest ratio of estimated input tokens to those that a provider counts."""
_ROUNDING = 1 - 1e-9
"""Rounds a sum of dollars down, so that a reservation is never larger than the remaining budget."""


class OutOfBudget(errors.ModelError):
    """The request is not sent, because the remaining budget of the turn is too small or its time is over."""


class Amount(Struct, frozen=True, gc=False):
    """Tokens and US dollars."""

    tokens: int = 0
    cost: float = 0.0

    def __add__(self, amount: Amount) -> Amount:
        return Amount(self.tokens + amount.tokens, self.cost + amount.cost)


class RequestEstimate(Struct, frozen=True, kw_only=True, gc=False):
    """A request before it is sent: its estimated input and its output limit, in tokens.

    The prices are in US dollars for a million tokens, 0 if unknown. If it `is_answer`, it may use the part of the budget
    that is reserved for the answer.
    """

    input: int
    output: int
    input_price: float
    output_price: float
    is_answer: bool

    @classmethod
    def of(cls, prompt: Prompt, tokens: int, capabilities: Capabilities) -> RequestEstimate:
        """Return the estimate for a prompt with `tokens` input tokens, at the highest price that they can have."""
        input_price, output_price = _highest_prices(capabilities.price, tokens)
        return cls(
            input=tokens,
            output=prompt.options.output_limit or capabilities.output_limit,
            input_price=input_price,
            output_price=output_price,
            is_answer=prompt.purpose == "answer",
        )

    def amount(self, output: int) -> Amount:
        """Return the largest usage of the request if its reply has `output` tokens."""
        cost = (self.input * self.input_price + output * self.output_price) / 1_000_000
        return Amount(self.input + output, cost)

    def affordable(self, remaining: Remaining, claimants: int) -> int:
        """Return the output limit that the remaining budget allows when `claimants` runs share it; negative if too small.

        A run gets more than its share if the least useful request needs it.
        """
        output = self.output
        minimum = self.amount(min(MIN_OUTPUT, self.output))
        if remaining.tokens is not None:
            share = min(max(remaining.tokens // claimants, minimum.tokens), remaining.tokens)
            output = min(output, share - self.input)
        if remaining.cost is not None:
            share_cost = min(max(remaining.cost / claimants, minimum.cost), remaining.cost)
            spare = share_cost - self.amount(0).cost
            if spare < 0:
                return -1
            if self.output_price:
                output = min(output, int(spare / self.output_price * 1_000_000 * _ROUNDING))
        return output


class Remaining(Struct, frozen=True, gc=False):
    """The remaining part of the limits; None without a limit."""

    tokens: int | None
    cost: float | None

    def after(self, used: Amount) -> Remaining:
        """Return the remaining part after a further usage."""
        tokens = None if self.tokens is None else self.tokens - used.tokens
        return Remaining(tokens, None if self.cost is None else self.cost - used.cost)


class Quota(Struct, eq=False):
    """The limits of one run, and the usage of the run and its child runs.

    `recorded` is the usage in the log when this process opened the quota, `settled` the usage since then, and `reserved`
    the request in flight. `estimated` is the part of `settled` that is not in the log yet: abandoned attempts, and
    replies without reported usage. `answer_share` is the share of the limits that is reserved for a forced answer.
    """

    parent: Quota | None = None
    limit: Remaining = Remaining(None, None)
    deadline_seconds: float | None = None
    recorder: Recorder | None = None
    answer_share: float = 0.0
    recorded: Amount = Amount()
    settled: Amount = Amount()
    reserved: Amount | None = None
    estimated: Usage = NO_USAGE
    estimated_cost: float = 0.0
    running: bool = False
    children: dict[str, Quota] = {}
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self, turn: Turn, options: LoopOptions, recorder: Recorder | None = None) -> None:
        """Set the limits from the options, and the recorded usage from the turn; the recorder measures the time."""
        self.limit = Remaining(options.max_tokens, options.max_cost)
        self.deadline_seconds = options.deadline_seconds
        self.recorder = recorder
        self.answer_share = ANSWER_SHARE if options.forces_answer else 0.0
        self.recorded = sum_recorded(turn)

    def child(self, name: str) -> Quota:
        """Return the quota of the child run of that name, and count the child run as running."""
        quota = self.children.setdefault(name, Quota(parent=self))
        quota.running = True
        return quota

    def close(self, name: str) -> None:
        """Add the usage of the child run of that name to this quota, because the child run has ended."""
        child = self.children.pop(name)
        self.settled += child.used
        self.estimate(*child.take_unrecorded())
        self._notify()

    @property
    def is_limited(self) -> bool:
        """Whether this run, or a run above it, has a limit of tokens or cost."""
        if self.limit.tokens is not None or self.limit.cost is not None:
            return True
        return self.parent is not None and self.parent.is_limited

    def check_time(self) -> None:
        """Check the time of this run and of the runs above it.

        Raises:
            OutOfBudget: the time of this run, or of a run above it, is over.
        """
        if self.parent is None and self.deadline_seconds is None:
            return
        for quota in self._lineage():
            if quota.deadline_seconds is None or quota.recorder is None:
                continue
            if quota.recorder.elapsed_seconds >= quota.deadline_seconds:
                raise OutOfBudget("the time of the turn is over")

    @property
    def used(self) -> Amount:
        """The usage of this run and its child runs, without requests in flight."""
        total = self.recorded + self.settled
        for child in self.children.values():
            total += child.used
        return total

    @property
    def unspent(self) -> Remaining:
        """The remaining part of this run's limits, without a deduction for requests in flight."""
        return self.limit.after(self.used)

    def room(self, model: Model) -> int | None:
        """Return the input tokens that the budget allows for a forced answer by the model; None without a limit."""
        input_price, output_price = _highest_prices(model.capabilities.price, 0)
        rooms: list[int] = []
        for quota in self._lineage():
            remaining = quota._remaining(is_own_answer=quota is self)
            if remaining.tokens is not None:
                rooms.append(remaining.tokens - min(ANSWER_OUTPUT, remaining.tokens // 2))
            if remaining.cost is not None and input_price:
                output = min(ANSWER_OUTPUT * output_price / 1_000_000, remaining.cost / 2)
                rooms.append(int((remaining.cost - output) / input_price * 1_000_000))
        return min(rooms, default=None)

    async def reserve(self, need: RequestEstimate) -> int:
        """Reserve the request and return its output limit; wait while requests in flight reserve the needed budget.

        The limit is at least `MIN_OUTPUT` tokens, or the limit of the request if that is lower.

        Raises:
            OutOfBudget: the remaining budget is too small, or the time is over.
        """
        while True:
            self.check_time()
            output = min(
                need.affordable(
                    quota._remaining(is_own_answer=need.is_answer and quota is self),
                    quota._claimants,
                )
                for quota in self._lineage()
            )
            if output >= min(MIN_OUTPUT, need.output):
                self.reserved = need.amount(output)
                return output
            changed = self._root.changed
            if not any(quota._in_flight.tokens for quota in self._lineage()):
                raise OutOfBudget("too little of the turn's budget is left for another request")
            await changed.wait()

    def settle(self, used: Amount) -> None:
        """Replace the reservation of a request by its usage."""
        self.settled += used
        self.reserved = None
        self._notify()

    def estimate(self, usage: Usage, cost: float) -> None:
        """Count a settled usage as estimated; `take_unrecorded` returns it for the next record."""
        self.estimated += usage
        self.estimated_cost += cost

    def take_unrecorded(self) -> tuple[Usage, float]:
        """Return the estimated usage and its cost since the last call, and reset them; the caller records them."""
        usage = self.estimated
        cost = self.estimated_cost
        self.estimated = NO_USAGE
        self.estimated_cost = 0.0
        return usage, cost

    def _lineage(self) -> Iterator[Quota]:
        yield self
        if self.parent is not None:
            yield from self.parent._lineage()

    @property
    def _root(self) -> Quota:
        return self if self.parent is None else self.parent._root

    @property
    def _in_flight(self) -> Amount:
        total = self.reserved or Amount()
        for child in self.children.values():
            total += child._in_flight
        return total

    @property
    def _claimants(self) -> int:
        """The number of runs that share the budget: the running ones without a request in flight, at least 1."""
        running = [child for child in self.children.values() if child.running]
        if running:
            return max(sum(child._claimants for child in running if child.reserved is None), 1)
        return 1

    def _remaining(self, *, is_own_answer: bool) -> Remaining:
        """Return the limits without the usage and the requests in flight.

        If `is_own_answer` is False, the part that is reserved for a forced answer is subtracted too.
        """
        remaining = self.limit.after(self.used + self._in_flight)
        if is_own_answer:
            return remaining
        share = self.answer_share
        limit = self.limit
        # Without this reserve decisions could use up the budget, and the turn would end without an answer.
        tokens = min(ANSWER_INPUT + ANSWER_OUTPUT, int((limit.tokens or 0) * share))
        return remaining.after(Amount(tokens, (limit.cost or 0.0) * share))

    def _notify(self) -> None:
        """Wake the requests that wait for a part of the budget."""
        # Requests wait at the root, because any run of the tree may release budget.
        root = self._root
        root.changed.set()
        root.changed = asyncio.Event()


def sum_recorded(turn: Turn) -> Amount:
    """Return the usage that a turn's blocks record, including ended child runs."""
    used = turn.usage + turn.estimated
    return Amount(used.input_tokens + used.output_tokens, turn.cost or 0.0)


async def recount(quota: Quota, turn: Turn, name: str, recorder: Recorder) -> None:
    """Set the recorded usage of the child runs that have not ended, from their logs, also for their child runs.

    `quota`, `turn` and `name` are those of the parent conversation; the recorder reads the logs.
    """
    for child, link in turn.children.items():
        if not link.reason and parent_name(child) == name:
            child_turn = await recorder.child_turn(child)
            child_quota = quota.child(child)
            child_quota.running = False
            child_quota.recorded = sum_recorded(child_turn)
            await recount(child_quota, child_turn, child, recorder)


def check_prices(options: LoopOptions, models: Iterable[Model]) -> None:
    """Check that the cost of each model is known if there is a limit of the cost.

    Raises:
        LooplineError: the price of a model is unknown, so `max_cost` cannot be enforced.
    """
    if options.max_cost is None:
        return
    for model in models:
        if model.capabilities.price is None:
            raise errors.LooplineError(
                f"max_cost={options.max_cost:g} cannot be held: the price of {model.name!r} is not known. "
                "Limit max_tokens instead, or use a model with a known price"
            )


def _highest_prices(price: Price | None, tokens: int) -> tuple[float, float]:
    """Return the highest prices of a million input and output tokens in US dollars for a prompt of `tokens` tokens.

    They are those of long prompts if the estimate may exceed the threshold; 0 if unknown.
    """
    if price is None:
        return 0.0, 0.0
    if price.long is not None and tokens > price.long.over * _LOWEST_ESTIMATE:
        return _highest_prices(price.long.price, 0)
    return max(price.input, price.cache_read, price.cache_write), price.output


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

    The reply has the number of its attempt. After a rate limit that the request exceeds by itself, the output limit
    of the next attempt is lower.

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
    """Make one request, pass its pieces to `on_piece`, long ones in parts, and return the reply with checked usage.

    Raises:
        ModelError: the request failed, the model's code raised another error, or the stream ended without a reply.
    """
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
    """Return the reply; a usage with a count below 0 or above `MOST_TOKENS` is logged and marked as unreported."""
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


class MeteredModel(WrappedModel, frozen=True):
    """A model with a quota, from which each attempt of a request is reserved.

    `tokens` is the estimated input of a request if it is already known; `factor` is the ratio of the tokens that the
    model counts to the estimated tokens.
    """

    quota: RequestQuota
    tokens: int | None = None
    factor: float = 1.0

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
        """Reserve the request, stream it with the granted output limit, and settle its usage.

        An abandoned stream, and a reply without usage, are settled by an estimate. A request that the provider
        refused before any text is settled with 0.

        Raises:
            OutOfBudget: the remaining budget is too small, or the time is over.
        """
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
        """Settle the usage of the reply; if it has 0 input and output tokens, settle an estimate from its texts."""
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
        """Return the output limit for a prompt of `tokens` tokens.

        It is doubled `longer` times, but to at most half of the window, and to the rest of the window after the
        prompt.
        """
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
    the window, and with it the content, only if that is not enough. `before` is the lesson of the previous refusal.
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
    """Return the window and the output limit of the next request; an output limit of 0 if content must be dropped.

    `named` is the new window that the error states, 0 without one.
    """
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
