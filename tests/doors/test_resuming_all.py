"""`loopline resume --all` after processes were killed, beside others that are alive."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.doors.bundles import ASKING, ledger
from tests.doors.command import Loopline, finish, wait_for, write


def statuses(out: str) -> dict[str, str]:
    """The status of each conversation's turn, as the lines tell them."""
    lines = [line.split("\t") for line in out.splitlines()]
    return {name: status for name, _, _, status, *_ in lines}


def killed(slow: Loopline, *names: str) -> None:
    """Leave a turn behind in each, in the middle of a call."""
    begun = [slow.start("run", "slow", "work", "-c", name) for name in names]
    wait_for(lambda: len(ledger(slow.folder)) == len(begun))
    for process in begun:
        process.kill()
        finish(process)


def test_what_killed_processes_left_behind_is_carried_on_once_beside_who_is_alive(
    slow: Loopline,
) -> None:
    killed(slow, "one", "two", "three")
    alive = slow.start("run", "slow", "work", "-c", "alive")
    wait_for(lambda: len(ledger(slow.folder)) == 4)
    resuming = [slow.start("resume", "slow", "--all") for _ in range(2)]
    ran = [finish(process) for process in resuming]
    alive.kill()
    finish(alive)
    assert [(notice.code, notice.err.count("error")) for notice in ran] == [(0, 0)] * 2
    reported_statuses = [statuses(item.out) for item in ran]
    assert [record["alive"] for record in reported_statuses] == ["running"] * 2
    for name in ("one", "two", "three"):
        assert sorted(
            row[name] for row in reported_statuses if row.get(name, "running") != "running"
        ) == ["resumed"]
        blocks = slow.blocks(name)
        assert [block["body"]["reason"] for block in blocks if block["type"] == "react.exit"] == [
            "complete"
        ]
    assert len(ledger(slow.folder)) == 4


def test_a_paused_turn_is_listed_with_what_it_waits_for(slow: Loopline) -> None:
    write(slow.folder, ASKING)
    assert slow("run", "asker", "buy", "-c", "asked").code == 1
    (listed,) = rows(slow("resume", "asker", "--all", "--json").out)
    assert (listed["conversation"], listed["status"]) == ("asked", "waiting")
    assert [call["question"] for call in listed["pending"]] == ["Which tea?", "Buy milk?"]
    other = slow("resume", "slow", "--all")
    assert statuses(other.out) == {"asked": "waiting"}
    assert "1 turn: 1 waiting" in other.err


def rows(out: str) -> list[dict[str, Any]]:
    value: list[dict[str, Any]] = json.loads(out)
    return value


@pytest.mark.parametrize("arguments", [(), ("-c", "one")])
def test_without_all_one_turn_is_carried_on(slow: Loopline, arguments: tuple[str, ...]) -> None:
    killed(slow, "one")
    ran = slow("resume", "slow", *arguments)
    assert (ran.code, "cut off after it had begun" in ran.out) == (0, True)
    ran = slow("resume", "slow", "--all")
    assert (ran.code, ran.out, "no turn was cut off" in ran.err) == (0, "", True)
