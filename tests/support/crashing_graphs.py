"""A process that runs a graph of six steps, each of which writes a line, and dies at the n-th append."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from loopline import Bundle, ToolContext, tool
from loopline.crew import GraphOptions
from loopline.testing import Call
from loopline.timeline import CrewGraph, Decision, Exit, RunChild, ToolResult
from tests.support.child_runs import Line
from tests.support.crews import Scripts, analysis, plan_of
from tests.support.killed_processes import read_blocks
from tests.support.ledgers import add_line, lines_of

NEEDS = {"1": [], "2": [], "3": ["1", "2"], "4": ["2"], "5": ["3", "4"], "6": ["5"]}


def _write(ledger: Path, line: str) -> str:
    if line not in lines_of(ledger):
        add_line(ledger, line)
    return f"wrote {line}"


def _look(step: str, ledger: str, context: ToolContext) -> str:
    """Make up for a call that was cut off: its key tells whether it has written."""
    return _write(Path(ledger), f"{step} {context.idempotency_key}")


@tool(effect="write", key="{step}", reconcile=_look)
def write(step: str, ledger: str, context: ToolContext) -> str:
    """Write the line of a step."""
    add_line(Path(ledger), f"{step} {context.idempotency_key}")
    return f"wrote {step}"


bundle = Bundle(id="graphs", tools=[write], graph=GraphOptions())


def make_turn(folder: Path) -> tuple[Bundle, Scripts]:
    ledger = str(folder / "ledger")
    lines: dict[str, list[Line]] = {
        "Begin": [Call("crew.graph", goal="write six lines"), "Done."],
        "Plan how": [plan_of(NEEDS)],
        "Say whether": [analysis("All six are done.")],
    }
    for id in NEEDS:
        lines[f"Your step: do {id}"] = [
            Call("graphs.write", step=id, ledger=ledger),
            f"did {id}",
        ]
    return bundle, Scripts(lines)


async def findings(folder: Path) -> dict[str, object]:
    """Return what a store holds of the graph, and which steps wrote their line how often."""
    blocks = await read_blocks(folder)
    planned, analysed = [
        sum(isinstance(block.body, Decision) for block in await read_blocks(folder, name))
        for name in ("c~c1", "c~c1.3")
    ]
    graphs = [block.body for block in blocks if isinstance(block.body, CrewGraph)]
    begun = Counter(
        block.body.conversation
        for block in blocks
        if isinstance(block.body, RunChild) and not block.body.reason
    )
    return {
        "lines": sorted(line.split()[0] for line in lines_of(folder / "ledger")),
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
