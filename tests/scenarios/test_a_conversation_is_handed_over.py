"""A conversation is handed over to another agent: a switch that the log records, and that later turns keep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from loopline import Agent, Harness, LooplineError
from loopline.crew.agents import read_agent
from loopline.models import Prompt
from loopline.testing import Call, FakeClock, ScriptedModel
from loopline.timeline import AgentSwitched, RunChild, TurnHeader
from tests.support.crews import WRITER, desk

EXPERT = Agent(
    name="expert",
    description="Knows lakes.",
    instructions="You know lakes.",
    tools=["desk.*"],
    effort="high",
    leads=True,
)
OTHER = Agent(name="other", description="Leads.", leads=True)


def names(prompt: Prompt) -> set[str]:
    return {spec.name for spec in prompt.tools}


async def test_an_agent_takes_the_conversation_over_in_the_same_turn_and_keeps_it() -> None:
    model = ScriptedModel(
        [
            Call("crew.hand_over", agent="expert", note="It is about lakes."),
            Call("desk.find", name="lake"),
            "90 m.",
            "Cold.",
        ]
    )
    async with Harness.open(
        desk(EXPERT, WRITER), store="memory:", model=model, clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        first = await talk.say("How deep is it?")
        second = await talk.say("And how warm?")
        blocks = list(await talk.blocks())
    assert (first.answer, second.answer) == ("90 m.", "Cold.")
    before, after, _, later = model.requests
    assert "Have agents work." in before.system
    assert "You know lakes." in after.system
    assert "You know lakes." in later.system
    assert "It is about lakes." in str(after.messages)
    assert "How deep is it?" in str(later.messages)
    assert after.options.reasoning_effort == "high"
    assert "crew.delegate" in names(before)
    assert "crew.delegate" not in names(after)
    [switched] = [block.body for block in blocks if isinstance(block.body, AgentSwitched)]
    assert (switched.agent, switched.agent_digest) == ("expert", EXPERT.digest)
    headers = [(b.turn, b.body.agent) for b in blocks if isinstance(b.body, TurnHeader)]
    assert headers == [(1, ""), (1, "expert"), (2, "expert")]
    assert not any(isinstance(block.body, RunChild) for block in blocks)


async def test_it_is_handed_back_to_the_loop_of_the_bundle() -> None:
    model = ScriptedModel(
        [
            Call("crew.hand_over", agent="expert"),
            "90 m.",
            Call("crew.hand_over", agent="main"),
            "Hello again.",
        ]
    )
    async with Harness.open(
        desk(EXPERT), store="memory:", model=model, clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        await talk.say("How deep is it?")
        await talk.say("Thank you.")
    assert "Have agents work." in model.requests[-1].system
    assert "You know lakes." in model.requests[-2].system


@pytest.mark.parametrize(
    ("agents", "named", "problem"),
    [
        ([EXPERT], "expert", "there is no agent 'expert': there are main"),
        ([EXPERT], "expart", "there is no agent 'expart': there are main"),
        ([EXPERT, OTHER], "expert", "there is no agent 'expert': there are other, main"),
        ([EXPERT, OTHER], "mein", "there is no agent 'mein': there are main, other"),
    ],
)
async def test_the_model_reads_that_an_agent_cannot_be_handed_the_conversation(
    agents: Sequence[Agent], named: str, problem: str
) -> None:
    model = ScriptedModel(
        [Call("crew.hand_over", agent="expert"), Call("crew.hand_over", agent=named), "Ok."]
    )
    async with Harness.open(
        desk(*agents), store="memory:", model=model, clock=FakeClock()
    ) as harness:
        result = await harness.conversation("c").say("How deep is it?")
    assert result.answer == "Ok."
    assert problem in str(model.requests[-1].messages[-1])


async def test_another_process_knows_who_leads(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    first = ScriptedModel([Call("crew.hand_over", agent="expert"), "90 m."])
    async with Harness.open(desk(EXPERT), store=store, model=first) as harness:
        await harness.conversation("c").say("How deep is it?")
    model = ScriptedModel(["Cold."])
    async with Harness.open(desk(EXPERT), store=store, model=model) as harness:
        await harness.conversation("c").say("And how warm?")
    assert "You know lakes." in model.requests[0].system


async def test_an_agent_that_the_bundle_no_longer_has_leads_nothing() -> None:
    model = ScriptedModel([Call("crew.hand_over", agent="expert"), "90 m.", "Cold."])
    async with Harness.open(
        desk(EXPERT), store="memory:", model=model, clock=FakeClock()
    ) as harness:
        await harness.conversation("c").say("How deep is it?")
        async with Harness.open(desk(OTHER), store=harness.log, model=model) as later:
            await later.conversation("c").say("And how warm?")
    assert "Have agents work." in model.requests[-1].system


async def test_without_agents_that_lead_nothing_can_be_handed_over() -> None:
    model = ScriptedModel(["Ok."])
    async with Harness.open(
        desk(WRITER), store="memory:", model=model, clock=FakeClock()
    ) as harness:
        await harness.conversation("c").say("Go")
    assert "crew.hand_over" not in names(model.requests[0])


def test_a_file_says_that_an_agent_leads_and_which_files_it_has(tmp_path: Path) -> None:
    path = tmp_path / "expert.md"
    path.write_text("---\ndescription: Knows.\nleads: true\nfiles: write\n---\nKnow.")
    agent = read_agent(path)
    assert (agent.leads, agent.files) == (True, "write")
    path.write_text("---\ndescription: Knows.\nfiles: all\n---\nKnow.")
    with pytest.raises(LooplineError, match="3: files: one of own, read, write"):
        read_agent(path)


async def test_a_document_makes_no_agent_lead() -> None:
    model = ScriptedModel([Call("crew.hand_over", agent="expert"), "90 m.", "Cold."])
    async with Harness.open(
        desk(EXPERT), store="memory:", model=model, clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        await talk.say("How deep is it?")
        imported = await harness.load(await talk.export(), name="d")
        await imported.say("And how warm?")
    assert "Have agents work." in model.requests[-1].system
