"""Several processes use one store at once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from loopline.timeline import Block, UserPrompt
from tests.crashes.processes import HERE, PRODUCERS, THERE, finish, open_log, prompt, start

APPENDS = 25
FRESH_FILES = 50


def numbers_by_producer(blocks: Sequence[Block]) -> dict[str, list[int]]:
    numbers = defaultdict[str, list[int]](list)
    for block in blocks:
        assert isinstance(block.body, UserPrompt)
        producer, number = block.body.text.split()
        numbers[producer].append(int(number))
    return numbers


@pytest.mark.parametrize(
    ("shared_store", "processes"),
    [
        ("sqlite", 2),
        ("sqlite", 8),
        pytest.param("postgres", 2, marks=pytest.mark.service),
        pytest.param("postgres", 8, marks=pytest.mark.campaign),
    ],
    indirect=["shared_store"],
)
async def test_processes_that_append_at_once_all_keep_their_order(
    shared_store: Path | str, processes: int
) -> None:
    process = await asyncio.to_thread(start, "produce", shared_store, processes, APPENDS)
    assert await asyncio.to_thread(finish, process) == []
    async with await open_log(shared_store) as log:
        for conversation in (HERE, THERE):
            blocks = await log.read(conversation)
            seqs = [block.seq for block in blocks]
            assert seqs == list(range(1, processes * len(PRODUCERS) * APPENDS + 1))
            assert [block.turn for block in blocks] == seqs
            numbers = numbers_by_producer(blocks)
            assert len(numbers) == processes * len(PRODUCERS)
            assert all(theirs == list(range(APPENDS)) for theirs in numbers.values())


def test_eight_processes_may_begin_one_store_at_once(quick_folder: Path) -> None:
    assert finish(start("begin", quick_folder, 8, FRESH_FILES)) == []
    for number in range(FRESH_FILES):
        with closing(sqlite3.connect(quick_folder / f"{number}.db")) as database:
            seqs = database.execute("SELECT seq FROM blocks ORDER BY seq").fetchall()
        assert seqs == [(seq,) for seq in range(1, 9)]


async def test_numbering_goes_on_from_what_another_process_wrote(
    shared_store: Path | str,
) -> None:
    async with await open_log(shared_store) as one, await open_log(shared_store) as other_log:
        count = 0
        for log in (one, one, other_log, one, other_log, other_log):
            turn = 1 if count else 0
            entry = prompt("hello")
            blocks = await log.append(HERE, [type(entry)(body=entry.body, turn=turn)], seen=count)
            count = blocks[-1].seq
        assert [block.n for block in await one.read(HERE)] == [1, 2, 3, 4, 5, 6]


def test_a_log_is_refused_in_a_forked_child_and_goes_on_in_its_parent(tmp_path: Path) -> None:
    process = start("fork", tmp_path / "talk.db")
    lines = process.communicate()[0].splitlines()
    assert [line.split(":")[0] for line in lines] == ["append", "read", "2"]
    assert all("forked" in line for line in lines[:2])
