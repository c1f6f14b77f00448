"""Laws 1, 2, 9 and 11, as a kept log and its database hold to them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import timeline as tl
from loopline.errors import LeaseLost
from loopline.store import SqlLog
from tests.support.examples import examples
from tests.support.sqlite_connections import each_connection

HERE = tl.ConversationKey(name="here")
THERE = tl.ConversationKey(name="there")
FORK = tl.ConversationKey(name="fork")
PROMPT = tl.Entry(body=tl.UserPrompt(text="hello"), turn=tl.NEW_TURN)

COLUMNS = "conversation, seq, turn, round, n, ts, term, type, version, body, digest, bytes"
REST = "1, 0, 9, 0, 0, 'user.prompt', 1, '{}', zeroblob(32), 0"
CONVERSATION = "tenant, project, user, name, uid, title, turns, term, started_at"
FORBIDDEN = [
    "UPDATE blocks SET body = '{}'",
    "UPDATE blocks SET body = body WHERE seq = 1",
    "UPDATE blocks SET conversation = 3 WHERE conversation = 1",
    "UPDATE OR REPLACE blocks SET seq = 1 WHERE seq = 2",
    "DELETE FROM blocks",
    "DELETE FROM blocks WHERE conversation = 1 AND seq = 3",
    f"REPLACE INTO blocks ({COLUMNS}) VALUES (1, 1, {REST})",
    f"REPLACE INTO blocks ({COLUMNS}) VALUES (1, 3, {REST})",
    f"REPLACE INTO blocks (id, {COLUMNS}) VALUES (1, 1, 1, {REST})",
    f"REPLACE INTO blocks (id, {COLUMNS}) VALUES (1, 1, 4, {REST})",
    f"INSERT OR IGNORE INTO blocks ({COLUMNS}) VALUES (1, 3, {REST})",
    f"""INSERT INTO blocks ({COLUMNS}) VALUES (1, 3, {REST})
        ON CONFLICT (conversation, seq) DO UPDATE SET body = excluded.body""",
    f"INSERT INTO blocks ({COLUMNS}) VALUES (1, 5, {REST})",
    f"INSERT INTO blocks ({COLUMNS}) VALUES (1, 0, {REST})",
    f"INSERT INTO blocks ({COLUMNS}) VALUES (1, -1, {REST})",
    f"INSERT INTO blocks (id, {COLUMNS}) VALUES (-1, 1, 4, {REST})",
    f"INSERT INTO blocks ({COLUMNS}) VALUES (3, 2, {REST})",
    "DELETE FROM conversations",
    "DELETE FROM conversations WHERE id = 2",
    "UPDATE conversations SET uid = 'other' WHERE id = 1",
    "UPDATE conversations SET id = 9 WHERE id = 1",
    "UPDATE conversations SET name = 'other' WHERE id = 1",
    "UPDATE conversations SET user = 'other' WHERE id = 1",
    "UPDATE conversations SET term = term - 1 WHERE id = 1",
    "UPDATE conversations SET turns = 0 WHERE id = 1",
    f"REPLACE INTO conversations (id, {CONVERSATION}) VALUES (1, 'a', 'b', 'c', 'd', 'e', '', 9, 9, 0)",
    f"""REPLACE INTO conversations ({CONVERSATION})
        SELECT 'a', 'b', 'c', 'd', uid, '', 9, 9, 0 FROM conversations WHERE id = 1""",
    f"""REPLACE INTO conversations ({CONVERSATION})
        SELECT tenant, project, user, name, 'e', '', 9, 9, 0 FROM conversations WHERE id = 1""",
    "UPDATE appends SET last_seq = 9",
    "DELETE FROM appends",
    "REPLACE INTO appends (conversation, key, last_seq) VALUES (1, 'k', 9)",
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A file with two conversations of three blocks each."""

    async def fill() -> None:
        async with await SqlLog.open(f"sqlite:///{tmp_path}/talk.db") as log:
            for conversation in (HERE, THERE):
                async with log.lease(conversation):
                    await log.append(conversation, [PROMPT] * 3, seen=0, key="k")

    asyncio.run(fill())
    return tmp_path / "talk.db"


def contents(store: Path) -> list[str]:
    with closing(sqlite3.connect(store)) as database:
        return list(database.iterdump())


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_what_was_kept_can_be_neither_changed_nor_removed(store: Path, statement: str) -> None:
    before = contents(store)
    refused = pytest.raises(sqlite3.IntegrityError, match=r"append-only|CHECK constraint")
    with closing(sqlite3.connect(store, isolation_level=None)) as database, refused:
        database.execute(statement)
    assert contents(store) == before


