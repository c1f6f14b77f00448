"""The loop: rounds, limits, and how a turn ends."""

from __future__ import annotations

import asyncio

import pytest

from loopline.models import ProtocolName, Reply, StopReason, ToolCall, Usage
from loopline.react import Limits, PresetName, ReactStateV2, Reminder, Stop
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import (
    Block,
    Completion,
    Decision,
    Draft,
    Exit,
    Notice,
    RoundStart,
    ToolResult,
    ToolStarted,
)
from tests.support.workbench import (
    Desk,
    Spoken,
    at_work,
    bodies,
    decisions,
    heard,
    results,
    shown,
    types,
    workbench,
)


def calls(number: int) -> list[ToolCall]:
    """So many calls, each another one."""
    return [Call("w.count", number=n) for n in range(1, number + 1)]


async def test_one_loop_goes_on_until_nothing_more_is_called() -> None:
    model = ScriptedModel([Call("w.look", text="tea"), "Tea."])
    async with at_work(model) as talk:
        assert (await talk.say("go")).answer == "Tea."
    assert len(model.requests) == 2


async def test_a_round_is_one_decision_with_all_its_calls() -> None:
    async with at_work([Say("", *calls(3)), Say("", *calls(2)), "Done."]) as talk:
        result = await talk.say("go")
        rounds = [block.round for block in await talk.blocks() if block.type == "react.tool.result"]
        assert len(await bodies(talk, RoundStart)) == result.rounds == 3
    assert rounds == [1, 1, 1, 2, 2]


async def capped(preset: PresetName, most: int) -> None:
    """An endless caller makes so many decisions in the preset."""
    model = ScriptedModel([*calls(most), "What there is."], strict=False)
    async with at_work(model, workbench(preset=preset, cycle_warning_rounds=0)) as talk:
        result = await talk.say("go")
    assert (result.rounds, result.exit_reason) == (most, "max_iterations")


async def test_kdcube_makes_fifteen_decisions() -> None:
    await capped("kdcube", 15)


async def test_fim_makes_fifty_decisions() -> None:
    await capped("fim", 50)


async def test_nadoo_makes_ten_decisions() -> None:
    await capped("nadoo", 10)


async def test_chatcli_makes_thirty_decisions_or_as_many_as_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await capped("chatcli", 30)
    monkeypatch.setenv("CHATCLI_AGENT_WORKER_MAX_TURNS", "7")
    await capped("chatcli", 7)


async def test_at_the_limit_a_summary_tells_how_each_call_ended() -> None:
    model = ScriptedModel([Call("w.look"), Call("w.fail"), Call("w.nothing")])
    async with at_work(model) as talk:
        result = await talk.say("go", max_iterations=3, on_exhausted="summary")
    assert result.answer.splitlines() == [
        "There is no answer: the round limit was reached.",
        "This is what was done:",
        "- w.look (c1): OK",
        "- w.fail (c2): ERROR (error)",
        "- w.nothing (c3): OK",
    ]
    assert (result.rounds, result.exit_reason, len(model.requests)) == (3, "max_iterations", 3)


async def test_at_the_limit_an_answer_is_asked_for_without_calls() -> None:
    model = ScriptedModel([*calls(2), "So far, two."])
    async with at_work(model) as talk:
        result = await talk.say("go", max_iterations=2)
        (answer,) = await bodies(talk, Completion)
    assert (result.answer, result.exit_reason, answer.flag) == (
        "So far, two.",
        "max_iterations",
        "forced",
    )
    assert result.rounds == 2
    assert [request.options.allow_calls for request in model.requests] == [True, True, False]


async def test_at_the_limit_all_that_was_collected_may_be_the_answer() -> None:
    async with at_work([Call("w.look", text=text) for text in ("tea", "cake", "pie")]) as talk:
        result = await talk.say("go", max_iterations=3, on_exhausted="partial")
        (answer,) = await bodies(talk, Completion)
    assert [text in result.answer for text in ("seen tea", "seen cake", "seen pie")] == [True] * 3
    assert (answer.flag, result.exit_reason, result.error) == ("partial", "max_iterations", "")


