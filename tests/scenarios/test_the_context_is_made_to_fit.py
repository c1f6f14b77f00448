"""Prompts in small windows: what is shortened, named, summed up, hidden and pruned, and how it comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loopline import timeline as tl
from loopline.conversations import Conversation
from loopline.errors import ModelOverflow, StoreError
from loopline.events import Delta
from loopline.models import AssistantMessage, Prompt, ToolCall, ToolMessage, UserMessage
from loopline.models.safe_text import remove_base64
from loopline.prompt import (
    CachePolicy,
    CutPoint,
    Native,
    SummaryRange,
    SummaryReply,
    View,
    cache_points,
    choose_cut_point,
    past_requests,
    summarize,
    truncation,
)
from loopline.prompt.range_summary import LedgerEntry, find_carried_lines
from loopline.prompt.rendering import NO_INPUTS
from loopline.prompt.truncation import old_text
from loopline.react import Limits
from loopline.testing import Call, Fail, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import WINDOW, Entry
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.scenario_bundle import bundle, words
from tests.support.scripted_conversation import talking
from tests.support.small_windows import TOTAL, asked_for_summaries, small
from tests.support.workbench import (
    at_work,
    bodies,
    bodies_of,
    decisions,
    run_turn,
    shown,
    workbench,
)

REF = "tc:turn_1.c1.result"


async def test_a_result_larger_than_the_whole_budget_is_shown_as_far_as_it_goes() -> None:
    model = small([Call("life.look", size=60_000), "Done."])
    async with at_work(model, bundle) as talk:
        assert (await talk.say("go")).ok
        message = model.requests[1].messages[-2]
        assert isinstance(message, ToolMessage)
        kept, _, rest = message.text.removeprefix(f"[{REF}]\n").partition("\n[TRUNCATED] ")
        (reading,) = await talk.read(f"{REF}#C{len(kept) + 1}-C60000")
        starts = await bodies(talk, tl.RoundStart)
    assert kept + reading.text == words(60_000)
    assert len(kept) == 8_000
    assert rest.endswith(f"the rest is {REF}#C8001-C60000")
    assert [start.opened_by for start in starts] == ["start", "compaction"]
    assert starts[1].tokens <= TOTAL


async def test_a_turn_of_25_rounds_goes_on_although_it_is_larger_than_the_budget() -> None:
    calls = [Call("life.alone", size=3_000) for _ in range(25)]
    model = small([*calls, "Done."])
    result, blocks = await run_turn(model, bundle, text="count to 25", max_iterations=40)
    starts = bodies_of(blocks, tl.RoundStart)
    summaries = bodies_of(blocks, tl.RangeSummary)
    assert (result.answer, result.rounds) == ("Done.", 26)
    assert all(start.tokens <= TOTAL for start in starts)
    assert all("count to 25" in shown(request) for request in decisions(model))
    assert {summary.split for summary in summaries} == {True}
    assert (summaries[-1].first_turn, summaries[-1].last_turn) == (1, 1)


async def test_a_prompt_larger_than_the_budget_is_shown_as_far_as_it_goes() -> None:
    model = small(["Done."])
    async with at_work(model, bundle) as talk:
        assert (await talk.say(words(60_000))).ok
        message = model.requests[0].messages[-1]
        assert isinstance(message, UserMessage)
        ref = "ar:turn_1.user.prompt"
        kept, _, rest = message.text.removeprefix(f"[{ref}]\n").partition("\n[TRUNCATED] ")
        (reading,) = await talk.read(f"{ref}#C{len(kept) + 1}-C60000")
    assert kept + reading.text == words(60_000)
    assert 4_000 < len(kept) < 12_000
    assert rest.endswith(f"the rest is {ref}#C{len(kept) + 1}-C60000")


async def test_a_plan_that_began_between_call_and_result_stays_on_the_tail() -> None:
    plan = Call("react.plan", mode="new", steps=["weigh heron.py", "answer"])
    model = small(
        [
            Say("", Call("life.alone", size=4_000), plan, Call("life.alone", size=4_000)),
            Say("… [1] weighing", Call("life.alone", size=8_000)),
            Call("life.alone", size=8_000),
            "Done.",
        ]
    )
    _, blocks = await run_turn(model, bundle)
    summaries = bodies_of(blocks, tl.RangeSummary)
    starts = [b.seq for b in blocks if isinstance(b.body, tl.RoundStart)]
    assert summaries
    assert {summary.covers + 1 for summary in summaries} <= set(starts)
    for request in decisions(model)[1:]:
        assert "[OPEN PLANS]" in request.tail
        assert "[1] weigh heron.py" in request.tail
        call_ids = [
            call.call_id
            for message in request.messages
            if isinstance(message, AssistantMessage)
            for call in message.calls
        ]
        assert call_ids == [
            message.call_id for message in request.messages if isinstance(message, ToolMessage)
        ]


async def six_turns(talk: Conversation) -> None:
    """Turns whose answers alone are more than there is room for."""
    for number in range(1, 7):
        await talk.say(f"question {number} about depot_{number}")


LONG = [Say(words(4_000, number)) for number in range(6)]


async def test_a_second_summary_stands_for_what_the_first_stood_for() -> None:
    model = small(LONG, ["Goal: the first.", "Goal: the second."])
    async with at_work(model, bundle) as talk:
        await six_turns(talk)
        one, two, *_ = await bodies(talk, tl.RangeSummary)
        (reading,) = await talk.read("su:turn_4.conv.range.summary.1")
        assert (reading.status, "Goal: the first." in reading.text) == ("ok", True)
        (replaced,) = await talk.read("ar:turn_1.assistant.completion")
    last = shown(model.requests[-1])
    assert (replaced.text in last, "Goal: the second." in last) == (False, True)
    assert replaced.text == words(4_000, 0)
    assert (one.text, two.text) == ("Goal: the first.", "Goal: the second.")
    assert one.first_turn == two.first_turn == 1
    assert two.last_turn > one.last_turn
    assert {line.ref for line in one.ledger} <= {line.ref for line in two.ledger}
    asked_for_summary = asked_for_summaries(model)[1]
    assert "Goal: the first." in str(asked_for_summary.messages[0])


@pytest.mark.parametrize(
    ("written", "text", "why"),
    [
        (["Goal: depot_1."], "Goal: depot_1.", ""),
        ([], "", "the script has no entry for the purpose 'summary': pass aux={'summary': […]}"),
        ([Say(" ")], "", "the model wrote no summary"),
        ([Say("much " * 8_000)], "", "the model's summary was longer than 1600 tokens"),
    ],
    ids=["used", "failing", "empty", "too long"],
)
async def test_a_summary_is_the_models_if_it_serves(
    written: list[Entry], text: str, why: str
) -> None:
    model = small(LONG[:5], written)
    async with at_work(model, bundle) as talk:
        for number in range(1, 6):
            assert (await talk.say(f"question {number} about depot_{number}")).ok
        summary = (await bodies(talk, tl.RangeSummary))[0]
    assert (summary.text, summary.why) == (text, why)
    assert "ar:turn_1.user.prompt" in {line.ref for line in summary.ledger}


async def test_what_later_rounds_refer_to_is_carried_though_a_summary_lacks_it() -> None:
    lead = [Say(f"The key hangs at Wharf_31. {words(3_600)}"), *LONG[1:3]]
    model = small([*lead, Say(f"So Wharf_31 it is. {words(1_500)}"), "So."], ["Goal: go on."] * 3)
    async with at_work(model, bundle) as talk:
        for _ in range(5):
            await talk.say("go on")
        summaries = await bodies(talk, tl.RangeSummary)
    carried = [line.words for summary in summaries for line in summary.carried]
    ledger = [line.words for line in summaries[0].ledger]
    assert any("Wharf_31" in item for item in [*carried, *ledger])


@pytest.mark.parametrize(
    ("named", "hint", "focus"),
    [
        (None, "general", "what was asked"),
        ("react_iteration", "react_iteration", "in the middle of a turn"),
        ("planner_input", "planner_input", "to make a plan"),
        ("step_dependency", "step_dependency", "Later steps build on"),
        ("unheard of", "general", "what was asked"),
    ],
)
async def test_a_hint_picks_what_a_summary_is_asked_to_keep(
    named: str | None, hint: str, focus: str
) -> None:
    limits: Limits = {} if named is None else {"summary_hint": named}
    model = small(LONG[:5], ["Goal: go on."] * 3)
    async with at_work(model, bundle) as talk:
        for _ in range(5):
            await talk.say("go on", **limits)
        summary = (await bodies(talk, tl.RangeSummary))[0]
    assert summary.hint == hint
    assert focus in asked_for_summaries(model)[0].tail


@pytest.mark.parametrize(
    ("limits", "hint", "focus"),
    [
        (Limits(), "react_iteration", "in the middle of a turn"),
        (Limits(summary_hint="general"), "general", "what was asked"),
        (Limits(summary_hint="unheard of"), "general", "what was asked"),
    ],
)
async def test_within_a_turn_a_summary_keeps_what_the_rounds_tried_unless_a_hint_says_else(
    limits: Limits, hint: str, focus: str
) -> None:
    model = small([*[Call("life.alone", size=6_800) for _ in range(4)], "Done."], ["Goal."] * 3)
    _, blocks = await run_turn(model, bundle, **limits)
    (summary, *_) = bodies_of(blocks, tl.RangeSummary)
    assert (summary.hint, summary.split) == (hint, True)
    assert focus in asked_for_summaries(model)[0].tail


@pytest.mark.parametrize(
    ("pause", "ttl", "turns", "pruned"),
    [
        (290.0, None, 3, True),
        (289.999, None, 3, False),
        (100_000.0, 0, 3, False),
        (50.0, 60, 3, True),
        (290.0, 3_600, 3, False),
        (290.0, None, 2, False),
        (-500.0, None, 3, False),
    ],
    ids=["at ttl", "fresh", "no ttl", "short ttl", "longer ttl", "fewer turns than keep", "back"],
)
async def test_what_old_turns_looked_up_is_cut_to_400_characters_once_the_cache_is_cold(
    pause: float, ttl: int | None, turns: int, pruned: bool
) -> None:
    limits: Limits = {} if ttl is None else {"cache_ttl_seconds": ttl}
    clock = FakeClock()
    texts: list[Entry] = ["More."] * (turns - 1)
    model = ScriptedModel([Call("life.look", size=2_000, seed=1), "One.", *texts])
    async with at_work(model, bundle, clock=clock) as talk:
        for number in range(turns):
            if number == turns - 1:
                clock.advance(pause)
                if pause < 0:
                    clock.set(clock.now())
            await talk.say("go on", **limits)
        codes = [notice.code for notice in await bodies(talk, tl.SystemMessage)]
        starts = await bodies(talk, tl.RoundStart)
    assert codes == (["prune"] if pruned else [])
    assert starts[-1].opened_by == ("prune" if pruned else "")
    assert (f"the rest is {REF}#C401" in shown(model.requests[-1])) == pruned


async def test_the_time_to_live_that_the_last_request_was_written_with_counts() -> None:
    clock = FakeClock()
    model = ScriptedModel(
        [Call("life.look", size=2_000), "One.", "Two.", "Three.", "Four.", "Five."]
    )
    async with at_work(model, bundle, clock=clock) as talk:
        await talk.say("go", cache_ttl_seconds=3_600)
        await talk.say("go", cache_ttl_seconds=3_600)
        clock.advance(400)
        await talk.say("go", cache_ttl_seconds=3_600)
        clock.advance(400)
        await talk.say("go", cache_ttl_seconds=300)
        clock.advance(400)
        await talk.say("go", cache_ttl_seconds=3_600)
        starts = await bodies(talk, tl.RoundStart)
    assert [start.opened_by for start in starts] == ["start", "", "", "", "", "prune"]


def hide(path: str) -> ToolCall:
    return Call("react.hide", path=path, replacement="it was about herons")


async def test_what_is_hidden_gives_way_to_its_line_and_is_read_back() -> None:
    model = ScriptedModel(
        [
            Call("life.look", size=1_000, seed=5),
            hide(REF),
            Call("react.read", paths=[REF]),
            "Done.",
        ]
    )
    _, blocks = await run_turn(model, bundle)
    starts = bodies_of(blocks, tl.RoundStart)
    text = words(1_000, 5)
    assert [text in shown(request) for request in model.requests] == [False, True, False, True]
    assert f'it was about herons\n[HIDDEN] react.read(["{REF}"])' in shown(model.requests[2])
    assert [start.opened_by for start in starts] == ["start", "", "hide", ""]


@pytest.mark.parametrize(
    ("path", "editable", "message"),
    [
        ("ar:turn_1.user.prompt", 2_000, "never hidden"),
        (REF, 2_000, "hide_before_cache"),
        ("tc:turn_1.c4.result", 100, "hide_too_old"),
        ("tc:turn_1.c9.result", 2_000, "does not exist in this conversation"),
        ("ar:turn_1.react.notes.1", 2_000, "only calls, results, answers"),
        ("nonsense", 2_000, "refs look like"),
    ],
)
async def test_what_may_not_be_hidden_is_refused(path: str, editable: int, message: str) -> None:
    looks = [Say("note", Call("life.look", size=600, seed=number)) for number in range(6)]
    model = ScriptedModel([*looks, hide(path), "Done."])
    _, blocks = await run_turn(model, bundle, editable_tail_size_in_tokens=editable)
    result = bodies_of(blocks, tl.ToolResult)[-1]
    starts = bodies_of(blocks, tl.RoundStart)
    assert result.status == "error"
    assert message in result.text
    assert {start.opened_by for start in starts} == {"start", ""}


async def test_after_a_hide_the_first_cache_point_moves_up_for_the_turn() -> None:
    looks: list[Entry] = [Call("life.look", size=600, seed=number) for number in range(6)]
    model = ScriptedModel(["Hello.", *looks, hide("tc:turn_2.c6.result"), "Done."])
    async with at_work(model, bundle) as talk:
        await talk.say("hello")
        await talk.say("go")
        starts = await bodies(talk, tl.RoundStart)
    before, after = starts[-2], starts[-1]
    points = {point.name: point.messages for point in before.points}
    assert points["prev_turn"] < points["pre_tail"]
    assert after.opened_by == "hide"
    assert min(point.messages for point in after.points) == points["pre_tail"]


async def test_feedback_stands_in_its_turn_once_the_cache_is_cold() -> None:
    clock = FakeClock()
    model = ScriptedModel(["One.", "Two.", "Three.", "Four."])
    async with at_work(model, bundle, clock=clock) as talk:
        await talk.say("first")
        await talk.feedback("turn_1", "not_ok", text="too short")
        await talk.say("second")
        clock.advance(300)
        await talk.say("third")
        await talk.say("fourth")
        notices = await bodies(talk, tl.SystemMessage)
    line = "turn_1 not_ok (user): too short"
    assert [line in request.tail for request in model.requests] == [False, True, False, False]
    places = [
        [number for number, item in enumerate(request.messages) if line in str(item)]
        for request in model.requests
    ]
    assert places == [[], [], [2], [2]]
    assert notices == []


async def test_feedback_about_a_turn_that_is_summed_up_follows_the_summary() -> None:
    clock = FakeClock()
    model = small([*LONG[:5], "Six.", "Seven."], ["Goal: go on."] * 4)
    async with at_work(model, bundle, clock=clock) as talk:
        for _ in range(5):
            await talk.say("go on")
        await talk.feedback("turn_1", "ok", text="well done")
        clock.advance(300)
        await talk.say("go on")
    line = "turn_1 ok (user): well done"
    assert line not in model.requests[-1].tail
    assert line in "\n".join(map(str, model.requests[-1].messages[:3]))


TEXTS = [
    (4_000, False),
    (4_001, True),
]


@pytest.mark.parametrize(("length", "is_cut"), TEXTS)
def test_an_old_text_keeps_4_000_characters(length: int, is_cut: bool) -> None:
    text = "y" * length
    kept = truncation.old_text(text, REF)
    assert kept.startswith("y" * 4_000)
    assert kept.endswith(f"\nthe rest is {REF}#C4001-C{length}") == is_cut
    assert (kept == text) == (not is_cut)


@pytest.mark.parametrize(("length", "is_cut"), [(400, False), (401, True)])
def test_an_old_result_keeps_400_characters(length: int, is_cut: bool) -> None:
    text = "y" * length
    kept = truncation.old_result(text, REF)
    assert (kept == text) == (not is_cut)
    assert ("\n[TRUNCATED] 1 of 401 characters" in kept) == is_cut


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("[" + ",".join(["1"] * 50) + "]", ""),
        ("[" + ",".join(["1"] * 51) + "]", '1,"… 1 more items"]'),
        ("{" + ",".join(f'"k{n}":1' for n in range(80)) + "}", ""),
        ("{" + ",".join(f'"k{n}":1' for n in range(81)) + "}", '"k79":1,"…":"1 more keys"}'),
        ('{"a":"' + "y" * 400 + '"}', ""),
        ('{"a":"' + "y" * 401 + '"}', 'y… 1 more characters"}'),
    ],
    ids=["50 items", "51 items", "80 keys", "81 keys", "400 characters", "401 characters"],
)
def test_an_old_result_that_is_json_is_cut_within(text: str, kept: str) -> None:
    shortened = truncation.old_result(text, REF)
    if kept:
        assert shortened.endswith(f"{kept}\n[TRUNCATED] whole: {REF}")
    else:
        assert shortened == text


def test_json_of_many_small_parts_is_cut_with_the_ref_of_the_very_rest() -> None:
    text = "[" + ",".join(['"' + "y" * 300 + '"'] * 40) + "]"
    kept, _, rest = truncation.old_result(text, REF).partition("\n[TRUNCATED] ")
    assert kept == text[:4_000]
    assert rest.endswith(f"the rest is {REF}#C4001-C{len(text)}")


def test_json_that_is_nested_too_deep_is_cut_like_any_text() -> None:
    text = "[" * 50_000 + "]" * 50_000
    assert truncation.old_result(text, REF).startswith("[" * 400 + "\n[TRUNCATED]")


@pytest.mark.parametrize(("length", "is_replaced"), [(4_000, False), (4_001, True)])
def test_base64_of_more_than_4_000_characters_gives_way(length: int, is_replaced: bool) -> None:
    data = ("aB3" * 2_000)[:length]
    text = f"see {data} there"
    shortened = remove_base64(text, REF)
    assert shortened == (f"see [base64, 4001 characters: {REF}] there" if is_replaced else text)


@pytest.mark.parametrize("data", ["A" * 4_001, "QUJD" * 1_001 + "=="])
def test_a_data_url_gives_way_whatever_its_bytes_are(data: str) -> None:
    shortened = remove_base64(f"see data:image/bmp;base64,{data} there", REF)
    assert (shortened.startswith("see [base64, "), shortened.endswith(f"{REF}] there")) == (
        True,
        True,
    )
    assert remove_base64(f"see {data} there", REF) == f"see {data} there"


@pytest.mark.parametrize(("length", "is_cut"), [(1_000, False), (1_001, True)])
def test_an_old_argument_keeps_1_000_characters(length: int, is_cut: bool) -> None:
    arguments = truncation.old_arguments({"a": "y" * length, "b": f"ref:{'z' * 2_000}"}, REF)
    assert arguments["b"] == f"ref:{'z' * 2_000}"
    assert arguments["a"] == "y" * 1_000 + ("… 1 more characters" if is_cut else "")
    assert arguments.get("truncated") == (REF if is_cut else None)


async def test_a_summary_that_a_kill_left_unused_is_used_and_not_made_twice() -> None:
    log, clock = tl.MemoryLog(), FakeClock()
    crashing = CrashingLog(log)
    model = small(LONG, ["Goal: once.", "Goal: twice."])
    async with at_work(model, bundle, clock=clock, store=crashing) as talk:
        for _ in range(3):
            await talk.say("go on")
        assert not asked_for_summaries(model)
        crashing.left = 3  # the prompt, the header, and the summary
        with pytest.raises(StoreError):
            await talk.say("go on")
        assert len(asked_for_summaries(model)) == 1
    async with at_work(model, bundle, clock=clock, store=log) as talk:
        await talk.resume()
        summaries = [b for b in await talk.blocks() if isinstance(b.body, tl.RangeSummary)]
        last = (await bodies(talk, tl.RoundStart))[-1]
    assert len(asked_for_summaries(model)) == len(summaries) == 1
    assert last.window is not None
    assert last.window.summary == summaries[0].seq
    assert "Goal: once." in shown(model.requests[-1])


class Beats:
    """Counts how often other work of the event loop gets its turn."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Beats]:
        task = asyncio.create_task(self.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])


