"""What is promised of channels, layers of compaction, pauses and guarded calls."""

from __future__ import annotations

from pathlib import Path

from loopline.errors import ModelTimedOut
from loopline.models import Prompt, ToolCall, Usage
from loopline.react import Allow, Deny, GuardedCall, Verdict
from loopline.testing import Call, Fail, FakeClock, Refuse, Say, ScriptedModel, Wait
from loopline.testing.scripted import Entry
from loopline.timeline import (
    Completion,
    Decision,
    MemoryLog,
    RoundStart,
    SystemMessage,
    Timeline,
    ToolResult,
)
from tests.support.billed_model import BillingModel, Move
from tests.support.child_runs import Cast, kin
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.workbench import (
    Desk,
    at_work,
    bodies,
    interrupted,
    results,
    shown,
    workbench,
)


def small(script: list[Entry]) -> ScriptedModel:
    return ScriptedModel(
        script, aux={"summary": ["Goal."] * 9}, window=6_000, output_limit=1_000, strict=False
    )


def looks(number: int) -> list[Entry]:
    return [Call("w.big", size=3_000) for _ in range(number)]


async def test_channels_append_replace_and_add() -> None:
    used = Usage(input_tokens=10, output_tokens=5)
    calls = Say("", Call("w.look"), Call("w.look"), usage=used)
    async with at_work([calls, Say("Done.", usage=used)]) as talk:
        await talk.say("go")
        blocks = list(await talk.blocks())
    called = [block.seq for block in blocks if block.type == "react.tool.call"]
    between, after = Timeline(blocks[: called[-1]]).turn(1), Timeline(blocks).turn(1)
    assert list(between.open_calls) == ["c1", "c2"]  # replaced by each reply
    assert list(after.open_calls) == []
    assert (between.rounds, after.rounds) == (1, 2)
    assert (between.usage, after.usage) == (used, used + used)
    assert [decision.stop_reason for decision in after.decisions] == ["tool_use", "stop"]


async def test_tokens_add_up_over_requests_and_rounds_are_counted() -> None:
    script: list[Entry] = [
        Say("", Call("w.look"), usage=Usage(input_tokens=10, output_tokens=5)),
        Say("Done.", usage=Usage(input_tokens=20, output_tokens=10)),
    ]
    async with at_work(script) as talk:
        result = await talk.say("go")
    assert (result.usage, result.rounds) == (Usage(input_tokens=30, output_tokens=15), 2)


async def test_what_waits_is_in_the_very_next_request_once() -> None:
    model = ScriptedModel([Call("w.look"), Call("w.look"), "Done."])
    async with at_work(model) as talk:
        await interrupted(talk, "go", "in German")
    assert [shown(request).count("in German") for request in model.requests] == [0, 1, 1]


async def test_a_layer_that_suffices_is_the_last_one() -> None:
    reads = small([*looks(6), "Done."])
    rounds = small([*[Say("no " * 800, Call("w.look")) for _ in range(6)], "Done."])
    for model in (reads, rounds):
        async with at_work(model) as talk:
            await talk.say("go")
    light, heavy = (sum(r.purpose == "summary" for r in item.requests) for item in (reads, rounds))
    assert (light, heavy > 0) == (0, True)


async def test_there_is_a_notice_exactly_when_something_was_dropped() -> None:
    for number, dropped in ((1, False), (6, True)):
        model = small([*looks(number), "Done."])
        async with at_work(model) as talk:
            await talk.say("go")
            assert bool(await bodies(talk, SystemMessage)) is dropped
        assert any("[CLEARED]" in shown(request) for request in model.requests) is dropped


async def test_reads_overlap_and_writes_never_do() -> None:
    desk = Desk()
    calls = [
        Call("w.look", text="a", ticks=5),
        Call("w.write", path="db", text="1", ticks=3),
        Call("w.write", path="db", text="2", ticks=1),
        Call("w.look", text="b", ticks=1),
    ]
    model = ScriptedModel([Say("", *calls), "Done."])
    async with at_work(model, workbench(desk)) as talk:
        await talk.say("go")
    assert desk.order.index("+b") < desk.order.index("-a")
    assert desk.order.index("-db1") < desk.order.index("+db2")
    assert [item.call_id for item in results(model.requests[1])] == ["c1", "c2", "c3", "c4"]


async def test_a_refusal_is_an_end_of_its_own() -> None:
    async with at_work([Refuse()]) as talk:
        result = await talk.say("go")
        (decision,) = await bodies(talk, Decision)
    assert (result.exit_reason, result.ok, decision.stop_reason) == ("refused", False, "refusal")


