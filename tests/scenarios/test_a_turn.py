"""Turns of a scripted model over real tools: rounds, limits, how a turn ends, and what it leaves in the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from loopline import BaseWorkflow, Bundle, LooplineError, TurnPayload, TurnResult, models, run_sync
from loopline import timeline as tl
from loopline.errors import AttachmentError
from loopline.prompt import replayed_rounds
from loopline.react import Limits, PresetName, ReactStateV2, Reminder, Stop, channels, nodes
from loopline.testing import Call, Fail, FakeClock, Say, ScriptedModel, ScriptError
from loopline.testing.scripted import Entry
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import (
    Desk,
    Spoken,
    at_work,
    bodies,
    bodies_of,
    decisions,
    results,
    run_turn,
    shown,
    types,
    workbench,
)


async def test_every_step_is_in_the_log_in_its_order() -> None:
    _, blocks = await play_turn([Say("on it", Call("play.alone", text="x")), "Done."])
    assert [block.type for block in blocks] == [
        "user.prompt",
        "turn.header",
        "react.round.start",
        "react.decision",
        "react.notes",
        "react.tool.call",
        "react.tool.start",
        "react.tool.result",
        "react.round.start",
        "react.decision",
        "assistant.completion",
        "react.exit",
    ]


async def test_only_reads_begin_without_a_start_block() -> None:
    script: list[Entry] = [Say("", Call("play.look"), Call("play.alone", text="x")), "Done."]
    _, blocks = await play_turn(script)
    assert [item.call_id for item in bodies_of(blocks, tl.ToolStarted)] == ["c2"]


async def test_in_the_json_protocol_tools_work_as_in_the_native_one() -> None:
    script = ScriptedModel(
        [Say("… [1]", Call("play.look", text="tea")), Say("Tea.")], tool_call=False, json_mode=True
    )
    result, _ = await play_turn(script)
    assert result.answer == "Tea."
    assert script.requests[0].tools == ()
    assert "play.look" in script.requests[0].system
    assert script.requests[0].options.json_object
    last = script.requests[-1].messages[-1]
    assert isinstance(last, models.UserMessage)
    assert last.text == "[tc:turn_1.c1.result]\nseen tea"


async def test_at_the_limit_a_summary_stands_in_when_the_model_only_calls() -> None:
    script: list[Entry] = [Call("play.look"), Call("play.look")]
    result, blocks = await play_turn(script, max_iterations=1)
    (answer,) = bodies_of(blocks, tl.Completion)
    assert answer.flag == "summary"
    assert "play.look (c1): OK" in result.answer


async def test_a_model_that_fails_ends_the_turn_with_what_was_done_and_the_reason() -> None:
    result, blocks = await play_turn(
        [Call("play.look"), Fail("no connection", after="Half an ans")]
    )
    (end,) = bodies_of(blocks, tl.Exit)
    assert (result.exit_reason, result.ok) == ("error", False)
    assert "no connection" in result.error
    assert "play.look (c1): OK" in result.answer
    assert end.error == result.error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("socket closed"), "RuntimeError: socket closed"),
        (LooplineError("no key set"), "no key set"),
    ],
)
async def test_any_error_of_a_model_is_a_result_and_not_a_crash(
    error: Exception, text: str
) -> None:
    result, _ = await play_turn([Fail(error)])
    assert (result.exit_reason, result.ok) == ("error", False)
    assert text in result.error


async def test_a_cited_source_is_in_the_result_and_an_unknown_number_is_set_apart() -> None:
    script: list[Entry] = [
        Say(
            "",
            Call("play.find", url="https://example.com/a"),
            Call("play.find", url="https://b.org"),
        ),
        Say("B [[S:2]], A [[S:1]], C [[S:9]], not `[[S:1]]`."),
    ]
    result, blocks = await play_turn(script)
    (answer,) = bodies_of(blocks, tl.Completion)
    assert [source.url for source in result.sources] == ["https://b.org", "https://example.com/a"]
    assert (answer.sources_used, answer.unknown_sources) == ((2, 1), (9,))


async def test_notes_acknowledge_steps_of_the_current_plan() -> None:
    plan = Call("react.plan", mode="new", steps=["look", "answer"])
    script = ScriptedModel(
        [Say("", plan), Say("✓ [1] looked", Call("play.look")), Say("✓ 2. answered\nHere.")]
    )
    result, blocks = await play_turn(script)
    acks = bodies_of(blocks, tl.PlanAck)
    [plan_state] = tl.Timeline(blocks).plans.latest.values()
    assert (result.answer, plan_state.status) == ("Here.", "complete")
    assert [ack.changes for ack in acks] == [{"1": "done"}, {"2": "done"}]
    assert "(current)\n□ [1] look\n□ [2] answer" in script.requests[1].tail
    assert "✓ [1] look\n□ [2] answer" in script.requests[2].tail


async def test_an_open_plan_is_announced_in_the_next_turn() -> None:
    script = ScriptedModel([Call("react.plan", mode="new", steps=["one", "two"]), "Later.", "Now."])
    async with talking(script) as talk:
        await talk.say("plan")
        await talk.say("go on")
        (item,) = await talk.read(["ar:plan.latest:plan:turn_1:c1"])
    assert "plan_id=plan:turn_1:c1 (current)" in script.requests[-1].tail
    assert item.ref == "ar:turn_1.react.plan.1"


async def test_a_script_that_is_not_read_to_its_end_is_an_error() -> None:
    with pytest.raises(
        ScriptError, match=r"1 entry of the script was not read, the next is 'Two\.'"
    ):
        await play_turn(["One.", "Two."])


async def test_a_failed_assertion_in_a_script_is_an_error() -> None:
    def check(prompt: models.Prompt) -> str:
        assert len(prompt.messages) == 0, "there are messages"
        return "Done."

    with pytest.raises(ScriptError, match="in a function of the script failed: there are messages"):
        await play_turn([Call("play.look"), check, "Done."])
    with pytest.raises(ScriptError, match="in a function of the script failed"):
        await asyncio.to_thread(run_sync, Bundle(id="play"), "Hi.", model=ScriptedModel([check]))


@pytest.mark.parametrize("script", ["One.", [42], ["One.", None]])
def test_a_script_with_an_entry_of_a_wrong_type_is_an_error(script: Any) -> None:
    with pytest.raises(
        ScriptError,
        match=r"the script is a text|is not an entry of a script: use a str, Say, Call,",
    ):
        ScriptedModel(script)


async def test_an_empty_message_is_refused_before_anything_is_recorded() -> None:
    async with talking([]) as talk:
        with pytest.raises(LooplineError, match="say something"):
            await talk.say("  ")
        assert await talk.blocks() == []


class Direct(BaseWorkflow):
    """Answers without a model, keeps something, and judges itself."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        first = await self.keep("table", {"rows": 1})
        second = await self.keep("table", {"rows": 2})
        await self.feedback("ok", confidence=0.5)
        return await self.answer(f"{payload.text}: {first} {second}")


