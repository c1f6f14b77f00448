"""Many agents at once, and a graph that is killed at every append: `python -m tests.bench.crews`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from loopline import Harness
from loopline.testing import Call
from loopline.timeline import RunChild, ToolResult
from tests.support.child_runs import EACH, Line
from tests.support.crashing_graphs import WHOLE, findings, run_process
from tests.support.crews import Scripts, desk, handoff

CONSOLE = Console(highlight=False)
CHILDREN, ROUNDS = 100, 5
APPENDS = 400
"""More than the graph makes."""


async def many(folder: Path) -> None:
    """Run 100 agents of five rounds each by one call, over a store in a file."""
    names = [f"Task {number:03}" for number in range(CHILDREN)]
    lookups: list[Line] = [Call("desk.find", name="x") for _ in range(ROUNDS - 1)]
    lines: Mapping[str, list[Line]] = {
        "Go": [
            Call("crew.parallel", tasks=[{"agent": "reader", "task": name} for name in names]),
            "Ok.",
        ],
        **{name: [*lookups, handoff(f"done {name}")] for name in names},
    }
    store = f"sqlite:///{folder}/talk.db"
    async with Harness.open(desk(), store=store, model=Scripts(lines)) as harness:
        talk = harness.conversation("c")
        start = time.perf_counter()
        result = await talk.say("Go", max_tokens=10_000_000)
        seconds = time.perf_counter() - start
        bodies = [block.body for block in await talk.blocks()]
    [text] = [body.text for body in bodies if isinstance(body, ToolResult)]
    places = [text.index(f"done {name}") for name in names]
    running, most = 0, 0
    for link in (body for body in bodies if isinstance(body, RunChild)):
        running += -1 if link.reason else 1
        most = max(most, running)
    requests = CHILDREN * ROUNDS + 2
    exact = result.usage.input_tokens == requests * EACH.input_tokens
    CONSOLE.print(f"{CHILDREN} agents of {ROUNDS} rounds: {seconds:.2f} s")
    CONSOLE.print(f"  rounds a second, durable: {CHILDREN * ROUNDS / seconds:.0f} (target 400)")
    CONSOLE.print(f"  most at once: {most} (target 4); in order: {places == sorted(places)}")
    CONSOLE.print(f"  tokens exact: {exact} ({result.usage.input_tokens} of {requests} requests)")


def kills(step: int) -> None:
    """Kill a process before and after every append of a graph of six steps, and carry each on."""
    for point in ("before", "after"):
        outcomes = Counter[str]()
        for n in range(1, APPENDS, step):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                code, _ = run_process(folder, point, n)
                if code != -signal.SIGKILL:
                    break
                run_process(folder, "never", 0)
                whole = (folder / "talk.db").exists() and asyncio.run(findings(folder)) == WHOLE
                outcomes["whole" if whole else f"not whole: {n}"] += 1
        CONSOLE.print(f"killed {point} an append: {dict(outcomes)}")


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=1, help="kill at every n-th append only")
    step: int = parser.parse_args().step
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(many(Path(name)))
    kills(step)


if __name__ == "__main__":
    main()
