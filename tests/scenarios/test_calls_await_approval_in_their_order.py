"""A call that waits for the user keeps those behind it waiting that must not come before it."""

from __future__ import annotations

import pytest

from loopline.conversations import Conversation
from loopline.models import ToolCall
from loopline.testing import Call, Say
from loopline.testing.scripted import Entry
from loopline.timeline import ToolResult, ToolStarted
from tests.support.scenario_bundle import bundle
from tests.support.scripted_conversation import talking

DEAR = Call("life.write", name="dear", text="x")
ALONE = Call("life.alone", size=5)
LOOK = Call("life.look", size=5)


async def begun(talk: Conversation) -> list[str]:
    blocks = await talk.blocks(types="react.tool.start")
    return [block.body.call_id for block in blocks if isinstance(block.body, ToolStarted)]


async def ended(talk: Conversation) -> list[tuple[str, str]]:
    blocks = await talk.blocks(types="react.tool.result")
    return [(b.body.call_id, b.body.status) for b in blocks if isinstance(b.body, ToolResult)]


@pytest.mark.parametrize(
    ("approves", "starts", "status"),
    [(True, ["c1", "c3", "c4"], "ok"), (False, ["c3", "c4"], "denied")],
)
async def test_what_conflicts_with_a_call_that_waits_for_leave_runs_after_it(
    approves: bool, starts: list[str], status: str
) -> None:
    script: list[Entry] = [Say("", DEAR, LOOK, ALONE, ALONE), "Done."]
    async with talking(script, bundle=bundle) as talk:
        paused = await talk.say("go")
        assert [item.call_id for item in paused.pending] == ["c1"]
        assert (await begun(talk), await ended(talk)) == ([], [("c2", "ok")])
        done = await talk.resume({"c1": approves})
        assert (await begun(talk), (await ended(talk))[1:]) == (
            starts,
            [("c1", status), ("c3", "ok"), ("c4", "ok")],
        )
    assert (done.exit_reason, done.answer) == ("complete", "Done.")


async def test_with_one_of_two_approved_the_rest_still_waits_for_the_other() -> None:
    other_call = Call("life.write", name="dear", text="y")
    async with talking([Say("", DEAR, other_call, ALONE), "Done."], bundle=bundle) as talk:
        await talk.say("go")
        paused = await talk.resume({"c1": True})
        assert [item.call_id for item in paused.pending] == ["c2"]
        assert await ended(talk) == [("c1", "ok")]
        await talk.resume({"c2": True})
        assert [call_id for call_id, _ in await ended(talk)] == ["c1", "c2", "c3"]


async def test_a_call_that_has_asked_a_question_keeps_nothing_waiting() -> None:
    asking = Call("life.ask", question="Which?")
    async with talking([Say("", asking, ALONE), "Done."], bundle=bundle) as talk:
        await talk.say("go")
        assert await ended(talk) == [("c2", "ok")]
        await talk.resume({"c1": "this"})
        assert await ended(talk) == [("c2", "ok"), ("c1", "ok")]


async def test_a_new_prompt_ends_those_that_waited_behind_it_too() -> None:
    async with talking([Say("", DEAR, ALONE), "Another."], bundle=bundle) as talk:
        await talk.say("go")
        assert (await talk.say("never mind")).answer == "Another."
        assert await begun(talk) == []
        assert [call_id for call_id, _ in await ended(talk)] == ["c1", "c2"]


@pytest.mark.parametrize("between", [[], [ALONE]])
async def test_the_second_of_two_that_is_approved_first_waits_for_the_first(
    between: list[ToolCall],
) -> None:
    other_call = Call("life.write", name="dear", text="y")
    script: list[Entry] = [Say("", DEAR, *between, other_call), "Done."]
    async with talking(script, bundle=bundle) as talk:
        second = f"c{len(between) + 2}"
        await talk.say("go")
        paused = await talk.resume({second: True})
        assert (paused.exit_reason, [item.call_id for item in paused.pending]) == ("paused", ["c1"])
        assert (await talk.resume()).exit_reason == "paused"
        assert await ended(talk) == []
        done = await talk.resume({"c1": True})
        assert [call_id for call_id, _ in await ended(talk)] == ["c1", "c2", "c3"][
            : len(between) + 2
        ]
    assert done.answer == "Done."


async def test_a_new_prompt_ends_the_turn_in_which_only_the_second_of_two_is_approved() -> None:
    other_call = Call("life.write", name="dear", text="y")
    async with talking([Say("", DEAR, other_call), "Another."], bundle=bundle) as talk:
        await talk.say("go")
        await talk.resume({"c2": True})
        assert (await talk.say("never mind")).answer == "Another."
        assert await begun(talk) == []
