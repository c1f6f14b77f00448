"""Tools: how calls run beside each other, who may call and stop them, and what the model reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from loopline import BaseWorkflow, Bundle, LooplineError, ToolContext, TurnPayload, TurnResult, tool
from loopline.conversations import Conversation
from loopline.events import Delta
from loopline.guards import (
    Guards,
    allow_only,
    ask_before,
    block_repeated_failures,
    rate_limit,
    read_only,
)
from loopline.models import Prompt, ToolCall
from loopline.react import Allow, Ask, Deny, Guard, GuardedCall, Verdict
from loopline.testing import Call, FakeClock, Raw, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import ArtifactKept, Block, Effect, SourceAdded, ToolResult, ToolsSelected
from tests.mcp.served import Served, plain
from tests.support.playground import Playground
from tests.support.rows import each_row
from tests.support.scripted_conversation import play_turn
from tests.support.workbench import (
    THIRTEEN,
    TWELVE,
    Desk,
    Policy,
    Redacting,
    at_work,
    begun,
    bodies,
    bodies_of,
    heard,
    in_json,
    results,
    run_turn,
    shown,
    workbench,
)


def looks(*texts: str, ticks: int = 3) -> list[ToolCall]:
    return [Call("w.look", text=text, ticks=ticks) for text in texts]


async def told(
    *calls: ToolCall, guards: Sequence[Guard] = (), desk: Desk | None = None, **limits: int
) -> list[str]:
    """What the model reads of these calls, made in one reply."""
    model = ScriptedModel([Say("", *calls), "Done."])
    most = limits.get("parallel_tools", 10)
    async with at_work(model, workbench(desk, guards=guards)) as talk:
        assert (await talk.say("go", parallel_tools=most)).ok
    return [item.text.partition("\n")[2] for item in results(model.requests[1])]


async def test_of_an_unknown_tool_the_model_reads_which_there_are() -> None:
    (said,) = await told(Call("w.lok"))
    assert "no tool 'w.lok'" in said
    assert "'w.look'" in said


async def test_a_tool_that_breaks_is_a_result() -> None:
    assert await told(Call("w.crash")) == ["ValueError: broken"]


async def test_reads_of_one_reply_run_at_once() -> None:
    desk = Desk()
    await told(*looks("a", "b", "c"), desk=desk)
    assert (desk.order[:3], desk.most) == (["+a", "+b", "+c"], 3)


@pytest.mark.parametrize("protocol", ["json", "thought_action"])
async def test_several_actions_of_one_reply_all_run(protocol: str) -> None:
    desk, model = Desk(), ScriptedModel([Say("", *looks("a", "b")), "Done."])
    async with at_work(model, workbench(desk)) as talk:
        if protocol == "json":
            await talk.say("go", protocol="json")
        else:
            await talk.say("go", protocol="thought_action")
    assert desk.began == ["a", "b"]


async def test_results_follow_their_calls_in_the_order_of_the_calls() -> None:
    desk = Desk()
    slow, fast = Call("w.look", text="slow", ticks=9), Call("w.look", text="fast", ticks=1)
    assert await told(slow, fast, desk=desk) == ["seen slow", "seen fast"]
    assert desk.order == ["+slow", "+fast", "-fast", "-slow"]


async def test_of_calls_that_run_at_once_each_result_is_heard_as_it_comes() -> None:
    calls = [*looks("slow", ticks=40), *looks("fast", ticks=1)]
    model = ScriptedModel([Say("", *calls), "Done."])
    async with at_work(model) as talk:
        events = await heard(talk, "go")
    told = [event.body for event in events if isinstance(event, Block)]
    assert [body.call_id for body in told if isinstance(body, ToolResult)] == ["c2", "c1"]
    assert [item.call_id for item in results(model.requests[1])] == ["c1", "c2"]


async def test_without_own_tools_there_are_only_those_of_the_loop_and_none_is_forced() -> None:
    model = ScriptedModel(["Done."])
    await run_turn(model, workbench(tools=[]))
    (request,) = model.requests
    assert {tool.name.partition(".")[0] for tool in request.tools} == {"react"}
    assert request.options.force_tool == ""


async def test_reads_overlap_and_writes_of_one_thing_never_do() -> None:
    desk = Desk()
    writes = [Call("w.write", path="db", text=text, ticks=3) for text in ("1", "2")]
    await told(writes[0], *looks("a", "b", ticks=4), writes[1], desk=desk)
    assert desk.order.index("-db1") < desk.order.index("+db2")
    assert desk.order.index("+b") < desk.order.index("-a")
    assert desk.order.index("+a") < desk.order.index("-db1")


async def test_writes_of_one_file_keep_their_order_and_of_two_run_at_once() -> None:
    desk = Desk()
    names = (("a", "1"), ("b", "1"), ("a", "2"))
    await told(*[Call("w.write", path=p, text=t, ticks=3) for p, t in names], desk=desk)
    assert desk.order[:2] == ["+a1", "+b1"]
    assert desk.order.index("-a1") < desk.order.index("+a2")


async def test_a_command_runs_alone_between_what_stands_before_and_behind() -> None:
    desk = Desk()
    await told(*looks("a"), Call("w.command", text="x", ticks=3), *looks("b"), desk=desk)
    assert desk.order == ["+a", "-a", "+x", "-x", "+b", "-b"]


async def test_a_tool_that_does_not_say_what_it_does_runs_alone() -> None:
    desk = Desk()
    await told(*[Call("w.command", text=text, ticks=3) for text in ("x", "y")], desk=desk)
    assert (desk.order, desk.most) == (["+x", "-x", "+y", "-y"], 1)


async def test_no_more_calls_run_at_once_than_are_allowed() -> None:
    desk = Desk()
    slow_first = [Call("w.look", text=f"{n}", ticks=9 - n) for n in range(5)]
    texts = await told(*slow_first, desk=desk, parallel_tools=2)
    assert (desk.most, texts) == (2, [f"seen {n}" for n in range(5)])


async def test_a_call_that_fails_leaves_the_others_alone() -> None:
    said = await told(*looks("a"), Call("w.crash"), Call("w.fail"), *looks("b"))
    assert said == ["seen a", "ValueError: broken", "not today", "seen b"]


async def test_a_denial_is_a_result_and_nothing_runs() -> None:
    desk = Desk()
    said = await told(
        Call("w.command", text="x"), *looks("a"), guards=[Policy(deny=["w.command"])], desk=desk
    )
    assert said == ["w.command is not allowed here", "seen a"]
    assert desk.began == ["a"]


async def test_calls_that_need_leave_ask_one_after_another() -> None:
    script: list[Entry] = [Say("", Call("w.write", path="a"), Call("w.write", path="b")), "Done."]
    async with at_work(script, workbench(guards=[Policy(ask=["w.write"])])) as talk:
        events = await heard(talk, "go")
        deltas = [delta for delta in events if isinstance(delta, Delta) and delta.type == "pending"]
        assert (await talk.resume({"c1": True, "c2": True})).answer == "Done."
    assert [item.text for item in deltas] == ["May w.write run?"] * 2


async def test_a_tool_that_is_not_among_the_allowed_ones_is_never_run() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.command", text="x"), "Done."])
    await run_turn(model, workbench(desk, tools=["w.look"]))
    (said,) = results(model.requests[1])
    assert ("no tool 'w.command'" in said.text, said.ok, desk.began) == (True, False, [])


async def test_a_call_that_failed_three_times_is_not_run_again_with_these_arguments() -> None:
    script: list[Entry] = [*[Call("w.fail", message="x")] * 4, Call("w.fail", message="y")]
    guards = [block_repeated_failures()]
    _, blocks = await run_turn([*script, "Done."], workbench(guards=guards))
    rows = [(result.status, result.text) for result in bodies_of(blocks, ToolResult)]
    assert rows[:3] == [("error", "x")] * 3
    assert rows[3][0] == "denied"
    assert rows[3][1].startswith("w.fail failed 3 times with these arguments")
    assert rows[4] == ("error", "y")


async def test_what_failed_in_another_turn_may_be_tried_again() -> None:
    script: list[Entry] = [Call("w.fail", message="x"), "Done."]
    guards = [block_repeated_failures(1)]
    async with at_work([*script, *script], workbench(guards=guards)) as talk:
        await talk.say("go")
        await talk.say("again")
        assert [result.status for result in await bodies(talk, ToolResult)] == ["error", "error"]


async def test_guards_stand_around_a_call_in_their_order() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.look", text="tea"), "Done."])
    outer, inner = Policy(change="cake", mark=">"), Policy(mark="<")
    _, blocks = await run_turn(model, workbench(desk, guards=[outer, inner]))
    (result,) = bodies_of(blocks, ToolResult)
    assert (result.text, result.ran_with) == ("seen cake<>", {"text": "cake"})
    assert (desk.began, inner.seen) == (["cake"], ["w.look cake"])


async def test_a_tool_has_its_context_and_a_result_its_sources() -> None:
    model = ScriptedModel([Call("w.find", url="https://a.org"), "It is so [[S:1]]."])
    result, blocks = await run_turn(model)
    (added,) = bodies_of(blocks, SourceAdded)
    assert "[[S:1]] https://a.org" in results(model.requests[1])[0].text
    assert (added.sid, [source.url for source in result.sources]) == (1, ["https://a.org"])


@pytest.mark.parametrize("json", [False, True])
async def test_rich_content_is_named_to_the_model_and_kept_for_people(json: bool) -> None:
    script: list[Entry] = [Call("w.page", name="tea"), "Made."]
    model = in_json(script) if json else ScriptedModel(script)
    async with at_work(model) as talk:
        await talk.say("go")
        (artifact_kept,) = await bodies(talk, ArtifactKept)
        (page,) = await talk.read("ar:turn_1.artifacts.c1@1")
    assert "ar:turn_1.artifacts.c1@1" in shown(model.requests[1])
    assert "<b>" not in shown(model.requests[1])
    assert artifact_kept.text == page.text == '{"html":"<b>tea</b>"}'


async def test_a_result_without_a_text_says_that_it_succeeded() -> None:
    assert await told(Call("w.nothing")) == ["(it succeeded, and gave no output)"]


def choosing(*picked: Entry) -> ScriptedModel:
    return ScriptedModel(["Done."], aux={"selection": picked})


async def test_of_more_than_twelve_tools_at_most_six_are_chosen() -> None:
    few, many = choosing(), choosing(Call("select_tools", tools=THIRTEEN[:8]))
    await run_turn(few, workbench(tools=TWELVE), select_tools=True)
    _, blocks = await run_turn(many, workbench(tools=THIRTEEN), select_tools=True)
    order = [block.type for block in blocks]
    (selected,) = bodies_of(blocks, ToolsSelected)
    assert order.index("react.tools") < order.index("react.round.start")
    assert selected.names == ("react.plan", "react.read", "react.hide", *THIRTEEN[:6])
    assert [request.purpose for request in few.requests] == ["decision"]
    assert [request.purpose for request in many.requests] == ["selection", "decision"]
    offered = [tool.name for tool in many.requests[1].tools if tool.name.startswith("w.")]
    assert offered == THIRTEEN[:6]


async def test_a_choice_that_fails_leaves_all_tools() -> None:
    model = choosing(*[Raw("garbage")] * 3)
    _, blocks = await run_turn(model, workbench(tools=THIRTEEN), select_tools=True)
    (selected,) = bodies_of(blocks, ToolsSelected)
    assert len(model.requests[-1].tools) == 16
    assert (len(selected.names), selected.why != "") == (16, True)


async def test_a_tool_that_was_not_chosen_is_brought_in_when_asked_for() -> None:
    model = ScriptedModel(
        [Call("react.request_tools", tool_names=["w.count"]), Call("w.count", number=7), "Done."],
        aux={"selection": [Call("select_tools", tools=["w.look"])]},
    )

    def names(prompt: Prompt) -> list[str]:
        return [tool.name for tool in prompt.tools if tool.name.startswith("w.")]

    await run_turn(model, workbench(tools=THIRTEEN), select_tools=True)
    assert [names(request) for request in model.requests[1:3]] == [
        ["w.look"],
        ["w.look", "w.count"],
    ]
    assert results(model.requests[3])[-1].text.endswith("\n7")


async def test_a_tool_that_was_not_chosen_is_not_run_by_guessing_its_name() -> None:
    desk = Desk()
    model = ScriptedModel(
        [Call("w.command", text="x"), "Done."],
        aux={"selection": [Call("select_tools", tools=["w.look"])]},
    )
    await run_turn(model, workbench(desk, tools=THIRTEEN), select_tools=True)
    [refused] = results(model.requests[-1])
    assert (desk.began, refused.ok) == ([], False)
    assert refused.text.endswith("is not offered yet: bring it in with react.request_tools")


async def test_a_tool_of_a_server_is_checked_run_and_answered_like_any_other(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path)
    served.declare({"one": plain("works")})
    calls = [Call("mcp.one.work"), Call("mcp.one.wrk"), Call("calculator.x")]
    model = ScriptedModel([Say("", *calls), "Done."])
    async with served.open(model) as harness:
        await harness.conversation("c1").say("go")
    worked, misspelt, missing = results(model.requests[1])
    assert (worked.ok, worked.text.endswith("\nworked")) == (True, True)
    assert "no tool 'mcp.one.wrk': here only ['mcp.one.work'" in misspelt.text
    assert (misspelt.ok, missing.ok) == (False, False)


class Door:
    """Writers go in and out; who comes first waits until the door is opened."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.names: list[str] = []
        self.entered = Event()
        self.opened = Event()