async def test_a_workflow_may_answer_without_a_model_and_keep_what_it_made() -> None:
    async with talking([], bundle=Bundle(id="direct", workflow=Direct)) as talk:
        result = await talk.say("hi")
        reading = await talk.read(
            ["ar:turn_1.artifacts.table", "ar:turn_1.artifacts.table@1", "ar:turn_1.user.prompt"]
        )
    assert result.answer == "hi: ar:turn_1.artifacts.table@1 ar:turn_1.artifacts.table@2"
    assert [item.text for item in reading] == ['{"rows":2}', '{"rows":1}', "hi"]
    assert reading.paths[0] == "ar:turn_1.artifacts.table@2"


async def test_feedback_is_kept_with_its_turn_and_an_unknown_turn_is_refused() -> None:
    async with talking(["Yes."]) as talk:
        await talk.say("go")
        await talk.feedback("turn_1", "ok", text="good")
        with pytest.raises(LooplineError, match="no turn 'turn_7': here is turn_1"):
            await talk.feedback("turn_7", "ok")
        assert (await types(talk))[-1] == "turn.feedback"


async def test_feedback_that_is_longer_than_a_message_may_be_is_refused() -> None:
    async with talking(["Yes."]) as talk:
        await talk.say("go")
        with pytest.raises(AttachmentError, match="600,000 bytes of text"):
            await talk.feedback("turn_1", "ok", text="x" * 600_000)
        assert "turn.feedback" not in await types(talk)


