"""What is promised of the timeline, plans, the board and citations."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, Harness, Passage, TurnPayload, TurnResult
from loopline.models import ToolCall
from loopline.react import ReactStateV2
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import PlanAck, RangeSummary, RoundStart, Timeline
from tests.support.workbench import Spoken, at_work, bodies, heard, results, said, shown, workbench


def plan(*steps: str) -> ToolCall:
    return Call("react.plan", mode="new", steps=list(steps))


async def test_one_loop_makes_fifteen_decisions_at_most() -> None:
    model = ScriptedModel([*[Call("w.count", number=n) for n in range(15)], "Forced."])
    async with at_work(model) as talk:
        result = await talk.say("go")
    assert (result.exit_reason, len(model.requests)) == ("max_iterations", 16)


async def test_a_hook_reads_how_many_decisions_a_turn_may_make() -> None:
    states = list[ReactStateV2]()

    async with at_work([Call("w.look"), "Done."], workbench(round_hooks=[states.append])) as talk:
        await talk.say("go")
    assert [(state.iteration, state.max_iterations) for state in states[:2]] == [(0, 15), (1, 15)]


async def test_the_system_text_is_the_same_in_every_round() -> None:
    model = ScriptedModel([plan("look"), Say("✓ [1]", Call("w.look")), "Done.", "Again."])
    async with at_work(model) as talk:
        await talk.say("go")
        await talk.say("on")
    first, *later = model.requests
    assert all((one.system, one.tools) == (first.system, first.tools) for one in later)


async def test_the_timeline_is_loaded_again_each_turn(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/c.db"
    script: list[Entry] = [Call("w.find", url="https://a.org"), "So [[S:1]]."]
    async with at_work(script, store=store) as talk:
        await talk.say("go")
    model = ScriptedModel(["Still [[S:1]]."])
    async with at_work(model, store=store) as talk:
        result = await talk.say("and now?")
    assert "[[S:1]] https://a.org" in shown(model.requests[0])
    assert [source.url for source in result.sources] == ["https://a.org"]


async def test_the_timeline_and_the_pool_are_documents() -> None:
    async with at_work([Call("w.find", url="https://a.org"), "So [[S:1]]."]) as talk:
        await talk.say("go")
        refs = ["artifact:conv.timeline.v1", "artifact:conv:sources_pool"]
        timeline, pool = (json.loads(item.text) for item in await talk.read(refs))
    [source] = pool["sources_pool"]
    assert [block["seq"] for block in timeline["blocks"]] == list(
        range(1, len(timeline["blocks"]) + 1)
    )
    assert (source["sid"], source["url"]) == (1, "https://a.org")
    fields = {"title", "source_type", "objective_relevance", "published_time_iso", "favicon_url"}
    assert fields <= set(source)


async def test_a_plan_is_a_lineage_of_snapshots_that_notes_tick_off() -> None:
    script: list[Entry] = [plan("look", "answer"), Say("✓ [1] seen", Call("w.look")), "✓ [2]\nTea."]
    async with at_work(script) as talk:
        result = await talk.say("go")
        plans = Timeline(await talk.blocks()).plans
        acks = [plan_ack.changes for plan_ack in await bodies(talk, PlanAck)]
        (latest,) = await talk.read("ar:plan.latest:plan:turn_1:c1")
    assert (result.answer, acks) == ("Tea.", [{"1": "done"}, {"2": "done"}])
    assert [result.status for result in plans.latest.values()] == ["complete"]
    assert latest.ref.startswith("ar:turn_1.react.plan.")


async def test_the_current_plan_is_announced_again_in_the_next_turn() -> None:
    model = ScriptedModel([plan("look"), "Later.", "Now."])
    async with at_work(model) as talk:
        await talk.say("go")
        await talk.say("on")
    assert "plan_id=plan:turn_1:c1 (current)\n□ [1] look" in model.requests[-1].tail


async def test_a_plan_that_ends_leaves_the_announced_ones_and_stays_readable() -> None:
    first, second, third = (f"plan:turn_{n}:c{n}" for n in (1, 2, 4))
    script: list[Entry] = [
        *(plan("look"), "1", plan("taste"), "2"),
        *(Call("react.plan", mode="activate", plan_id=first), "3"),
        Call("react.plan", mode="replace", plan_id=first, steps=["pour"]),
        *(Call("react.plan", mode="close", plan_id=second), "4"),
    ]
    model = ScriptedModel(script)
    async with at_work(model) as talk:
        for text in "abcd":
            await talk.say(text)
        aliases = [f"ar:plan.latest:{name}" for name in (first, second, third)]
        read = [json.loads(item.text)["snapshot"] for item in await talk.read(aliases)]
    assert f"plan_id={first} (current)" in model.requests[5].tail
    assert (
        model.requests[-1].tail.split("[OPEN PLANS]\n")[1]
        == f"plan_id={third} (current)\n□ [1] pour"
    )
    assert [snapshot["status"] for snapshot in read] == ["superseded", "closed", "open"]
    assert [(one["origin_turn_id"], one["last_turn_id"]) for one in read] == [
        ("turn_1", "turn_4"),
        ("turn_2", "turn_4"),
        ("turn_4", "turn_4"),
    ]
    assert read[0]["superseded_by_plan_id"] == third
    assert read[1]["closed_ts"] is not None


async def test_each_round_has_a_board_of_its_own() -> None:
    model = ScriptedModel([Call("w.look"), Call("w.look"), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
    boards = [request.tail.splitlines()[0] for request in model.requests]
    assert boards == [f"ANNOUNCE — iteration {n} of 15, {15 - n} left" for n in (1, 2, 3)]


async def test_cache_points_lie_at_the_turn_before_before_the_tail_and_at_it() -> None:
    model = ScriptedModel(["Hello.", *[Call("w.count", number=n) for n in range(7)], "Done."])
    async with at_work(model) as talk:
        await talk.say("hello")
        await talk.say("go")
        (*_, last) = await bodies(talk, RoundStart)
    assert [point.name for point in last.points] == ["prev_turn", "pre_tail", "tail"]
    assert model.requests[-1].cache_points == tuple(point.messages for point in last.points)


async def test_at_a_ceiling_a_summary_takes_the_place_of_turns() -> None:
    script: list[Entry] = [Say(f"{n} " + "yes " * 900) for n in range(7)]
    model = ScriptedModel(
        script, aux={"summary": ["Goal: count."] * 9}, window=6_000, output_limit=1_000
    )
    async with at_work(model) as talk:
        for number in range(7):
            await talk.say(f"question {number}")
        summaries = await bodies(talk, RangeSummary)
        (read,) = await talk.read("ar:turn_1.assistant.completion")
    assert summaries[0].covered_turn_ids[0] == "turn_1"
    assert "Goal: count." in shown(model.requests[-1])
    assert read.text.startswith("0 yes")


async def test_earlier_plans_are_listed_behind_a_summary() -> None:
    script: list[Entry] = [plan("look"), Say("✓ [1]", plan("pour"))]
    script += [Say(f"{n} " + "yes " * 900) for n in range(7)]
    model = ScriptedModel(
        script, aux={"summary": ["Goal: tea."] * 9}, window=6_000, output_limit=1_000
    )
    async with at_work(model) as talk:
        for number in range(7):
            await talk.say(f"question {number}")
    (history,) = [str(one) for one in model.requests[-1].messages if "[EARLIER PLANS]" in str(one)]
    assert "□ [1] look" in history
    assert "snapshot_ref=ar:plan.latest:plan:turn_1:c1" in history


async def test_what_is_cut_from_a_prompt_is_read_back_by_its_ref() -> None:
    read = Call("react.read", paths=["tc:turn_1.c1.result"])
    clock, model = FakeClock(), ScriptedModel([Call("w.big", size=3_000), "1", "2", "3", read, "4"])
    async with at_work(model, clock=clock) as talk:
        for _ in range(3):
            await talk.say("go")
        clock.advance(600)
        await talk.say("what was it?")
    before, after = (shown(request) for request in model.requests[-2:])
    assert "the rest is tc:turn_1.c1.result#C401-C3000" in before
    assert ("x" * 3_000 in before, "x" * 3_000 in after) == (False, True)


PARTS = {
    "tools.py": """
