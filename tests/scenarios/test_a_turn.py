"""Turns of a scripted model over real tools: what the loop does, and what it leaves in the log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from loopline import BaseWorkflow, Bundle, BundleError, LooplineError, TurnPayload, TurnResult
from loopline.conversations import Conversation
from loopline.errors import AttachmentError
from loopline.models import ToolMessage, UserMessage
from loopline.testing import Call, Fail, Raw, Refuse, Say, ScriptedModel, ScriptError
from loopline.testing.scripted import Entry
from loopline.timeline import (
    Block,
    Completion,
    Decision,
    Draft,
    Exit,
    Notice,
    PlanAck,
    RoundStart,
    ToolResult,
    ToolStarted,
)
from tests.support.scripted_conversation import talking

T = TypeVar("T")


async def left(talk: Conversation, kind: type[T]) -> list[T]:
    return [block.body for block in await talk.blocks() if isinstance(block.body, kind)]


def types(blocks: Sequence[Block]) -> list[str]:
    return [block.type for block in blocks]


async def test_an_answer_may_rest_on_a_tool_and_its_result_reads_again() -> None:
    async with talking([Say("", Call("play.look", text="tea")), Say("Tea was seen.")]) as talk:
        result = await talk.say("look for tea")
        assert (result.answer, result.ok, result.rounds) == ("Tea was seen.", True, 2)
        (item,) = await talk.read(["tc:turn_1.c1.result"])
        assert item.text == "seen tea"


async def test_every_step_is_in_the_log_in_its_order() -> None:
    async with talking([Say("on it", Call("play.alone", text="x")), "Done."]) as talk:
        await talk.say("go")
        assert types(await talk.blocks()) == [
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


async def test_a_tool_that_refuses_is_told_to_the_model_and_not_to_the_user() -> None:
    script = ScriptedModel(
        [
            Say(
                "",
                Call("play.fail", message="not today"),
                Call("play.crash"),
                Call("play.nowhere"),
                Call("play.look", txt=1),
            ),
            Say("Sorry."),
        ]
    )
    async with talking(script) as talk:
        result = await talk.say("try")
    assert result.answer == "Sorry."
    texts = [m.text for m in script.requests[-1].messages if isinstance(m, ToolMessage)]
    assert "not today" in texts[0]
    assert "broken" in texts[1]
    assert "no tool 'play.nowhere'" in texts[2]
    assert "txt" in texts[3]


async def test_results_are_shown_in_the_order_of_their_calls() -> None:
    names = ["play.alone", "play.look", "play.find", "play.look"]
    arguments = [{"text": "a"}, {"text": "b"}, {"url": "https://example.com"}, {"text": "d"}]
    calls = [Call(n, **a) for n, a in zip(names, arguments, strict=True)]
    script = ScriptedModel([Say("", *calls), "Done."])
    async with talking(script) as talk:
        await talk.say("go")
    shown = [m.call_id for m in script.requests[-1].messages if isinstance(m, ToolMessage)]
    assert shown == ["c1", "c2", "c3", "c4"]


async def test_calls_that_write_one_key_keep_their_order_and_each_begins_once(
    tmp_path: Path,
) -> None:
    ledger = tmp_path / "ledger"
    calls = [Call("play.note", name="n", ledger=str(ledger)) for _ in range(5)]
    async with talking([Say("", *calls), "Done."]) as talk:
        await talk.say("write")
        starts = [item.call_id for item in await left(talk, ToolStarted)]
    written = [line.split(":")[1].split()[0] for line in ledger.read_text().splitlines()]
    assert written == starts == ["c1", "c2", "c3", "c4", "c5"]


async def test_only_reads_begin_without_a_start_block() -> None:
    script: list[Entry] = [Say("", Call("play.look"), Call("play.alone", text="x")), "Done."]
    async with talking(script) as talk:
        await talk.say("go")
        assert [item.call_id for item in await left(talk, ToolStarted)] == ["c2"]


async def test_an_answer_waits_when_the_user_has_said_something_more() -> None:
    script = ScriptedModel(["Hello.", "Hello, and bonjour."])
    async with talking(script) as talk:
        async for event in talk.stream("greet me"):
            if isinstance(event, Block) and isinstance(event.body, RoundStart) and event.round == 1:
                await talk.followup("in French too")
        drafts, answers = await left(talk, Draft), await left(talk, Completion)
    assert [draft.text for draft in drafts] == ["Hello."]
    assert [answer.text for answer in answers] == ["Hello, and bonjour."]
    last = script.requests[-1].messages[-1]
    assert isinstance(last, UserMessage)
    assert "in French too" in last.text


async def test_what_is_said_on_the_last_round_waits_for_the_next_turn() -> None:
    script = ScriptedModel(["Hello.", "Both."])
    async with talking(script) as talk:
        receipts = [
            await talk.followup("in French too")
            async for event in talk.stream("greet me", max_iterations=1)
            if isinstance(event, Block) and isinstance(event.body, RoundStart)
        ]
        result = await talk.say("and now?")
        begun = await left(talk, RoundStart)
    assert result.answer == "Both."
    assert begun[-1].takes == (receipts[0].seq, receipts[0].seq + 4)


async def test_a_malformed_reply_is_asked_for_once_more_and_then_taken_as_it_is() -> None:
    script = [Raw("no json here"), Raw("still none")]
    async with talking(ScriptedModel(script, tool_call=False, json_mode=True)) as talk:
        result = await talk.say("go")
        notices, (answer,) = await left(talk, Notice), await left(talk, Completion)
    assert len(notices) == 1
    assert "JSON" in notices[0].text
    assert (result.answer, answer.flag, result.ok) == ("still none", "unparsed", True)


async def test_in_the_json_protocol_tools_work_as_in_the_native_one() -> None:
    script = ScriptedModel(
        [Say("… [1]", Call("play.look", text="tea")), Say("Tea.")], tool_call=False, json_mode=True
    )
    async with talking(script) as talk:
        result = await talk.say("go")
    assert result.answer == "Tea."
    assert script.requests[0].tools == ()
    assert "play.look" in script.requests[0].system
    assert script.requests[0].options.json_object
    last = script.requests[-1].messages[-1]
    assert isinstance(last, UserMessage)
    assert last.text == "[tc:turn_1.c1.result]\nseen tea"


async def test_at_the_limit_the_answer_is_forced_without_calls() -> None:
    script = ScriptedModel([Call("play.look"), Call("play.look"), "What I have."])
    async with talking(script) as talk:
        result = await talk.say("go", max_iterations=2)
        (answer,) = await left(talk, Completion)
    assert (result.answer, result.exit_reason, result.ok) == (
        "What I have.",
        "max_iterations",
        False,
    )
    assert answer.flag == "forced"
    assert not script.requests[-1].options.allow_calls
    assert script.requests[-1].tools == script.requests[0].tools


async def test_at_the_limit_a_summary_stands_in_when_the_model_only_calls() -> None:
    script: list[Entry] = [Call("play.look"), Call("play.look")]
    async with talking(script) as talk:
        result = await talk.say("go", max_iterations=1)
        (answer,) = await left(talk, Completion)
    assert answer.flag == "summary"
    assert "play.look (c1): OK" in result.answer


async def test_a_model_that_fails_ends_the_turn_with_what_was_done_and_the_reason() -> None:
    async with talking([Call("play.look"), Fail("no connection", after="Half an ans")]) as talk:
        result = await talk.say("go")
        (end,) = await left(talk, Exit)
    assert (result.exit_reason, result.ok) == ("error", False)
    assert "no connection" in result.error
    assert "play.look (c1): OK" in result.answer
    assert end.error == result.error


async def test_any_error_of_a_model_is_a_result_and_not_a_crash() -> None:
    async with talking([Fail(RuntimeError("socket closed"))]) as talk:
        result = await talk.say("go")
    assert (result.exit_reason, result.ok) == ("error", False)
    assert "RuntimeError: socket closed" in result.error


async def test_a_refusal_is_an_exit_of_its_own() -> None:
    async with talking([Refuse()]) as talk:
        assert (await talk.say("go")).exit_reason == "refused"


async def test_a_cited_source_is_in_the_result_and_an_unknown_number_is_set_apart() -> None:
    script: list[Entry] = [
        Say(
            "",
            Call("play.find", url="https://example.com/a"),
            Call("play.find", url="https://b.org"),
        ),
        Say("B [[S:2]], A [[S:1]], C [[S:9]], not `[[S:1]]`."),
    ]
    async with talking(script) as talk:
        result = await talk.say("go")
        (answer,) = await left(talk, Completion)
    assert [source.url for source in result.sources] == ["https://b.org", "https://example.com/a"]
    assert (answer.sources_used, answer.unknown_sources) == ((2, 1), (9,))


async def test_a_source_keeps_its_number_when_it_is_found_again() -> None:
    script: list[Entry] = [
        Call("play.find", url="https://example.com/a"),
        Call("play.find", url="https://EXAMPLE.com:443/a/?utm_source=x#top"),
        Call("play.find", url="http://10.0.0.80:80/a"),
        "Done.",
    ]
    async with talking(script) as talk:
        await talk.say("go")
        results = await left(talk, ToolResult)
    assert ["[[S:1]]" in result.text for result in results] == [True, True, False]
    assert "[[S:2]]" in results[2].text


async def test_notes_acknowledge_steps_of_the_current_plan() -> None:
    plan = Call("react.plan", mode="new", steps=["look", "answer"])
    script = ScriptedModel(
        [Say("", plan), Say("✓ [1] looked", Call("play.look")), Say("✓ 2. answered\nHere.")]
    )
    async with talking(script) as talk:
        result = await talk.say("go")
        acks = await left(talk, PlanAck)
    assert result.answer == "Here."
    assert [ack.changes for ack in acks] == [{"1": "done"}, {"2": "done"}]
    assert "(current)\n□ [1] look\n□ [2] answer" in script.requests[1].tail
    assert "✓ [1] look\n□ [2] answer" in script.requests[2].tail


async def test_a_round_that_changes_a_plan_acknowledges_nothing() -> None:
    first = Call("react.plan", mode="new", steps=["look"])
    second = Call("react.plan", mode="new", steps=["look again"])
    async with talking([first, Say("✓ [1]", second), "Done."]) as talk:
        await talk.say("go")
        assert await left(talk, PlanAck) == []


async def test_an_open_plan_is_announced_in_the_next_turn() -> None:
    script = ScriptedModel([Call("react.plan", mode="new", steps=["one", "two"]), "Later.", "Now."])
    async with talking(script) as talk:
        await talk.say("plan")
        await talk.say("go on")
        (item,) = await talk.read(["ar:plan.latest:plan:turn_1:c1"])
    assert "plan_id=plan:turn_1:c1 (current)" in script.requests[-1].tail
    assert item.ref == "ar:turn_1.react.plan.1"


async def test_a_script_that_is_not_read_to_its_end_is_an_error() -> None:
    with pytest.raises(ScriptError, match="1 entries"):
        async with talking(["One.", "Two."]) as talk:
            await talk.say("go")


@pytest.mark.parametrize("script", ["One.", [42], ["One.", None]])
def test_a_script_with_an_entry_of_a_wrong_type_is_an_error(script: Any) -> None:
    with pytest.raises(ScriptError, match=r"the script is a text|is no entry of a script"):
        ScriptedModel(script)


async def test_an_empty_message_is_refused_before_anything_is_recorded() -> None:
    async with talking([]) as talk:
        with pytest.raises(LooplineError, match="say something"):
            await talk.say("  ")
        assert await talk.blocks() == []


class Failing(BaseWorkflow):
    """A workflow whose own code breaks."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        raise ZeroDivisionError("by design")


