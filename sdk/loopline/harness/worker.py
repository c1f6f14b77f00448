"""A worker: takes the turns of bundles that wait in a store, and runs them within limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from random import sample
from typing import Any, Protocol, Unpack

from loopline import timeline as tl
from loopline.bundle import Bundle, Setting
from loopline.clock import SystemClock
from loopline.conversations import Recovery, bundle_of, is_unbegun, turn_to_take
from loopline.errors import ConflictError, LooplineError, StoreError
from loopline.harness.harness import Harness, OpenOptions
from loopline.harness.model_choice import ModelChoice
from loopline.harness.read_only_store import StorePlace, import_postgres, parse_store_url
from loopline.tasks import cancel_all

UNBEGUN = timedelta(days=1)
"""How old a first message may be that was stored by a process that died before it had marked its conversation."""
RETRY_SECONDS = 0.25
"""How long a turn waits for a free slot of its tenant, user or bundle before the worker tries again."""
SWEEP_SECONDS = 5.0
"""How often a worker looks through all conversations with an unfinished turn."""
LEASED_SECONDS = 0.03
"""How long a worker waits before it looks once more at a conversation that another process has leased: a process that
submits its first message has it for a moment only."""
REOPEN_SECONDS = 1.0
"""How long a worker waits before it uses a channel of wake-ups again that has failed."""
logger: logging.Logger = logging.getLogger("loopline")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """How many turns run at once: `turns` in this worker; the others in all workers of the store, 0 without a limit.

    Raises:
        LooplineError: a limit is too low.
    """

    turns: int = 8
    tenant_turns: int = 0
    user_turns: int = 0
    bundle_turns: int = 0

    def __post_init__(self) -> None:
        if self.turns < 1 or min(self.tenant_turns, self.user_turns, self.bundle_turns) < 0:
            raise LooplineError("a worker runs 1 turn or more, and a limit is 0 or more")

    def slots(self, conversation: tl.ConversationKey, bundle: str) -> Iterator[_Slots]:
        """Yield a group of slots for each limit above 0; a turn of the conversation needs one slot of each group.

        A slot is the lease of a name that no conversation of a user can have, because its user or project is empty.
        """
        tenant, user = conversation.tenant, conversation.user
        if self.bundle_turns:
            yield _Slots(f"bundle {bundle}", "", "", self.bundle_turns)
        if self.tenant_turns:
            yield _Slots("slot", tenant, "", self.tenant_turns)
        if self.user_turns:
            yield _Slots("slot", tenant, user, self.user_turns)


@dataclass(frozen=True, slots=True)
class _Slots:
    """A number of slots, each of which one turn can have at a time, in any process."""

    name: str
    tenant: str
    user: str
    count: int

    async def take(self, log: tl.TimelineLog, slot_leases: AsyncExitStack) -> bool:
        """Lease a free slot until `slot_leases` is closed; return False if all slots are leased.

        The slots are tried in random order, so that workers rarely try the same one.
        """
        for number in sample(range(self.count), self.count):
            key = tl.ConversationKey(
                name=f"{self.name} {number}", user=self.user, tenant=self.tenant, project=""
            )
            with suppress(ConflictError):
                await slot_leases.enter_async_context(log.lease(key, wait=False))
                return True
        return False


@dataclass(slots=True)
class WaitingConversations:
    """The conversations that may have work, each once. The next one is that of the tenant that waits for the longest time."""

    by_tenant: dict[str, dict[tl.ConversationKey, None]] = field(
        default_factory=dict[str, dict[tl.ConversationKey, None]]
    )

    def add(self, conversation: tl.ConversationKey) -> None:
        """Add a conversation behind the others of its tenant."""
        self.by_tenant.setdefault(conversation.tenant, {})[conversation] = None

    def take(self) -> tl.ConversationKey | None:
        """Remove and return the next conversation, or None. Tenants take turns, so its tenant goes to the end."""
        for tenant, conversations in self.by_tenant.items():
            conversation = next(iter(conversations))
            del conversations[conversation]
            del self.by_tenant[tenant]
            if conversations:
                self.by_tenant[tenant] = conversations
            return conversation
        return None


class WakeUps(Protocol):
    """A channel that tells the workers of a store which conversations have work.

    It may lose, repeat and reorder them: a sweep finds the rest.
    """

    async def send(self, conversation: tl.ConversationKey) -> None:
        """Wake a worker for a conversation that has work, as after a turn that was handed over."""
        ...

    def receive(self) -> AsyncGenerator[tl.ConversationKey | None, None]:
        """Yield each conversation that may have work, and None if the worker must look for them itself; end at `close`."""
        ...

    async def close(self) -> None:
        """Send the wake-ups that wait, and close the channel."""
        ...


class Worker:
    """Runs the waiting turns of open harnesses over one log: any number of workers may use the log.

    The lease of a conversation keeps its turns in order. A wake-up says where to look, and a sweep finds what no wake-up
    said. A turn that is cut off twice is left until it is put back.
    """

    def __init__(
        self,
        harnesses: Mapping[str, Harness[Any]],
        wake_ups: WakeUps,
        limits: WorkerLimits | None = None,
        *,
        sweep_seconds: float = SWEEP_SECONDS,
        on_outcome: Callable[[Recovery], None] | None = None,
    ) -> None:
        """`harnesses` are the open harnesses by the id of their bundle. `on_outcome` is called with each outcome."""
        self._harnesses = harnesses
        self.log: tl.TimelineLog = next(iter(harnesses.values())).log
        self.wake_ups: WakeUps = wake_ups
        self._limits = limits or WorkerLimits()
        self._clock = SystemClock()
        self._sweep_seconds = sweep_seconds
        self._on_outcome = on_outcome
        self._waiting = WaitingConversations()
        self._running: dict[tl.ConversationKey, asyncio.Task[None]] = {}
        self._again: set[tl.ConversationKey] = set()
        self._leased: set[tl.ConversationKey] = set()
        self._heads_without_work: dict[tl.ConversationKey, int] = {}
        self._due_elsewhere: dict[tl.ConversationKey, datetime] = {}
        self._changed = asyncio.Event()
        self._sweep_now = asyncio.Event()
        self._stopping = False

    @property
    def is_stopping(self) -> bool:
        """Whether it starts no further turn."""
        return self._stopping

    def wake(self, conversation: tl.ConversationKey) -> None:
        """Look for a turn of the conversation."""
        self._heads_without_work.pop(conversation, None)
        self._add(conversation)

    def _add(self, conversation: tl.ConversationKey) -> None:
        if conversation in self._running:
            self._again.add(conversation)
        else:
            self._waiting.add(conversation)
            self._changed.set()

    async def run(self) -> None:
        """Run turns until `stop` is called; the turns that run then continue."""
        looking = [asyncio.create_task(self._receive()), asyncio.create_task(self._sweep())]
        try:
            while not self._stopping:
                self._start_waiting()
                self._changed.clear()
                await self._changed.wait()
        finally:
            await cancel_all(*looking)

    def stop(self) -> None:
        """Start no further turn."""
        self._stopping = True
        self._changed.set()

    async def drain(self, seconds: float) -> None:
        """Start no turn, wait at most `seconds` for running turns, and hand the rest over to other workers."""
        self.stop()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=seconds)
        unfinished = list(self._running)
        await asyncio.gather(*(harness.hand_over() for harness in self._harnesses.values()))
        if self._running:
            await asyncio.wait(self._running.values())
        for conversation in unfinished:
            with suppress(LooplineError):
                await self.wake_ups.send(conversation)

    def _start_waiting(self) -> None:
        """Start waiting conversations, in the order of the queue, until `turns` of them run or none waits."""
        while len(self._running) < self._limits.turns:
            conversation = self._waiting.take()
            if conversation is None:
                return
            task = asyncio.create_task(self._run(conversation))
            self._running[conversation] = task
            task.add_done_callback(partial(self._end, conversation))

    def _end(self, conversation: tl.ConversationKey, _: asyncio.Task[None]) -> None:
        del self._running[conversation]
        if conversation in self._again:
            self._again.discard(conversation)
            self._add(conversation)
        self._changed.set()

    async def _run(self, conversation: tl.ConversationKey) -> None:
        """Run the next turn of the conversation, if it has one that this worker may run now.

        Errors are logged. Outcomes are passed to `on_outcome`; after a resumed turn the conversation is tried again.
        If another process runs the conversation, it is tried once more before this is reported.
        """
        try:
            outcome = await self._run_next(conversation)
        except LooplineError as error:
            logger.warning("%r was not run: %s", conversation.name, error)
        except Exception:  # no caller awaits this task, and other conversations have work too
            logger.exception("%r was not run", conversation.name)
        else:
            if outcome is None:
                self._leased.discard(conversation)
                return
            if outcome.status == "running" and conversation not in self._leased:
                self._leased.add(conversation)
                asyncio.get_running_loop().call_later(LEASED_SECONDS, self._add, conversation)
                return
            self._leased.discard(conversation)
            if outcome.status == "resumed":
                self._again.add(conversation)  # it may have another turn
            elif outcome.status in ("waiting", "skipped"):
                with suppress(StoreError):  # it is then only looked at again
                    summary = await self.log.find(conversation)
                    self._heads_without_work[conversation] = summary.head if summary else 0
            if self._on_outcome is not None:
                self._on_outcome(outcome)

    async def _run_next(self, conversation: tl.ConversationKey) -> Recovery | None:
        """Run the next turn of the conversation and return its outcome; None without a turn to take or a free slot.

        Scheduled messages that are due are appended first. Without a free slot, it is tried again after 0.25 s.
        A turn of a bundle that this worker does not run is skipped; a turn that names no bundle is run by the only one. A
        paused turn does not occupy a slot.
        """
        first = next(iter(self._harnesses.values()))
        timeline = await first.newest_timeline(conversation)
        if timeline.schedule.messages:
            await self._begin_scheduled(conversation)
            timeline = await first.newest_timeline(conversation)
            self._note_due_elsewhere(conversation, timeline.schedule)
        summary = await self.log.find(conversation)
        turn = None if summary is None else turn_to_take(timeline, summary.inherited)
        if turn is None:
            return None
        bundle = bundle_of(timeline, turn)
        is_only = len(self._harnesses) == 1
        harness = first if is_only and not bundle else self._harnesses.get(bundle)
        if harness is None:
            reason = f"this worker does not run the bundle {bundle!r}"
            return Recovery(
                conversation, tl.turn_id(turn.number), "skipped", reason=reason, bundle=bundle
            )
        async with AsyncExitStack() as slot_leases:
            if not turn.is_paused:
                for slots in self._limits.slots(conversation, harness.bundle.id):
                    if not await slots.take(self.log, slot_leases):
                        asyncio.get_running_loop().call_later(
                            RETRY_SECONDS, self._add, conversation
                        )
                        return None
            return await harness.run_next(conversation, is_only=is_only)

    async def _begin_scheduled(self, conversation: tl.ConversationKey) -> None:
        """Append the scheduled messages that are due; if the next one is due before a sweep, look again then."""
        dues = [
            await harness.recoveries().begin_scheduled(conversation)
            for harness in self._harnesses.values()
        ]
        due = min((time for time in dues if time is not None), default=None)
        if due is not None:
            seconds = (due - self._clock.now()).total_seconds()
            if seconds <= self._sweep_seconds:
                asyncio.get_running_loop().call_later(max(0.0, seconds), self.wake, conversation)

    def _note_due_elsewhere(self, conversation: tl.ConversationKey, schedule: tl.Schedule) -> None:
        """If only messages of other bundles are due, store the due time, so that sweeps skip the conversation."""
        now = self._clock.now()
        senders = [message.prompt.sender for message in schedule.messages if message.at <= now]
        bundles = {sender.bundle for sender in senders if sender is not None}
        is_elsewhere = None not in senders and bundles.isdisjoint(self._harnesses)
        if senders and is_elsewhere and schedule.due is not None:
            self._due_elsewhere[conversation] = schedule.due

    async def _receive(self) -> None:
        """Wake the conversations of received wake-ups until cancelled; a wake-up None requests a sweep.

        After an error, which is logged, or an end, the wake-ups are opened again after 1 s.
        """
        while True:
            try:
                async with aclosing(self.wake_ups.receive()) as received:
                    async for conversation in received:
                        if conversation is None:
                            self._sweep_now.set()
                        else:
                            self.wake(conversation)
            except StoreError as error:
                logger.warning("wake-ups failed, and the sweep finds the turns: %s", error)
            except Exception:  # no caller awaits this task, and the channel may work again
                logger.exception("wake-ups failed, and the sweep finds the turns")
            await asyncio.sleep(REOPEN_SECONDS)

    async def _sweep(self) -> None:
        """Look for work in the store every `sweep_seconds`, or at once when asked, until cancelled.

        Adds conversations with open turns or due messages, except those known to lack work. Errors are logged.
        """
        since = self._clock.now() - UNBEGUN
        while True:
            looked_at = self._clock.now()
            try:
                async with aclosing(self._find_work(since)) as summaries:
                    async for summary in summaries:
                        if self._heads_without_work.get(summary.conversation) != summary.head:
                            self._add(summary.conversation)
                scheduled = await self.log.scheduled()
                for conversation in self._due_elsewhere.keys() - {key for key, _ in scheduled}:
                    del self._due_elsewhere[conversation]
                for conversation, due in scheduled:
                    if due > looked_at + timedelta(seconds=self._sweep_seconds):
                        break
                    if self._due_elsewhere.get(conversation) != due:
                        self._add(conversation)
                since = looked_at - timedelta(seconds=2 * self._sweep_seconds)
            except StoreError as error:
                logger.warning("waiting turns were not found: %s", error)
            except Exception:  # no caller awaits this task, and the next sweep may succeed
                logger.exception("waiting turns were not found")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._sweep_now.wait(), self._sweep_seconds)
            self._sweep_now.clear()

    async def _find_work(self, since: datetime) -> AsyncGenerator[tl.ConversationSummary, None]:
        """Yield conversations with unfinished turns, oldest first, then those active `since` that no runner began."""
        unfinished = await self.log.unfinished()
        listed = {summary.conversation for summary in unfinished}
        for conversation in self._heads_without_work.keys() - listed:
            del self._heads_without_work[conversation]
        for summary in reversed(unfinished):
            yield summary
        for summary in reversed(await self.log.conversations(after=since)):
            if summary.conversation not in listed and await is_unbegun(self.log, summary):
                yield summary


@asynccontextmanager
async def open_worker(
    bundles: Sequence[str | Path | Bundle[Any]],
    *,
    store: str | None = None,
    model: ModelChoice = None,
    properties: Mapping[str, Setting] | None = None,
    worker_limits: WorkerLimits | None = None,
    isolated_only: bool = False,
    on_outcome: Callable[[Recovery], None] | None = None,
    **options: Unpack[OpenOptions],
) -> AsyncGenerator[Worker]:
    """Open bundles over a store, and return a worker for them; it runs turns between `run` and `drain`.

    The arguments are those of `Harness.open`. With `isolated_only`, bundles that run programs without isolation are refused.

    Raises:
        LooplineError: a bundle cannot be opened or is refused, two have the same id, or the store is in memory.
    """
    place = parse_store_url(store, options.get("blobs"))
    if place.is_in_memory:
        raise LooplineError("a worker needs a store that other processes can open, not memory:")
    async with AsyncExitStack() as stack:
        harnesses = dict[str, Harness[Any]]()
        for bundle in bundles:
            harness = await stack.enter_async_context(
                Harness.open(bundle, store=store, model=model, properties=properties, **options)
            )
            if isolated_only:
                harness.check_isolated()
            if harness.bundle.id in harnesses:
                raise LooplineError(
                    f"two bundles have the id {harness.bundle.id!r}: run one of them"
                )
            harnesses[harness.bundle.id] = harness
        wake_ups = await asyncio.to_thread(open_wake_ups, place)
        stack.push_async_callback(wake_ups.close)
        yield Worker(harnesses, wake_ups, worker_limits, on_outcome=on_outcome)


def open_wake_ups(place: StorePlace) -> WakeUps:
    """Return the wake-ups of a store that other processes can open; this blocks."""
    if place.file is None:
        import_postgres()
        from loopline.store.postgres_relay import PostgresWakeUps

        return PostgresWakeUps(place.url)
    from loopline.store.input_wake_ups import InputWakeUps

    return InputWakeUps(place.file.resolve())
