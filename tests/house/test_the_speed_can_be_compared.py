"""The command that compares speed can run what it measures, and tells what it has measured."""

from __future__ import annotations

import ast
import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.bench.peers.programs import HERE, LIBRARIES, SUFFIX
from tests.bench.speed.__main__ import RoundRobin, options, write
from tests.bench.speed.driver import Sample, Stopwatch, Task
from tests.bench.speed.lock import LockShare, is_held, watched
from tests.bench.speed.picture import PANELS, picture
from tests.bench.speed.results import ROWS, SHARED, SpeedResults, read, table
from tests.bench.speed.subjects import (
    FLOOR,
    Subject,
    SubjectFailed,
    TaskFailed,
    floor,
    ours,
    started,
)

SMALL = Task(rounds=2)


def sample(ms: float, cpu_ms: float = 1.0) -> Sample:
    return Sample(ms=ms, cpu_ms=cpu_ms, began=0.0, ended=1.0)


def results() -> SpeedResults:
    """Two samples of each row by us and by the commit before, one by a peer."""
    filled = SpeedResults(versions={"agno": "agno 3.1"}, skipped=["skipped: ADK: no registry"])
    for row in [*ROWS, *SHARED.values()]:
        for cpu_ms in (1.0, 3.0):
            filled.add(row, "loopline", sample(0.25, cpu_ms))
            filled.add(row, "loopline@before", sample(0.5, 2 * cpu_ms))
    for row in PANELS:
        filled.add(row, "agno", sample(10.0))
    filled.lock_shares[SHARED[2]] = [0.25, 0.75]
    return filled


async def test_our_program_runs_each_kind_of_task(tmp_path: Path) -> None:
    async with ours(1) as [subject]:
        for number, row in enumerate(ROWS.values()):
            small = replace(row.task, rounds=2, conversations=row.task.conversations[:2])
            task = replace(small, store=str(tmp_path / f"{number}.db")) if row.durable else small
            measured = await subject.sample(task)
            assert (measured is None) == (task.commits == "run")
            assert measured is None or 0 < measured.began < measured.ended


async def test_processes_share_a_store(tmp_path: Path) -> None:
    async with ours(2) as processes:
        robin = RoundRobin(tmp_path, processes, SpeedResults())
        await robin.share(SHARED[2], processes, many=4)
    assert list(robin.results.samples) == list(robin.results.lock_shares) == [SHARED[2]]
    with closing(sqlite3.connect(tmp_path / "1.db")) as database:
        assert database.execute("SELECT count(*) FROM conversations").fetchone() == (5,)


async def test_the_floor_writes_and_has_nothing_in_memory(tmp_path: Path) -> None:
    async with floor() as subject:
        assert await subject.sample(SMALL) is None
        assert await subject.sample(replace(SMALL, store=str(tmp_path / "floor.db"))) is not None
    with closing(sqlite3.connect(tmp_path / "floor.db")) as database:
        assert database.execute("SELECT count(*) FROM blocks").fetchone() == (2 * 5 + 1,)


async def test_a_subject_that_ends_is_left_out_and_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    async with started("agno", command) as subject:
        robin = RoundRobin(tmp_path, [subject], SpeedResults())
        await robin.measure("memory_10", ROWS["memory_10"])
    assert robin.subjects == []
    assert robin.results.samples == {}
    assert robin.results.skipped == ["no more: agno: no such model\n"]


async def test_a_library_that_fails_a_task_is_asked_for_the_next_one(tmp_path: Path) -> None:
    store = tmp_path / "taken.db"
    store.write_text("This is no database.", "utf-8")
    async with floor() as subject:
        with pytest.raises(
            TaskFailed, match="plain sqlite3: DatabaseError: file is not a database"
        ):
            await subject.sample(replace(SMALL, store=str(store)))
        assert await subject.sample(replace(SMALL, store=str(tmp_path / "new.db"))) is not None


def test_a_failure_is_told_once() -> None:
    failed = SpeedResults()
    failed.failed("crowd", "ADK: locked")
    failed.failed("crowd", "ADK: locked")
    assert failed.skipped == ["fails: 200 conversations at once, durable: ADK: locked"]


