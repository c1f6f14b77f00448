"""A process is killed at every append of a turn; another one carries the turn on."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from loopline import Store
from loopline.models import AssistantMessage, Message, ToolMessage
from loopline.prompt import Native, View
from loopline.timeline import (
    Block,
    Exit,
    RangeSummary,
    RoundStart,
    Timeline,
    ToolCalled,
    ToolPending,
    ToolResult,
    ToolStarted,
    UserAnswer,
    UserAttachment,
    UserFollowup,
    UserPrompt,
)
from tests.support import dying
from tests.support.dying import Fate

SHORT, LONG = [1, 4], [1, 4, 1, 1]
"""How many calls each round makes, where it makes any."""
SHORT_APPENDS, LONG_APPENDS = 16, 33
APPENDS = [
    ("user.prompt", 1),
    ("turn.header", 1),
    ("react.round.start", 2),
    ("react.decision", 2),
    ("react.tool.start", 2),
    ("react.tool.result", 2),
    ("conv.range.summary", 1),
    ("react.tool.pending", 1),
    ("user.answer", 1),
    ("react.tool.start", 4),
    ("system.message", 2),
    ("react.tool.start", 5),
    ("react.tool.pending", 2),
    ("user.answer", 2),
    ("user.followup", 1),
    ("react.draft", 1),
    ("assistant.completion", 1),
    ("react.exit", 1),
]
"""Those of the long turn where it dies: what they keep, and the so-manyth of these."""
ALONG = {"user.attachment", "react.tool.call", "react.notes", "react.plan", "react.plan.ack"}
"""What is kept along with those alone."""
ELSEWHERE = [
    ("asked for a decision", 3),
    ("in the middle of a reply", 3),
    ("asked for a summary", 1),
    ("in a read", 1),
    ("in a write, before its effect", 1),
    ("in a write, after its effect", 1),
    ("in a write, after its effect", 3),
]
POINTS = [(f"{when} {kind}", n) for kind, n in APPENDS for when in ("before", "after")] + ELSEWHERE
AROUND_A_SUMMARY = [
    ("asked for a summary", 1),
    ("before conv.range.summary", 1),
    ("after conv.range.summary", 1),
]
SUMMARY = "Goal: go on.\nNext steps: answer."

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.support.dying"])


def run(fate: Fate) -> tuple[int | None, str, Counter[str]]:
    """How a process that lives the turn ends, what it says of it, and the points it has passed."""
    process = processes.Process(target=dying.run, args=(fate,))
    process.start()
    process.join()
    said = Path(fate.folder, "said")
    if not said.exists():
        return process.exitcode, "", Counter()
    reason, passed = json.loads(said.read_text())
    return process.exitcode, reason, Counter(passed)


async def kept(folder: Path) -> tuple[list[Block], dict[str, str]]:
    """The blocks, and what each is read as by its ref."""
    if not await asyncio.to_thread((folder / "talk.db").exists):
        return [], {}
    async with Store.open(f"sqlite:///{folder}/talk.db", read_only=True) as store:
        talk = store.conversation("c")
        blocks = list(await talk.blocks())
        reading = await talk.read([block.ref for block in blocks])
        return blocks, {item.asked: item.text for item in reading}


def check(blocks: list[Block], folder: Path, batches: list[int]) -> None:
    """The laws that hold of the turn, in whatever way it came to its end."""
    assert [block.seq for block in blocks] == list(range(1, len(blocks) + 1))
    calls = [block.body.call_id for block in blocks if isinstance(block.body, ToolCalled)]
    results = [block.body for block in blocks if isinstance(block.body, ToolResult)]
    starts = [block.body.call_id for block in blocks if isinstance(block.body, ToolStarted)]
    assert calls == [f"c{number}" for number in range(1, sum(batches) + 1)]
    assert sorted(result.call_id for result in results) == calls
    assert len(starts) == len(set(starts))
    said = [block.seq for block in blocks if isinstance(block.body, UserPrompt | UserFollowup)]
    taken = [seq for b in blocks if isinstance(b.body, RoundStart) for seq in b.body.takes]
    assert taken == said
    attached = [(b.seq, b.body.size) for b in blocks if isinstance(b.body, UserAttachment)]
    assert attached == [(said[0] + 1, len(dying.FILE.data))]
    terms = [block.term for block in blocks if block.term]
    assert terms == sorted(terms)
    assert isinstance(blocks[-1].body, Exit)
    assert Timeline(blocks).cut == []
    check_ledger(results, folder / "ledger")
    check_pairs(View(Native(), blocks).messages, calls, batches)


def check_pairs(messages: list[Message], calls: list[str], batches: list[int]) -> None:
    """Each round that is still shown has its results directly after its calls, in their order."""
    shown = list[str]()
    for place, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and message.calls:
            results = messages[place + 1 :][: len(message.calls)]
            shown += [one.call_id for one in results if isinstance(one, ToolMessage)]
            assert len(message.calls) in batches
    assert shown == calls[len(calls) - len(shown) :] != []
    assert len(shown) == sum(isinstance(one, ToolMessage) for one in messages)


def check_ledger(results: list[ToolResult], ledger: Path) -> None:
    """Each write has one line, or none and a result that says that it was interrupted."""
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    writes = [result for result in results if result.tool == "dying.note"]
    noted = [line.split()[0] for line in lines]
    assert len(noted) == len(set(noted))
    assert {one.call_id for one in writes if one.status == "ok"} <= set(noted)
    assert {one.status for one in writes} <= {"ok", "interrupted"}
    assert sum(one.status == "interrupted" for one in results) <= 2


def live_and_die(fate: Fate, batches: list[int]) -> list[Block]:
    """Die where it says, have another process do the rest, and check what holds; all blocks."""
    folder = Path(fate.folder)
    assert run(fate)[:2] == (-signal.SIGKILL, "")
    acknowledged, read = asyncio.run(kept(folder))
    assert run(replace(fate, n=0))[:2] == (0, "complete")
    blocks, read_again = asyncio.run(kept(folder))
    assert blocks[: len(acknowledged)] == acknowledged
    assert {ref: read_again[ref] for ref in read} == read
    check(blocks, folder, batches)
    return blocks


def check_long(blocks: list[Block], summary: str) -> None:
    """One summary, each question answered once, and its answer used."""
    kept = [block.body for block in blocks]
    texts = [body.text for body in kept if isinstance(body, RangeSummary)]
    assert texts == [summary]
    asked = [body.call_id for body in kept if isinstance(body, ToolPending)]
    answered = [body.call_id for body in kept if isinstance(body, UserAnswer)]
    assert asked == answered
    used = {body.call_id: body.status for body in kept if isinstance(body, ToolResult)}
    assert len([one for one in asked if used[one] == "interrupted"]) <= 1


def dead_at(folder: Path, point: str, n: int, summary: str) -> Fate:
    return Fate(str(folder), length="long", summary=summary, point=point, n=n)


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("n", range(1, SHORT_APPENDS + 1))
def test_a_turn_killed_at_any_append_is_carried_on_by_another_process(
    quick_folder: Path, point: str, n: int
) -> None:
    live_and_die(Fate(str(quick_folder), point=point, n=n), SHORT)


@pytest.mark.parametrize(("point", "n"), POINTS)
def test_a_long_turn_killed_at_a_point_of_any_kind_is_carried_on_by_another_process(
    quick_folder: Path, point: str, n: int
) -> None:
    check_long(live_and_die(dead_at(quick_folder, point, n, SUMMARY), LONG), SUMMARY)


@pytest.mark.parametrize(("point", "n"), AROUND_A_SUMMARY)
def test_a_turn_killed_around_a_summary_that_no_model_writes_is_carried_on(
    quick_folder: Path, point: str, n: int
) -> None:
    check_long(live_and_die(dead_at(quick_folder, point, n, ""), LONG), "")


def test_the_short_turn_has_32_points_and_each_is_one_where_it_dies(quick_folder: Path) -> None:
    code, reason, passed = run(Fate(str(quick_folder)))
    assert (code, reason) == (0, "complete")
    assert passed["before"] + passed["after"] == 2 * SHORT_APPENDS == 32
    check(asyncio.run(kept(quick_folder))[0], quick_folder, SHORT)


def test_the_long_turn_dies_at_43_points_and_at_one_of_each_kind(quick_folder: Path) -> None:
    code, reason, passed = run(dead_at(quick_folder, "", 0, SUMMARY))
    assert (code, reason, passed["before"]) == (0, "complete", LONG_APPENDS)
    assert len(set(POINTS)) == 43
    assert all(passed[point] >= n for point, n in POINTS)
    along = {f"{when} {kind}" for kind in ALONG for when in ("before", "after")}
    assert set(passed) - {point for point, _ in POINTS} == along | {"before", "after"}
    blocks = asyncio.run(kept(quick_folder))[0]
    check(blocks, quick_folder, LONG)
    check_long(blocks, SUMMARY)
