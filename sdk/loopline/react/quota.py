"""Quotas: what a turn and its child runs may still use together, in tokens and US dollars.

Each request reserves its estimated input and its output limit before it is sent, and settles what was used after it.
A child's quota stands below its parent's, so a request reserves from every run above it too.
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
"""Output tokens below which a request is not worth sending, unless it wants fewer."""
ANSWER_OUTPUT = 1_000
"""Output tokens that a forced answer should have."""
ANSWER_INPUT = 1_000
"""Input tokens that are kept for a forced answer, beside its output."""
ANSWER_SHARE = 0.25
"""The largest share of a limit that is kept for a forced answer."""

_LOWEST_ESTIMATE = 0.95
"""The least that an estimate of input is of what a provider counts."""
_ROUNDING = 1 - 1e-9
"""Rounds a sum of dollars down, so that what is reserved is never more than what is left."""


class OutOfBudget(ModelError):
    """The request is not sent: too little of the turn's budget is left, or none of its time."""


class Amount(Struct, frozen=True, gc=False):
    """Tokens and US dollars."""

    tokens: int = 0
    cost: float = 0.0

    def __add__(self, amount: Amount) -> Amount:
        return Amount(self.tokens + amount.tokens, self.cost + amount.cost)


class RequestEstimate(Struct, frozen=True, kw_only=True, gc=False):
    """A request before it is sent: its estimated input and its output limit, in tokens.

    The price is in US dollars for a million tokens, 0 where nobody knows one. An answer may use what is kept for it.
    """

    input: int
    output: int
    input_price: float
    output_price: float
    is_answer: bool

    @classmethod
    def of(cls, prompt: Prompt, tokens: int, capabilities: Capabilities) -> RequestEstimate:
        """Return the need of a prompt with so many input tokens, at the highest price they can have."""
        dearest, output_price = _prices(capabilities.price, tokens)
        return cls(
            input=tokens,
            output=prompt.options.output_limit or capabilities.output_limit,
            input_price=dearest,
            output_price=output_price,
            is_answer=prompt.purpose == "answer",
        )

    def amount(self, output: int) -> Amount:
        """Return what the request uses at most with so many output tokens."""
        cost = (self.input * self.input_price + output * self.output_price) / 1_000_000
        return Amount(self.input + output, cost)

    def affordable(self, remaining: Remaining, claimants: int) -> int:
        """Return the output tokens that one of so many claimants can have; negative when there are none."""
        output, minimum = self.output, self.amount(min(MIN_OUTPUT, self.output))
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
    """What is left of the limits; None where there is no limit."""

    tokens: int | None
    cost: float | None

    def after(self, used: Amount) -> Remaining:
        """Return what is left once so much more is used."""
        tokens = None if self.tokens is None else self.tokens - used.tokens
        return Remaining(tokens, None if self.cost is None else self.cost - used.cost)