@tool(effect="write", key="file:{path}")
def save(context: ToolContext, path: str, name: str) -> str:
    """Write a file, slowly."""
    door: Door = context.scratchpad["door"]
    door.inside += 1
    door.most = max(door.most, door.inside)
    door.names.append(name)
    door.entered.set()
    if name == "first":
        door.opened.wait(30)
    door.inside -= 1
    return f"saved {name}"


TOOLS_SPECS = [{"module": __name__, "alias": "t"}]


@asynccontextmanager
async def writing(
    door: Door, clock: FakeClock, script: list[Entry], seconds: float | None = None
) -> AsyncGenerator[Conversation, None]:
    limits: dict[str, Any] = {} if seconds is None else {"tool_timeout_seconds": seconds}

    class Writing(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            self.scratchpad["door"] = door
            react = await self.build_react(tools_module=__name__, **limits)
            return await react.run(payload)

    try:
        async with at_work(script, Bundle(id="writing", workflow=Writing), clock=clock) as talk:
            yield talk
    finally:
        door.opened.set()


SAVE = [Call("t.save", path="a", name="first"), Call("t.save", path="a", name="second")]


async def test_two_writes_of_one_key_never_overlap_though_the_first_was_cut_off() -> None:
    door, clock = Door(), FakeClock()
    async with writing(door, clock, [Say("", *SAVE), "Done."], 5) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await asyncio.to_thread(door.entered.wait, 30)
        clock.advance(6)
        for _ in range(50):
            await asyncio.sleep(0)
        assert door.names == ["first"]
        door.opened.set()
        await turn
        ends = [result.status for result in await bodies(talk, ToolResult)]
    assert (door.most, door.names, ends) == (1, ["first", "second"], ["error", "ok"])


async def test_the_second_does_not_wait_for_ever_and_is_told_why_it_was_not_begun() -> None:
    door, clock = Door(), FakeClock()
    async with writing(door, clock, [Say("", *SAVE), "Done."], 5) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await asyncio.to_thread(door.entered.wait, 30)
        clock.advance(6)
        await begun(talk, "react.tool.result")
        for _ in range(50):
            await asyncio.sleep(0)
        clock.advance(6)
        await turn
        ends = [(result.status, result.text) for result in await bodies(talk, ToolResult)]
    assert (door.names, [status for status, _ in ends]) == (["first"], ["error", "error"])
    assert "not begun: an earlier one" in ends[1][1]


@pytest.mark.parametrize("path", ["a", "b"])
async def test_a_turn_after_a_stop_waits_for_the_thread_of_the_one_before(path: str) -> None:
    door, clock = Door(), FakeClock()
    second = Call("t.save", path=path, name="second")
    async with writing(door, clock, [SAVE[0], second, "Done."]) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await asyncio.to_thread(door.entered.wait, 30)
        await talk.stop()
        assert (await turn).exit_reason == "stopped"
        turn = asyncio.ensure_future(talk.say("on"))
        await begun(talk, "react.tool.call")
        for _ in range(200):
            await asyncio.sleep(0)
        if path == "a":
            assert door.names == ["first"]
            door.opened.set()
        assert (await turn).answer == "Done."
    assert (door.names, door.most) == (["first", "second"], 1 if path == "a" else 2)


EFFECTS: tuple[Effect, ...] = ("read", "write", "exclusive", "meta")


def call(
    tool: str = "shop.add",
    effect: Effect = "write",
    made: dict[str, int] | None = None,
    **arguments: str,
) -> GuardedCall:
    return GuardedCall(
        call_id="c1",
        tool=tool,
        effect=effect,
        arguments={**arguments},
        turn_id="turn_1",
        conversation="c",
        user="ann",
        earlier_calls=made or {},
    )


@dataclass(frozen=True)
class Renames:
    name: str
    value: str

    async def before(self, call: GuardedCall) -> Verdict:
        return Allow({**call.arguments, self.name: self.value})

    async def after(self, call: GuardedCall, text: str) -> str:
        return f"{self.value}({text})"


@dataclass(frozen=True)
class Breaks:
    async def before(self, call: GuardedCall) -> Verdict:
        raise ValueError("broken")

    async def after(self, call: GuardedCall, text: str) -> str:
        raise ValueError("broken")


@dataclass(frozen=True)
class Reaches:
    """Changes the arguments it is handed, instead of giving others."""

    async def before(self, call: GuardedCall) -> Verdict:
        call.arguments["name"] = "changed"
        return Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        call.arguments["name"] = "changed"
        return text


@each_row(
    [
        (allow_only(["shop.*"]), "shop.add", "write", ""),
        (allow_only("shop.*"), "shop.add", "write", ""),
        (allow_only(["shop.*"]), "web.get", "read", "web.get is not allowed here: only shop.*"),
        (allow_only(["shop.*"]), "react.plan", "meta", ""),
        (allow_only(["shop.*"]), "react.patch", "write", "react.patch is not allowed"),
        (allow_only(["Shop.*"]), "shop.add", "write", "shop.add is not allowed"),
        (allow_only([]), "shop.add", "write", "only nothing"),
        (read_only(), "shop.find", "read", ""),
        (read_only(), "shop.add", "write", "shop.add may change something (write)"),
        (read_only(), "shop.run", "exclusive", "may change something (exclusive)"),
        (read_only(), "shop.child", "meta", "may change something (meta)"),
        (read_only(), "react.plan", "meta", ""),
        (read_only(), "react.hide", "meta", ""),
    ]
)
async def test_a_guard_lets_a_call_pass_or_says_why_not(
    guard: Guard, tool: str, effect: Effect, message: str
) -> None:
    match await guard.before(call(tool, effect)):
        case Deny(reason=reason):
            assert message
            assert message in reason
        case verdict:
            assert (verdict, message) == (Allow(), "")
    assert await guard.after(call(tool, effect), "found") == "found"


def test_guards_are_values() -> None:
    assert allow_only(["a", "b"]) == allow_only(("a", "b")) != allow_only(["a"])
    assert hash(Guards((read_only(), rate_limit(3)))) == hash(Guards((read_only(), rate_limit(3))))


@pytest.mark.parametrize(
    ("limit", "patterns", "made", "passes"),
    [
        (2, ["shop.*"], {}, True),
        (2, ["shop.*"], {"shop.add": 1, "web.get": 9}, True),
        (2, ["shop.*"], {"shop.add": 1, "shop.find": 1}, False),
        (2, ["web.*"], {"shop.add": 9, "web.get": 9}, True),
        (0, ["shop.add"], {}, False),
        (3, ["*"], {"shop.add": 1, "web.get": 1}, True),
        (3, ["shop.*", "web.*"], {"shop.add": 1, "web.get": 2}, False),
    ],
)
async def test_calls_of_matching_tools_are_counted_together(
    limit: int, patterns: list[str], made: dict[str, int], passes: bool
) -> None:
    verdict = await rate_limit(limit, patterns).before(call(made=made))
    assert isinstance(verdict, Allow) is passes


async def test_a_question_shows_the_tool_and_its_arguments() -> None:
    asks = ask_before(["shop.*"])
    assert await asks.before(call(name="{tea}")) == Ask('May shop.add run with {"name":"{tea}"}?')
    assert await asks.before(call("web.get")) == Allow()
    own = ask_before(["*"], question="Really {tool}?")
    assert await own.before(call()) == Ask("Really shop.add?")


async def test_a_question_shows_only_the_beginning_of_long_arguments() -> None:
    verdict = await ask_before(["*"]).before(call(name="a" * 9_000))
    assert isinstance(verdict, Ask)
    assert len(verdict.question) < 500
    assert "…" in verdict.question


@pytest.mark.parametrize("question", ["Run {it}?", "Run {}?", "Run {tool?", "Run {tool.spec}?"])
def test_a_question_that_cannot_be_filled_in_is_refused(question: str) -> None:
    with pytest.raises(LooplineError, match="question"):
        ask_before(["*"], question=question)


def test_a_limit_below_zero_is_refused() -> None:
    with pytest.raises(LooplineError, match="0 or more"):
        rate_limit(-1)


async def test_without_guards_a_call_runs_as_it_is() -> None:
    assert await Guards().before(call()) == Allow()
    assert await Guards().after(call(), "found") == "found"


async def test_changed_arguments_are_what_the_next_guard_sees() -> None:
    guards = Guards((Renames("name", "a"), Renames("size", "b"), Renames("name", "c")))
    assert await guards.before(call(name="x")) == Allow({"name": "c", "size": "b"})


async def test_results_pass_through_the_guards_in_reverse() -> None:
    guards = Guards((Renames("name", "outer"), Renames("name", "inner")))
    assert await guards.after(call(), "text") == "outer(inner(text))"


async def test_the_first_that_denies_decides_although_another_asks_before_it() -> None:
    unasked = Policy()
    guards = Guards((ask_before(["*"]), read_only(), allow_only([]), unasked))
    verdict = await guards.before(call())
    assert isinstance(verdict, Deny)
    assert "may change something" in verdict.reason
    assert unasked.seen == []


async def test_of_two_that_ask_the_first_does() -> None:
    guards = Guards((ask_before(["*"], "One?"), ask_before(["*"], "Two?")))
    assert await guards.before(call()) == Ask("One?")


async def test_once_the_user_has_approved_nobody_asks_and_the_others_still_have_their_say() -> None:
    asks = ask_before(["*"])
    renamed = Guards((Renames("name", "a"), asks, Renames("size", "b")))
    assert await renamed.granted(call(name="x")) == Allow({"name": "a", "size": "b"})
    assert isinstance(await Guards((asks, read_only())).granted(call()), Deny)


async def test_a_guard_cannot_reach_into_the_arguments() -> None:
    given = call(name="x")
    assert await Guards((Reaches(),)).before(given) == Allow()
    await Guards((Reaches(),)).after(given, "text")
    assert given.arguments == {"name": "x"}


@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_broken_guard_denies_whatever_is_no_read(
    effect: Effect, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "loopline"):
        verdict = await Guards((Breaks(),)).before(call(effect=effect))
    assert isinstance(verdict, Allow) is (effect == "read")
    if isinstance(verdict, Deny):
        assert "was not run: what guards it failed" in verdict.reason
    assert "broke before shop.add" in caplog.text


async def test_a_read_that_passes_a_broken_guard_meets_the_next_one() -> None:
    verdict = await Guards((Breaks(), allow_only([]))).before(call(effect="read"))
    assert isinstance(verdict, Deny)
    assert "not allowed" in verdict.reason


async def test_what_a_broken_guard_raises_over_a_result_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="broken"):
        await Guards((Breaks(),)).after(call(), "secret")


