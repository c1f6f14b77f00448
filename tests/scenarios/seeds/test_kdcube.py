"""What is promised of the timeline, plans, the board and citations."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, Harness, Passage, TurnPayload, TurnResult
from loopline.models import ToolCall
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Plan, PlanAck, Timeline
from tests.support.workbench import at_work, bodies_of, results, run_turn, shown, workbench


def new_plan(*steps: str) -> ToolCall:
    return Call("react.plan", mode="new", steps=list(steps))


async def test_a_plan_that_ends_leaves_the_announced_ones_and_stays_readable() -> None:
    first, second, third = (f"plan:turn_{n}:c{n}" for n in (1, 2, 4))
    script: list[Entry] = [
        *(new_plan("look"), "1", new_plan("taste"), "2"),
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


async def test_earlier_plans_are_listed_behind_a_summary() -> None:
    script: list[Entry] = [new_plan("look"), Say("✓ [1]", new_plan("pour"))]
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
    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(knowledge_space_fn=self.search, knowledge_read_fn=self.read)
        return await react.run(payload)

    async def search(self, query: str, *, limit: int = 5) -> list[Passage]:
        refs = [f"ks:docs/{name}.md@{'a' * 40}" for name in ("tea", "cake")]
        return [Passage(ref=ref, title=query, text=f"about {query}") for ref in refs][:limit]

    async def read(self, ref: str) -> Passage:
        return Passage(ref=f"ks:docs/tea.md@{'a' * 40}", title="Tea", text="the whole of tea")


class PlainSpace(Space):
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
    result, _ = await run_turn(model, Bundle(id="space", workflow=workflow))
    found, read = (item.text for item in results(model.requests[-1]))
    assert ("1 passage" in found, "the whole of tea" in read) == (True, True)
    assert "[[S:1]] tea — ks:docs/tea.md@aaaa" in found
    cited = [(source.url, source.source_type) for source in result.sources]
    assert cited == [(f"ks:docs/tea.md@{'a' * 40}", "file")]


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


def plan(mode: str, *steps: str, plan_id: str = "") -> ToolCall:
    named = {"plan_id": plan_id} if plan_id else {}
    listed = {"steps": list(steps)} if steps else {}
    return Call("react.plan", mode=mode, **named, **listed)


async def test_marks_in_the_notes_change_the_current_plan_alone() -> None:
    script: list[Entry] = [
        plan("new", "old"),
        plan("new", "one", "two", "three", "four"),
        Say("✓ [1] done\n✗ [2] failed\n… [3] at it\n□ [4] open", Call("w.look")),
        "Done.",
    ]
    _, blocks = await run_turn(script)
    old, new = Timeline(blocks).plans.latest.values()
    assert old.step_status == {}
    assert {**new.step_status, "4": "pending"} == {
        "1": "done",
        "2": "failed",
        "3": "in_progress",
        "4": "pending",
    }


async def test_a_round_that_changes_a_plan_acknowledges_nothing() -> None:
    for mode in ("new", "activate", "replace", "close"):
        steps = ["other"] if mode in ("new", "replace") else []
        plan_id = "" if mode == "new" else "plan:turn_1:c1"
        change = Say("✓ [1] done", plan(mode, *steps, plan_id=plan_id))
        _, blocks = await run_turn([plan("new", "look"), change, "Done."])
        assert bodies_of(blocks, PlanAck) == []
        assert all(plan.snapshot.step_status == {} for plan in bodies_of(blocks, Plan))


async def test_the_last_four_open_plans_are_announced() -> None:
    model = ScriptedModel([*[plan("new", f"step {n}") for n in range(1, 7)], "Done."])
    await run_turn(model)
    board = model.requests[-1].tail
    assert [f"plan:turn_1:c{n}" in board for n in range(1, 7)] == [False, False, *[True] * 4]
    assert "plan_id=plan:turn_1:c6 (current)" in board
    assert board.count("(current)") == 1


async def test_after_calls_that_fail_the_model_is_told_and_more_firmly() -> None:
    replies = [Say("", Call("w.fail", message=f"{n}"), Call("w.look")) for n in range(3)]
    model = ScriptedModel([*replies, "Sorry."])
    await run_turn(model, workbench(failure_reflection=True))
    rows = [
        (
            shown(request).count("Some calls failed: w.fail."),
            shown(request).count("stop trying this"),
        )
        for request in model.requests
    ]
    assert rows == [(0, 0), (1, 0), (2, 0), (3, 1)]
