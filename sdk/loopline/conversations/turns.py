"""Turns and their boundaries: one at a time in a conversation, each begun once and ended once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

from loopline.clock import Clock
from loopline.conversations.leased_conversation import LeasedConversation, settled
from loopline.conversations.queue_notice import QueueNotice
from loopline.conversations.subscriptions import Hear, Subscriber, Subscriptions, replay
from loopline.conversations.turn_log import IN_TURN, in_turn
from loopline.conversations.watching import logged, observed, observed_turn
from loopline.errors import (
    BundleError,
    ConflictError,
    LeaseLost,
    LooplineError,
    StoreBusy,
    StoreError,
    StoreVersion,
)
from loopline.events import EventSink, Observer
from loopline.files import attachment_of
from loopline.models import OutputSchema, OutputType
from loopline.react import Limits, TurnPayload, TurnResult, late_input, restore_limits, result
from loopline.timeline import (
    Block,
    ConversationKey,
    ConversationSummary,
    ExitReason,
    Recorder,
    ResultStatus,
    RunChild,
    Timeline,
    TimelineLog,
    UserAttachment,
    UserPrompt,
    open_timeline,
    parent_name,
    reaching,
    trimmed,
    turn_id,
)

Choose = Callable[[Timeline], Awaitable[int]]
"""Which turn to run, decided once the conversation is held."""

KEPT_TIMELINES = 64
"""Folds of the conversations run last, kept so that a turn reads only what is new."""

_log = logging.getLogger("loopline")
_inside: ContextVar[frozenset[ConversationKey]] = ContextVar("_inside", default=frozenset())


class Process(Protocol):
    """What a turn does: it records into the turn, and returns what came of it."""

    async def __call__(
        self, recorder: Recorder, payload: TurnPayload, limits: Limits, listen: EventSink
    ) -> TurnResult[Any]:
        """Run the turn; `turn.header` is the first thing it records, `react.exit` is not its own."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A turn that somebody wants run; with `wait` False not behind another one.

    It is `adopted` when that is not who asked for it. `output` is the type that its answer is to be of, and
    `default` that of its bundle, by which an answer is read that was given before.
    """

    conversation: ConversationKey
    choose: Choose
    process: Process
    limits: Limits
    hear: Hear | None
    wait: bool = True
    adopted: bool = False
    output: OutputType[Any] | None = None
    default: OutputType[Any] | None = None

    @property
    def reads(self) -> OutputType[Any] | None:
        """What an answer is read as."""
        return self.output or self.default


@dataclass(slots=True)
class _PendingRequest:
    """A request in this process, from the moment it is made until its turn is over."""

    request: Request
    task: asyncio.Task[TurnResult[Any]] | None = None
    stopping: bool = False


@dataclass(slots=True)
class _CachedConversation:
    """A conversation that was run here: as it stands, and what does not change of it."""

    timeline: Timeline
    summary: ConversationSummary | None = None


class StoppedInQueue(LooplineError):
    """The turn was stopped before it was begun; what was said can still be recalled."""


class Turns:
    """Runs the turns of a harness's conversations, and tells the observer of them."""

    def __init__(self, log: TimelineLog, clock: Clock, observer: Observer | None = None) -> None:
        _log.addFilter(IN_TURN)  # once, however many there are
        self._log = log
        self._clock = clock
        self._observer = observer
        self._queues: WeakValueDictionary[ConversationKey, asyncio.Lock] = WeakValueDictionary()
        self._requests: list[_PendingRequest] = []
        self._recorders: dict[ConversationKey, Recorder] = {}
        self._ears = Subscriptions(log)
        self._cached: dict[ConversationKey, _CachedConversation] = {}
        self._closing = False

    def check_outside(self, conversation: ConversationKey) -> None:
        """Refuse to wait for a conversation from within its own turn, which would be for ever.

        Raises:
            LooplineError: this is called from within a turn of the conversation.
        """
        if conversation in _inside.get():
            raise LooplineError(
                f"conversation {conversation.name!r} is held by the very turn that says this: "
                "return it as the tool's result, or use followup"
            )

    async def run(self, request: Request) -> TurnResult[Any]:
        """Run the chosen turn once the conversation is free.

        A turn that another runner left unfinished is ended first, as interrupted; one that was asked
        for before this one, and that nobody has run, is run first. The turn has a task of its own, so
        that `stop` ends it and not whoever waits for it; cancelling whoever waits stops it too.

        Raises:
            StoppedInQueue: it was stopped while it waited.
            ConflictError: it may not wait, and another turn runs.
            BundleError: the bundle's code failed; the turn is closed as an error.
        """
        self.check_outside(request.conversation)
        asked = _PendingRequest(request)
        asked.task = asyncio.create_task(self._with_lease(asked))
        self._requests.append(asked)
        try:
            return await asyncio.shield(asked.task)
        except asyncio.CancelledError:
            if asked.task.cancelled() and self._closing and not _cancelled():
                raise LooplineError(
                    "the harness closed before this turn was begun: it stays pending"
                ) from None
            if asked.task.cancelled() and asked.stopping and not _cancelled():
                # A task that is cancelled before its first step has run nothing that could say so.
                raise StoppedInQueue("the turn was stopped before it was begun") from None
            asked.task.cancel()
            await asyncio.wait([asked.task])
            if not asked.task.cancelled():
                asked.task.exception()  # it is in the log; the caller hears of its cancellation
            raise
        finally:
            self._requests.remove(asked)

    def subscribed(self, conversation: ConversationKey, hear: Hear) -> AbstractContextManager[None]:
        """Have `hear` called for every event of the conversation's turns here, beside whoever else is.

        It begins behind the last block that was read here, or, where none was, with the first one of the
        next turn.
        """
        return self._ears.subscribed(conversation, Subscriber(hear, self.seen(conversation)))

    def steer(self, conversation: ConversationKey) -> None:
        """Have the turn that runs here look at what the user has just said."""
        recorder = self._recorders.get(conversation)
        if recorder is not None:
            recorder.notify_steer()

    async def outcome(
        self, conversation: ConversationKey, number: int, output: OutputType[Any] | None = None
    ) -> TurnResult[Any]:
        """What comes of a turn that runs, here or in another process, once it is over or paused.

        Raises:
            BundleError: its bundle's code failed.
        """
        self.check_outside(conversation)
        queue = self._queues.setdefault(conversation, asyncio.Lock())
        async with queue, self._log.lease(conversation):
            timeline = await open_timeline(self._log, conversation)
            timeline = await reaching(self._log, conversation, timeline, number)
        turn = timeline.turn(number)
        if turn.exit is None:
            reason: ExitReason = "paused" if turn.pending else "interrupted"
            return result(timeline, number, reason, output=output)
        return _ended_result(timeline, number, output)

    def summary(self, conversation: ConversationKey) -> ConversationSummary | None:
        """What was known of a conversation when it was first run here; its names never change."""
        known = self._cached.get(conversation)
        return known.summary if known else None

    def seen(self, conversation: ConversationKey) -> int | None:
        """The last place that was read here; None when it was not run here."""
        known = self._cached.get(conversation)
        return known.timeline.seq if known else None

    async def stop(self, conversation: ConversationKey) -> bool:
        """End the running turn and those that wait behind it here; whether there are any."""
        stopped = [one for one in self._requests if one.request.conversation == conversation]
        await _stop(stopped)
        return bool(stopped)

    async def end_stopped(self, conversation: ConversationKey) -> None:
        """Wait until nobody runs the turn that the user has stopped, and end it if it has not ended."""
        queue = self._queues.setdefault(conversation, asyncio.Lock())
        async with queue, self._log.lease(conversation) as term:
            timeline = await open_timeline(self._log, conversation)
            summary = await self._log.find(conversation)
            uid = summary.uid if summary else ""
            lead = self._leading(conversation, uid, timeline, term)
            hear = self._ears.telling(conversation)
            for turn in [one for one in (*timeline.resumable, *timeline.queued) if one.stopped]:
                recorder = lead.recorder(turn.number, self._watched(lead, turn.number, hear))
                await settled(lead.end(recorder, "stopped", status="stopped"))

    async def close(self) -> None:
        """Stop every turn that runs; those that wait stay pending."""
        self._closing = True
        running = [one for one in self._requests if one.request.conversation in self._held()]
        await _stop(running)
        rest = [one.task for one in self._requests if one.task is not None]
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)

    def _held(self) -> set[ConversationKey]:
        return {conversation for conversation, lock in self._queues.items() if lock.locked()}

    async def _with_lease(self, asked: _PendingRequest) -> TurnResult[Any]:
        conversation = asked.request.conversation
        _inside.set(_inside.get() | {conversation})
        try:
            async with self._lease(asked.request) as term:
                known = await self._current(conversation)
                _check_known(known.timeline)
                number = await asked.request.choose(known.timeline)
                timeline = await reaching(self._log, conversation, known.timeline, number)
                _check_known(timeline)
                _check_confirmed(timeline, number)
                known.timeline = timeline
                if known.summary is None:
                    known.summary = await self._log.find(conversation)
                uid = known.summary.uid if known.summary else ""
                lead = self._leading(conversation, uid, timeline, term)
                return await self._run_chosen(asked, lead, number)
        except asyncio.CancelledError:
            if not asked.stopping:
                raise
            _uncancel()
            raise StoppedInQueue("the turn was stopped before it was begun") from None

    @asynccontextmanager
    async def _lease(self, request: Request) -> AsyncGenerator[int, None]:
        """The right to run the conversation; a sender who waits for it is told what for.

        Raises:
            ConflictError: it may not wait, and another turn runs.
        """
        conversation = request.conversation
        queue = self._queues.setdefault(conversation, asyncio.Lock())
        if not request.wait and queue.locked():
            raise ConflictError(f"conversation {conversation.name!r} is being run already")
        notice = QueueNotice(self._log, self._clock, conversation, request.hear)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(queue)
                lease = self._log.lease(conversation, wait=request.wait)
                term = await stack.enter_async_context(lease)
            finally:
                await notice.end()
            yield term

    async def _current(self, conversation: ConversationKey) -> _CachedConversation:
        """The conversation as it stands: what was folded here before, and what has come since."""
        known = self._cached.pop(conversation, None)
        if known is None:
            known = _CachedConversation(await open_timeline(self._log, conversation))
        else:
            known.timeline.extend(await self._log.read(conversation, after=known.timeline.seq))
            known.timeline = trimmed(known.timeline)
        self._cached[conversation] = known
        while len(self._cached) > KEPT_TIMELINES:
            self._cached.pop(next(iter(self._cached)))
        return known

    async def _run_chosen(
        self, asked: _PendingRequest, lead: LeasedConversation, number: int
    ) -> TurnResult[Any]:
        """Run the turn with the lease in hand; whatever happens, it ends, or ended before."""
        timeline, hear = lead.timeline, asked.request.hear
        await self._ears.catch_up(lead.conversation, timeline, number)
        sender = None if hear is None else Subscriber(hear, 0)
        if timeline.turn(number).exit is not None:
            replay(timeline, number, sender)
            return _ended_result(timeline, number, asked.request.reads)
        others = self._ears.telling(lead.conversation)
        tell = self._ears.telling(lead.conversation, sender)
        recorder = lead.recorder(number, self._watched(lead, number, tell))
        recorder.adopted = asked.request.adopted
        with in_turn(recorder):
            try:
                await lead.interrupt_others(number, partial(self._watched, lead, hear=others))
                for turn in [turn for turn in timeline.queued if turn.number < number]:
                    await self._run_for_another(asked, lead, turn.number)
                replay(timeline, number, sender)
                if recorder.turn.stopped:  # by a process that did not live to end it
                    await settled(lead.end(recorder, "stopped", status="stopped"))
                    return _ended_result(timeline, number, asked.request.reads)
                return await self._run_turn(asked, lead, recorder, tell)
            except asyncio.CancelledError:
                if recorder.turn.exit is None:
                    replay(timeline, number, sender)
                    await settled(lead.end(recorder, "stopped", status="stopped"))
                if not asked.stopping:
                    raise
                _uncancel()
                return _ended_result(timeline, number, asked.request.reads)

    def _watched(
        self, lead: LeasedConversation, number: int, hear: Hear
    ) -> Callable[[Block], None]:
        """What the turn's recorder tells of each block, beside those who hear its events."""
        heard = logged(lead.conversation.name, hear)
        if self._observer is None:
            return heard
        turn = observed_turn(lead.conversation, lead.uid, number, self._recorders)
        return observed(self._observer, turn, lead.timeline, heard)

    def _leading(
        self, conversation: ConversationKey, uid: str, timeline: Timeline, term: int
    ) -> LeasedConversation:
        return LeasedConversation(
            self._log, self._clock, conversation, uid, timeline, term, self._end_children
        )

    async def _end_children(
        self, lead: LeasedConversation, recorder: Recorder, status: ResultStatus
    ) -> None:
        """End the child runs of a turn that have not ended, and record in it what each of them used."""
        children = [
            child
            for child in recorder.turn.children.values()
            if not child.reason and parent_name(child.conversation) == lead.conversation.name
        ]
        if not children:
            return
        self._recorders[lead.conversation] = recorder  # an observer asks who began the child
        try:
            for child in children:
                with suppress(ConflictError):  # a runner is still at it, and ends it
                    await self._end_child(child, recorder, status)
        finally:
            self._recorders.pop(lead.conversation, None)

    async def _end_child(self, child: RunChild, recorder: Recorder, status: ResultStatus) -> None:
        conversation = replace(recorder.conversation, name=child.conversation)
        reason: ExitReason = "stopped" if status == "stopped" else "interrupted"
        hear = self._ears.telling(conversation)
        async with self._log.lease(conversation, wait=False) as term:
            timeline = await open_timeline(self._log, conversation)
            summary = await self._log.find(conversation)
            lead = self._leading(conversation, summary.uid if summary else "", timeline, term)
            for turn in [*timeline.unfinished, *timeline.queued]:
                of_child = lead.recorder(turn.number, self._watched(lead, turn.number, hear))
                await lead.end(of_child, reason, status=status)
        for turn in timeline.turns.values():
            if turn.exit is not None:
                ended = replace(
                    child,
                    reason=turn.exit.reason,
                    usage=turn.usage,
                    cost=turn.cost,
                    estimated=turn.estimated,
                )
                await recorder.record(ended)

    async def _run_for_another(
        self, asked: _PendingRequest, lead: LeasedConversation, number: int
    ) -> None:
        """Run a turn whose sender has not come to it, or has died; it hears of it from the log."""
        hear = self._ears.telling(lead.conversation)
        recorder = lead.recorder(number, self._watched(lead, number, hear))
        recorder.adopted = True
        with in_turn(recorder):
            try:
                await self._run_turn(asked, lead, recorder, hear)
            except StoreError:
                raise
            except LooplineError as error:
                _log.warning("%s was run for its sender, and failed: %s", turn_id(number), error)

    async def _run_turn(
        self, asked: _PendingRequest, lead: LeasedConversation, recorder: Recorder, hear: Hear
    ) -> TurnResult[Any]:
        payload, limits, schema = _payload(recorder)
        request = asked.request
        recorder.output = None if recorder.adopted else request.output
        if recorder.output is None and schema is not None:
            recorder.output = OutputType.of_schema(schema)
        recorder.resume_clock()
        recorder.on_stop = partial(_begin_to_stop, asked)
        self._recorders[request.conversation] = recorder
        try:
            done = await request.process(recorder, payload, {**limits, **request.limits}, hear)
        except asyncio.CancelledError:
            await settled(lead.end(recorder, "stopped", status="stopped"))
            raise
        except (LeaseLost, StoreBusy):  # the turn is left as it is, to be carried on
            raise
        except Exception as error:
            by_bundle = isinstance(error, BundleError)
            await settled(lead.end(recorder, "error", str(error), by_bundle=by_bundle))
            raise
        finally:
            self._recorders.pop(request.conversation, None)
        if done.exit_reason == "paused":
            return done
        await settled(lead.end(recorder, done.exit_reason, done.error))
        turn = recorder.turn  # a child that ended with it has told what it used
        return replace(
            done, usage=turn.usage, cost=turn.cost, late_input=late_input(recorder.timeline)
        )


