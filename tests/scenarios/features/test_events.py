"""What a listener hears at the end of a turn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loopline import Bundle, ToolContext, tool
from loopline.bundle import ChatCommunicator
from loopline.events import DialectName, Event, Record
from loopline.models import Usage
from loopline.testing import Call, Fail, Raw, Refuse, Say
from loopline.testing.scripted import Entry
from loopline.timeline import Block, Exit
from tests.dialects.decoded_stream import heard as told
from tests.support.workbench import at_work, heard

SCRIPT: list[Entry] = [Say("", Call("w.look"), usage=Usage(input_tokens=7)), "Tea."]


async def lasting(name: DialectName) -> list[Record]:
    """What is told of a turn with one call, as far as it lasts."""
    async with at_work(SCRIPT) as talk:
        return [record for record in told(name, await heard(talk, "go")) if record.id]


async def test_a_turn_is_told_in_steps() -> None:
    steps = [(record.event, record.data.get("type")) for record in await lasting("fim")]
    assert steps == [
        *[("step", "thinking"), ("step", "thinking"), ("step", "iteration"), ("step", "iteration")],
        *[("step", "thinking"), ("step", "thinking"), ("step", "answer"), ("answer", None)],
        *[("done", None), ("end", None)],
    ]


async def test_a_turn_is_told_as_a_node() -> None:
    assert [record.event for record in await lasting("nadoo")] == [
        *["node_started", "agent_iteration", "agent_tool_call", "agent_tool_result"],
        *["agent_iteration", "llm_finished", "node_finished"],
    ]


async def test_the_records_of_a_worker_have_their_keys() -> None:
    records = [record.data for record in await lasting("chatcli") if record.event == "log"]
    assert [record["msg"] for record in records] == [
        *["agent turn", "tool_call", "tool result", "agent turn"]
    ]
    assert records[0] == {
        "level": "info",
        "msg": "agent turn",
        "agent": "workbench",
        "turn": 1,
        "tokens": 7,
    }
    assert (records[1]["name"], records[1]["args"]) == ("w.look", "{}")
    assert (records[2]["lines"], records[2]["duration"]) == (1, "0s")


async def test_an_agent_is_started_once_and_completed_once() -> None:
    records = [record.data for record in await lasting("chatcli") if record.event == "AgentEvent"]
    assert [record["type"] for record in records] == ["Started", "Completed"]


async def test_tokens_are_told_as_they_come_and_a_question_stands_for_its_answer() -> None:
    async with at_work(["Tea."]) as talk:
        tokens = [
            record for record in told("beakr", await heard(talk, "go")) if record.event == "token"
        ]
    async with at_work([Call("w.ask")]) as talk:
        asked, end = told("beakr", await heard(talk, "go"))[-2:]
    assert "".join(str(token.data["token"]) for token in tokens) == "Tea."
    assert (asked.event, end.event, end.data["exit_reason"]) == ("ask_user", "end", "paused")


async def test_the_end_has_rounds_usage_and_time() -> None:
    done, node = (await lasting("fim"))[-2].data, (await lasting("nadoo"))[-1].data
    assert (done["iterations"], node["iterations_used"], done["elapsed"]) == (2, 2, 0.0)
    assert done["usage"] == {"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (["Done."], "complete"),
        ([Fail("down")], "error"),
        ([Fail(RuntimeError("odd"), after="Ha")], "error"),
        ([Refuse()], "refused"),
        ([Raw(""), Fail("down")], "error"),
        ([Say("", Call("w.crash"), Call("w.fail"), Call("w.nowhere")), "Done."], "complete"),
    ],
)
async def test_whatever_fails_the_last_event_is_the_end_of_the_turn(
    script: list[Entry], reason: str
) -> None:
    async with at_work(script) as talk:
        events: Sequence[Event] = await heard(talk, "go")
    last = events[-1]
    assert isinstance(last, Block)
    assert isinstance(last.body, Exit)
    assert last.body.reason == reason


@tool(effect="read")
async def tell(context: ToolContext) -> str:
    """Tell of the work."""
    await ChatCommunicator(context).step(step="work", status="running", title="Working")
    await context.emit("work.done", {"ok": True}, durable=True)
    return "done"


async def test_a_tool_tells_of_events_of_its_own() -> None:
    async with at_work([Call("w.tell"), "Done."], Bundle(id="w", tools=[tell])) as talk:
        records = told("kdcube", await heard(talk, "go"))
    named = [(record.event, record.data["type"], bool(record.id)) for record in records]
    own = [("chat_step", "chat.step", False), ("chat_step", "work.done", True)]
    assert [item for item in named if item in own] == own
