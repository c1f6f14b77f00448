"""What is printed, as values: answers with their sources, and commands that can be pasted."""

from __future__ import annotations

import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from loopline import timeline as tl
from loopline.cli.bundle_access import FinishedRun, Invocation, next_commands, repository_to_ask
from loopline.cli.knowledge import index_line
from loopline.cli.options import Choices
from loopline.cli.reader import make_name
from loopline.cli.run import answer_text, number_citations, source_lines
from loopline.cli.terminal import escape, format_duration
from loopline.knowledge import KnowledgeState

STATE = KnowledgeState(
    repository="tea",
    location="/tea",
    ref="HEAD",
    commit="3f2a91c" * 5,
    short_commit="3f2a91c",
    files=212,
    passages=1903,
    seconds=0.84,
    reused=False,
    uncommitted=0,
    warnings=(),
    skipped=(),
)


def timeline(*bodies: tl.Body) -> tl.Timeline:
    ts = datetime(2026, 1, 1, tzinfo=UTC)
    return tl.Timeline(
        tl.Block(seq=seq, turn=1, round=0, n=1, ts=ts, term=1, body=body)
        for seq, body in enumerate(bodies, start=1)
    )


def source(sid: int, title: str = "Tea") -> tl.SourceAdded:
    url = f"ks:docs/{sid}.md@3f2a91c#L1-L2"
    return tl.SourceAdded(sid=sid, source=tl.Source(url=url, title=title, source_type="file"))


def test_citations_are_numbered_in_the_order_of_their_first_mention() -> None:
    talked = timeline(
        source(1), source(2), source(3), tl.Completion(text="A [[S:3]] b [[S:1,3]] `[[S:2]]`")
    )
    answer = number_citations(talked, talked.turn(1))
    assert answer.text == "A [1] b [2] [1] `[[S:2]]`"
    assert [(n, cited.url[:9]) for n, cited in answer.sources.items()] == [
        (1, "ks:docs/3"),
        (2, "ks:docs/1"),
    ]


def test_a_source_that_nobody_knows_is_marked() -> None:
    talked = timeline(source(1), tl.Completion(text="A [[S:7]]"))
    assert number_citations(talked, talked.turn(1)).text == "A [?]"


def test_a_turn_without_an_answer_has_no_text() -> None:
    assert number_citations(timeline(), timeline().turn(1)).text == ""


def test_in_few_lines_none_is_empty() -> None:
    talked = timeline(tl.Completion(text="a\n\nb\n \n\nc"))
    assert answer_text(number_citations(talked, talked.turn(1)), dense=True).plain == "a\nb\nc"


def test_a_heading_gives_way_to_its_ref() -> None:
    talked = timeline(source(1, "A heading that is rather long"), tl.Completion(text="[[S:1]]"))
    (line,) = source_lines(number_citations(talked, talked.turn(1)).sources, 50)
    assert line.plain == "[1] A heading that i… — ks:docs/1.md@3f2a91c#L1-L2"


def test_a_source_that_its_search_doubted_is_marked() -> None:
    doubted = structs.replace(source(1).source, objective_relevance=0.2)
    (line,) = source_lines({1: doubted})
    assert line.plain == "[1] Tea — ks:docs/1.md@3f2a91c#L1-L2 (weak match)"


@pytest.mark.parametrize(
    ("ms", "text"), [(0.42, "0.4 ms"), (31.2, "31 ms"), (999.4, "999 ms"), (2400, "2.4 s")]
)
def test_a_duration_has_a_fitting_unit(ms: float, text: str) -> None:
    assert format_duration(ms) == text


def test_an_index_is_told_in_a_line() -> None:
    assert index_line(STATE).plain == "indexed tea @ 3f2a91c · 212 files · 1,903 passages · 0.8 s"


def test_controls_are_made_visible_and_lines_stay() -> None:
    assert escape("a\x1b[31m\tb\r\nc\x9b") == "a\\x1b[31m\tb\\r\nc\\x9b"


