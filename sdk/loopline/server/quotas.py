"""Quotas of a day: the tokens and dollars of a user and of a tenant, which turns and model requests reserve in advance."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, time, timedelta
from http import HTTPStatus
from typing import Self

import msgspec

from loopline import react, timeline
from loopline.clock import Clock
from loopline.errors import LooplineError
from loopline.models import ModelRegistry, Prompt, Reply, TextDelta, Usage, WrappedModel
from loopline.names import nearest_hint
from loopline.server.problems import RequestProblem

_PRICED = timeline.BodyUnion[timeline.PricedBody](timeline.PricedBody)
_IMPORTED = "conv.imported"
_TYPES = [
    _IMPORTED,
    *(name for name, kind in timeline.body_types().items() if kind in _PRICED.types),
]
_REFRESH_SECONDS = 1.0
"""How old the usage of other processes may be when a request reserves."""
_RETRY_SECONDS = 5
"""When a refused client may try again, because a running turn may have released its reservation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyQuotas:
    """The most that a user, and a tenant with all its users, may use in a day of UTC; None is no limit.

    A turn begins only if `turn_tokens` and `turn_cost` remain of each quota. Costs are in US dollars; requests without a
    known price cost nothing.
    """

    user_tokens: int | None = None
    user_cost: float | None = None
    tenant_tokens: int | None = None
    tenant_cost: float | None = None
    turn_tokens: int = 20_000
    turn_cost: float = 0.10

    def __post_init__(self) -> None:
        pairs = [(limit.most, limit.turn, limit.name) for limit in self.limits]
        too_small = [name for most, turn, name in pairs if not most >= turn]
        if too_small:
            raise LooplineError(f"{too_small[0]} is less than a turn reserves: no turn could begin")

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Parse quotas such as `user_tokens=200000` or `tenant_cost=50`.

        Raises:
            LooplineError: the name is unknown, given twice, or the number is malformed.
        """
        parts = [text.partition("=") for text in texts]
        pairs = [(name, number) for name, _, number in parts]
        names = [field.name for field in fields(cls)]
        for name, number in pairs:
            if name not in names:
                hint = nearest_hint(name, names)
                raise LooplineError(f"{name}={number}: this quota is unknown, {hint}")
            if [each for each, _ in pairs].count(name) > 1:
                raise LooplineError(f"the quota {name} is given twice")
        try:
            return msgspec.convert(dict(pairs), cls, strict=False)
        except msgspec.ValidationError as error:
            raise LooplineError(f"{', '.join(texts)}: write a quota as NAME=NUMBER") from error

    @property
    def limits(self) -> list[DailyLimit]:
        """The quotas that are not None."""
        user = [("user_tokens", self.user_tokens), ("user_cost", self.user_cost)]
        tenant = [("tenant_tokens", self.tenant_tokens), ("tenant_cost", self.tenant_cost)]
        return [
            DailyLimit(name, most, self.turn_cost if "cost" in name else self.turn_tokens)
            for name, most in (*user, *tenant)
            if most is not None
        ]


@dataclass(frozen=True, slots=True)
class DailyLimit:
    """A quota: its name, the most per day, and the amount that a turn reserves."""

    name: str
    most: float
    turn: float

    @property
    def is_of_user(self) -> bool:
        """Whether it applies to each user, not to a tenant."""
        return self.name.startswith("user")

    @property
    def is_money(self) -> bool:
        """Whether it is in US dollars, not in tokens."""
        return self.name.endswith("cost")

    def covers(self, sender: timeline.ConversationKey, other: timeline.ConversationKey) -> bool:
        """Return whether usage of the conversation `other` counts towards the limit of the sender."""
        is_user = (other.project, other.user) == (sender.project, sender.user)
        return other.tenant == sender.tenant and (is_user or not self.is_of_user)

    def text(self, amount: float) -> str:
        """Return an amount with its unit; an amount below zero is shown as zero."""
        return f"${max(amount, 0):,.4f}" if self.is_money else f"{max(amount, 0):,.0f} tokens"


@dataclass(slots=True)
class _Bill:
    """The usage of a conversation on the day, from its blocks up to the seq `head`."""

    key: timeline.ConversationKey
    head: int = 0
    tokens: int = 0
    cost: float = 0.0

    def add(self, blocks: Iterable[timeline.Block], since: datetime) -> None:
        """Add the usage in the blocks since the beginning of the day.

        The usage of a child run is in the block that ends it. The block of an import resets the bill, because the imported
        usage was not used here.
        """
        for block in blocks:
            body = block.body
            if block.type == _IMPORTED:
                self.tokens, self.cost = 0, 0.0
            elif block.ts >= since and (request := timeline.request_cost(block)) is not None:
                self.tokens += request.usage.total_tokens
                self.cost += request.cost or 0.0
                if isinstance(body, timeline.Decision | timeline.RunChild):
                    self.tokens += body.estimated.total_tokens


@dataclass(slots=True, eq=False)
class _MeteredRun:
    """A run of a conversation in this process: its usage, and the reservations of requests that are not answered yet.

    When the run is over, it is kept until its blocks are added to the bill.
    """

    key: timeline.ConversationKey
    settled: react.Amount = field(default_factory=react.Amount)
    reserved: dict[RequestReservation, react.Amount] = field(
        default_factory=dict["RequestReservation", react.Amount]
    )
    is_over: bool = False


class QuotaGate:
    """Checks quotas before a turn begins and before each of its model requests.

    Usage is summed from the log, so a restart does not reset it and all processes over a store share it. The usage of a
    running turn is added with each answered request. Only new blocks of a conversation are read. Deleted conversations
    still count in this process.
    """

    def __init__(
        self, quotas: DailyQuotas, clock: Clock, log: Callable[[], timeline.TimelineLog]
    ) -> None:
        self.limits: list[DailyLimit] = quotas.limits
        self._clock = clock
        self._log = log
        self._day: date = date.min
        self._bills: dict[str, _Bill] = {}
        self._runs = defaultdict[timeline.ConversationKey, set[_MeteredRun]](set)
        self._updated: dict[str, float] = {}
        self._updating = asyncio.Lock()
        self._changed = asyncio.Event()

    async def check(
        self, key: timeline.ConversationKey, turns: Mapping[timeline.ConversationKey, int]
    ) -> None:
        """Check that a new turn and the running turns fit each quota. `turns` counts the running turns by conversation.

        Raises:
            RequestProblem: too little of a quota is left, 429.
        """
        await self._update(key.tenant)
        for limit in self.limits:
            self._check(limit, key, turns)

    @asynccontextmanager
    async def meter(
        self, key: timeline.ConversationKey, models: ModelRegistry
    ) -> AsyncGenerator[ModelRegistry, None]:
        """Yield the models of a run; each of their requests reserves from the quotas of its user and tenant.

        Without quotas the models are unchanged.
        """
        if not self.limits:
            yield models
            return
        await self._update(key.tenant)
        run = _MeteredRun(key)
        self._runs[key].add(run)
        try:
            yield ModelRegistry(
                {
                    role: tuple(_DayMeteredModel(model, self, run) for model in chain)
                    for role, chain in models.roles.items()
                }
            )
        finally:
            run.is_over = True

    async def reserve(
        self, run: _MeteredRun, request: RequestReservation, need: react.RequestEstimate
    ) -> int:
        """Reserve the quota for a request, and return the most tokens that it may output.

        It waits while other requests reserve the amount that is needed.

        Raises:
            OutOfBudget: too little of a quota is left.
        """
        while True:
            await self._refresh(run.key.tenant)
            outputs = [
                (limit, need.affordable(self._remaining(limit, run.key), 1))
                for limit in self.limits
            ]
            output = min(most for _, most in outputs)
            enough = min(react.MIN_OUTPUT, need.output)
            if output >= enough:
                run.reserved[request] = need.amount(output)
                return output
            changed = self._changed
            short = [limit for limit, most in outputs if most < enough]
            # Requests without an answer may release a part of what they reserve.
            if not all(
                any(other.reserved for other in self._runs_of(limit, run.key)) for limit in short
            ):
                raise react.OutOfBudget(
                    "too little of the day's quota is left for another request: it is renewed at midnight UTC"
                )
            await changed.wait()

    def settle(self, run: _MeteredRun, request: RequestReservation, used: react.Amount) -> None:
        """Replace the reservation of a request by its usage, and wake the requests that wait."""
        run.settled += used
        run.reserved.pop(request, None)
        self._changed.set()
        self._changed = asyncio.Event()

    def _remaining(self, limit: DailyLimit, key: timeline.ConversationKey) -> react.Remaining:
        """Return a limit minus usage and reservations, in dollars or tokens; negative if the limit is exceeded."""
        runs = self._runs_of(limit, key)
        reserved = [amount for run in runs for amount in run.reserved.values()]
        if limit.is_money:
            unused = limit.most - self._usage(limit, key)
            return react.Remaining(None, unused - math.fsum(amount.cost for amount in reserved))
        tokens = sum(amount.tokens for amount in reserved)
        return react.Remaining(int(limit.most - self._usage(limit, key)) - tokens, None)

    def _runs_of(self, limit: DailyLimit, key: timeline.ConversationKey) -> list[_MeteredRun]:
        """Return the runs that count towards the limit for a conversation."""
        return [
            run for other, runs in self._runs.items() if limit.covers(key, other) for run in runs
        ]

    def _usage(self, limit: DailyLimit, key: timeline.ConversationKey) -> float:
        """Return the usage that counts towards the limit for a conversation, without reservations."""
        bills = [bill for bill in self._bills.values() if limit.covers(key, bill.key)]
        runs = self._runs_of(limit, key)
        if limit.is_money:
            return math.fsum([*(bill.cost for bill in bills), *(run.settled.cost for run in runs)])
        return sum(bill.tokens for bill in bills) + sum(run.settled.tokens for run in runs)

    def _check(
        self,
        limit: DailyLimit,
        key: timeline.ConversationKey,
        turns: Mapping[timeline.ConversationKey, int],
    ) -> None:
        """Check that a new turn and the running turns fit one limit; `turns` counts the running turns by conversation.

        Raises:
            RequestProblem: too little of the quota is left, 429; it says when to try again.
        """
        used = self._usage(limit, key)
        running = sum(count for other, count in turns.items() if limit.covers(key, other))
        left = limit.most - used
        if left >= (running + 1) * limit.turn:
            return
        midnight = datetime.combine(self._day + timedelta(days=1), time(), UTC)
        seconds = math.ceil((midnight - self._clock.now()).total_seconds())
        owner = "you" if limit.is_of_user else "your tenant"
        raise RequestProblem(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"the quota of today: {limit.text(left)} of {limit.text(limit.most)} are left to {owner}, and {running} "
            f"running turns reserve {limit.text(running * limit.turn)}; a turn reserves {limit.text(limit.turn)}. The "
            f"quota is renewed at {timeline.iso_time(midnight)}",
            action_by="user",
            headers={"Retry-After": f"{_RETRY_SECONDS if left >= limit.turn else seconds}"},
        )

    async def _refresh(self, tenant: str) -> None:
        """Update the bills of a tenant if they are older than `_REFRESH_SECONDS`."""
        age = self._clock.elapsed() - self._updated.get(tenant, -_REFRESH_SECONDS)
        if age >= _REFRESH_SECONDS:
            await self._update(tenant)

    def _begin_day(self, day: date) -> None:
        """Drop the usage of earlier days. Reservations of running requests are kept."""
        self._day = day
        self._bills = {}
        for key, runs in list(self._runs.items()):
            self._forget(key, {run for run in runs if run.is_over})
            for run in runs:
                run.settled = react.Amount()

    def _forget(self, key: timeline.ConversationKey, runs: set[_MeteredRun]) -> None:
        remaining = self._runs.pop(key) - runs
        if remaining:
            self._runs[key] = remaining

    async def _update(self, tenant: str) -> None:
        """Add new blocks to the bills of a tenant's conversations, except those with a run that is not over."""
        log = self._log()
        async with self._updating:
            self._updated[tenant] = self._clock.elapsed()
            today = self._clock.now().date()
            if today != self._day:
                self._begin_day(today)
            ended = {run for runs in self._runs.values() for run in runs if run.is_over}
            since = datetime.combine(today, time(), UTC)
            after = since - timedelta(seconds=1)
            for summary in await log.conversations(tenant=tenant, after=after):
                key = summary.conversation
                # The blocks that a fork shows of its parent are in the bill of the parent.
                bill = self._bills.setdefault(summary.uid, _Bill(key, summary.inherited))
                runs = self._runs[key] - ended
                if runs:
                    continue  # a run that is not over counts its requests itself
                if bill.head < summary.head:
                    blocks = await log.read(key, after=bill.head, types=_TYPES)
                    bill.add((block for block in blocks if block.seq <= summary.head), since)
                    bill.head = summary.head
                self._forget(key, ended)