class Quota(Struct, eq=False):
    """The limits of one run, and what it and its child runs have used of them.

    What was used before this process ran it is read from the log; `settled` came since, `reserved` is in flight.
    `estimated` is the part of `settled` that no block of the log holds yet: attempts that were given up, and
    replies whose provider reported no usage.
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
        """Take the limits of the options, what the turn's blocks say was used, and the recorder, which has its time."""
        self.limit = Remaining(options.max_tokens, options.max_cost)
        self.deadline_seconds = options.deadline_seconds
        self.recorder = recorder
        self.answer_share = ANSWER_SHARE if options.forces_answer else 0.0
        self.recorded = recorded_amount(turn)

    def child(self, name: str) -> Quota:
        """Return the quota of the child run of that name, which runs from now on."""
        quota = self.children.setdefault(name, Quota(parent=self))
        quota.running = True
        return quota

    def close(self, name: str) -> None:
        """Count what the child run of that name used as this run's own, for it makes no more requests."""
        child = self.children.pop(name)
        self.settled += child.used
        self.estimate(*child.take_unrecorded())
        self._notify()

    @property
    def is_limited(self) -> bool:
        """Return whether this run, or one above it, has a limit."""
        if self.limit.tokens is not None or self.limit.cost is not None:
            return True
        return self.parent is not None and self.parent.is_limited

    def check_time(self) -> None:
        """Refuse a request when the time of this run, or of one above it, is over.

        Raises:
            OutOfBudget: it is.
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
        """Return what this run and its children have used, requests in flight not counted."""
        total = self.recorded + self.settled
        for child in self.children.values():
            total += child.used
        return total

    @property
    def unspent(self) -> Remaining:
        """Return what is left of the run's own limits, requests in flight not counted."""
        return self.limit.after(self.used)

    def room(self, model: Model) -> int | None:
        """Return the input tokens that a forced answer may have; None where nothing limits them."""
        input_price, output_price = _prices(model.capabilities.price, 0)
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
        """Reserve the request and return its output limit; wait while others' requests hold what it needs.

        Raises:
            OutOfBudget: too little is left, or no time.
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
        """Put what a request used in place of what was reserved for it."""
        self.settled += used
        self.reserved = None
        self._notify()

    def estimate(self, usage: Usage, cost: float) -> None:
        """Add an estimated usage to a settled request whose provider reported none."""
        self.estimated += usage
        self.estimated_cost += cost

    def take_unrecorded(self) -> tuple[Usage, float]:
        """Return the estimated usage and its cost since the last call, which are about to be recorded."""
        usage, cost = self.estimated, self.estimated_cost
        self.estimated, self.estimated_cost = NO_USAGE, 0.0
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
        """Return how many runs may reserve next: those without a request in flight."""
        running = [child for child in self.children.values() if child.running]
        if running:
            return max(sum(child._claimants for child in running if child.reserved is None), 1)
        return 1

    def _remaining(self, *, is_own_answer: bool) -> Remaining:
        remaining = self.limit.after(self.used + self._in_flight)
        if is_own_answer:
            return remaining
        share, limit = self.answer_share, self.limit
        tokens = min(ANSWER_INPUT + ANSWER_OUTPUT, int((limit.tokens or 0) * share))
        return remaining.after(Amount(tokens, (limit.cost or 0.0) * share))

    def _notify(self) -> None:
        """Wake the requests that wait for something to be settled."""
        root = self._root
        root.changed.set()
        root.changed = asyncio.Event()


def recorded_amount(turn: Turn) -> Amount:
    """Return what a turn's blocks say was used, ended child runs included."""
    used = turn.usage + turn.estimated
    return Amount(used.input_tokens + used.output_tokens, turn.cost or 0.0)


async def recount(quota: Quota, turn: Turn, name: str, recorder: Recorder) -> None:
    """Count what the child runs of a conversation's turn have used, as far as their end is not recorded.

    The quota is the turn's; the recorder reads the logs of the children.
    """
    for child, link in turn.children.items():
        if not link.reason and parent_name(child) == name:
            run, below = await recorder.child_turn(child), quota.child(child)
            below.running, below.recorded = False, recorded_amount(run)
            await recount(below, run, child, recorder)


def check_prices(options: LoopOptions, models: Iterable[Model]) -> None:
    """Refuse a limit of the cost that cannot be held.

    Raises:
        LooplineError: a model's price is not known.
    """
    if options.max_cost is None:
        return
    for model in models:
        if model.capabilities.price is None:
            raise LooplineError(
                f"max_cost={options.max_cost:g} cannot be held: the price of {model.name!r} is not known. "
                "Limit max_tokens instead, or use a model whose price is known"
            )


def _prices(price: Price | None, tokens: int) -> tuple[float, float]:
    """Return the highest price of an input token, and that of an output token, for a million."""
    if price is None:
        return 0.0, 0.0
    if price.long is not None and tokens > price.long.over * _LOWEST_ESTIMATE:
        return _prices(price.long.price, 0)
    return max(price.input, price.cache_read, price.cache_write), price.output
