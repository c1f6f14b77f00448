"""What four child runs side by side use of their parent's budget.

`python -m tests.bench.budget` prints, for each limit, the sums of a turn and its children as their provider bills them.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from rich.console import Console
from rich.table import Table

from loopline import Harness
from loopline.react import Limits
from loopline.testing import FakeClock
from loopline.timeline import RunChild
from tests.support import child_runs
from tests.support.billed_model import BillingModel, four_at_once

LIMITS = (
    Limits(max_tokens=8_000),
    Limits(max_cost=0.005),
    Limits(max_tokens=8_000, max_cost=0.005),
    Limits(max_tokens=40_000, max_cost=0.05),
    Limits(),
)


async def row(limits: Limits) -> tuple[str, ...]:
    """What came of the turn under these limits."""
    model = BillingModel(four_at_once)
    async with Harness.open(
        child_runs.bundle, store="memory:", model=model, clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        result = await talk.say("go", **limits)
        links = [block.body for block in await talk.blocks() if isinstance(block.body, RunChild)]
    ends = Counter(link.reason for link in links if link.reason)
    return (
        ", ".join(f"{name} {value:,}" for name, value in limits.items()) or "none",
        str(len(model.bills)),
        f"{model.tokens:,}",
        f"{model.cost:.6f}",
        ", ".join(f"{count} {reason}" for reason, count in ends.items()),
        f"{result.exit_reason}: {result.answer[:12]}…",
    )


def main() -> None:
    """Print the table."""
    table = Table("limits", "requests", "tokens", "dollars", "children", "answer")
    for limits in LIMITS:
        table.add_row(*asyncio.run(row(limits)))
    Console().print(table)


if __name__ == "__main__":
    main()