async def _stop(asked: list[_PendingRequest]) -> None:
    tasks = [one.task for one in asked if one.task is not None]
    for one in asked:
        _begin_to_stop(one)
    if tasks:
        await asyncio.wait(tasks)


def _begin_to_stop(asked: _PendingRequest) -> None:
    if asked.task is not None and not asked.stopping:
        asked.stopping = True
        asked.task.cancel()


def _cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _uncancel() -> None:
    """The cancellation was our own way to stop the turn: it goes no further."""
    task = asyncio.current_task()
    while task is not None and task.cancelling() > 0:
        task.uncancel()


def turn_to_resume(timeline: Timeline) -> int:
    """The oldest turn that was cut off, else the oldest that was never begun.

    Raises:
        LooplineError: there is none.
    """
    waiting = [*timeline.resumable, *timeline.queued]
    if not timeline.turns:
        raise LooplineError("there is nothing to carry on: the conversation has not begun")
    if not waiting:
        for turn in timeline.unfinished:
            _check_confirmed(timeline, turn.number)
        raise LooplineError("there is nothing to carry on: every turn has ended; say something")
    return waiting[0].number


def _check_known(timeline: Timeline) -> None:
    if timeline.unknown is not None:
        block = timeline.unknown
        raise StoreVersion(
            f"block {block.seq} is a {block.type!r} of a newer loopline, which alone may run "
            "this conversation: upgrade, or only read it"
        )


