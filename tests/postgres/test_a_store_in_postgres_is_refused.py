"""What cannot be a store in PostgreSQL is refused, with what to do, and without the password."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from loopline.errors import StoreError, StoreVersion
from loopline.harness import parse_store_url
from loopline.store.postgres_log import PostgresLog
from loopline.timeline import NEW_TURN, ConversationKey, Entry, UserPrompt
from tests.doors.command import wait_for
from tests.support.postgres_server import free_port, running_postgres

pytestmark = pytest.mark.service

HERE = ConversationKey(name="here")
ENTRY = Entry(body=UserPrompt(text="hello"), turn=NEW_TURN)


def execute(*statements: str, url: str = "") -> None:
    with psycopg.connect(url or running_postgres().url(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


async def refusal(url: str, *, read_only: bool = False) -> str:
    with pytest.raises(StoreError) as refused:
        await PostgresLog.open(url, read_only=read_only)
    return str(refused.value)


async def test_a_wrong_url_is_refused_without_its_password() -> None:
    error = await refusal("postgresql://me:se%cret@host/db")
    assert "special characters" in error
    assert "cret" not in error
    with pytest.raises(StoreError, match=r"no store 'mysql://…': write .*postgresql://") as refused:
        parse_store_url("mysql://me:secret@host/db")
    assert "secret" not in str(refused.value)


async def test_a_server_that_does_not_run_is_named_without_the_password() -> None:
    port = free_port()
    error = await refusal(f"postgresql://me:secret@127.0.0.1:{port}/db")
    assert error.startswith(f"postgresql://me@127.0.0.1:{port}/db cannot be reached")
    assert "secret" not in error


async def test_a_database_that_does_not_exist_is_to_be_created() -> None:
    assert "create it" in await refusal(running_postgres().url("absent"))


async def test_a_user_that_does_not_exist_is_refused() -> None:
    assert "check the URL" in await refusal(running_postgres().url(user="stranger"))


async def test_a_user_who_may_create_nothing_is_told_which_right_is_missing() -> None:
    execute("DROP ROLE IF EXISTS poor", "CREATE ROLE poor LOGIN")
    url = f"{running_postgres().url(user='poor')}?schema=theirs"
    assert "the user lacks a right: grant it (permission denied for database" in await refusal(url)


async def test_a_read_only_server_is_not_written_to() -> None:
    execute("CREATE DATABASE replica")
    url = running_postgres().url("replica")
    async with await PostgresLog.open(url) as log:
        await log.append(HERE, [ENTRY], seen=0)
    execute("ALTER DATABASE replica SET default_transaction_read_only = on")
    assert "read-only replica: name the primary" in await refusal(url)
    async with await PostgresLog.open(url, read_only=True) as log:
        assert len(await log.read(HERE)) == 1
        with pytest.raises(StoreError, match="was opened read-only"):
            await log.append(HERE, [ENTRY], seen=1)


async def test_a_store_that_does_not_exist_is_not_created_to_read_it() -> None:
    assert "has no store" in await refusal(running_postgres().store_url(), read_only=True)


async def test_a_database_that_does_not_store_every_text_is_refused() -> None:
    execute("CREATE DATABASE old ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    assert "ENCODING 'UTF8'" in await refusal(running_postgres().url("old"))


async def test_the_tables_of_another_program_are_left_alone() -> None:
    execute("CREATE SCHEMA theirs", "CREATE TABLE theirs.invoices (id int)")
    assert "tables of another program" in await refusal(f"{running_postgres().url()}?schema=theirs")


@pytest.mark.parametrize("schema", ["", "pg_mine", "x" * 64])
async def test_a_name_that_no_schema_has_is_refused(schema: str) -> None:
    assert "is not a name" in await refusal(f"{running_postgres().url()}?schema={schema}")


async def test_a_schema_may_have_any_other_name() -> None:
    url = f"{running_postgres().url()}?schema=the+%22odd%22%2C+one"
    async with await PostgresLog.open(url) as log:
        await log.append(HERE, [ENTRY], seen=0)
    async with await PostgresLog.open(url, read_only=True) as log:
        assert len(await log.read(HERE)) == 1


async def test_a_newer_store_is_read_and_not_written_to() -> None:
    url = running_postgres().store_url()
    schema = url.partition("schema=")[2]
    async with await PostgresLog.open(url) as log:
        await log.append(HERE, [ENTRY], seen=0)
        execute(f"UPDATE {schema}.meta SET value = '4' WHERE key = 'schema_version'")
        with pytest.raises(StoreVersion, match="upgrade loopline"):
            await log.append(HERE, [ENTRY], seen=1)
        assert len(await log.read(HERE)) == 1


async def test_one_text_that_no_database_stores_fails_its_own_append_alone() -> None:
    import asyncio

    async with await PostgresLog.open(running_postgres().store_url()) as log:
        odd = ConversationKey(name="nul \0 in it")
        outcomes = await asyncio.gather(
            log.append(odd, [ENTRY], seen=0),
            log.append(HERE, [ENTRY], seen=0),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], StoreError)
        assert [block.seq for block in await log.read(HERE)] == [1]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE blocks SET body = '{}'",
        "DELETE FROM blocks",
        "TRUNCATE blocks",
        "TRUNCATE conversations CASCADE",
        "INSERT INTO blocks SELECT 99, conversation, seq + 2, turn, round, n, ts, term, type, version, body, blob, "
        "digest, bytes FROM blocks WHERE seq = 2",
        "INSERT INTO blocks SELECT 99, conversation, seq + 1, turn, round, n, ts, term, type, version, body, blob, "
        "NULL, bytes FROM blocks WHERE seq = 2",
        "DELETE FROM conversations",
        "UPDATE conversations SET name = 'other'",
        "UPDATE conversations SET term = -1",
        "DELETE FROM appends",
        "UPDATE appends SET last_seq = 1",
        "UPDATE segments SET last = 2",
        "DELETE FROM segments",
        "INSERT INTO tombstones SELECT id, 0 FROM conversations WHERE name = 'here'",
    ],
)
async def test_the_database_itself_refuses_to_change_what_is_stored(statement: str) -> None:
    url = running_postgres().store_url()
    schema = url.partition("schema=")[2]
    async with await PostgresLog.open(url) as log:
        await log.append(HERE, [ENTRY, ENTRY], seen=0, key="k")
        await log.fork(HERE, ConversationKey(name="fork"), 1)
        with pytest.raises(psycopg.Error, match="append-only"):
            execute(f"SET search_path = {schema}", statement)
        assert len(await log.read(HERE)) == 2
        assert not [audit for audit in await log.audit({}) if audit.faults]


def test_a_url_is_shown_without_its_password() -> None:
    place = parse_store_url(
        "postgresql://me:se%40cret@a,b:5/db?sslmode=require&password=x&schema=s"
    )
    assert place.shown_url == "postgresql://me@a,b:5/db?sslmode=require&schema=s"
    assert "cret" not in repr(place)
    raw = parse_store_url("postgresql://me:se?cret@host/db?sslmode=require")
    assert raw.shown_url == "postgresql://me@host/db?sslmode=require"
    assert parse_store_url("postgresql:///db").shown_url == "postgresql:///db"


@contextmanager
def pgbouncer(folder: Path, mode: str) -> Generator[str, None, None]:
    """A pooler in that mode before the server, and the URL of a store behind it."""
    port = free_port()
    settings = folder / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={running_postgres().port} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\n"
        f"pool_mode = {mode}\nunix_socket_dir =\nserver_reset_query_always = 0\n"
    )
    settings.chmod(0o644)
    command = ["pgbouncer", str(settings)]
    if os.geteuid() == 0:
        command[1:1] = ["-u", "nobody"]
        for parent in (folder, *folder.parents[:2]):
            parent.chmod(0o755)
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres?schema={mode}"
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: _answers(url))
            yield url
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url.partition("?")[0], connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


async def test_a_pooler_in_transaction_mode_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(StoreError, match="is a pooler in transaction mode")
    with pgbouncer(tmp_path, "transaction") as url, refused:
        await PostgresLog.open(url)


async def test_a_pooler_in_session_mode_is_used(tmp_path: Path) -> None:
    with pgbouncer(tmp_path, "session") as url:
        async with await PostgresLog.open(url) as log:
            await log.append(HERE, [ENTRY], seen=0)
            async with log.lease(HERE) as term:
                assert term == 1
