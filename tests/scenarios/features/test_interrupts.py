"""What the user says into a running turn, pauses, and turns that were cut off."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loopline import Harness
from loopline.conversations import Receipt
from loopline.errors import LooplineError
from loopline.events import Delta
from loopline.models import Json, UserMessage
from loopline.react import Allow, Ask, GuardedCall, Verdict
from loopline.testing import Call, FakeClock, Raw, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import (
    Block,
    Draft,
    Exit,
    MemoryLog,
    RoundStart,
    TimelineLog,
    ToolCalled,
    ToolPending,
    ToolResult,
    UserFollowup,
)
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.workbench import (
    Desk,
    at_work,
    begun,
    bodies,
    heard,
    in_json,
    interrupted,
    results,
    roles,
    shown,
    types,
    workbench,
)


async def test_what_is_said_while_a_round_runs_is_in_the_next_request() -> None:
    model = ScriptedModel([Call("w.look"), "Both."])
    async with at_work(model) as talk:
        assert await interrupted(talk, "go", "in German too") == "Both."
    assert ["in German too" in shown(request) for request in model.requests] == [False, True]


async def test_as_text_what_was_said_follows_the_results_of_the_round() -> None:
    model = in_json([Call("w.look", text="tea"), "Both."])
    async with at_work(model) as talk:
        await interrupted(talk, "go", "in German too", at=ToolCalled)
    assert roles(model.requests[1].messages) == ["user", "assistant", "user", "user"]
    assert "seen tea" in str(model.requests[1].messages[-2])
    assert "in German too" in str(model.requests[1].messages[-1])


async def test_what_was_said_comes_only_after_all_results() -> None:
    model = ScriptedModel([Say("", Call("w.look"), Call("w.look")), "Both."])
    async with at_work(model) as talk:
        await interrupted(talk, "go", "in German too", at=ToolCalled)
    assert roles(model.requests[1].messages) == ["user", "assistant", "tool", "tool", "user"]


async def test_what_was_said_before_a_turn_is_in_its_first_request() -> None:
    model = ScriptedModel(["One.", "Two."])
    async with at_work(model) as talk:
        await talk.say("first")
        await talk.followup("by the way")
        await talk.say("second")
    assert "by the way" in shown(model.requests[1])


async def test_all_that_was_said_meanwhile_comes_as_one_numbered_message() -> None:
    model = ScriptedModel([Call("w.look"), "Both."])
    async with at_work(model) as talk:
        await interrupted(talk, "go", "in German", "and short")
    (message,) = [item for item in model.requests[1].messages if "[USER INTERRUPT]" in str(item)]
    assert isinstance(message, UserMessage)
    lines = message.text.splitlines()
    assert lines[0] == "[USER INTERRUPT]"
    assert (lines[1][:3], lines[2], lines[3][:3], lines[4]) == (
        "1. ",
        "in German",
        "2. ",
        "and short",
    )


async def test_what_was_said_meanwhile_survives_a_compaction() -> None:
    looks = [Call("w.big", size=6_000) for _ in range(6)]
    model = ScriptedModel([*looks, "Done."], window=7_000, output_limit=1_000)
    async with at_work(model) as talk:
        await interrupted(talk, "go", "in German too")
        opened = {start.opened_by for start in await bodies(talk, RoundStart)}
    assert "compaction" in opened
    assert all(
        "in German too" in shown(request)
        for request in model.requests[1:]
        if request.purpose == "decision"
    )


async def test_an_answer_waits_while_the_user_has_said_more() -> None:
    async with at_work(["A.", "B."]) as talk:
        assert await interrupted(talk, "go", "and b?") == "B."
        (draft,) = await bodies(talk, Draft)
    assert draft.text == "A."


async def test_what_comes_on_the_last_round_is_reported_and_kept() -> None:
    log = MemoryLog(FakeClock())

    async with at_work(["A.", "B."], store=log) as talk:
        late = list[Receipt]()
        async for event in talk.stream("go", max_iterations=1):
            if isinstance(event, Block) and isinstance(event.body, RoundStart):
                late.append(await talk.followup("and b?"))
        assert late[0].seq not in {
            s for start in await bodies(talk, RoundStart) for s in start.takes
        }
        assert (await talk.say("well?")).answer == "B."
        assert late[0].seq in (await bodies(talk, RoundStart))[-1].takes


async def test_whoever_listens_hears_each_thing_that_was_said() -> None:
    async with at_work([Call("w.look"), "Both."]) as talk:
        events = list[str]()
        async for event in talk.stream("go"):
            events.append(event.type)
            if events == ["user.prompt", "turn.header", "react.round.start"]:
                await talk.followup("in German")
                await talk.followup("and short")
    assert events.count("user.followup") == 2


async def test_what_no_round_has_taken_can_be_taken_back_once() -> None:
    model = ScriptedModel(["One.", "Two."])
    async with at_work(model) as talk:
        await talk.say("first")
        receipt = await talk.followup("by the way")
        assert await talk.recall(receipt)
        assert not await talk.recall(receipt)
        await talk.say("second")
        first = (await talk.blocks())[0]
        assert not await talk.recall(Receipt(first.seq, 1))
    assert "by the way" not in shown(model.requests[1])


async def test_a_tool_that_asks_the_user_pauses_the_turn() -> None:
    desk = Desk()
    script: list[Entry] = [
        Say("", Call("w.ask", question="Which?"), Call("w.look", text="tea")),
        "Done.",
    ]
    async with at_work(ScriptedModel(script, strict=False), workbench(desk)) as talk:
        events = await heard(talk, "go")
        (pending,) = await bodies(talk, ToolPending)
        ends = await bodies(talk, Exit)
    texts = [delta.text for delta in events if isinstance(delta, Delta) and delta.type == "pending"]
    assert (texts, pending.question, ends) == (["Which?"], "Which?", [])
    assert sorted(desk.began) == ["ask", "tea"]


async def test_the_result_of_a_paused_turn_names_the_question() -> None:
    async with at_work(ScriptedModel([Call("w.ask"), "x"], strict=False)) as talk:
        result = await talk.say("go")
    (waiting,) = result.pending
    assert (result.exit_reason, result.ok) == ("paused", False)
    assert (waiting.call_id, waiting.tool, waiting.question) == ("c1", "w.ask", "Which one?")


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_the_users_answer_is_the_result_and_nothing_runs_again(
    store: str, tmp_path: Path
) -> None:
    desk, clock = Desk(), FakeClock()
    log: str | TimelineLog = MemoryLog(clock) if store == "memory" else f"sqlite:///{tmp_path}/c.db"
    script: list[Entry] = [Say("", Call("w.ask"), Call("w.look", text="tea"))]
    async with at_work(script, workbench(desk), store=log) as talk:
        await talk.say("go")
        with pytest.raises(LooplineError, match="waits for c1"):
            await talk.resume()
    model = ScriptedModel(["The second."])
    async with at_work(model, workbench(desk), store=log) as talk:
        result = await talk.resume({"c1": "the second"})
    assert (result.answer, desk.began) == ("The second.", ["ask", "tea"])
    assert [item.text.partition("\n")[2] for item in results(model.requests[0])] == [
        "the second",
        "seen tea",
    ]


class Asking:
    """Asks about whatever is no read."""

    async def before(self, call: GuardedCall) -> Verdict:
        return Ask(f"May {call.tool} run?")

    async def after(self, call: GuardedCall, text: str) -> str:
        return text


@pytest.mark.parametrize(
    ("value", "began", "message"),
    [
        (True, ["x"], "ran x"),
        ("yes", ["x"], "ran x"),
        ({"approved": True}, ["x"], "ran x"),
        (False, [], "did not approve"),
        ({"approved": False, "reason": "Too dear."}, [], "The user's reason: Too dear. Do not"),
    ],
)
async def test_a_call_that_needs_leave_runs_only_with_it(
    value: Json, began: list[str], message: str
) -> None:
    desk, model = Desk(), ScriptedModel([Call("w.command", text="x"), "Done."])
    async with at_work(model, workbench(desk, guards=[Asking()])) as talk:
        result = await talk.say("go")
        assert ([pending_call.question for pending_call in result.pending], desk.began) == (
            ["May w.command run?"],
            [],
        )
        assert (await talk.resume({"c1": value})).answer == "Done."
    assert (desk.began, message in results(model.requests[1])[0].text) == (began, True)


@pytest.mark.parametrize("value", [None, 1, ["yes"], {"approved": "yes"}, {}, "maybe"])
async def test_an_answer_that_is_neither_yes_nor_no_is_refused(value: Json) -> None:
    async with at_work(
        ScriptedModel([Call("w.command", text="x"), "Done."]), workbench(guards=[Asking()])
    ) as talk:
        await talk.say("go")
        with pytest.raises(LooplineError, match="c1 awaits approval: answer yes or no"):
            await talk.resume({"c1": value})
        assert (await talk.resume({"c1": False})).answer == "Done."


class Cake:
    """Has cake in place of whatever is asked for."""

    async def before(self, call: GuardedCall) -> Verdict:
        return Allow({**call.arguments, "text": "cake"})

    async def after(self, call: GuardedCall, text: str) -> str:
        return text


async def test_what_a_guard_changed_stays_changed_once_there_is_leave() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.command", text="tea"), "Done."])
    async with at_work(model, workbench(desk, guards=[Cake(), Asking()])) as talk:
        await talk.say("go")
        await talk.resume({"c1": True})
    assert desk.began == ["cake"]


STORY: list[Entry] = [
    Say("first", Call("w.look", text="tea"), Call("w.write", path="a")),
    Call("w.look", text="cake"),
    "Tea and cake.",
]


@pytest.mark.parametrize("kept", range(2, 12))
async def test_a_turn_that_is_cut_off_after_any_step_comes_to_the_same(kept: int) -> None:
    log, desk = CrashingLog(MemoryLog(FakeClock())), Desk()
    log.left = kept
    with pytest.raises(Crashed):
        async with at_work(ScriptedModel(STORY), workbench(desk), store=log) as talk:
            await talk.say("go")
    log.left = None
    async with at_work([], store=log) as talk:
        made = (await types(talk)).count("react.decision")
    async with at_work(ScriptedModel(STORY[made:]), workbench(desk), store=log) as talk:
        assert (await talk.resume()).answer == "Tea and cake."
    assert desk.began.count("a") == 1


async def test_the_next_process_knows_what_was_said(tmp_path: Path) -> None:
    store, model = f"sqlite:///{tmp_path}/c.db", ScriptedModel(["Hello, Ann."])
    async with at_work(["Hello."], store=store) as talk:
        await talk.say("I am Ann")
    async with at_work(model, store=store) as talk:
        await talk.say("Who am I?")
    assert [text in shown(model.requests[0]) for text in ("I am Ann", "Hello.")] == [True, True]


async def test_a_call_that_was_cut_off_has_one_result_that_says_so() -> None:
    clock, desk = FakeClock(), Desk()
    log = CrashingLog(MemoryLog(clock))
    log.left = 4  # what was asked, round, calls, and the start of the write
    with pytest.raises(Crashed):
        async with at_work(STORY, workbench(desk), store=log) as talk:
            await talk.say("go")
    log.left, model = None, ScriptedModel(["Then no cake."])
    async with at_work(model, workbench(desk), store=log) as talk:
        await talk.resume()
        ends = {result.call_id: result.status for result in await bodies(talk, ToolResult)}
    assert ends == {"c1": "ok", "c2": "interrupted"}
    assert [item.ok for item in results(model.requests[0])] == [True, False]


async def test_what_came_after_a_place_is_read_again_from_the_log() -> None:
    async with at_work([Call("w.look"), "Done."]) as talk:
        events = [block for block in await heard(talk, "go") if isinstance(block, Block)]
        for place in range(len(events) + 1):
            assert list(await talk.blocks(after=place)) == events[place:]


async def test_a_steer_cuts_off_what_is_looked_up_and_is_answered_to() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.hang"), "The other way."])
    async with at_work(model, workbench(desk)) as talk:
        turn = asyncio.ensure_future(talk.say("this way"))
        await desk.hanging.wait()
        await talk.steer("the other way")
        assert (await turn).answer == "The other way."
        (cut,) = await bodies(talk, ToolResult)
    assert cut.status == "interrupted"
    assert "the other way" in shown(model.requests[1])


async def test_a_reply_that_cannot_be_read_does_not_lose_what_was_said_meanwhile() -> None:
    model = in_json([Raw("no object"), "Both."])
    async with at_work(model) as talk:
        assert await interrupted(talk, "go", "in German too") == "Both."
        assert len(await bodies(talk, UserFollowup)) == 1
    assert "in German too" in shown(model.requests[1])


async def test_what_is_left_waiting_is_in_the_result() -> None:
    async with Harness.open(
        workbench(), store="memory:", model=ScriptedModel(["A."]), clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        turn = asyncio.ensure_future(talk.say("go", max_iterations=1))
        await begun(talk)
        receipt = await talk.followup("and b?")
        result = await turn
        late = [block.ref for block in await talk.blocks() if block.seq == receipt.seq]
    assert list(result.late_input) == late


async def test_a_paused_turn_gives_way_to_what_is_said_instead() -> None:
    async with at_work([Call("w.ask"), "Another."]) as talk:
        assert (await talk.say("go")).exit_reason == "paused"
        assert (await talk.say("never mind")).answer == "Another."
        assert [end.reason for end in await bodies(talk, Exit)] == ["interrupted", "complete"]


async def test_a_turn_with_two_questions_waits_for_both() -> None:
    model = ScriptedModel([Say("", Call("w.ask"), Call("w.ask")), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
        half = await talk.resume({"c2": "two"})
        assert (half.exit_reason, [item.call_id for item in half.pending]) == ("paused", ["c1"])
        assert (await talk.resume({"c1": "one"})).answer == "Done."
    assert [item.text.partition("\n")[2] for item in results(model.requests[1])] == ["one", "two"]


async def test_what_is_said_while_a_turn_is_paused_is_taken_when_it_goes_on() -> None:
    model = ScriptedModel([Call("w.ask"), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
        await talk.followup("in German")
        assert (await talk.resume({"c1": "one"})).answer == "Done."
    assert "in German" in shown(model.requests[1])


async def test_a_steer_that_nobody_waits_for_is_taken_by_the_next_turn() -> None:
    model = ScriptedModel(["One.", "Two."])
    async with at_work(model) as talk:
        await talk.say("go")
        await talk.steer("the other way")
        assert (await talk.say("on")).answer == "Two."
    assert "the other way" in shown(model.requests[1])
