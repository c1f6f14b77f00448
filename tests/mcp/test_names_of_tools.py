"""A guard, an agent or a selection that names a tool of an MCP server names one that the server has."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loopline import Agent, BaseWorkflow, Bundle, BundleError, Harness, ask_before
from loopline.bundle import Setting
from loopline.react import Guard
from loopline.testing import Call, FakeClock, ScriptedModel
from tests.authoring.bundle_files import write
from tests.mcp.served import SDK, Served, sdk

LATER = "later.py"


@pytest.fixture
def served(tmp_path: Path) -> Served:
    """A folder with a server that works, and one whose program is not there yet."""
    served = Served(tmp_path)
    later = {"command": sys.executable, "args": [str(tmp_path / LATER)]}
    served.declare({"calc": sdk(), "later": later})
    return served


def guarded(*names: str, agents: Sequence[Agent] = ()) -> Bundle:
    """A bundle that asks before these tools."""
    asked: list[Guard] = [ask_before(names)]

    class Guarded(BaseWorkflow):
        guards = asked

    return Bundle(id="guarded", workflow=Guarded, agents=agents)


@asynccontextmanager
async def opened(
    served: Served,
    bundle: Bundle | Path,
    model: ScriptedModel | None = None,
    clock: FakeClock | None = None,
) -> AsyncGenerator[Harness]:
    """A harness with the servers."""
    properties: dict[str, Setting] = {
        "mcp.file": str(served.folder / ".mcp.json"),
        "react.select_tools": False,
    }
    chosen = model or ScriptedModel([])
    async with Harness.open(
        bundle, store="memory:", model=chosen, properties=properties, clock=clock
    ) as harness:
        yield harness


async def complaint(served: Served, bundle: Bundle | Path) -> str:
    """What is wrong with a bundle that cannot be opened."""
    with pytest.raises(BundleError) as raised:
        async with opened(served, bundle):
            pass
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("mcp.calc.ad", "no tool is called 'mcp.calc.ad', nearest is 'mcp.calc.add'"),
        ("mcp.calc.ad?x*", "no tool matches 'mcp.calc.ad?x*', nearest is 'mcp.calc.add'"),
        ("mcp.clac.add", "no tool is called 'mcp.clac.add', nearest is 'mcp.calc.add'"),
        ("mcp.clac.*", "no tool matches 'mcp.clac.*', nearest is 'mcp."),
    ],
)
async def test_an_unknown_tool_of_a_server_is_refused_when_the_bundle_opens(
    served: Served, name: str, problem: str
) -> None:
    said = await complaint(served, guarded(name))
    assert said.startswith(f"{__file__}:")
    assert f": ask_before: {problem}" in said


async def test_an_unknown_tool_of_an_agent_is_refused_when_the_bundle_opens(served: Served) -> None:
    agent = Agent(name="a", description="A.", tools=["mcp.calc.ad"])
    assert agent.location.startswith(f"{__file__}:")
    assert await complaint(served, guarded("*", agents=[agent])) == (
        f"{agent.location}: the agent 'a': no tool is called 'mcp.calc.ad', nearest is 'mcp.calc.add'"
    )


@pytest.mark.parametrize("name", ["mcp.calc.add", "mcp.calc.a*", "mcp.*", "mcp.later.tea"])
async def test_a_tool_that_a_server_has_or_may_have_later_can_be_named(
    served: Served, name: str
) -> None:
    async with opened(served, guarded(name)):
        pass


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("mcp.later.add", "paused"),
        ("mcp.later.ad", "no tool is called 'mcp.later.ad', nearest is 'mcp.later.add'"),
    ],
)
async def test_a_name_is_decided_once_the_server_can_be_reached(
    served: Served, name: str, outcome: str
) -> None:
    model = ScriptedModel(["Ok.", Call("mcp.later.add", a=1, b=2)], strict=False)
    clock = FakeClock()
    async with opened(served, guarded(name), model, clock) as harness:
        assert (await harness.conversation("c1").say("Go!")).answer == "Ok."
        program = f"import runpy\nrunpy.run_path({str(SDK)!r}, run_name='__main__')\n"
        (served.folder / LATER).write_text(program)
        clock.advance(60)  # a server that failed is not started again at once
        try:
            said = (await harness.conversation("c2").say("Go!")).exit_reason
        except BundleError as error:
            said = f"{error}"
    assert said.endswith(outcome)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            '{"server_id": "calc", "tools": ["ad"]}',
            "the MCP server 'calc' has no tool 'ad': nearest is 'add'",
        ),
        ('{"server_id": "clac"}', "no server 'clac' in "),
    ],
)
async def test_a_selection_names_servers_and_tools_that_there_are(
    served: Served, spec: str, problem: str
) -> None:
    folder = write(
        served.folder / "guide",
        {
            "__init__.py": """
                from loopline import BaseWorkflow, Bundle, ask_before

                class Guide(BaseWorkflow):
                    guards = [ask_before(["mcp.calc.*"])]

                    async def process(self, payload):
                        react = await self.build_react(tools_module="guide.tools_descriptor")
                        return await react.run(payload)

                bundle = Bundle(id="guide", workflow=Guide)
            """,
            "tools_descriptor.py": f"TOOLS_SPECS = []\nMCP_TOOL_SPECS = [{spec}]\n",
        },
    )
    said = await complaint(served, folder)
    assert said.startswith(f"{folder / 'tools_descriptor.py'}:2: {problem}")
