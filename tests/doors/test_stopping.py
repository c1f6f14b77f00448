"""A turn that is stopped, or killed, leaves a timeline that the next one continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loopline import Bundle, Harness
from tests.doors.bundles import QUESTION, ledger, start_working
from tests.doors.command import LIMIT_SECONDS, Loopline, finish, wait_for, write
from tests.doors.terminal import Terminal
from tests.support.echo_model import EchoModel


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_turn_and_the_next_one_goes_on(slow: Loopline, number: int) -> None:
    process = start_working(slow)
    process.send_signal(number)
    ran = finish(process)
    assert ran.code == 1
    assert "stopped · 1 round" in ran.err
    blocks = slow.blocks("slow-1")
    assert [block["type"] for block in blocks[-2:]] == ["react.tool.result", "react.exit"]
    assert [block["body"].get("status") for block in blocks[-2:-1]] == ["stopped"]
    assert blocks[-1]["body"]["reason"] == "stopped"
    on = slow.paste(ran.pasted[-1])
    assert ran.pasted[-1] == "loopline run slow 'go on' -c slow-1"
    assert (on.code, "Stopped by the user before there was a result." in on.out) == (0, True)


def test_a_second_signal_ends_the_process_at_once(slow: Loopline) -> None:
    process = start_working(slow, "--model", "offline", is_forked=False)
    os.kill(process.pid, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    os.kill(process.pid, signal.SIGCONT)
    assert finish(process).code in (128 + signal.SIGINT, 128 + signal.SIGTERM)


INTERRUPTED = """
import time
from concurrent.futures import ThreadPoolExecutor

from loopline.cli.options import execute
from loopline.cli.terminal import Screen


async def work(screen: Screen) -> int:
    ThreadPoolExecutor().submit(time.sleep, 600)
    raise KeyboardInterrupt


execute(work)
"""


def test_ctrl_c_waits_for_no_thread_of_a_tool() -> None:
    """As the second one does that is pressed when the turn has ended and the process has not."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], timeout=LIMIT_SECONDS)
    assert ended.returncode == 128 + signal.SIGINT


HANGING = """
import time

from loopline import Bundle, tool
from loopline.testing import Call, Say, ScriptedModel


@tool(effect="read")
def hang() -> str:
    \"\"\"Hang.\"\"\"
    print("hanging", flush=True)
    time.sleep(600)
    return ""


bundle = Bundle(
    id="tea",
    tools=[hang],
    model=ScriptedModel([Say("", Call("tea.hang")), Say("gone on")]),
    limits={"tool_timeout_seconds": 0.1},
)
"""


def test_a_tool_that_runs_after_its_timeout_does_not_keep_the_process(tmp_path: Path) -> None:
    write(tmp_path, {"tea.py": HANGING})
    ran = Loopline(tmp_path)("run", "tea.py", "go", "--json")
    assert (ran.code, ran.value["answer"]) == (0, "gone on")


def test_a_killed_turn_is_carried_on_and_nothing_is_begun_twice(slow: Loopline) -> None:
    process = start_working(slow, "-c", "c1")
    process.kill()
    finish(process)
    acknowledged = slow.blocks("c1")
    assert acknowledged[-1]["type"] == "react.tool.start"
    ran = slow("run", "slow", "-c", "c1")
    assert ran.code == 0, ran.err
    assert "cut off after it had begun" in ran.out
    assert ran.err.count('slow.work(what="dig")') == 1
    blocks = slow.blocks("c1")
    assert blocks[: len(acknowledged)] == acknowledged
    assert blocks[-1]["body"]["reason"] == "complete"
    assert ledger(slow.folder) == ["dig"]


def test_the_latest_conversation_is_carried_on_when_none_is_named(slow: Loopline) -> None:
    process = start_working(slow)
    process.kill()
    finish(process)
    ran = slow("run", "slow")
    assert "conversation slow-1 (the latest)" in ran.err
    assert ran.code == 0
    assert "nothing to carry on" in slow("run", "slow").err


def test_stop_ends_a_turn_of_another_process_and_says_so(slow: Loopline) -> None:
    process = start_working(slow, "-c", "c1")
    stopped = slow("stop", "-c", "c1")
    assert (stopped.out, stopped.code) == ("turn_1: stopped\n", 0)
    assert "asking turn_1 of c1 to stop" in stopped.err
    ran = finish(process)
    assert (ran.code, "stopped · 1 round" in ran.err) == (1, True)
    assert slow.blocks("c1")[-1]["body"]["reason"] == "stopped"


def test_stop_ends_what_is_queued_too(slow: Loopline) -> None:
    first = start_working(slow, "-c", "c1")
    second = slow.start("run", "slow", "hello", "-c", "c1")
    wait_for(lambda: [block["type"] for block in slow.blocks("c1")].count("user.prompt") == 2)
    stopped = slow("stop", "--json")
    turns = [{"turn_id": f"turn_{n}", "exit_reason": "stopped"} for n in (1, 2)]
    assert stopped.value == {"conversation": "c1", "turns": turns}
    assert [finish(process).code for process in (first, second)] == [1, 1]


