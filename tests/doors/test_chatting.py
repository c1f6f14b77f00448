"""A chat is a conversation: from a pipe each line is a turn, at a terminal one may interrupt."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path

import pytest

from loopline.server import app
from tests.doors.bundles import OTHER_QUESTION, QUESTION, ledger, start_working
from tests.doors.command import ESCAPE, LIMIT_SECONDS, LOOPLINE, Loopline, finish, wait_for, write
from tests.doors.terminal import Terminal
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, refusing


def test_each_line_from_a_pipe_is_a_turn_in_order(tea: Loopline) -> None:
    ran = tea("chat", "guide", stdin=f"{QUESTION}\n\n{OTHER_QUESTION}\n")
    assert ran.code == 0, ran.err
    assert ran.out.index("Green tea") < ran.out.index("Leaves are stored")
    assert ESCAPE not in ran.out + ran.err
    assert "turn_2" in {block["turn_id"] for block in tea.blocks("tea_guide-1")}


def test_quit_leaves_and_what_follows_is_not_said(tea: Loopline) -> None:
    ran = tea("chat", "guide", "-c", "c1", stdin=f"/stop\n{QUESTION}\n/quit\nAnd milk?\n")
    assert ran.code == 0
    assert "nothing is running" in ran.err
    prompts = [block for block in tea.blocks("c1") if block["type"] == "user.prompt"]
    assert len(prompts) == 1


def test_json_is_a_line_for_each_turn(tea: Loopline) -> None:
    ran = tea("chat", "guide", "--json", stdin=f"{QUESTION}\nAnd black tea?\n")
    turns = [json.loads(line)["turn_id"] for line in ran.out.splitlines()]
    assert turns == ["turn_1", "turn_2"]


def test_what_is_typed_while_a_turn_runs_is_added_and_stop_ends_it(slow: Loopline) -> None:
    with Terminal(slow, "chat", "slow") as terminal:
        terminal.see("\n>")
        terminal.type("work\r")
        wait_for(lambda: bool(ledger(slow.folder)))
        terminal.type("and quickly\r")
        terminal.see("added to turn_1, as block ")
        terminal.type("/stop\r")
        terminal.see("stopped")
        terminal.type("hello\r")
        terminal.see("said")
        terminal.see("\n1 round · ")
        terminal.type("/quit\r")
        assert terminal.end() == 0
    assert ledger(slow.folder) == ["dig"]
    texts = [block["body"].get("text") for block in slow.blocks("slow-1")]
    assert "and quickly" in texts


def test_ctrl_c_at_the_prompt_leaves(slow: Loopline) -> None:
    with Terminal(slow, "chat", "slow") as terminal:
        terminal.see("\n>")
        terminal.type("\x03")
        assert terminal.end() == 0


def test_an_unknown_command_is_refused_and_a_space_sends_the_line(tea: Loopline) -> None:
    ran = tea("chat", "guide", "-c", "c1", stdin="/spoon 3\n /etc is a folder\n")
    assert (
        "there is no command /spoon: /steer, /stop, /attach, /feedback, /fork, /mode, /rules, /help, /quit"
        in ran.err
    )
    prompts = [block for block in tea.blocks("c1") if block["type"] == "user.prompt"]
    assert [block["body"]["text"].strip() for block in prompts] == ["/etc is a folder"]


def test_a_chat_asks_again_what_a_paused_turn_waits_for(asker: Loopline) -> None:
    asker("run", "asker", "shopping", "-c", "c1")
    with Terminal(asker, "chat", "asker", "-c", "c1") as terminal:
        terminal.see("c2 shop.buy asks: Buy milk?")
        terminal.type("green\r")
        terminal.see("c2 waits for your answer")
        terminal.type("yes\r")
        terminal.see("green and bought milk")
        terminal.see("2 rounds · ")  # the pause had a line of its own
        terminal.type("/quit\r")
        assert terminal.end() == 0
    assert [block["type"] for block in asker.blocks("c1")].count("user.prompt") == 1
    assert "user.answer" in {block["type"] for block in asker.blocks("c1")}


def test_a_line_from_a_pipe_answers_what_a_paused_turn_waits_for(asker: Loopline) -> None:
    asker("run", "asker", "shopping", "-c", "c1")
    ran = asker("chat", "asker", "-c", "c1", stdin="green\nyes\n")
    assert (ran.code, "green and bought milk" in ran.out) == (0, True)
    assert [block["type"] for block in asker.blocks("c1")].count("user.prompt") == 1


def test_a_person_lets_later_calls_run_and_changes_the_mode(asker: Loopline) -> None:
    asker("run", "asker", "shopping", "-c", "c1")
    lines = ("green", "always", "/rules", "/mode", "/mode plan", "/mode loud", "/rules revoke x")
    ran = asker("chat", "asker", "-c", "c1", stdin="\n".join(lines))
    assert "green and bought milk" in ran.out
    assert "shop.buy with any arguments, in this conversation, always" in ran.err
    assert "ask\nthe mode is plan from now on\n" in ran.err
    assert "no mode 'loud'" in ran.err
    assert "no rule 'x'" in ran.err


def test_a_message_at_a_terminal_may_have_several_lines(tea: Loopline) -> None:
    with Terminal(tea, "chat", "guide", "-c", "c1") as terminal:
        terminal.see("\n>")
        terminal.type("Tell me:\x1b\r")
        terminal.type(f"{QUESTION}\r")
        terminal.see(" blocks · conversation c1")
        terminal.type("\x04")
        assert terminal.end() == 0
    (prompt,) = [block for block in tea.blocks("c1") if block["type"] == "user.prompt"]
    assert prompt["body"]["text"] == f"Tell me:\n{QUESTION}"


LONG = """from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult


class Long(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        return await self.answer("word " * 50_000)


bundle = Bundle(id="long", workflow=Long)
"""


def test_a_key_that_is_pressed_while_lines_are_written_is_kept(tmp_path: Path) -> None:
    """A terminal that edits lines itself, as a shell needs it, would drop the Ctrl-D."""
    write(tmp_path, {"long.py": LONG})
    is_writing, pressed = threading.Event(), threading.Event()

    def hold(screen: str) -> None:
        """Read no more of a long answer until the key is pressed, so that it is still being written."""
        if "word" in screen:
            is_writing.set()
            pressed.wait(LIMIT_SECONDS)

    with Terminal(Loopline(tmp_path), "chat", "long.py", drawn=hold) as terminal:
        terminal.see("\n>")
        terminal.type("Go on\r")
        assert is_writing.wait(LIMIT_SECONDS)
        try:
            with pytest.raises(TimeoutError):
                wait_for(lambda: terminal.echoes, seconds=0.5)
            terminal.type("\x04")
        finally:
            pressed.set()
        assert terminal.end() == 0
        assert terminal.echoes


def test_a_chat_judges_the_last_turn_and_goes_on_in_a_copy(tea: Loopline) -> None:
    lines = [
        "/feedback ok",
        QUESTION,
        "/feedback fine",
        "/feedback ok short and right",
        "/fork c2",
        OTHER_QUESTION,
    ]
    ran = tea("chat", "guide", "-c", "c1", stdin="\n".join(lines))
    assert "error: no turn has ended yet" in ran.err
    assert "error: /feedback needs a reaction: ok, not_ok, neutral, none" in ran.err
    assert "turn_1: ok" in ran.err
    (judged,) = [block["body"] for block in tea.blocks("c1") if block["type"] == "turn.feedback"]
    assert (judged["reaction"], judged["text"]) == ("ok", "short and right")
    assert {block["turn_id"] for block in tea.blocks("c1")} == {"turn_1"}
    assert {block["turn_id"] for block in tea.blocks("c2")} == {"turn_1", "turn_2"}


def test_a_chat_shows_what_becomes_of_a_turn_that_another_process_runs(slow: Loopline) -> None:
    first = start_working(slow, "-c", "c1")
    with Terminal(slow, "chat", "slow", "-c", "c1", columns=120) as terminal:
        terminal.see("turn_1 has not ended: it continues")
        terminal.see("waiting: turn_1 has been running since ")
        terminal.see("/steer TEXT changes its direction · /stop stops waiting")
        terminal.type("and then?\r")
        terminal.see("added to turn_1")
        first.send_signal(signal.SIGINT)
        finish(first)
        terminal.see("stopped · 1 round")
        terminal.type("/fork\r")
        terminal.see("you are in c1-fork-1 now; c1 stays as it is")
        terminal.type("/quit\r")
        assert terminal.end() == 1


def test_a_byte_that_is_not_utf_8_in_a_pipe_is_an_error(tea: Loopline) -> None:
    process = subprocess.run(
        [str(LOOPLINE), "chat", "guide"],
        cwd=tea.folder,
        env={**tea.environment, "PYTHONUTF8": "0", "PYTHONIOENCODING": "utf-8:strict"},
        input=b"caf\xe9?\n",
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert process.returncode == 1
    assert b"error: stdin is not text in UTF-8" in process.stderr


def test_a_file_of_a_user_that_there_is_not_is_an_error_of_the_chat(asker: Loopline) -> None:
    ran = asker("chat", "asker", stdin="/attach ~nosuchuser/x\n/help\n")
    assert (ran.code, "error: ~nosuchuser/x: " in ran.err) == (0, True)
    assert "/quit, Ctrl-D" in ran.err


def shows_more(terminal: Terminal, before: int) -> bool:
    """Whether more than that many refusals stand on the screen."""
    return terminal.screen.count("error: it is refused") > before


def test_a_request_that_fails_while_a_turn_runs_does_not_end_the_chat(tmp_path: Path) -> None:
    with (
        refusing(app(SHOP, store="memory:", model=EchoModel())) as (url, refused),
        Terminal(Loopline(tmp_path), "chat", "--server", url, "-c", "c1") as terminal,
    ):
        terminal.see("\n>")
        terminal.type("call shop.wait name=60\r")
        terminal.see("running: type to add")
        terminal.see("shop.wait")
        refused |= {"interrupts", "stop"}
        for typed in ("and quickly\r", "/steer faster\r", "\x03"):
            before = terminal.screen.count("error: it is refused")
            terminal.type(typed)
            wait_for(partial(shows_more, terminal, before))
        refused.clear()
        terminal.type("/stop\r")
        terminal.see("stopped · ")
        terminal.type("/quit\r")
        assert terminal.end() == 1


def test_a_turn_whose_blocks_cannot_be_read_at_its_end_is_a_failure(tmp_path: Path) -> None:
    with (
        refusing(app(SHOP, store="memory:", model=EchoModel())) as (url, refused),
        Terminal(Loopline(tmp_path), "chat", "--server", url, "-c", "c1") as terminal,
    ):
        terminal.see("\n>")
        refused.add("blocks")
        terminal.type("tea\r")
        terminal.see("error: it is refused")
        terminal.type("/quit\r")
        assert terminal.end() == 1