def long_talk(looks: int) -> ScriptedModel:
    script = [Call("life.look", size=30_000, seed=number) for number in range(looks)]
    return ScriptedModel(
        [*script, "Done.", "Again."], window=200_000, output_limit=8_000, strict=False
    )


async def test_other_work_goes_on_while_a_context_is_compacted() -> None:
    beats, marks = Beats(), list[int]()
    async with talking(long_talk(30), bundle=bundle) as talk, beats.running():
        async for event in talk.stream("go", max_iterations=40):
            match event:
                case Delta(type="compaction") | tl.Block(body=tl.SystemMessage(code="compaction")):
                    marks.append(beats.count)
                case _:
                    pass
    assert marks[1] - marks[0] > 100


@pytest.mark.parametrize("steps", [1, 40, 200])
async def test_a_turn_that_is_stopped_while_its_context_is_compacted_is_carried_on(
    steps: int,
) -> None:
    model = long_talk(30)
    async with talking(model, bundle=bundle) as talk:
        stopped = False
        async for event in talk.stream("go", max_iterations=40):
            if isinstance(event, Delta) and event.type == "compaction" and not stopped:
                stopped = True
                for _ in range(steps):
                    await asyncio.sleep(0)
                await talk.stop()
        again = await talk.say("on", max_iterations=40)
        blocks = list(await talk.blocks())
    assert next(b.body.reason for b in blocks if isinstance(b.body, tl.Exit)) == "stopped"
    assert again.ok
    rendered = list(past_requests(tl.Timeline(blocks)))
    assert [item.inexact for item in rendered if item.inexact] == []
    assert model.requests[-1].messages == rendered[-1].messages


