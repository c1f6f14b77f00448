"""A request that the model finds too long: its reply becomes shorter, else its content, and the window is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline.errors import ModelOverflow
from loopline.models import Prompt
from loopline.testing import Call, Fail, FakeClock, ScriptedModel
from loopline.testing.scripted import WINDOW, Entry
from loopline.timeline import MemoryLog, ModelOverflowed, RoundStart, Timeline
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.workbench import at_work, bodies, shown, workbench

LOOKS: list[Entry] = [Call("w.command", text=f"{n} " + "yes " * 800) for n in range(6)]


def size(request: Prompt) -> int:
    return len(shown(request))


async def test_it_is_asked_once_more_in_a_smaller_form() -> None:
    model = ScriptedModel(
        [*LOOKS, Fail(ModelOverflow("too long", window=4_000)), "Done."], output_limit=1_000
    )
    async with at_work(model) as talk:
        result = await talk.say("go")
        (learned,) = await bodies(talk, ModelOverflowed)
        starts = await bodies(talk, RoundStart)
    refused, asked = model.requests[-2:]
    assert (result.answer, result.rounds) == ("Done.", 7)
    assert size(asked) < size(refused)
    assert (learned.window, learned.model, learned.text) == (4_000, "scripted", "too long")
    assert starts[-1].opened_by == "compaction,overflow"
    assert starts[-1].tokens <= 3_000 < learned.tokens


async def test_a_turn_that_died_when_its_request_was_too_long_goes_on_with_a_smaller_one() -> None:
    log = CrashingLog(MemoryLog(FakeClock()))
    log.left = 27  # up to what the model said
    overflow = Fail(ModelOverflow("too long", window=4_000))
    refusing = ScriptedModel([*LOOKS, overflow], output_limit=1_000)
    with pytest.raises(Crashed):
        async with at_work(refusing, store=log) as talk:
            await talk.say("go")
    log.left = None
    async with at_work(ScriptedModel(["Done."], output_limit=1_000), store=log) as talk:
        before = [block.type for block in await talk.blocks()]
        result = await talk.resume()
        starts = await bodies(talk, RoundStart)
    assert before[-1] == "react.overflow"
    assert (result.answer, result.rounds) == ("Done.", 7)
    assert starts[-1].opened_by == "compaction,overflow"
    assert starts[-1].tokens <= 3_000 < starts[-2].tokens


async def test_without_a_number_it_is_taken_to_be_half() -> None:
    model = ScriptedModel([*LOOKS, Fail(ModelOverflow("too long")), "Done."], output_limit=1_000)
    async with at_work(model) as talk:
        assert (await talk.say("go")).answer == "Done."
        (learned,) = await bodies(talk, ModelOverflowed)
    assert learned.window == learned.tokens // 2 + 1_000


async def test_a_number_that_the_same_request_would_fit_is_not_believed() -> None:
    overflow = Fail(ModelOverflow("too long", window=90_000))
    model = ScriptedModel([*LOOKS, overflow, "Done."], output_limit=1_000)
    async with at_work(model) as talk:
        assert (await talk.say("go")).answer == "Done."
        (learned,) = await bodies(talk, ModelOverflowed)
    assert learned.named == 0
    assert size(model.requests[-1]) < size(model.requests[-2])


async def test_a_window_no_longer_than_a_reply_was_thought_to_be_has_room_for_both() -> None:
    overflow = Fail(ModelOverflow("too long", window=6_000))
    model = ScriptedModel([*LOOKS, overflow, "Done."], output_limit=8_000)
    async with at_work(model) as talk:
        assert (await talk.say("go")).answer == "Done."
        (learned,) = await bodies(talk, ModelOverflowed)
        starts = await bodies(talk, RoundStart)
    output = model.requests[-1].options.output_limit or 0
    assert output >= learned.window // 4
    assert starts[-1].tokens + output <= learned.window


async def test_when_it_is_too_long_again_the_turn_says_so() -> None:
    overflow = Fail(ModelOverflow("too long", window=4_000))
    model = ScriptedModel([*LOOKS, overflow, overflow], output_limit=1_000)
    async with at_work(model) as talk:
        result = await talk.say("go")
    assert (result.exit_reason, "too long" in result.error) == ("error", True)


async def test_content_is_dropped_again_only_when_the_model_refuses_again(tmp_path: Path) -> None:
    store, limit = f"sqlite:///{tmp_path}/c.db", 4_000
    script: list[Entry] = [*LOOKS, Fail(ModelOverflow("too long", window=limit)), "Done."]
    async with at_work(ScriptedModel(script, output_limit=1_000), store=store) as talk:
        await talk.say("go")
    refusing: list[Entry] = [*LOOKS[:1], Fail(ModelOverflow("too long", window=limit)), *LOOKS[1:]]
    later = ScriptedModel([*refusing, "More."], output_limit=1_000)
    async with at_work(later, store=store) as talk:
        assert (await talk.say("and")).answer == "More."
        starts = await bodies(talk, RoundStart)
        learned = await bodies(talk, ModelOverflowed)
    assert len(learned) == 2
    assert max(item.tokens for item in starts[-6:]) <= 3_000


async def test_a_larger_request_that_succeeds_raises_the_window_again(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/c.db"
    script: list[Entry] = [Fail(ModelOverflow("too long", window=4_000)), "Done."]
    async with at_work(ScriptedModel(script, output_limit=3_500), store=store) as talk:
        await talk.say("go")
    large = ScriptedModel([*LOOKS, "More."], output_limit=3_500)
    async with at_work(large, store=store) as talk:
        await talk.say("and")
        before = Timeline(await talk.blocks())
    later = ScriptedModel(["So."], output_limit=3_500)
    async with at_work(later, store=store) as talk:
        await talk.say("then")
    assert large.requests[0].options.output_limit != 3_500
    assert before.overflows.by_model == {}
    assert later.requests[0].options.output_limit == 3_500


async def test_a_lesson_does_not_outlive_a_change_of_the_models_window(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/c.db"
    script: list[Entry] = [Fail(ModelOverflow("too long", window=4_000)), "Done."]
    async with at_work(ScriptedModel(script, output_limit=3_500), store=store) as talk:
        await talk.say("go")
    limits = list[int | None]()
    for window in (WINDOW, 16_000):
        model = ScriptedModel(["So."], window=window, output_limit=3_500)
        async with at_work(model, store=store) as talk:
            await talk.say("and")
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
        starts = await bodies(talk, RoundStart)
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
            model_overflowed.model for model_overflowed in await bodies(talk, ModelOverflowed)
        ]
    assert learned == ["one", "two"]


async def test_a_trace_that_overflows_is_shown_in_shorter_pieces() -> None:
    big: list[Entry] = [Call("w.big", size=2_000) for _ in range(6)]
    model = ScriptedModel(
        [*big, "Brief.", Fail(ModelOverflow("too long")), "Written."], output_limit=1_000
    )
    async with at_work(model, workbench(answer_mode="synthesize")) as talk:
        assert (await talk.say("go")).answer == "Written."
        epochs = [start.epoch for start in await bodies(talk, RoundStart)]
    assert size(model.requests[-1]) < size(model.requests[-2])
    assert len(set(epochs)) == 1
