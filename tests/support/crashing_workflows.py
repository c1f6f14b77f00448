"""A workflow of five steps and a fan-out, and tools in the background, whose process dies at the n-th append."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from loopline import (
    Agent,
    BaseWorkflow,
    Bundle,
    Harness,
    LooplineError,
    ToolContext,
    TurnPayload,
    TurnResult,
    models,
    tool,
)
from loopline import timeline as tl
from loopline.errors import StepInterrupted
from loopline.store import SqlLog
from loopline.testing import Call
from tests.support.child_runs import Line
from tests.support.crashing_turns import CrashPoint, KillingLog
from tests.support.crews import Scripts
from tests.support.forked_processes import forked
from tests.support.killed_processes import read_blocks
from tests.support.ledgers import add_line, lines_of

TEAS = ("sencha", "assam", "oolong")


def _look(ledger: Path, line: str) -> str:
    """Make up for a step that was cut off: write the line unless it is there."""
    return line if line in lines_of(ledger) else add_line(ledger, line)


def _look_for_note(tea: str, ledger: str) -> str:
    return _look(Path(ledger), tea)


@tool(effect="write", key="{tea}", reconcile=_look_for_note)
def note(tea: str, ledger: str) -> str:
    """Note a tea."""
    return add_line(Path(ledger), tea)


class Tasting(BaseWorkflow):
    """Five steps, one of which nobody can look up, around a fan-out of three agents."""

    agents = (Agent(name="taster", description="Tastes a tea."),)
    ledger = Path()

    async def process(self, payload: TurnPayload) -> TurnResult[Any]:
        for name in ("one", "two"):
            await self.step(name, add_line, self.ledger, name, reconcile=_look)
        count = await self.step("read", lambda: 3, effect="read")
        tasted = await self.map("taster", [f"taste {tea}" for tea in TEAS[:count]], limit=2)
        await self.step("three", add_line, self.ledger, "three", reconcile=_look)
        try:
            told = await self.step("blind", add_line, self.ledger, "blind")
        except StepInterrupted:
            told = "unknown"
        return await self.answer(f"{told}: {', '.join(result.answer for result in tasted)}")


def make_turn(folder: Path) -> tuple[Bundle[Any], Scripts]:
    ledger = folder / "ledger"
    kind = type("Tasting", (Tasting,), {"ledger": ledger})
    lines: dict[str, list[Line]] = {
        f"taste {tea}": [Call("shop.note", tea=tea, ledger=str(ledger)), f"{tea} is good"]
        for tea in TEAS
    }
    return Bundle(id="shop", workflow=kind, tools=[note]), Scripts(lines)


async def findings(folder: Path) -> dict[str, object]:
    blocks = await read_blocks(folder)
    bodies = [block.body for block in blocks]
    begun = Counter(b.name for b in bodies if isinstance(b, tl.StepStarted))
    ended = Counter(b.name for b in bodies if isinstance(b, tl.StepEnded))
    children = Counter(
        b.conversation for b in bodies if isinstance(b, tl.RunChild) and not b.reason
    )
    lines = Counter(lines_of(folder / "ledger"))
    blind = lines.pop("blind", 0)
    return {
        "lines": dict(sorted(lines.items())),
        "blind": blind <= 1,
        "steps": begun == ended == dict.fromkeys(begun, 1) and len(begun) == 6,
        "children": dict(sorted(children.items())),
        "exits": [b.reason for b in bodies if isinstance(b, tl.Exit)],
    }


WHOLE: dict[str, object] = {
    "lines": dict.fromkeys(sorted(("one", "two", "three", *TEAS)), 1),
    "blind": True,
    "steps": True,
    "children": dict.fromkeys(("c~c0.1.1", "c~c0.1.1.2", "c~c0.1.1.3"), 1),
    "exits": ["complete"],
}
"""What is found of a workflow that was run to its end."""


class Brewer:
    """A model that brews and orders in its first reply, and then says that it has."""

    name = "brewer"
    capabilities = models.Capabilities(window=1_000_000, tool_call=True)

    def __init__(self, ledger: Path) -> None:
        self._ledger = str(ledger)

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        yield models.TextDelta(text="")
        if any(isinstance(message, models.AssistantMessage) for message in prompt.messages):
            yield models.Reply(text="It is on its way.")
            return
        calls = [
            models.ToolCall(name=f"kitchen.{name}", arguments={"ledger": self._ledger})
            for name in ("brew", "order", "blind")
        ]
        yield models.Reply(calls=tuple(calls), stop_reason="tool_use")


def _look_for_order(ledger: str) -> str | None:
    return "ordered" if "order" in lines_of(Path(ledger)) else None


@tool(effect="read", background=True)
async def brew(ledger: str, context: ToolContext) -> str:
    """Brew, which may happen twice."""
    await asyncio.to_thread(add_line, Path(ledger), "brew")
    return f"brewed {context.call_id}"


@tool(effect="write", background=True, reconcile=_look_for_order)
def order(ledger: str) -> str:
    """Order."""
    return add_line(Path(ledger), "order")


@tool(effect="write", background=True)
def blind(ledger: str) -> str:
    """Do what nobody can look up."""
    return add_line(Path(ledger), "blind")


KITCHEN = Bundle(id="kitchen", tools=[brew, order, blind])


async def _brew(folder: Path, point: str, n: int) -> int:
    """Begin the turn, or resume it, then wait for the results and tell the model of them in further turns."""
    model = Brewer(folder / "ledger")
    crash_point = CrashPoint(point, n)
    async with (
        await SqlLog.open(f"sqlite:///{folder}/talk.db") as log,
        Harness.open(KITCHEN, store=KillingLog(log, crash_point), model=model) as harness,
    ):
        talk = harness.conversation("c")
        if await log.find(talk.conversation) is None:
            await talk.say("Begin")
        else:
            with contextlib.suppress(LooplineError):  # the turn has ended
                await talk.resume()
        for text in ("And?", "So?"):
            await talk.background.wait(seconds=20)
            await talk.say(text)
    return crash_point.passed["after"]


def _run_brewing(folder: Path, point: str, n: int) -> None:
    passed = asyncio.run(_brew(folder, point, n))
    (folder / "passed").write_text(f"{passed}", encoding="utf-8")


def run_brewing(folder: Path, point: str = "never", n: int = 0) -> int | None:
    """Live the turns in a process that dies at the n-th pass of the point; return its exit code."""
    process = forked.Process(target=_run_brewing, args=(folder, point, n))
    process.start()
    process.join()
    return process.exitcode


async def brewed(folder: Path) -> dict[str, object]:
    """Return what a store and the ledger have of the calls in the background."""
    blocks: list[tl.Block] = await read_blocks(folder)
    results = {b.seq: b.body for b in blocks if isinstance(b.body, tl.BackgroundResult)}
    taken = Counter(
        seq for b in blocks if isinstance(b.body, tl.RoundStart) for seq in b.body.takes
    )
    lines = Counter(lines_of(folder / "ledger"))
    ends = [b.body for b in blocks if isinstance(b.body, tl.ToolResult)]
    # A call that was cut off before it was in the background, and whose `reconcile` found its outcome, has only a result.
    begun = {
        b.body.call_id
        for b in blocks
        if isinstance(b.body, tl.CustomEvent) and b.body.name == tl.BACKGROUND_STARTED
    }
    return {
        "results": sorted(result.call_id for result in results.values()) == sorted(begun),
        "found": {end.tool for end in ends if end.status == "ok" and end.call_id not in begun}
        <= {"kitchen.order"},
        "answered": len(ends) == 3,
        "taken": [taken[seq] for seq in results] == [1] * len(results),
        "order": lines["order"] <= 1,
        "blind": lines["blind"] <= 1,
        "brewed": all(result.ok for result in results.values() if result.tool == "kitchen.brew"),
        "known": all(
            result.ok
            for result in results.values()
            if lines["order"] and result.tool == "kitchen.order"
        ),
    }
