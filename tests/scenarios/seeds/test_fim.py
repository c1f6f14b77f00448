"""What is promised of two phases, JSON actions, many tools and interrupts."""

from __future__ import annotations

import pytest

from loopline import Harness
from loopline.models import (
    JsonObject,
    Prompt,
    ProtocolName,
    Usage,
    structured_llm_call,
)
from loopline.react import (
    Allow,
    Deny,
    GuardedCall,
    ReactStateV2,
    Reminder,
    RoundHookResult,
    Verdict,
)
from loopline.testing import Call, Fail, FakeClock, Raw, Say, ScriptedModel
from loopline.testing.scripted import CapabilityChoices, Entry
from loopline.timeline import (
    Block,
    Completion,
    MemoryLog,
    RangeSummary,
    RoundStart,
    ToolCalled,
    ToolResult,
    ToolsSelected,
)
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.workbench import (
    THIRTEEN,
    TWELVE,
    Desk,
    at_work,
    bodies,
    decisions,
    heard,
    in_json,
    results,
    shown,
    types,
    workbench,
)

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
}


def looks(number: int, size: int = 3_000) -> list[Entry]:
    return [Call("w.big", size=size) for _ in range(number)]


def small(script: list[Entry], *summaries: Entry) -> ScriptedModel:
    return ScriptedModel(
        script, aux={"summary": summaries}, window=6_000, output_limit=1_000, strict=False
    )


def acts(number: int) -> list[Entry]:
    return [Say("why " * 20, Call("w.command", text=f"{n} " + "yes " * 700)) for n in range(number)]


async def test_an_answer_at_once_is_one_round() -> None:
    async with at_work(in_json(["Hello."])) as talk:
        result = await talk.say("hi")
        assert (result.answer, result.rounds, await bodies(talk, ToolCalled)) == ("Hello.", 1, [])


async def test_a_call_and_an_answer_are_two_rounds() -> None:
    model = in_json([Call("w.look", text="tea"), "Tea."])
    async with at_work(model) as talk:
        assert (await talk.say("go")).rounds == 2
    assert str(model.requests[1].messages[-1]) == "user: [tc:turn_1.c1.result]\nseen tea"


async def test_of_an_unknown_tool_the_loop_recovers() -> None:
    async with at_work(in_json([Call("w.nowhere"), "Then not."])) as talk:
        assert (await talk.say("go")).answer == "Then not."
        (result,) = await bodies(talk, ToolResult)
    assert result.status == "error"


async def test_at_the_limit_each_call_is_listed_with_its_end() -> None:
    script: list[Entry] = [Call("w.look"), Call("w.crash"), Call("w.count", number=1)]
    async with at_work(in_json(script)) as talk:
        result = await talk.say("go", max_iterations=3, on_exhausted="summary")
    assert result.rounds == 3
    assert result.answer.splitlines()[-3:] == [
        "- w.look (c1): OK",
        "- w.crash (c2): ERROR (error)",
        "- w.count (c3): OK",
    ]


async def test_garbage_then_json_is_two_requests() -> None:
    model = in_json([Raw("garbage"), "Read."])
    async with at_work(model) as talk:
        assert (await talk.say("go")).answer == "Read."
    assert len(model.requests) == 2


async def test_garbage_twice_gives_the_second_as_it_is() -> None:
    async with at_work(in_json([Raw("first"), Raw("second")])) as talk:
        assert (await talk.say("go", max_iterations=2)).answer == "second"
        (answer,) = await bodies(talk, Completion)
    assert answer.flag == "unparsed"


@pytest.mark.parametrize("written", ['{"answer": "x"}', '{"action": "sing", "answer": "x"}'])
async def test_an_answer_without_a_known_action_is_one(written: str) -> None:
    async with at_work(in_json([Raw(written)])) as talk:
        assert (await talk.say("go")).answer == "x"


