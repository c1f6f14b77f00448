"""What calls of MCP servers cost, and what each gets from servers that misbehave.

`python -m tests.bench.mcp` prints three tables: servers and what their calls got; a call through stdio beside the same
call with the bare SDK; opening a harness with five declared servers beside one with none.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from mcp import Client, StdioServerParameters

from loopline import Bundle, Harness
from loopline.bundle import read_mcp_file
from loopline.clock import SystemClock
from loopline.mcp.connection import McpConnection
from loopline.models import Json, ToolCall
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import ToolResult
from tests.bench.program import print_table
from tests.mcp.served import SDK, Served, plain, results_in, sdk

CALLS, BATCHES, OPENED = 100, 3, 15


@dataclass(frozen=True, slots=True)
class Trial:
    """A server, how often it is called in one round, and the time that a call has."""

    name: str
    entry: dict[str, Json]
    call: ToolCall
    times: int = 1
    seconds: float = 30.0
    start_seconds: float = 20.0


def trials() -> Sequence[Trial]:
    """The servers of the first table."""
    work = Call("mcp.one.work")
    return (
        Trial("fifty calls at once", sdk(), Call("mcp.one.add", a=1, b=2), times=50),
        Trial("is killed in the call", plain("dies"), work, times=5),
        Trial("hangs in the call", plain("hangs"), work, times=5, seconds=2.0),
        Trial("hangs at its start", plain("never_ready"), work, start_seconds=3.0),
        Trial("is dead at its start", plain("dead"), work),
        Trial("floods: 100 MB in one line", plain("flood"), work, times=5),
        Trial("floods: 100 MB of notifications", plain("notifications"), work, times=5),
        Trial("answers with 3 MB", plain("huge"), work),
        Trial("changes its list", sdk(), Call("mcp.one.change")),
        Trial("answers twice", plain("twice"), work, times=5),
        Trial("answers to another id", plain("wrong_id"), work, times=5, seconds=2.0),
        Trial("answers with no result", plain("no_result"), work),
        Trial("prints what is no message", plain("garbage"), work),
    )


async def row(trial: Trial, folder: Path) -> tuple[str, ...]:
    """Return what the calls of a trial got, the time of their round, and how the turn ended."""
    served = Served(folder, start_seconds=trial.start_seconds)
    served.declare({"one": trial.entry})
    model = ScriptedModel([Say("", *[trial.call] * trial.times), Say("Done.")])
    async with served.open(model) as harness:
        talk = harness.conversation("c1")
        start = time.perf_counter()
        result = await talk.say(
            "Go!", parallel_tools=50, select_tools=False, tool_timeout_seconds=trial.seconds
        )
        took = time.perf_counter() - start
        results = results_in(await talk.blocks())
        notices = await talk.blocks(types=["react.notice"])
    counts = Counter(f"{result.status}: {result.text[:90]}" for result in results)
    cells = [f"{count} × {text}" for text, count in counts.items()]
    end = f"{result.exit_reason}, {len(notices)} notices"
    return trial.name, "\n".join(cells), f"{took:.2f}", end


async def overhead(folder: Path) -> list[tuple[str, str]]:
    """Return the medians of a call: with the bare SDK, through a connection, and in a turn."""
    served = Served(folder)
    served.declare({"one": sdk()})
    [entry] = read_mcp_file(folder / ".mcp.json").values()
    connection = McpConnection(
        "one",
        lambda: entry.resolve({}),
        clock=SystemClock(),
        start_seconds=20.0,
        on_tools=lambda _: None,
    )
    bare, ours = list[float](), list[float]()
    await connection.start()
    async with Client(StdioServerParameters(command=sys.executable, args=[str(SDK)])) as client:
        await client.list_tools()
        for _ in range(BATCHES):
            for _ in range(CALLS):
                start = time.perf_counter()
                await client.call_tool("add", {"a": 1, "b": 2})
                bare.append(time.perf_counter() - start)
            for _ in range(CALLS):
                start = time.perf_counter()
                await connection.call("add", {"a": 1, "b": 2}, lambda _: None, decline)
                ours.append(time.perf_counter() - start)
    await connection.close()
    in_turn = await calls_in_a_turn(served)
    rows = [("the bare SDK", median(bare)), ("a connection", median(ours))]
    rows.append(("a call in a turn, as its result says", median(in_turn)))
    return [(name, f"{seconds * 1000:.2f}") for name, seconds in rows]


async def decline(question: str, schema: Json) -> Json:
    """Answer nothing."""
    return None


async def calls_in_a_turn(served: Served) -> list[float]:
    """Return the seconds of calls, one a round."""
    calls = [Call("mcp.one.add", a=1, b=2) for _ in range(CALLS)]
    model = ScriptedModel([*calls, Say("Done.")])
    async with served.open(model) as harness:
        talk = harness.conversation("c1")
        await talk.say("Go!", max_iterations=CALLS + 1)
        results: list[ToolResult] = results_in(await talk.blocks())
    return [result.elapsed_ms / 1000 for result in results]


async def opening(folder: Path) -> list[tuple[str, str]]:
    """Return the medians of opening a harness without servers, and with five whose tools are kept."""
    served = Served(folder, in_memory=False)
    served.declare({f"s{number}": plain("works") for number in range(5)})
    async with served.open(ScriptedModel([Say("Done.")])) as harness:
        await harness.conversation("c0").say("Go!")
    empty = folder / "empty.json"
    empty.write_text(json.dumps({"mcpServers": {}}), "utf-8")
    rows = list[tuple[str, str]]()
    opens: dict[str, list[float]] = {"none": [], "five": []}
    turns: dict[str, list[float]] = {"none": [], "five": []}
    files = {"none": empty, "five": folder / ".mcp.json"}
    for number in range(OPENED):
        for name, file in files.items():
            harness = Harness.open(
                Bundle(id="served"),
                store=f"sqlite:///{folder}/talk.db",
                model=ScriptedModel([Say("Done.")]),
                properties={"mcp.file": str(file)},
            )
            start = time.perf_counter()
            async with harness:
                opens[name].append(time.perf_counter() - start)
                talk = harness.conversation(f"{name}{number}")
                start = time.perf_counter()
                await talk.say("Go!")
                turns[name].append(time.perf_counter() - start)
    for what, times in (("opening", opens), ("the first turn", turns)):
        rows += [
            (f"{what}, {name} declared", f"{median(times[name]) * 1000:.1f}") for name in files
        ]
    return rows


def main() -> None:
    rows = list[tuple[str, ...]]()
    for trial in trials():
        with TemporaryDirectory() as folder:
            rows.append(asyncio.run(row(trial, Path(folder))))
    print_table(("the server", "what its calls got", "seconds", "the turn"), rows, width=150)
    for title, measure in (("a call of `add` through stdio", overhead), ("a harness", opening)):
        with TemporaryDirectory() as folder:
            print_table((title, "ms, median"), asyncio.run(measure(Path(folder))), width=150)


if __name__ == "__main__":
    main()
