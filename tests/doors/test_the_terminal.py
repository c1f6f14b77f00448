"""On a terminal there is colour and movement, and the first run fits on its screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doors.bundles import QUESTION
from tests.doors.command import ESCAPE, Loopline, write
from tests.doors.terminal import Terminal

GREEN_TICK = "\x1b[32m✓"


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (100, 40)])
def test_the_first_run_fits_on_one_screen(tea: Loopline, columns: int, lines: int) -> None:
    with Terminal(tea, "run", "guide", QUESTION, columns=columns, lines=lines) as terminal:
        assert terminal.end() == 0
        final = terminal.text.partition("tea_guide · offline")[2].rpartition("✓  search")
        rows = [*final[0].splitlines()[:2], *f"✓  search{final[2]}".splitlines()]
    assert len(rows) + sum(len(row) // (columns + 1) for row in rows) < lines


def test_steps_tick_in_colour_and_in_place(tea: Loopline) -> None:
    with Terminal(tea, "run", "guide", QUESTION) as terminal:
        assert terminal.end() == 0
        assert GREEN_TICK in terminal.shown
        assert "\x1b[2K" in terminal.shown  # a line is taken back
        assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


def test_a_terminal_without_colours_gets_none(tea: Loopline) -> None:
    plain = Loopline(tea.folder, {"NO_COLOR": "1"})
    with Terminal(plain, "timeline", "--list", "--store", "sqlite:///nowhere.db") as terminal:
        assert terminal.end() == 1
        assert "error: there is no store" in terminal.text
        assert "\x1b[31m" not in terminal.shown


def test_what_is_read_cannot_steer_the_terminal(tea: Loopline) -> None:
    tea("run", "guide", "-", stdin=f"tea{ESCAPE}]0;mine\x07?")
    with Terminal(tea, "read", "ar:turn_1.user.prompt") as terminal:
        assert terminal.end() == 0
        assert r"tea\x1b]0;mine\x07?" in terminal.text
    with Terminal(tea, "timeline", "--no-pager") as terminal:
        assert terminal.end() == 0
        assert f"{ESCAPE}]0" not in terminal.shown


SPEAKER = """from loopline import BaseWorkflow, Bundle


class Speaker(BaseWorkflow):
    async def process(self, payload):
        return await self.answer("a\\x9b31mb\\u202ec\\u2066d\\u200fe\\x7ff")


bundle = Bundle(id="speaker", workflow=Speaker)
"""


def test_no_output_has_a_control_character_that_no_output_needs(tmp_path: Path) -> None:
    rows = [
        (("run", "speaker.py", "hi"), r"a\x9b31mb\u202ec\u2066d\u200fe\x7ff"),
        (("run", "speaker.py", "hi", "--json"), r"a\u009b31mb\u202ec\u2066d\u200fe\u007ff"),
        (("timeline", "--json", "-c", "c1"), r"a\u009b31mb\u202ec"),
        (("export", "-c", "c1"), r"a\u009b31mb\u202ec"),
        (("read", "ar:turn_1.assistant.completion", "-c", "c1"), r"a\x9b31mb\u202ec"),
    ]
    write(tmp_path, {"speaker.py": SPEAKER})
    loopline = Loopline(tmp_path)
    loopline("run", "speaker.py", "hi", "-c", "c1")
    for arguments, shown in rows:
        with Terminal(loopline, *arguments, columns=200) as terminal:
            assert terminal.end() == 0, arguments
            assert shown in terminal.text, arguments
            assert not set(terminal.shown) & set("\x7f\x9b\u200f\u202e\u2066")


def test_a_command_to_paste_is_never_broken(tea: Loopline) -> None:
    with Terminal(tea, "run", "guide", QUESTION, columns=40) as terminal:
        assert terminal.end() == 0
        assert f"  loopline run guide '{QUESTION}' --prop knowledge.repo=." in terminal.text


COUNTING = """import gc

from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult


class Counting(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        return await self.answer(str(gc.get_freeze_count()))


bundle = Bundle(id="counting", workflow=Counting)
"""


def test_what_is_loaded_when_a_bundle_is_open_is_not_looked_through_for_garbage(
    tmp_path: Path,
) -> None:
    """A full collection would hold a streamed answer up for a tenth of a second."""
    write(tmp_path, {"counting.py": COUNTING})
    assert int(Loopline(tmp_path)("run", "counting.py", "How many?").out) > 10_000
