"""A pooler that shares sessions between transactions is refused: the store needs a session of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from loopline.errors import StoreError
from loopline.store.postgres_log import PostgresLog
from loopline.timeline import NEW_TURN, ConversationKey, Entry, UserPrompt
from tests.doors.command import wait_for
from tests.support.postgres_server import free_port, running_postgres

pytestmark = pytest.mark.service


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
            entry = Entry(body=UserPrompt(text="hello"), turn=NEW_TURN)
            await log.append(ConversationKey(name="c"), [entry], seen=0)
            async with log.lease(ConversationKey(name="c")) as term:
                assert term == 1
