"""A process that runs a graph of six steps, each of which writes a line, and dies at the n-th append."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path

from loopline import Bundle, Harness, LooplineError, Store, ToolContext, tool
from loopline.crew import GraphOptions
from loopline.store import SqlLog
from loopline.testing import Call
from loopline.timeline import CrewGraph, Decision, Exit, RunChild, ToolResult
from tests.support.child_runs import Line
from tests.support.crashing_turns import CrashPoint, KillingLog
from tests.support.crews import Scripts
from tests.support.forked_processes import forked

NEEDS = {"1": [], "2": [], "3": ["1", "2"], "4": ["2"], "5": ["3", "4"], "6": ["5"]}
PLAN = json.dumps(
    {
        "steps": [
            {"id": id, "task": f"do {id}", "dependencies": [*needed]}
            for id, needed in NEEDS.items()
        ]
    }
)
ANALYSIS = json.dumps({"achieved": True, "confidence": 1, "answer": "All six are done."})


def _write(ledger: Path, line: str) -> str:
    known = ledger.read_text().splitlines() if ledger.exists() else []
    if line not in known:
        with ledger.open("a") as file:
            file.write(f"{line}\n")
    return f"wrote {line}"


def _look(step: str, ledger: str, context: ToolContext) -> str:
    """Make up for a call that was cut off: its key tells whether it has written."""
    return _write(Path(ledger), f"{step} {context.idempotency_key}")


@tool(effect="write", key="{step}", reconcile=_look)
def write(step: str, ledger: str, context: ToolContext) -> str:
    """Write the line of a step."""
    with Path(ledger).open("a") as file:
        file.write(f"{step} {context.idempotency_key}\n")
    return f"wrote {step}"


bundle = Bundle(id="graphs", tools=[write], graph=GraphOptions())


def scripts(ledger: str) -> Scripts:
    """Return the model of all runs."""
    lines: dict[str, list[Line]] = {
        "Begin": [Call("crew.graph", goal="write six lines"), "Done."],
        "Plan how": [PLAN],
        "Say whether": [ANALYSIS],
    }
    for id in NEEDS:
        lines[f"Your step: do {id}"] = [
            Call("graphs.write", step=id, ledger=ledger),
            f"did {id}",
        ]
    return Scripts(lines)


async def live(store: str, ledger: str, point: str, n: int) -> str:
    """Begin the turn, or carry it on when there is one; return the exit reason."""
    async with await SqlLog.open(store) as log:
        mortal = KillingLog(log, CrashPoint(point, n))
        async with Harness.open(bundle, store=mortal, model=scripts(ledger)) as harness:
            talk = harness.conversation("c")
            summary = await log.find(talk.conversation)
            return (await (talk.resume() if summary else talk.say("Begin"))).exit_reason


def run(store: str, ledger: str, point: str, n: int, said: str) -> None:
    """Live the turn and write down how it ended; with nothing to carry on, nothing is said."""
    with contextlib.suppress(LooplineError):
        Path(said).write_text(asyncio.run(live(store, ledger, point, n)), encoding="utf-8")


def run_process(folder: Path, point: str, n: int) -> tuple[int | None, str]:
    """Return how a process that runs the turn ends, and what it says of it."""
    said = folder / "said"
    store = f"sqlite:///{folder}/talk.db"
    arguments = (store, str(folder / "ledger"), point, n, str(said))
    process = forked.Process(target=run, args=arguments)
    process.start()
    process.join()
    return process.exitcode, said.read_text() if said.exists() else ""


async def findings(folder: Path) -> dict[str, object]:
    """Return what a store holds of the graph, and which steps wrote their line how often."""
    async with Store.open(f"sqlite:///{folder}/talk.db", read_only=True) as store:
        blocks = list(await store.conversation("c").blocks())
        planned, analysed = [
            sum(
                isinstance(block.body, Decision)
                for block in await store.conversation(name).blocks()
            )
            for name in ("c~c1", "c~c1.3")
        ]
    graphs = [block.body for block in blocks if isinstance(block.body, CrewGraph)]
    begun = Counter(
        block.body.conversation
        for block in blocks
        if isinstance(block.body, RunChild) and not block.body.reason
    )
    ledger = folder / "ledger"
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return {
        "lines": sorted(line.split()[0] for line in lines),
        "statuses": {step.status for step in graphs[-1].steps} if graphs else set(),
        "children": dict(begun),
        "replies": {"planner": planned, "analyst": analysed},
        "results": [b.body.status for b in blocks if isinstance(b.body, ToolResult)],
        "ended": isinstance(blocks[-1].body, Exit),
    }


WHOLE: dict[str, object] = {
    "lines": list(NEEDS),
    "statuses": {"completed"},
    "children": {f"c~c1{'' if n == 1 else f'.{n}'}": 1 for n in (1, 3, 4, 5, 6, 7, 8, 9)},
    "replies": {"planner": 1, "analyst": 1},
    "results": ["ok"],
    "ended": True,
}
"""What is found of a graph that was run to its end."""
