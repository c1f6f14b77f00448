"""A goal is planned as steps, run, analysed, and planned again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from loopline import Bundle, Harness, LooplineError, Output, Source, ToolContext, ToolError, tool
from loopline import timeline as tl
from loopline.cli.timeline import summary_of
from loopline.conversations import Conversation
from loopline.crew import GraphOptions
from loopline.crew.graph import read_analysis, read_graph, set_status
from loopline.events import Delta
from loopline.models import Model, extract_json
from loopline.testing import Call, FakeClock, ScriptedModel
from loopline.testing.clock import BEGINNING
from loopline.tools import ToolFunction
from tests.support.child_runs import Line
from tests.support.crews import Scripts, find
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import bodies_of


def step(id: str, *needed: str, **hints: str) -> dict[str, object]:
    return {"id": id, "task": f"do {id}", "dependencies": [*needed], **hints}


def plan_of(*steps: Mapping[str, object]) -> str:
    return f"Here it is:\n```json\n{json.dumps({'steps': steps})}\n```"


def analysis(achieved: bool, answer: str = "", feedback: str = "") -> str:
    return json.dumps(
        {"achieved": achieved, "confidence": 0.5, "answer": answer, "feedback": feedback}
    )


def graphs(max_workers: int = 5) -> Bundle:
    return Bundle(id="desk", tools=[find], graph=GraphOptions(max_workers=max_workers))


def scripts(plan: str, analysed: str, **steps: Sequence[Line]) -> Scripts:
    """Return a model that plans so, says this of each step, and finds this of the results."""
    return Scripts(
        {
            "Begin": [Call("crew.graph", goal="the goal"), "Ok."],
            "Plan how": [plan],
            **{f"Your step: do {name}": lines for name, lines in steps.items()},
            "Say whether": [analysed],
        }
    )


async def run(
    model: Scripts, max_workers: int = 5
) -> tuple[str, list[tl.CrewGraph], list[tl.Plan], list[tl.RunChild]]:
    """Run a graph; return the result, and what was recorded."""
    _, blocks = await play_turn(model, "Begin", bundle=graphs(max_workers))
    [result] = bodies_of(blocks, tl.ToolResult)
    recorded, plans = bodies_of(blocks, tl.CrewGraph), bodies_of(blocks, tl.Plan)
    return result.text, recorded, plans, bodies_of(blocks, tl.RunChild)


def hanging() -> tuple[ToolFunction[..., Any], asyncio.Event]:
    """Return a tool that never ends, and the event that says that it has begun."""
    begun = asyncio.Event()

    @tool(effect="read")
    async def hang() -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    return hang, begun


async def test_steps_run_as_soon_as_they_can_and_those_that_need_others_after_them() -> None:
    model = scripts(
        plan_of(step("a"), step("b"), step("c", "a", "b")),
        analysis(True, "All of it [1]."),
        a=[Call("desk.find", name="x"), "found [[S:1]]"],
        b=["b is done"],
        c=["c is done"],
    )
    text, recorded, plans, links = await run(model)
    assert "The goal is reached\nAll of it [[S:1]]." in text
    assert "found [1]" in model.prompt_of("Your step: do c")
    assert "b is done" in model.prompt_of("Your step: do c")
    begun = [link.conversation for link in links if not link.reason]
    assert begun == ["c~c1", "c~c1.4", "c~c1.5", "c~c1.6", "c~c1.3"]
    ended = [link.conversation for link in links if link.reason]
    assert ended.index("c~c1.6") > ended.index("c~c1.4") > ended.index("c~c1.5")
    assert {item.status for item in recorded[-1].steps} == {"completed"}
    assert plans[-1].snapshot.status == "complete"
    assert plans[-1].snapshot.steps == ("do a", "do b", "do c")
    drawn = [
        summary_of(tl.Block(seq=1, turn=1, round=1, n=1, ts=BEGINNING, term=1, body=item))
        for item in recorded
    ]
    assert "attempt 1 · the goal · … a · … b · □ c ← a, b" in drawn
    assert drawn[-1] == "attempt 1 · the goal · ✓ a · ✓ b · ✓ c ← a, b · analysed"


async def test_a_step_that_fails_takes_those_with_it_that_need_it_and_no_others() -> None:
    text, recorded, plans, _ = await run(
        scripts(
            plan_of(step("a"), step("b", "a"), step("c", "b"), step("d")),
            analysis(True, "Half of it."),
            a=[],
            d=["d is done"],
        )
    )
    statuses = {item.id: item.status for item in recorded[-1].steps}
    assert statuses == {"a": "failed", "b": "skipped", "c": "skipped", "d": "completed"}
    assert plans[-1].snapshot.step_status == {
        "1": "failed",
        "2": "failed",
        "3": "failed",
        "4": "done",
    }
    assert "a. failed: do a" in text


async def test_no_more_steps_run_at_once_than_may() -> None:
    names = "abcdef"
    *_, links = await run(
        scripts(
            plan_of(*map(step, names)),
            analysis(True, "Done."),
            **{name: ["done"] for name in names},
        ),
        max_workers=2,
    )
    running, most = 0, 0
    for link in links:
        running += -1 if link.reason else 1
        most = max(most, running)
    assert most == 2


async def test_an_analyst_that_fails_does_not_say_that_the_goal_is_reached() -> None:
    model = scripts(plan_of(step("a")), "", a=["done well"])
    text, *_ = await run(model)
    assert text.startswith("Whether the goal is reached is not known. ")
    assert "gave no usable reply" in text
    assert "done well" in text
    assert "a. completed: do a" in text
    assert len(model.requests["Plan how"]) == 1


async def test_what_is_missing_is_planned_again_as_often_as_may_be() -> None:
    model = scripts(plan_of(step("a")), analysis(False, "", "the rest"), a=["done"])
    text, recorded, plans, _ = await run(model)
    assert [graph.attempt for graph in recorded if graph.analysed] == [1, 2, 3]
    assert "not reached: the rest" in text
    assert "Missing: the rest" in model.prompt_of("Plan how")
    assert len({plan.snapshot.plan_id for plan in plans}) == 3
    statuses = [plan.snapshot.step_status["1"] for plan in plans]
    assert statuses == ["in_progress", "done"] * 3
    assert len(model.requests["Plan how"]) == 3


async def test_a_graph_that_is_planned_again_shows_its_new_steps_and_never_the_old_ones() -> None:
    model = ScriptedModel(
        [
            Call("crew.graph", goal="the goal"),
            plan_of(step("a")),
            "done",
            analysis(False, "", "the rest"),
            plan_of(step("b"), step("c", "b")),
            "done",
            "done",
            analysis(True, "Done."),
            "Ok.",
        ]
    )
    _, blocks = await play_turn(model, "Begin", bundle=graphs())
    again = [body for body in bodies_of(blocks, tl.CrewGraph) if body.attempt == 2]
    assert {tuple(item.id for item in graph.steps) for graph in again} == {(), ("b", "c")}
    plans = {(body.snapshot.plan_id, body.snapshot.steps) for body in bodies_of(blocks, tl.Plan)}
    assert plans == {
        ("plan:turn_1:c1", ("do a",)),
        ("plan:turn_1:c1.2", ("do b", "do c")),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nothing", "no JSON object"),
        ('{"steps": []}', "no JSON object"),
        (plan_of(step("a"), step("a")), "same id"),
        (plan_of(step("a", "a")), "circle"),
        ('{"steps": [{"id": "a"}]}', "a step is such as"),
    ],
)
def test_a_graph_that_is_none_is_refused(text: str, problem: str) -> None:
    with pytest.raises(LooplineError, match=problem):
        read_graph(extract_json(text) or {})


def test_needs_that_no_step_meets_are_left_out() -> None:
    [only] = read_graph(extract_json(plan_of(step("a", "z", model_hint="fast"))) or {})
    assert (only.dependencies, only.model_hint) == ((), "fast")


def test_steps_are_lost_by_what_they_need() -> None:
    steps = {
        item.id: item
        for item in read_graph(extract_json(plan_of(step("a"), step("b", "a"), step("c"))) or {})
    }
    lost = set_status(steps, "a", "failed")
    assert [item.status for item in lost.values()] == ["failed", "skipped", "pending"]
    assert set_status(lost, "a", "failed") == lost


@pytest.mark.parametrize("text", ["It is done.", "", "[]", '{"answer": "It is done."}'])
def test_an_analysis_that_cannot_be_read_is_none(text: str) -> None:
    with pytest.raises(LooplineError, match="no JSON object with achieved"):
        read_analysis(extract_json(text) or {})


async def test_a_step_is_run_by_the_model_that_its_hint_names() -> None:
    general = scripts(
        plan_of(step("a", model_hint="fast"), step("b", model_hint="odd")),
        analysis(True, "Done."),
        b=["done"],
    )
    fast = ScriptedModel(["done fast"])
    models: Mapping[str, Model] = {"general": general, "fast": fast}
    async with Harness.open(graphs(), store="memory:", model=models) as harness:
        result = await harness.conversation("c").say("Begin")
    assert result.answer == "Ok."
    assert "do a" in str(fast.requests[0].messages)


async def test_each_step_tells_when_it_begins_and_ends() -> None:
    model = scripts(plan_of(step("a")), analysis(True, "Done."), a=["done"])
    async with talking(model, bundle=graphs()) as talk:
        events = [event async for event in talk.stream("Begin") if isinstance(event, Delta)]
    told = [event.data for event in events if event.name == "crew.step"]
    assert [data["status"] for data in told if isinstance(data, dict)] == ["running", "completed"]


async def test_what_the_user_says_meanwhile_is_analysed_and_costs_no_attempt() -> None:
    talks = list[Conversation]()

    @tool(effect="exclusive")
    async def speak(context: ToolContext) -> Output:
        """Have the user say something."""
        del context
        await talks[0].followup("also in German")
        return Output("said", sources=[Source(title="x", url="https://example.org")])

    model = scripts(
        plan_of(step("a")), analysis(False, "", "German"), a=[Call("desk.speak"), "done"]
    )
    bundle = Bundle(id="desk", tools=[speak], graph=GraphOptions(max_replans=0))
    async with talking(model, bundle=bundle) as talk:
        talks.append(talk)
        await talk.say("Begin", max_iterations=3)
        blocks = await talk.blocks()
    taken = [body.inputs for body in bodies_of(blocks, tl.CrewGraph) if body.analysed]
    assert len(taken) > 2
    assert all(len(inputs) == 1 for inputs in taken[:2])
    assert "also in German" in model.prompt_of("Plan how")


async def test_a_result_of_the_background_is_nothing_that_the_user_has_said() -> None:
    log = tl.MemoryLog(FakeClock())

    @tool(effect="read")
    async def deliver() -> str:
        """Have a result come in from the background."""
        late = tl.BackgroundResult(call_id="c9", tool="desk.slow", text="late")
        await log.append(tl.ConversationKey(name="c"), [tl.Entry(body=late, turn=1)], seen=0)
        return "delivered"

    model = scripts(
        plan_of(step("a")), analysis(False, "", "the rest"), a=[Call("desk.deliver"), "done"]
    )
    bundle = Bundle(id="desk", tools=[deliver], graph=GraphOptions(max_replans=0))
    await play_turn(model, "Begin", bundle=bundle, store=log)
    assert len(model.requests["Plan how"]) == 1


async def cached_lookups(cached: tuple[str, ...], tasks: Mapping[str, Sequence[Line]]) -> list[str]:
    """Run a graph with these steps; return what the tool was asked, once for each time that it ran."""
    names, gate = list[str](), asyncio.Event()

    @tool(effect="read")
    async def look(name: str) -> str:
        """Look something up."""
        names.append(name)
        if name == "broken":
            raise ToolError("nothing there")
        asyncio.get_running_loop().call_later(0.01, gate.set)
        await gate.wait()
        return f"{name} was looked up"

    model = scripts(plan_of(*map(step, tasks)), analysis(True, "Done."), **tasks)
    bundle = Bundle(id="desk", tools=[look], graph=GraphOptions(cached=cached))
    await play_turn(model, "Begin", bundle=bundle)
    return names


async def test_equal_calls_of_steps_to_a_tool_that_opts_in_are_made_once() -> None:
    look_up: list[Line] = [Call("desk.look", name="lake"), "done"]
    steps = dict.fromkeys("abc", look_up)
    assert await cached_lookups(("desk.*",), steps) == ["lake"]
    assert await cached_lookups((), steps) == ["lake"] * 3


async def test_another_call_and_one_that_failed_are_made_again() -> None:
    steps: Mapping[str, Sequence[Line]] = {
        "a": [Call("desk.look", name="lake"), "done"],
        "b": [Call("desk.look", name="sea"), "done"],
        "c": [Call("desk.look", name="broken"), Call("desk.look", name="broken"), "done"],
    }
    assert sorted(await cached_lookups(("desk.look",), steps)) == [
        "broken",
        "broken",
        "lake",
        "sea",
    ]


async def test_a_stop_begins_none_of_the_steps_that_wait() -> None:
    hang, begun = hanging()
    model = scripts(
        plan_of(step("a"), step("b", "a"), step("c", "b")), "", a=[Call("desk.hang"), "done"]
    )
    bundle = Bundle(id="desk", tools=[hang], graph=GraphOptions())
    async with talking(model, bundle=bundle) as talk:
        turn = asyncio.ensure_future(talk.say("Begin"))
        await begun.wait()
        await talk.stop()
        result = await turn
        blocks = await talk.blocks()
    assert result.exit_reason == "stopped"
    ended = {body.conversation: body.reason for body in bodies_of(blocks, tl.RunChild)}
    assert ended == {"c~c1": "complete", "c~c1.4": "stopped"}
    statuses = [body.steps for body in bodies_of(blocks, tl.CrewGraph)][-1]
    assert [item.status for item in statuses] == ["failed", "skipped", "skipped"]


async def test_a_step_that_takes_too_long_fails_and_others_do_not() -> None:
    (hang, begun), clock = hanging(), FakeClock()
    model = scripts(
        plan_of(step("a", tool_hint="desk.hang"), step("b", "a"), step("c")),
        analysis(True, "Half of it."),
        a=[Call("desk.hang"), "done"],
        c=["c is done"],
    )
    bundle = Bundle(id="desk", tools=[hang], graph=GraphOptions(step_seconds=5, max_workers=1))
    async with talking(model, bundle=bundle, clock=clock) as talk:
        turn = asyncio.ensure_future(talk.say("Begin"))
        await begun.wait()
        clock.advance(6)
        assert (await turn).answer == "Ok."
        blocks = await talk.blocks()
    last = [body.steps for body in bodies_of(blocks, tl.CrewGraph)][-1]
    assert {item.id: item.status for item in last} == {
        "a": "failed",
        "b": "skipped",
        "c": "completed",
    }
    reasons = {body.conversation: body.reason for body in bodies_of(blocks, tl.RunChild)}
    assert reasons["c~c1.4"] == "deadline"
    assert "Suggested tool: desk.hang" in str(model.requests["Your step: do a"][0])
