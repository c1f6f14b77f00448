"""What cannot be opened, or not be written to, is refused in words that help."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, Harness, Store
from loopline.errors import LooplineError, StoreError, StoreVersion
from loopline.store import SqlLog
from loopline.testing import ScriptedModel
from loopline.timeline import ConversationLimits, MemoryLog
from loopline.timeline.chain import Link
from tests.crashes.processes import HERE, prompt, url

HELLO = [prompt("hello")]


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    async with await SqlLog.open(url(tmp_path / "talk.db")) as log:
        await log.append(HERE, HELLO, seen=0)
    return tmp_path / "talk.db"


@pytest.fixture
def newer(store: Path) -> Path:
    make_newer(store)
    return store


def make_newer(store: Path) -> None:
    set_schema(store, 99)


def damage(store: Path) -> None:
    data = store.read_bytes()
    store.write_bytes(data.replace(b"TABLE conversations", b"TABLE conversatio\xff\x80"))


def set_schema(store: Path, version: int) -> None:
    with closing(sqlite3.connect(store)) as database, database:
        database.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", [f"{version}"])


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "talk.db",
        "sqlite://talk.db",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///talk.db?mode=ro",
        "postgresql://server/talk",
    ],
)
async def test_a_url_of_something_else_is_told_what_works(name: str) -> None:
    with pytest.raises(StoreError, match=r"sqlite:///relative\.db"):
        await SqlLog.open(name)


async def test_folders_above_a_new_store_are_made(tmp_path: Path) -> None:
    async with await SqlLog.open(url(tmp_path / "ü a%20b" / "c#d" / "talk.db")) as log:
        await log.append(HERE, HELLO, seen=0)
    assert (tmp_path / "ü a%20b" / "c#d" / "talk.db").is_file()


async def test_a_relative_store_is_in_the_folder_it_was_opened_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with await SqlLog.open("sqlite:///talk.db") as log:
        monkeypatch.chdir("/")
        await log.append(HERE, HELLO, seen=0)
        async with log.lease(HERE):
            pass
    assert list(files_in(tmp_path)) == ["talk.db"]
    assert len(files_in(tmp_path / "talk.db-locks")) == 1


async def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        await SqlLog.open(url(tmp_path))


async def test_a_store_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file/talk\.db"):
        await SqlLog.open(url(tmp_path / "file" / "talk.db"))


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_file_of_something_else_is_refused(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "talk.db").write_text("dear diary, " * 100)
    with pytest.raises(StoreError, match=r"talk\.db: it is not a SQLite database"):
        await SqlLog.open(url(tmp_path / "talk.db"), read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_store_whose_schema_is_no_text_any_more_is_told_to_be_damaged(
    store: Path, read_only: bool
) -> None:
    damage(store)
    with pytest.raises(StoreError, match=r"talk\.db: it is damaged.* put a backup in its place"):
        await SqlLog.open(url(store), read_only=read_only)


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_database_of_something_else_is_refused_and_left_as_it_is(
    tmp_path: Path, read_only: bool
) -> None:
    with closing(sqlite3.connect(tmp_path / "talk.db")) as database, database:
        database.execute("CREATE TABLE recipes (name)")
    before = files_in(tmp_path)
    with pytest.raises(StoreError, match="the database of another program"):
        await SqlLog.open(url(tmp_path / "talk.db"), read_only=read_only)
    assert files_in(tmp_path) == before


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "talk.db").touch()
    async with await SqlLog.open(url(tmp_path / "talk.db")) as log:
        assert len(await log.append(HERE, HELLO, seen=0)) == 1


async def test_a_store_that_is_not_there_is_not_begun_read_only(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store at"):
        await SqlLog.open(url(tmp_path / "talk.db"), read_only=True)
    assert files_in(tmp_path) == {}


async def test_a_read_only_log_is_read_and_never_written(store: Path) -> None:
    before = files_in(store.parent)["talk.db"]
    async with await SqlLog.open(url(store), read_only=True) as log:
        assert len(await log.read(HERE)) == 1
        assert await log.find(HERE) == (await log.conversations())[0]
        with pytest.raises(StoreError, match="read-only"):
            await log.append(HERE, HELLO, seen=1)
        with pytest.raises(StoreError, match="read-only"):
            await log.lease(HERE).__aenter__()
    assert files_in(store.parent)["talk.db"] == before


async def test_a_read_only_log_sees_what_is_written_meanwhile(store: Path) -> None:
    async with (
        await SqlLog.open(url(store)) as log,
        await SqlLog.open(url(store), read_only=True) as reader,
    ):
        await log.append(HERE, HELLO, seen=1)
        assert len(await reader.read(HERE)) == 2


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_store_of_a_newer_loopline_can_be_read(newer: Path, read_only: bool) -> None:
    async with await SqlLog.open(url(newer), read_only=read_only) as log:
        assert len(await log.read(HERE)) == 1
        assert len(await log.conversations()) == 1


async def test_a_store_of_a_newer_loopline_is_not_written(newer: Path) -> None:
    async with await SqlLog.open(url(newer)) as log:
        with pytest.raises(StoreVersion, match="upgrade loopline"):
            await log.append(HERE, HELLO, seen=1)
        with pytest.raises(StoreVersion, match="upgrade loopline"):
            await log.lease(HERE, wait=False).__aenter__()
        with pytest.raises(StoreVersion, match="upgrade loopline"):
            await log.lease(HERE, wait=False).__aenter__()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("version", [1, 2])
async def test_a_store_from_before_the_first_release_is_refused(
    store: Path, version: int, read_only: bool
) -> None:
    set_schema(store, version)
    with pytest.raises(StoreError, match=rf"schema {version}, .* opens schema 3 and later"):
        await SqlLog.open(url(store), read_only=read_only)


async def test_a_store_upgraded_under_an_open_log_is_not_written(store: Path) -> None:
    async with await SqlLog.open(url(store)) as log:
        await log.append(HERE, HELLO, seen=1)
        make_newer(store)
        with pytest.raises(StoreVersion):
            await log.append(HERE, HELLO, seen=2)


def chained(database: sqlite3.Connection) -> bytes:
    """The digest that a second prompt of `[]` has in its chain."""
    (before,) = database.execute("SELECT digest FROM blocks WHERE seq = 1").fetchone()
    body = sha256(b"[]").digest()
    link = Link(seq=2, position=b"1 0 2 0 0 1 user.prompt", body=body, digest=b"")
    return link.after(before, 2)


async def test_a_block_that_is_not_what_its_type_says_is_named(store: Path) -> None:
    columns = "conversation, seq, turn, round, n, ts, term, type, version, body, digest, bytes"
    with closing(sqlite3.connect(store)) as database, database:
        database.execute(
            f"INSERT INTO blocks ({columns})"
            "VALUES (1, 2, 1, 0, 2, 0, 0, 'user.prompt', 1, '[]', ?, 0)",
            (chained(database),),
        )
    async with await SqlLog.open(url(store)) as log:
        with pytest.raises(StoreError, match="block 2 of 'here'"):
            await log.read(HERE)


async def test_the_limits_of_a_conversation_are_given_where_a_store_is_opened(
    tmp_path: Path,
) -> None:
    bundle, limits = Bundle(id="b", workflow=BaseWorkflow), ConversationLimits(blocks=5)
    opened = Harness.open(
        bundle, store=url(tmp_path / "talk.db"), model=ScriptedModel(["Yes."]), limits=limits
    )
    async with opened as harness:
        talk = harness.conversation("here")
        await talk.say("hello")
        with pytest.raises(StoreError, match="'here' is full: it has 6 blocks of at most 5"):
            await talk.say("more")
        document = await talk.export()
    async with Harness.open(bundle, store="memory:", model=ScriptedModel([]), limits=limits) as two:
        with pytest.raises(StoreError, match="too long for this store"):
            await two.load(document)
    async with Store.open(url(tmp_path / "talk.db"), limits=limits) as store:
        with pytest.raises(StoreError, match="'here' is full"):
            await store.log.append(HERE, HELLO, seen=6)


def test_a_log_that_is_given_has_limits_of_its_own() -> None:
    bundle, limits = Bundle(id="b", workflow=BaseWorkflow), ConversationLimits(blocks=5)
    with pytest.raises(LooplineError, match="a log has its limits already"):
        Harness.open(bundle, store=MemoryLog(), limits=limits)