async def test_a_model_that_times_out_gives_way_to_the_next_at_once() -> None:
    late: list[Entry] = [Wait(180), Fail(ModelTimedOut("no reply within 180 s"))]
    slow, quick = ScriptedModel(late * 4, name="slow", strict=False), ScriptedModel(["Here."])
    async with at_work((slow, quick), workbench(preset="beakr")) as talk:
        result = await talk.say("go")
    assert (result.answer, result.exit_reason) == ("Here.", "complete")
    assert len(slow.requests) == 1


async def test_a_pause_outlives_its_process_and_nothing_runs_again(tmp_path: Path) -> None:
    desk, store = Desk(), f"sqlite:///{tmp_path}/c.db"
    script: list[Entry] = [Call("w.look", text="tea"), Call("w.ask")]
    async with at_work(script, workbench(desk), store=store) as talk:
        assert (await talk.say("go")).exit_reason == "paused"
    model = ScriptedModel(["Done."])
    async with at_work(model, workbench(desk), store=store) as talk:
        assert (await talk.resume({"c2": "that one"})).answer == "Done."
    assert (desk.began, len(model.requests)) == (["tea", "ask"], 1)
    assert results(model.requests[0])[-1].text.endswith("that one")


async def test_a_turn_that_was_killed_is_carried_on_to_the_same_transcript() -> None:
    story: list[Entry] = [Call("w.write", path="a"), Call("w.look", text="tea"), "Done."]
    whole_model = ScriptedModel(story)
    async with at_work(whole_model) as talk:
        await talk.say("go")
    for made, kept in ((1, 3), (1, 5), (1, 6), (2, 7), (2, 8), (2, 9)):
        log, again = CrashingLog(MemoryLog(FakeClock())), ScriptedModel(story[made:], strict=False)
        log.left = kept
        try:
            async with at_work(ScriptedModel(story, strict=False), store=log) as talk:
                await talk.say("go")
        except Crashed:
            log.left = None
            async with at_work(again, store=log) as talk:
                assert (await talk.resume()).answer == "Done."
            assert again.requests[-1].messages == whole_model.requests[-1].messages


async def test_a_denial_is_a_result() -> None:
    class Closed:
        async def before(self, call: GuardedCall) -> Verdict:
            return Deny("out of scope") if call.tool == "w.command" else Allow()

        async def after(self, call: GuardedCall, text: str) -> str:
            return text

    model = ScriptedModel([Call("w.command", text="x"), "Then not."])
    async with at_work(model, workbench(guards=[Closed()])) as talk:
        assert (await talk.say("go")).ok
    assert results(model.requests[1])[0].text.endswith("out of scope")


async def test_with_its_budget_spent_a_turn_ends_without_another_request() -> None:
    used = Say("", Call("w.look"), usage=Usage(input_tokens=200_000))
    model = ScriptedModel([used])
    async with at_work(model) as talk:
        result = await talk.say("go", max_tokens=200_000)
        starts = await bodies(talk, RoundStart)
    assert (result.exit_reason, len(model.requests)) == ("budget", 1)
    assert result.answer.startswith("There is no answer: the budget of the turn was spent.")
    assert starts


async def test_with_its_budget_nearly_spent_a_turn_ends_with_an_answer_from_its_trace() -> None:
    def play(prompt: Prompt) -> Move:
        look = ToolCall(name="w.look", arguments={"text": "x" * 3_000})
        return Move(text="What was found.") if prompt.purpose == "answer" else Move(calls=(look,))

    model = BillingModel(play)
    async with at_work(model, workbench(preset="beakr")) as talk:
        result = await talk.say("go", max_tokens=20_000)
        (answer,) = await bodies(talk, Completion)
    assert (result.exit_reason, answer.flag, result.answer) == (
        "budget",
        "forced",
        "What was found.",
    )
    assert model.tokens <= 20_000
    assert result.rounds > 2


async def test_a_delegated_task_is_one_call_and_one_result_and_its_work_is_hidden() -> None:
    model = Cast(
        {
            "go": [Call("kin.ask", task="search"), "Found."],
            "search": [Call("play.look", text="footprints"), "By the lake."],
        }
    )
    async with kin(model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        results = [b.body.text for b in await talk.blocks() if isinstance(b.body, ToolResult)]
    assert results == ["complete: By the lake."]
    assert "footprints" not in "".join(str(request) for request in model.requests["go"])