async def test_feedback_is_announced_in_every_turn_while_the_providers_cache_is_warm() -> None:
    script = ScriptedModel(["One.", "Two.", "Three."])
    async with talking(script) as talk:
        await talk.say("first")
        await talk.feedback("turn_1", "not_ok", text="too short")
        await talk.say("second")
        await talk.say("third")
    told = [
        "[NEW FEEDBACK]\nturn_1 not_ok (user): too short" in request.tail
        for request in script.requests
    ]
    assert told == [False, True, True]


async def test_there_is_nothing_to_carry_on_when_every_turn_has_ended() -> None:
    async with talking(["Yes."]) as talk:
        await talk.say("go")
        with pytest.raises(LooplineError, match="nothing to carry on"):
            await talk.resume()


async def test_channels_are_reduced_from_the_blocks_of_a_turn() -> None:
    script = ScriptedModel(
        [
            Say("", Call("play.look"), usage=models.Usage(input_tokens=10, output_tokens=5)),
            Say("Done.", usage=models.Usage(input_tokens=20, output_tokens=10)),
        ]
    )
    _, blocks = await play_turn(script)
    after_call = [block for block in blocks if block.seq <= 5]
    waiting = channels(tl.Timeline(after_call), 1)
    ended_channels = channels(tl.Timeline(blocks), 1)
    assert (waiting.turn, waiting.pending_tools) == (1, ("c1",))
    assert (ended_channels.turn, ended_channels.pending_tools, ended_channels.llm_response) == (
        2,
        (),
        "Done.",
    )
    assert (
        ended_channels.input_tokens,
        ended_channels.output_tokens,
        ended_channels.stop_reason,
    ) == (30, 15, "stop")
    assert ended_channels.messages[: len(waiting.messages)] == waiting.messages


async def test_every_step_of_a_turn_belongs_to_a_node() -> None:
    _, blocks = await play_turn([Call("play.look"), "Done."])
    walked = [node for node, _ in nodes(blocks)]
    assert walked == [
        "prepare",
        "call_llm",
        "route_after",
        "execute_tools",
        "prepare",
        "call_llm",
        "finalize",
        "finalize",
    ]


async def test_the_time_is_told_in_the_time_zone_of_the_user_too() -> None:
    model = ScriptedModel(["One.", "Two."])
    async with at_work(model) as talk:
        await talk.say("go", time_zone="Asia/Kolkata")
        await talk.say("go")
    lines = [request.tail.splitlines()[1] for request in model.requests]
    assert lines == [
        "[TIME] 2026-01-01 00:00 UTC, 2026-01-01 05:30 Asia/Kolkata  [TURN] turn_1",
        "[TIME] 2026-01-01 00:00 UTC  [TURN] turn_2",
    ]


class Busy:
    """Takes its time for a call and then answers; `meanwhile` the user says more."""

    name = "busy"
    capabilities = models.Capabilities()

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.tails = list[str]()
        self.asked = asyncio.Event()
        self.said = asyncio.Event()

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        self.tails.append(prompt.tail)
        if len(self.tails) == 1:
            self.asked.set()
            await self.said.wait()
            self.clock.advance(95)
            call = models.ToolCall(name="w.look", arguments={})
            yield models.Reply(text="", calls=(call,), stop_reason="tool_use")
        else:
            yield models.Reply(text="Done.")


async def test_how_long_the_turn_has_run_and_which_prompts_wait_is_told() -> None:
    clock = FakeClock()
    model = Busy(clock)
    async with at_work(model, clock=clock) as talk:
        first = asyncio.create_task(talk.say("go"))
        await model.asked.wait()
        later = asyncio.create_task(talk.say("and then"))
        for _ in range(1_000):
            if await talk.blocks(types="user.prompt", turn="turn_2"):
                break
        model.said.set()
        await asyncio.gather(first, later)
        blocks = await talk.blocks()
    assert model.tails[1].splitlines()[1:] == [
        "[TIME] 2026-01-01 00:01 UTC  [TURN] turn_1, running for 0:01:35",
        "[WAITING] ar:turn_2.user.prompt",
    ]
    assert "[WAITING]" not in model.tails[2]
    assert [
        replayed_round.divergence for replayed_round in replayed_rounds(tl.Timeline(blocks))
    ] == [None] * 3


