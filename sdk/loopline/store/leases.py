"""Leases, which give one runner the right to run a conversation, and locks that show which harnesses are present.

The lock of a dead owner is free at once; the lease of an owner that does not renew it expires.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import Generic, TypeVar

from loopline.clock import boot_id
from loopline.errors import ConflictError, StoreBusy, StoreError
from loopline.store.database import Connection
from loopline.store.group_commit import CommitQueue, GroupCommit
from loopline.store.rows import LeaseOwner, StoreReader
from loopline.store.sqlite import make_private_folder, store_error
from loopline.store.store_threads import (
    OPEN_PAUSE_SECONDS,
    OPEN_SECONDS,
    ReaderThreads,
    TransactionThread,
)
from loopline.store.store_writer import LeaseClaim, StoreWriter
from loopline.timeline import ConversationKey

LEASE_SECONDS = 10.0
BEATS_PER_LEASE = 4
FIRST_POLL_SECONDS = 0.005
LAST_POLL_SECONDS = 0.05
OWNER_CHECK_SECONDS = 0.5
HANG_SECONDS = 300.0
"""The seconds after which a blocked event loop counts as hanging, and its leases are not renewed any more."""

Term = tuple[ConversationKey, int]

logger: logging.Logger = logging.getLogger("loopline")


@dataclass(slots=True)
class Lease:
    """A lease of this process; it expires at `ends`, in milliseconds since boot."""

    term: int
    ends: int


CommitsT = TypeVar("CommitsT", bound=CommitQueue[TransactionThread, StoreWriter])


class RenewedLeases(ABC, Generic[CommitsT]):
    """The leases of a process, each with a term, renewed by a heartbeat until they are given up.

    If the process is stopped for longer than a lease, or its event loop hangs, another process may take over; the next
    append with the old term raises LeaseLost.
    """

    def __init__(self, group_commit: Callable[[], CommitsT], seconds: float) -> None:
        self._group_commit = group_commit
        self._seconds = seconds
        self._leases: dict[ConversationKey, Lease] = {}
        self._heartbeat: Heartbeat | None = None

    @abstractmethod
    def hold(
        self, conversation: ConversationKey, *, wait: bool
    ) -> AbstractAsyncContextManager[int]:
        """Hold the lease of the conversation, with a new term, until the context is left; give the term.

        Raises:
            ConflictError: `wait` is False and another runner has the lease.
        """

    @contextmanager
    def renewing(self, conversation: ConversationKey, lease: Lease) -> Generator[None]:
        """Renew the lease until the context is left."""
        if self._heartbeat is None:
            beat = partial(self._beat, self._group_commit())
            self._heartbeat = Heartbeat(beat, interval=self._seconds / BEATS_PER_LEASE)
        self._leases[conversation] = lease
        try:
            yield
        finally:
            if self._leases.get(conversation) is lease:
                del self._leases[conversation]

    async def renew_if_ended(self, conversation: ConversationKey, term: int) -> bool:
        """Return whether the lease of that term is valid; if it may have expired, renew it if no other runner has taken over."""
        lease = self._leases.get(conversation)
        if lease is not None and lease.term == term and since_boot() <= lease.ends:
            return True
        group = self._group_commit()
        return bool(await group.thread.do(partial(self._renew, group, [(conversation, term)])))

    def _beat(self, group: CommitsT) -> None:
        """Renew every lease; runs on the heartbeat's thread."""
        terms = [(conversation, lease.term) for conversation, lease in self._leases.copy().items()]
        if terms:
            with suppress(StoreError):  # the next append raises it to a caller that can handle it
                group.thread.wait_for(partial(self._renew, group, terms))

    def _renew(self, group: CommitsT, terms: Sequence[Term]) -> Collection[Term]:
        """Renew the leases of these terms, on the writer's thread; return the terms that are still the newest."""
        ends = since_boot() + round(self._seconds * 1000)
        current = group.thread.transact(self._renewal(group, terms, ends))
        for conversation, term in current:
            lease = self._leases.get(conversation)
            if lease is not None and lease.term == term:
                lease.ends = ends
        return current

    @abstractmethod
    def _renewal(
        self, group: CommitsT, terms: Sequence[Term], ends: int
    ) -> Callable[[Connection], Collection[Term]]:
        """Return a write that extends the leases of these terms, and returns the terms that are still the newest."""

    async def close(self) -> None:
        """Stop the heartbeat, so that the leases expire."""
        heartbeat = self._heartbeat
        self._heartbeat = None
        if heartbeat is not None:
            await heartbeat.stop()


