"""Many agents at once, an answer beside a slow lesson, and crews killed at every append: `python -m tests.bench.crews`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from rich.console import Console

from loopline import Harness
from loopline.crew import Quality, Reflexion
from loopline.models import Prompt, Reply, TextDelta
from loopline.testing import Call
from loopline.timeline import RunChild, ToolResult
from tests.support import crashing_crews, crashing_graphs
from tests.support.child_runs import EACH, Line
from tests.support.crews import Scripts, desk, handoff
from tests.support.killed_processes import run_process

CONSOLE = Console(highlight=False)
CHILDREN, ROUNDS = 100, 5
LESSON_SECONDS, REPLY_SECONDS, LESSON_TURNS = 5.0, 0.1, 5
APPENDS = 400
"""More than the graph makes."""


async def many(folder: Path) -> None:
    """Run 100 agents of five rounds each by one call, over a store in a file.

    A turn before it loads what the first turn of a process loads.
    """
    names = [f"Task {number:03}" for number in range(CHILDREN)]
    lookups: list[Line] = [Call("desk.find", name="x") for _ in range(ROUNDS - 1)]
    lines: Mapping[str, list[Line]] = {
        "Go": [
            Call("crew.parallel", tasks=[{"agent": "reader", "task": name} for name in names]),
            "Ok.",
        ],
        "Look": [Call("desk.find", name="x"), "Ok."],
        **{name: [*lookups, handoff(f"done {name}")] for name in names},
    }
    store = f"sqlite:///{folder}/talk.db"
    async with Harness.open(desk(), store=store, model=Scripts(lines)) as harness:
        await harness.conversation("first").say("Look")
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


class SlowLessons(Scripts):
    """A model whose lessons take five seconds, and whose other replies a tenth of one."""

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        is_lesson = prompt.purpose == "lesson"
        await asyncio.sleep(LESSON_SECONDS if is_lesson else REPLY_SECONDS)
        async for piece in super().stream(prompt):
            yield piece


async def lessons(folder: Path) -> None:
    """Time an answer with and without a lesson that is due after it, in turns; print the medians."""
    calls: list[Line] = [Call("desk.find", name=f"{n}") for n in range(40)]
    lines: Mapping[str, list[Line]] = {
        "Go": [Call("crew.delegate", agent="reader", task="Read it"), "Ok."],
        "Read it": calls,
        "[REFLEXION]": ["<situation>s</situation><correction>c</correction>"],
    }
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * LESSON_TURNS):
        learns = bool(number % 2)
        bundle = replace(desk(), quality=Quality(reflexion=Reflexion()) if learns else Quality())
        store = f"sqlite:///{folder}/lesson{number}.db"
        async with Harness.open(bundle, store=store, model=SlowLessons(lines)) as harness:
            start = time.perf_counter()
            await harness.conversation("c").say("Go")
            seconds[learns].append(time.perf_counter() - start)
            if number == 1:
                written = await harness.drain(2 * LESSON_SECONDS)
                CONSOLE.print(f"a lesson of {LESSON_SECONDS:g} s was written: {written}")
    plain, learning = (median(seconds[learns]) for learns in (False, True))
    share = 100 * (learning / plain - 1)
    CONSOLE.print(f"  an answer without it {plain:.3f} s, with it {learning:.3f} s: {share:+.1f} %")
    CONSOLE.print("  (target: within 5 %)")


def graph_is_whole(folder: Path, point: str, n: int) -> bool | None:
    """Kill a graph of six steps at that append, and carry it on; None if there is no such append."""
    code, _ = run_process(folder, crashing_graphs.make_turn, point, n)
    if code != -signal.SIGKILL:
        return None
    run_process(folder, crashing_graphs.make_turn)
    is_stored = (folder / "talk.db").exists()
    return is_stored and asyncio.run(crashing_graphs.findings(folder)) == crashing_graphs.WHOLE


def crew_is_whole(folder: Path, point: str, n: int) -> bool | None:
    """Kill a turn with files, a handover and a review at that append, and carry it on; None if there is no such append."""
    if run_process(folder, crashing_crews.make_turn, point, n)[0] != -signal.SIGKILL:
        return None
    run_process(folder, crashing_crews.make_turn)
    is_stored = (folder / "talk.db").exists()
    return is_stored and asyncio.run(crashing_crews.findings(folder)) == crashing_crews.WHOLE


def kills(title: str, is_whole: Callable[[Path, str, int], bool | None], step: int) -> None:
    """Kill a process before and after every n-th append, carry each on, and print what came of it."""
    for point in ("before", "after"):
        outcomes = Counter[str]()
        for n in range(1, APPENDS, step):
            with tempfile.TemporaryDirectory() as name:
                whole = is_whole(Path(name), point, n)
            if whole is None:
                break
            outcomes["whole" if whole else f"not whole: {n}"] += 1
        CONSOLE.print(f"{title} killed {point} an append: {dict(outcomes)}")


PARTS = ("many", "lessons", "graph", "crew")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=PARTS, help="only this part")
    parser.add_argument("--step", type=int, default=1, help="kill at every n-th append only")
    arguments = parser.parse_args()
    chosen: str | None = arguments.part
    step: int = arguments.step
    parts: Mapping[str, Callable[[Path], object]] = {
        "many": lambda folder: asyncio.run(many(folder)),
        "lessons": lambda folder: asyncio.run(lessons(folder)),
        "graph": lambda _: kills("a graph of six steps", graph_is_whole, step),
        "crew": lambda _: kills("a turn with files, handover and review", crew_is_whole, step),
    }
    for name in [chosen] if chosen else PARTS:
        with tempfile.TemporaryDirectory() as folder:
            parts[name](Path(folder))


if __name__ == "__main__":
    main()
