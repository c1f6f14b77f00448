"""What stays in a prompt that had to be made smaller, and what must not be lost on the way."""

from __future__ import annotations

import pytest
from msgspec import structs

from loopline import BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult
from loopline.models import Prompt, Usage, UserMessage
from loopline.models.prompt import estimate
from loopline.prompt import JsonAction, Native, View, past_requests, tools_text
from loopline.testing import Call, Fail, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry as Scripted
from loopline.timeline import (
    ConversationKey,
    Entry,
    Hide,
    MemoryLog,
    RangeSummary,
    RoundStart,
    Timeline,
    UserSteer,
)
from tests.support.scenario import in_json
from tests.support.scenario_bundle import bundle, words
from tests.support.scripted_conversation import talking


def shown(prompt: Prompt) -> str:
    return "\n".join([*(str(message) for message in prompt.messages), prompt.tail])


def busy(rounds: int, size: int = 4_000) -> list[Scripted]:
    """Rounds that fill a small window."""
    return [Call("life.alone", size=size) for _ in range(rounds)]


async def test_what_was_said_between_turns_is_repeated_where_its_round_is_summed_up() -> None:
    """It stands in the turn before, and is taken in one whose beginning is summed up."""
    model = ScriptedModel(["One.", *busy(8), "Done."], window=5_650, output_limit=1_000)
    async with talking(model, bundle=bundle) as talk:
        await talk.say("first")
        await talk.followup("and mind the herons")
        await talk.say("second")
        summaries = [b.body for b in await talk.blocks() if isinstance(b.body, RangeSummary)]
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
    async with talking(model, bundle=bundle) as talk:
        await talk.say("go", max_iterations=40)
        blocks = list(await talk.blocks())
    causes = [b.body.opened_by for b in blocks if isinstance(b.body, RoundStart)]
    assert causes.index("hide") < causes.index("compaction", causes.index("hide"))
    assert any(isinstance(block.body, Hide) for block in blocks)
    for request in model.requests:
        if request.purpose != "summary":
            assert request.cache_points[-1] == len(request.messages)
    for again in past_requests(Timeline(blocks)):
        assert again.inexact == ""


async def test_a_summary_in_the_protocol_of_decisions_is_read_as_one() -> None:
    script = ScriptedModel(
        [*busy(6, 6_000), "Done."],
        aux={"summary": [Say(in_json("Goal: count.", ())) for _ in range(6)]},
        window=6_000,
        output_limit=1_000,
    )
    async with talking(script, bundle=bundle) as talk:
        await talk.say("go", protocol="json")
        texts = [b.body.text for b in await talk.blocks() if isinstance(b.body, RangeSummary)]
    assert "Goal: count." in texts
    options = [request.options for request in script.requests if request.purpose == "summary"]
    assert {(item.protocol, item.allow_calls) for item in options} == {("native", False)}
    assert {item.output_limit for item in options} == {1_000}


async def test_a_summary_that_fails_leaves_the_text_of_the_one_before() -> None:
    aux: list[Scripted] = ["Goal: the first.", Fail("no"), Fail("no"), Fail("no"), Fail("no")]
    script = ScriptedModel(
        [*busy(9, 6_000), "Done."], aux={"summary": aux}, window=6_000, output_limit=1_000
    )
    async with talking(script, bundle=bundle) as talk:
        await talk.say("go")
        bodies = [b.body for b in await talk.blocks() if isinstance(b.body, RangeSummary)]
    assert [item.text for item in bodies[:2]] == ["Goal: the first.", "Goal: the first."]
    assert [item.why for item in bodies[:2]] == ["", "no"]


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
        starts = [b.body for b in await talk.blocks() if isinstance(b.body, RoundStart)]
    first, other, again, last = (start.tokens for start in starts)
    assert other < 1.2 * first
    assert 1.9 * first < again < 2.3 * first
    assert 1.9 * first < last < 2.5 * first
    assert [start.opened_by for start in starts] == ["start", "model", "model", ""]


async def test_memory_notes_stay_although_the_notes_around_them_are_cut() -> None:
    notes = f"{words(9_000)}\n[D] keep herons dry\n{words(9_000)}"
    script = [Say(notes, Call("life.alone", size=900)), *busy(1, 900), "Done."]
    model = ScriptedModel(script, window=4_500, output_limit=1_000)
    async with talking(model, bundle=bundle) as talk:
        await talk.say("go")
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
    async with talking(model, bundle=Bundle(id="twice", workflow=Twice)) as talk:
        result = await talk.say("go")
        blocks = list(await talk.blocks())
    assert result.answer == "Now."
    sent = [again.messages for again in past_requests(Timeline(blocks))]
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
    windows = [b.body.window for b in blocks if isinstance(b.body, RoundStart) and b.body.window]
    assert [window.old_before for window in windows] == [1, 2]
    for protocol in (Native(), JsonAction()):
        whole_view, stepped = View(protocol, blocks), View(protocol, blocks[: until * 2])
        stepped.render_under(whole_view.window)
        stepped.extend(blocks[until * 2 :])
        assert stepped.messages == whole_view.messages


async def test_what_the_user_steered_with_is_shown_where_it_was_taken() -> None:
    log = MemoryLog()
    key = ConversationKey(name="c")
    async with Harness.open(
        bundle, store=log, model=ScriptedModel(["One.", "Two."]), clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        steer = Entry(body=UserSteer(text="the other way"), turn=1)
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
            if isinstance(block.body, RoundStart)
            else block
            for block in await talk.blocks()
        ]
    log, model = MemoryLog(), ScriptedModel(["Two."])
    await log.restore(ConversationKey(name="c"), blocks)
    async with Harness.open(bundle, store=log, model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        await talk.say("on")
        old, new = past_requests(Timeline(await talk.blocks()))
    assert "version 1" in old.inexact
    assert (new.round_start.opened_by, new.round_start.epoch, new.inexact) == ("renderer", 2, "")
    assert new.messages == model.requests[0].messages


async def test_room_is_made_for_the_answer_that_is_forced_at_the_limit() -> None:
    model = ScriptedModel([*busy(3, 9_000), "Forced."], window=6_000, output_limit=1_000)
    async with talking(model, bundle=bundle) as talk:
        result = await talk.say("go", max_iterations=3)
        last = [b.body for b in await talk.blocks() if isinstance(b.body, RoundStart)][-1]
    assert (result.answer, result.exit_reason) == ("Forced.", "max_iterations")
    assert (last.purpose, last.opened_by) == ("answer", "compaction")
    assert last.tokens <= 5_000