class Guarded(Playground):
    guards = (
        Guards(
            (
                allow_only(["play.look", "play.note"]),
                rate_limit(1, ["play.look"]),
                ask_before(["play.note"]),
            )
        ),
    )


GUARDED = Bundle(id="guarded", workflow=Guarded)


LOOKS = [Call("play.look", text="one"), Call("play.look", text="two")]


@pytest.mark.parametrize("looks", [LOOKS, [Say("", *LOOKS)]], ids=["two rounds", "one round"])
async def test_in_a_turn_the_model_reads_why_a_call_did_not_run(looks: list[Entry]) -> None:
    script: list[Entry] = [Call("play.alone", text="x"), *looks, "Done."]
    _, blocks = await play_turn(script, "Go.", bundle=GUARDED)
    found = [block.body for block in blocks if isinstance(block.body, ToolResult)]
    results = sorted(found, key=lambda result: result.call_id)
    assert [(result.tool, result.status) for result in results] == [
        ("play.alone", "denied"),
        ("play.look", "ok"),
        ("play.look", "denied"),
    ]
    assert results[0].text.startswith("play.alone is not allowed here")
    assert "at most 1, 1 were made" in results[2].text


@pytest.mark.parametrize("way", ["w.fail", "w.crash"])
async def test_what_a_guard_leaves_out_is_in_no_error_either(way: str) -> None:
    model = ScriptedModel([Call("w.fail", message="the key is s3cret"), Call(way), "Done."])
    _, blocks = await run_turn(model, workbench(guards=[Redacting()]))
    ends = [(result.status, result.text) for result in bodies_of(blocks, ToolResult)]
    assert ends[0] == ("error", "the key is ***")
    assert ends[1][0] == "error"
    assert not any("s3cret" in str(request.messages[-1]) for request in model.requests)


class Breaking(Redacting):
    async def after(self, call: GuardedCall, text: str) -> str:
        raise ZeroDivisionError


async def test_an_error_that_a_guard_breaks_over_is_not_shown() -> None:
    model = ScriptedModel([Call("w.fail", message="s3cret"), "Done."])
    _, blocks = await run_turn(model, workbench(guards=[Breaking()]))
    (end,) = bodies_of(blocks, ToolResult)
    assert (end.status, end.text) == (
        "error",
        "A guard of this bundle broke over this result: it is not shown.",
    )


async def test_each_section_of_a_result_is_looked_over() -> None:
    page = Call("w.page", name="s3cret")
    read = Call("react.read", paths=["ar:turn_1.artifacts.c1@1"])
    model = ScriptedModel([page, read, "Done."])
    _, blocks = await run_turn(model, workbench(guards=[Redacting()]))
    made, end = bodies_of(blocks, ToolResult)
    assert "the page *** was made" in made.text
    assert "<b>***</b>" in end.text
    assert "s3cret" not in end.text
