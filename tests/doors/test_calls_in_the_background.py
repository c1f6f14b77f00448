"""Calls in the background on the command line and over HTTP: listed, awaited and stopped from another process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

from loopline import Bundle, Harness, tool
from loopline.server import app
from loopline.testing import Call, ScriptedModel
from tests.doors.command import Loopline, finish, write
from tests.support.live_server import in_process


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
    async with in_process(served) as client:
        talk = "/conversations/default/default/c1"
        await client.post(f"{talk}/messages", json={"text": "go"})
        [call] = (await client.get(f"{talk}/background")).json()["calls"]
        stopped = await client.post(f"{talk}/background/c1/stop")
        unknown = await client.post(f"{talk}/background/c9/stop")
        left = await client.get(f"{talk}/background", params={"wait": 30})
    assert (call["call_id"], call["status"], call["begins_again"]) == ("c1", "running", False)
    assert (stopped.json(), unknown.json()) == ({"done": True}, {"done": False})
    assert left.json() == {"calls": []}


BREWING = '''
import asyncio
import signal
import subprocess
from pathlib import Path
from loopline import Bundle, tool
from loopline.testing import Call, ScriptedModel

@tool(effect="read", background=True)
async def brew(tea: str) -> str:
    """Brew a tea."""
    while not Path("ready").exists():
        await asyncio.sleep(0.02)
    return f"{tea} is ready"

script = [Call("kitchen.brew", tea="sencha"), "It brews.", "Here it is."]
bundle = Bundle(id="kitchen", tools=[brew], model=ScriptedModel(script, strict=False))
'''
WAITING = "c1 kitchen.brew runs in the background: waiting for its result"


def start_brewing(folder: Path) -> subprocess.Popen[str]:
    """A run whose turn has ended, and whose call in the background still runs."""
    write(folder, {"kitchen.py": BREWING})
    running = Loopline(folder).start("run", "kitchen.py", "Sencha.", "-c", "a", is_forked=False)
    assert running.stderr is not None
    assert any(WAITING in line for line in running.stderr)
    return running


def test_a_run_waits_for_its_call_in_the_background_and_prints_its_result(tmp_path: Path) -> None:
    running = start_brewing(tmp_path)
    (tmp_path / "ready").touch()
    ran = finish(running)
    assert (ran.code, ran.out) == (0, "It brews.\n")
    assert "sencha is ready" in ran.err
    assert Loopline(tmp_path)("background", "-c", "a").out == ""


def test_a_call_that_ctrl_c_leaves_is_continued_by_the_next_run(tmp_path: Path) -> None:
    running = start_brewing(tmp_path)
    running.send_signal(signal.SIGINT)
    assert finish(running).code == 0
    loopline = Loopline(tmp_path)
    [call] = loopline("background", "-c", "a", "--json").value["calls"]
    assert (call["status"], call["begins_again"]) == ("lost", True)
    (tmp_path / "ready").touch()
    loopline("run", "kitchen.py", "And?", "-c", "a")
    # The model begins another call in the second process, where its script starts anew.
    results = [
        block["body"]["call_id"]
        for block in loopline.blocks("a")
        if block["type"] == "react.background.result"
    ]
    assert results == ["c1", "c2"]
