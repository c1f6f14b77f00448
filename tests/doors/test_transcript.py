"""A turn at a terminal: lines are written as they are complete, whatever the pieces they come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopline.cli.turn_display import VOID, Transcript
from loopline.events import Delta


def heard(text: str, channel: str = "answer") -> Delta:
    return Delta(type="delta", channel=channel, text=text)


def lines(transcript: Transcript, *deltas: Delta) -> list[str]:
    return [line.plain for delta in deltas for line in transcript.take(delta)]


def test_a_line_is_written_when_it_ends_and_shown_before() -> None:
    transcript = Transcript(20)
    assert lines(transcript, heard("Green "), heard("tea")) == []
    assert transcript.partial.plain == "Green tea"
    assert lines(transcript, heard(".\nBlack")) == ["Green tea."]
    assert transcript.partial.plain == "Black"
    assert [line.plain for line in transcript.end()] == ["Black"]


def test_a_long_line_is_broken_at_a_space() -> None:
    transcript = Transcript(10)
    assert lines(transcript, heard("one two three four")) == ["one two", "three four"][:1]
    assert transcript.partial.plain == "three four"


def test_another_channel_begins_another_line() -> None:
    transcript = Transcript(20)
    assert lines(transcript, heard("hm", "thinking"), heard("Yes.")) == ["hm"]
    assert transcript.partial.plain == "Yes."


def test_what_is_void_is_taken_back_or_declared_so() -> None:
    transcript = Transcript(20)
    reset = Delta(type="reset", channel="answer")
    assert lines(transcript, heard("Perhaps"), reset, heard("No.\n"), reset) == ["No.", VOID]
    assert not transcript.is_answered
    assert transcript.partial.plain == ""


def test_an_event_of_a_tool_is_a_quiet_line_that_is_cut() -> None:
    transcript = Transcript(24)
    event = Delta(type="custom", channel="tool", name="chart", data={"title": "Teas\x1b of 2026"})
    assert lines(transcript, heard("Green "), event, heard("tea.\n")) == [
        *("Green ", 'chart {"title":"Teas\\u00', "tea."),
    ]


def test_nothing_that_is_heard_can_steer_the_terminal() -> None:
    assert lines(Transcript(40), heard("a\x1b[2Jb\n")) == ["a\\x1b[2Jb"]


@given(
    st.lists(st.text(alphabet=st.sampled_from("ab 茶\n"), max_size=12), max_size=8),
    st.integers(1, 12),
)
def test_no_text_is_lost_and_no_line_is_wider_than_the_terminal(
    pieces: list[str], width: int
) -> None:
    transcript = Transcript(width)
    rows = [line for piece in pieces for line in transcript.take(heard(piece))]
    rows += transcript.end()
    text = "".join(pieces).replace(" ", "").replace("\n", "")
    assert "".join(row.plain for row in rows).replace(" ", "") == text
    assert all(row.cell_len <= max(width, 2) for row in rows)