class _DayMeteredModel(WrappedModel, frozen=True):
    """A model whose requests reserve from the quotas of the day."""

    gate: QuotaGate
    run: _MeteredRun

    def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Stream the reply, with the output limited by the remaining quotas.

        Raises:
            OutOfBudget: too little of a quota is left.
            ModelError: the model fails.
        """
        return react.MeteredModel(self.model, RequestReservation(self.gate, self.run)).stream(
            prompt
        )


@dataclass(frozen=True, slots=True, eq=False)
class RequestReservation:
    """The reservation of one model request from the quotas of the day."""

    gate: QuotaGate
    run: _MeteredRun
    is_limited: bool = True

    def check_time(self) -> None:
        """Accept any time, because a quota does not have a deadline."""

    async def reserve(self, need: react.RequestEstimate) -> int:
        """Reserve the request, and return the most tokens that it may output, as `QuotaGate.reserve` does.

        Raises:
            OutOfBudget: too little of a quota is left.
        """
        return await self.gate.reserve(self.run, self, need)

    def settle(self, used: react.Amount) -> None:
        """Replace the reservation by the usage of the request."""
        self.gate.settle(self.run, self, used)

    def estimate(self, usage: Usage, cost: float) -> None:
        """Ignore the estimate, because estimated usage is settled like reported usage."""
