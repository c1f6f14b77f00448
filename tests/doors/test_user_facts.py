"""`loopline memory` lists, edits and removes what is remembered about a user."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from loopline import Bundle, Harness
from loopline.testing import Call, Say, ScriptedModel
from tests.doors.command import Loopline


def test_a_person_lists_edits_and_removes_facts(tmp_path: Path) -> None:
    asyncio.run(remember(tmp_path / "talk.db"))
    loopline = Loopline(tmp_path)
    options = ("--store", f"sqlite:///{tmp_path}/talk.db", "--user", "ann")
    [fact] = json.loads(loopline("memory", "list", "--json", *options).out)
    assert (fact["text"], fact["by_user"]) == ("Ann drinks oolong.", False)
    assert fact["ref"] == "cv:c/ar:turn_1.memory.fact.1"
    edited = loopline("memory", "edit", fact["id"], "I drink water.", *options)
    assert edited.code == 0, edited.err
    assert "I drink water." in loopline("memory", "list", *options).out
    unknown = loopline("memory", "remove", "f9", *options)
    assert (unknown.code, "no fact 'f9'" in unknown.err) == (1, True)
    assert loopline("memory", "remove", fact["id"], *options).code == 0
    assert loopline("memory", "list", *options).out == ""


async def remember(file: Path) -> None:
    bundle = Bundle(id="tea", instructions="You advise on tea.")
    call = Call("react.memory", mode="write", text="Ann drinks oolong.")
    model = ScriptedModel([Say("", call), Say("Done.")])
    options = {"react.memory": True}
    async with Harness.open(
        bundle, store=f"sqlite:///{file}", model=model, properties=options
    ) as harness:
        await harness.conversation("c", user="ann").say("Hello")
