"""A model that bills as a provider does: what a request reads, and what it writes up to the output limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from loopline import models
from loopline.models.prompt import cost_of_prompt
from loopline.prompt import protocol
from loopline.testing import FakeClock

PRICE = models.Price(input=0.5, output=2.0, cache_read=0.05, cache_write=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What the model does with a request: what it says or calls, and how many words it adds.

    `fails` breaks the stream off behind what was said; one with `works` False is turned away, and bills nothing.
    It reports `reported` in place of its usage, if that is set. The reply takes `seconds`; one that `hangs` never comes.
    """

    text: str = ""
    calls: tuple[models.ToolCall, ...] = ()
    words: int = 0
    refuses: bool = False
    fails: Exception | None = None
    reported: models.Usage | None = None
    works: bool = True
    ticks: int = 1
    seconds: float = 0.0
    hangs: bool = False


@dataclass(frozen=True, slots=True)
class Bill:
    """What one request was billed, by its purpose, the output limit that it came with, and when it was made."""

    purpose: str
    limit: int
    usage: models.Usage
    cost: float
    at: float


@dataclass(slots=True)
class BillingModel:
    """Makes the move that `play` gives for each prompt. `bills` are all its requests, in their order."""

    play: Callable[[models.Prompt], Move]
    name: str = "billing"
    capabilities: models.Capabilities = field(
        default_factory=lambda: models.Capabilities(window=100_000, output_limit=8_000, price=PRICE)
    )
    clock: FakeClock = field(default_factory=FakeClock)
    bills: list[Bill] = field(default_factory=list[Bill])

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        """The move's text and calls, as far as the output limit goes; what is cut off before is not billed."""
        move = self.play(prompt)
        limit = prompt.options.output_limit or self.capabilities.output_limit
        text = f"{move.text} {'word ' * move.words}".strip()
        calls = () if len(text) > 4 * limit else move.calls
        said = text[: 4 * limit]
        render_calls = (
            protocol(prompt.options.protocol).render_calls(said, calls) if calls else None
        )
        read = cost_of_prompt(prompt) if move.works else 0
        wrote = min(-(-len(said) // 4) + 10 * len(calls), limit) if move.works else 0
        number = self._bill(prompt, limit, models.Usage(input_tokens=read))
        if move.seconds:
            await self.clock.sleep(move.seconds)
        if move.hangs:
            await asyncio.Event().wait()
        for _ in range(move.ticks):
            await asyncio.sleep(0)
        usage = models.Usage(input_tokens=read, output_tokens=wrote)
        self.bills[number] = replace(self.bills[number], usage=usage, cost=self._cost(usage))
        if said and not calls and move.works:
            yield models.TextDelta(text=said)
        if move.fails is not None:
            raise move.fails
        yield models.Reply(
            text=render_calls.text if render_calls else said,
            calls=render_calls.calls if render_calls else (),
            stop_reason="refusal" if move.refuses else "length" if said != text else "stop",
            usage=usage if move.reported is None else move.reported,
        )

    def _bill(self, prompt: models.Prompt, limit: int, usage: models.Usage) -> int:
        at = self.clock.elapsed()
        self.bills.append(Bill(prompt.purpose, limit, usage, self._cost(usage), at))
        return len(self.bills) - 1

    def _cost(self, usage: models.Usage) -> float:
        return self.capabilities.cost(usage) or 0.0

    @property
    def tokens(self) -> int:
        return sum(bill.usage.input_tokens + bill.usage.output_tokens for bill in self.bills)

    @property
    def cost(self) -> float:
        """All that was billed, in US dollars."""
        return sum(bill.cost for bill in self.bills)


PARTS = tuple(f"look at part {n}" for n in range(4))


def task_of(prompt: models.Prompt) -> str:
    """What the run that asks was told first."""
    return next(
        message.text for message in prompt.messages if isinstance(message, models.UserMessage)
    )


def four_at_once(prompt: models.Prompt) -> Move:
    """Have four children of the bundle `kin` work side by side; each looks twice, and writes much."""
    total = sum(isinstance(message, models.AssistantMessage) for message in prompt.messages)
    if prompt.purpose == "answer":
        return Move(text="In short.", words=100)
    if "look at part" not in task_of(prompt):
        panel = models.ToolCall(name="kin.panel", arguments={"tasks": list(PARTS)})
        return Move(text="All four.", words=200) if total else Move(calls=(panel,))
    if total < 2:
        return Move(
            calls=(models.ToolCall(name="play.look", arguments={"text": f"{total}"}),), ticks=3
        )
    return Move(text="Much.", words=6_000, ticks=3)
