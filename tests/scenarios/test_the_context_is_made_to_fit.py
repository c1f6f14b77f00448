"""Prompts in small windows: what is shortened, named, summed up, hidden and pruned, and how it comes back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from loopline import Harness
from loopline.conversations import Conversation
from loopline.errors import StoreError
from loopline.models import AssistantMessage, Prompt, ToolCall, ToolMessage, UserMessage
from loopline.models.safe_text import remove_base64
from loopline.prompt import truncation
from loopline.react import Limits
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import (
    MemoryLog,
    RangeSummary,
    RoundStart,
    SystemMessage,
    TimelineLog,
    ToolResult,
)
from tests.support.crashing_log import CrashingLog
from tests.support.scenario_bundle import bundle, words

T = TypeVar("T")
TOTAL = 5_000
"""Tokens that a request may have, in the window that most stories have."""
REF = "tc:turn_1.c1.result"


@asynccontextmanager
async def talking(
    model: ScriptedModel, clock: FakeClock | None = None, log: TimelineLog | None = None
) -> AsyncGenerator[Conversation, None]:
    """A conversation in a small window."""
    clock = clock or FakeClock()
    store = log or MemoryLog(clock)
    async with Harness.open(bundle, store=store, model=model, clock=clock) as harness:
        yield harness.conversation("c")


def small(script: Sequence[Entry], summaries: Sequence[Entry] = ()) -> ScriptedModel:
    """A model whose requests may have 5,000 tokens."""
    return ScriptedModel(
        script, aux={"summary": summaries}, window=TOTAL + 1_000, output_limit=1_000, strict=False
    )


async def of_kind(talk: Conversation, kind: type[T]) -> list[T]:
    """The bodies of that kind, in order."""
    return [block.body for block in await talk.blocks() if isinstance(block.body, kind)]


def decisions(model: ScriptedModel) -> list[Prompt]:
    return [request for request in model.requests if request.purpose != "summary"]


def asked_for_summaries(model: ScriptedModel) -> list[Prompt]:
    return [request for request in model.requests if request.purpose == "summary"]


def shown(prompt: Prompt) -> str:
    return "\n".join([*(str(message) for message in prompt.messages), prompt.tail])


async def test_a_result_larger_than_the_whole_budget_is_shown_as_far_as_it_goes() -> None:
    model = small([Call("life.look", size=60_000), "Done."])
    async with talking(model) as talk:
        assert (await talk.say("go")).ok
        message = model.requests[1].messages[-2]
        assert isinstance(message, ToolMessage)
        kept, _, rest = message.text.removeprefix(f"[{REF}]\n").partition("\n[TRUNCATED] ")
        (reading,) = await talk.read(f"{REF}#C{len(kept) + 1}-C60000")
        starts = await of_kind(talk, RoundStart)
    assert kept + reading.text == words(60_000)
    assert len(kept) == 8_000
    assert rest.endswith(f"the rest is {REF}#C8001-C60000")
    assert [start.opened_by for start in starts] == ["start", "compaction"]
    assert starts[1].tokens <= TOTAL


async def test_a_turn_of_25_rounds_goes_on_although_it_is_larger_than_the_budget() -> None:
    calls = [Call("life.alone", size=3_000) for _ in range(25)]
    model = small([*calls, "Done."])
    async with talking(model) as talk:
        result = await talk.say("count to 25", max_iterations=40)
        starts = await of_kind(talk, RoundStart)
        summaries = await of_kind(talk, RangeSummary)
    assert (result.answer, result.rounds) == ("Done.", 26)
    assert all(start.tokens <= TOTAL for start in starts)
    assert all("count to 25" in shown(request) for request in decisions(model))
    assert {summary.split for summary in summaries} == {True}
    assert summaries[-1].covered_turn_ids == ["turn_1"]


async def test_a_prompt_larger_than_the_budget_is_shown_as_far_as_it_goes() -> None:
    model = small(["Done."])
    async with talking(model) as talk:
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
    async with talking(model) as talk:
        await talk.say("go")
        summaries = await of_kind(talk, RangeSummary)
        starts = [b.seq for b in await talk.blocks() if isinstance(b.body, RoundStart)]
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
    async with talking(model) as talk:
        await six_turns(talk)
        one, two, *_ = await of_kind(talk, RangeSummary)
        (reading,) = await talk.read("su:turn_4.conv.range.summary.1")
        assert (reading.status, "Goal: the first." in reading.text) == ("ok", True)
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
    async with talking(model) as talk:
        for number in range(1, 6):
            await talk.say(f"question {number} about depot_{number}")
        summary = (await of_kind(talk, RangeSummary))[0]
    assert (summary.text, summary.why) == (text, why)
    assert "ar:turn_1.user.prompt" in {line.ref for line in summary.ledger}


async def test_what_later_rounds_refer_to_is_carried_though_a_summary_lacks_it() -> None:
    lead = [Say(f"The key hangs at Wharf_31. {words(3_600)}"), *LONG[1:3]]
    model = small([*lead, Say(f"So Wharf_31 it is. {words(1_500)}"), "So."], ["Goal: go on."] * 3)
    async with talking(model) as talk:
        for _ in range(5):
            await talk.say("go on")
        summaries = await of_kind(talk, RangeSummary)
    carried = [line.words for summary in summaries for line in summary.carried]
    ledger = [line.words for line in summaries[0].ledger]
    assert any("Wharf_31" in item for item in [*carried, *ledger])


@pytest.mark.parametrize(
    ("named", "hint", "focus"),
    [
        (None, "general", "what was asked"),
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
    async with talking(model) as talk:
        for _ in range(5):
            await talk.say("go on", **limits)
        summary = (await of_kind(talk, RangeSummary))[0]
    assert summary.hint == hint
    assert focus in asked_for_summaries(model)[0].tail


async def test_within_a_turn_a_summary_keeps_what_the_rounds_tried() -> None:
    model = small([*[Call("life.alone", size=6_800) for _ in range(4)], "Done."], ["Goal."] * 3)
    async with talking(model) as talk:
        await talk.say("go")
        (summary, *_) = await of_kind(talk, RangeSummary)
    assert (summary.hint, summary.split) == ("react_iteration", True)
    assert "in the middle of a turn" in asked_for_summaries(model)[0].tail


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
    async with talking(model, clock) as talk:
        for number in range(turns):
            if number == turns - 1:
                clock.advance(pause)
                if pause < 0:
                    clock.set(clock.now())
            await talk.say("go on", **limits)
        codes = [notice.code for notice in await of_kind(talk, SystemMessage)]
        starts = await of_kind(talk, RoundStart)
    assert codes == (["prune"] if pruned else [])
    assert starts[-1].opened_by == ("prune" if pruned else "")
    assert (f"the rest is {REF}#C401" in shown(model.requests[-1])) == pruned


async def test_the_time_to_live_that_the_last_request_was_written_with_counts() -> None:
    clock = FakeClock()
    model = ScriptedModel(
        [Call("life.look", size=2_000), "One.", "Two.", "Three.", "Four.", "Five."]
    )
    async with talking(model, clock) as talk:
        await talk.say("go", cache_ttl_seconds=3_600)
        await talk.say("go", cache_ttl_seconds=3_600)
        clock.advance(400)
        await talk.say("go", cache_ttl_seconds=3_600)
        clock.advance(400)
        await talk.say("go", cache_ttl_seconds=300)
        clock.advance(400)
        await talk.say("go", cache_ttl_seconds=3_600)
        starts = await of_kind(talk, RoundStart)
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
    async with talking(model) as talk:
        await talk.say("go")
        starts = await of_kind(talk, RoundStart)
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
    async with talking(model) as talk:
        await talk.say("go", editable_tail_size_in_tokens=editable)
        result = (await of_kind(talk, ToolResult))[-1]
        starts = await of_kind(talk, RoundStart)
    assert result.status == "error"
    assert message in result.text
    assert {start.opened_by for start in starts} == {"start", ""}


async def test_after_a_hide_the_first_cache_point_moves_up_for_the_turn() -> None:
    looks: list[Entry] = [Call("life.look", size=600, seed=number) for number in range(6)]
    model = ScriptedModel(["Hello.", *looks, hide("tc:turn_2.c6.result"), "Done."])
    async with talking(model) as talk:
        await talk.say("hello")
        await talk.say("go")
        starts = await of_kind(talk, RoundStart)
    before, after = starts[-2], starts[-1]
    points = {point.name: point.messages for point in before.points}
    assert points["prev_turn"] < points["pre_tail"]
    assert after.opened_by == "hide"
    assert min(point.messages for point in after.points) == points["pre_tail"]


async def test_feedback_stands_in_its_turn_once_the_cache_is_cold() -> None:
    clock = FakeClock()
    model = ScriptedModel(["One.", "Two.", "Three.", "Four."])
    async with talking(model, clock) as talk:
        await talk.say("first")
        await talk.feedback("turn_1", "not_ok", text="too short")
        await talk.say("second")
        clock.advance(300)
        await talk.say("third")
        await talk.say("fourth")
        notices = await of_kind(talk, SystemMessage)
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
    async with talking(model, clock) as talk:
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
    log, clock = MemoryLog(), FakeClock()
    crashing = CrashingLog(log)
    model = small(LONG, ["Goal: once.", "Goal: twice."])
    async with talking(model, clock, crashing) as talk:
        for _ in range(3):
            await talk.say("go on")
        assert not asked_for_summaries(model)
        crashing.left = 3  # the prompt, the header, and the summary
        with pytest.raises(StoreError):
            await talk.say("go on")
        assert len(asked_for_summaries(model)) == 1
    async with talking(model, clock, log) as talk:
        await talk.resume()
        summaries = [b for b in await talk.blocks() if isinstance(b.body, RangeSummary)]
        last = (await of_kind(talk, RoundStart))[-1]
    assert len(asked_for_summaries(model)) == len(summaries) == 1
    assert last.window is not None
    assert last.window.summary == summaries[0].seq
    assert "Goal: once." in shown(model.requests[-1])
