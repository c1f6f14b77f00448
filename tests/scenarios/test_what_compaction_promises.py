"""Promises of summaries, cuts, cache points and hiding, each at its very edge."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loopline.prompt import (
    NO_INPUTS,
    CachePolicy,
    CutPoint,
    Native,
    SummaryRange,
    SummaryReply,
    View,
    cache_points,
    choose_cut_point,
    summarize,
)
from loopline.prompt.range_summary import LedgerEntry, find_carried_lines
from loopline.prompt.truncation import old_text
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Block, LedgerLine, RangeSummary, RoundStart, Timeline, ToolResult
from tests.support.scenario_bundle import bundle
from tests.support.scripted_conversation import talking

REF = "ar:turn_1.user.prompt"


async def lived(script: Sequence[Entry], turns: int = 1) -> list[Block]:
    """The blocks of a conversation that follows the script."""
    async with talking(ScriptedModel([*script]), bundle=bundle) as talk:
        for _ in range(turns):
            await talk.say("go")
        return list(await talk.blocks())


def looks(count: int, size: int = 100) -> list[Entry]:
    return [Call("life.look", size=size, seed=number) for number in range(count)]


async def test_a_summary_keeps_the_notes_and_the_sources_of_the_one_before() -> None:
    note = LedgerLine(ref="ar:turn_1.react.notes.1", words="[D] keep herons dry")
    source = LedgerLine(ref="so:sources_pool[1]", words="[[S:1]] Herons")
    before = RangeSummary(covers=1, first_turn=1, last_turn=1, notes=(note,), sources=(source,))
    covered = SummaryRange(
        blocks=await lived(["So."]),
        cut=CutPoint(seq=9, messages=2, turn=2, opens_turn=True),
        previous=before,
        previous_ref="su:turn_1.conv.range.summary",
        later=[],
        room=3_000,
    )
    summary = summarize(covered, SummaryReply(), "general", Timeline())
    assert (summary.notes, summary.sources) == ((note,), (source,))


@pytest.mark.parametrize(("calls", "moves"), [(9, False), (10, True)])
async def test_the_last_point_is_kept_once_more_than_18_parts_came_after_it(
    calls: int, moves: bool
) -> None:
    script: list[Entry] = [
        Say("", *[Call("life.look", size=10, seed=n) for n in range(calls)]),
        "So.",
    ]
    blocks = await lived(script)
    *_, start = [block.body for block in blocks if isinstance(block.body, RoundStart)]
    assert [point.name for point in start.points] == (["pre_tail"] if moves else []) + ["tail"]


async def test_in_a_new_epoch_no_point_was_written_before() -> None:
    blocks = await lived([Say("", *[Call("life.look", size=10, seed=n) for n in range(10)]), "So."])
    results = [block.seq for block in blocks if isinstance(block.body, ToolResult)]
    now = View(Native(), blocks[: results[-1]]).rendering
    for anew, names in ((False, ["pre_tail", "tail"]), (True, ["tail"])):
        points = cache_points(now, 1, NO_INPUTS, CachePolicy(opens_epoch=anew))
        assert [point.name for point in points] == names


async def test_the_point_before_the_tail_comes_with_the_second_round() -> None:
    blocks = await lived([*looks(2), "So."])
    results = [block.seq for block in blocks if isinstance(block.body, ToolResult)]
    for seq, names in ((results[0], ["tail"]), (results[1], ["pre_tail", "tail"])):
        now = View(Native(), blocks[:seq]).rendering
        points = cache_points(now, 1, NO_INPUTS, CachePolicy(opens_epoch=True, min_rounds=2))
        assert [point.name for point in points] == names


def test_an_old_text_that_held_base64_names_the_whole_and_no_part_of_it() -> None:
    picture = "aB3" * 2_000
    assert old_text(f"{picture} {'so ' * 2_000}", REF).endswith(f"\nthe whole is {REF}")
    assert old_text("so " * 2_000, REF).endswith(f"\nthe rest is {REF}#C4001-C6000")


async def test_what_stands_directly_behind_the_kept_part_can_be_hidden_and_nothing_before_it() -> (
    None
):
    for path, status in (("tc:turn_1.c2.call", "ok"), ("tc:turn_1.c1.result", "error")):
        blocks = await lived([*looks(2), Call("react.hide", path=path, replacement="seen"), "So."])
        *_, result = [block.body for block in blocks if isinstance(block.body, ToolResult)]
        assert result.status == status, result.text


@pytest.mark.parametrize(("limit", "status"), [(140, "error"), (400, "ok")])
async def test_nothing_is_hidden_that_lies_further_back_than_the_limit(
    limit: int, status: str
) -> None:
    hide = Call("react.hide", path="tc:turn_1.c1.result", replacement="seen")
    model = ScriptedModel([*looks(1, 600), hide, "So."])
    async with talking(model, bundle=bundle) as talk:
        await talk.say("go", editable_tail_size_in_tokens=limit)
        *_, result = await talk.blocks(types="react.tool.result")
    assert isinstance(result.body, ToolResult)
    assert result.body.status == status, result.body.text


@pytest.mark.parametrize(("later", "opens_turn"), [(1, False), (3, True)])
async def test_a_turns_beginning_is_the_cut_unless_less_than_half_would_stay(
    later: int, opens_turn: bool
) -> None:
    blocks = await lived([*looks(4, 2_000), "One.", *looks(later, 2_000), "Two."], turns=2)
    now = View(Native(), blocks).rendering
    room = now.tokens - now.cost(now.cuts[2].messages)
    cut = choose_cut_point(now, room, lambda _: 0, after=now.cuts[0].messages)
    assert cut is not None
    assert cut.opens_turn is opens_turn


def test_what_the_summary_says_is_not_carried_beside_it() -> None:
    covered = [LedgerEntry(1, REF, "the gate code is 4711 and the depot is 8800")]
    lines = find_carried_lines("The gate code is 4711.", covered, ["use 4711 at 8800"])
    assert [line.words for line in lines] == ["the gate code is 4711 and the depot is 8800"]
    assert find_carried_lines("4711 and 8800", covered, ["use 4711 at 8800"]) == []