async def test_an_error_in_a_bundle_names_its_file_and_line_and_closes_the_turn() -> None:
    bundle = Bundle(id="failing", workflow=Failing)
    async with talking([], bundle=bundle) as talk:
        with pytest.raises(BundleError, match=r"test_a_turn\.py:\d+.*by design"):
            await talk.say("go")
        (end,) = await left(talk, Exit)
        assert end.reason == "error"
        assert "by design" in end.error


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
        assert types(await talk.blocks())[-1] == "turn.feedback"


async def test_feedback_that_is_longer_than_a_message_may_be_is_refused() -> None:
    async with talking(["Yes."]) as talk:
        await talk.say("go")
        with pytest.raises(AttachmentError, match="600,000 bytes of text"):
            await talk.feedback("turn_1", "ok", text="x" * 600_000)
        assert "turn.feedback" not in types(await talk.blocks())


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


async def test_stopping_leaves_a_turn_that_the_next_one_continues_from() -> None:
    script = ScriptedModel([Say("", Call("play.alone", text="x"), Call("play.look")), "Continued."])
    async with talking(script) as talk:
        async for event in talk.stream("go"):
            if isinstance(event, Block) and isinstance(event.body, ToolStarted):
                await talk.stop()
        (end,) = await left(talk, Exit)
        results = await left(talk, ToolResult)
        assert end.reason == "stopped"
        assert {result.status for result in results} <= {"stopped", "ok"}
        assert len(results) == 2
        result = await talk.say("go on")
    assert result.answer == "Continued."
    assert len(await_decisions(script)) == 2


def await_decisions(script: ScriptedModel) -> list[str]:
    return [request.purpose for request in script.requests]


async def test_there_is_nothing_to_carry_on_when_every_turn_has_ended() -> None:
    async with talking(["Yes."]) as talk:
        await talk.say("go")
        with pytest.raises(LooplineError, match="nothing to carry on"):
            await talk.resume()


async def test_decisions_carry_what_the_model_reported() -> None:
    from loopline.models import Usage

    usage = Usage(input_tokens=10, output_tokens=2)
    async with talking([Say("", Call("play.look"), usage=usage), Say("Yes.", usage=usage)]) as talk:
        result = await talk.say("go")
        decisions = await left(talk, Decision)
    assert result.usage == Usage(input_tokens=20, output_tokens=4)
    assert [decision.usage for decision in decisions] == [usage, usage]