PROMPT_REF = "ar:turn_1.user.prompt"


async def lived(script: Sequence[Entry], turns: int = 1) -> list[tl.Block]:
    async with talking(ScriptedModel([*script]), bundle=bundle) as talk:
        for _ in range(turns):
            await talk.say("go")
        return list(await talk.blocks())


def looks(count: int, size: int = 100) -> list[Entry]:
    return [Call("life.look", size=size, seed=number) for number in range(count)]


async def test_a_summary_keeps_the_notes_and_the_sources_of_the_one_before() -> None:
    note = tl.LedgerLine(ref="ar:turn_1.react.notes.1", words="[D] keep herons dry")
    source = tl.LedgerLine(ref="so:sources_pool[1]", words="[[S:1]] Herons")
    before = tl.RangeSummary(covers=1, first_turn=1, last_turn=1, notes=(note,), sources=(source,))
    covered = SummaryRange(
        blocks=await lived(["So."]),
        cut=CutPoint(seq=9, messages=2, turn=2, opens_turn=True),
        previous=before,
        previous_ref="su:turn_1.conv.range.summary",
        later=[],
        room=3_000,
    )
    summary = summarize(covered, SummaryReply(), "general", tl.Timeline())
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
    *_, start = [block.body for block in blocks if isinstance(block.body, tl.RoundStart)]
    assert [point.name for point in start.points] == (["pre_tail"] if moves else []) + ["tail"]