async def test_an_answer_of_collected_results_is_bounded_and_names_what_was_cut() -> None:
    script: list[Entry] = [
        *(Call("w.big", size=3_000_000) for _ in range(3)),
        Call("w.count", number=7),
    ]
    async with at_work(script, workbench(preset="chatcli", max_iterations=4)) as talk:
        result = await talk.say("go")
        [whole_item] = await talk.read(["tc:turn_1.c2.result"])
    assert len(result.answer) < 31_000
    assert result.answer.count("more characters: tc:turn_1.c") == 3
    assert result.answer.endswith("- w.count (c4): OK\n7")
    assert len(whole_item.text) > 10_000


async def test_an_answer_may_end_any_round() -> None:
    async with at_work(["At once."]) as talk:
        result = await talk.say("go", early_stop=True)
    assert (result.answer, result.rounds) == ("At once.", 1)


async def test_without_early_stop_the_answer_of_the_last_round_counts() -> None:
    model = ScriptedModel(["One.", "Two.", "Three."])
    async with at_work(model) as talk:
        result = await talk.say("go", early_stop=False, max_iterations=3)
        drafts = await bodies(talk, Draft)
    assert (result.answer, result.rounds, result.exit_reason) == ("Three.", 3, "complete")
    assert [draft.text for draft in drafts] == ["One.", "Two."]
    assert "this was round 1 of at least 3" in shown(model.requests[1])
    assert "this was round 2 of at least 3" in shown(model.requests[2])


async def test_a_reply_without_calls_ends_the_turn() -> None:
    model = ScriptedModel(["Done."])
    async with at_work(model) as talk:
        assert (await talk.say("go")).exit_reason == "complete"
    assert len(model.requests) == 1


async def test_when_its_time_is_over_a_turn_keeps_what_it_has() -> None:
    desk = Desk()
    script: list[Entry] = [
        Call("w.look", text="tea"),
        Say("", Call("w.hang"), Call("w.sleep", seconds=90)),
    ]
    async with at_work(script, workbench(desk), clock=desk.clock) as talk:
        result = await talk.say("go", deadline_seconds=60)
        cut = [result.status for result in await bodies(talk, ToolResult)]
    assert result.exit_reason == "deadline"
    assert "w.look (c1): OK" in result.answer
    assert cut == ["ok", "stopped", "stopped"]


async def test_nothing_is_asked_that_the_budget_does_not_cover() -> None:
    dear = Usage(input_tokens=90_000, output_tokens=30_000)
    model = ScriptedModel([Say("", Call("w.look"), usage=dear)])
    async with at_work(model) as talk:
        result = await talk.say("go", max_tokens=100_000)
    assert (result.exit_reason, len(model.requests)) == ("budget", 1)
    assert "w.look (c1): ERROR (stopped)" in result.answer


async def test_a_turn_that_is_stopped_keeps_what_it_has_and_leaves_nothing_running() -> None:
    desk = Desk()
    before = asyncio.all_tasks()
    script: list[Entry] = [
        Call("w.look", text="tea"),
        Say("", Call("w.hang"), Call("w.write", path="a", ticks=10_000)),
    ]
    async with at_work(script, workbench(desk)) as talk:
        async for event in talk.stream("go"):
            if isinstance(event, Block) and isinstance(event.body, ToolStarted):
                await talk.stop()
        stopped = [result.status for result in await bodies(talk, ToolResult)]
        (end,) = await bodies(talk, Exit)
        last = (await types(talk))[-1]
    assert (stopped, end.reason, last) == (["ok", "stopped", "stopped"], "stopped", "react.exit")
    assert asyncio.all_tasks() == before


