"""Every part of a loop that needs no code between runs is a keyword of `Bundle`, and a workflow class keeps them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from loopline import BaseWorkflow, Bundle, Harness, Passage, TurnPayload, TurnResult, tool
from loopline.errors import BundleError
from loopline.guards import allow_only
from loopline.react import Middleware, ReactStateV2, Reminder
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import TurnHeader


@tool(effect="read")
def steep(tea: str) -> str:
    """Return how long a tea steeps."""
    return f"{tea}: 3 minutes"


class Own(BaseWorkflow):
    """The next step: the turns are run by code, and the parts of the bundle stay."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        """Run the loop of the bundle."""
        return await (await self.build_react()).run(payload)


TEA: Bundle[Any] = Bundle(id="tea", instructions="You know tea.", tools=[steep])
STEPS = pytest.mark.parametrize("workflow", [BaseWorkflow, Own])


async def ask(bundle: Bundle[Any], model: ScriptedModel | None, **limits: Any) -> TurnResult[Any]:
    """Ask one question in a new conversation."""
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        return await harness.conversation("c1").say("How long?", **limits)


async def header_of(bundle: Bundle[Any], model: ScriptedModel | None) -> TurnHeader:
    """Ask one question, and return the header of the turn."""
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        await talk.say("How long?")
        blocks = await talk.blocks()
    return next(block.body for block in blocks if isinstance(block.body, TurnHeader))


@STEPS
async def test_limits_hold_unless_the_turn_has_its_own(workflow: type[BaseWorkflow]) -> None:
    bundle = replace(
        TEA, workflow=workflow, limits={"max_iterations": 1, "on_exhausted": "summary"}
    )
    call = Call("tea.steep", tea="green")
    result = await ask(bundle, ScriptedModel([call]))
    assert (result.exit_reason, result.rounds) == ("max_iterations", 1)
    result = await ask(bundle, ScriptedModel([call, "Three."]), max_iterations=2)
    assert result.answer == "Three."


@STEPS
async def test_a_preset_holds_and_limits_override_it(workflow: type[BaseWorkflow]) -> None:
    bundle = replace(TEA, workflow=workflow, preset="chatcli", limits={"max_iterations": 7})
    header = await header_of(bundle, ScriptedModel(["Three."]))
    assert (header.preset, header.limits["max_iterations"]) == ("chatcli", 7)


async def test_the_model_of_a_bundle_answers_unless_the_caller_or_the_environment_names_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOOPLINE_MODEL", raising=False)
    bundle = replace(TEA, model=ScriptedModel(["Mine."]))
    assert (await ask(bundle, None)).answer == "Mine."
    assert (
        await ask(replace(TEA, model=ScriptedModel([])), ScriptedModel(["Yours."]))
    ).answer == "Yours."
    monkeypatch.setenv("LOOPLINE_MODEL", "offline")
    assert (await header_of(replace(TEA, model=ScriptedModel([])), None)).model == "offline"


async def test_a_bundle_names_models_by_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOPLINE_MODEL", raising=False)
    roles = {"general": ScriptedModel(["Mine."]), "fast": ScriptedModel([])}
    assert (await ask(replace(TEA, model=roles), None)).answer == "Mine."


@STEPS
async def test_guards_hooks_and_middleware_are_added_to_those_of_the_class(
    workflow: type[BaseWorkflow],
) -> None:
    order: list[str] = []

    def remind(state: ReactStateV2) -> Reminder | None:
        order.append("round")
        return None

    async def around(
        payload: TurnPayload, run: Callable[[TurnPayload], Awaitable[TurnResult[Any]]]
    ) -> TurnResult[Any]:
        order.append("run")
        return await run(payload)

    middleware: Sequence[Middleware] = [around]
    bundle = replace(
        TEA,
        workflow=workflow,
        guards=[allow_only(["react.*"])],
        round_hooks=[remind],
        middleware=middleware,
    )
    model = ScriptedModel([Call("tea.steep", tea="green"), "No."])
    await ask(bundle, model)
    assert order[:2] == ["run", "round"]
    assert "tea.steep" in str(model.requests[-1].messages[-1])
    assert "3 minutes" not in str(model.requests[-1].messages[-1])


@STEPS
async def test_functions_replace_the_search_and_the_reading(workflow: type[BaseWorkflow]) -> None:
    async def search(query: str, *, limit: int = 5) -> Sequence[Passage]:
        return [Passage(ref="ks:tea.md", title="Tea", text=f"{query}: steep it.")]

    def read(ref: str) -> Passage:
        return Passage(ref=ref, title="Tea", text="The whole page.")

    bundle = replace(TEA, workflow=workflow, knowledge_space_fn=search, knowledge_read_fn=read)
    calls = [Call("react.search_knowledge", query="green"), Call("react.read", paths=["ks:tea.md"])]
    model = ScriptedModel([*calls, Say("Three.")])
    await ask(bundle, model)
    assert "green: steep it." in str(model.requests[1].messages)
    assert "The whole page." in str(model.requests[2].messages)


@STEPS
async def test_hooks_run_around_the_process_and_the_load_hook_once(
    workflow: type[BaseWorkflow],
) -> None:
    order: list[str] = []

    async def load() -> None:
        order.append("load")

    def before(turn: BaseWorkflow[Any], payload: TurnPayload) -> None:
        turn.scratchpad["tea"] = payload.text
        order.append("before")

    async def after(turn: BaseWorkflow[Any], payload: TurnPayload, result: TurnResult[Any]) -> None:
        await turn.keep("asked", turn.scratchpad["tea"])
        order.append(result.answer)

    bundle = replace(
        TEA, workflow=workflow, on_bundle_load=load, pre_run_hook=before, post_run_hook=after
    )
    for _ in range(2):
        await ask(bundle, ScriptedModel(["Three."]))
    assert order == ["load", "before", "Three.", "before", "Three."]


async def test_a_hook_that_raises_ends_the_turn_with_its_line() -> None:
    def before(turn: BaseWorkflow[Any], payload: TurnPayload) -> None:
        raise ValueError("no tea today")

    with pytest.raises(BundleError, match=rf"{__name__.rpartition('.')[2]}\.py:\d+.*no tea today"):
        await ask(replace(TEA, pre_run_hook=before), ScriptedModel([]))


async def test_a_guard_that_names_no_tool_is_an_error_when_the_bundle_is_opened() -> None:
    with pytest.raises(BundleError, match=r"tea\.stepp.*nearest is 'tea\.steep'"):
        await ask(replace(TEA, guards=[allow_only(["tea.stepp"])]), ScriptedModel([]))
