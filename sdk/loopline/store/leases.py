"""Leases: who may run a conversation, and which harnesses are present. A dead owner loses its lock, a silent owner's lease ends."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from io import FileIO
from pathlib import Path

from loopline.clock import boot_id
from loopline.errors import ConflictError, StoreBusy, StoreError
from loopline.store.group_commit import GroupCommit
from loopline.store.rows import LeaseOwner, StoreReader
from loopline.store.sqlite import make_private_folder, store_error
from loopline.store.store_threads import OPEN_PAUSE_SECONDS, OPEN_SECONDS, ReaderThreads
from loopline.store.store_writer import LeaseClaim
from loopline.timeline import ConversationKey

LEASE_SECONDS = 10.0
BEATS_PER_LEASE = 4
FIRST_POLL_SECONDS = 0.005
LAST_POLL_SECONDS = 0.05
OWNER_CHECK_SECONDS = 0.5
HANG_SECONDS = 300.0
"""An event loop that has been blocked for so long hangs: its leases are renewed no more."""

_Term = tuple[ConversationKey, int]

logger: logging.Logger = logging.getLogger("loopline")


@dataclass(slots=True)
class _Lease:
    """A lease held by this process; `ends` is milliseconds since boot."""

    term: int
    ends: int


class Leases:
    """The leases of a process: a term and a lock for each, renewed until they are given up.

    A process that is stopped for longer than a lease, or whose loop hangs, may find that another
    has taken over: it learns that from its next append.
    """

    def __init__(
        self,
        store: Path,
        reader: StoreReader,
        readers: ReaderThreads,
        group_commit: Callable[[], GroupCommit],
        seconds: float,
    ) -> None:
        self._folder = store.with_name(f"{store.name}-locks")
        self._reader = reader
        self._readers = readers
        self._group_commit = group_commit
        self._seconds = seconds
        self._leases: dict[ConversationKey, _Lease] = {}
        self._heartbeat: Heartbeat | None = None

    def prepare(self) -> None:
        """Do what blocks before the first lease: make the folder of the locks, and read the id of the boot.

        Raises:
            StoreError: the folder cannot be made, or the id cannot be read now.
        """
        try:
            make_private_folder(self._folder)
            boot_id()
        except OSError as error:
            raise store_error(self._folder, error) from error

    def hold(self, conversation: ConversationKey, *, wait: bool) -> HeldLease:
        """Return a context that holds the right to run the conversation, as a new term, until it is left.

        It raises a ConflictError if `wait` is False and another runner holds the right.
        """
        return HeldLease(self, _ConversationLock(self._folder, conversation), wait=wait)

    async def take(self, lock: _ConversationLock, *, wait: bool) -> _Lease:
        """Take the lease of a conversation, and renew it from now on.

        Raises:
            ConflictError: `wait` is False and another runner holds it.
        """
        lease = await self._acquire(lock, wait=wait)
        if self._heartbeat is None:
            beat = partial(self._beat, self._group_commit())
            self._heartbeat = Heartbeat(beat, interval=self._seconds / BEATS_PER_LEASE)
        self._leases[lock.conversation] = lease
        return lease

    def give_up(self, conversation: ConversationKey, lease: _Lease) -> None:
        """Renew the lease no more."""
        if self._leases.get(conversation) is lease:
            del self._leases[conversation]

    async def _acquire(self, lock: _ConversationLock, *, wait: bool) -> _Lease:
        pause = FIRST_POLL_SECONDS
        next_check = 0.0
        while True:
            lease = await self._claim(lock)
            if lease is None and time.monotonic() >= next_check:
                lease = await self._take_over(lock)
                check_every = min(OWNER_CHECK_SECONDS, self._seconds / BEATS_PER_LEASE)
                next_check = time.monotonic() + check_every
            if lease is not None:
                return lease
            if not wait:
                raise ConflictError(f"conversation {lock.conversation.name!r} is being run already")
            # Not by the port's clock: the other process lives in the time of this machine.
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_POLL_SECONDS)

    async def renew_if_ended(self, conversation: ConversationKey, term: int) -> bool:
        """Return whether the lease of that term renew_if_ended; once it may have ended, only if it can be renewed."""
        lease = self._leases.get(conversation)
        if lease is not None and lease.term == term and since_boot() <= lease.ends:
            return True
        group = self._group_commit()
        return bool(await group.thread.do(partial(self._renew, group, [(conversation, term)])))

    async def _take_over(self, lock: _ConversationLock) -> _Lease | None:
        """Return a lease if the owner of the lock has been silent until its own ended."""
        owner = await self._owner(lock)
        lock.switch_to(owner.generation)
        if lock.conversation in self._leases or not owner.is_silent(boot_id(), since_boot()):
            return None
        await asyncio.sleep(LAST_POLL_SECONDS)  # another may have the lock and be about to say so
        if owner != await self._owner(lock):
            return None
        lock.switch_to(owner.generation + 1)
        return await self._claim(lock, takes_over=True)

    async def _owner(self, lock: _ConversationLock) -> LeaseOwner:
        self._group_commit()
        return await self._readers.read(partial(self._reader.owner, conversation=lock.conversation))

    async def _claim(self, lock: _ConversationLock, *, takes_over: bool = False) -> _Lease | None:
        """Return a lease if nobody has the lock of the newest generation; to take over is tried only once."""
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
                return _Lease(claimed, claim.ends)
            lock.switch_to(claimed.generation)
            if takes_over:
                break
        return None

    def _beat(self, group: GroupCommit) -> None:
        """Renew every lease; on the heartbeat's thread."""
        terms = [(conversation, lease.term) for conversation, lease in self._leases.copy().items()]
        if terms:
            with suppress(StoreError):  # the next append reports it to a caller that can answer
                group.thread.wait_for(partial(self._renew, group, terms))

    def _renew(self, group: GroupCommit, terms: Sequence[_Term]) -> Sequence[_Term]:
        """Renew the leases of these terms, on the writer's thread; return those that stand."""
        ends = since_boot() + round(self._seconds * 1000)
        current = group.thread.transact(partial(group.writer.renew, terms=terms, ends=ends))
        for conversation, term in current:
            lease = self._leases.get(conversation)
            if lease is not None and lease.term == term:
                lease.ends = ends
        return current

    async def close(self) -> None:
        """Stop renewing, so that every lease ends."""
        heartbeat = self._heartbeat
        self._heartbeat = None
        if heartbeat is not None:
            await heartbeat.stop()