async def test_rounds_are_counted_from_one() -> None:
    async with at_work([*calls(2), "Done."]) as talk:
        events = await heard(talk, "go")
    blocks = [
        block for block in events if isinstance(block, Block) and block.type == "react.round.start"
    ]
    assert [item.round for item in blocks] == [1, 2, 3]


async def test_each_decision_says_why_the_model_stopped() -> None:
    call = ToolCall(name="w.look", arguments={})
    model = Spoken(
        Reply(calls=(call,), stop_reason="tool_use"),
        Reply(text="It goes", stop_reason="length"),
        Reply(text=" on.", stop_reason="stop"),
        Reply(stop_reason="refusal"),
    )
    async with at_work(model) as talk:
        first, second = await talk.say("go"), await talk.say("go")
        reasons = [decision.stop_reason for decision in await bodies(talk, Decision)]
    assert reasons == ["tool_use", "length", "stop", "refusal"]
    assert (first.answer, second.exit_reason) == ("It goes on.", "refused")


async def test_usage_is_the_sum_over_all_requests_of_the_turn() -> None:
    def used(given: int, made: int) -> Usage:
        return Usage(input_tokens=given, output_tokens=made)

    model = ScriptedModel(
        [Say("", Call("w.look"), usage=used(10, 5)), Say("Brief.", usage=used(20, 10)),
         Say("Long.", usage=used(3, 2))],
        aux={"selection": [Say("", Call("select_tools", tools=["w.look"]), usage=used(1, 1))]},
    )  # fmt: skip
    async with at_work(model) as talk:
        result = await talk.say("go", select_tools=True, answer_mode="synthesize")
    assert (result.answer, result.usage) == ("Long.", used(34, 18))


async def test_a_reply_that_was_cut_off_is_continued_with_more_room() -> None:
    model = Spoken(Reply(text="Half an ", stop_reason="length"), Reply(text="answer."))
    async with at_work(model) as talk:
        result = await talk.say("go")
    first, second = (request.options.output_limit or 0 for request in model.requests)
    assert (result.answer, result.ok) == ("Half an answer.", True)
    assert second > first


@pytest.mark.parametrize(
    ("protocol", "pieces"),
    [
        ("native", ["Half an ", "answer."]),
        ("json", ['{"action": "final_answer", "answer": "Half', ' an answer."}']),
        ("tagged", ["I know.<channel:answer>Half an", " answer.</channel:answer>"]),
        ("thought_action", ["Thought: I know.\nFinal Answer: Half", " an ", "answer."]),
    ],
)
async def test_what_was_cut_off_is_read_together_with_what_follows(
    protocol: ProtocolName, pieces: list[str]
) -> None:
    cut = [Reply(text=piece, stop_reason="length") for piece in pieces[:-1]]
    async with at_work(Spoken(*cut, Reply(text=pieces[-1]))) as talk:
        result = await talk.say("go", protocol=protocol)
        (answer,) = await bodies(talk, Completion)
    assert (result.answer, result.rounds, answer.flag) == ("Half an answer.", len(pieces), "")


@pytest.mark.parametrize(
    ("limits", "ends"),
    [
        (Limits(), ("length",) * 4),
        (Limits(protocol="tagged"), ("length",) * 4),
        (Limits(answer_mode="synthesize"), ("stop", "length")),
        (Limits(max_iterations=1, on_exhausted="force"), ("tool_use", "length")),
    ],
)
async def test_an_answer_that_stays_cut_off_is_truncated(
    limits: Limits, ends: tuple[StopReason, ...]
) -> None:
    call = ToolCall(name="w.look", arguments={})
    replies = [
        Reply(text="Half", stop_reason=end, calls=(call,) if end == "tool_use" else ())
        for end in ends
    ]
    async with at_work(Spoken(*replies, Reply(text="Whole."))) as talk:
        cut = await talk.say("go", **limits)
        whole = await talk.say("go")
    assert cut.answer.startswith("Half")
    assert (cut.truncated, whole.truncated) == (True, False)