def test_the_next_place_is_the_one_that_may_be_taken(store: Path) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as database:
        database.execute(f"INSERT INTO blocks ({COLUMNS}) VALUES (1, 4, {REST})")
        assert database.execute("SELECT count(*) FROM blocks").fetchone() == (7,)


FORKED_AND_FORGOTTEN = [
    "INSERT INTO tombstones VALUES (1, 0)",
    "UPDATE tombstones SET at = 9",
    "DELETE FROM tombstones",
    "REPLACE INTO tombstones VALUES (2, 9)",
    "DELETE FROM segments",
    "UPDATE segments SET last = 3",
    "UPDATE segments SET owner = 3",
    "REPLACE INTO segments VALUES (3, 2, 1, 3)",
    "INSERT INTO segments VALUES (3, 3, 3, 1)",
    "INSERT INTO segments VALUES (3, 9, 3, 1)",
    "INSERT INTO segments VALUES (1, 3, 1, 3)",
    "INSERT INTO segments VALUES (2, 2, 1, 1)",
    "DELETE FROM blocks WHERE conversation = 3",
    f"INSERT INTO blocks ({COLUMNS}) VALUES (2, 1, {REST})",
    f"INSERT INTO blocks ({COLUMNS}) VALUES (3, 1, {REST})",
    f"INSERT INTO blocks ({COLUMNS}) VALUES (3, 3, {REST})",
    f"INSERT INTO blocks ({COLUMNS}) VALUES (3, 5, {REST})",
    "DELETE FROM conversations WHERE id = 2",
    "DELETE FROM appends WHERE conversation = 1",
]


@pytest.mark.parametrize("statement", FORKED_AND_FORGOTTEN)
def test_what_was_forked_stays_so_and_what_was_forgotten_too(store: Path, statement: str) -> None:
    """Conversation 1 has a fork, 3, of two blocks and one of its own; 2 is forgotten."""

    async def change() -> None:
        async with await SqlLog.open(f"sqlite:///{store}") as log:
            await log.fork(HERE, FORK, 2)
            await log.append(FORK, [PROMPT], seen=2)
            await log.forget(THERE)

    asyncio.run(change())
    before = contents(store)
    with closing(sqlite3.connect(store, isolation_level=None)) as database:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database.execute(statement)
        database.execute(f"INSERT INTO blocks ({COLUMNS}) VALUES (3, 4, {REST})")
    assert len(contents(store)) == len(before) + 1


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(1, 3), st.integers(0, 9)),
        max_size=12,
    )
)
@examples(25)
def test_who_has_seen_a_place_never_meets_a_new_block_at_or_below_it(
    appends: list[tuple[int, int, int, int]],
) -> None:
    """Each append is by one of two processes and one of three producers, so long, so far behind."""

    async def produce(logs: Sequence[tl.TimelineLog]) -> None:
        counts = [0, 0, 0]
        everything = list[tl.Block]()
        for process, producer, length, behind in appends:
            after = max(0, counts[producer] - behind)
            met = await logs[process].append(HERE, [PROMPT] * length, seen=after)
            everything.extend(met[-length:])
            assert met == everything[after:]
            counts[producer] = met[-1].seq
        assert [block.seq for block in everything] == list(range(1, len(everything) + 1))

    async def both() -> None:
        with TemporaryDirectory() as folder:
            async with (
                await SqlLog.open(f"sqlite:///{folder}/talk.db") as log,
                await SqlLog.open(f"sqlite:///{folder}/talk.db") as other_log,
            ):
                await produce([log, other_log])

    asyncio.run(both())


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=20))
@examples(25)
def test_along_seq_the_terms_of_runners_never_fall(moves: list[tuple[int, bool]]) -> None:
    """Three runners take over from each other, and go on whether or not they still may."""

    async def run() -> list[tl.Block]:
        terms = [0, 0, 0]
        with TemporaryDirectory() as folder:
            async with await SqlLog.open(f"sqlite:///{folder}/talk.db") as log:
                for runner, takes_over in moves:
                    if takes_over:
                        async with log.lease(HERE) as terms[runner]:
                            pass
                    note = tl.Entry(body=tl.Notes(text=str(runner)), turn=1)
                    may = terms[runner] == max(terms) > 0
                    assert await kept(log, note, terms[runner]) is may
                return list(await log.read(HERE))

    blocks = asyncio.run(run())
    assert all(item.term <= after.term for item, after in pairwise(blocks))


