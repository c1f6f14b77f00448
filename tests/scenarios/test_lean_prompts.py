"""What a request has besides the bundle's instructions, its tools and the message, counted with the project's own counter."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loopline import BaseWorkflow, Bundle, Harness, Output, TurnPayload, TurnResult, tool
from loopline.files import Attachment
from loopline.models.prompt import Prompt, cost, estimate
from loopline.prompt import tools_text
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import RoundStart

ROOT = Path(__file__).parents[2]
GUIDE = os.path.relpath(ROOT / "bundles" / "repo_guide")
BESIDES = 120
GUIDE_TOKENS = 755
"""Two thirds of the 1,132 tokens that the first request of `repo_guide` had before its prompt was shortened."""
INSTRUCTIONS = "Answer questions about tea."
QUESTION = "How long does green tea steep?"


LONG = "tea " * 20_000


@tool(effect="read")
def steep(tea: str) -> str:
    """Return how long a tea steeps."""
    return f"{tea}: 3 minutes"


@tool(effect="read")
def recite(topic: str) -> str:
    """Recite a long text."""
    return LONG


@tool(effect="read")
def page(topic: str) -> str:
    """Recite a page about a topic."""
    return f"{topic} " * 700


@tool(effect="read")
def keep(topic: str) -> Output:
    """Store a long text, and return its beginning."""
    return Output(topic, artifact={"text": topic})


LEAN: Bundle[Any] = Bundle(id="tea", instructions=INSTRUCTIONS, tools=[steep, recite, page, keep])
OWN = ["tea.steep", "tea.recite", "tea.page", "tea.keep"]
LOOP = ["react.plan", "react.read", "react.hide"]


class Planner(BaseWorkflow):
    """Builds its own loop, with the tools of every loop."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        """Run a loop."""
        return await (await self.build_react()).run(payload)


def tokens(request: Prompt) -> int:
    """Count the tokens of a request."""
    sent = estimate(request.system) + sum(map(cost, request.messages)) + estimate(request.tail)
    return sent + (estimate(tools_text(request.tools)) if request.tools else 0)


def names(request: Prompt) -> list[str]:
    """The names of the tools of a request."""
    return [spec.name for spec in request.tools]


async def sent(
    bundle: Bundle[Any] | Path,
    script: Sequence[Entry],
    *texts: str,
    store: str = "memory:",
    window: int = 1_000_000,
) -> tuple[list[Prompt], list[str]]:
    """Say the texts in a conversation; return what the model was sent, and the cause of each epoch from the first on."""
    model = ScriptedModel(script, window=window)
    async with Harness.open(bundle, store=store, model=model) as harness:
        talk = harness.conversation("c1")
        for text in texts:
            await talk.say(text)
        starts = [block.body for block in await talk.blocks() if isinstance(block.body, RoundStart)]
    return list(model.requests), [start.opened_by for start in starts if start.opened_by]


@pytest.mark.parametrize("tools", [[], [steep], [steep, recite]])
async def test_a_hello_has_at_most_120_tokens_besides_instructions_tools_and_message(
    tools: list[Callable[..., object]],
) -> None:
    [request], _ = await sent(replace(LEAN, tools=tools), ["Three minutes."], QUESTION)
    listed = estimate(tools_text(request.tools)) if tools else 0
    assert tokens(request) - estimate(INSTRUCTIONS) - listed - estimate(QUESTION) <= BESIDES
    assert names(request) == OWN[: len(tools)]


async def test_react_read_appears_with_the_first_truncated_result_and_stays() -> None:
    script: list[Entry] = [Call("tea.steep", tea="green"), Call("tea.recite", topic="tea"), "Long."]
    requests, causes = await sent(LEAN, [*script, "Still."], "Recite.", "And now?")
    assert [names(request) for request in requests] == [
        OWN,
        OWN,
        ["react.read", *OWN],
        ["react.read", *OWN],
    ]
    assert causes == ["start", "instructions,tools"] or causes == ["start", "tools"]


async def test_react_read_appears_in_the_epoch_of_the_first_compaction() -> None:
    script: list[Entry] = [Call("tea.page", topic=f"tea{n}") for n in range(12)]
    requests, causes = await sent(LEAN, [*script, "Done."], "Recite.", window=16_000)
    offered = ["react.read" in names(request) for request in requests]
    assert offered == sorted(offered)
    assert (offered[0], offered[-1]) == (False, True)
    assert causes[0] == "start"
    assert causes[1] == "tools,compaction"
    assert not any("tools" in cause for cause in causes[2:])


async def test_react_read_appears_when_a_result_names_an_artifact() -> None:
    script: list[Entry] = [Call("tea.keep", topic="tea"), "Stored."]
    requests, _ = await sent(LEAN, script, "Store it.")
    assert [names(request) for request in requests] == [OWN, ["react.read", *OWN]]


@pytest.mark.parametrize(("size", "offered"), [(1_000, OWN), (400_000, ["react.read", *OWN])])
async def test_react_read_is_offered_at_once_for_a_file_that_is_not_shown_in_full(
    size: int, offered: list[str]
) -> None:
    model = ScriptedModel(["Read."])
    file = Attachment("notes.txt", b"tea leaves " * (size // 11), "text/plain")
    async with Harness.open(LEAN, store="memory:", model=model) as harness:
        await harness.conversation("c1").say("Look.", attachments=[file])
    assert [names(request) for request in model.requests] == [offered]


async def test_the_tools_of_a_conversation_are_the_same_in_another_process(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tea.db"
    await sent(LEAN, [Call("tea.recite", topic="tea"), "Long."], "Recite.", store=store)
    [request], causes = await sent(LEAN, ["Still."], "And now?", store=store)
    assert names(request) == ["react.read", *OWN]
    assert len(causes) == 2


async def test_a_conversation_that_had_the_tools_of_the_loop_continues_with_its_open_plan(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/tea.db"
    plan = Call("react.plan", mode="new", steps=["look"])
    await sent(replace(LEAN, workflow=Planner), [plan, "Planned."], "Plan.", store=store)
    script: list[Entry] = [Say("✓ [1] looked", Call("tea.steep", tea="green")), "Done.", "Yes."]
    requests, causes = await sent(LEAN, script, "Do it.", "Sure?", store=store)
    assert [names(request) for request in requests] == [
        ["react.plan", *OWN],
        ["react.plan", *OWN],
        OWN,
    ]
    assert causes[0] == "start"


@pytest.mark.parametrize(
    "bundle",
    [
        replace(LEAN, workflow=Planner),
        replace(LEAN, configuration={"react": {"plans": True}}),
        replace(LEAN, configuration={"react": {"workspace": "latest"}}),
    ],
)
async def test_a_loop_of_its_own_and_a_bundle_with_plans_or_files_have_the_tools_of_the_loop(
    bundle: Bundle[Any],
) -> None:
    [request], _ = await sent(bundle, ["Three minutes."], QUESTION)
    assert names(request)[:3] == LOOP


async def test_plans_can_be_switched_off_where_a_workflow_builds_its_loop() -> None:
    bundle = replace(LEAN, workflow=Planner, configuration={"react": {"plans": False}})
    [request], _ = await sent(bundle, ["Three minutes."], QUESTION)
    assert names(request) == ["react.read", "react.hide", *OWN]


async def test_the_first_request_of_repo_guide_has_a_third_fewer_tokens() -> None:
    model = ScriptedModel(["It is chosen."])
    place = {"knowledge.repo": str(ROOT)}
    async with Harness.open(GUIDE, store="memory:", model=model, properties=place) as harness:
        await harness.conversation("c1").say("How is the cut point chosen?")
    assert tokens(model.requests[0]) <= GUIDE_TOKENS