def _check_confirmed(timeline: Timeline, number: int) -> None:
    if timeline.turn(number).inert:
        raise LooplineError(
            f"{turn_id(number)} was imported and nobody confirmed it, so it is not run: import the "
            f"document under another name and confirm {turn_id(number)}, or say something new"
        )


def _ended_result(
    timeline: Timeline, number: int, output: OutputType[Any] | None
) -> TurnResult[Any]:
    """What came of a turn that is over.

    Raises:
        BundleError: its bundle's code failed.
    """
    end = timeline.turn(number).exit
    if end is None:
        raise LooplineError(f"{turn_id(number)} has not ended")
    if end.by_bundle:
        raise BundleError(end.error)
    return result(timeline, number, end.reason, end.error, output)


def _payload(recorder: Recorder) -> tuple[TurnPayload, Limits, OutputSchema | None]:
    """What the turn is about, under which limits, and what its answer is to be, as the log has it."""
    match recorder.turn.prompt:
        case Block(body=UserPrompt(text=text, limits=limits, output=output), ts=ts, seq=seq):
            files = recorder.timeline.attachments(seq)
            payload = TurnPayload(
                text=text,
                conversation=recorder.conversation.name,
                turn_id=turn_id(recorder.number),
                ts=ts,
                tenant=recorder.conversation.tenant,
                project=recorder.conversation.project,
                user=recorder.conversation.user,
                attachments=[
                    attachment_of(block.body)
                    for block in files
                    if isinstance(block.body, UserAttachment)
                ],
            )
            return payload, restore_limits(limits), output
        case _:
            raise LooplineError(f"{turn_id(recorder.number)} has no prompt to answer to")
