"""A guard, an agent or a selection that names a tool of an MCP server names one that the server has."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loopline import Agent, BaseWorkflow, Bundle, BundleError, Harness
from loopline.bundle import Setting
from loopline.guards import ask_before
from loopline.models import Json
from loopline.react import Guard
from loopline.testing import Call, FakeClock, ScriptedModel
from tests.authoring.bundle_files import write
from tests.doors.command import Loopline
from tests.mcp.served import PLAIN, Served, plain

LATER = "later.py"


@pytest.fixture
def served(tmp_path: Path) -> Served:
    """A folder with a server that works, and one whose program is not there yet."""
    served = Served(tmp_path)
    later: dict[str, Json] = {"command": sys.executable, "args": [str(tmp_path / LATER), "works"]}
    served.declare({"desk": plain("works"), "later": later})
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


async def test_unknown_tools_of_servers_are_refused_when_the_bundle_opens(served: Served) -> None:
    agent = Agent(name="a", description="A.", tools=["mcp.desk.wrok"])
    names = ["mcp.desk.wrok", "mcp.desk.wr*", "mcp.dsek.work", "mcp.dsek.*"]
    problems = (await complaint(served, guarded(*names, agents=[agent]))).splitlines()
    assert all(problem.startswith(f"{__file__}:") for problem in problems)
    assert [problem.split(": ", 1)[1] for problem in problems] == [
        "ask_before: no tool is called 'mcp.desk.wrok', nearest is 'mcp.desk.work'",
        "ask_before: no tool matches 'mcp.desk.wr*', nearest is 'mcp.desk.work'",
        "ask_before: no tool is called 'mcp.dsek.work', nearest is 'mcp.desk.work'",
        "ask_before: no tool matches 'mcp.dsek.*', nearest is 'mcp.desk.work'",
        "the agent 'a': no tool is called 'mcp.desk.wrok', nearest is 'mcp.desk.work'",
    ]


async def test_tools_that_a_server_has_or_may_have_later_can_be_named(served: Served) -> None:
    async with opened(served, guarded("mcp.desk.work", "mcp.desk.w*", "mcp.*", "mcp.later.tea")):
        pass


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("mcp.later.work", "paused"),
        ("mcp.later.wrok", "no tool is called 'mcp.later.wrok', nearest is 'mcp.later.work'"),
    ],
)
async def test_a_name_is_decided_once_the_server_can_be_reached(
    served: Served, name: str, outcome: str
) -> None:
    model = ScriptedModel(["Ok.", Call("mcp.later.work")], strict=False)
    clock = FakeClock()
    async with opened(served, guarded(name), model, clock) as harness:
        assert (await harness.conversation("c1").say("Go!")).answer == "Ok."
        (served.folder / LATER).write_text(PLAIN.read_text("utf-8"))
        clock.advance(60)  # a server that failed is not started again at once
        try:
            said = f"{(await harness.conversation('c2').say('Go!')).exit_reason}"
        except BundleError as error:
            said = f"{error}"
    assert said.endswith(outcome)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            '{"server_id": "desk", "tools": ["wrok"]}',
            "The MCP server 'desk' has no tool 'wrok': nearest is 'work'.",
        ),
        ('{"server_id": "dsek"}', "no server 'dsek' in "),
    ],
)
async def test_a_selection_of_an_unknown_server_or_tool_is_an_error_of_check(
    served: Served, spec: str, problem: str
) -> None:
    guide = {
        "__init__.py": """
            from loopline import BaseWorkflow, Bundle

            class Guide(BaseWorkflow):
                async def process(self, payload):
                    react = await self.build_react(tools_module="guide.tools_descriptor")
                    return await react.run(payload)

            bundle = Bundle(id="guide", workflow=Guide)
        """,
        "tools_descriptor.py": f"TOOLS_SPECS = []\nMCP_TOOL_SPECS = [{spec}]\n",
    }
    folder = write(served.folder / "guide", guide)
    run = Loopline(served.folder)
    for _ in range(
        2
    ):  # the second time the list of tools is stored, so the bundle is not even opened
        ran = run("check", "guide", "--prop", f"mcp.file={served.folder / '.mcp.json'}")
        assert (ran.code, f"{folder / 'tools_descriptor.py'}:2: {problem}" in ran.err) == (1, True)
