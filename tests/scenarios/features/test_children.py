"""Calls that begin a run of their own."""

from __future__ import annotations

from collections import Counter

from loopline.events import AgentEvent, replayed
from loopline.testing import Call
from loopline.timeline import RunChild, ToolCalled, ToolResult
from tests.support.child_runs import Cast, kin


async def test_a_call_that_begins_a_run_is_one_call_with_one_result() -> None:
    model = Cast({"go": [Call("kin.ask", task="look"), "Done."], "look": ["Seen."]})
    async with kin(model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        blocks = await talk.blocks()
    calls = [block for block in blocks if isinstance(block.body, ToolCalled)]
    results = [block.body for block in blocks if isinstance(block.body, ToolResult)]
    assert (len(calls), [result.text for result in results]) == (1, ["complete: Seen."])
    assert any(isinstance(block.body, RunChild) for block in blocks)


async def test_a_run_begins_no_others_beyond_its_depth() -> None:
    model = Cast({"go": [Call("kin.ask", task="look"), "Done."]})
    async with kin(model) as harness:
        talk = harness.conversation("c")
        await talk.say("go", max_depth=0)
        results = [b.body for b in await talk.blocks() if isinstance(b.body, ToolResult)]
    assert [(result.status, "max_depth is 0" in result.text) for result in results] == [
        ("error", True)
    ]


async def test_the_history_of_a_child_stays_its_own() -> None:
    model = Cast(
        {
            "go": [Call("kin.ask", task="search"), "Found."],
            "search": [Call("play.look", text="footprints"), "By the lake."],
        }
    )
    async with kin(model) as harness:
        talk, child = harness.conversation("c"), harness.conversation("c~c1")
        await talk.say("go")
        own = await child.blocks()
    text = "".join(str(request) for request in model.requests["go"])
    assert ("By the lake." in text, "footprints" in text) == (True, False)
    assert any(isinstance(block.body, ToolCalled) for block in own)


async def test_each_run_has_one_beginning_and_one_end() -> None:
    model = Cast(
        {
            "go": [Call("kin.panel", tasks=["look", "listen"]), "Done."],
            "look": ["Seen."],
            "listen": ["Heard."],
        }
    )
    async with kin(model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        blocks = await talk.blocks()
    agents = map(AgentEvent.of, replayed("chatcli", talk.conversation, blocks))
    rows = [(agent.agent, agent.type) for agent in agents if agent is not None]
    assert Counter(rows) == {
        ("kin", "Started"): 1,
        ("kin", "Completed"): 1,
        ("kin.panel", "Started"): 2,
        ("kin.panel", "Completed"): 2,
    }