def calls(number: int) -> list[models.ToolCall]:
    return [Call("w.count", number=n) for n in range(1, number + 1)]


async def test_one_loop_goes_on_until_nothing_more_is_called() -> None:
    model = ScriptedModel([Call("w.look", text="tea"), "Tea."])
    result, _ = await run_turn(model)
    assert (result.answer, result.exit_reason, result.ok) == ("Tea.", "complete", True)
    assert (result.rounds, len(model.requests)) == (2, 2)
    assert "w.look" in [tool.name for tool in model.requests[0].tools]
    assert [item.text.endswith("seen tea") for item in results(model.requests[1])] == [True]


async def test_a_round_is_one_decision_with_all_its_calls() -> None:
    result, blocks = await run_turn([Say("", *calls(3)), Say("", *calls(2)), "Done."])
    begun = [block.round for block in blocks if block.type == "react.round.start"]
    rounds = [block.round for block in blocks if block.type == "react.tool.result"]
    assert (begun, result.rounds) == ([1, 2, 3], 3)
    assert rounds == [1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("preset", "most"),
    [("kdcube", 15), ("fim", 50), ("nadoo", 10), ("chatcli", 30), ("chatcli", 7)],
)
async def test_an_endless_caller_makes_as_many_decisions_as_the_preset_says(
    preset: PresetName, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if most == 7:
        monkeypatch.setenv("CHATCLI_AGENT_WORKER_MAX_TURNS", "7")
    model = ScriptedModel([*calls(most), "What there is."], strict=False)
    result, _ = await run_turn(model, workbench(preset=preset, cycle_warning_rounds=0))
    assert (result.rounds, result.exit_reason) == (most, "max_iterations")


async def test_at_the_limit_a_summary_tells_how_each_call_ended() -> None:
    used = models.Usage(input_tokens=10, output_tokens=5)
    called = ("w.look", "w.fail", "w.nothing")
    model = ScriptedModel([Say("", Call(name), usage=used) for name in called])
    result, _ = await run_turn(model, max_iterations=3, on_exhausted="summary")
    assert result.answer.splitlines() == [
        "There is no answer: the round limit was reached.",
        "This is what was done:",
        "- w.look (c1): OK",
        "- w.fail (c2): ERROR (error)",
        "- w.nothing (c3): OK",
    ]
    assert (result.rounds, result.exit_reason, len(model.requests)) == (3, "max_iterations", 3)
    assert result.usage == used + used + used


async def test_at_the_limit_an_answer_is_asked_for_without_calls() -> None:
    model = ScriptedModel([*calls(2), "So far, two."])
    result, blocks = await run_turn(model, max_iterations=2)
    (answer,) = bodies_of(blocks, tl.Completion)
    assert (result.answer, result.exit_reason, answer.flag) == (
        "So far, two.",
        "max_iterations",
        "forced",
    )
    assert (result.rounds, result.ok) == (2, False)
    assert [request.options.allow_calls for request in model.requests] == [True, True, False]
    assert model.requests[-1].tools == model.requests[0].tools


async def test_at_the_limit_all_that_was_collected_may_be_the_answer() -> None:
    result, blocks = await run_turn(
        [Call("w.look", text=text) for text in ("tea", "cake", "pie")],
        max_iterations=3,
        on_exhausted="partial",
    )
    (answer,) = bodies_of(blocks, tl.Completion)
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
    model = ScriptedModel(["At once."])
    result, _ = await run_turn(model, early_stop=True)
    assert (result.answer, result.rounds, result.exit_reason) == ("At once.", 1, "complete")
    assert len(model.requests) == 1


async def test_without_early_stop_the_answer_of_the_last_round_counts() -> None:
    model = ScriptedModel(["One.", "Two.", "Three."])
    result, blocks = await run_turn(model, early_stop=False, max_iterations=3)
    drafts = bodies_of(blocks, tl.Draft)
    assert (result.answer, result.rounds, result.exit_reason) == ("Three.", 3, "complete")
    assert [draft.text for draft in drafts] == ["One.", "Two."]
    assert "this was round 1 of at least 3" in shown(model.requests[1])
    assert "this was round 2 of at least 3" in shown(model.requests[2])


async def test_when_its_time_is_over_a_turn_keeps_what_it_has() -> None:
    desk = Desk()
    script: list[Entry] = [
        Call("w.look", text="tea"),
        Say("", Call("w.hang"), Call("w.sleep", seconds=90)),
    ]
    result, blocks = await run_turn(script, workbench(desk), clock=desk.clock, deadline_seconds=60)
    cut = [result.status for result in bodies_of(blocks, tl.ToolResult)]
    assert result.exit_reason == "deadline"
    assert "w.look (c1): OK" in result.answer
    assert cut == ["ok", "stopped", "stopped"]


async def test_nothing_is_asked_that_the_budget_does_not_cover() -> None:
    dear = models.Usage(input_tokens=90_000, output_tokens=30_000)
    model = ScriptedModel([Say("", Call("w.look"), usage=dear)])
    result, _ = await run_turn(model, max_tokens=100_000)
    assert (result.exit_reason, len(model.requests)) == ("budget", 1)
    assert result.answer.startswith("There is no answer: the budget of the turn was spent.")
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
            if isinstance(event, tl.Block) and isinstance(event.body, tl.ToolStarted):
                await talk.stop()
        stopped = [result.status for result in await bodies(talk, tl.ToolResult)]
        (end,) = await bodies(talk, tl.Exit)
        last = (await types(talk))[-1]
    assert (stopped, end.reason, last) == (["ok", "stopped", "stopped"], "stopped", "react.exit")
    assert asyncio.all_tasks() == before


async def test_each_decision_says_why_the_model_stopped() -> None:
    call = models.ToolCall(name="w.look", arguments={})
    model = Spoken(
        models.Reply(calls=(call,), stop_reason="tool_use"),
        models.Reply(text="It goes", stop_reason="length"),
        models.Reply(text=" on.", stop_reason="stop"),
        models.Reply(stop_reason="refusal"),
    )
    async with at_work(model) as talk:
        first, second = await talk.say("go"), await talk.say("go")
        reasons = [decision.stop_reason for decision in await bodies(talk, tl.Decision)]
    assert reasons == ["tool_use", "length", "stop", "refusal"]
    assert (first.answer, second.exit_reason, second.ok) == ("It goes on.", "refused", False)


async def test_usage_is_the_sum_over_all_requests_of_the_turn() -> None:
    def used(given: int, made: int) -> models.Usage:
        return models.Usage(input_tokens=given, output_tokens=made)

    model = ScriptedModel(
        [Say("", Call("w.look"), usage=used(10, 5)), Say("Brief.", usage=used(20, 10)),
         Say("Long.", usage=used(3, 2))],
        aux={"selection": [Say("", Call("select_tools", tools=["w.look"]), usage=used(1, 1))]},
    )  # fmt: skip
    result, blocks = await run_turn(model, select_tools=True, answer_mode="synthesize")
    decisions = bodies_of(blocks, tl.Decision)
    assert (result.answer, result.usage) == ("Long.", used(34, 18))
    assert [decision.usage for decision in decisions] == [used(10, 5), used(20, 10), used(3, 2)]


async def test_a_reply_that_was_cut_off_is_continued_with_more_room() -> None:
    model = Spoken(
        models.Reply(text="Half an ", stop_reason="length"), models.Reply(text="answer.")
    )
    result, _ = await run_turn(model)
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
    protocol: models.ProtocolName, pieces: list[str]
) -> None:
    cut = [models.Reply(text=piece, stop_reason="length") for piece in pieces[:-1]]
    result, blocks = await run_turn(Spoken(*cut, models.Reply(text=pieces[-1])), protocol=protocol)
    (answer,) = bodies_of(blocks, tl.Completion)
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
    limits: Limits, ends: tuple[models.StopReason, ...]
) -> None:
    call = models.ToolCall(name="w.look", arguments={})
    replies = [
        models.Reply(text="Half", stop_reason=end, calls=(call,) if end == "tool_use" else ())
        for end in ends
    ]
    async with at_work(Spoken(*replies, models.Reply(text="Whole."))) as talk:
        cut = await talk.say("go", **limits)
        whole = await talk.say("go")
    assert cut.answer.startswith("Half")
    assert (cut.truncated, whole.truncated) == (True, False)