async def kept(log: tl.TimelineLog, entry: tl.Entry, term: int) -> bool:
    try:
        await log.append(HERE, [entry], seen=0, term=term)
    except LeaseLost:
        return False
    return True


class Steps:
    """How many steps SQLite has taken: one for each comparison, row and cursor it moves.

    Those that move the log into the file are nobody's, for it is moved while appends go on.
    """

    def __init__(self) -> None:
        self.taken = 0

    def watch(self, connection: sqlite3.Connection) -> None:
        is_moving = False

        def note(statement: str) -> None:
            nonlocal is_moving
            is_moving = statement.startswith("PRAGMA wal_checkpoint")

        def count() -> int:
            self.taken += not is_moving
            return 0

        connection.set_trace_callback(note)
        connection.set_progress_handler(count, 1)


@contextmanager
def counted() -> Generator[Steps, None, None]:
    """Counts the steps of all connections that are opened within."""
    steps = Steps()
    with each_connection(steps.watch):
        yield steps


async def cost_of_each_append(log: tl.TimelineLog, steps: Steps, turns: int) -> list[int]:
    """What the last append of each turn costs, of ten with five blocks each."""
    costs = list[int]()
    result = tl.ToolResult(call_id="c1", tool="t", text="x" * 1000)
    count = 0
    async with log.lease(HERE) as term:
        for turn in range(1, turns + 1):
            for number in range(10):
                before = steps.taken
                entries = [tl.Entry(body=result, turn=turn)] * 4
                first = PROMPT if number == 0 else entries[0]
                key = f"{turn}.{number}"
                met = await log.append(HERE, [first, *entries], seen=count, term=term, key=key)
                count = met[-1].seq
                costs.append(steps.taken - before)
    return costs[9::10]


async def test_what_an_append_costs_does_not_depend_on_its_place(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/talk.db"
    with counted() as steps:
        async with await SqlLog.open(url, lease_seconds=600) as log:  # so that none is renewed here
            costs = await cost_of_each_append(log, steps, turns=40)
    assert costs == [costs[0]] * 40


async def test_what_the_first_append_of_a_process_costs_does_not_depend_on_its_place(
    tmp_path: Path,
) -> None:
    """A new process counts its turn, and no more than its turn."""
    costs = list[int]()
    for turns in (1, 30):
        url = f"sqlite:///{tmp_path}/{turns}.db"
        with counted() as steps:
            async with await SqlLog.open(url) as log:
                await cost_of_each_append(log, steps, turns)
            async with await SqlLog.open(url) as log:
                before = steps.taken
                entry = tl.Entry(body=tl.UserPrompt(text="more"), turn=turns)
                await log.append(HERE, [entry], seen=turns * 50)
                costs.append(steps.taken - before)
    assert costs[0] == costs[1]


async def test_what_a_fork_costs_does_not_depend_on_how_much_it_shows(tmp_path: Path) -> None:
    costs = set[int]()
    for turns in (3, 60):
        with counted() as steps:
            async with await SqlLog.open(f"sqlite:///{tmp_path}/{turns}.db") as log:
                await cost_of_each_append(log, steps, turns)
                before = steps.taken
                await log.fork(HERE, FORK, turns * 50 - 10)
                costs.add(steps.taken - before)
    assert len(costs) == 1


@pytest.mark.parametrize("length", [1, 100, 1000, 20_000])
async def test_a_block_takes_little_more_room_than_what_it_says(
    tmp_path: Path, length: int
) -> None:
    """At most 1.5 times its stored body and 128 bytes, once the file has taken the log in."""
    result = tl.ToolResult(call_id="c1", tool="t", text="x" * length)
    blocks = 400
    async with await SqlLog.open(f"sqlite:///{tmp_path}/talk.db") as log:
        empty = await asyncio.to_thread(pages_in_use, tmp_path / "talk.db")
        async with log.lease(HERE) as term:
            for number in range(0, blocks, 4):
                entries = [tl.Entry(body=result, turn=1 + number // 20)] * 4
                await log.append(HERE, entries, seen=number, term=term)
    used = await asyncio.to_thread(pages_in_use, tmp_path / "talk.db") - empty
    assert used <= blocks * (1.5 * len(tl.encode(result)[2]) + 128)


def pages_in_use(store: Path) -> int:
    """The bytes of the pages that hold something."""
    with closing(sqlite3.connect(store)) as database:
        numbers = [
            int(database.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        ]
    return (numbers[0] - numbers[1]) * numbers[2]