class Leases(RenewedLeases[GroupCommit]):
    """The leases of a process on a SQLite file, each with a lock."""

    def __init__(
        self,
        store: Path,
        reader: StoreReader,
        readers: ReaderThreads,
        group_commit: Callable[[], GroupCommit],
        seconds: float,
    ) -> None:
        super().__init__(group_commit, seconds)
        self._folder = store.with_name(f"{store.name}-locks")
        self._reader = reader
        self._readers = readers

    def prepare(self) -> None:
        """Create the folder of the locks and read the boot id, so that the first lease does not block on it.

        Raises:
            StoreError: the folder cannot be created, or the id cannot be read.
        """
        try:
            make_private_folder(self._folder)
            boot_id()
        except OSError as error:
            raise store_error(self._folder, error) from error

    @asynccontextmanager
    async def hold(self, conversation: ConversationKey, *, wait: bool) -> AsyncGenerator[int]:
        """Hold the lease of the conversation until the context is left; give its term."""
        lock = _ConversationLock(self._folder, conversation)
        try:
            lease = await self._acquire(lock, wait=wait)
            with self.renewing(conversation, lease):
                yield lease.term
        finally:
            lock.close()

    async def _acquire(self, lock: _ConversationLock, *, wait: bool) -> Lease:
        """Claim the lease, and poll until that succeeds; take it over if its owner has stopped renewing it.

        Raises:
            ConflictError: `wait` is False and another runner has the lease.
        """
        pause = FIRST_POLL_SECONDS
        next_check = 0.0
        while True:
            lease = await self._claim(lock)
            if lease is None and time.monotonic() >= next_check:
                generation = lock.generation
                lease = await self._take_over(lock)
                if lease is None and lock.generation != generation:
                    lease = await self._claim(lock)  # the newest generation may be free
                check_every = min(OWNER_CHECK_SECONDS, self._seconds / BEATS_PER_LEASE)
                next_check = time.monotonic() + check_every
            if lease is not None:
                return lease
            if not wait:
                raise ConflictError(f"conversation {lock.conversation.name!r} is being run already")
            # Not the port's clock: the other process uses the time of this machine.
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_POLL_SECONDS)

    async def _take_over(self, lock: _ConversationLock) -> Lease | None:
        """Take over the lease if its owner let it expire; return None if it did not, or is in this process."""
        owner = await self._owner(lock)
        lock.switch_to(owner.generation)
        if lock.conversation in self._leases or not owner.is_silent(boot_id(), since_boot()):
            return None
        await asyncio.sleep(
            LAST_POLL_SECONDS
        )  # a new owner may have the lock and not have written its lease yet
        if owner != await self._owner(lock):
            return None
        lock.switch_to(owner.generation + 1)
        return await self._claim(lock, takes_over=True)

    async def _owner(self, lock: _ConversationLock) -> LeaseOwner:
        self._group_commit()
        return await self._readers.read(partial(self._reader.owner, conversation=lock.conversation))

    async def _claim(self, lock: _ConversationLock, *, takes_over: bool = False) -> Lease | None:
        """Claim the lease with the lock of the newest generation; return None if the lock is taken.

        With `takes_over`, None is also returned if another process has started a newer generation.
        """
        group = self._group_commit()  # it may have been closed meanwhile
        while await _take(lock):
            claim = LeaseClaim(
                generation=lock.generation,
                takes_over=takes_over,
                boot=boot_id(),
                now=since_boot(),
                seconds=self._seconds,
            )
            take_term = partial(group.writer.take_term, conversation=lock.conversation, claim=claim)
            claimed = await group.write(lock.conversation, take_term)
            if isinstance(claimed, int):
                return Lease(claimed, claim.ends)
            lock.switch_to(claimed.generation)
            if takes_over:
                break
        return None

    def _renewal(
        self, group: GroupCommit, terms: Sequence[Term], ends: int
    ) -> Callable[[Connection], Collection[Term]]:
        return partial(group.writer.renew, terms=terms, ends=ends)