def test_the_list_of_conversations_names_those_with_an_unfinished_turn(slow: Loopline) -> None:
    slow("run", "slow", "hello", "-c", "c0")
    running = start_working(slow, "-c", "c1")
    listed = json.loads(slow("timeline", "--list", "--json").out)
    assert {row["conversation"]: row["unfinished"] for row in listed} == {"c0": False, "c1": True}
    slow("stop", "-c", "c1")
    assert finish(running).code == 1


def test_stop_has_nothing_to_end_where_every_turn_has_ended(tea: Loopline) -> None:
    tea("run", "guide", QUESTION, "-c", "c1")
    before = tea.blocks("c1")
    stopped = tea("stop", "-c", "c1")
    assert (stopped.out, stopped.code) == ("nothing was running in c1\n", 0)
    assert tea("stop", "--json").value == {"conversation": "c1", "turns": []}
    assert tea.blocks("c1") == before


def test_stop_fails_where_there_is_nothing_of_that_name_and_begins_no_store(tea: Loopline) -> None:
    assert "there is no store" in tea("stop").err
    assert not (tea.folder / ".loopline").exists()
    tea("run", "guide", QUESTION, "-c", "c1")
    unknown = tea("stop", "-c", "c2")
    assert (unknown.code, "no conversation 'c2'" in unknown.err) == (1, True)


async def test_a_name_in_two_projects_is_stopped_where_an_option_says(tmp_path: Path) -> None:
    loopline, store = Loopline(tmp_path), f"sqlite:///{tmp_path}/talk.db"
    bundle = Bundle(id="served")
    async with Harness.open(bundle, store=store, model=EchoModel(), submits_only=True) as harness:
        for project in ("tea", "milk"):
            await harness.conversation("c1", user="ann", project=project).submit("hello")
    stop = ("turns", "--stop", "c1", "--store", store)
    unclear = loopline(*stop)
    assert unclear.code == 1
    assert "(default/milk/ann, default/tea/ann)" in unclear.err
    assert "add --user, --project or --tenant" in unclear.err
    assert loopline(*stop, "--project", "tea").code == 0
    [left] = json.loads(loopline("turns", "--store", store, "--json").out)
    assert (left["project"], left["state"]) == ("milk", "queued")


def test_a_turn_that_does_not_end_in_time_has_been_asked_to(slow: Loopline) -> None:
    process = start_working(slow, "-c", "c1", is_forked=False)
    os.kill(process.pid, signal.SIGSTOP)
    stopped = slow("stop", "-c", "c1", "--wait", "0.1")
    assert (stopped.code, stopped.out) == (1, "")
    assert "error: turn_1 still runs after 0.1 s" in stopped.err
    os.kill(process.pid, signal.SIGCONT)
    assert finish(process).code == 1
    assert slow.blocks("c1")[-1]["body"]["reason"] == "stopped"


def test_what_a_second_sender_waits_for_is_said_and_what_it_may_do(slow: Loopline) -> None:
    first = start_working(slow, "-c", "c1")
    with Terminal(slow, "run", "slow", "hello", "-c", "c1", columns=120) as terminal:
        terminal.see("waiting: turn_1 has been running since ")
        terminal.see("Ctrl-C withdraws your message · loopline stop -c c1 ends both")
        os.kill(first.pid, signal.SIGINT)
        finish(first)
        terminal.see("the wait is over: turn_2 runs")
        assert terminal.end() == 0


def test_resume_waits_for_a_turn_of_another_process_and_shows_it(slow: Loopline) -> None:
    running = start_working(slow, "-c", "c1", "--prop", "seconds=2")
    with Terminal(slow, "resume", "slow", "-c", "c1", columns=120) as terminal:
        terminal.see("waiting: turn_1 has been running since ")
        terminal.see("in another process · loopline stop -c c1 ends it")
        assert finish(running).code == 0
        terminal.see("turn_1 has ended in another process")
        assert terminal.end() == 0
    assert "withdraws" not in terminal.text
    assert "1 said; dug" in terminal.text


def test_a_sender_who_gives_up_has_run_nothing(slow: Loopline) -> None:
    first = start_working(slow, "-c", "c1")
    with Terminal(slow, "run", "slow", "hello", "-c", "c1", columns=120) as terminal:
        terminal.see("waiting: turn_1 has been running since ")
        terminal.type("\x03")
        assert terminal.end() == 1
        assert "error: the message was withdrawn before its turn began" in terminal.text
    first.kill()
    finish(first)
    assert "user.recalled" in [block["type"] for block in slow.blocks("c1")]
