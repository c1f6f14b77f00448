"""What is promised of workers."""

from __future__ import annotations

import asyncio

import pytest

from loopline import Harness
from loopline.models import ProtocolName
from loopline.react import Allow, Deny, GuardedCall, Verdict
from loopline.testing import Call, Fail, FakeClock, Raw, Say, ScriptedModel
from loopline.timeline import Completion, Notice, ToolResult
from tests.support.workbench import Desk, at_work, bodies, decisions, results, workbench


class Only:
    """Lets only calls of some effects run."""

    def __init__(self, *effects: str) -> None:
        self._effects = effects

    async def before(self, call: GuardedCall) -> Verdict:
        return Allow() if call.effect in self._effects else Deny(f"{call.tool} is blocked")

    async def after(self, call: GuardedCall, text: str) -> str:
        return text


async def test_a_reply_without_calls_is_the_answer() -> None:
    async with at_work(["Hello."]) as talk:
        result = await talk.say("hi")
        assert (result.answer, await bodies(talk, ToolResult)) == ("Hello.", [])


@pytest.mark.parametrize(
    ("of_bundle", "of_turn", "made"), [(None, None, 15), (7, None, 7), (7, 3, 3)]
)
async def test_the_limit_of_the_turn_wins_over_that_of_the_bundle(
    of_bundle: int | None, of_turn: int | None, made: int
) -> None:
    model = ScriptedModel([*[Call("w.count", number=n) for n in range(made)], "Forced."])
    bundle = workbench() if of_bundle is None else workbench(max_iterations=of_bundle)
    async with at_work(model, bundle) as talk:
        await (talk.say("go") if of_turn is None else talk.say("go", max_iterations=of_turn))
    assert len(decisions(model)) == made


async def test_when_the_model_fails_there_is_a_result_and_its_error() -> None:
    async with at_work([Call("w.look", text="tea"), Fail("no network")]) as talk:
        result = await talk.say("go")
    assert (result.exit_reason, result.error) == ("error", "no network")
    assert "w.look (c1): OK" in result.answer


async def test_a_turn_that_is_stopped_before_it_begins_asks_nothing() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.hang")])
    async with Harness.open(
        workbench(desk), store="memory:", model=model, clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        first = asyncio.ensure_future(talk.say("first"))
        await desk.hanging.wait()
        second = asyncio.ensure_future(talk.say("second"))
        for _ in range(5):
            await asyncio.sleep(0)
        await talk.stop()
        outcomes = [(await item).exit_reason for item in (first, second)]
    assert (outcomes, len(model.requests)) == (["stopped", "stopped"], 1)


async def test_a_blocked_command_is_told_and_the_loop_goes_on() -> None:
    model = ScriptedModel([Call("w.command", text="x"), "Not then."])
    async with at_work(model, workbench(guards=[Only("read")])) as talk:
        assert (await talk.say("go")).answer == "Not then."
        (result,) = await bodies(talk, ToolResult)
    assert (result.status, result.text) == ("denied", "w.command is blocked")


async def test_who_only_reads_cannot_write() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.write", path="a"), "No."])
    async with at_work(model, workbench(desk, guards=[Only("read")])) as talk:
        await talk.say("go")
    assert (desk.began, results(model.requests[1])[0].ok) == ([], False)


async def test_three_rounds_with_one_call_each_are_three_calls() -> None:
    async with at_work([Call("w.look", text=item) for item in "abc"]) as talk:
        result = await talk.say("go", max_iterations=3, on_exhausted="partial")
        (answer,) = await bodies(talk, Completion)
    assert [f"seen {item}" in answer.text for item in "abc"] == [True] * 3
    assert (result.rounds, answer.flag) == (3, "partial")


async def test_what_a_call_does_decides_what_runs_beside_it() -> None:
    desk = Desk()
    calls = [
        Call("w.look", text="r1", ticks=3),
        Call("w.write", path="a", ticks=3),
        Call("w.write", path="b", ticks=3),
        Call("w.command", text="x", ticks=3),
        Call("w.look", text="r2", ticks=3),
    ]
    async with at_work([Say("", *calls), "Done."], workbench(desk)) as talk:
        await talk.say("go")
    assert sorted(desk.order[:3]) == ["+a", "+b", "+r1"]
    assert desk.order[-4:] == ["+x", "-x", "+r2", "-r2"]


async def test_five_calls_of_which_two_run_at_once_come_in_their_order() -> None:
    desk = Desk()
    calls = [Call("w.look", text=f"{n}", ticks=9 - n) for n in range(5)]
    model = ScriptedModel([Say("", *calls), "Done."])
    async with at_work(model, workbench(desk, parallel_tools=2)) as talk:
        await talk.say("go")
    assert desk.most == 2
    assert [item.text[-6:] for item in results(model.requests[1])] == [
        f"seen {n}" for n in range(5)
    ]


async def test_two_writes_of_one_file_beside_a_read_keep_their_order() -> None:
    desk = Desk()
    calls = [
        Call("w.write", path="a", text="1", ticks=5),
        Call("w.look", text="r", ticks=1),
        Call("w.write", path="a", text="2", ticks=1),
    ]
    async with at_work([Say("", *calls), "Done."], workbench(desk)) as talk:
        await talk.say("go")
    assert desk.order.index("-r") < desk.order.index("-a1") < desk.order.index("+a2")


@pytest.mark.parametrize(
    ("protocol", "broken"),
    [
        ("tagged", '<tool_call name="w.look">{</tool_call><tool_call name="w.big">{</tool_call>'),
        ("thought_action", "Action: w.look\nAction Input: {text"),
        ("json", '{"action": "call_tool", "tool": "w.look", "arguments": {'),
    ],
)
async def test_calls_that_are_all_broken_are_repaired_and_no_answer(
    protocol: ProtocolName, broken: str
) -> None:
    async with at_work([Raw(broken), "Done."], workbench(protocol=protocol)) as talk:
        result = await talk.say("go")
        (notice,) = await bodies(talk, Notice)
    assert (result.answer, notice.code) == ("Done.", "malformed_reply")
