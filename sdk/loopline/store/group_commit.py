"""Group commit: waiting writes of a process share a transaction and a sync of the log."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from loopline.errors import LooplineError, StoreError
from loopline.store.database import Connection
from loopline.store.rows import AppendRequest
from loopline.store.sqlite import RETRY_SECONDS
from loopline.store.store_threads import JobOutcome, LogSync, TransactionThread, WriterThread
from loopline.store.store_writer import StoreWriter
from loopline.tasks import finish, wait_until_done
from loopline.timeline import Block, ConversationKey

T = TypeVar("T")

GROUP_LIMIT = 256
"""The most writes in one transaction; other processes wait for the store during it."""
DRAIN_SECONDS = 10.0
TOGETHER_SECONDS = 0.01
"""The time in which writes to different conversations are collected for one commit."""
PATIENCE_SECONDS = 0.05
"""How long the event loop retries while another process writes; after that the thread waits."""


@dataclass(slots=True, eq=False)
class PendingWrite(Generic[T]):
    """A write with its result or its refusal.

    `outcome` is the future of a caller that waits, and `finished` says whether the outcome is known. A write is `quick`
    if the event loop may run it itself. In PostgreSQL it gives up to wait for its conversation at `deadline`.
    """

    conversation: ConversationKey
    work: Callable[[Connection], T]
    survives_power_loss: bool = False
    quick: bool = True
    deadline: float = 0.0
    results: list[T] = field(default_factory=list[T])
    refusal: LooplineError | None = None
    outcome: asyncio.Future[T] | None = None
    finished: bool = False

    def attempt(self, connection: Connection) -> None:
        """Run the work, and store its result or its refusal."""
        try:
            self.results.append(self.work(connection))
        except LooplineError as refusal:
            self.refusal = refusal

    def reset(self) -> None:
        """Forget the outcome of an attempt that was rolled back."""
        self.results.clear()
        self.refusal = None

    def result(self) -> T:
        """Return the result, or raise the refusal as a LooplineError."""
        if self.refusal is not None:
            raise self.refusal
        return self.results[0]

    def finish(self, failure: BaseException | None = None) -> None:
        """Resolve the caller's future; `failure` is an error of the transaction, which all its writes share."""
        self.finished = True
        outcome = self.outcome
        error = failure or self.refusal
        if outcome is None or outcome.done():  # the caller was cancelled
            return
        if error is None:
            outcome.set_result(self.results[0])
        else:
            outcome.set_exception(error)

    async def wait_for_outcome(self) -> T:
        """Wait for the result and return it; a cancellation is raised after the result is known."""
        loop = asyncio.get_running_loop()
        self.outcome = loop.create_future()
        try:
            return await self.outcome
        except asyncio.CancelledError:
            if not self.finished:  # the cancellation reached the future too, so wait for a new one
                self.outcome = loop.create_future()
                await wait_until_done(self.outcome)
            raise


ThreadT_co = TypeVar("ThreadT_co", bound=TransactionThread, covariant=True)
WriterT_co = TypeVar("WriterT_co", bound=StoreWriter, covariant=True)


