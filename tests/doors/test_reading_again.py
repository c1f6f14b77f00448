"""What a run printed is read again by other processes, whatever has become of its files."""

from __future__ import annotations

import re
import shutil

from tests.doors.bundles import QUESTION, TEA
from tests.doors.command import Loopline
from tests.support.repository import commit

REF = re.compile(r"(?:ks|tc|ar):[^\s,]+")


def test_a_third_process_reads_every_ref_that_two_others_printed(tea: Loopline) -> None:
    first = tea("run", "guide", QUESTION, "-c", "c1")
    second = tea("run", "guide", "How are leaves stored?", "-c", "c1")
    refs = {ref for ran in (first, second) for ref in REF.findall(ran.out + ran.err)}
    assert {ref.partition(":")[0] for ref in refs} == {"ks", "tc"}
    assert any(ref.startswith("tc:turn_2") for ref in refs)
    ran = tea("read", *sorted(refs), "-c", "c1")
    assert ran.code == 0, ran.err
    assert "Green tea is steeped" in ran.out
    assert "Leaves are stored" in ran.out


def test_every_block_can_be_read(tea: Loopline) -> None:
    tea("run", "guide", QUESTION)
    refs = [block["ref"] for block in tea.blocks("tea_guide-1")]
    reading = tea("read", *refs, "--json").value
    assert reading["missing"] == []
    assert [item["status"] for item in reading["items"]] == ["ok"] * len(refs)


def test_a_passage_reads_the_same_when_its_repository_is_gone(tea: Loopline) -> None:
    (ref,) = re.findall(r"ks:docs/steeping\S+", tea("run", "guide", QUESTION).out)[:1]
    before = tea("read", ref).out
    commit(tea.folder, {"docs/steeping.md": "# Nothing\n"})
    assert tea("read", ref).out == before
    shutil.rmtree(tea.folder / ".git")
    assert tea("read", ref).out == before


def test_what_exists_is_read_although_something_is_missing(tea: Loopline) -> None:
    tea("run", "guide", QUESTION)
    ran = tea("read", "ar:turn_1.user.prompt", "ar:turn_9.user.prompt", "nonsense")
    assert ran.code == 1
    assert ran.out.splitlines() == ["--- ar:turn_1.user.prompt", QUESTION]
    assert "error: ar:turn_9.user.prompt: no 'turn_9' here: turns are turn_1" in ran.err
    assert "error: nonsense: " in ran.err
    assert "conversation tea_guide-1 (the latest)" in ran.err


def test_json_has_the_status_before_the_items(tea: Loopline) -> None:
    tea("run", "guide", QUESTION)
    value = tea("read", "ar:turn_1.user.prompt", "ar:turn_9.x", "--json").value
    assert list(value)[:2] == ["conversation", "paths"]
    assert value["missing"] == ["ar:turn_9.x"]
    assert [item["text"] for item in value["items"]] == [QUESTION, ""]


def test_one_ref_gives_its_bytes_and_nothing_else(tea: Loopline) -> None:
    tea("run", "guide", "-", stdin="tea\x1b[31m?")
    assert tea("read", "ar:turn_1.user.prompt").out == "tea\x1b[31m?\n"


def test_the_latest_conversation_is_that_of_the_user(tea: Loopline) -> None:
    tea("run", "guide", QUESTION, "--user", "ann")
    assert "no conversation of the user 'local' yet" in tea("read", "ar:turn_1.user.prompt").err
    assert tea("read", "ar:turn_1.user.prompt", "--user", "ann").out == f"{QUESTION}\n"


def test_a_timeline_is_shown_block_by_block(tea: Loopline) -> None:
    tea("run", "guide", QUESTION)
    tea("run", "guide", "And black tea?", "-c", "tea_guide-1")
    lines = tea("timeline").out.splitlines()
    rows = [line.split("\t") for line in lines]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0][1:5] == ["turn_1", "0", "user.prompt", "ar:turn_1.user.prompt"]
    assert rows[-1][3] == "react.exit"
    only = tea("timeline", "--turn", "2", "--type", "user").out
    assert [line.split("\t")[-1] for line in only.splitlines()] == ["And black tea?"]


def test_a_timeline_is_a_document_too(tea: Loopline) -> None:
    tea("run", "guide", QUESTION)
    document = tea("timeline", "--json").value
    assert document["conversation_id"] == "tea_guide-1"
    assert document["turn_ids"] == ["turn_1"]
    read = tea("read", "artifact:conv.timeline.v1")
    assert read.value == document


def test_conversations_are_listed_the_latest_first(tea: Loopline) -> None:
    tea("run", "guide", QUESTION)
    tea("run", "guide", "How are leaves stored?")
    lines = [line.split("\t") for line in tea("timeline", "--list").out.splitlines()]
    assert [line[0] for line in lines] == ["tea_guide-2", "tea_guide-1"]
    assert lines[0][-1] == "How are leaves stored?"


def test_a_conversation_that_never_was_is_an_error(tea: Loopline) -> None:
    tea("run", "guide", QUESTION)
    ran = tea("timeline", "nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert "no conversation 'nowhere'" in ran.err


def test_a_search_gives_refs(tea: Loopline) -> None:
    score, ref, title, line = tea("search", "guide", "green tea").out.splitlines()[0].split("\t")
    assert float(score) > 0
    assert ref.startswith("ks:docs/steeping.md@")
    assert (title, line) == ("Steeping", TEA["docs/steeping.md"].splitlines()[2])
    assert tea("search", "guide", "zeppelin").code == 1


def test_a_space_is_built_once(tea: Loopline) -> None:
    assert tea("knowledge", "build", "guide").out.startswith("indexed tea house @ ")
    assert tea("knowledge", "build", "guide").out.startswith("opened index of tea house @ ")
