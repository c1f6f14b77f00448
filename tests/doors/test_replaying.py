"""`loopline replay`: a line a round, and the first one that is not what was recorded."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.doors.command import Loopline
from tests.doors.conftest import Talked


def test_each_round_is_rendered_as_it_was(talked: Talked) -> None:
    ran = talked.loopline("replay", "tea_guide-1")
    lines = [line.split("\t") for line in ran.out.splitlines()]
    assert ran.code == 0, ran.err
    assert {line[4] for line in lines} == {"identical"}
    assert (lines[0][0], lines[0][5], lines[-1][0][0]) == ("1.1", "start", "2")
    assert talked.loopline("replay", "--json").value["identical"] is True


def test_a_log_that_was_changed_is_told_by_its_digests(talked: Talked, tmp_path: Path) -> None:
    command = Loopline(tmp_path)
    shutil.copytree(talked.loopline.folder / ".loopline", tmp_path / ".loopline")
    change(tmp_path / ".loopline" / "loopline.db", "react.tool.result", "eighty", "ninety")
    ran = command("replay", "tea_guide-1")
    assert (ran.code, ran.out) == (1, "")
    assert "does not match its digest" in ran.err
    assert "run loopline audit for details" in ran.err


def change(file: Path, kind: str, was: str, now: str) -> None:
    """Change what blocks of a type say, behind the back of the store."""
    with closing(sqlite3.connect(file)) as connection, connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in triggers.fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        changed = connection.execute(
            "UPDATE blocks SET body = replace(body, ?, ?) WHERE type = ?", (was, now, kind)
        )
        assert changed.rowcount > 0


def test_a_conversation_that_there_is_not_is_told(talked: Talked) -> None:
    ran = talked.loopline("replay", "none")
    assert (ran.code, "no conversation 'none'" in ran.err) == (1, True)