async def test_in_a_new_epoch_no_point_was_written_before() -> None:
    blocks = await lived([Say("", *[Call("life.look", size=10, seed=n) for n in range(10)]), "So."])
    results = [block.seq for block in blocks if isinstance(block.body, tl.ToolResult)]
    now = View(Native(), blocks[: results[-1]]).rendering
    for anew, names in ((False, ["pre_tail", "tail"]), (True, ["tail"])):
        points = cache_points(now, 1, NO_INPUTS, CachePolicy(opens_epoch=anew))
        assert [point.name for point in points] == names


async def test_the_point_before_the_tail_comes_with_the_second_round() -> None:
    blocks = await lived([*looks(2), "So."])
    results = [block.seq for block in blocks if isinstance(block.body, tl.ToolResult)]
    for seq, names in ((results[0], ["tail"]), (results[1], ["pre_tail", "tail"])):
        now = View(Native(), blocks[:seq]).rendering
        points = cache_points(now, 1, NO_INPUTS, CachePolicy(opens_epoch=True, min_rounds=2))
        assert [point.name for point in points] == names


def test_an_old_text_that_held_base64_names_the_whole_and_no_part_of_it() -> None:
    picture = "aB3" * 2_000
    assert old_text(f"{picture} {'so ' * 2_000}", PROMPT_REF).endswith(
        f"\nthe whole is {PROMPT_REF}"
    )
    assert old_text("so " * 2_000, PROMPT_REF).endswith(f"\nthe rest is {PROMPT_REF}#C4001-C6000")