async def test_a_call_that_was_cut_off_is_completed_and_runs() -> None:
    desk = Desk()
    reply = Reply(text='<tool_call name="w.look">{"text": "te', stop_reason="length")
    model = Spoken(reply, Reply(text='a"}</tool_call>'), Reply(text="Tea."))
    async with at_work(model, workbench(desk, protocol="tagged")) as talk:
        assert (await talk.say("go")).answer == "Tea."
    assert desk.began == ["tea"]


async def test_a_model_that_begins_anew_is_read_by_itself() -> None:
    whole_text = '{"action": "final_answer", "answer": "Whole."}'
    model = Spoken(Reply(text='{"action": "fin', stop_reason="length"), Reply(text=whole_text))
    async with at_work(model) as talk:
        assert (await talk.say("go", protocol="json")).answer == "Whole."


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
async def test_the_same_calls_again_and_again_end_the_turn(order: tuple[str, str]) -> None:
    def both(*texts: str) -> Say:
        return Say("", *[Call("w.look", text=f" {text} ") for text in texts])

    model = ScriptedModel([both("a", "b"), both(*order), both("a", "b"), "Enough."])
    async with at_work(model) as talk:
        result = await talk.say("go", stagnation_rounds=3)
        notices = await bodies(talk, Notice)
    assert (result.exit_reason, result.answer) == ("stagnation", "Enough.")
    assert len(decisions(model)) == 3
    why = "The same calls were made 3 times over: w.look."
    assert notices == [Notice(code="stagnation", text=why)]
    assert why in str(model.requests[-1])


async def test_rounds_of_another_kind_do_not_count_as_the_same() -> None:
    same_call = Call("w.look", text="a")
    async with at_work(
        [same_call, same_call, Call("w.nothing"), same_call, same_call, "Done."]
    ) as talk:
        assert (await talk.say("go", stagnation_rounds=3)).exit_reason == "complete"


async def test_a_nudge_is_told_once_between_two_decisions() -> None:
    def hurry(state: ReactStateV2) -> Reminder | None:
        return (
            Reminder("hurry", "Be quick.")
            if state.iteration == 1 and state.answer is None
            else None
        )

    model = ScriptedModel([Call("w.look"), Call("w.look"), "Done."])
    async with at_work(model, workbench(round_hooks=[hurry])) as talk:
        await talk.say("go")
    assert [str(request).count("Be quick.") for request in model.requests] == [0, 1, 1]
    assert len(results(model.requests[-1])) == 2


async def test_why_a_nudge_ended_a_turn_with_the_answer_on_the_table_is_in_the_log() -> None:
    def enough(state: ReactStateV2) -> Stop | None:
        return Stop("complete", "This is enough.") if state.answer else None

    async with at_work(["Tea."], workbench(round_hooks=[enough])) as talk:
        result = await talk.say("go")
        notices = await bodies(talk, Notice)
    assert (result.answer, result.exit_reason) == ("Tea.", "complete")
    assert notices == [Notice(code="complete", text="This is enough.")]


async def test_a_call_that_takes_too_long_is_a_result_and_the_others_go_on() -> None:
    desk = Desk()
    script: list[Entry] = [Say("", Call("w.hang"), Call("w.sleep", seconds=30)), "Done."]
    async with at_work(script, workbench(desk), clock=desk.clock) as talk:
        result = await talk.say("go", tool_timeout_seconds=20)
        rows = [(result.status, result.text) for result in await bodies(talk, ToolResult)]
    assert result.answer == "Done."
    assert ("error", "it was cut off after 20 s") in rows


async def test_with_synthesis_the_answer_at_the_limit_is_written_from_the_trace() -> None:
    model = ScriptedModel([Call("w.look", text="tea"), "Tea, at length."])
    async with at_work(model) as talk:
        result = await talk.say("go", max_iterations=1, answer_mode="synthesize")
    assert (result.answer, result.exit_reason) == ("Tea, at length.", "max_iterations")