from loopline import ToolContext, tool


@tool(effect="read")
def look(context: ToolContext) -> str:
    \"\"\"Look.\"\"\"
    return context.scratchpad["tea"]
""",
    "tools_descriptor.py": 'TOOLS_SPECS = [{"ref": "tools.py", "alias": "my"}]',
    "skills_descriptor.py": 'CUSTOM_SKILLS_ROOT = "skills"',
    "skills/public/brewing/SKILL.md": "---\nname: Brewing\ndescription: How to brew.\n---\n"
    + "Water of 80 degrees.\n" * 30,
    "__init__.py": """
from loopline import BaseWorkflow, Bundle


class Work(BaseWorkflow):
    async def process(self, payload):
        react = await self.build_react(
            scratchpad={"tea": "green"},
            tools_module="my_bundle.tools_descriptor",
            skills_module="my_bundle.skills_descriptor",
        )
        return await react.run(payload)


bundle = Bundle(id="my", workflow=Work)
""",
}


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A package with tools and a skill, which its workflow names."""
    for name, text in PARTS.items():
        path = tmp_path / "my_bundle" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return tmp_path / "my_bundle"


async def test_a_workflow_builds_the_loop_from_its_parts(parts: Path) -> None:
    model = ScriptedModel([Call("my.look"), "Green tea."])
    async with Harness.open(parts, store="memory:", model=model) as harness:
        result = await harness.conversation("c").say("go")
    [item] = results(model.requests[-1])
    assert (item.text.endswith("\ngreen"), result.answer) == (True, "Green tea.")
    assert "sk:public.brewing@" in model.requests[0].system


