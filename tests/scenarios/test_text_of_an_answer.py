"""The text of an answer alone: what may still be a note is held back, or shown."""

from __future__ import annotations

import pytest

from loopline import Bundle, Harness
from loopline.events import Delta, NotesMode
from loopline.events.events import NO_TOOLS, AnswerText
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry

SCRIPT: list[Entry] = [
    Say("I look it up.", Call("react.read", refs=["so:sources_pool"])),
    Say("Three minutes."),
]


def piece(text: str) -> Delta:
    return Delta(type="delta", channel="answer", text=text)


@pytest.mark.parametrize(
    ("notes", "shown"),
    [("hold", "Three minutes."), ("show", "I look it up.\n\nThree minutes.")],
)
async def test_a_note_is_held_back_or_shown(notes: NotesMode, shown: str) -> None:
    async with Harness.open(
        Bundle(id="tea"), store="memory:", model=ScriptedModel(SCRIPT)
    ) as harness:
        conversation = harness.conversation("c")
        pieces = [text async for text in conversation.stream_text("How long?", notes=notes)]
    assert "".join(pieces) == shown


async def test_an_answer_from_the_trace_is_yielded_as_it_is_written() -> None:
    model = ScriptedModel([Say("Draft."), Say("Three minutes.")])
    async with Harness.open(Bundle(id="tea"), store="memory:", model=model) as harness:
        conversation = harness.conversation("c")
        pieces = [
            text async for text in conversation.stream_text("How long?", answer_mode="synthesize")
        ]
    assert "".join(pieces) == "Three minutes."


async def test_an_answer_of_a_type_is_its_json() -> None:
    model = ScriptedModel([Say('{"minutes": 3}')])
    async with Harness.open(
        Bundle(id="tea", output_type=dict[str, int]), store="memory:", model=model
    ) as harness:
        conversation = harness.conversation("c")
        pieces = [text async for text in conversation.stream_text("How long?")]
    assert "".join(pieces) == '{"minutes":3}'


def test_a_text_that_is_written_again_after_a_lost_connection_is_not_yielded_twice() -> None:
    answer = AnswerText("show")
    assert [answer.feed(piece("Three ")), answer.feed(piece("minutes."))] == ["Three ", "minutes."]
    assert answer.feed(Delta(type="reset", channel="answer")) == "\n\n"
    held = AnswerText()
    assert held.feed(piece("Three ")) == ""
    assert held.feed(Delta(type="reset", channel="answer")) == ""


def test_the_digest_of_no_tools_is_that_of_an_empty_text() -> None:
    assert len(NO_TOOLS) == 64