async def test_null_is_no_arguments() -> None:
    call = '{"action": "call_tool", "tool": "w.nothing", "arguments": null}'
    async with at_work(in_json([Raw(call), "Done."])) as talk:
        await talk.say("go")
        (called,), (ended,) = await bodies(talk, ToolCalled), await bodies(talk, ToolResult)
    assert (called.arguments, ended.status) == ({}, "ok")


async def test_a_model_without_calls_is_asked_in_json_although_native_is_wanted() -> None:
    model = in_json([Call("w.look"), "Done."])
    async with at_work(model, workbench(protocol="native")) as talk:
        assert (await talk.say("go")).ok
    assert {request.options.protocol for request in model.requests} == {"json"}


async def test_without_own_tools_there_are_only_those_of_the_loop_and_none_is_forced() -> None:
    model = ScriptedModel(["Done."])
    async with at_work(model, workbench(tools=[])) as talk:
        await talk.say("go")
    (request,) = model.requests
    assert {tool.name.partition(".")[0] for tool in request.tools} == {"react"}
    assert request.options.force_tool == ""


async def test_three_calls_have_three_results_in_their_order() -> None:
    calls = [Call("w.look", text=item, ticks=9 - n) for n, item in enumerate("abc")]
    model = ScriptedModel([Say("", *calls), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
    assert [(item.call_id, item.text[-1]) for item in results(model.requests[1])] == [
        ("c1", "a"),
        ("c2", "b"),
        ("c3", "c"),
    ]


async def test_text_beside_calls_is_no_answer() -> None:
    async with at_work([Say("It is 4.", Call("w.look")), "It is 5."]) as talk:
        result = await talk.say("go")
    assert (result.answer, result.rounds) == ("It is 5.", 2)


async def test_a_call_that_fails_leaves_those_beside_it_alone() -> None:
    script: list[Entry] = [Say("", Call("w.look"), Call("w.crash"), Call("w.look")), "Done."]
    async with at_work(script) as talk:
        await talk.say("go")
        ends = {result.call_id: result.status for result in await bodies(talk, ToolResult)}
    assert ends == {"c1": "ok", "c2": "error", "c3": "ok"}


@pytest.mark.parametrize("protocol", ["native", "json"])
async def test_what_a_tool_raised_reaches_the_model(protocol: ProtocolName) -> None:
    model = ScriptedModel([Call("w.crash"), "Sorry."])
    async with at_work(model) as talk:
        await talk.say("go", protocol=protocol)
    assert "ValueError: broken" in shown(model.requests[1])


async def test_of_calls_that_run_at_once_each_result_is_heard_as_it_comes() -> None:
    calls = [Call("w.look", text="slow", ticks=40), Call("w.look", text="fast", ticks=1)]
    async with at_work([Say("", *calls), "Done."]) as talk:
        events = await heard(talk, "go")
    call_ids = [
        block.body.call_id
        for block in events
        if isinstance(block, Block) and isinstance(block.body, ToolResult)
    ]
    assert call_ids == ["c2", "c1"]


@pytest.mark.parametrize(
    ("tools", "purposes"), [(TWELVE, ["decision"]), (THIRTEEN, ["selection", "decision"])]
)
async def test_of_more_than_twelve_tools_a_request_chooses_first(
    tools: list[str], purposes: list[str]
) -> None:
    model = ScriptedModel(["Done."], aux={"selection": [Call("select_tools", tools=["w.look"])]})
    async with at_work(model, workbench(tools=tools, select_tools=True)) as talk:
        await talk.say("go")
    assert [request.purpose for request in model.requests] == purposes


async def test_a_plain_model_that_chooses_garbage_is_asked_three_times_in_all() -> None:
    model = ScriptedModel(["Done."], aux={"selection": [Raw("?")] * 2}, tool_call=False)
    async with at_work(model, workbench(tools=THIRTEEN, select_tools=True)) as talk:
        assert (await talk.say("go")).ok
    assert len(model.requests) == 3


@pytest.mark.parametrize("names", [[], ["no.tool", "nor.this"]])
async def test_a_choice_of_nothing_leaves_every_tool(names: list[str]) -> None:
    model = ScriptedModel(["Done."], aux={"selection": [Call("select_tools", tools=names)]})
    async with at_work(model, workbench(tools=THIRTEEN, select_tools=True)) as talk:
        await talk.say("go")
    assert len(model.requests[-1].tools) == 16


async def test_of_ten_that_are_named_six_are_taken() -> None:
    model = ScriptedModel(["Done."], aux={"selection": [Call("select_tools", tools=THIRTEEN)]})
    async with at_work(model, workbench(tools=THIRTEEN, select_tools=True)) as talk:
        await talk.say("go")
    assert len([tool for tool in model.requests[-1].tools if tool.name.startswith("w.")]) == 6


async def test_the_choice_is_heard_before_the_first_round() -> None:
    model = ScriptedModel(["Done."], aux={"selection": [Call("select_tools", tools=["w.look"])]})
    async with at_work(model, workbench(tools=THIRTEEN, select_tools=True)) as talk:
        await talk.say("go")
        (selected,) = await bodies(talk, ToolsSelected)
        order = await types(talk)
    assert order.index("react.tools") < order.index("react.round.start")
    assert selected.names == ("react.plan", "react.read", "react.hide", "w.look")


@pytest.mark.parametrize(
    ("capabilities", "requests"),
    [
        (CapabilityChoices(tool_call=True, json_mode=True), 5),
        (CapabilityChoices(tool_call=False, json_mode=True), 4),
        (CapabilityChoices(tool_call=False), 2),
        (CapabilityChoices(tool_call=True), 3),
    ],
)
async def test_data_is_asked_for_so_often_and_its_usage_added(
    capabilities: CapabilityChoices, requests: int
) -> None:
    bad = Say("none", usage=Usage(input_tokens=10, output_tokens=5))
    model = ScriptedModel([], aux={"title": [bad] * requests}, **capabilities)
    result = await structured_llm_call(
        model, Prompt(system="", purpose="title"), SCHEMA, default_value={"answer": "?"}
    )
    assert (len(model.requests), result.value) == (requests, {"answer": "?"})
    assert result.usage == Usage(input_tokens=10 * requests, output_tokens=5 * requests)


async def test_a_context_that_fits_is_left_alone() -> None:
    model = ScriptedModel([*looks(6), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
        assert {start.opened_by for start in await bodies(talk, RoundStart)} == {"start", ""}
    assert [len(item.text) for item in results(model.requests[-1])] == [3_000 + 22] * 6


@pytest.mark.parametrize("summary", [Fail("down"), Say(" ")])
async def test_when_no_summary_is_to_be_had_the_turn_goes_on_without(summary: Entry) -> None:
    model = small([*acts(9), "Done."], *[summary] * 9)
    async with at_work(model) as talk:
        assert (await talk.say("the very question")).answer == "Done."
        assert (await bodies(talk, RangeSummary))[0].text == ""
    assert "Work." in model.requests[-1].system
    assert "the very question" in shown(model.requests[-1])


async def test_a_second_summary_stands_for_what_the_first_did() -> None:
    model = small([*acts(12), "Done."], *[f"Goal: step {n}." for n in range(9)])
    async with at_work(model) as talk:
        await talk.say("go")
        first, *_, last = await bodies(talk, RangeSummary)
    assert last.covers > first.covers
    assert last.first_turn == first.first_turn
    requests = [request for request in model.requests if request.purpose == "summary"]
    assert "Goal: step 0." in shown(requests[1])


@pytest.mark.parametrize("protocol", ["native", "json"])
async def test_old_results_are_only_named_in_every_protocol(protocol: ProtocolName) -> None:
    model = small([*looks(6), "Done."])
    async with at_work(model) as talk:
        await talk.say("go", protocol=protocol)
    last = shown(model.requests[-1])
    assert "[CLEARED] tc:turn_1.c1.result" in last
    assert "x" * 3_000 in last


@pytest.mark.parametrize("protocol", ["native", "json"])
@pytest.mark.parametrize(("texts", "message"), [("aa", False), ("aaa", True), ("aab", False)])
async def test_calls_that_repeat_are_told_of_from_the_third_on(
    protocol: ProtocolName, texts: str, message: bool
) -> None:
    calls: list[Entry] = [Call("w.look", text=text) for text in texts]
    model = ScriptedModel([*calls, "One.", Call("w.look", text="a"), "Two."])
    async with at_work(model, workbench(cycle_warning_rounds=3, protocol=protocol)) as talk:
        await talk.say("go")
        first = shown(model.requests[-1])
        await talk.say("again")
    assert ("made 3 times over: w.look." in first) is message
    assert shown(model.requests[-1]).count("times over") == int(message)


@pytest.mark.parametrize(
    ("calls", "on", "held"),
    [(0, True, False), (1, True, False), (3, True, True), (3, False, False)],
)
async def test_an_answer_is_checked_once_after_enough_rounds(
    calls: int, on: bool, held: bool
) -> None:
    new_calls: list[Entry] = [Call("w.count", number=n) for n in range(calls)]
    model = ScriptedModel([*new_calls, "One.", *(["Two."] if held else [])])
    async with at_work(model, workbench(completion_check=on)) as talk:
        assert (await talk.say("go")).answer == ("Two." if held else "One.")
    assert shown(model.requests[-1]).count("Before this is the answer") == int(held)


def reflect(state: ReactStateV2) -> RoundHookResult:
    due = state.answer is None and state.iteration and state.iteration % 6 == 0
    return Reminder("reflect", "Does this serve the goal?") if due and not state.last else None


@pytest.mark.parametrize(
    ("rounds", "limit", "message"), [(5, 20, 0), (6, 20, 1), (12, 20, 2), (6, 7, 0)]
)
async def test_every_sixth_round_but_the_last_the_goal_is_asked_after(
    rounds: int, limit: int, message: int
) -> None:
    calls: list[Entry] = [Call("w.count", number=n) for n in range(rounds)]
    model = ScriptedModel([*calls, "Done."])
    async with at_work(model, workbench(round_hooks=[reflect], max_iterations=limit)) as talk:
        await talk.say("go")
    assert shown(model.requests[-1]).count("serve the goal") == message


@pytest.mark.parametrize(("size", "cut"), [(64_000, False), (64_001, True)])
async def test_what_is_too_long_is_shown_in_part_with_its_ref(size: int, cut: bool) -> None:
    model = ScriptedModel([*looks(1, size), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
        reading = await talk.read(["tc:turn_1.c1.result", "fi:turn_1.files/../../etc/passwd"])
    assert ("[TRUNCATED]" in shown(model.requests[1])) is cut
    assert [item.status == "ok" for item in reading] == [True, False]
    assert len(next(iter(reading)).text) == size


class Hook:
    """A guard that stops tea, turns cake into pie, and marks every result."""

    async def before(self, call: GuardedCall) -> Verdict:
        match call.arguments.get("text"):
            case "tea":
                return Deny("no tea today")
            case "cake":
                return Allow({"text": "pie"})
            case "pen":
                raise ZeroDivisionError
            case _:
                return Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        return f"{text}!"


async def test_guards_stop_change_and_mark_calls_and_fail_closed() -> None:
    desk = Desk()
    calls = [Call("w.look", text=text) for text in ("tea", "cake", "pen")]
    model = ScriptedModel([Say("", *calls, Call("w.command", text="pen")), "Done."])
    async with at_work(model, workbench(desk, guards=[Hook()])) as talk:
        await talk.say("go")
        ran = {result.call_id: result.ran_with for result in await bodies(talk, ToolResult)}
    read = [item.text.partition("\n")[2] for item in results(model.requests[1])]
    assert read[:3] == ["no tea today", "seen pie!", "seen pen!"]
    assert "was not run: what guards it failed" in read[3]
    assert (desk.began, ran["c2"]) == (["pie", "pen"], {"text": "pie"})


async def test_a_call_that_was_cut_off_is_closed_once_beside_the_real_results() -> None:
    log, script = CrashingLog(MemoryLog(FakeClock())), [Say("", Call("w.look"), Call("w.command"))]
    log.left = 5
    with pytest.raises(Crashed):
        async with at_work(ScriptedModel(script), store=log) as talk:
            await talk.say("go")
    log.left = None
    async with at_work(["Done.", "More."], store=log) as talk:
        await talk.resume()
        closed = await bodies(talk, ToolResult)
        await talk.say("more")
        again = await bodies(talk, ToolResult)
    assert [result.status for result in closed] == ["ok", "interrupted"]
    assert again == closed


async def test_what_came_after_a_place_is_replayed_to_its_owner_alone() -> None:
    model, clock = ScriptedModel(["Done."]), FakeClock()
    async with Harness.open(workbench(), store="memory:", model=model, clock=clock) as harness:
        talk = harness.conversation("c", user="ann")
        await talk.say("go")
        blocks = await talk.blocks()
        assert await talk.blocks(after=0) == blocks
        assert await talk.blocks(after=3) == blocks[3:]
        assert await talk.blocks(after=len(blocks)) == []
        assert await harness.conversation("c", user="bob").blocks() == []


async def test_a_turn_at_its_limit_still_says_what_it_used() -> None:
    used = Usage(input_tokens=10, output_tokens=5)
    script: list[Entry] = [Say("", Call("w.look"), usage=used), Say("", Call("w.look"), usage=used)]
    async with at_work(script) as talk:
        result = await talk.say("go", max_iterations=2, on_exhausted="summary")
    assert result.usage == used + used


async def test_synthesis_sees_every_result_in_both_protocols() -> None:
    for protocol in ("native", "json"):
        calls: list[Entry] = [Call("w.count", number=n) for n in range(10)]
        model = ScriptedModel([*calls, "Brief.", "Long."])
        bundle = (
            workbench(protocol="native") if protocol == "native" else workbench(protocol="json")
        )
        async with at_work(model, bundle) as talk:
            await talk.say("go", answer_mode="synthesize")
        trace = shown(model.requests[-1])
        assert [f"w.count(number={n}): ok\n{n}" in trace for n in range(10)] == [True] * 10


async def test_of_each_result_2000_characters_are_in_the_trace() -> None:
    model = ScriptedModel([Say("", *[Call("w.big", size=n) for n in (2_000, 2_001)]), "B.", "L."])
    async with at_work(model) as talk:
        await talk.say("go", answer_mode="synthesize")
    trace = [str(message) for message in model.requests[-1].messages if "w.big" in str(message)]
    assert [item.count("x") for item in trace] == [2_000, 2_000]
    assert ["1 more characters" in item for item in trace] == [False, True]


async def test_when_synthesis_fails_the_brief_answer_stands() -> None:
    async with at_work([Call("w.look"), "Brief.", Fail("down")]) as talk:
        result = await talk.say("go", answer_mode="synthesize")
    assert (result.answer, result.exit_reason) == ("Brief.", "complete")


@pytest.mark.parametrize("protocol", ["native", "json"])
async def test_rich_content_is_only_named_in_both_protocols(protocol: ProtocolName) -> None:
    model = ScriptedModel([Call("w.page", name="tea"), "Made."])
    async with at_work(model) as talk:
        await talk.say("go", protocol=protocol)
        (page,) = await talk.read("ar:turn_1.artifacts.c1@1")
    assert "ar:turn_1.artifacts.c1@1" in shown(model.requests[1])
    assert ("<b>" in shown(model.requests[1]), page.text) == (False, '{"html":"<b>tea</b>"}')


async def test_no_request_has_a_result_without_its_call() -> None:
    model = small([*looks(5), *acts(6), *looks(5), "Done."], *["Goal."] * 9)
    async with at_work(model) as talk:
        assert (await talk.say("go", max_iterations=30)).ok
        assert await bodies(talk, RangeSummary)
    for request in decisions(model):
        called = [
            call.call_id for message in request.messages for call in getattr(message, "calls", ())
        ]
        assert called == [item.call_id for item in results(request)]
