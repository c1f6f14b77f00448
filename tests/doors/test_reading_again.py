"""What a run printed is read again by other processes, whatever has become of its files."""

from __future__ import annotations

import re
import shutil

from tests.doors.bundles import OTHER_QUESTION, QUESTION, TEA
from tests.doors.command import Loopline
from tests.doors.conftest import Talked
from tests.support.git_repositories import commit

REF = re.compile(r"(?:ks|tc|ar):[^\s,]+")
NAME = "tea_guide-1"


def test_a_third_process_reads_every_ref_that_two_others_printed(talked: Talked) -> None:
    printed = (ran.out + ran.err for ran in (talked.first, talked.second))
    refs = {ref for text in printed for ref in REF.findall(text)}
    assert {ref.partition(":")[0] for ref in refs} == {"ks", "tc"}
    assert any(ref.startswith("tc:turn_2") for ref in refs)
    ran = talked.loopline("read", *sorted(refs), "-c", NAME)
    assert ran.code == 0, ran.err
    assert "Green tea is steeped" in ran.out
    assert "Leaves are stored" in ran.out


def test_every_block_can_be_read(talked: Talked) -> None:
    refs = [block["ref"] for block in talked.loopline.blocks(NAME)]
    reading = talked.loopline("read", *refs, "--json").value
    assert reading["missing"] == []
    assert [item["status"] for item in reading["items"]] == ["ok"] * len(refs)


def test_a_passage_reads_the_same_when_its_repository_is_gone(tea: Loopline) -> None:
    ref = re.findall(r"ks:docs/steeping\S+", tea("run", "guide", QUESTION).out)[0]
    before = tea("read", ref).out
    commit(tea.folder, {"docs/steeping.md": "# Nothing\n"})
    assert tea("read", ref).out == before
    shutil.rmtree(tea.folder / ".git")
    assert tea("read", ref).out == before


def test_what_exists_is_read_although_something_is_missing(talked: Talked) -> None:
    ran = talked.loopline("read", "ar:turn_1.user.prompt", "ar:turn_9.user.prompt", "nonsense")
    assert ran.code == 1
    assert ran.out.splitlines() == ["--- ar:turn_1.user.prompt", QUESTION]
    assert "error: ar:turn_9.user.prompt: no 'turn_9' here: turns are turn_1, turn_2" in ran.err
    assert "error: nonsense: " in ran.err
    assert f"conversation {NAME} (the latest)" in ran.err


def test_json_has_the_status_before_the_items(talked: Talked) -> None:
    value = talked.loopline("read", "ar:turn_1.user.prompt", "ar:turn_9.x", "--json").value
    assert list(value)[:2] == ["conversation", "paths"]
    assert value["missing"] == ["ar:turn_9.x"]
    assert [item["text"] for item in value["items"]] == [QUESTION, ""]


def test_one_ref_gives_its_bytes_and_nothing_else(tea: Loopline) -> None:
    tea("run", "guide", "-", stdin="tea\x1b[31m?")
    assert tea("read", "ar:turn_1.user.prompt").out == "tea\x1b[31m?\n"


def test_the_latest_conversation_is_that_of_the_user(talked: Talked) -> None:
    ran = talked.loopline("read", "ar:turn_1.user.prompt", "--user", "ann")
    assert "no conversation of the user 'ann' yet" in ran.err


def test_a_timeline_is_shown_block_by_block(talked: Talked) -> None:
    rows = [line.split("\t") for line in talked.loopline("timeline").out.splitlines()]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0][1:5] == ["turn_1", "0", "user.prompt", "ar:turn_1.user.prompt"]
    assert rows[-1][3] == "react.exit"


def test_a_timeline_is_shown_in_part(talked: Talked) -> None:
    only = talked.loopline("timeline", "--turn", "2", "--type", "user").out
    assert [line.split("\t")[-1] for line in only.splitlines()] == [OTHER_QUESTION]
    none = talked.loopline("timeline", "--type", "react.draft")
    assert none.code == 2
    assert "it has 2 turns and " in none.err
    assert "with user.prompt, turn.header" in none.err


def test_a_timeline_is_a_document_too(talked: Talked) -> None:
    document = talked.loopline("timeline", "--json").value
    assert document["conversation_id"] == NAME
    assert document["turn_ids"] == ["turn_1", "turn_2"]
    assert talked.loopline("read", "artifact:conv.timeline.v1").value == document


def test_conversations_are_listed_the_latest_first(slow: Loopline) -> None:
    for text in ("hello", "good day"):
        slow("run", "slow", text)
    lines = [line.split("\t") for line in slow("timeline", "--list").out.splitlines()]
    assert [line[0] for line in lines] == ["slow-2", "slow-1"]
    assert lines[0][-1] == "good day"


def test_a_conversation_that_never_was_is_an_error(talked: Talked) -> None:
    ran = talked.loopline("timeline", "nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert "no conversation 'nowhere'" in ran.err


def test_a_search_gives_refs(talked: Talked) -> None:
    output = talked.loopline("search", "guide", "green tea").out
    score, ref, title, line = output.splitlines()[0].split("\t")
    assert float(score) > 0
    assert ref.startswith("ks:docs/steeping.md@")
    assert (title, line) == ("Steeping", TEA["docs/steeping.md"].splitlines()[2])
    assert talked.loopline("search", "guide", "zeppelin").code == 1


def test_a_space_is_built_once(tea: Loopline) -> None:
    assert tea("knowledge", "build", "guide").out.startswith("indexed tea house @ ")
    assert tea("knowledge", "build", "guide").out.startswith("opened index of tea house @ ")