async def test_what_stands_directly_behind_the_kept_part_can_be_hidden_and_nothing_before_it() -> (
    None
):
    for path, status in (("tc:turn_1.c2.call", "ok"), ("tc:turn_1.c1.result", "error")):
        blocks = await lived([*looks(2), Call("react.hide", path=path, replacement="seen"), "So."])
        *_, result = [block.body for block in blocks if isinstance(block.body, tl.ToolResult)]
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
    assert isinstance(result.body, tl.ToolResult)
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
    covered = [LedgerEntry(1, PROMPT_REF, "the gate code is 4711 and the depot is 8800")]
    lines = find_carried_lines("The gate code is 4711.", covered, ["use 4711 at 8800"])
    assert [line.words for line in lines] == ["the gate code is 4711 and the depot is 8800"]
    assert find_carried_lines("4711 and 8800", covered, ["use 4711 at 8800"]) == []


LOOKS: list[Entry] = [Call("w.command", text=f"{n} " + "yes " * 800) for n in range(6)]


def size(request: Prompt) -> int:
    return len(shown(request))


async def test_it_is_asked_once_more_in_a_smaller_form() -> None:
    model = ScriptedModel(
        [*LOOKS, Fail(ModelOverflow("too long", window=4_000)), "Done."], output_limit=1_000
    )
    result, blocks = await run_turn(model)
    (learned,) = bodies_of(blocks, tl.ModelOverflowed)
    starts = bodies_of(blocks, tl.RoundStart)
    refused, asked = model.requests[-2:]
    assert (result.answer, result.rounds) == ("Done.", 7)
    assert size(asked) < size(refused)
    assert (learned.window, learned.model, learned.text) == (4_000, "scripted", "too long")
    assert starts[-1].opened_by == "compaction,overflow"
    assert starts[-1].tokens <= 3_000 < learned.tokens