async def test_a_call_that_was_cut_off_is_completed_and_runs() -> None:
    desk = Desk()
    reply = models.Reply(text='<tool_call name="w.look">{"text": "te', stop_reason="length")
    model = Spoken(reply, models.Reply(text='a"}</tool_call>'), models.Reply(text="Tea."))
    async with at_work(model, workbench(desk, protocol="tagged")) as talk:
        assert (await talk.say("go")).answer == "Tea."
    assert desk.began == ["tea"]


async def test_a_model_that_begins_anew_is_read_by_itself() -> None:
    whole_text = '{"action": "final_answer", "answer": "Whole."}'
    model = Spoken(
        models.Reply(text='{"action": "fin', stop_reason="length"), models.Reply(text=whole_text)
    )
    async with at_work(model) as talk:
        assert (await talk.say("go", protocol="json")).answer == "Whole."


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
async def test_the_same_calls_again_and_again_end_the_turn(order: tuple[str, str]) -> None:
    def both(*texts: str) -> Say:
        return Say("", *[Call("w.look", text=f" {text} ") for text in texts])

    model = ScriptedModel([both("a", "b"), both(*order), both("a", "b"), "Enough."])
    result, blocks = await run_turn(model, stagnation_rounds=3)
    notices = bodies_of(blocks, tl.Notice)
    assert (result.exit_reason, result.answer) == ("stagnation", "Enough.")
    assert len(decisions(model)) == 3
    why = "The same calls were made 3 times over: w.look."
    assert notices == [tl.Notice(code="stagnation", text=why)]
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
    await run_turn(model, workbench(round_hooks=[hurry]))
    assert [str(request).count("Be quick.") for request in model.requests] == [0, 1, 1]
    assert len(results(model.requests[-1])) == 2


