"""What a model is shown of a long conversation, what a prompt leaves out, and how the rest comes back."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from loopline import BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult
from loopline import timeline as tl
from loopline.events import Delta
from loopline.models import AssistantMessage, Prompt, ProtocolName, ToolMessage, Usage, UserMessage
from loopline.models.prompt import estimate
from loopline.prompt import Native, View, past_requests, tools_text
from loopline.prompt.protocols.json_action import JsonAction
from loopline.prompt.range_summary import terms
from loopline.reader import source_row
from loopline.testing import Call, Fail, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry as Scripted
from tests.support.scenario import in_json
from tests.support.scenario_bundle import bundle, words
from tests.support.scripted_conversation import play_turn, talking
from tests.support.small_windows import TOTAL, asked_for_summaries, small
from tests.support.workbench import (
    at_work,
    bodies,
    bodies_of,
    decisions,
    heard,
    results,
    roles,
    run_turn,
    shown,
)


def busy(rounds: int, size: int = 4_000) -> list[Scripted]:
    return [Call("life.alone", size=size) for _ in range(rounds)]


async def test_what_was_said_between_turns_is_repeated_where_its_round_is_summed_up() -> None:
    """It stands in the turn before, and is taken in one whose beginning is summed up."""
    model = ScriptedModel(["One.", *busy(8), "Done."], window=5_650, output_limit=1_000)
    async with talking(model, bundle=bundle) as talk:
        await talk.say("first")
        await talk.followup("and mind the herons")
        await talk.say("second")
        summaries = await bodies(talk, tl.RangeSummary)
    assert summaries[-1].last_turn == 2
    for request in model.requests[1:]:
        if request.purpose != "summary":
            texts = [message.text for message in request.messages]
            assert "[USER INTERRUPT]\n[ar:turn_1.user.followup.1]\nand mind the herons" in texts


async def test_a_compaction_after_a_hide_leaves_no_cache_point_beyond_the_end() -> None:
    looks: list[Scripted] = [Call("life.look", size=10, seed=number) for number in range(16)]
    hides = Call("react.hide", path="tc:turn_1.c16.result", replacement="seen")
    talks: list[Scripted] = [Say(words(3_000, n), Call("life.look", size=10)) for n in range(6)]
    script = [*looks, hides, *talks, "Done."]
    model = ScriptedModel(script, window=7_000, output_limit=1_000)
    _, blocks = await play_turn(model, bundle=bundle, max_iterations=40)
    causes = [b.body.opened_by for b in blocks if isinstance(b.body, tl.RoundStart)]
    assert causes.index("hide") < causes.index("compaction", causes.index("hide"))
    assert any(isinstance(block.body, tl.Hide) for block in blocks)
    for request in model.requests:
        if request.purpose != "summary":
            assert request.cache_points[-1] == len(request.messages)
    for again in past_requests(tl.Timeline(blocks)):
        assert again.inexact == ""


async def test_a_summary_in_the_protocol_of_decisions_is_read_as_one() -> None:
    script = ScriptedModel(
        [*busy(6, 6_000), "Done."],
        aux={"summary": [Say(in_json("Goal: count.", ())) for _ in range(6)]},
        window=6_000,
        output_limit=1_000,
    )
    _, blocks = await play_turn(script, bundle=bundle, protocol="json")
    texts = [b.body.text for b in blocks if isinstance(b.body, tl.RangeSummary)]
    assert "Goal: count." in texts
    options = [request.options for request in script.requests if request.purpose == "summary"]
    assert {(item.protocol, item.allow_calls) for item in options} == {("native", False)}
    assert {item.output_limit for item in options} == {1_000}


async def test_a_summary_that_fails_leaves_the_text_of_the_one_before() -> None:
    aux: list[Scripted] = ["Goal: the first.", Fail("no"), Fail("no"), Fail("no"), Fail("no")]
    script = ScriptedModel(
        [*busy(9, 6_000), "Done."], aux={"summary": aux}, window=6_000, output_limit=1_000
    )
    _, blocks = await play_turn(script, bundle=bundle)
    summaries = bodies_of(blocks, tl.RangeSummary)
    assert [item.text for item in summaries[:2]] == ["Goal: the first.", "Goal: the first."]
    assert [item.why for item in summaries[:2]] == ["", "no"]


async def test_each_model_is_learned_by_itself() -> None:
    """The second counts a third of what is estimated; the first, asked again, still twice as much."""

    def reported(times: float) -> Scripted:
        def line(prompt: Prompt) -> Say:
            text = prompt.system + tools_text(prompt.tools) + repr(prompt.messages) + prompt.tail
            return Say("So.", usage=Usage(input_tokens=int(times * estimate(text))))

        return line

    model, two = ScriptedModel([reported(2.0)] * 3), ScriptedModel([reported(0.3)])
    two.name = "other"
    models = iter([model, two, model, model])
    clock = FakeClock()
    async with Harness.open(
        bundle, store="memory:", model=lambda: next(models), clock=clock
    ) as harness:
        talk = harness.conversation("c")
        for _ in range(4):
            await talk.say("go")
        starts = await bodies(talk, tl.RoundStart)
    first, other, again, last = (start.tokens for start in starts)
    assert other < 1.2 * first
    assert 1.9 * first < again < 2.3 * first
    assert 1.9 * first < last < 2.5 * first
    assert [start.opened_by for start in starts] == ["start", "model", "model", ""]


async def test_memory_notes_stay_although_the_notes_around_them_are_cut() -> None:
    notes = f"{words(9_000)}\n[D] keep herons dry\n{words(9_000)}"
    script = [Say(notes, Call("life.alone", size=900)), *busy(1, 900), "Done."]
    model = ScriptedModel(script, window=4_500, output_limit=1_000)
    await play_turn(model, bundle=bundle)
    assert all("[D] keep herons dry" in shown(request) for request in model.requests[1:])


async def test_a_summary_made_for_a_large_window_is_made_to_fit_a_small_one() -> None:
    lines: list[Scripted] = [
        Say("", Call("life.write", name=f"n{n}", text=words(700, n))) for n in range(60)
    ]
    large = ScriptedModel([*lines, *busy(3, 30_000), "Done."], window=20_000, output_limit=1_000)
    small = ScriptedModel(["Small.", "Again."], window=6_000, output_limit=1_000)
    models = iter([large, small, small])
    async with Harness.open(
        bundle, store="memory:", model=lambda: next(models), clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        await talk.say("go", max_iterations=90)
        result = await talk.say("and now")
        again = await talk.say("and then")
    assert (result.answer, again.answer) == ("Small.", "Again.")


async def test_a_second_run_of_a_turn_asks_with_a_request_of_its_own() -> None:
    class Twice(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            react = await self.build_react()
            await react.run(payload)
            return await react.run(payload)

    model = ScriptedModel([Fail("not now"), "Now."])
    result, blocks = await play_turn(model, bundle=Bundle(id="twice", workflow=Twice))
    assert result.answer == "Now."
    sent = [again.messages for again in past_requests(tl.Timeline(blocks))]
    assert sent == [request.messages for request in model.requests]


@pytest.mark.parametrize("until", range(1, 12))
async def test_a_name_for_a_cleared_result_is_the_same_whenever_it_is_made(until: int) -> None:
    """Its call may be whole or clipped by then."""
    looks: list[Scripted] = [
        Call("life.look", size=1_500),
        "So.",
        Call("life.look", size=4_000),
        "So.",
    ]
    script: list[Scripted] = [Call("life.fail", message=words(4_900)), *looks]
    model = ScriptedModel(script, window=5_650, output_limit=1_000)
    async with talking(model, bundle=bundle) as talk:
        for _ in range(2):
            await talk.say("go", keep_recent_turns=1, keep_recent_intact_turns=1)
        blocks = list(await talk.blocks())
    windows = [b.body.window for b in blocks if isinstance(b.body, tl.RoundStart) and b.body.window]
    assert [window.old_before for window in windows] == [1, 2]
    for protocol in (Native(), JsonAction()):
        whole_view, stepped = View(protocol, blocks), View(protocol, blocks[: until * 2])
        stepped.render_under(whole_view.window)
        stepped.extend(blocks[until * 2 :])
        assert stepped.messages == whole_view.messages


async def test_what_the_user_steered_with_is_shown_where_it_was_taken() -> None:
    log = tl.MemoryLog()
    key = tl.ConversationKey(name="c")
    async with talking(["One.", "Two."], bundle=bundle, store=log) as talk:
        await talk.say("go")
        steer = tl.Entry(body=tl.UserSteer(text="the other way"), turn=1)
        await log.append(key, [steer], seen=0)
        await talk.say("on")
        view = View(Native(), await talk.blocks())
    assert (
        UserMessage(text="[USER INTERRUPT]\n[ar:turn_1.user.steer.1]\nthe other way")
        in view.messages
    )


async def test_rounds_of_an_older_renderer_are_shown_anew_and_known_as_inexact() -> None:
    async with talking(["One."], bundle=bundle) as talk:
        await talk.say("go")
        blocks = [
            structs.replace(block, body=structs.replace(block.body, renderer=1))
            if isinstance(block.body, tl.RoundStart)
            else block
            for block in await talk.blocks()
        ]
    log, model = tl.MemoryLog(), ScriptedModel(["Two."])
    await log.restore(tl.ConversationKey(name="c"), blocks)
    async with talking(model, bundle=bundle, store=log) as talk:
        await talk.say("on")
        old, new = past_requests(tl.Timeline(await talk.blocks()))
    assert "version 1" in old.inexact
    assert (new.round_start.opened_by, new.round_start.epoch, new.inexact) == ("renderer", 2, "")
    assert new.messages == model.requests[0].messages


async def test_room_is_made_for_the_answer_that_is_forced_at_the_limit() -> None:
    model = ScriptedModel([*busy(3, 9_000), "Forced."], window=6_000, output_limit=1_000)
    result, blocks = await play_turn(model, bundle=bundle, max_iterations=3)
    last = bodies_of(blocks, tl.RoundStart)[-1]
    assert (result.answer, result.exit_reason) == ("Forced.", "max_iterations")
    assert (last.purpose, last.opened_by) == ("answer", "compaction")
    assert last.tokens <= 5_000


PICTURE = b64encode(Random(7).randbytes(3_300)).decode()


async def test_base64_is_left_out_of_what_the_user_says_of_answers_and_of_arguments() -> None:
    call = Call("w.command", text=PICTURE)
    model = ScriptedModel([Say(f"Notes: {PICTURE}", call), f"It is {PICTURE}", "Seen."])
    async with at_work(model) as talk:
        await talk.say(f"Look: {PICTURE}")
        await talk.say("And?")
        prompt, answer = await talk.read(
            ["ar:turn_1.user.prompt", "ar:turn_1.assistant.completion"]
        )
    for request in model.requests:
        assert PICTURE not in shown(request)
    last = shown(model.requests[-1])
    texts = ("ar:turn_1.user.prompt", "tc:turn_1.c1.call", "ar:turn_1.react.notes", "ar:turn_1.a")
    for ref in texts:
        assert f"[base64, {len(PICTURE)} characters: {ref}" in last
    assert (PICTURE in prompt.text, PICTURE in answer.text) == (True, True)


async def test_arguments_of_a_running_turn_are_shown_whole_however_long() -> None:
    text = "green tea " * 400
    model = ScriptedModel([Call("w.command", text=text), "Done."])
    await run_turn(model)
    [call] = [
        call
        for message in model.requests[1].messages
        if isinstance(message, AssistantMessage)
        for call in message.calls
    ]
    assert call.arguments == {"text": text}


async def test_base64_is_left_out_of_the_pool_of_sources() -> None:
    find = Say("", Call("w.find", url="https://a.org"))
    async with at_work(ScriptedModel([find, "So [[S:1]]."])) as talk:
        await talk.say("go")
        blocks = [with_picture(block) for block in await talk.blocks()]
    assert source_row(1, tl.Timeline(blocks))["text"] == (
        f"A picture: [base64, {len(PICTURE)} characters: https://a.org]"
    )


def with_picture(block: tl.Block) -> tl.Block:
    match block.body:
        case tl.SourceAdded(source=source) as added:
            seen = structs.replace(source, text=f"A picture: {PICTURE}")
            return structs.replace(block, body=structs.replace(added, source=seen))
        case _:
            return block


@pytest.mark.parametrize(
    "path",
    [
        "ar:turn_1.user.prompt",
        "ar:turn_1.user.prompt.1#C1-C9",
        "ar:turn_1.react.notes.1",
        "ar:turn_1.assistant.completion",
        "tc:turn_1.c1.call",
        "tc:turn_1.c1.result",
    ],
)
async def test_what_the_prompt_shows_whole_is_not_printed_again(path: str) -> None:
    calls: list[Scripted] = [
        Say("Looking at herons.", Call("life.look", size=900)),
        "That was a heron.",
    ]
    model = ScriptedModel([*calls, Call("react.read", paths=[path]), "So."])
    async with talking(model, bundle=bundle) as talk:
        await talk.say("What is grey and stands in water?")
        await talk.say("Again?")
    *_, read = [m for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    status = json.loads(read.text.splitlines()[1])
    assert len(status["exists_in_visible_context"]) == 1
    assert len(read.text.splitlines()) == 2


async def test_what_the_prompt_shows_in_part_is_printed_whole() -> None:
    path, clock = "tc:turn_1.c1.result", FakeClock()
    looks: list[Scripted] = [Call("life.look", size=900), "One.", "Two.", "Three."]
    model = ScriptedModel([*looks, Call("react.read", paths=[path]), "So."])
    async with at_work(model, bundle, clock=clock) as talk:
        for _ in range(3):
            await talk.say("go")
        clock.advance(900)
        await talk.say("What was it?")
    first, read = [m for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert f"the rest is {path}#C401-C" in first.text
    assert json.loads(read.text.splitlines()[1])["exists_in_visible_context"] == []
    assert len(read.text) > 900


def looks(number: int, size: int = 3_000) -> list[Scripted]:
    return [Call("w.big", size=size) for _ in range(number)]


def commands(number: int, size: int = 2_000) -> list[Scripted]:
    return [
        Say("x" * 40, Call("w.command", text=f"{n}-" + "yes " * (size // 4))) for n in range(number)
    ]


async def test_another_process_folds_the_same_conversation(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/c.db"
    _, first = await run_turn([Call("w.find", url="https://a.org"), "So [[S:1]]."], store=store)
    model = ScriptedModel(["Still [[S:1]]."])
    async with at_work(model, store=store) as talk:
        again = await talk.blocks()
        result = await talk.say("and now?")
    assert list(again) == list(first)
    assert tl.Timeline(again).pool.sources == tl.Timeline(first).pool.sources
    assert "[[S:1]] https://a.org" in shown(model.requests[0])
    assert [source.url for source in result.sources] == ["https://a.org"]


async def test_a_summary_is_asked_for_only_when_clearing_is_not_enough() -> None:
    light, heavy = (
        small([*looks(6), "Done."]),
        small([*commands(9, 3_000), "Done."], ["Goal."] * 9),
    )
    for model in (light, heavy):
        async with at_work(model) as talk:
            await talk.say("go")
            assert "compaction" in {start.opened_by for start in await bodies(talk, tl.RoundStart)}
            covers = [summary.covers for summary in await bodies(talk, tl.RangeSummary)]
            assert covers == sorted(set(covers))
    assert (len(asked_for_summaries(light)), len(asked_for_summaries(heavy)) > 0) == (0, True)
    assert "Goal." in shown(asked_for_summaries(heavy)[1])


@pytest.mark.parametrize("protocol", ["native", "json"])
async def test_a_cleared_result_leaves_a_line_that_names_it(protocol: ProtocolName) -> None:
    model = small([*looks(6), "Done."])
    await run_turn(model, protocol=protocol)
    texts = [str(message) for message in model.requests[-1].messages]
    shown_results = [text for text in texts if ".result" in text]
    assert "[CLEARED] tc:turn_1.c1.result of w.big" in shown_results[0]
    assert len(shown_results[0]) < 400
    cleared = ["[CLEARED]" in text for text in shown_results]
    assert cleared == sorted(cleared, reverse=True)
    assert "x" * 3_000 in shown_results[-1]


async def test_what_was_looked_up_goes_before_what_was_done() -> None:
    done = Call("w.command", text="kept " * 100)
    model = small([done, *looks(5), "Done."])
    await run_turn(model)
    last = results(model.requests[-1])
    assert ("ran kept" in last[0].text, "[CLEARED]" in last[1].text) == (True, True)


@pytest.mark.parametrize("summary", ["Goal.", Say(" "), Fail("down")])
async def test_the_question_and_the_newest_round_are_always_there(summary: Scripted) -> None:
    model = small([*commands(12, 3_000), "Done."], [summary] * 12)
    async with at_work(model) as talk:
        assert (await talk.say("the very question")).answer == "Done."
    for number, request in enumerate(decisions(model)):
        assert "Work." in request.system
        assert "the very question" in shown(request)
        assert number == 0 or f"{number - 1}-yes" in shown(request)


async def test_a_context_that_is_made_to_fit_has_no_result_without_its_call() -> None:
    model = small([*looks(5), *commands(6), *looks(5), "Done."], ["Goal."] * 9)
    async with at_work(model) as talk:
        assert (await talk.say("go", max_iterations=30)).ok
        starts = await bodies(talk, tl.RoundStart)
        assert await bodies(talk, tl.RangeSummary)
    assert max(start.tokens for start in starts) <= TOTAL
    assert any("[CLEARED]" in shown(request) for request in decisions(model))
    for request in decisions(model):
        called = [call.call_id for m in request.messages for call in getattr(m, "calls", ())]
        assert called == [item.call_id for item in results(request)]


@pytest.mark.parametrize(("number", "dropped"), [(1, False), (6, True)])
async def test_the_model_is_told_when_something_was_dropped_and_only_then(
    number: int, dropped: bool
) -> None:
    model = small([*looks(number), "Done."])
    _, blocks = await run_turn(model)
    notices = bodies_of(blocks, tl.SystemMessage)
    opened_by = {start.opened_by for start in bodies_of(blocks, tl.RoundStart)}
    assert (bool(notices), "compaction" in opened_by) == (dropped, dropped)
    assert ("[CLEARED]" in shown(model.requests[-1])) is dropped
    assert ("To make room" in shown(model.requests[-1])) is dropped


@pytest.mark.parametrize(("size", "cut"), [(64_000, False), (64_001, True), (70_000, True)])
async def test_of_one_result_so_many_characters_are_shown(size: int, cut: bool) -> None:
    model = ScriptedModel([Call("w.big", size=size), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
        (whole_item,) = await talk.read("tc:turn_1.c1.result")
    part = results(model.requests[1])[0].text
    assert whole_item.text == "x" * size
    assert ("[TRUNCATED]" in part) is cut
    assert len(part) < 65_000
    assert part.endswith(f"the rest is tc:turn_1.c1.result#C64001-C{size}") is cut


async def test_each_request_begins_with_the_one_before_and_marks_where() -> None:
    model = ScriptedModel(["Hello.", *[Call("w.look", text=f"{n}") for n in range(8)], "Done."])
    async with at_work(model) as talk:
        await talk.say("hello")
        await talk.say("go")
        points = [start.points for start in await bodies(talk, tl.RoundStart)]
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert (after.system, after.tools) == (before.system, before.tools)
    assert [point.name for point in points[-1]] == ["prev_turn", "pre_tail", "tail"]
    assert model.requests[-1].cache_points == tuple(point.messages for point in points[-1])


async def test_the_board_is_new_in_each_round_and_never_kept() -> None:
    model = ScriptedModel([Call("react.plan", mode="new", steps=["look"]), "Later."])
    await run_turn(model)
    first, second = model.requests
    boards = [item.tail.splitlines()[0] for item in (first, second)]
    assert boards == [f"ANNOUNCE — iteration {n} of 15, {15 - n} left" for n in (1, 2)]
    assert ["[OPEN PLANS]" in item.tail for item in (first, second)] == [False, True]
    assert not any("ANNOUNCE" in str(message) for message in second.messages)


async def test_a_listener_hears_when_the_context_is_made_smaller() -> None:
    async with at_work(small([*looks(6), "Done."])) as talk:
        events = await heard(talk, "go")
    smaller = [delta for delta in events if isinstance(delta, Delta) and delta.type == "compaction"]
    opened = [
        block.body
        for block in events
        if isinstance(block, tl.Block)
        and isinstance(block.body, tl.RoundStart)
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
    script: list[Scripted] = [Say("", *[Call("w.find", url=url) for url in urls]), "So [[S:1-2]]."]
    result, blocks = await run_turn(script)
    pool = tl.Timeline(blocks).pool
    assert [source.url for source in pool.sources.values()] == ["https://a.org", "https://b.org"]
    assert len(result.sources) == 2


def test_names_are_found_beside_a_word_of_any_length() -> None:
    for letter in ("y", "A", "a-", "_", "9."):
        assert terms(f"{letter * 100_000} src/heron.py") == {"src/heron.py"}
