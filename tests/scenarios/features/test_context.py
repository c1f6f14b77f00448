"""What a model is shown of a long conversation, and how the rest comes back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from loopline.events import Delta
from loopline.models import Prompt, ToolMessage
from loopline.models.safe_text import remove_base64
from loopline.prompt import truncation
from loopline.prompt.range_summary import terms
from loopline.react import Limits
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Block, RangeSummary, RoundStart, SystemMessage, Timeline
from tests.support.workbench import (
    at_work,
    bodies,
    decisions,
    heard,
    results,
    roles,
    shown,
)

TOTAL = 5_000
"""Tokens that a request may have in the small window."""


def small(script: Sequence[Entry], *summaries: Entry) -> ScriptedModel:
    return ScriptedModel(
        script, aux={"summary": summaries}, window=TOTAL + 1_000, output_limit=1_000, strict=False
    )


def summaries(model: ScriptedModel) -> list[Prompt]:
    return [request for request in model.requests if request.purpose == "summary"]


def looks(number: int, size: int = 3_000) -> list[Entry]:
    return [Call("w.big", size=size) for _ in range(number)]


def commands(number: int, size: int = 2_000) -> list[Entry]:
    return [
        Say("x" * 40, Call("w.command", text=f"{n}-" + "yes " * (size // 4))) for n in range(number)
    ]


async def test_another_process_folds_the_same_conversation(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/c.db"
    async with at_work([Call("w.find", url="https://a.org"), "So [[S:1]]."], store=store) as talk:
        await talk.say("go")
        first = await talk.blocks()
    async with at_work([], store=store) as talk:
        again = await talk.blocks()
    assert list(again) == list(first)
    assert Timeline(again).pool.sources == Timeline(first).pool.sources


async def test_channels_are_folds_of_the_blocks() -> None:
    async with at_work([Call("w.look"), Call("w.look"), "Done."]) as talk:
        await talk.say("go")
        blocks = list(await talk.blocks())
    states = [Timeline(blocks[:place]).turn(1) for place in range(1, len(blocks) + 1)]
    rounds = [state.rounds for state in states]
    assert (rounds, rounds[-1]) == (sorted(rounds), 3)
    assert [len(state.results) for state in states][-1] == 2
    assert {len(state.open_calls) for state in states} == {0, 1}


async def test_no_request_is_larger_than_the_window_allows() -> None:
    model = small([*looks(12, 4_000), "Done."])
    async with at_work(model) as talk:
        assert (await talk.say("go")).ok
        sizes = [start.tokens for start in await bodies(talk, RoundStart)]
    assert max(sizes) <= TOTAL


async def test_a_summary_is_asked_for_only_when_clearing_is_not_enough() -> None:
    light, heavy = (
        small([*looks(6), "Done."]),
        small([*commands(9, 3_000), "Done."], *["Goal."] * 9),
    )
    for model in (light, heavy):
        async with at_work(model) as talk:
            await talk.say("go")
            assert "compaction" in {start.opened_by for start in await bodies(talk, RoundStart)}
    assert (len(summaries(light)), len(summaries(heavy)) > 0) == (0, True)


async def test_a_cleared_result_leaves_a_line_that_names_it() -> None:
    model = small([*looks(6), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
    first = results(model.requests[-1])[0].text
    assert "[CLEARED] tc:turn_1.c1.result of w.big" in first
    assert len(first) < 400


async def test_what_was_looked_up_goes_before_what_was_done() -> None:
    done = Call("w.command", text="kept " * 100)
    model = small([done, *looks(5), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
    last = results(model.requests[-1])
    assert ("ran kept" in last[0].text, "[CLEARED]" in last[1].text) == (True, True)


async def test_a_summary_stands_for_what_can_still_be_read_by_ref() -> None:
    model = small([*commands(9, 3_000), "Done."], *["Goal: nine."] * 9)
    async with at_work(model) as talk:
        await talk.say("go")
        assert (await bodies(talk, RangeSummary))[0].text == "Goal: nine."
        (whole_item,) = await talk.read("tc:turn_1.c1.result")
    assert "Goal: nine." in shown(model.requests[-1])
    assert whole_item.text == "ran 0-" + "yes " * 750


@pytest.mark.parametrize(
    ("hint", "focus"),
    [
        ("general", "what was asked"),
        ("react_iteration", "in the middle of a turn"),
        ("planner_input", "to make a plan"),
        ("step_dependency", "Later steps build on"),
        ("unheard of", "what was asked"),
    ],
)
async def test_a_hint_says_what_a_summary_is_to_keep(hint: str, focus: str) -> None:
    model = small([*commands(9, 3_000), "Done."], *["Goal."] * 9)
    async with at_work(model) as talk:
        await talk.say("go", summary_hint=hint)
    assert focus in summaries(model)[0].tail


async def test_the_question_and_the_newest_round_are_always_there() -> None:
    model = small([*commands(12, 3_000), "Done."], *["Goal."] * 12)
    async with at_work(model) as talk:
        await talk.say("the very question")
    for number, request in enumerate(decisions(model)):
        assert "Work." in request.system
        assert "the very question" in shown(request)
        assert number == 0 or f"{number - 1}-yes" in shown(request)


async def test_no_request_has_a_result_without_its_call() -> None:
    model = small([*looks(4), *commands(6), *looks(4), "Done."], *["Goal."] * 9)
    async with at_work(model) as talk:
        assert (await talk.say("go", max_iterations=30)).ok
    for request in decisions(model):
        calls = [call.call_id for m in request.messages for call in getattr(m, "calls", ())]
        assert calls == [m.call_id for m in request.messages if isinstance(m, ToolMessage)]


@pytest.mark.parametrize(("number", "dropped"), [(1, False), (6, True)])
async def test_the_model_is_told_when_something_was_dropped_and_only_then(
    number: int, dropped: bool
) -> None:
    model = small([*looks(number), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
        notices = await bodies(talk, SystemMessage)
    assert bool(notices) is dropped
    assert ("To make room" in shown(model.requests[-1])) is dropped


@pytest.mark.parametrize(("size", "cut"), [(64_000, False), (64_001, True)])
async def test_of_one_result_so_many_characters_are_shown(size: int, cut: bool) -> None:
    model = ScriptedModel([Call("w.big", size=size), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
    assert ("[TRUNCATED]" in results(model.requests[1])[0].text) is cut


@pytest.mark.parametrize(
    ("kind", "limit"),
    [("text", 4_000), ("result", 400), ("list", 50), ("keys", 80), ("base64", 4_000)],
)
def test_old_blocks_are_clipped_by_kind(kind: str, limit: int) -> None:
    def clipped(size: int) -> bool:
        match kind:
            case "text":
                return "[TRUNCATED]" in truncation.old_text("x" * size, "r")
            case "result":
                return "[TRUNCATED]" in truncation.old_result("x" * size, "r")
            case "list":
                return "more items" in truncation.old_result(str([1] * size), "r")
            case "keys":
                keys = ",".join(f'"{n}":1' for n in range(size))
                return "more keys" in truncation.old_result(f"{{{keys}}}", "r")
            case _:
                return "[base64" in remove_base64(("aB3" * size)[:size], "r")

    assert [clipped(limit), clipped(limit + 1)] == [False, True]


async def test_results_give_way_from_the_oldest_on() -> None:
    model = small([*looks(6), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
    cleared = ["[CLEARED]" in result.text for result in results(model.requests[-1])]
    assert cleared == sorted(cleared, reverse=True)
    assert (cleared[0], cleared[-1]) == (True, False)


async def test_one_reader_gives_back_whatever_has_a_name() -> None:
    plan = Call("react.plan", mode="new", steps=["look"])
    async with at_work([plan, Call("w.look", text="tea"), "Tea."]) as talk:
        await talk.say("go")
        reading = await talk.read(
            [
                "ar:turn_1.user.prompt",
                "ar:plan.latest:plan:turn_1:c1",
                "tc:turn_1.c2.call",
                "tc:turn_1.c2.result#C1-C4",
                "ar:turn_1.assistant.completion",
            ]
        )
    assert [item.status for item in reading] == ["ok"] * 5
    assert [item.text for item in reading][3:] == ["seen", "Tea."]


async def test_each_request_begins_with_the_one_before_and_marks_where() -> None:
    model = ScriptedModel(["Hello.", *[Call("w.look", text=f"{n}") for n in range(8)], "Done."])
    async with at_work(model) as talk:
        await talk.say("hello")
        await talk.say("go")
        names = [[p.name for p in start.points] for start in await bodies(talk, RoundStart)]
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert (after.system, after.tools) == (before.system, before.tools)
    assert names[-1] == ["prev_turn", "pre_tail", "tail"]


async def test_the_board_is_new_in_each_round_and_never_kept() -> None:
    model = ScriptedModel([Call("react.plan", mode="new", steps=["look"]), "Later."])
    async with at_work(model) as talk:
        await talk.say("go")
    first, second = model.requests
    assert ("iteration 1 of 15" in first.tail, "iteration 2 of 15" in second.tail) == (True, True)
    assert ["[OPEN PLANS]" in item.tail for item in (first, second)] == [False, True]
    assert not any("ANNOUNCE" in str(message) for message in second.messages)


async def test_a_listener_hears_when_the_context_is_made_smaller() -> None:
    async with at_work(small([*looks(6), "Done."])) as talk:
        events = await heard(talk, "go")
    smaller = [delta for delta in events if isinstance(delta, Delta) and delta.type == "compaction"]
    opened = [
        block.body
        for block in events
        if isinstance(block, Block)
        and isinstance(block.body, RoundStart)
        and "compaction" in block.body.opened_by
    ]
    assert len(smaller) == len(opened) > 0


async def test_a_question_stands_once_in_its_request() -> None:
    model = ScriptedModel(["One.", "Two."])
    async with at_work(model) as talk:
        await talk.say("first")
        await talk.say("second")
    assert shown(model.requests[1]).count("second") == 1
    assert roles(model.requests[1].messages) == ["user", "assistant", "user"]


async def test_one_address_is_one_source_and_ranges_cite_several() -> None:
    urls = ["https://a.org", "https://A.org/", "https://b.org"]
    script: list[Entry] = [Say("", *[Call("w.find", url=url) for url in urls]), "So [[S:1-2]]."]
    async with at_work(script) as talk:
        result = await talk.say("go")
        pool = Timeline(await talk.blocks()).pool
    assert [source.url for source in pool.sources.values()] == ["https://a.org", "https://b.org"]
    assert len(result.sources) == 2


async def test_old_results_are_cut_to_400_characters_once_the_cache_is_cold() -> None:
    limits: Limits = {"keep_recent_intact_turns": 1, "cache_ttl_seconds": 60}
    clock, model = FakeClock(), ScriptedModel([*looks(1), "One.", "Two.", "Three."])
    async with at_work(model, clock=clock) as talk:
        await talk.say("first", **limits)
        await talk.say("second", **limits)
        clock.advance(90)
        await talk.say("third", **limits)
    assert ["x" * 401 in shown(request) for request in model.requests] == [False, True, True, False]
    assert ["x" * 400 in shown(request) for request in model.requests] == [False, True, True, True]


def test_names_are_found_beside_a_word_of_any_length() -> None:
    for letter in ("y", "A", "a-", "_", "9."):
        assert terms(f"{letter * 100_000} src/heron.py") == {"src/heron.py"}