@pytest.mark.parametrize(
    ("taken", "name"),
    [([], "tea-1"), (["tea-1", "tea-x", "other-7"], "tea-2"), (["tea-9", "tea-2"], "tea-10")],
)
def test_a_new_conversation_has_a_name_of_its_own(taken: list[str], name: str) -> None:
    assert make_name("tea", taken) == name


def test_a_number_of_thousands_of_digits_is_not_counted_on_from() -> None:
    assert make_name("tea", ["tea-2", f"tea-{'9' * 5000}"]) == "tea-3"
    assert make_name("tea", [f"tea-{10**18 - 1}", f"tea-{10**18}"]) == f"tea-{10**18 + 1}"


def program(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n", "utf-8")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def started(folder: Path, script: Path, **environment: str) -> Invocation:
    prefix = str(script.parent.parent)
    interpreter = str(script.parent / "python")
    return Invocation(
        script=str(script),
        interpreter=interpreter,
        environment=environment,
        prefix=prefix,
        folder=folder,
    )


def test_a_program_on_the_path_is_called_by_its_name(tmp_path: Path) -> None:
    script = program(tmp_path / "elsewhere/bin/loopline")
    assert started(tmp_path, script, PATH=str(script.parent)).program == ["loopline"]


def test_a_program_that_is_not_is_called_by_its_path_from_here(tmp_path: Path) -> None:
    script = program(tmp_path / "venv/bin/loopline")
    other = program(tmp_path / "other/bin/loopline")
    assert started(tmp_path, script, PATH=str(other.parent)).program == ["venv/bin/loopline"]
    assert started(tmp_path / "there", script, PATH="").program == [str(script)]


def test_what_uv_ran_is_run_by_uv_again(tmp_path: Path) -> None:
    script = program(tmp_path / ".venv/bin/loopline")
    uv = program(tmp_path / "build/uv/bin/uv")
    record = {"UV": str(uv), "VIRTUAL_ENV": str(tmp_path / ".venv")}
    inner = started(tmp_path, script, PATH=str(script.parent), **record)
    assert inner.program == ["build/uv/bin/uv", "run", "loopline"]
    on_path = started(tmp_path, script, PATH=f"{script.parent}:{uv.parent}", **record)
    assert on_path.program == ["uv", "run", "loopline"]


def test_commands_to_paste_are_quoted_and_keep_what_was_chosen(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    script = program(tmp_path / "bin/loopline")
    choices = Choices(
        store="sqlite:///my talk.db",
        model="offline",
        props=("knowledge.repo=../tea", "answer.in=words and more"),
    )
    ran = FinishedRun(
        bundle="guide", text="What's tea?", conversation="c 1", choices=choices, knowledge=STATE
    )
    blocks = timeline(
        tl.UserPrompt(text="What's tea?"),
        tl.ToolResult(call_id="c1", tool="react.search_knowledge", text="tea"),
        tl.ToolResult(call_id="c2", tool="react.plan", text="done"),
    ).blocks
    here = started(tmp_path, script, PATH=str(script.parent))
    assert next_commands(ran, blocks, here) == [
        "loopline read tc:turn_1.c1.result -c 'c 1' --store 'sqlite:///my talk.db'",
        "loopline timeline 'c 1' --store 'sqlite:///my talk.db'",
        "loopline run guide 'What'\"'\"'s tea?' --prop 'answer.in=words and more' "
        "--prop knowledge.repo=. --store 'sqlite:///my talk.db' --model offline",
    ]


def test_without_a_repository_around_the_one_that_was_asked_is_named(tmp_path: Path) -> None:
    assert repository_to_ask(STATE, tmp_path) is None
    (tmp_path / "tea").mkdir()
    inside = replace(STATE, location=str(tmp_path / "tea"))
    assert repository_to_ask(inside, tmp_path) == "tea"
