"""Law 12: nothing that every prompt carries grows without a bound."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from loopline import Harness
from loopline import timeline as tl
from loopline.models.prompt import estimate
from loopline.prompt.announce import (
    FEEDBACK_SHARE,
    PLANS_SHARE,
    announce,
    tail_limit,
    unseen_sources,
)
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from tests.support.examples import examples
from tests.support.prompt_growth import Diary, keep
from tests.support.scenario_bundle import bundle, words
from tests.support.scripted_conversation import talking

NOON = tl.Moment(datetime(2026, 1, 1, 12, tzinfo=UTC), "turn_1")
announced = partial(announce, iteration=1, limit=9, now=NOON.ts, turn_id="turn_9")
diaries = st.builds(
    Diary,
    turns=st.integers(20, 35),
    window=st.sampled_from([6_000, 8_000, 12_000]),
    steps=st.sampled_from([1, 6, 40]),
    words=st.sampled_from([4, 12]),
    left_open=st.booleans(),
    standing=st.sampled_from([0, 0, 1, 4]),
)


@examples(8)
@given(diaries)
def test_a_plan_and_a_note_in_every_turn_leave_room_for_the_next_turn(diary: Diary) -> None:
    lived = asyncio.run(keep(diary))
    assert lived.errors == []
    assert lived.largest <= lived.budget
    assert max(lived.tokens.values()) <= 0.75 * lived.budget


@pytest.mark.parametrize("diary", [Diary(150), Diary(150, left_open=True)])
def test_what_is_carried_stops_growing(diary: Diary) -> None:
    lived = asyncio.run(keep(diary))
    assert lived.errors == []
    third = diary.turns // 3
    assert lived.around(diary.turns) <= 1.2 * lived.around(2 * third)


def test_the_model_can_always_close_the_plans_that_it_is_shown() -> None:
    lived = asyncio.run(keep(Diary(3, window=6_000, steps=40, words=30, standing=4)))
    assert lived.errors == []
    assert lived.closed == 4


@given(st.integers(1, 4), st.integers(1, 60), st.integers(1, 400), st.integers(0, 60), st.data())
def test_announced_plans_fit_their_room_and_show_the_step_that_comes_next(
    count: int, steps: int, length: int, done: int, data: st.DataObject
) -> None:
    room = tail_limit(data.draw(st.integers(0, 40_000)))
    plans = tl.Plans()
    for number in range(1, count + 1):
        texts = [f"{'x' * length}" for _ in range(steps)]
        for snapshot in tl.plan.new(plans, f"plan:turn_{number}:c{number}", texts, NOON):
            plans.take(snapshot)
    ticked = tl.plan.acknowledge(
        plans.latest[f"plan:turn_{count}:c{count}"],
        "\n".join(f"✓ [{n}]" for n in range(1, min(done, steps - 1) + 1)),
        NOON,
    )
    for snapshot in [ticked] if ticked else []:
        plans.take(snapshot)
    tail = announced(plans=plans.open_plans, room=room)
    assert estimate(tail) <= room + 60
    for shown in plans.open_plans:
        assert f"plan_id={shown.plan_id}" in tail
    assert f"□ [{min(done, steps - 1) + 1}] x" in tail.partition("(current)")[2]


@pytest.mark.parametrize("room", [0, 1, 2])
def test_the_smallest_room_is_a_limit_too(room: int) -> None:
    tail = announced(
        plans=[],
        feedback=[f"turn_{n} not_ok (user): {'so ' * 90}" for n in range(9)],
        unseen=unseen_sources({n: tl.Source(url=f"https://a.b/{n}") for n in range(1, 99)}, set()),
        room=room,
    )
    assert "turn_8 not_ok" not in tail
    assert "https://a.b/98" not in tail


def test_sources_and_reactions_are_announced_in_a_room_of_their_own() -> None:
    sources = {n: tl.Source(url=f"https://a.b/{n}", title="t\n" * 500) for n in range(1, 5_001)}
    shown = set(range(1, 5_001, 2))
    reactions = [f"turn_{n} not_ok (user): {'so ' * 90}" for n in range(1, 900)]
    tail = announced(
        plans=[],
        feedback=reactions,
        unseen=unseen_sources(sources, shown),
        room=900,
    )
    assert estimate(tail) <= 1_000
    assert "[[S:5000]] t t" in tail
    assert "so:sources_pool[1-" in tail
    assert "turn_899 not_ok" in tail
    assert "more: artifact:conv:feedback" in tail


@pytest.mark.parametrize("room", [100, 400, 800])
def test_sources_are_named_in_what_plans_and_reactions_leave_of_the_room(room: int) -> None:
    sources = {n: tl.Source(url=f"https://a.b/{n}", title="word " * 500) for n in range(1, 10)}
    unseen = unseen_sources(sources, ())
    tail = announced(plans=[], unseen=unseen, room=room)
    named = [line for line in tail.splitlines() if line.startswith("[[S:")]
    left = room - int(room * PLANS_SHARE) - int(room * FEEDBACK_SHARE)
    assert estimate("\n".join(named)) <= left


def test_the_newest_sources_are_named_and_the_others_by_their_numbers() -> None:
    sources = {n: tl.Source(url=f"https://a.b/{n}", title=f"page {n}") for n in range(1, 301)}
    unseen = unseen_sources(sources, {5, 298, *range(102, 120)})
    assert [sid for sid, _ in unseen.newest] == [293, 294, 295, 296, 297, 299, 300][1:]
    tail = announced(plans=[], unseen=unseen)
    assert tail.splitlines()[-7:] == [
        "so:sources_pool[1-101,120-293]",
        *(f"[[S:{n}]] page {n}" for n in (294, 295, 296, 297, 299, 300)),
    ]


def folded(count: int) -> tl.Plans:
    plans = tl.Plans()
    for number in range(1, count + 1):
        for snapshot in tl.plan.new(plans, f"p{number}", ["look", "answer"], NOON):
            plans.take(snapshot)
        if number % 2:
            for snapshot in tl.plan.close(plans, f"p{number}", NOON):
                plans.take(snapshot)
    return plans


def test_where_there_is_no_room_each_plan_is_its_next_step() -> None:
    plans = tl.Plans()
    for plan_id in ("p1", "p2"):
        steps = [f"step {number} of {plan_id}" for number in range(1, 41)]
        for snapshot in tl.plan.new(plans, plan_id, steps, NOON):
            plans.take(snapshot)
    tail = announced(plans=plans.open_plans, room=9)
    steps = [line for line in tail.splitlines() if " of p" in line]
    assert [line.partition(" step ")[2] for line in steps] == ["1 of p1", "1 of p2"]


@pytest.mark.parametrize("count", [1, 30, 1_000])
def test_the_fold_of_plans_and_their_history_have_a_bound(count: int) -> None:
    plans = folded(count)
    assert plans.started == count
    assert len(plans.latest) <= tl.plan.OPEN_LIMIT + tl.plan.ENDED_LIMIT
    history = tl.plan.history(plans, 600)
    assert estimate(history) <= 640
    told = history.count("snapshot_ref=")
    more = count - told - (plans.current is not None)
    assert history.endswith(f"{more} more plans: artifact:conv:plans") == (more > 0)


async def test_every_plan_is_listed_and_read_by_its_ref_and_an_old_one_can_be_closed() -> None:
    turns = tl.plan.OPEN_LIMIT + 6
    calls = [Call("react.plan", mode="new", steps=[f"look {n}"]) for n in range(1, turns + 1)]
    calls.append(Call("react.plan", mode="close", plan_id="plan:turn_1:c1"))
    log = tl.MemoryLog()
    for call in calls:
        model = ScriptedModel([call, "That is done."], window=8_000, output_limit=2_000)
        harness = Harness.open(bundle, store=log, model=model, clock=FakeClock())
        async with harness:  # each time from the newest checkpoint
            result = await harness.conversation("c").say("go on")
            assert result.ok, result.error
    async with Harness.open(bundle, store=log, model="offline", clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        names = ["artifact:conv:plans", "ar:plan.latest:plan:turn_1:c1", "artifact:conv:feedback"]
        plans, first, none = await talk.read(names)
        *_, history = await talk.blocks(types="react.plan.history")
    assert len(plans.text.splitlines()) == turns
    assert plans.text.startswith("plan_id=plan:turn_1:c1 (closed), last changed in turn_71")
    assert first.ref == "ar:turn_71.react.plan.1"
    assert none.text == "no feedback"
    assert isinstance(history.body, tl.PlanHistory)
    assert history.body.text.endswith("more plans: artifact:conv:plans")


async def test_every_memory_note_is_listed_when_a_summary_has_room_for_the_newest() -> None:
    script = [
        step
        for n in range(1, 61)
        for step in (
            Say(
                f"[D] note {n} {words(150, n)}", Call("react.read", paths=["ar:turn_1.user.prompt"])
            ),
            "Kept.",
        )
    ]
    model = ScriptedModel(script, window=6_000, output_limit=1_000)
    async with talking(model, bundle=bundle) as talk:
        for _ in range(60):
            result = await talk.say("go on")
            assert result.ok, result.error
        *_, summary = await talk.blocks(types="conv.range.summary")
        listed, noted = await talk.read(["artifact:conv:notes", f"{summary.ref}"])
    assert isinstance(summary.body, tl.RangeSummary)
    assert summary.body.dropped_notes + len(summary.body.notes) > 40
    assert f"{summary.body.dropped_notes} older memory notes: artifact:conv:notes" in noted.text
    assert len(listed.text.splitlines()) == 60
    assert listed.text.splitlines()[6].startswith("ar:turn_7.react.notes.1 [D] note 7 ")


def swollen(block: tl.Block) -> tl.Block:
    """The block as it was written when summaries and plan histories had no bound."""
    match block.body:
        case tl.RangeSummary() as summary:
            lines = [f"[D] {n}: {words(80, n)}" for n in range(400)]
            notes = tuple(
                tl.LedgerLine(ref="ar:turn_1.react.notes.1", words=line) for line in lines
            )
            return structs.replace(block, body=structs.replace(summary, notes=notes))
        case tl.PlanHistory():
            plans = [f"plan_id=p{n} (complete), last changed in turn_1" for n in range(2_000)]
            return structs.replace(block, body=tl.PlanHistory(text="\n".join(plans)))
        case _:
            return block


async def test_a_conversation_that_carries_too_much_from_before_goes_on() -> None:
    log = tl.MemoryLog()
    await keep(Diary(30), log)
    lived = await log.read(tl.ConversationKey(name="c"))
    await log.restore(tl.ConversationKey(name="old"), [*map(swollen, lived)])
    model = ScriptedModel(["One.", "Two.", "Three."], window=8_000, output_limit=2_000)
    async with Harness.open(bundle, store=log, model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("old")
        for _ in range(3):
            result = await talk.say("on")
            assert result.ok, result.error
        blocks = await talk.blocks()
    starts = [b.body for b in blocks[len(lived) :] if isinstance(b.body, tl.RoundStart)]
    assert max(start.tokens for start in starts) <= 6_000