async def test_a_skill_that_was_read_gives_way_to_its_ref(parts: Path) -> None:
    clock = FakeClock()
    model = ScriptedModel([Call("react.read", paths=["sk:public.brewing"]), "1", "2", "3", "4"])
    async with Harness.open(parts, store="memory:", model=model, clock=clock) as harness:
        for number in range(4):
            clock.advance(600 if number == 3 else 0)
            await harness.conversation("c").say("go")
    before, after = (results(request)[0].text for request in model.requests[-2:])
    assert (before.count("80 degrees"), after.count("80 degrees") <= 1) == (30, True)
    assert "react.read shows again: sk:public.brewing@" in after


class Space(BaseWorkflow):
    """The loop over a space of two passages."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(knowledge_space_fn=self.search, knowledge_read_fn=self.read)
        return await react.run(payload)

    async def search(self, query: str, *, limit: int = 5) -> list[Passage]:
        refs = [f"ks:docs/{name}.md@{'a' * 40}" for name in ("tea", "cake")]
        return [Passage(ref=ref, title=query, text=f"about {query}") for ref in refs][:limit]

    async def read(self, ref: str) -> Passage:
        return Passage(ref=f"ks:docs/tea.md@{'a' * 40}", title="Tea", text="the whole of tea")


class PlainSpace(Space):
    """The same with plain functions."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(
            knowledge_space_fn=self.find, knowledge_read_fn=lambda ref: self.open_passage(ref)
        )
        return await react.run(payload)

    def find(self, query: str, *, limit: int = 5) -> list[Passage]:
        return asyncio.run(
            self.search(query, limit=limit)
        )  # only possible outside of the event loop

    def open_passage(self, ref: str) -> Passage:
        return asyncio.run(self.read(ref))


@pytest.mark.parametrize("workflow", [Space, PlainSpace])
async def test_knowledge_is_searched_read_and_cited(workflow: type[BaseWorkflow]) -> None:
    search = Call("react.search_knowledge", query="tea", limit=1)
    model = ScriptedModel([search, Call("react.read", paths=["ks:docs/tea.md"]), "So [[S:1]]."])
    async with at_work(model, Bundle(id="space", workflow=workflow)) as talk:
        result = await talk.say("go")
    found, read = (item.text for item in results(model.requests[-1]))
    assert ("1 passage" in found, "the whole of tea" in read) == (True, True)
    assert [source.url for source in result.sources] == [f"ks:docs/tea.md@{'a' * 40}"]


async def test_citations_are_of_one_pool_without_doubles() -> None:
    urls = ["https://a.org", "https://a.org/", "https://b.org"]
    script: list[Entry] = [Say("", *[Call("w.find", url=url) for url in urls]), "So [[S:1-2]]."]
    async with at_work(script) as talk:
        result = await talk.say("go")
    assert [source.url for source in result.sources] == ["https://a.org", "https://b.org"]


async def test_the_last_word_of_a_person_counts_and_a_rate_is_made_of_those() -> None:
    async with at_work(["One.", "Two.", "Three."]) as talk:
        for number, reaction in enumerate(("ok", "not_ok", "neutral"), start=1):
            await talk.say("go")
            await talk.feedback(f"turn_{number}", "ok")
            if reaction == "not_ok":
                await talk.feedback("turn_2", "not_ok")
            elif reaction == "neutral":
                await talk.feedback("turn_3", None)
        reactions = Timeline(await talk.blocks()).reactions
    assert reactions.satisfaction.rate == pytest.approx(0.5)


async def test_channels_are_streamed_apart() -> None:
    written = "<channel:thinking>hm</channel:thinking><channel:answer>So.</channel:answer>"
    async with at_work(Spoken([*written])) as talk:
        events = await heard(talk, "go", protocol="tagged")
    assert (said(events, "thinking"), said(events)) == ("hm", "So.")
