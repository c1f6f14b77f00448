"""What becomes of a steer, a followup, a recall and a stop at every await of a turn: a table, nothing lost.

`python -m tests.bench.interruptions` goes through every step, from this harness and from another one of the store, and
through some steps, drawn by `--seed`, from another process over SQLite; `--every 5` through each fifth,
`--preset fim` in that preset, `--outside 40` through so many from outside.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import get_args

from loopline.react import PresetName
from loopline.timeline import Exit, ToolResult
from tests.bench.program import read_options, say
from tests.support.inputs_in_requests import misplaced
from tests.support.interruption_scenario import Interruption, Kind, Told, became, told, told_outside
from tests.support.second_process import outside

KINDS: tuple[Kind, ...] = ("steer", "followup", "recall", "stop")
WRONG = ("lost", "in the wrong request", "recorded after the exit")


async def outcomes(stories: AsyncIterator[Told]) -> Counter[str]:
    counts = Counter[str]()
    async for story in stories:
        said = [became(story, receipt) for _, receipt in story.receipts]
        exits = [block for block in story.blocks if isinstance(block.body, Exit)]
        late = [block for block in story.blocks if block.term and block.seq > exits[0].seq]
        cut = sum(
            isinstance(block.body, ToolResult) and block.body.status != "ok"
            for block in story.blocks
        )
        counts[" ".join([*said, "→", story.reason])] += 1
        counts["lost"] += said.count("lost")
        counts["in the wrong request"] += len(misplaced(story))
        counts["recorded after the exit"] += len(late)
        counts["calls cut off or not begun"] += cut
    return counts


async def inside(
    steps: Iterable[int], kind: Kind, preset: PresetName, *, elsewhere: bool
) -> AsyncIterator[Told]:
    """The story interrupted at each of the steps, from its harness or from another."""
    for step in steps:
        yield await told([Interruption(step, kind, elsewhere, step % 5)], preset=preset)


async def from_outside(steps: Iterable[int], kind: Kind) -> AsyncIterator[Told]:
    """The story interrupted at each of the steps, from another process over its store."""
    with outside() as other, tempfile.TemporaryDirectory() as folder:
        for step in steps:
            store = f"sqlite:///{Path(folder) / f'{step}.db'}"
            yield await told_outside(Interruption(step, kind), store, other)


async def table(every: int, most: int, seed: int, preset: PresetName) -> int:
    """Print the table; how much was lost, shown in a wrong request, or recorded too late."""
    last, wrong = (await told([], preset=preset)).steps, 0
    draw = random.Random(seed)
    say(f"a turn of {last} steps, each {every} interrupted\n")
    for kind in KINDS:
        steps, some = range(1, last + 1, every), sorted(draw.sample(range(1, last), most))
        for where, stories in (
            ("this harness", inside(steps, kind, preset, elsewhere=False)),
            ("another harness", inside(steps, kind, preset, elsewhere=True)),
            ("another process", from_outside(some, kind)),
        ):
            found_outcomes = await outcomes(stories)
            say(f"{kind}, from {where}")
            for what, count in sorted(found_outcomes.items()):
                say(f"  {count:5}  {what}")
            wrong += sum(found_outcomes[what] for what in WRONG)
    return wrong


if __name__ == "__main__":
    presets = ("bare", *sorted({*get_args(PresetName)} - {"bare"}))
    given = read_options(__doc__, every=1, outside=10, seed=0, preset=presets)
    sys.exit(min(asyncio.run(table(given.every, given.outside, given.seed, given.preset)), 1))