class _ConversationLock:
    """The lock of a conversation: a file for each generation, in a folder next to the store.

    A lock cannot be taken from a living process. If its owner is alive but has stopped renewing its lease, the next
    generation starts, with a new file. Two tasks of one process exclude each other too, because each opens the file
    itself.
    """

    def __init__(self, folder: Path, conversation: ConversationKey) -> None:
        self._folder = folder
        self._files: dict[int, FileIO] = {}
        self.conversation = conversation
        self.generation: int = 0

    def take(self) -> bool:
        """Take the lock if it is free; return whether it was taken. Opening the file blocks.

        Raises:
            StoreBusy: too many files are open.
            StoreError: the file cannot be opened or locked.
        """
        if self.generation not in self._files:
            self._files[self.generation] = self._open()
        try:
            fcntl.flock(self._files[self.generation], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise store_error(self._folder, error) from error
        return True

    def close(self) -> None:
        """Close the files, which releases the lock."""
        while self._files:
            self._files.popitem()[1].close()

    def switch_to(self, generation: int) -> None:
        """Release the lock, and use the file of another generation from now on."""
        if generation != self.generation and self.generation in self._files:
            fcntl.flock(self._files[self.generation], fcntl.LOCK_UN)
        self.generation = generation

    def _open(self) -> FileIO:
        """Open the lock file of the generation, and create it if it is missing; raise StoreError if that fails."""
        key = self.conversation
        names = (key.tenant, key.project, key.user, key.name)
        suffix = f".{self.generation}" if self.generation else ""
        path = f"{self._folder}/{sha256(repr(names).encode()).hexdigest()}{suffix}.lock"
        try:
            return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w")
        except OSError as error:
            raise store_error(self._folder, error) from error


async def _take(lock: _ConversationLock) -> bool:
    """Take the lock if it is free; return whether it was taken.

    If too many files are open, retry for `OPEN_SECONDS`, then raise StoreBusy.
    """
    deadline = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            return lock.take()
        except StoreBusy:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(OPEN_PAUSE_SECONDS)


class PresentHarnesses:
    """The harnesses that are present on a store: each holds the lock of a file named after its number."""

    def __init__(self, store: Path) -> None:
        self._folder = store.with_name(f"{store.name}-locks") / "harnesses"

    @asynccontextmanager
    async def enter(self, number: int) -> AsyncGenerator[None, None]:
        """Mark the harness with that number as present until the context is left.

        Raises:
            StoreError: the lock file cannot be created.
        """
        descriptor = await asyncio.to_thread(self._lock, f"{number}")
        try:
            yield
        finally:
            await asyncio.to_thread(self._release, f"{number}", descriptor)

    async def has(self, number: int) -> bool:
        """Return whether the harness with that number is present."""
        return await asyncio.to_thread(self._is_locked, f"{number}")

    def _lock(self, name: str) -> int:
        """Create and lock a file and return its descriptor; remove the files of dead processes.

        Raises:
            StoreError: the folder or the file cannot be used.
        """
        try:
            make_private_folder(self._folder.parent)
            make_private_folder(self._folder)
            for file in self._folder.iterdir():
                self._is_locked(file.name)
            while True:
                descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if (self._folder / name).exists():
                    return descriptor
                os.close(descriptor)  # another process removed the file before the lock was taken
        except OSError as error:
            raise store_error(self._folder, error) from error

    def _release(self, name: str, descriptor: int) -> None:
        (self._folder / name).unlink(missing_ok=True)
        os.close(descriptor)

    def _is_locked(self, name: str) -> bool:
        """Return whether a process has the lock of the file; if not, remove the file. A missing file is not locked.

        Raises:
            StoreError: the file cannot be opened.
        """
        file = self._folder / name
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise store_error(file, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            with suppress(FileNotFoundError):
                file.unlink()
            return False
        finally:
            os.close(descriptor)


class Heartbeat:
    """Calls `beat` on a thread at an interval, until it is stopped or the event loop hangs.

    It continues while the event loop is blocked for less than `hang_seconds`, and starts again when a hanging loop
    continues. In a stopped process (SIGSTOP) the thread is stopped too.
    """

    def __init__(
        self, beat: Callable[[], None], *, interval: float, hang_seconds: float = HANG_SECONDS
    ) -> None:
        """Start the thread for the running loop."""
        self._beat = beat
        self._interval_seconds = interval
        self._hang_seconds = hang_seconds
        self._loop = asyncio.get_running_loop()
        self._last_tick = time.monotonic()
        self._tick_requested = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loopline-lease", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop the thread, after a running beat."""
        self._stopped.set()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_seconds) and self._request_tick():
            if time.monotonic() - self._last_tick < self._hang_seconds:
                self._beat()

    def _request_tick(self) -> bool:
        """Request a tick of the event loop if the last request was answered; return False if the loop is closed."""
        if not self._tick_requested:
            self._tick_requested = True
            try:
                self._loop.call_soon_threadsafe(self._tick, time.monotonic())
            except RuntimeError:  # the loop was closed
                return False
        return True

    def _tick(self, requested_at: float) -> None:
        """Note that the event loop works, and log a warning if it was blocked for more than 4 intervals."""
        self._last_tick = time.monotonic()
        self._tick_requested = False
        blocked = self._last_tick - requested_at
        if blocked > 4 * self._interval_seconds:
            logger.warning(
                "the event loop was blocked for %.0f s: await what takes long, or run it in a thread, "
                "as tools that are plain functions are",
                blocked,
            )


def since_boot() -> int:
    """Return the milliseconds since the machine was started, including the time that it was suspended."""
    clock: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000
