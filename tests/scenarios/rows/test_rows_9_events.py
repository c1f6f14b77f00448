"""Rows of what a listener hears at the end of a turn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loopline import Block
from loopline.events import Event
from loopline.testing import Call, Fail, Raw, Refuse, Say
from loopline.testing.scripted import Entry
from loopline.timeline import Exit
from tests.support.workbench import at_work, heard


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
async def test_row_150_whatever_fails_the_last_event_is_the_end_of_the_turn(
    script: list[Entry], reason: str
) -> None:
    async with at_work(script) as talk:
        events: Sequence[Event] = await heard(talk, "go")
    last = events[-1]
    assert isinstance(last, Block)
    assert isinstance(last.body, Exit)
    assert last.body.reason == reason
