"""What becomes of a steer, a followup and a stop at every await of a turn: a table, nothing lost.

`python -m tests.bench.interruptions` goes through every step, from this harness and from another one of the store;
`--every 5` through each fifth.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Iterable

from loopline.timeline import Exit, ToolResult
from tests.support.interrupting import Interruption, Kind, became, told

KINDS: tuple[Kind, ...] = ("steer", "followup", "stop")


async def outcomes(steps: Iterable[int], kind: Kind, *, elsewhere: bool) -> Counter[str]:
    """Count what became of the interruption at each of the steps."""
    found = Counter[str]()
    for step in steps:
        story = await told([Interruption(step, kind, elsewhere)])
        said = [became(story, receipt) for _, receipt in story.receipts]
        exits = [one for one in story.blocks if isinstance(one.body, Exit)]
        late = [one for one in story.blocks if one.term and one.seq > exits[0].seq]
        cut = sum(
            isinstance(one.body, ToolResult) and one.body.status != "ok" for one in story.blocks
        )
        found[" ".join([*said, "→", story.result.exit_reason])] += 1
        found["lost"] += said.count("lost")
        found["recorded after the exit"] += len(late)
        found["calls cut off or not begun"] += cut
    return found


async def table(every: int) -> int:
    """Print the table; how much was lost, or recorded too late."""
    last, wrong = (await told([])).steps, 0
    sys.stdout.write(f"a turn of {last} steps, each {every} interrupted\n\n")
    for kind in KINDS:
        for elsewhere in (False, True):
            found = await outcomes(range(1, last + 1, every), kind, elsewhere=elsewhere)
            where = "another process" if elsewhere else "this process"
            sys.stdout.write(f"{kind}, from {where}\n")
            for what, count in sorted(found.items()):
                sys.stdout.write(f"  {count:5}  {what}\n")
            wrong += found["lost"] + found["recorded after the exit"]
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    sys.exit(min(asyncio.run(table(parser.parse_args().every)), 1))
