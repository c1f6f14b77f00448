"""What comes of every pair of events in every state of a conversation: `python -m tests.bench.pairs_of_events`.

The events come one after the other, in both orders, and at once; over every store, from one process, from two, and over
HTTP. What has to come of it says the table of the flow page. `--sample 40 --seed 7` draws some of the cases, `--only PATTERN`
chooses by name, `--at-once 4` of them are played side by side.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.program import read_options
from tests.support.pairs.expected import EVENTS, STATES, Door, Event
from tests.support.pairs.play import Case, Crew, Observed, Order, Store, cut_off, play

DOORS: tuple[tuple[Store, Door], ...] = (
    ("memory", "process"),
    ("sqlite", "process"),
    ("sqlite", "processes"),
    ("memory", "http"),
    ("sqlite", "http"),
    ("postgres", "process"),
    ("postgres", "processes"),
    ("postgres", "http"),
)


def cases() -> list[Case]:
    return [
        Case(state, events, order, store, door)
        for store, door in DOORS
        for state in STATES
        for events, order in _pairs()
        if _can_be(state, events, door)
    ]


def _pairs() -> Iterator[tuple[tuple[Event, Event], Order]]:
    for index, one in enumerate(EVENTS):
        for other in EVENTS:
            yield (one, other), "then"
        for other in EVENTS[index:]:
            yield (one, other), "at once"


def _can_be(state: str, events: tuple[Event, Event], door: Door) -> bool:
    """Return whether there is such a case: only a process of its own is killed, once; a server resumes what was cut off."""
    if "kill" in events and (door != "processes" or events == ("kill", "kill")):
        return False
    return not (door == "http" and state == "cut off")


async def observe(chosen: Sequence[Case], lanes: int) -> list[Observed]:
    found, waiting = list[Observed](), iter(enumerate(chosen))

    async def play_some(folder: Path, crew: Crew) -> None:
        for number, case in waiting:
            observed = await play(case, folder / f"{number}", folder / "cut", crew)
            found.append(observed)
            if not observed.is_right:
                sys.stdout.write(f"{observed}\n")
                sys.stdout.flush()

    with tempfile.TemporaryDirectory() as name:
        crews = [Crew() for _ in range(lanes)]
        try:
            await cut_off(Path(name) / "cut", crews[0])
            async with asyncio.TaskGroup() as group:
                for crew in crews:
                    group.create_task(play_some(Path(name), crew))
        finally:
            for crew in crews:
                await crew.close()
    return found


def sample(chosen: Sequence[Case], size: int, seed: int) -> list[Case]:
    return random.Random(seed).sample(chosen, min(size, len(chosen)))


def main() -> int:
    given = read_options(__doc__, sample=0, seed=0, only="", at_once=4)
    chosen = [case for case in cases() if re.search(given.only, f"{case}")]
    if given.sample:
        chosen = sample(chosen, given.sample, given.seed)
    start = time.monotonic()
    found = asyncio.run(observe(chosen, given.at_once))
    counts, wrong = Counter[str](), Counter[str]()
    for one in found:
        name = f"{one.case.store}, {one.case.door}"
        counts[name] += 1
        wrong[name] += not one.is_right
    triples = {(one.case.state, one.case.events, one.case.order) for one in found}
    sys.stdout.write(f"\n{len(triples)} triples of a state and two events, {len(found)} cases ")
    sys.stdout.write(f"in {time.monotonic() - start:.0f} s\n")
    for name, count in counts.items():
        sys.stdout.write(f"  {count:6} {name}: {wrong[name]} wrong\n")
    return min(sum(wrong.values()), 1)


if __name__ == "__main__":
    sys.exit(main())
