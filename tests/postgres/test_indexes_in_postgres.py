"""The search index of a commit in PostgreSQL: one process builds it, and the others of the store fetch it."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from loopline.knowledge import IndexKey
from loopline.store.postgres import PostgresReaders, PostgresServer
from loopline.store.postgres_index_files import PostgresIndexFiles
from loopline.store.postgres_log import PostgresLog
from tests.crashes.processes import ROOT
from tests.postgres.building_process import KEY, Builds
from tests.support.postgres_server import running_postgres

pytestmark = pytest.mark.service


def modes(folder: Path) -> set[int]:
    """The modes of the files in the folders of this folder."""
    return {file.stat().st_mode & 0o777 for file in folder.glob("*/*")}


async def run_process(url: str, folder: Path, *options: str) -> tuple[int | None, bytes]:
    """Build an index in another process; return its exit code, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.postgres.building_process", url, str(folder), *options),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    output, _ = await process.communicate()
    return process.returncode, output


async def test_an_index_that_one_machine_built_is_fetched_by_another(
    tmp_path: Path, log: PostgresLog
) -> None:
    builds = Builds()
    for folder in ("a", "b", "c"):
        await builds.build(tmp_path / folder, log)
    assert builds.count == 1
    assert modes(tmp_path) == {0o600}


async def test_another_commit_or_family_has_an_index_of_its_own(
    tmp_path: Path, log: PostgresLog
) -> None:
    builds = Builds()
    for number, key in enumerate([KEY, IndexKey("two", "family"), IndexKey("one", "another")]):
        await builds.build(tmp_path / f"{number}", log, key)
    assert builds.count == 3


async def change(url: str, statement: str) -> None:
    """Change the tables of the store."""
    schema = url.rpartition("=")[2]
    async with await psycopg.AsyncConnection.connect(running_postgres().url()) as connection:
        await connection.execute(f"SET search_path = {schema}".encode())
        await connection.execute(statement.encode())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE index_parts SET data = overlay(data PLACING '\\xfe01fd' FROM 5000)",
        "UPDATE index_parts SET data = data || '\\x00'",
        "DELETE FROM index_parts",
        "UPDATE index_files SET bytes = bytes + 1",
        "UPDATE index_files SET bytes = 1000000000000",
    ],
)
async def test_a_damaged_file_is_not_used_and_is_replaced(
    tmp_path: Path, url: str, log: PostgresLog, damage: str
) -> None:
    builds = Builds()
    await builds.build(tmp_path / "a", log)
    await change(url, damage)
    await builds.build(tmp_path / "b", log)
    assert builds.count == 2
    await builds.build(tmp_path / "c", log)
    assert builds.count == 2


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER more AFTER DELETE ON file BEGIN DELETE FROM chunk; END",
        "CREATE TABLE more(x)",
        "UPDATE about SET signature = 'another'",
        "PRAGMA user_version = 99",
    ],
)
async def test_a_file_that_was_not_built_for_this_index_is_not_used(
    tmp_path: Path, log: PostgresLog, statement: str
) -> None:
    builds = Builds()
    await builds.build(tmp_path / "a", log)
    (file,) = (tmp_path / "a").glob("*.fts")
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(statement)
    await asyncio.to_thread(log.index_files.share, file.name, file)
    await builds.build(tmp_path / "b", log)
    assert builds.count == 2


async def test_processes_that_start_together_build_once(
    tmp_path: Path, url: str, log: PostgresLog
) -> None:
    await log.check()
    outcomes = await asyncio.gather(*(run_process(url, tmp_path / name) for name in "abcd"))
    assert sorted(outcomes) == [(0, b"0\n")] * 3 + [(0, b"1\n")]


async def test_a_process_that_is_killed_while_it_builds_leaves_the_build_to_the_next(
    tmp_path: Path, url: str, log: PostgresLog
) -> None:
    code, _ = await run_process(url, tmp_path / "a", "die")
    assert code == -signal.SIGKILL
    builds = Builds()
    for folder in "bc":
        await builds.build(tmp_path / folder, log)
    assert builds.count == 1


async def test_the_files_that_were_not_used_for_longest_are_removed(
    tmp_path: Path, url: str
) -> None:
    readers = PostgresReaders(PostgresServer(url, read_only=False), 1)
    file = tmp_path / "file"
    file.write_bytes(bytes(2_500_000))

    def share_and_fetch() -> list[bool]:
        files = PostgresIndexFiles(
            PostgresServer(url, read_only=False), readers, all_bytes=6_000_000
        )
        files.share("a", file)
        files.share("b", file)
        assert files.fetch("a", tmp_path / "fetched")
        assert (tmp_path / "fetched").read_bytes() == file.read_bytes()
        files.share("c", file)
        return [files.fetch(name, tmp_path / "fetched") for name in "abc"]

    async with await PostgresLog.open(url):
        assert await asyncio.to_thread(share_and_fetch) == [True, False, True]
    readers.close()


async def test_a_store_that_cannot_share_is_named_and_the_index_is_built(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = await PostgresLog.open(url)
    await change(url, "CREATE VIEW index_parts AS SELECT 1")
    builds = Builds()
    await builds.build(tmp_path / "a", log)
    await log.close()
    assert builds.count == 1
    assert "is not shared by the store" in caplog.text
    assert "postgres@" in caplog.text
