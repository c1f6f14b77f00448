"""Who may run a conversation: a lock that a dead owner no longer has, and an end for a silent one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO

from loopline.adapters.sql.group import Group
from loopline.adapters.sql.heartbeat import Heartbeat
from loopline.adapters.sql.locks import Locks
from loopline.adapters.sql.owners import Claim, Owner, boot_id, since_boot
from loopline.adapters.sql.rows import Rows
from loopline.adapters.sql.threads import Readers
from loopline.errors import ConflictError, StoreError
from loopline.timeline import ConversationKey

LEASE_SECONDS = 10.0
BEATS_PER_LEASE = 4
FIRST_POLL_SECONDS = 0.005
LAST_POLL_SECONDS = 0.05
LOOK_SECONDS = 0.5

_Term = tuple[ConversationKey, int]


@dataclass(slots=True)
class _Lease:
    """A term that is had here, until so many milliseconds after boot unless it is put off."""

    term: int
    ends: int


class Leases:
    """The leases of a process: it has a term and a lock for each, and puts off their ends.

    A process that is stopped for longer than a lease, or whose loop hangs, may find that another
    has taken over: it learns that from its next append.
    """

    def __init__(
        self,
        locks: Locks,
        rows: Rows,
        readers: Readers,
        writing: Callable[[], Group],
        seconds: float,
    ) -> None:
        self._locks = locks
        self._rows = rows
        self._readers = readers
        self._writing = writing
        self._seconds = seconds
        self._held: dict[ConversationKey, _Lease] = {}
        self._heartbeat: Heartbeat | None = None

    @asynccontextmanager
    async def hold(self, conversation: ConversationKey, *, wait: bool) -> AsyncGenerator[int, None]:
        """Have the right to run the conversation, as a new term, until the context is left.

        Raises:
            ConflictError: `wait` is False and somebody else has it.
        """
        with ExitStack() as files:
            lease = await self._wait(_Lock(self._locks, conversation, files), wait=wait)
            self._held[conversation] = lease
            try:
                self._start()
                yield lease.term
            finally:
                self._let_go(conversation, lease)

    async def _wait(self, lock: _Lock, *, wait: bool) -> _Lease:
        pause = FIRST_POLL_SECONDS
        look = 0.0
        while True:
            lease = await self._locked(lock)
            if lease is None and time.monotonic() >= look:
                lease = await self._taken_over(lock)
                look = time.monotonic() + min(LOOK_SECONDS, self._seconds / BEATS_PER_LEASE)
            if lease is not None:
                return lease
            if not wait:
                raise ConflictError(f"conversation {lock.conversation.name!r} is being run already")
            # Not by the port's clock: the other process lives in the time of this machine.
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_POLL_SECONDS)

    async def stands(self, conversation: ConversationKey, term: int) -> bool:
        """Whether the lease of that term stands; once it may have ended, only if it can be put off."""
        held = self._held.get(conversation)
        if held is not None and held.term == term and since_boot() <= held.ends:
            return True
        return bool(await self._renew([(conversation, term)]))

    async def _locked(self, lock: _Lock) -> _Lease | None:
        """A term, if nobody has the lock of the newest generation."""
        while await lock.take():
            claimed = await self._claim(lock, takes_over=False)
            if isinstance(claimed, _Lease):
                return claimed
            lock.turn_to(claimed.generation)
        return None

    async def _taken_over(self, lock: _Lock) -> _Lease | None:
        """A term, if whoever has the lock has been silent until the lease ended."""
        owner = await self._owner(lock)
        lock.turn_to(owner.generation)
        if lock.conversation in self._held or not owner.is_silent(boot_id(), since_boot()):
            return None
        await asyncio.sleep(LAST_POLL_SECONDS)  # it may have the lock and be about to say so
        if owner != await self._owner(lock):
            return None
        lock.turn_to(owner.generation + 1)
        if await lock.take():
            claimed = await self._claim(lock, takes_over=True)
            if isinstance(claimed, _Lease):
                return claimed
            lock.turn_to(claimed.generation)
        return None

    async def _owner(self, lock: _Lock) -> Owner:
        self._writing()
        return await self._readers.read(partial(self._rows.owner, conversation=lock.conversation))

    async def _claim(self, lock: _Lock, *, takes_over: bool) -> _Lease | Owner:
        group = self._writing()  # it may have been closed meanwhile

        def take() -> _Lease | Owner:
            claim = Claim(
                generation=lock.generation,
                takes_over=takes_over,
                boot=boot_id(),
                now=since_boot(),
                seconds=self._seconds,
            )
            with group.writer.transaction() as connection:
                claimed = group.ledger.take_term(connection, lock.conversation, claim)
            return _Lease(claimed, claim.ends) if isinstance(claimed, int) else claimed

        return await group.writer.do(take)

    def _let_go(self, conversation: ConversationKey, lease: _Lease) -> None:
        if self._held.get(conversation) is lease:
            del self._held[conversation]

    def _start(self) -> None:
        if self._heartbeat is None:
            every = self._seconds / BEATS_PER_LEASE
            self._heartbeat = Heartbeat(partial(self._beat, self._writing()), every=every)

    def _beat(self, group: Group) -> None:
        """Put every end off; on the heartbeat's thread."""
        held = [(conversation, lease.term) for conversation, lease in self._held.copy().items()]
        if held:
            with suppress(StoreError):  # the next append says what is wrong, to who can answer
                group.writer.wait_for(partial(self._put_off, group, held))

    async def _renew(self, terms: Sequence[_Term]) -> Sequence[_Term]:
        """Put the ends of these terms off; those of them that stand."""
        group = self._writing()
        return await group.writer.do(partial(self._put_off, group, terms))

    def _put_off(self, group: Group, terms: Sequence[_Term]) -> Sequence[_Term]:
        ends = since_boot() + round(self._seconds * 1000)
        with group.writer.transaction() as connection:
            standing = group.ledger.put_off(connection, terms, ends)
        for conversation, term in standing:
            held = self._held.get(conversation)
            if held is not None and held.term == term:
                held.ends = ends
        return standing

    async def close(self) -> None:
        """Let every lease run out."""
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            await heartbeat.stop()


class _Lock:
    """The lock that somebody is about to take."""

    def __init__(self, locks: Locks, conversation: ConversationKey, files: ExitStack) -> None:
        self._locks = locks
        self._files = files
        self._open: dict[int, FileIO] = {}
        self.conversation = conversation
        self.generation = 0

    async def take(self) -> bool:
        """Whether it is had now."""
        file = self._open.get(self.generation)
        if file is None:
            file = await self._locks.open(self.conversation, self.generation, self._files)
            self._open[self.generation] = file
        return self._locks.take(file)

    def turn_to(self, generation: int) -> None:
        """Give it back, and mean another one from now on."""
        if generation != self.generation and self.generation in self._open:
            self._locks.give_back(self._open[self.generation])
        self.generation = generation