async def test_why_a_nudge_ended_a_turn_with_the_answer_on_the_table_is_in_the_log() -> None:
    def enough(state: ReactStateV2) -> Stop | None:
        return Stop("complete", "This is enough.") if state.answer else None

    result, blocks = await run_turn(["Tea."], workbench(round_hooks=[enough]))
    notices = bodies_of(blocks, tl.Notice)
    assert (result.answer, result.exit_reason) == ("Tea.", "complete")
    assert notices == [tl.Notice(code="complete", text="This is enough.")]


async def test_a_call_that_takes_too_long_is_a_result_and_the_others_go_on() -> None:
    desk = Desk()
    script: list[Entry] = [Say("", Call("w.hang"), Call("w.sleep", seconds=30)), "Done."]
    result, blocks = await run_turn(
        script, workbench(desk), clock=desk.clock, tool_timeout_seconds=20
    )
    rows = [(result.status, result.text) for result in bodies_of(blocks, tl.ToolResult)]
    assert result.answer == "Done."
    assert ("error", "it was cut off after 20 s") in rows


async def test_with_synthesis_the_answer_at_the_limit_is_written_from_the_trace() -> None:
    model = ScriptedModel([Call("w.look", text="tea"), "Tea, at length."])
    result, _ = await run_turn(model, max_iterations=1, answer_mode="synthesize")
    assert (result.answer, result.exit_reason) == ("Tea, at length.", "max_iterations")


async def test_a_hook_reads_how_many_decisions_a_turn_may_make() -> None:
    states = list[ReactStateV2]()

    await run_turn([Call("w.look"), "Done."], workbench(round_hooks=[states.append]))
    assert [(state.iteration, state.max_iterations) for state in states[:2]] == [(0, 15), (1, 15)]
