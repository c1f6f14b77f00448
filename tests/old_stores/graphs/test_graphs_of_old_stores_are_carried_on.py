"""Graphs that an earlier version began, with planner and analyst as loops of their own, are carried on by this one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from loopline import Harness, Store
from loopline.testing import FakeClock
from loopline.timeline import CrewGraph
from tests.old_stores.graphs.make import CUTS, FOLDER, Answering, bundle, plan, verdict

NAMES = sorted(path.stem for path in FOLDER.glob("*.sql"))
REPLIES = {
    "Plan how": plan("late"),
    "Your step": "did it",
    "Say whether": verdict(True, "All of it."),
}
REACHED = "The goal is reached\nAll of it."
UNREAD = (
    "Whether the goal is reached is not known. The analyst's reply cannot be read: "
    "the reply has no JSON object with achieved, confidence and answer."
)
ENDS: dict[str, tuple[str, list[str], list[str]]] = {
    "asks": (REACHED, ["late"], ["Plan how", "Your step", "Say whether"]),
    "plans-again": (REACHED, ["one"], ["Your step", "Say whether"]),
    "steps": (REACHED, ["one", "two"], ["Say whether"]),
    "says-it-is-done": (UNREAD, ["one"], []),
    "begins-anew": (REACHED, ["two"], ["Your step", "Say whether"]),
}
"""What the caller reads first, the steps that were run at last, and who is asked in this version."""


@pytest.mark.parametrize("old", NAMES)
@pytest.mark.parametrize("name", CUTS)
async def test_a_graph_goes_on_with_what_it_had(old: str, name: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "talk.db")) as database:
        database.executescript((FOLDER / f"{old}.sql").read_text("utf-8"))
    store, model = f"sqlite:///{tmp_path}/talk.db", Answering(REPLIES)
    async with Harness.open(bundle, store=store, model=model, clock=FakeClock()) as harness:
        talk = harness.conversation(name)
        assert (await talk.resume()).answer == "Done."
        [result] = await talk.read(["tc:turn_1.c1.result"])
        graphs = [block.body for block in await talk.blocks() if isinstance(block.body, CrewGraph)]
    beginning, tasks, asked = ENDS[name]
    assert beginning in result.text
    assert [step.task for step in graphs[-1].steps] == tasks
    assert model.asked == asked
    async with Store.open(store) as kept_store:
        assert [fault for item in await kept_store.audit() for fault in item.faults] == []
