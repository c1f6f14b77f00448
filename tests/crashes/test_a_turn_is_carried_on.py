"""A process is killed at every append of a turn; another one carries the turn on."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from loopline.timeline import Block
from tests.support.crashing_turns import CrashingTurn
from tests.support.killed_turns import (
    CLIENT,
    LONG,
    SHORT,
    SUMMARY,
    check,
    check_client,
    check_long,
    run,
    stored,
)

pytestmark = pytest.mark.campaign

SHORT_APPENDS, LONG_APPENDS, CLIENT_APPENDS = 16, 33, 24
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


def live_and_die(crashing_turn: CrashingTurn, batches: list[int]) -> list[Block]:
    """Die where it says, have another process do the rest, and check what holds; all blocks."""
    folder = Path(crashing_turn.folder)
    assert run(crashing_turn)[:2] == (-signal.SIGKILL, "")
    acknowledged, read = asyncio.run(stored(crashing_turn))
    assert run(replace(crashing_turn, n=0))[:2] == (0, "complete")
    blocks, read_again = asyncio.run(stored(crashing_turn))
    assert blocks[: len(acknowledged)] == acknowledged
    assert {ref: read_again[ref] for ref in read} == read
    check(blocks, folder, batches)
    return blocks


def dead_at(folder: Path, point: str, n: int, summary: str) -> CrashingTurn:
    return CrashingTurn(str(folder), length="long", summary=summary, point=point, n=n)


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("n", range(1, SHORT_APPENDS + 1))
def test_a_turn_killed_at_any_append_is_carried_on_by_another_process(
    quick_folder: Path, point: str, n: int
) -> None:
    live_and_die(CrashingTurn(str(quick_folder), point=point, n=n), SHORT)


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


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("n", range(1, CLIENT_APPENDS + 1))
def test_a_turn_with_tools_of_its_client_killed_at_any_append_is_carried_on_by_another_process(
    quick_folder: Path, point: str, n: int
) -> None:
    crashing_turn = CrashingTurn(str(quick_folder), length="client", point=point, n=n)
    check_client(live_and_die(crashing_turn, CLIENT), quick_folder)


def test_the_turn_with_tools_of_its_client_has_two_points_for_each_append(
    quick_folder: Path,
) -> None:
    crashing_turn = CrashingTurn(str(quick_folder), length="client")
    code, reason, passed = run(crashing_turn)
    assert (code, reason, passed["before"]) == (0, "complete", CLIENT_APPENDS)
    blocks = asyncio.run(stored(crashing_turn))[0]
    check(blocks, quick_folder, CLIENT)
    check_client(blocks, quick_folder)


def test_the_short_turn_has_32_points_and_each_is_one_where_it_dies(quick_folder: Path) -> None:
    crashing_turn = CrashingTurn(str(quick_folder))
    code, reason, passed = run(crashing_turn)
    assert (code, reason) == (0, "complete")
    assert passed["before"] + passed["after"] == 2 * SHORT_APPENDS == 32
    check(asyncio.run(stored(crashing_turn))[0], quick_folder, SHORT)


def test_the_long_turn_dies_at_43_points_and_at_one_of_each_kind(quick_folder: Path) -> None:
    crashing_turn = dead_at(quick_folder, "", 0, SUMMARY)
    code, reason, passed = run(crashing_turn)
    assert (code, reason, passed["before"]) == (0, "complete", LONG_APPENDS)
    assert len(set(POINTS)) == 43
    assert all(passed[point] >= n for point, n in POINTS)
    along = {f"{when} {kind}" for kind in ALONG for when in ("before", "after")}
    assert set(passed) - {point for point, _ in POINTS} == along | {"before", "after"}
    blocks = asyncio.run(stored(crashing_turn))[0]
    check(blocks, quick_folder, LONG)
    check_long(blocks, SUMMARY)
