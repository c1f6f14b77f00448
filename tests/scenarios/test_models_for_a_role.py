"""Models by role: a workflow, a child run and the choice of tools are done by those of their role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from loopline import BaseWorkflow, Bundle, Harness, ToolContext, TurnPayload, TurnResult, tool
from loopline.conversations import Conversation
from loopline.errors import ModelError
from loopline.testing import Call, FakeClock, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import ToolsSelected, TurnHeader
from tests.support.workbench import THIRTEEN, bodies, workbench

TOOLS_SPECS = [{"module": __name__, "alias": "desk"}]


@tool(effect="meta")
async def quickly(task: str, role: str, context: ToolContext) -> str:
    """Have something done by a model of a role."""
    return (await context.spawn(task, model=role)).answer


def one(name: str, *script: Entry) -> ScriptedModel:
    return ScriptedModel(script, name=name, strict=False)


def bundle(role: str | None = None) -> Bundle:
    class Desk(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            react = await self.build_react(tools_module=__name__, model=role)
            return await react.run(payload)

    return Bundle(id="desk", workflow=Desk)


async def chains(talk: Conversation) -> list[list[str]]:
    """The chain of each turn, as its header names it."""
    return [[header.model, *header.then] for header in await bodies(talk, TurnHeader)]


@pytest.mark.parametrize(
    ("role", "chain"),
    [
        ("fast", ["quick"]),
        ("reasoning", ["deep", "deeper"]),
        ("unheard of", ["usual"]),
        (None, ["usual"]),
    ],
)
async def test_a_workflow_is_done_by_the_models_of_its_role(
    role: str | None, chain: list[str]
) -> None:
    models: Mapping[str, ScriptedModel | Sequence[ScriptedModel]] = {
        "general": one("usual", "Done."),
        "fast": one("quick", "Done."),
        "reasoning": [one("deep", "Done."), one("deeper")],
    }
    async with Harness.open(bundle(role), store="memory:", model=models) as harness:
        talk = harness.conversation("c")
        assert (await talk.say("go")).answer == "Done."
        assert await chains(talk) == [chain]


async def test_a_child_run_is_done_by_the_models_of_its_role_and_one_without_by_its_parents() -> (
    None
):
    usual = one(
        "usual",
        Call("desk.quickly", task="a", role="fast"),
        Call("desk.quickly", task="b", role="unheard of"),
        "B is done.",
        "Both.",
    )
    models = {"general": usual, "fast": one("quick", "A is done.")}
    async with Harness.open(bundle(), store="memory:", model=models) as harness:
        talk = harness.conversation("c")
        assert (await talk.say("go")).answer == "Both."
        below = [harness.conversation(name) for name in ("c~c1", "c~c2")]
        assert [await chains(child) for child in below] == [[["quick"]], [["usual"]]]


async def test_tools_are_chosen_by_the_fast_model_where_there_is_one() -> None:
    picks = Call("select_tools", tools=["w.look"])
    quick = ScriptedModel([], aux={"selection": [picks]}, name="quick")
    models = {"general": one("usual", "Done."), "fast": quick}
    opened = Harness.open(
        workbench(tools=THIRTEEN, select_tools=True),
        store="memory:",
        model=models,
        clock=FakeClock(),
    )
    async with opened as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        (chosen,) = await bodies(talk, ToolsSelected)
    assert (chosen.model, "w.look" in chosen.names, "w.big" in chosen.names) == (
        "quick",
        True,
        False,
    )


async def test_a_workflow_that_names_a_model_string_is_told_where_that_goes() -> None:
    async with Harness.open(bundle("openai:gpt-5"), store="memory:", model=one("usual")) as harness:
        with pytest.raises(ModelError, match="is a model string"):
            await harness.conversation("c").say("go")
