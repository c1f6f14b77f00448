"""The planner and the analyst of a graph make one structured call each; a reply that cannot be read is a failure."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import pytest

from loopline import Bundle, Harness, tool
from loopline.crew import GraphOptions
from loopline.errors import ModelAccessError, ModelUnreachable
from loopline.models import Json, JsonObject, Model, Price, Prompt, Reply, TextDelta
from loopline.react import LoopOptions, PresetName
from loopline.testing import Call, Fail, FakeClock, Raw, Refuse, Say, ScriptedModel, Wait
from loopline.testing.scripted import CapabilityChoices, Entry, Line
from loopline.timeline import Block, CrewGraph, Decision, Notice, Plan, RoundStart, RunChild
from tests.presets.task import SEEDS
from tests.support.rows import each_row
from tests.support.scripted_conversation import play_turn
from tests.support.workbench import bodies_of

PLAN: JsonObject = {"steps": [{"id": "1", "task": "do it"}]}
REACHED: JsonObject = {"achieved": True, "confidence": 0.9, "answer": "All of it."}
NATIVE: CapabilityChoices = {}
JSON_MODE: CapabilityChoices = {"json_mode": True}
TEXT: CapabilityChoices = {"tool_call": False, "tool_choice": False}
PROTOCOLS = {"native": NATIVE, "json": JSON_MODE, "text": TEXT}


@tool(effect="write")
async def look(name: str) -> str:
    """Look something up."""
    return name


DESK = Bundle(id="desk", tools=[look], graph=GraphOptions(), limits={"plans": True})
ONCE = replace(DESK, graph=GraphOptions(max_replans=0))
"""Its graph is planned once."""


def asker(prompt: Prompt) -> str:
    """Return who makes a request."""
    for name in ("planner", "analyst"):
        if f"You are the {name} of a graph" in prompt.system:
            return name
    texts = "\n".join(map(str, prompt.messages))
    return "step" if "Your step:" in texts else "main"


@dataclass
class Actors:
    """The lines of planner and analyst: what each says to its n-th request, the last one for ever."""

    planner: Sequence[Line]
    analyst: Sequence[Line] = ()
    goal: str = "the goal"
    did: str = "did it"

    def __post_init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def line(self, prompt: Prompt) -> Line:
        name = asker(prompt)
        number = self.asked[name]
        self.asked[name] += 1
        match name:
            case "planner":
                return self.planner[min(number, len(self.planner) - 1)]
            case "analyst":
                return self.analyst[min(number, len(self.analyst) - 1)]
            case "step":
                return self.did
            case _:
                return Call("crew.graph", goal=self.goal) if not number else "Done."

    def model(self, choices: CapabilityChoices = NATIVE) -> ScriptedModel:
        return ScriptedModel([self.line] * 100, strict=False, **choices)


@dataclass(frozen=True)
class Outcome:
    """The result that the caller of the graph reads, and what was recorded in its conversation and in those of its children."""

    text: str
    blocks: Sequence[Block]
    children: Mapping[str, Sequence[Block]]

    @property
    def ends(self) -> Mapping[str, str]:
        return {link.conversation: link.reason for link in bodies_of(self.blocks, RunChild)}


async def run(
    model: Model | Sequence[Model],
    *,
    preset: PresetName = "bare",
    bundle: Bundle = DESK,
    clock: FakeClock | None = None,
    max_cost: float | None = None,
) -> Outcome:
    """Run a turn whose model calls the graph."""
    opened = Harness.open(
        bundle,
        store="memory:",
        model=model,
        clock=clock or FakeClock(),
        properties={"react.preset": preset},
    )
    async with opened as harness:
        talk = harness.conversation("c")
        await talk.say("Begin", max_cost=max_cost)
        [result] = await talk.read(["tc:turn_1.c1.result"])
        blocks = await talk.blocks()
        names = [child.conversation.name for child in await talk.children()]
        children = {name: await harness.conversation(name).blocks() for name in names}
    return Outcome(result.text, blocks, children)


@each_row(product(["bare", *SEEDS], PROTOCOLS.values()))
async def test_planner_and_analyst_are_asked_once_and_offered_no_tools(
    preset: PresetName, choices: CapabilityChoices
) -> None:
    actors = Actors([Say(json.dumps(PLAN))], [Say(json.dumps(REACHED))])
    model = actors.model(choices)
    outcome = await run(model, preset=preset)
    assert "The goal is reached\nAll of it." in outcome.text
    asked = {
        name: [p for p in model.requests if asker(p) == name] for name in ("planner", "analyst")
    }
    forced = [] if choices is TEXT else ["plan_steps", "analyse_results"]
    assert [len(prompts) for prompts in asked.values()] == [1, 1]
    prompts = [*asked["planner"], *asked["analyst"]]
    assert [spec.name for prompt in prompts for spec in prompt.tools] == forced
    assert [prompt.options.force_tool for prompt in prompts if prompt.options.force_tool] == forced


async def test_a_function_that_the_model_calls_gives_plan_and_analysis() -> None:
    actors = Actors([Call("plan_steps", **PLAN)], [Call("analyse_results", **REACHED)])
    outcome = await run(actors.model())
    assert "The goal is reached\nAll of it." in outcome.text
    assert outcome.ends["c~c1"] == "complete"


ODD: Sequence[tuple[str, Json]] = [
    ("no answer", {"achieved": False, "confidence": 0.9, "answer": None}),
    ("no confidence", {"achieved": False, "confidence": None, "answer": ""}),
    ("a word for confidence", {"achieved": True, "confidence": "low", "answer": "x"}),
    ("a text for confidence", {"achieved": True, "confidence": "0.9", "answer": "x"}),
    ("a percentage", {"achieved": True, "confidence": 90, "answer": "x"}),
    ("a list as feedback", {"achieved": False, "confidence": 0.9, "feedback": ["a", "b"]}),
    ("an object as answer", {"achieved": True, "confidence": 0.9, "answer": {"text": "x"}}),
    ("a word for achieved", {"achieved": "false", "confidence": 0.9, "answer": "x"}),
    ("a number for achieved", {"achieved": 1, "confidence": 0.9, "answer": "x"}),
    ("null for achieved", {"achieved": None, "confidence": 0.9, "answer": "x"}),
    ("missing achieved", {"confidence": 0.9, "answer": "x"}),
    ("missing confidence", {"achieved": True, "answer": "x"}),
    ("an empty object", {}),
    ("a list of words", ["achieved"]),
    ("a text", "It is done."),
    ("null", None),
]


@each_row(product(PROTOCOLS.values(), [odd for _, odd in ODD]))
async def test_an_odd_analysis_is_never_a_success_and_no_raw_json_is_the_answer(
    choices: CapabilityChoices, reply: Json
) -> None:
    text = reply if isinstance(reply, str) else json.dumps(reply)
    actors = Actors([Say(json.dumps(PLAN))], [Raw(text)])
    outcome = await run(actors.model(choices), bundle=ONCE)
    verdict, answer, *_ = outcome.text.splitlines()
    assert verdict.startswith(("The goal is not reached", "Whether the goal is reached is not"))
    assert answer == "Step 1 (completed): do it"


WRITTEN = {
    "alone": "{}",
    "in a fence": "```json\n{}\n```",
    "in prose": "I have thought about it. {} That is my reply.",
    "in a list": "[{}]",
    "behind thinking": "<think>Is it {{so}}?</think>\n{}",
}


@each_row(product(WRITTEN.values(), PROTOCOLS.values()))
async def test_json_is_read_from_whatever_stands_around_it(
    form: str, choices: CapabilityChoices
) -> None:
    actors = Actors([Raw(form.format(json.dumps(PLAN)))], [Raw(form.format(json.dumps(REACHED)))])
    outcome = await run(actors.model(choices))
    assert "The goal is reached\nAll of it." in outcome.text
    assert (actors.asked["planner"], actors.asked["analyst"]) == (1, 1)


@pytest.mark.parametrize(
    "step",
    [
        {"id": 1, "task": "do it", "dependencies": None},
        {"id": "1", "task": "do it", "tool_hint": None, "model_hint": None},
        {"id": "1", "task": " do it ", "dependencies": ["gone"], "why": "because"},
    ],
)
async def test_a_plan_with_nulls_numbers_and_other_fields_is_run_as_it_is(step: JsonObject) -> None:
    actors = Actors([Say(json.dumps({"steps": [step]}))], [Say(json.dumps(REACHED))])
    outcome = await run(actors.model())
    assert "1. completed: do it" in outcome.text
    assert actors.asked["planner"] == 1


async def test_a_reply_that_does_not_fit_is_corrected_in_the_same_run() -> None:
    odd = {"achieved": True, "confidence": "high", "answer": "All of it."}
    actors = Actors(
        [Raw("Let me think."), Raw("{"), Raw(json.dumps(PLAN))],
        [Raw(json.dumps(odd)), Raw(json.dumps(REACHED))],
    )
    model = actors.model()
    outcome = await run(model)
    assert "The goal is reached\nAll of it." in outcome.text
    assert set(outcome.ends) == {"c~c1", "c~c1.4", "c~c1.3"}
    corrected = [prompt for prompt in model.requests if asker(prompt) == "planner"][-1]
    assert "Your last reply cannot be used: it does not contain a JSON object" in str(
        corrected.messages[-1]
    )
    texts = [decision.raw for decision in bodies_of(outcome.children["c~c1"], Decision)]
    assert texts == ["Let me think.", "{", ""]


async def test_a_low_confidence_leads_to_another_plan_and_then_to_no_success() -> None:
    unsure = {**REACHED, "confidence": 0.3, "feedback": "the depth is a guess"}
    actors = Actors([Say(json.dumps(PLAN))], [Say(json.dumps(unsure))])
    model = actors.model()
    outcome = await run(model)
    assert outcome.text.startswith(
        "Whether the goal is reached is not certain. The analyst is not sure that the goal is reached "
        "(confidence 0.3). the depth is a guess\nAll of it."
    )
    assert actors.asked["planner"] == 3
    again = [prompt for prompt in model.requests if asker(prompt) == "planner"][-1]
    assert "Missing: The analyst is not sure" in str(again.messages)


async def test_a_plan_that_makes_the_analyst_sure_ends_the_graph() -> None:
    replies = [{**REACHED, "confidence": share} for share in (0.49, 0.5)]
    actors = Actors([Say(json.dumps(PLAN))], [Say(json.dumps(reply)) for reply in replies])
    outcome = await run(actors.model())
    assert outcome.text.startswith("The goal is reached\nAll of it.")
    assert actors.asked["planner"] == 2


# Failures


async def test_a_planner_without_a_key_says_so() -> None:
    refused = Fail(ModelAccessError("scripted: OPENAI_API_KEY is not set"))
    actors = Actors([refused])
    outcome = await run(actors.model(JSON_MODE))
    assert outcome.text == "no plan that can be run: scripted: OPENAI_API_KEY is not set"
    assert actors.asked["planner"] == 1  # another form of the request has no key either
    assert outcome.ends == {"c~c1": "error"}


async def test_a_planner_that_cannot_be_reached_is_asked_again_as_often_as_may_be() -> None:
    actors = Actors([Fail(ModelUnreachable("no route to the host"))])
    outcome = await run(actors.model())
    assert outcome.text == "no plan that can be run: no route to the host"
    assert actors.asked["planner"] == 1 + LoopOptions().model_retries


async def test_a_request_that_a_provider_rejects_is_made_in_another_form() -> None:
    actors = Actors(
        [Fail("tool_choice is not supported"), Say(json.dumps(PLAN))], [Say(json.dumps(REACHED))]
    )
    outcome = await run(actors.model())
    assert "The goal is reached" in outcome.text


@pytest.mark.parametrize("line", [Fail(ModelUnreachable("down")), Refuse()])
async def test_the_next_model_of_the_chain_plans_if_the_first_does_not_reply(line: Line) -> None:
    first = Actors([line], [Say(json.dumps(REACHED))])
    second = Actors([Say(json.dumps(PLAN))], [Say(json.dumps(REACHED))])
    outcome = await run([first.model(), second.model()])
    assert "The goal is reached" in outcome.text
    assert second.asked["planner"] == 1
    assert "react.model" in [block.type for block in outcome.children["c~c1"]]


async def test_a_planner_of_which_nothing_fits_is_an_error_with_the_reason() -> None:
    circle = [
        {"id": "1", "task": "a", "dependencies": ["2"]},
        {"id": "2", "task": "b", "dependencies": ["1"]},
    ]
    actors = Actors([Raw(json.dumps({"steps": circle}))])
    outcome = await run(actors.model())
    assert "no plan that can be run: scripted gave no usable reply in 3 requests" in outcome.text
    assert "the steps 1, 2 need each other in a circle" in outcome.text
    assert actors.asked["planner"] == 3
    [notice] = bodies_of(outcome.children["c~c1"], Notice)
    assert notice.code == "model_error"


async def test_a_planner_that_takes_too_long_ends_at_the_deadline_of_a_step() -> None:
    actors = Actors([Wait(10), Say(json.dumps(PLAN))])
    bundle = Bundle(id="desk", graph=GraphOptions(step_seconds=5))
    outcome = await run(actors.model(), bundle=bundle)
    assert outcome.ends == {"c~c1": "deadline"}
    assert "the time of the run is over" in outcome.text


async def test_a_planner_without_budget_asks_nobody() -> None:
    price = Price(input=1e6, output=1e6, cache_read=0.0, cache_write=0.0)
    actors = Actors([Say(json.dumps(PLAN))], goal="the goal " * 2_000)
    outcome = await run(actors.model({"price": price, "output_limit": 300}), max_cost=8_000.0)
    assert outcome.ends == {"c~c1": "budget"}
    assert "too little of the turn's budget is left" in outcome.text
    assert actors.asked["planner"] == 0


async def test_results_that_are_longer_than_the_window_are_not_sent_to_the_analyst() -> None:
    actors = Actors([Say(json.dumps(PLAN))], did="water " * 8_000)
    outcome = await run(actors.model({"window": 6_000, "output_limit": 1_000}))
    assert outcome.text.startswith("Whether the goal is reached is not known. ")
    assert "scripted has room for 5000: use a model with a larger window" in outcome.text
    assert actors.asked["analyst"] == 0


class Hanging(ScriptedModel):
    """A model that never replies to a planner."""

    def __init__(self) -> None:
        super().__init__([Call("crew.graph", goal="the goal")])
        self.is_asked = asyncio.Event()

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        if asker(prompt) == "planner":
            self.is_asked.set()
            await asyncio.Event().wait()
        async for piece in super().stream(prompt):
            yield piece


async def test_a_stop_ends_the_planner_and_asks_nobody_else() -> None:
    model = Hanging()
    async with Harness.open(DESK, store="memory:", model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        turn = asyncio.ensure_future(talk.say("Begin"))
        await model.is_asked.wait()
        await talk.stop()
        assert (await turn).exit_reason == "stopped"
        blocks = await harness.conversation("c~c1").blocks()
    assert [block.type for block in blocks][-2:] == ["react.round.start", "react.exit"]
    assert len(model.requests) == 1


# What is recorded


async def test_the_log_has_each_request_and_what_it_used() -> None:
    actors = Actors([Say(json.dumps(PLAN))], [Say(json.dumps(REACHED))])
    outcome = await run(actors.model())
    for name in ("c~c1", "c~c1.3"):
        blocks = outcome.children[name]
        assert [block.type for block in blocks] == [
            "user.prompt",
            "turn.header",
            "react.round.start",
            "react.decision",
            "assistant.completion",
            "react.exit",
        ]
        [start] = bodies_of(blocks, RoundStart)
        assert start.takes == (1,)
    steps = [graph.steps for graph in bodies_of(outcome.blocks, CrewGraph)]
    assert [step.status for step in steps[-1]] == ["completed"]


# The plan of the model itself

GRAPH: Sequence[Line] = [Call("crew.graph", goal="the goal")]
RUN: Sequence[Line] = [json.dumps(PLAN), "did it"]
OLD, NEW = (Call("react.plan", mode="new", steps=[step]) for step in ("old", "new"))
SURE, UNSURE = (json.dumps({**REACHED, "confidence": share}) for share in (0.9, 0.1))


@pytest.mark.parametrize(
    ("lines", "open_plans", "current"),
    [
        ([*GRAPH, *RUN, SURE], [], []),
        ([OLD, NEW, *GRAPH, *RUN, SURE], ["old", "new"], ["new"]),
        ([OLD, NEW, *GRAPH, *RUN, UNSURE, *RUN, SURE], ["old", "new"], ["new"]),
        ([OLD, NEW, *GRAPH, *RUN, UNSURE, *(["no plan"] * 3)], ["old", "new"], ["new"]),
        (
            [
                OLD,
                NEW,
                Call("react.plan", mode="close", plan_id="plan:turn_1:c2"),
                *GRAPH,
                *RUN,
                SURE,
            ],
            ["old"],
            [],
        ),
    ],
    ids=["no plan before", "one attempt", "two attempts", "a planner that fails", "a closed plan"],
)
async def test_after_a_graph_the_plan_is_the_current_one_that_was_it_before(
    lines: Sequence[Line], open_plans: Sequence[str], current: Sequence[str]
) -> None:
    script: list[Entry] = [entry for line in [*lines, "Done."] for entry in (Wait(1), line)]
    model = ScriptedModel(script)
    _, blocks = await play_turn(model, "Begin", bundle=DESK)
    snapshots = [block.body.snapshot for block in blocks if isinstance(block.body, Plan)]
    latest = {plan.plan_id: plan for plan in snapshots}.values()
    assert [plan.steps[0] for plan in latest if plan.open] == open_plans
    assert [plan.steps[0] for plan in latest if plan.open and plan.current] == current
