"""Whatever is done to a kept log and to memory, both say the same: laws 2 and 11 among it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from loopline import timeline as tl
from loopline.errors import StoreError
from loopline.store import SqlLog
from loopline.store.postgres_log import PostgresLog
from tests.laws.leaping_clock import LeapingClock
from tests.strategies import bodies, entries, user_bodies
from tests.support.examples import examples
from tests.support.postgres_server import running_postgres

T = TypeVar("T")

NAMES = [
    tl.ConversationKey(name="a"),
    tl.ConversationKey(name="a", user="other"),
    tl.ConversationKey(name="b", tenant="t", project="p"),
    tl.ConversationKey(name="c"),
    tl.ConversationKey(name="d"),
]
LIMITS = tl.ConversationLimits(blocks=40, bytes=4_000)
conversations = st.sampled_from(NAMES)
keys = st.sampled_from(["", "", "k", "l"])
far = st.integers(0, 12)
kinds = st.sampled_from(
    ["user", "user.prompt", "react", "react.tool", "react.tool.", "react.t", "later", "turn", ""]
)
microseconds = st.integers(0, 3 * 86_400 * 10**6)
moments = st.none() | microseconds.map(
    lambda passed: datetime(2030, 1, 1, tzinfo=UTC) + timedelta(microseconds=passed)
)


class LogsSideBySide(RuleBasedStateMachine):
    """Two processes' worth of a log in SQLite or PostgreSQL, and memory."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.clock = LeapingClock()
        self.memory = tl.MemoryLog(LeapingClock(), LIMITS)
        self.url = self.new_store()
        self.kept: list[SqlLog | PostgresLog] = [self.open(), self.open()]
        self.terms = dict.fromkeys(NAMES, 0)
        self.read = dict[tl.ConversationKey, Sequence[tl.Block]]()

    def new_store(self) -> str:
        return f"sqlite:///{Path(self.folder.name) / 'talk.db'}"

    def open(self) -> SqlLog | PostgresLog:
        return self.runner.run(SqlLog.open(self.url, clock=self.clock, limits=LIMITS))

    def both(self, which: int, do: Callable[[tl.TimelineLog], Coroutine[None, None, T]]) -> T | str:
        expected = self.runner.run(outcome(do(self.memory)))
        assert self.runner.run(outcome(do(self.kept[which]))) == expected
        return expected

    @rule(
        which=st.integers(0, 1),
        conversation=conversations,
        said=st.lists(entries(user_bodies()), max_size=3),
        seen=far,
        key=keys,
    )
    def the_user_speaks(
        self,
        which: int,
        conversation: tl.ConversationKey,
        said: list[tl.Entry],
        seen: int,
        key: str,
    ) -> None:
        self.both(which, lambda log: log.append(conversation, said, seen=seen, key=key))

    @rule(
        which=st.integers(0, 1),
        conversation=conversations,
        done=st.lists(entries(bodies()), min_size=1, max_size=4),
        seen=far,
        late=st.sampled_from([0, 0, 0, 1]),
        key=keys,
    )
    def a_runner_works(
        self,
        which: int,
        conversation: tl.ConversationKey,
        done: list[tl.Entry],
        seen: int,
        late: int,
        key: str,
    ) -> None:
        term = self.terms[conversation] - late
        self.both(which, lambda log: log.append(conversation, done, seen=seen, term=term, key=key))

    @rule(which=st.integers(0, 1), conversation=conversations)
    def a_runner_takes_over(self, which: int, conversation: tl.ConversationKey) -> None:
        async def take(log: tl.TimelineLog) -> int:
            async with log.lease(conversation, wait=False) as term:
                return term

        if self.both(which, take) == self.terms[conversation] + 1:
            self.terms[conversation] += 1

    @rule(
        which=st.integers(0, 1),
        conversation=conversations,
        after=far,
        limit=st.none() | st.integers(0, 5),
        types=st.lists(kinds, max_size=2),
        turn=st.none() | st.integers(1, 3),
    )
    def somebody_reads(
        self,
        which: int,
        conversation: tl.ConversationKey,
        after: int,
        limit: int | None,
        types: list[str],
        turn: int | None,
    ) -> None:
        self.both(
            which,
            lambda log: log.read(conversation, after=after, limit=limit, types=types, turn=turn),
        )

    @rule(
        which=st.integers(0, 1),
        user=st.sampled_from([None, None, "local", "other", "nobody"]),
        project=st.sampled_from([None, None, "p"]),
        tenant=st.sampled_from([None, None, "t", "default"]),
        after=moments,
        before=moments,
    )
    def somebody_lists(
        self,
        which: int,
        user: str | None,
        project: str | None,
        tenant: str | None,
        after: datetime | None,
        before: datetime | None,
    ) -> None:
        async def listed(log: tl.TimelineLog) -> list[tl.ConversationSummary]:
            listing = await log.conversations(
                user=user, project=project, tenant=tenant, after=after, before=before
            )
            found = [replace(found, uid="") for found in listing]
            moments = [summary.last_activity_at for summary in found]
            assert moments == sorted(moments, reverse=True)
            return sorted(found, key=lambda summary: str(summary.conversation))

        self.both(which, listed)

    @rule(which=st.integers(0, 1), limit=st.integers(0, 6))
    def somebody_lists_a_few(self, which: int, limit: int) -> None:
        async def active(log: tl.TimelineLog) -> list[datetime]:
            return [summary.last_activity_at for summary in await log.conversations(limit=limit)]

        self.both(which, active)

    @rule(which=st.integers(0, 1), conversation=conversations, late=st.integers(-1, 1))
    def a_runner_looks_at_its_lease(
        self, which: int, conversation: tl.ConversationKey, late: int
    ) -> None:
        term = self.terms[conversation] - late
        self.both(which, lambda log: log.holds(conversation, term))

    @rule(
        which=st.integers(0, 1),
        conversation=conversations,
        fork=conversations,
        seq=st.integers(0, 6),
    )
    def somebody_forks(
        self, which: int, conversation: tl.ConversationKey, fork: tl.ConversationKey, seq: int
    ) -> None:
        self.both(which, lambda log: log.fork(conversation, fork, seq))

    @rule(which=st.integers(0, 1), conversation=conversations, cascade=st.booleans())
    def somebody_forgets(self, which: int, conversation: tl.ConversationKey, cascade: bool) -> None:
        self.both(which, lambda log: log.forget(conversation, cascade=cascade))
        for name in [name for name in NAMES if name in self.read]:
            if self.was_forgotten(which, name):
                del self.read[name]
                self.terms[name] += 1

    def was_forgotten(self, which: int, conversation: tl.ConversationKey) -> bool:
        return self.both(which, lambda log: log.forgotten(conversation)) is not None

    @rule(which=st.integers(0, 1))
    def a_process_ends_and_another_begins(self, which: int) -> None:
        self.runner.run(self.kept[which].close())
        self.kept[which] = self.open()

    @invariant()
    def places_are_dense_and_what_was_read_stays_read(self) -> None:
        for conversation in NAMES:
            blocks = self.runner.run(self.kept[0].read(conversation))
            before = self.read.get(conversation, [])
            assert [block.seq for block in blocks] == list(range(1, len(blocks) + 1))
            assert blocks[: len(before)] == before
            if blocks:
                self.read[conversation] = blocks

    @invariant()
    def the_terms_of_runners_never_fall(self) -> None:
        for blocks in self.read.values():
            terms = [block.term for block in blocks if block.term]
            assert all(item <= next_one for item, next_one in pairwise(terms))

    def teardown(self) -> None:
        for log in self.kept:
            self.runner.run(log.close())
        self.runner.close()
        self.folder.cleanup()


async def outcome(doing: Coroutine[None, None, T]) -> T | str:
    """What it returned, or why it was refused."""
    try:
        return await doing
    except StoreError as error:
        return f"{type(error)} {error}"


class PostgresLogsSideBySide(LogsSideBySide):
    def new_store(self) -> str:
        return running_postgres().store_url()

    def open(self) -> PostgresLog:
        return self.runner.run(PostgresLog.open(self.url, clock=self.clock, limits=LIMITS))


TestLogsSideBySide = LogsSideBySide.TestCase
TestLogsSideBySide.settings = examples(25, stateful_step_count=25)
TestPostgresLogsSideBySide = pytest.mark.service(PostgresLogsSideBySide.TestCase)
TestPostgresLogsSideBySide.settings = examples(25, stateful_step_count=25)
