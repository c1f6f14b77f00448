"""A conversation with a block that was changed in the store: its other blocks are read, and no message is added."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.doors.bundles import OTHER_QUESTION, QUESTION
from tests.doors.command import Loopline
from tests.doors.conftest import Talked
from tests.support.tampered_rows import unguarded

COMPLETION = "ar:turn_1.assistant.completion"


@pytest.fixture
def damaged(talked: Talked, tmp_path: Path) -> Loopline:
    """The command beside its bundle and a store in which the answer of the first turn was changed."""
    folder = tmp_path / "tea house"
    shutil.copytree(talked.loopline.folder, folder)
    database = unguarded(folder / ".loopline" / "loopline.db")
    kind = "assistant.completion"
    query = "UPDATE blocks SET body = replace(body, 't', 'x') WHERE type = ? AND turn = 1"
    assert database.execute(query, (kind,)).rowcount == 1
    database.close()
    return Loopline(folder)


def test_refs_that_do_not_need_the_damaged_block_are_read(damaged: Loopline) -> None:
    whole = ["ar:turn_1.user.prompt", "ar:turn_1.user.prompt.1#L1", "ar:turn_2.user.prompt"]
    ran = damaged("read", *whole, f"{COMPLETION}.1", "ar:turn_2.turn.header.1")
    texts = [line for line in ran.out.splitlines() if line in (QUESTION, OTHER_QUESTION)]
    assert texts == [QUESTION, QUESTION, OTHER_QUESTION]
    assert "4 refs read · 1 missing" in ran.err
    assert f"error: {COMPLETION}.1: block " in ran.err
    assert ran.code == 1


def test_a_ref_that_may_need_the_damaged_block_is_not_read(damaged: Loopline) -> None:
    refs = (COMPLETION, "ar:plan.latest:p", "so:sources_pool[1]", "artifact:conv:plans")
    reading = damaged("read", *refs, "--json").value
    assert reading["missing"] == list(refs)
    assert all("does not match its digest" in item["message"] for item in reading["items"])


def test_the_error_names_the_commands_that_reach_the_other_blocks(damaged: Loopline) -> None:
    ran = damaged("timeline")
    assert (ran.code, ran.out) == (1, "")
    (seq,) = map(int, re.findall(r"block (\d+) of", ran.err))
    assert f"loopline timeline --after {seq} reads the blocks after it" in ran.err
    assert f"--limit {seq - 1} or loopline fork --seq {seq - 1} those before it" in ran.err
    assert damaged("timeline", "--after", str(seq)).out.startswith(f"{seq + 1}\t")
    page = damaged("timeline", "--limit", str(seq - 1))
    assert len(page.out.splitlines()) == seq - 1
    assert f"there are more: --after {seq - 1}" in page.err
    assert damaged("fork", "--seq", str(seq - 1)).code == 0


def test_a_message_to_a_damaged_conversation_is_not_stored(damaged: Loopline) -> None:
    before = damaged("timeline", "--list").out
    ran = damaged("run", "guide", QUESTION, "-c", "tea_guide-1")
    assert (ran.code, "does not match its digest" in ran.err) == (1, True)
    assert damaged("timeline", "--list").out == before