async def test_a_turn_that_died_when_its_request_was_too_long_goes_on_with_a_smaller_one() -> None:
    log = CrashingLog(tl.MemoryLog(FakeClock()), 27)  # up to what the model said
    overflow = Fail(ModelOverflow("too long", window=4_000))
    refusing = ScriptedModel([*LOOKS, overflow], output_limit=1_000)
    with pytest.raises(Crashed):
        await run_turn(refusing, store=log)
    log.left = None
    async with at_work(ScriptedModel(["Done."], output_limit=1_000), store=log) as talk:
        before = [block.type for block in await talk.blocks()]
        result = await talk.resume()
        starts = await bodies(talk, tl.RoundStart)
    assert before[-1] == "react.overflow"
    assert (result.answer, result.rounds) == ("Done.", 7)
    assert starts[-1].opened_by == "compaction,overflow"
    assert starts[-1].tokens <= 3_000 < starts[-2].tokens


async def test_without_a_number_it_is_taken_to_be_half() -> None:
    model = ScriptedModel([*LOOKS, Fail(ModelOverflow("too long")), "Done."], output_limit=1_000)
    async with at_work(model) as talk:
        assert (await talk.say("go")).answer == "Done."
        (learned,) = await bodies(talk, tl.ModelOverflowed)
    assert learned.window == learned.tokens // 2 + 1_000


