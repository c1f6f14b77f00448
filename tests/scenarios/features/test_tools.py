"""Tools: how calls run beside each other, who may stop them, and what the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, Passage, TurnPayload, TurnResult
from loopline.events import Delta
from loopline.models import Prompt, ToolCall
from loopline.react import Allow, Ask, Deny, Guard, GuardedCall, Verdict
from loopline.react.guards import block_repeated_failures
from loopline.testing import Call, Raw, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import ArtifactKept, SourceAdded, ToolResult, ToolsSelected
from tests.mcp.served import Served, plain
from tests.support.workbench import (
    THIRTEEN,
    TWELVE,
    Desk,
    at_work,
    bodies,
    heard,
    in_json,
    results,
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


@dataclass(slots=True)
class Policy:
    """A guard that denies or asks about what it is told to, and changes arguments and results."""

    deny: Sequence[str] = ()
    ask: Sequence[str] = ()
    change: str = ""
    mark: str = ""
    seen: list[str] = field(default_factory=list[str])

    async def before(self, call: GuardedCall) -> Verdict:
        self.seen.append(f"{call.tool} {call.arguments.get('text', '')}")
        if call.tool in self.deny or call.effect in self.deny:
            return Deny(f"{call.tool} is not allowed here")
        if call.tool in self.ask:
            return Ask(f"May {call.tool} run?")
        return Allow({**call.arguments, "text": self.change}) if self.change else Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        return f"{text}{self.mark}"


class Broken:
    """A guard that breaks."""

    async def before(self, call: GuardedCall) -> Verdict:
        raise ZeroDivisionError(call.tool)

    async def after(self, call: GuardedCall, text: str) -> str:
        return text


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


async def test_reads_overlap_and_writes_of_one_thing_never_do() -> None:
    desk = Desk()
    writes = [Call("w.write", path="db", text=text, ticks=3) for text in ("1", "2")]
    await told(writes[0], *looks("a", "b", ticks=4), writes[1], desk=desk)
    assert desk.order.index("-db1") < desk.order.index("+db2")
    assert desk.order.index("+b") < desk.order.index("-a")


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
    await told(*looks("a", "b", "c", "d", "e"), desk=desk, parallel_tools=2)
    assert (desk.most, len(desk.began)) == (2, 5)


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


async def test_who_may_only_read_writes_nothing() -> None:
    desk = Desk()
    readonly = Policy(deny=["write", "exclusive", "meta"])
    said = await told(Call("w.write", path="a"), *looks("b"), guards=[readonly], desk=desk)
    assert (said, desk.began) == (["w.write is not allowed here", "seen b"], ["b"])


async def test_a_tool_that_is_not_among_the_allowed_ones_is_never_run() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.command", text="x"), "Done."])
    async with at_work(model, workbench(desk, tools=["w.look"])) as talk:
        await talk.say("go")
    (said,) = results(model.requests[1])
    assert ("no tool 'w.command'" in said.text, said.ok, desk.began) == (True, False, [])


async def test_a_call_that_failed_three_times_is_not_run_again_with_these_arguments() -> None:
    script: list[Entry] = [*[Call("w.fail", message="x")] * 4, Call("w.fail", message="y")]
    guards = [block_repeated_failures()]
    async with at_work([*script, "Done."], workbench(guards=guards)) as talk:
        await talk.say("go")
        rows = [(result.status, result.text) for result in await bodies(talk, ToolResult)]
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
    desk = Desk()
    outer, inner = Policy(change="cake", mark=">"), Policy(mark="<")
    assert await told(*looks("tea"), guards=[outer, inner], desk=desk) == ["seen cake<>"]
    assert (desk.began, inner.seen) == (["cake"], ["w.look cake"])


async def test_the_first_guard_that_denies_decides() -> None:
    second = Policy(deny=["w.look"])
    said = await told(*looks("tea"), guards=[Policy(deny=["w.look"]), second])
    assert (said, second.seen) == (["w.look is not allowed here"], [])


async def test_a_guard_that_breaks_stops_what_is_no_read() -> None:
    desk = Desk()
    said = await told(*looks("a"), Call("w.command", text="x"), guards=[Broken()], desk=desk)
    assert ("guard" in said[1], said[0], desk.began) == (True, "seen a", ["a"])


async def test_a_tool_has_its_context_and_a_result_its_sources() -> None:
    model = ScriptedModel([Call("w.find", url="https://a.org"), "It is so [[S:1]]."])
    async with at_work(model) as talk:
        result = await talk.say("go")
        (added,) = await bodies(talk, SourceAdded)
    assert "[[S:1]] https://a.org" in results(model.requests[1])[0].text
    assert (added.sid, [source.url for source in result.sources]) == (1, ["https://a.org"])


@pytest.mark.parametrize("json", [False, True])
async def test_rich_content_is_named_to_the_model_and_kept_for_people(json: bool) -> None:
    script: list[Entry] = [Call("w.page", name="tea"), "Made."]
    model = in_json(script) if json else ScriptedModel(script)
    async with at_work(model) as talk:
        await talk.say("go")
        (artifact_kept,) = await bodies(talk, ArtifactKept)
    assert "ar:turn_1.artifacts.c1@1" in shown(model.requests[1])
    assert ("<b>" in shown(model.requests[1]), "<b>tea</b>" in artifact_kept.text) == (False, True)


async def test_a_result_without_a_text_says_that_it_succeeded() -> None:
    assert await told(Call("w.nothing")) == ["(it succeeded, and gave no output)"]


async def test_a_large_result_is_shown_in_part_and_read_whole_by_its_ref() -> None:
    model = ScriptedModel([Call("w.big", size=70_000), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
        (whole_item,) = await talk.read("tc:turn_1.c1.result")
    (part,) = results(model.requests[1])
    assert (len(whole_item.text), len(part.text) < 65_000) == (70_000, True)
    assert "the rest is tc:turn_1.c1.result#C64001-C70000" in part.text


def choosing(*picked: Entry) -> ScriptedModel:
    return ScriptedModel(["Done."], aux={"selection": picked})


async def test_of_more_than_twelve_tools_at_most_six_are_chosen() -> None:
    few, many = choosing(), choosing(Call("select_tools", tools=THIRTEEN[:8]))
    async with at_work(few, workbench(tools=TWELVE)) as talk:
        await talk.say("go", select_tools=True)
    async with at_work(many, workbench(tools=THIRTEEN)) as talk:
        await talk.say("go", select_tools=True)
    assert [request.purpose for request in few.requests] == ["decision"]
    assert [request.purpose for request in many.requests] == ["selection", "decision"]
    offered = [tool.name for tool in many.requests[1].tools if tool.name.startswith("w.")]
    assert offered == THIRTEEN[:6]


async def test_a_choice_that_fails_leaves_all_tools() -> None:
    model = choosing(*[Raw("garbage")] * 3)
    async with at_work(model, workbench(tools=THIRTEEN)) as talk:
        await talk.say("go", select_tools=True)
        (selected,) = await bodies(talk, ToolsSelected)
    assert len(model.requests[-1].tools) == 16
    assert (len(selected.names), selected.why != "") == (16, True)


async def test_tools_are_chosen_from_names_and_one_line_each() -> None:
    model = choosing(Call("select_tools", tools=["w.look"]))
    async with at_work(model, workbench(tools=THIRTEEN)) as talk:
        await talk.say("go", select_tools=True)
    catalogue = str(model.requests[0].messages[-1])
    assert "- w.look: Say the text back." in catalogue
    assert "properties" not in catalogue
    assert max(len(line.partition(": ")[2]) for line in catalogue.splitlines()) <= 80


async def test_a_tool_that_was_not_chosen_is_brought_in_when_asked_for() -> None:
    model = ScriptedModel(
        [Call("react.request_tools", tool_names=["w.count"]), Call("w.count", number=7), "Done."],
        aux={"selection": [Call("select_tools", tools=["w.look"])]},
    )

    def names(prompt: Prompt) -> list[str]:
        return [tool.name for tool in prompt.tools if tool.name.startswith("w.")]

    async with at_work(model, workbench(tools=THIRTEEN)) as talk:
        await talk.say("go", select_tools=True)
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
    async with at_work(model, workbench(desk, tools=THIRTEEN)) as talk:
        await talk.say("go", select_tools=True)
    [refused] = results(model.requests[-1])
    assert (desk.began, refused.ok) == ([], False)
    assert refused.text.endswith("is not offered yet: bring it in with react.request_tools")


class Searching(BaseWorkflow):
    """The loop over a space that finds one passage for tea."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(knowledge_space_fn=self.search)
        return await react.run(payload)

    async def search(self, query: str, *, limit: int = 5) -> Sequence[Passage]:
        tea = Passage(ref="ks:docs/tea.md@" + "a" * 40, title="Tea", text="Hot.", score=0.9)
        return [tea][:limit] if "tea" in query else []


async def test_passages_are_found_with_their_refs_and_can_be_cited() -> None:
    searches = [Call("react.search_knowledge", query=text) for text in ("tea", "cake")]
    model = ScriptedModel([Say("", *searches), "Hot [[S:1]]."])
    async with at_work(model, Bundle(id="searching", workflow=Searching)) as talk:
        result = await talk.say("How is tea?")
    found, none = (item.text for item in results(model.requests[1]))
    assert "[[S:1]] Tea — ks:docs/tea.md@aaaa" in found
    assert 'no passage for "cake"' in none
    assert [source.source_type for source in result.sources] == ["file"]


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
