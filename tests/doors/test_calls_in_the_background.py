"""Calls in the background on the command line and over HTTP: listed, awaited and stopped from another process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2

from loopline import Bundle, Harness, tool
from loopline.server import app
from loopline.testing import Call, ScriptedModel
from tests.doors.command import Loopline


@tool(effect="write", background=True)
async def brew(tea: str) -> str:
    """Brew a tea."""
    await asyncio.sleep(600)
    return tea


KITCHEN = Bundle(id="kitchen", tools=[brew])


async def test_the_command_lists_awaits_and_stops_a_call_of_another_process(tmp_path: Path) -> None:
    loopline = Loopline(tmp_path)
    store = f"sqlite:///{tmp_path}/talk.db"
    model = ScriptedModel([Call("kitchen.brew", tea="sencha"), "It brews."])
    here = ("-c", "c1", "--store", store)
    async with Harness.open(KITCHEN, store=store, model=model) as harness:
        await harness.conversation("c1").say("go")
        listed = await asyncio.to_thread(loopline, "background", *here, "--json")
        waited = await asyncio.to_thread(loopline, "background", *here, "--wait", "0.1")
        wrong = await asyncio.to_thread(loopline, "background", "c9", "--stop", *here)
        stopped = await asyncio.to_thread(
            loopline, "background", "c1", "--stop", "--wait", "30", *here
        )
    [call] = listed.value["calls"]
    assert (call["call_id"], call["tool"], call["status"]) == ("c1", "kitchen.brew", "running")
    assert (waited.code, waited.out.startswith("c1 kitchen.brew: running since")) == (1, True)
    assert (wrong.code, "no call 'c9' runs in the background: c1" in wrong.err) == (1, True)
    assert (stopped.code, stopped.out) == (0, "")
    left = loopline("background", *here, "--json")
    assert left.value == {"calls": []}
    assert loopline("background", "--stop", *here).code == 2


async def test_a_client_lists_and_stops_a_call_of_a_server() -> None:
    model = ScriptedModel([Call("kitchen.brew", tea="sencha"), "It brews."])
    served = app(KITCHEN, store="memory:", model=model)
    async with (
        served.router.lifespan_context(served),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(served), base_url="http://localhost"
        ) as client,
    ):
        talk = "/conversations/default/default/c1"
        await client.post(f"{talk}/messages", json={"text": "go"})
        [call] = (await client.get(f"{talk}/background")).json()["calls"]
        stopped = await client.post(f"{talk}/background/c1/stop")
        unknown = await client.post(f"{talk}/background/c9/stop")
        left = await client.get(f"{talk}/background", params={"wait": 30})
    assert (call["call_id"], call["status"], call["begins_again"]) == ("c1", "running", False)
    assert (stopped.json(), unknown.json()) == ({"done": True}, {"done": False})
    assert left.json() == {"calls": []}
