"""The first run says who answers, from what, how, with which sources, and what to do next."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.doors.bundles import QUESTION
from tests.doors.command import ESCAPE, LOOPLINE, Loopline, write
from tests.doors.conftest import Talked
from tests.support.git_repositories import git


def test_it_says_who_answers_from_what_and_how(tea: Loopline) -> None:
    write(tea.folder, {"docs/new.md": "# New\n"})
    ran = tea("run", "guide", QUESTION)
    head, index, *steps = ran.err.splitlines()
    assert head == "tea_guide · offline — a deterministic reader, not a language model"
    assert re.fullmatch(
        r"indexed tea house @ [0-9a-f]{7} · 2 files · \d+ passages · \d+\.\d s"
        r" · 1 uncommitted file not included",
        index,
    )
    assert re.fullmatch(
        r"✓ search .* · react\.search_knowledge( ×\d)? · \d+ hits? · [\d.]+ ms", steps[0]
    )
    assert re.fullmatch(r"✓ read .* · react\.read · \d+ refs? · [\d.]+ ms", steps[1])
    assert re.fullmatch(r"✓ answer .* · offline · [\d.]+ ms", steps[2])
    assert re.fullmatch(
        r"\d+ rounds · [\d.]+ m?s · \d+ blocks · conversation tea_guide-1", steps[3]
    )


def test_the_answer_and_its_sources_are_on_stdout(talked: Talked) -> None:
    commit_id = git(talked.loopline.folder, "rev-parse", "HEAD")[:7]
    ran = talked.first
    answer, sources = ran.out.split("\n\n[1] ")
    assert "“Green tea is steeped for three minutes at eighty degrees.” [1]" in answer
    assert sources.startswith(f"Steeping — ks:docs/steeping.md@{commit_id}#L")
    assert ran.code == 0


def test_its_three_commands_work_as_they_are_printed(tea: Loopline) -> None:
    read, timeline, again = tea("run", "guide", QUESTION).pasted
    assert re.fullmatch(r"loopline read tc:turn_1\.c\d\.result -c tea_guide-1", read)
    assert "Green tea" in tea.paste(read).out
    assert timeline == "loopline timeline tea_guide-1"
    assert "assistant.completion" in tea.paste(timeline).out
    assert again == f"loopline run guide {shlex.quote(QUESTION)} --prop knowledge.repo=."
    once_more = tea.paste(again)
    assert (once_more.code, once_more.pasted[-1]) == (0, again)
    assert "conversation tea_guide-2" in once_more.err


def test_its_commands_name_the_store_and_the_user_that_were_given(tea: Loopline) -> None:
    store = ("--store", "sqlite:///my talk.db", "--user", "ann")
    ran = tea("run", "guide", QUESTION, *store, "-c", "it's")
    assert "conversation it's" in ran.err
    for line in ran.pasted:
        assert tea.paste(line).code == 0, line
    assert not (tea.folder / ".loopline").exists()


def test_a_second_run_opens_the_index_of_the_first(talked: Talked) -> None:
    assert talked.second.err.splitlines()[1].startswith("opened index of tea house @ ")


def test_a_pipe_gets_no_codes_and_no_broken_lines(tea: Loopline) -> None:
    ran = Loopline(tea.folder, {"COLUMNS": "20"})("run", "guide", QUESTION)
    assert ESCAPE not in ran.out + ran.err
    assert "“Green tea is steeped for three minutes at eighty degrees.” [1]" in ran.out


def test_json_is_one_object_on_stdout(tea: Loopline) -> None:
    ran = tea("run", "guide", QUESTION, "--json")
    value = ran.value
    assert (value["conversation"], value["turn_id"]) == ("tea_guide-1", "turn_1")
    assert (value["exit_reason"], value["ok"], value["error"]) == ("complete", True, "")
    assert value["blocks"] == len(tea.blocks("tea_guide-1"))
    assert value["sources"][0]["n"] == 1
    assert value["sources"][0]["path"] == "docs/steeping.md"
    assert "[1]" in value["answer"]
    assert value["late_input"] == []


PRINTING = """
import subprocess

from loopline import Bundle, tool

print("imported")


@tool(effect="read")
def steep() -> str:
    \"\"\"Steep.\"\"\"
    print("steeping")
    subprocess.run(["echo", "boiling"], check=True)
    return "tea"


bundle = Bundle(id="tea", tools=[steep])
"""


def test_what_a_bundle_prints_is_on_stderr_beside_json(tmp_path: Path) -> None:
    write(tmp_path, {"tea.py": PRINTING})
    ran = Loopline(tmp_path)("tool", "tea.py", "tea.steep", "--json")
    assert ran.value["text"] == "tea"
    assert {"imported", "steeping", "boiling"} <= {*ran.err.splitlines()}


def test_a_question_can_come_from_stdin(tea: Loopline) -> None:
    assert "three minutes" in tea("run", "guide", "-", stdin=QUESTION).out


def test_the_picture_needs_nothing_from_elsewhere(tea: Loopline) -> None:
    tea("run", "guide", QUESTION, "--svg", "run.svg")
    picture = (tea.folder / "run.svg").read_text("utf-8")
    assert set(re.findall(r"https?://[^\"\s]+", picture)) == {"http://www.w3.org/2000/svg"}
    assert "url(http" not in picture
    assert "steeped" in picture
    assert "--svg" not in picture


def test_a_picture_that_cannot_be_written_is_refused_before_the_turn(tea: Loopline) -> None:
    for file in ("nowhere/run.svg", "guide"):
        ran = tea("run", "guide", QUESTION, "--svg", file)
        assert (ran.code, ran.out, f"error: {file}: " in ran.err) == (1, "", True)
    assert not (tea.folder / ".loopline").exists()


@pytest.mark.parametrize("line", ["--help", "nope", "read nowhere", "run guide ' '"])
def test_a_command_from_a_warm_process_does_what_one_from_a_shell_does(
    tea: Loopline, line: str
) -> None:
    assert tea(*shlex.split(line)) == tea.paste(f"{LOOPLINE} {line}")