class CommitQueue(ABC, Generic[ThreadT_co, WriterT_co]):
    """The waiting writes of a process, several of which share a commit."""

    def __init__(self, thread: ThreadT_co, writer: WriterT_co) -> None:
        self.thread: ThreadT_co = thread
        self.writer: WriterT_co = writer
        self._queue = deque[PendingWrite[Any]]()
        self._next: asyncio.Handle | None = None
        self._busy: asyncio.Future[None] | None = None
        self._runs = set[asyncio.Task[None]]()

    @abstractmethod
    async def append(self, request: AppendRequest) -> list[Block]:
        """Append and return every block after `seen`; a cancellation is raised after the outcome is known."""

    async def run(
        self, work: Callable[[Connection], None], then: Callable[[], None] | None = None
    ) -> None:
        """Run a long write in a separate transaction on the thread, and then `then` on the thread.

        A cancellation is raised after all of it has ended.
        """
        run = asyncio.create_task(self._run(work, then))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        await finish(run)

    async def _run(
        self, work: Callable[[Connection], None], then: Callable[[], None] | None
    ) -> None:
        await self._transact_long(work)
        if then is not None:
            await self.thread.do(then)

    @abstractmethod
    async def _transact_long(self, work: Callable[[Connection], None]) -> None:
        """Run a long write in a transaction, and return when it survives a power loss."""

    async def drain(self) -> None:
        """Wait for running and queued writes; those that do not start within `DRAIN_SECONDS` fail."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while (under_way := self._under_way()) or self._queue:
            if under_way:  # their errors reach their own callers
                await asyncio.wait(under_way)
            else:
                await asyncio.sleep(RETRY_SECONDS)
            if time.monotonic() > deadline:
                while self._queue:
                    error = StoreError("the log was closed before this could be stored")
                    self._queue.popleft().finish(error)

    def _under_way(self) -> list[asyncio.Future[None]]:
        return [*self._runs, *filter(None, [self._busy])]

    async def _enqueue(self, pending: PendingWrite[T]) -> T:
        """Commit the write with others soon, and return its result."""
        self._queue.append(pending)
        if self._busy is None and self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._commit_next)
        return await pending.wait_for_outcome()

    @abstractmethod
    def _commit_next(self) -> None:
        """Commit the next writes of the queue."""


class GroupCommit(CommitQueue[WriterThread, StoreWriter]):
    """Commits writes on the event loop: a single write at once, and several of the same tick together.

    The thread commits writes that may take long, and all writes while it has a job or the disk is slow. A write that must
    survive a power loss is acknowledged after the log was synced.
    """

    def __init__(self, thread: WriterThread, writer: StoreWriter, sync: LogSync) -> None:
        super().__init__(thread, writer)
        self.sync: LogSync = sync
        self._newest: ConversationKey | None = None
        self._newest_at = 0.0
        self._patient_until = 0.0

    async def append(self, request: AppendRequest) -> list[Block]:
        """Append and return every block after `seen`; a cancellation is raised after the outcome is known."""
        return await self.write(
            request.conversation,
            partial(self.writer.append, request=request),
            survives_power_loss=request.survives_power_loss,
            quick=not request.large and self.has_little_after(request.conversation, request.seen),
        )

    async def write(
        self,
        conversation: ConversationKey,
        work: Callable[[Connection], T],
        *,
        survives_power_loss: bool = False,
        quick: bool = True,
    ) -> T:
        """Run `work` as a write of that conversation, and return its result.

        A write is `quick` if it reads little and does not wait for files. A cancellation is raised after the outcome is
        known.

        Raises:
            StoreError: the write must survive a power loss and the log cannot be synced; nothing was stored.
        """
        if survives_power_loss:
            self.sync.check()
        pending = PendingWrite(conversation, work, survives_power_loss, quick)
        is_alone = self._is_alone(conversation)
        if quick and is_alone and self._commit_at_once([pending]):
            if survives_power_loss and pending.refusal is None:
                await finish(self.sync.begin())
            return pending.result()
        return await self._enqueue(pending)

    async def run(
        self, work: Callable[[Connection], None], then: Callable[[], None] | None = None
    ) -> None:
        """Run a long write in a separate transaction on the thread, sync the log, and then run `then` on the thread.

        Raises:
            StoreError: the log cannot be synced; nothing was stored.
        """
        self.sync.check()
        await super().run(work, then)

    async def _transact_long(self, work: Callable[[Connection], None]) -> None:
        await self.thread.run(work)
        await self.sync.begin()

    def has_little_after(self, conversation: ConversationKey, seq: int) -> bool:
        """Return whether probably few blocks follow that seq; False if that is not known without waiting."""
        has_little = self.writer.states.has_little_after(conversation, seq)
        if has_little is not None:
            return has_little
        return self.thread.check_at_once(
            partial(self.writer.states.finds_little_after, conversation=conversation, seq=seq)
        )

    def has_nothing_after(self, conversation: ConversationKey, seq: int) -> bool:
        """Return whether the conversation ends at that seq; False if that is not known without waiting."""
        return self.thread.check_at_once(
            partial(self.writer.states.is_head, conversation=conversation, seq=seq)
        )

    def _under_way(self) -> list[asyncio.Future[None]]:
        return [*super()._under_way(), *filter(None, [self.sync.running])]

    def _is_alone(self, conversation: ConversationKey) -> bool:
        """Return whether to commit the write at once: none is queued, runs, or was just to another conversation."""
        now = time.monotonic()
        newest = self._newest
        newest_at = self._newest_at
        self._newest = conversation
        self._newest_at = now
        is_alone = newest == conversation or now - newest_at > TOGETHER_SECONDS
        return is_alone and self._busy is None and not self._queue

    def _commit_at_once(self, batch: Sequence[PendingWrite[Any]]) -> bool:
        """Commit quick writes on the event loop if the thread is idle and the lock is free; return whether it did.

        Raises:
            StoreError: the transaction failed; nothing was stored.
        """
        work = partial(self.writer.write, batch=batch)
        return self.thread.is_idle and bool(self.thread.commit_at_once(work))

    def _commit_next(self) -> None:
        """Commit the next batch on the event loop, retry it soon if the lock is taken, or pass it to the thread."""
        self._next = None
        if self._busy is not None:
            return
        batch = self._next_batch()
        if not batch:
            return
        loop = asyncio.get_running_loop()
        commit = JobOutcome[bool]()
        with commit as committed:
            committed.append(_is_quick(batch) and self._commit_at_once(batch))
        if committed != [False]:
            self._patient_until = 0.0
            self._tell(batch, commit.error)
            if self._queue:
                self._next = loop.call_soon(self._commit_next)
        elif self._is_patient(batch):
            self._queue.extendleft(reversed(batch))
            self._next = loop.call_later(RETRY_SECONDS, self._commit_next)
        else:
            self._busy = loop.create_future()
            by_thread = partial(self.thread.transact, partial(self.writer.write, batch=batch))
            self.thread.submit(by_thread, partial(self._finish, batch, self._busy))

    def _next_batch(self) -> Sequence[PendingWrite[Any]]:
        """Take the next writes from the queue; refuse writes that must survive a power loss if the log cannot be synced."""
        batch: list[PendingWrite[Any]] = []
        while self._queue and len(batch) < GROUP_LIMIT:
            pending = self._queue.popleft()
            try:
                if pending.survives_power_loss:
                    self.sync.check()
            except StoreError as error:
                pending.finish(error)
            else:
                batch.append(pending)
        return batch

    def _is_patient(self, batch: Sequence[PendingWrite[Any]]) -> bool:
        """Return whether the event loop should retry soon: the batch is quick and `PATIENCE_SECONDS` are not over."""
        if not (_is_quick(batch) and self.thread.is_idle):
            return False
        now = time.monotonic()
        self._patient_until = self._patient_until or now + PATIENCE_SECONDS
        return now < self._patient_until

    def _finish(
        self,
        batch: Sequence[PendingWrite[Any]],
        done: asyncio.Future[None],
        commit: JobOutcome[None],
    ) -> None:
        """Report the outcome of the thread's commit to the callers, and begin the next commit."""
        self._busy = None
        self._patient_until = 0.0
        done.set_result(None)
        self._tell(batch, commit.error)
        if self._queue:
            self._commit_next()

    def _tell(self, batch: Sequence[PendingWrite[Any]], failure: BaseException | None) -> None:
        """Resolve the callers' futures; those of writes that must survive a power loss are resolved after a sync."""
        synced: list[PendingWrite[Any]] = []
        for pending in batch:
            if failure is None and pending.survives_power_loss and pending.refusal is None:
                synced.append(pending)
            else:
                pending.finish(failure)
        if synced:
            self.sync.begin().add_done_callback(partial(_tell_synced, synced))


def _is_quick(batch: Sequence[PendingWrite[Any]]) -> bool:
    return all(pending.quick for pending in batch)


def _tell_synced(batch: Sequence[PendingWrite[Any]], disk: asyncio.Future[None]) -> None:
    for pending in batch:
        pending.finish(disk.exception())
