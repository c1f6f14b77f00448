"""The communicator: the seed's methods over events of one's own, by the seed's names, from tools and workflows."""

from __future__ import annotations

from typing import cast

import pytest

from loopline import BaseWorkflow, Bundle, Harness, ToolContext, tool
from loopline.bundle import ChatCommunicator
from loopline.events import Delta, Event, Record
from loopline.models import Json, JsonObject
from loopline.react import TurnPayload
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import Block
from tests.dialects.decoded_stream import heard as told


@tool(effect="read")
async def search(context: ToolContext) -> str:
    """Search, telling of each step."""
    comm = ChatCommunicator(context)
    await comm.step(step="search", status="started", title="Searching", data={"query": "tea"})
    for index, text in enumerate(["Two ", "teas."]):
        await comm.delta(text=text, index=index, marker="canvas", agent="searcher")
    await comm.delta(text="", index=2, marker="canvas", completed=True)
    await comm.event(type="shop.found", title="Found", data={"teas": 2}, markdown="**2** teas")
    await comm.service_event(type="accounting.usage", data={"queries": 1})
    await comm.step(step="search", status="completed")
    await comm.emit("raw", {"any": "thing"})
    return "two teas"


@tool(effect="read")
def search_in_a_thread(context: ToolContext) -> str:
    """Search, telling of it."""
    ChatCommunicator(context, durable=True).step(step="search", status="started", title="Searching")
    return "two teas"


class Shop(BaseWorkflow):
    tools = (search, search_in_a_thread)

    async def pre_run_hook(self, payload: TurnPayload) -> None:
        comm = ChatCommunicator(self)
        await comm.start(message=payload.text)
        await comm.error(message="no stock", title="Oops")
        await comm.complete(data={"final_answer": "none"})


async def events_of(tool_name: str) -> list[Event]:
    model = ScriptedModel([Call(f"shop.{tool_name}"), Say("Two.")])
    bundle = Bundle(id="shop", workflow=Shop)
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        return [event async for event in harness.conversation("c").stream("Tea?")]


def envelope(record: Record) -> tuple[object, ...]:
    """What an envelope says of an event."""
    data = record.data
    event = data["event"]
    assert isinstance(event, dict)
    return (record.event, data["type"], *event.values(), data["data"], data["delta"])


async def records_of(tool_name: str) -> list[tuple[object, ...]]:
    return [envelope(record) for record in told("kdcube", await events_of(tool_name))]


def delta(text: str, index: int, *, completed: bool = False) -> JsonObject:
    return {"text": text, "marker": "canvas", "index": index, "completed": completed}


async def test_what_a_tool_sends_comes_out_in_the_envelopes_of_the_seed() -> None:
    own: JsonObject = {"call_id": "c1"}
    records = [record for record in await records_of("search") if call_of(record) == "c1"]
    asked, *sent, returned = records
    assert (asked[2:5], returned[2:5]) == (
        ("shop", "shop.search", "started"),
        ("shop", "shop.search", "completed"),
    )
    assert sent == [
        ("chat_step", "chat.step", "shop", "search", "started", "Searching", "", {**own, "query": "tea"}, None),
        ("chat_delta", "chat.delta", "searcher", "canvas", "running", "", "", own, delta("Two ", 0)),
        ("chat_delta", "chat.delta", "searcher", "canvas", "running", "", "", own, delta("teas.", 1)),
        ("chat_delta", "chat.delta", "shop", "canvas", "completed", "", "", own, delta("", 2, completed=True)),
        ("chat_step", "shop.found", "shop", "event", "completed", "Found", "**2** teas", {**own, "teas": 2}, None),
        ("chat_service", "accounting.usage", "shop", "event", "completed", "", "", {**own, "queries": 1}, None),
        ("chat_step", "chat.step", "shop", "search", "completed", "", "", own, None),
        ("chat_step", "raw", "shop", "raw", "completed", "", "", {**own, "any": "thing"}, None),
    ]  # fmt: skip


def call_of(record: tuple[object, ...]) -> Json:
    """The call that an envelope's data names, if any."""
    return cast("JsonObject", record[-2]).get("call_id")


async def test_what_a_workflow_sends_is_a_step_and_never_ends_the_turn() -> None:
    records = await records_of("search")
    sent = [record for record in records if record[0] == "chat_step"][:3]
    assert [(record[1], record[4]) for record in sent] == [
        ("chat.start", "started"),
        ("chat.error", "error"),
        ("chat.complete", "completed"),
    ]
    assert [record[0] for record in records].count("chat_complete") == 1
    assert records[-1][0] == "chat_complete"


@pytest.mark.parametrize(("tool_name", "blocks"), [("search", 0), ("search_in_a_thread", 1)])
async def test_what_is_durable_is_a_block_and_anything_else_passes(
    tool_name: str, blocks: int
) -> None:
    events = await events_of(tool_name)
    kept_blocks = [
        block for block in events if isinstance(block, Block) and block.type == "event.custom"
    ]
    passing = [delta for delta in events if isinstance(delta, Delta) and delta.type == "custom"]
    assert (len(kept_blocks), len(passing) > 3) == (blocks, blocks == 0)
