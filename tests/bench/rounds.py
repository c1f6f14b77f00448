"""What a round costs: in memory and durable, at its place, beside a raw sqlite3 floor of the same run.

`python tests/bench/rounds.py [--json]`. The workload: one user message; each round a reply of 45
characters with one tool call; an async tool that returns 1,000 characters; the model answers at once, so
only our own cost shows.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from loopline import BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult, tool
from loopline.models import Abilities, Prompt, Reply, TextDelta, ToolCall

PLACES = (10, 100, 500)
RESULT = "r" * 1_000
REPLY = "Reading the next part of it, as was planned.."
TURNS = 200


@tool(effect="read")
async def part(number: int) -> str:
    """Give a part."""
    del number
    return RESULT


TOOLS_SPECS = [{"module": __name__, "alias": "bench"}]


class Bench(BaseWorkflow):
    """The loop with one tool."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(tools_module=__name__, max_iterations=10_000)
        return await react.run(payload)


class Instant:
    """A model that answers at once: so many calls, then the answer. It notes when it is asked."""

    name = "instant"
    abilities = Abilities(window=1_000_000)

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.asked: list[float] = []

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """The next reply."""
        del prompt
        self.asked.append(time.perf_counter())
        number = len(self.asked)
        if number > self.rounds:
            yield Reply(text="Done.")
        else:
            call = ToolCall(name="bench.part", arguments={"number": number})
            yield Reply(text=REPLY, calls=(call,))


@dataclass(frozen=True)
class Row:
    """One figure, and the target it is held against."""

    what: str
    value: float
    unit: str
    target: str


async def gaps(store: str, rounds: int) -> list[float]:
    """Milliseconds from each request to the next."""
    model = Instant(rounds)
    bundle = Bundle(id="bench", workflow=Bench)
    async with Harness.open(bundle, store=store, model=model) as harness:
        await harness.conversation("c").say("go")
    return [
        (after - before) * 1000 for before, after in zip(model.asked, model.asked[1:], strict=False)
    ]


async def turn_times(store: str) -> list[float]:
    """Milliseconds of each of many turns of one conversation, each with one round."""
    times = list[float]()
    bundle = Bundle(id="bench", workflow=Bench)
    async with Harness.open(bundle, store=store, model=lambda: Instant(0)) as harness:
        talk = harness.conversation("c")
        for _ in range(TURNS):
            start = time.perf_counter()
            await talk.say("go")
            times.append((time.perf_counter() - start) * 1000)
    return times


def floor(folder: Path, rounds: int) -> float:
    """Milliseconds a round that raw sqlite3 takes to commit as many rows of as many bytes."""
    database = sqlite3.connect(folder / "floor.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.execute("CREATE TABLE b (id INTEGER PRIMARY KEY, body TEXT)")
    start = time.perf_counter()
    for _ in range(rounds):
        for bodies in (["s" * 500], ["d" * 100, "n" * 80, "c" * 90], ["r" * 1_100]):
            database.execute("BEGIN IMMEDIATE")
            database.executemany("INSERT INTO b (body) VALUES (?)", [(body,) for body in bodies])
            database.execute("COMMIT")
    return (time.perf_counter() - start) * 1000 / rounds


def tenths(times: Sequence[float]) -> float:
    """The median of the last tenth less that of the first."""
    tenth = max(len(times) // 10, 1)
    return median(times[-tenth:]) - median(times[:tenth])


async def measured() -> list[Row]:
    """Every figure."""
    rows = list[Row]()
    await gaps("memory:", 10)  # what is made once a process is no round's cost
    targets = {10: "≤ 0.20", 100: "≤ 0.15", 500: "≤ 0.15"}
    for place in PLACES:
        times = await gaps("memory:", place)
        rows.append(Row(f"in-memory round, {place} rounds", median(times), "ms", targets[place]))
    times = await gaps("memory:", 500)
    rows.append(Row("in-memory, last tenth less first, 500", tenths(times), "ms", "≤ 0.03"))
    with TemporaryDirectory() as name:
        folder = Path(name)
        await gaps(f"sqlite:///{folder}/100.db", 100)
        times = await gaps(f"sqlite:///{folder}/500.db", 500)
        sizes = {place: (folder / f"{place}.db").stat().st_size for place in (100, 500)}
        rows.append(Row("durable round, 500 rounds", median(times), "ms", "≤ 1.0"))
        rows.append(Row("durable, last tenth less first, 500", tenths(times), "ms", "≤ 0.1"))
        base = floor(folder, 500)
        rows.append(Row("raw sqlite3 floor, three commits a round", base, "ms", ""))
        rows.append(Row("durable round over the floor", median(times) / base, "×", ""))
        rows.append(Row("database bytes a round, 500", sizes[500] / 500, "B", "≤ 2,500"))
        rows.append(Row("bytes(500) / bytes(100)", sizes[500] / sizes[100], "×", "≤ 5.2"))
        turns = await turn_times(f"sqlite:///{folder}/turns.db")
        rows.append(Row("turn 200", median(turns[-10:]), "ms", "≤ 6"))
        ratio = median(turns[-10:]) / median(turns[:10])
        rows.append(Row("turn 200 over the first turns", ratio, "×", "≤ 1.5"))
    return rows


def main() -> None:
    """Measure, and print a table or JSON."""
    rows = asyncio.run(measured())
    if "--json" in sys.argv[1:]:
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        return
    table = Table("what", "value", "unit", "target")
    for row in rows:
        table.add_row(row.what, f"{row.value:,.3f}", row.unit, row.target)
    Console().print(table)


if __name__ == "__main__":
    main()
