"""A round that is kept in memory alone."""

from __future__ import annotations

import asyncio
from statistics import median

from tests.bench.program import Row, say_json
from tests.bench.workload import gaps, tenths

TARGETS = {10: "≤ 0.20", 100: "≤ 0.15", 500: "≤ 0.15"}
REPEATS = 5
"""Turns of each length; their medians' median counts."""


async def measured() -> list[Row]:
    """The round at three lengths, and how it grows."""
    await gaps("memory:", 100)  # what is made once a process is no round's cost
    rows = list[Row]()
    for rounds, target in TARGETS.items():
        times = [median(await gaps("memory:", rounds)) for _ in range(REPEATS)]
        rows.append(Row(f"in-memory round, {rounds} rounds", median(times), "ms", target))
    growth = [tenths(await gaps("memory:", 500)) for _ in range(REPEATS)]
    rows.append(Row("in-memory, last tenth less first, 500", median(growth), "ms", "≤ 0.03"))
    return rows


if __name__ == "__main__":
    say_json(asyncio.run(measured()))
