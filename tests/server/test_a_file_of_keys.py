"""The file of API keys: who writes it, who reads it, and from when a change counts."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit

import pytest

from loopline.errors import LooplineError
from loopline.server import ApiKeys, Principal, Unauthenticated, add_key, revoke_key
from loopline.store.postgres_relay import PostgresRelay
from tests.doors.command import Loopline
from tests.support.postgres_server import running_postgres


async def test_a_new_and_a_revoked_key_count_at_once(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    first = add_key(file, Principal(user="ann"))
    keys = ApiKeys.read(file)
    second = add_key(file, Principal(user="bob"))
    assert (await keys.authenticate(second)).user == "bob"
    assert revoke_key(file, first)
    assert not revoke_key(file, first)
    with pytest.raises(Unauthenticated):
        await keys.authenticate(first)
    file.write_text("damaged")
    with pytest.raises(Unauthenticated):
        await keys.authenticate(second)


def test_the_file_is_its_owners_whatever_a_killed_process_left(tmp_path: Path) -> None:
    file, left = tmp_path / "keys.json", tmp_path / ".keys.json.new"
    left.touch(mode=0o666)
    left.chmod(0o666)
    add_key(file, Principal(user="ann"))
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_keeps_its_keys_and_leaves_no_other_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys.json"
    add_key(file, Principal(user="ann"))
    before, names = file.read_bytes(), {*tmp_path.iterdir()}
    soft, hard = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (len(before), hard))
    try:
        with pytest.raises(LooplineError, match="cannot be written: File too large"):
            add_key(file, Principal(user="bob"))
    finally:
        setrlimit(RLIMIT_FSIZE, (soft, hard))
    assert (file.read_bytes(), {*tmp_path.iterdir()}) == (before, names)


async def test_keys_that_are_added_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"

    def add(number: int) -> str:
        return add_key(file, Principal(user=f"u{number}"))

    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(add, range(24)))
    keys = ApiKeys.read(file)
    users = [(await keys.authenticate(key)).user for key in added]
    assert users == [f"u{n}" for n in range(24)]


def test_a_key_that_expires_at_a_time_without_a_zone_is_refused_with_its_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys.json"
    add_key(file, Principal(user="ann"), datetime(2030, 1, 1, tzinfo=UTC))
    ApiKeys.read(file)
    file.write_text(file.read_text().replace("2030-01-01T00:00:00.000Z", "2030-01-01"))
    with pytest.raises(LooplineError, match="no time zone"):
        ApiKeys.read(file)


def test_the_command_makes_no_key_of_a_name_that_urls_cannot_have(tmp_path: Path) -> None:
    loopline = Loopline(tmp_path)
    ran = loopline("key", "keys.json", "--project", "..")
    assert (ran.code, "'..' cannot be the name of a project" in ran.err) == (1, True)
    assert not (tmp_path / "keys.json").exists()
    assert "The user of the key." in loopline("key", "-h").out


def test_the_command_revokes_a_key(tmp_path: Path) -> None:
    loopline = Loopline(tmp_path)
    key = loopline("key", "keys.json", "--user", "ann").out.strip()
    assert loopline("key", "keys.json", "--revoke", key.split("_")[1]).code == 0
    assert loopline("key", "keys.json", "--revoke", key).code == 1


@pytest.mark.service
async def test_the_command_tells_the_servers_of_a_store_that_it_revoked_a_key(
    tmp_path: Path,
) -> None:
    loopline = Loopline(tmp_path)
    store = running_postgres().store_url()
    made = await asyncio.to_thread(loopline, "key", "keys.json", "--user", "ann")
    async with aclosing(PostgresRelay(store).receive()) as texts:
        assert await anext(texts) is None
        key_id = made.out.strip().split("_")[1]
        arguments = ("keys.json", "--revoke", key_id, "--store", store)
        assert (await asyncio.to_thread(loopline, "key", *arguments)).code == 0
        assert await anext(texts) == '["keys",""]'
