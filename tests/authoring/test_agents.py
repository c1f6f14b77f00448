"""Agents are files or values; a mistake names its file and line, and each has a digest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loopline import Agent, Bundle, BundleError, Harness, LooplineError
from loopline.crew import Agents, CrewOptions, load_agents
from loopline.crew.agents import read_agent
from loopline.testing import Call, ScriptedModel
from tests.support.crews import READER, desk

FILE = """---
name: reader
description: Reads pages.
tools: [desk.*, react.read]
skills: public.tea, custom.*
model: fast
effort: high
limits:
  max_iterations: 5
  max_cost: 0.5
---
Read it.

Twice.
"""


def agent_file(tmp_path: Path, text: str, name: str = "reader.md") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_file_is_an_agent(tmp_path: Path) -> None:
    agent = read_agent(agent_file(tmp_path, FILE))
    assert agent == Agent(
        name="reader",
        description="Reads pages.",
        instructions="Read it.\n\nTwice.",
        tools=("desk.*", "react.read"),
        skills=("public.tea", "custom.*"),
        model="fast",
        effort="high",
        limits={"max_iterations": 5, "max_cost": 0.5},
    )


def test_the_name_of_a_file_is_the_default_of_the_agents(tmp_path: Path) -> None:
    path = agent_file(tmp_path, "---\ndescription: Reads.\n---\n", "scout.md")
    assert [agent.name for agent in load_agents(path.parent)] == ["scout"]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("Read it.", 1, "front matter"),
        ("---\nname: reader\n---\nRead.", 2, "description: one sentence about the work of reader"),
        (
            "---\nname: a b\ndescription: x\n---\n",
            2,
            "a letter, then at most 63 of A-Z a-z 0-9 _ -, not 'a b'",
        ),
        ("---\nname: main\ndescription: x\n---\n", 2, "'main' is the bundle itself"),
        ("---\nname: a\ndescription: x\ntool: [a]\n---\n", 4, "nearest is 'tools'"),
        ("---\nname: a\ndescription: x\nfoo: 1\n---\n", 4, "'foo', the known names are tools, "),
        ("---\nname: a\ndescription: x\ntools: [1]\n---\n", 4, "a list of names"),
        ("---\nname: a\ndescription: x\neffort: huge\n---\n", 4, "one of low, medium"),
        ("---\nname: a\ndescription: x\nlimits: 3\n---\n", 4, "limits: a mapping"),
        ("---\nname: a\ndescription: x\nlimits:\n  rounds: [1]\n---\n", 5, "is one value"),
        ("---\nname: a\ndescription: x\nlimits:\n  max_cots: 1\n---\n", 4, "nearest is 'max_cost'"),
        ("---\nname: a\ndescription: [\n---\n", 4, ""),
    ],
)
def test_a_mistake_names_file_and_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = agent_file(tmp_path, text)
    with pytest.raises(BundleError) as raised:
        read_agent(path)
    assert str(raised.value).startswith(f"{path}:{line}: ")
    assert problem in str(raised.value)


def test_a_digest_changes_with_every_part_of_the_definition_and_with_nothing_else() -> None:
    others = [
        replace(READER, name="other"),
        replace(READER, description="Other."),
        replace(READER, instructions="Other."),
        replace(READER, tools=None),
        replace(READER, skills=[]),
        replace(READER, model="fast"),
        replace(READER, effort="low"),
        replace(READER, limits={"max_iterations": 2}),
    ]
    digests = {agent.digest for agent in (READER, *others)}
    assert len(digests) == 9
    assert replace(READER, location="elsewhere:1").digest == READER.digest
    assert replace(READER, tools=("desk.*",)).digest == READER.digest


async def test_agents_in_the_folder_of_a_bundle_are_called_like_those_it_lists(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "tea_desk"
    (folder / "agents").mkdir(parents=True)
    agent_file(folder / "agents", "---\ndescription: Reads.\n---\nRead.", "scout.md")
    (folder / "__init__.py").write_text(
        'from loopline import Bundle\nbundle = Bundle(id="tea_desk", instructions="Help.")\n'
    )
    model = ScriptedModel([Call("crew.delegate", agent="scout", task="Look"), "Seen.", "Ok."])
    async with Harness.open(folder, store="memory:", model=model) as harness:
        result = await harness.conversation("c").say("Go")
    assert result.answer == "Ok."
    assert model.requests[1].system.startswith("Read.")


async def test_without_agents_no_tool_delegates() -> None:
    model = ScriptedModel(["Ok."])
    async with Harness.open(Bundle(id="alone"), store="memory:", model=model) as harness:
        await harness.conversation("c").say("Go")
    assert not any(spec.name.startswith("crew.") for spec in model.requests[0].tools)


async def test_a_bundle_cannot_give_its_tools_the_name_of_those_that_delegate() -> None:
    bundle = replace(desk(), id="crew")
    with pytest.raises(BundleError, match="cannot be an alias"):
        async with Harness.open(bundle, store="memory:", model=ScriptedModel(["Ok."])) as harness:
            await harness.conversation("c").say("Go")


def test_the_environment_names_models_and_efforts_of_agents() -> None:
    environment = {
        "CHATCLI_AGENT_READER_MODEL": "openai:gpt-5",
        "CHATCLI_AGENT_READER_EFFORT": "HIGH",
        "CHATCLI_AGENT_WRITER_EFFORT": "enormous",
    }
    writer = Agent(name="writer", description="Writes.")
    agents = Agents([READER, writer]).with_environment(environment)
    assert (agents["reader"].model, agents["reader"].effort) == ("agent.reader", "high")
    assert agents["writer"] == writer


async def test_in_the_preset_of_the_seed_the_environment_chooses_the_model_of_an_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CHATCLI_AGENT_READER_MODEL", "fast")
    fast, slow = (
        ScriptedModel(["Read."], name="fast"),
        ScriptedModel([Call("crew.delegate", agent="reader", task="Read"), "Ok."], name="slow"),
    )
    bundle = replace(desk(), configuration={"react": {"preset": "chatcli"}})
    models = {"general": slow, "fast": fast}
    async with Harness.open(bundle, store="memory:", model=models) as harness:
        result = await harness.conversation("c").say("Go")
    assert result.answer == "Ok."
    assert len(fast.requests) == 1


def test_the_environment_bounds_how_many_agents_run_at_once() -> None:
    variable = "CHATCLI_AGENT_MAX_WORKERS"
    assert CrewOptions.from_environment({}).max_workers == 4
    assert CrewOptions.from_environment({variable: "9"}).max_workers == 9
    for text in ("many", "0"):
        with pytest.raises(LooplineError, match=f"{variable} is '{text}': it takes a whole number"):
            CrewOptions.from_environment({variable: text})