class HeldLease:
    """The lease of a conversation while the context lasts; it gives the term."""

    def __init__(self, leases: Leases, lock: _ConversationLock, *, wait: bool) -> None:
        self._leases = leases
        self._lock = lock
        self._wait = wait
        self._lease: _Lease | None = None

    async def __aenter__(self) -> int:
        try:
            self._lease = await self._leases.take(self._lock, wait=self._wait)
        except BaseException:
            self._lock.close()
            raise
        return self._lease.term

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._lease is not None:
                self._leases.give_up(self._lock.conversation, self._lease)
        finally:
            self._lock.close()


class _ConversationLock:
    """The lock of a conversation: files in a folder beside the store, one for each generation.

    The next generation is begun when the owner of a lock is alive and silent, for such a lock cannot
    be taken away. Two tasks of a process exclude each other too, for each opens the file anew.
    """

    def __init__(self, folder: Path, conversation: ConversationKey) -> None:
        self._folder = folder
        self._files: dict[int, FileIO] = {}
        self.conversation = conversation
        self.generation: int = 0

    def take(self) -> bool:
        """Take the lock if nobody has it; return whether it is taken. It blocks while a file is opened."""
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
        """Release the lock, and use that of another generation from now on."""
        if generation != self.generation and self.generation in self._files:
            fcntl.flock(self._files[self.generation], fcntl.LOCK_UN)
        self.generation = generation

    def _open(self) -> FileIO:
        key = self.conversation
        names = (key.tenant, key.project, key.user, key.name)
        suffix = f".{self.generation}" if self.generation else ""
        path = f"{self._folder}/{sha256(repr(names).encode()).hexdigest()}{suffix}.lock"
        try:
            return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w")
        except OSError as error:
            raise store_error(self._folder, error) from error


async def _take(lock: _ConversationLock) -> bool:
    """Take the lock if nobody has it; return whether it is taken. While too many files are open, try again for a while."""
    deadline = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            return lock.take()
        except StoreBusy:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(OPEN_PAUSE_SECONDS)


class PresentHarnesses:
    """The harnesses that are present on a store, by number; the lock of a dead process is free."""

    def __init__(self, store: Path) -> None:
        self._folder = store.with_name(f"{store.name}-locks") / "harnesses"

    @asynccontextmanager
    async def enter(self, number: int) -> AsyncGenerator[None, None]:
        """Count the harness of that number as present until the context is left.

        Raises:
            StoreError: the file of the lock cannot be made.
        """
        descriptor = await asyncio.to_thread(self._lock, f"{number}")
        try:
            yield
        finally:
            await asyncio.to_thread(self._release, f"{number}", descriptor)

    async def has(self, number: int) -> bool:
        """Return whether the harness of that number is present."""
        return await asyncio.to_thread(self._is_locked, f"{number}")

    def _lock(self, name: str) -> int:
        """Lock a new file and return its descriptor; remove the files of processes that have died."""
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
                os.close(descriptor)  # another process removed the file before it was locked
        except OSError as error:
            raise store_error(self._folder, error) from error

    def _release(self, name: str, descriptor: int) -> None:
        (self._folder / name).unlink(missing_ok=True)
        os.close(descriptor)

    def _is_locked(self, name: str) -> bool:
        """Return whether a process holds the lock of the file; remove the file if none does."""
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
    """Calls `beat` on a thread, again and again, until it is stopped or the event loop hangs.

    It beats for a loop that is blocked, for that one goes on; it beats again once a loop that hung
    has gone on. A stopped process has no heartbeat, for its threads are stopped too.
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
        """Stop, after a beat that has begun."""
        self._stopped.set()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_seconds) and self._request_tick():
            if time.monotonic() - self._last_tick < self._hang_seconds:
                self._beat()

    def _request_tick(self) -> bool:
        """Have the loop tick, unless it has yet to answer; return whether the loop is open."""
        if not self._tick_requested:
            self._tick_requested = True
            try:
                self._loop.call_soon_threadsafe(self._tick, time.monotonic())
            except RuntimeError:  # the loop was closed
                return False
        return True

    def _tick(self, requested_at: float) -> None:
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
    """Return the milliseconds since the machine was started, those it slept through included."""
    clock: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000