async def test_a_program_that_says_nothing_has_failed(tmp_path: Path) -> None:
    async with started("agno", [sys.executable, "-c", ""]) as subject:
        assert isinstance(subject, Subject)
        with pytest.raises(SubjectFailed, match="agno"):
            await subject.sample(SMALL)


def test_a_task_with_too_few_requests_is_no_sample() -> None:
    stopwatch = Stopwatch()
    stopwatch.begin()
    stopwatch.asked()
    with pytest.raises(RuntimeError, match="1 requests, not 3"):
        stopwatch.sample(SMALL)


def test_a_round_of_one_turn_is_the_time_between_two_requests() -> None:
    stopwatch = Stopwatch(asked_at=[0.0, 5.0, 6.0, 8.0], cpu_at=[0.0, 1.0, 2.0, 3.0])
    measured = stopwatch.sample(SMALL)
    assert (measured.ms, measured.cpu_ms) == (1_500.0, 1_000.0)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_has_a_program(library: str) -> None:
    program = ast.parse((HERE / library / f"speed{SUFFIX}").read_text("utf-8"))
    assert {node.name for node in program.body if isinstance(node, ast.AsyncFunctionDef)} >= {"run"}


def test_json_gives_the_results_again(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(results().json(), "utf-8")
    assert read(tmp_path / "run.json") == results()
    assert json.loads(results().json())["samples"]["crowd"]["agno"][0]["ms"] == 10.0


def test_the_table_has_a_row_a_task_and_a_column_a_subject() -> None:
    lines = list(table(results()))
    assert lines[0] == "| a round | Loopline | loopline@before | Agno |"
    assert lines[2] == (
        "| in memory, 10 rounds, ms | 0.25 (0.25–0.25), CPU 2.00 | 0.50 (0.50–0.50), CPU 4.00 | – |"
    )
    assert (
        "| 200 conversations at once, durable, rounds/s | 4,000 (4,000–4,000), CPU 2.00 "
        "| 2,000 (2,000–2,000), CPU 4.00 | 100 (100–100), CPU 1.00 |"
    ) in lines
    text = "\n".join(lines)
    assert "over 2 processes: the write lock is held 50% of the time (25%–75%)." in text
    assert "in memory, 500 rounds: CPU 0.50 of loopline@before's (0.50–0.50, 2 pairs)." in text
    assert lines[-2:] == ["Agno: agno 3.1", "skipped: ADK: no registry"]


def test_the_picture_has_a_bar_for_each_subject_of_each_panel() -> None:
    drawing = ElementTree.fromstring(picture(results()))
    bars = [bar for bar in drawing.iter("{http://www.w3.org/2000/svg}rect") if bar.get("class")]
    assert [bar.get("class") for bar in bars] == ["ours", "peer", "peer"] * len(PANELS)
    assert picture(SpeedResults()).count('class="') == 0


def test_a_run_is_written_where_the_options_say(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("run.json", "run.svg")]
    write(results(), options(["--json", files[0], "--picture", files[1]]))
    assert read(tmp_path / "run.json") == results()
    assert (tmp_path / "run.svg").read_text("utf-8") == picture(results())


def test_the_command_takes_what_it_measures_from_its_options() -> None:
    chosen = options(["--only", "loopline", "agno", "--rows", "crowd", "--against", "HEAD~1"])
    assert (chosen.only, chosen.rows, chosen.against) == (["loopline", "agno"], ["crowd"], "HEAD~1")
    assert options([]).rows == [*ROWS, "shared"]


async def test_the_write_lock_of_another_process_is_seen(tmp_path: Path) -> None:
    store = tmp_path / "locked.db"
    command = [sys.executable, "-c", HOLDS_THE_LOCK, str(store)]
    async with started(FLOOR, command) as subject:
        stdin, stdout = subject.process.stdin, subject.process.stdout
        assert stdin
        assert stdout
        assert await stdout.readline() == b"held\n"
        with (tmp_path / "locked.db-shm").open("r+b") as shared_memory:
            assert is_held(shared_memory.fileno())
            stdin.write(b"\n")
            assert await stdout.readline() == b"free\n"
            assert not is_held(shared_memory.fileno())
        with watched(store) as share:
            assert isinstance(share, LockShare)
    assert share.share == 0.0


HOLDS_THE_LOCK = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA journal_mode=WAL")
database.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
database.execute("COMMIT")
print("free", flush=True)
sys.stdin.readline()
"""
