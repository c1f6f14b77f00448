"""Quotas: the budget of a turn and its child runs together, in tokens and US dollars.

Each request reserves its estimated input and its output limit before it is sent, and settles its usage after it. The
quota of a child run has its parent's quota as parent, so a request is also reserved from every run above it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from loopline.errors import LooplineError, ModelError
from loopline.models import Capabilities, Model, Price, Prompt, Usage
from loopline.models.prompt import NO_USAGE
from loopline.react.loop_options import LoopOptions
from loopline.timeline import Recorder, Turn, parent_name

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


class OutOfBudget(ModelError):
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
        root = (
            self._root
        )  # requests wait at the root, because any run of the tree may release budget
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
            raise LooplineError(
                f"max_cost={options.max_cost:g} cannot be held: the price of {model.name!r} is not known. "
                "Limit max_tokens instead, or use a model with a known price"
            )


def _highest_prices(price: Price | None, tokens: int) -> tuple[float, float]:
    """Return the highest prices of a million input and output tokens in US dollars; 0 if unknown."""
    if price is None:
        return 0.0, 0.0
    if price.long is not None and tokens > price.long.over * _LOWEST_ESTIMATE:
        return _highest_prices(price.long.price, 0)
    return max(price.input, price.cache_read, price.cache_write), price.output
