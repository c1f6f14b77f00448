"""A turn at a terminal: text is shown while it grows, and written as its blocks of Markdown are complete."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline.cli.transcript import MARKDOWN_LENGTH, VOID, Transcript, markdown_rows
from loopline.events import Delta, Event
from loopline.timeline import Block, Body, Draft
from tests.support.round_starts import round_start

RESET = Delta(type="reset", channel="answer")
CONTROLS = "\x00\x1b\x85\u202e\u2066"


def heard(text: str, channel: str = "answer") -> Delta:
    return Delta(type="delta", channel=channel, text=text)


def lines(transcript: Transcript, *events: Event) -> list[str]:
    return [line.plain for event in events for line in transcript.take(event)]


def live(transcript: Transcript) -> list[str]:
    return [row.plain for row in transcript.live_rows(9)]


def rest(transcript: Transcript) -> list[str]:
    return [line.plain for line in transcript.end()]


def test_a_block_of_markdown_is_written_when_it_is_complete_and_shown_before() -> None:
    transcript = Transcript(20)
    assert lines(transcript, heard("Green "), heard("**tea**.\nHot")) == []
    assert live(transcript) == ["Green tea.", "Hot"]
    assert lines(transcript, heard(".\n\nBlack\n")) == ["Green tea.", "Hot."]
    assert live(transcript) == ["", "Black"]
    assert rest(transcript) == ["", "Black"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("one two three four", ["one two", "three four"]),
        ("# Teas\n\n* `a`\n* b\n", ["   Teas", "", " • a", " • b"]),
        ("```\n# no\n\n  2\n```", [" # no", "", "   2"]),
        ("<b>1 < 2</b> &amp;", ["<b>1 <", "2</b>", "&amp;"]),
        ("[a](b:c)", ["a (b:c)"]),
        ("![a](b)", ["!a (b)"]),
        ("[a]: b", ["[a]: b"]),
        ("|a|b|c|d|e|f|\n|-|-|-|-|-|-|\n|1|2|3|4|5|6|", ["|a|b|c|d|e", "|f|", "|-|-|-|-|-"]),
    ],
)
def test_markdown_fits_the_width_and_hides_no_text(text: str, rows: list[str]) -> None:
    assert [row.plain for row in markdown_rows(text, 10)][: len(rows)] == rows


def test_another_channel_begins_another_text() -> None:
    transcript = Transcript(20)
    assert lines(transcript, heard("hm", "thinking"), heard("Yes.")) == ["hm"]
    assert live(transcript) == ["Yes."]


def block(body: Body) -> Block:
    return Block(body=body, seq=1, turn=1, round=1, n=1, ts=datetime.now(UTC), term=1)


START = round_start()


@pytest.mark.parametrize(
    ("events", "shown", "answered"),
    [
        ([RESET], [VOID], False),
        ([RESET, heard("Other.")], [VOID, "Other."], True),
        ([RESET, heard("One.\n\nTwo", "notes")], ["Two"], False),
        ([RESET, heard("One.\n\nTwo.")], ["", "Two."], True),
        (
            [
                RESET,
                block(Draft(text="One.\n\nTwo, three.", reason="the user has said more")),
                block(START),
                heard("Four."),
            ],
            ["", "Two, three.", "(an earlier answer: the user has said more)", "Four."],
            True,
        ),
    ],
)
def test_a_text_that_is_withdrawn_is_labelled_and_one_that_stays_is_neither_repeated_nor_lost(
    events: list[Event], shown: list[str], answered: bool
) -> None:
    transcript = Transcript(60)
    assert lines(transcript, heard("One.\n\nTwo")) == ["One."]
    assert [*lines(transcript, *events), *rest(transcript)] == shown
    assert transcript.is_answered == answered


def test_a_text_of_which_nothing_was_written_is_taken_back() -> None:
    transcript = Transcript(20)
    assert lines(transcript, heard("Perhaps"), RESET, heard("No.")) == []
    assert rest(transcript) == ["No."]


def test_an_event_of_a_tool_is_a_quiet_line_that_is_cut() -> None:
    transcript = Transcript(24)
    event = Delta(type="custom", channel="tool", name="chart", data={"title": "Teas\x1b of 2026"})
    assert lines(transcript, heard("Green "), event) == ["Green", 'chart {"title":"Teas\\u0…']
    assert lines(transcript, heard("tea.")) + rest(transcript) == ["", "tea."]


def test_a_text_without_line_breaks_is_written_in_parts() -> None:
    transcript = Transcript(80)
    text = "word " * (MARKDOWN_LENGTH // 5 + 1)
    rows = lines(transcript, heard(text), heard("**end**")) + rest(transcript)
    assert " ".join(rows).split() == [*text.split(), "**end**"]


_LANGUAGE = re.compile(r"```[^\n]*")
"""The line of a code block that names its language, which is not shown."""


def test_a_code_block_without_code_is_shown_as_it_is_written() -> None:
    transcript = Transcript(20)
    rows = [*transcript.take(heard("```a")), *transcript.end()]
    assert [row.plain for row in rows] == ["```a"]


@given(
    st.lists(
        st.text(alphabet=st.sampled_from("ab 1茶\n#*`-|>[]()&;" + CONTROLS), max_size=12),
        max_size=8,
    ),
    st.integers(1, 12),
)
def test_no_letter_is_lost_or_too_far_right_and_none_can_steer_the_terminal(
    pieces: list[str], width: int
) -> None:
    transcript = Transcript(width)
    rows = [line for piece in pieces for line in transcript.take(heard(piece))]
    rows += transcript.end()
    shown = "".join(row.plain for row in rows)
    assert not set(shown) & {*CONTROLS, "\n"}
    written = _LANGUAGE.sub("", "".join(pieces))
    for letter in "ab茶":
        assert shown.count(letter) >= written.count(letter)
    assert all(row.cell_len <= max(width, 2) for row in rows)