async def test_a_number_that_the_same_request_would_fit_is_not_believed() -> None:
    overflow = Fail(ModelOverflow("too long", window=90_000))
    model = ScriptedModel([*LOOKS, overflow, "Done."], output_limit=1_000)
    async with at_work(model) as talk:
        assert (await talk.say("go")).answer == "Done."
        (learned,) = await bodies(talk, tl.ModelOverflowed)
    assert learned.named == 0
    assert size(model.requests[-1]) < size(model.requests[-2])


async def test_a_window_no_longer_than_a_reply_was_thought_to_be_has_room_for_both() -> None:
    overflow = Fail(ModelOverflow("too long", window=6_000))
    model = ScriptedModel([*LOOKS, overflow, "Done."], output_limit=8_000)
    async with at_work(model) as talk:
        assert (await talk.say("go")).answer == "Done."
        (learned,) = await bodies(talk, tl.ModelOverflowed)
        starts = await bodies(talk, tl.RoundStart)
    output = model.requests[-1].options.output_limit or 0
    assert output >= learned.window // 4
    assert starts[-1].tokens + output <= learned.window


async def test_when_it_is_too_long_again_the_turn_says_so() -> None:
    overflow = Fail(ModelOverflow("too long", window=4_000))
    model = ScriptedModel([*LOOKS, overflow, overflow], output_limit=1_000)
    result, _ = await run_turn(model)
    assert (result.exit_reason, "too long" in result.error) == ("error", True)


async def test_content_is_dropped_again_only_when_the_model_refuses_again(tmp_path: Path) -> None:
    store, limit = f"sqlite:///{tmp_path}/c.db", 4_000
    script: list[Entry] = [*LOOKS, Fail(ModelOverflow("too long", window=limit)), "Done."]
    await run_turn(ScriptedModel(script, output_limit=1_000), store=store)
    refusing: list[Entry] = [*LOOKS[:1], Fail(ModelOverflow("too long", window=limit)), *LOOKS[1:]]
    later = ScriptedModel([*refusing, "More."], output_limit=1_000)
    async with at_work(later, store=store) as talk:
        assert (await talk.say("and")).answer == "More."
        starts = await bodies(talk, tl.RoundStart)
        learned = await bodies(talk, tl.ModelOverflowed)
    assert len(learned) == 2
    assert max(item.tokens for item in starts[-6:]) <= 3_000


async def test_a_larger_request_that_succeeds_raises_the_window_again(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/c.db"
    script: list[Entry] = [Fail(ModelOverflow("too long", window=4_000)), "Done."]
    await run_turn(ScriptedModel(script, output_limit=3_500), store=store)
    large = ScriptedModel([*LOOKS, "More."], output_limit=3_500)
    _, blocks = await run_turn(large, text="and", store=store)
    before = tl.Timeline(blocks)
    later = ScriptedModel(["So."], output_limit=3_500)
    await run_turn(later, text="then", store=store)
    assert large.requests[0].options.output_limit != 3_500
    assert before.overflows.by_model == {}
    assert later.requests[0].options.output_limit == 3_500


async def test_a_lesson_does_not_outlive_a_change_of_the_models_window(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/c.db"
    script: list[Entry] = [Fail(ModelOverflow("too long", window=4_000)), "Done."]
    await run_turn(ScriptedModel(script, output_limit=3_500), store=store)
    limits = list[int | None]()
    for window in (WINDOW, 16_000):
        model = ScriptedModel(["So."], window=window, output_limit=3_500)
        await run_turn(model, text="and", store=store)
        limits.append(model.requests[0].options.output_limit)
    known, changed = limits
    assert known is not None
    assert known < 3_500
    assert changed == 3_500


async def test_what_cannot_be_made_smaller_is_asked_of_the_next_model_in_its_own_window() -> None:
    overflow = Fail(ModelOverflow("too long", window=2_000))
    first = ScriptedModel([overflow, overflow], name="one", strict=False, output_limit=1_000)
    async with at_work((first, ScriptedModel(["Tea."], name="two"))) as talk:
        assert (await talk.say("go")).answer == "Tea."
        starts = await bodies(talk, tl.RoundStart)
    assert (starts[0].model, starts[-1].model) == ("one", "two")


async def test_each_model_of_a_chain_is_asked_once_more_in_a_smaller_form() -> None:
    def overflow() -> Fail:
        return Fail(ModelOverflow("too long", window=20_000))

    script = [*LOOKS, overflow(), overflow()]
    first = ScriptedModel(script, name="one", output_limit=1_000)
    second = ScriptedModel([overflow(), "Done."], name="two", output_limit=1_000)
    async with at_work((first, second)) as talk:
        assert (await talk.say("go")).answer == "Done."
        learned = [
            model_overflowed.model for model_overflowed in await bodies(talk, tl.ModelOverflowed)
        ]
    assert learned == ["one", "two"]


async def test_a_trace_that_overflows_is_shown_in_shorter_pieces() -> None:
    big: list[Entry] = [Call("w.big", size=2_000) for _ in range(6)]
    model = ScriptedModel(
        [*big, "Brief.", Fail(ModelOverflow("too long")), "Written."], output_limit=1_000
    )
    async with at_work(model, workbench(answer_mode="synthesize")) as talk:
        assert (await talk.say("go")).answer == "Written."
        epochs = [start.epoch for start in await bodies(talk, tl.RoundStart)]
    assert size(model.requests[-1]) < size(model.requests[-2])
    assert len(set(epochs)) == 1
