"""Turns: one at a time in a conversation, each started once and ended once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from msgspec import Struct, structs

from loopline import errors, react
from loopline import timeline as tl
from loopline.bundle import OpenBundle, RunLoop
from loopline.clock import Clock
from loopline.conversations import submission, subscriptions, turn_order
from loopline.conversations.feeds import Feed, Feeds
from loopline.conversations.interrupts import CHILD_TURN, child_inputs
from loopline.conversations.leased_conversation import (
    CachedConversation,
    ConversationCache,
    LeasedConversation,
    finish,
)
from loopline.conversations.live_events import LiveEvents
from loopline.events import EventSink, Observer
from loopline.files import attachment_of
from loopline.models import Json, Model, ModelRegistry, OutputSchema, OutputType
from loopline.reader import ConversationView, conversation_lookup
from loopline.redaction.redaction import Redactor
from loopline.tasks import wait_until_done
from loopline.tools import WEB_TOOLS, check_shadows

Choose = Callable[[tl.Timeline], Awaitable[int]]
"""Chooses the turn to run, once the conversation is leased."""

FIRST_LOOK_SECONDS = 0.01
LAST_LOOK_SECONDS = 0.2
"""How long a request waits before it looks again for what it waits for, at first and at last."""
BEGIN_SECONDS = 10.0
"""How long a request waits for another harness to begin a turn that was sent through that one."""


_STARTS = tl.BodyUnion[tl.RoundStart](tl.RoundStart)
_log = logging.getLogger("loopline")
_inside: ContextVar[frozenset[tl.ConversationKey]] = ContextVar("_inside", default=frozenset())


class ChildRun(Struct, frozen=True, kw_only=True):
    """Values that a child run gets from its parent: the chain of models, the first model, and the loop."""

    models: ModelRegistry
    model: Model | str | None
    loop: RunLoop


class Request(Struct, frozen=True, kw_only=True):
    """A request to run a turn. With `wait` False it fails if another turn runs.

    `began` has the blocks of a conversation that was created for this request, else it is None. `sink` receives the events
    of the turn. `adopted` is True if another process sent the message. With `any_bundle` a person has decided that this
    bundle runs the turn although it was sent through another one. `output` is the type of the answer, and `default` the
    bundle's type, which reads an answer that is stored already. `variation` is how the turn differs from its bundle.
    """

    conversation: tl.ConversationKey
    choose: Choose
    sink: EventSink | None = None
    limits: react.Limits = {}
    child: ChildRun | None = None
    wait: bool = True
    adopted: bool = False
    any_bundle: bool = False
    began: Sequence[tl.Block] | None = None
    output: OutputType[Any] | None = None
    default: OutputType[Any] | None = None
    variation: submission.Variation = submission.AS_IT_IS

    @property
    def answer_type(self) -> OutputType[Any] | None:
        """The type by which the answer is read."""
        return self.output or self.default


@dataclass(slots=True)
class _PendingRequest:
    """A request of this process whose turn has not ended."""

    request: Request
    task: asyncio.Task[tl.TurnResult[Any]] = field(init=False)
    stopping: bool = False
    handed_over: bool = False


class Turns:
    """Runs the turns of a harness's conversations. Without a bundle it can run none."""

    def __init__(
        self,
        log: tl.TimelineLog,
        clock: Clock,
        observer: Observer | None = None,
        bundle: OpenBundle | None = None,
        redactor: Redactor | None = None,
        *,
        submits_only: bool = False,
        live: LiveEvents | None = None,
    ) -> None:
        """Make a runner; with `submits_only` another process runs every turn, and this one waits for its events.

        With `live`, subscribers receive the events of turns that other processes run, and those of this one receive its.
        """
        _log.addFilter(subscriptions.IN_TURN)  # once, however many there are
        self._log = log
        self.clock: Clock = clock
        self._bundle = bundle
        self._queues: WeakValueDictionary[tl.ConversationKey, asyncio.Lock] = WeakValueDictionary()
        self._requests: list[_PendingRequest] = []
        self._subscriptions = subscriptions.Subscriptions(log, observer, redactor)
        self._submits_only = submits_only
        self._live = live
        self._feeds = Feeds(log, self._subscriptions, live, keeps_timelines=submits_only)
        self._reading_inputs: set[asyncio.Task[None]] = set()
        self._cache = ConversationCache(log)
        self._closing = False
        self._is_closed = False
        self.on_turn_end: Callable[[tl.ConversationKey], None] | None = None
        if bundle is not None:
            bundle.services.background.follow(self._subscriptions.running)

    @property
    def sender(self) -> tl.Sender | None:
        """The sender of this harness's inputs, None without a bundle."""
        return None if self._bundle is None else self._bundle.services.sender

    def order(self) -> turn_order.TurnOrder:
        """Return the order of turns for a request of this harness.

        Raises:
            LooplineError: the harness has no bundle.
        """
        return turn_order.TurnOrder(self._log, self.check_bundle().services.sender)

    def check_bundle(self) -> OpenBundle:
        """Return the bundle that runs the turns of this harness.

        Raises:
            LooplineError: there is none, or the harness is closed.
        """
        if self._is_closed:
            raise errors.LooplineError(
                "the harness is closed: call this inside async with Harness.open(…) as harness"
            )
        if self._bundle is None:
            raise errors.LooplineError(
                "the conversation was opened without a bundle: it can be read, not run"
            )
        return self._bundle

    @property
    def output(self) -> OutputType[Any] | None:
        """The type of the bundle's answers, used if a turn names no other."""
        return None if self._bundle is None else self._bundle.services.output

    async def check_shadows(self, tools: Sequence[tl.ClientTool]) -> None:
        """Check that the bundle accepts the tools of a message, and that none has the name of a tool of the bundle.

        MCP servers are not started for this.

        Raises:
            LooplineError: one has, the bundle accepts none, or the harness has no bundle.
            BundleError: a descriptor or a tool of the bundle is not valid.
        """
        services = self.check_bundle().services
        if not services.settings.client_tools:
            raise errors.LooplineError(
                f"the bundle accepts no tools with a message (react.client_tools is false): send it without {tools[0].name!r}"
            )
        known = await services.collect_tool_names(asks_servers=False)
        names = known.names - WEB_TOOLS | {tool.spec.name for tool in services.web.tools}
        check_shadows(tools, sorted(names))

    def check_outside(self, conversation: tl.ConversationKey) -> None:
        """Refuse to wait for a conversation inside its own turn: the wait would never end.

        Raises:
            LooplineError: this is called from within a turn of the conversation.
        """
        if conversation in _inside.get():
            raise errors.LooplineError(
                f"conversation {conversation.name!r} cannot wait for a message of its own turn: "
                "return the text as the tool's result, or use followup"
            )

    async def run(self, request: Request) -> tl.TurnResult[Any]:
        """Run the chosen turn once the conversation is free.

        An unfinished turn of a process that has gone is ended first, as interrupted. An earlier queued turn runs first.
        The turn runs in its own task, so `stop` ends the turn and not the caller. Cancelling the caller stops the turn.

        Raises:
            StoppedInQueue: the request was stopped while it waited.
            HandedOver: this process is ending and leaves the turn to the next one.
            ConflictError: another turn runs, and the request may not wait.
            BundleError: the bundle's code failed; the turn is closed as an error.
        """
        self.check_outside(request.conversation)
        if self._closing:
            raise submission.HandedOver
        pending = _PendingRequest(request)
        run = self._run_elsewhere if self._submits_only else self._run_with_lease
        pending.task = asyncio.create_task(run(pending))
        self._requests.append(pending)
        try:
            return await asyncio.shield(pending.task)
        except errors.LeaseLost as error:
            raise submission.HandedOver if pending.handed_over else error from None
        except asyncio.CancelledError:
            if pending.task.cancelled() and self._closing and not _is_cancelled():
                raise submission.HandedOver from None
            if pending.task.cancelled() and pending.stopping and not _is_cancelled():
                # A task that is cancelled before its first step has run nothing that could say so.
                raise submission.StoppedInQueue(
                    "the turn was stopped before it was begun"
                ) from None
            pending.task.cancel()
            await wait_until_done(pending.task)  # a steer and then a stop cancel a child run twice
            if not pending.task.cancelled():
                pending.task.exception()  # it is in the log; the caller hears of its cancellation
            raise
        finally:
            self._requests.remove(pending)

    async def run_child(
        self,
        parent: tl.ConversationKey,
        models: ModelRegistry,
        child: react.Child,
        sink: EventSink,
        loop: RunLoop,
        /,
    ) -> tl.TurnResult[Any]:
        """Start a child run, or continue it, or return its stored result. It uses its parent's models.

        Raises:
            LooplineError: the child's code failed, or a child of that name has another task.
        """
        conversation = structs.replace(parent, name=child.name)

        async def choose(timeline: tl.Timeline) -> int:
            """Append the next inputs of the child run, if it has any, and return the number of its turn.

            A new child run also gets the mode of the parent's running turn.
            """
            bodies = child_inputs(timeline, child)
            if bodies:
                turn = CHILD_TURN if timeline.turns else tl.NEW_TURN
                entries = [tl.Entry(body=body, turn=turn) for body in bodies]
                runner = self._subscriptions.running.get(parent)
                if not timeline.turns and runner is not None and runner.timeline.mode != "ask":
                    mode = tl.ModeChanged(mode=runner.timeline.mode)
                    entries.append(tl.Entry(body=mode, turn=tl.NEW_TURN))
                timeline.extend(await self._log.append(conversation, entries, seen=timeline.seq))
            return CHILD_TURN

        of_parent = ChildRun(models=models, model=child.task.model, loop=loop)
        return await self.run(
            Request(
                conversation=conversation,
                choose=choose,
                sink=sink,
                child=of_parent,
                began=() if child.is_new else None,
            )
        )

    def subscribed(
        self, conversation: tl.ConversationKey, sink: EventSink
    ) -> AbstractContextManager[None]:
        """Deliver every event of the conversation's turns to `sink` inside the context.

        Without live events the sink receives only the blocks of turns that other processes run.
        Delivery starts after the last block that this process has read, or with the next turn if it has read none.
        """
        return self._feeds.subscribed(conversation, sink, self.last_seq(conversation))

    def listened(
        self, conversation: tl.ConversationKey, sink: EventSink
    ) -> AbstractContextManager[None]:
        """Deliver every event of the conversation's turns that run in this process to `sink` inside the context."""
        return self._subscriptions.subscribed(
            conversation, subscriptions.Subscriber(sink, self.last_seq(conversation))
        )

    def turn_number(self, conversation: tl.ConversationKey) -> int:
        """Return the number of the conversation's turn that runs in this process, 0 if none does."""
        recorder = self._subscriptions.running.get(conversation)
        return recorder.number if recorder is not None else 0

    def look_for_inputs(self, conversation: tl.ConversationKey) -> None:
        """Read the steers, stops and answers of other processes for the turn that runs in this process, in the background."""
        recorder = self._subscriptions.running.get(conversation)
        if recorder is not None:
            reading = asyncio.create_task(_read_inputs(recorder))
            self._reading_inputs.add(reading)
            reading.add_done_callback(self._reading_inputs.discard)

    def notify(self, conversation: tl.ConversationKey, text: str) -> None:
        """Send the subscribers of a conversation a notice why a turn does not continue."""
        self._subscriptions.notify(conversation, text)

    def is_requested(self, conversation: tl.ConversationKey) -> bool:
        """Return whether a turn of the conversation runs or waits in this process."""
        return any(pending.request.conversation == conversation for pending in self._requests)

    def steer(self, conversation: tl.ConversationKey, seq: int) -> None:
        """Wake the conversation's running turn for the steer that is stored at `seq`."""
        recorder = self._subscriptions.running.get(conversation)
        if recorder is not None:
            recorder.notify_steer(seq)

    def asks(self, conversation: tl.ConversationKey, call_id: str) -> bool:
        """Return whether a call of the conversation that runs in this process waits for an answer."""
        recorder = self._subscriptions.running.get(conversation)
        return recorder is not None and recorder.questions.asks(call_id)

    def answer(self, conversation: tl.ConversationKey, call_id: str, value: Json) -> bool:
        """Answer the question of a running call. Returns whether the call waits in this process.

        Raises:
            LooplineError: the value is not an answer to an approval, or one that is stored by `InterruptQueue.answer` alone.
        """
        recorder = self._subscriptions.running.get(conversation)
        question = None if recorder is None else recorder.questions.find(call_id)
        if recorder is None or question is None:
            return False
        reply = None if value is None else react.check_answer(question, value)
        if reply is not None and reply.rule is not None:
            raise errors.LooplineError(
                f"an answer to {call_id} that grants a rule is stored first: "
                "await conversation.interrupts.answer(call_id, value)"
            )
        return recorder.questions.answer(call_id, value)

    async def outcome(
        self, conversation: tl.ConversationKey, seq: int, output: OutputType[Any] | None = None
    ) -> tl.TurnResult[Any] | None:
        """Wait until no process runs a turn, and return the result of the turn that took an input.

        `seq` is the seq of the input. Returns None if no round took the input.

        Raises:
            BundleError: the bundle's code failed in that turn.
            HandedOver: this process is closing, and the input was not taken or its turn has not ended.
        """
        self.check_outside(conversation)
        queue = self._queues.setdefault(conversation, asyncio.Lock())
        async with queue, self._log.lease(conversation):
            timeline = await tl.open_timeline(self._log, conversation)
            starts = await self._log.read(conversation, after=seq, types=[tl.RoundStart.type])
            takers = [block.turn for block, body in _STARTS.among(starts) if seq in body.takes]
            if not takers and self._closing:
                raise submission.HandedOver
            if not takers:
                return None
            number = takers[0]
            timeline = await tl.reaching(self._log, conversation, timeline, number)
        turn = timeline.turn(number)
        if turn.exit is None:
            if self._closing and not turn.pending:
                raise submission.HandedOver
            reason: tl.ExitReason = "paused" if turn.pending else "interrupted"
            return react.result(timeline, number, reason, output=output)
        return _build_result(timeline, number, output)

    async def result_of_stopped(self, request: Request, number: int) -> tl.TurnResult[Any]:
        """Return the result of a turn whose request was stopped while it waited.

        Another request may have begun the turn meanwhile; its stored result is returned once its runner has ended it.
        Otherwise the result is stopped and has no answer.

        Raises:
            BundleError: the bundle's code failed in that turn.
        """
        conversation = request.conversation
        timeline = await tl.open_timeline(self._log, conversation)
        timeline = await tl.reaching(self._log, conversation, timeline, number)
        turn = timeline.turn(number)
        if turn.header is not None and turn.exit is None and not self._closing:
            queue = self._queues.setdefault(conversation, asyncio.Lock())
            async with queue, self._log.lease(conversation):
                timeline.extend(await self._log.read(conversation, after=timeline.seq))
        if timeline.turn(number).exit is not None:
            return _build_result(timeline, number, request.answer_type)
        return build_stopped_result(tl.turn_id(number))

    def last_seq(self, conversation: tl.ConversationKey) -> int | None:
        """Return the last seq of the conversation that this process has read, None if it has run no turn of it."""
        cached = self._cache.cached.get(conversation)
        return cached.timeline.seq if cached and cached.summary else None

    async def newest(self, conversation: tl.ConversationKey) -> tl.Timeline:
        """Return the timeline with the newest blocks, to be read before anything else is awaited.

        Only blocks that are new since the last time are read, unless a turn of the conversation runs here.
        """
        queue = self._queues.get(conversation)
        if queue is not None and queue.locked():
            return await tl.open_timeline(self._log, conversation)
        return (await self._cache.read(conversation)).timeline

    async def stop(self, conversation: tl.ConversationKey) -> tuple[bool, int]:
        """Stop the running turn and the turns that wait for it in this process.

        Returns whether there were any, and the last seq at that time: later messages are not stopped.
        """
        stopped = self._begin_to_stop({conversation})
        summary = await self._log.find(conversation)
        await _wait_for_ends(stopped)
        return bool(stopped), summary.head if summary else 0

    async def end_stopped(self, conversation: tl.ConversationKey) -> None:
        """Wait until the turns that the user stopped have ended; end those that no process runs."""
        queue = self._queues.setdefault(conversation, asyncio.Lock())
        pause = FIRST_LOOK_SECONDS
        timeline = await tl.open_timeline(self._log, conversation)
        while any(turn.header is not None for turn in _find_stopped(timeline)):
            try:
                if queue.locked():
                    raise errors.ConflictError("a turn runs here")
                async with queue, self._log.lease(conversation, wait=False) as term:
                    await self._end_stopped(conversation, term)
                return
            except errors.ConflictError:  # the lease may be that of a turn which nobody has stopped
                await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_LOOK_SECONDS)
            timeline.extend(await self._log.read(conversation, after=timeline.seq))

    async def _end_stopped(self, conversation: tl.ConversationKey, term: int) -> None:
        """Read the conversation under the lease `term`, and end as stopped each turn that its user stopped."""
        timeline = await tl.open_timeline(self._log, conversation)
        cached = CachedConversation(timeline, await self._log.find(conversation))
        lease = self._lease_conversation(conversation, cached, term)
        for turn in _find_stopped(timeline):
            recorder, _ = lease.recorder(turn.number)
            await lease.stop(recorder)

    async def close(self) -> None:
        """Stop every running turn; waiting turns stay pending. Later turns are refused, or handed over after `hand_over`."""
        hands_over = self._closing
        self._closing = True
        await _wait_for_ends(
            self._begin_to_stop({key for key, lock in self._queues.items() if lock.locked()})
        )
        await self._cancel(self._requests)
        self._is_closed = not hands_over

    async def hand_over(self) -> None:
        """Leave every running turn unfinished for the next process, except turns that a user is stopping. Starts no other turn."""
        self._closing = True
        left = [pending for pending in self._requests if not pending.stopping]
        await asyncio.gather(*map(self._hand_over, left))
        await self._cancel(left)

    async def _hand_over(self, pending: _PendingRequest) -> None:
        """Mark a request as handed over, and record that in its running turn; an error of the record is logged."""
        pending.handed_over = True
        recorder = self._subscriptions.running.get(pending.request.conversation)
        try:
            if recorder is not None:
                await recorder.hand_over()
        except (
            errors.LooplineError
        ) as error:  # the next process takes it for a turn that was cut off
            _log.warning("that a turn is handed over is not recorded: %s", error)

    async def _cancel(self, requests: Sequence[_PendingRequest]) -> None:
        for pending in requests:
            pending.task.cancel()
        await _wait_for_ends(requests)

    def _begin_to_stop(self, conversations: Container[tl.ConversationKey]) -> list[_PendingRequest]:
        """Cancel the tasks of the requests of these conversations in this process, and return the requests."""
        stopped = [
            pending for pending in self._requests if pending.request.conversation in conversations
        ]
        for pending in stopped:
            _begin_to_stop(pending)
        return stopped

    async def _run_with_lease(self, pending: _PendingRequest) -> tl.TurnResult[Any]:
        """Take the lease and run the chosen turn. A sender that has to wait receives a notice of the turn that it waits for.

        Raises:
            ConflictError: another turn runs, and the request may not wait.
            StoppedInQueue: the request was stopped before its turn began.
        """
        request, conversation = pending.request, pending.request.conversation
        _inside.set(_inside.get() | {conversation})
        queue = self._queues.setdefault(conversation, asyncio.Lock())
        if not request.wait and queue.locked():
            raise errors.ConflictError(f"conversation {conversation.name!r} is being run already")
        is_told = request.sink is not None or _log.isEnabledFor(logging.INFO)
        notice = (
            subscriptions.BusyNotice(self._log, self.clock, conversation, request.sink)
            if is_told
            else None
        )
        order = turn_order.TurnOrder(self._log, self.sender or turn_order.NOBODY)
        try:
            while True:
                async with (
                    queue,
                    self._log.lease(conversation, wait=request.wait) as term,
                    AsyncExitStack() as published,
                ):
                    if self._live is not None:
                        published.enter_context(self._live.running(conversation, term, self))
                    number, lease = await self._choose_turn(request, term)
                    wait = await self._clear_way(pending, lease, number, order)
                    seen = lease.timeline.seq  # the next request here extends the same timeline
                    if wait is None:
                        if notice is not None:
                            await notice.end()
                        return await self._run_chosen(pending, lease, number)
                if not request.wait:
                    raise errors.ConflictError(
                        f"{tl.turn_id(number)} waits for another turn to end"
                    )
                await self._wait_for_change(conversation, seen, wait, order)
        except asyncio.CancelledError:
            if not pending.stopping:
                raise
            _uncancel()
            raise submission.StoppedInQueue("the turn was stopped before it was begun") from None
        finally:
            if notice is not None:
                await notice.end()

    async def _run_elsewhere(self, pending: _PendingRequest) -> tl.TurnResult[Any]:
        """Wait until another process has run the chosen turn, and pass its blocks to the request's sink.

        Raises:
            StoppedInQueue: the request was stopped.
            ConflictError: another turn runs or is queued, and the request may not wait.
            LooplineError: the request has limits or models that are not in the log, the turn may not run with this
                bundle, or the conversation was forgotten.
        """
        request, conversation = pending.request, pending.request.conversation
        if request.limits or request.any_bundle or request.variation is not submission.AS_IT_IS:
            raise errors.LooplineError(
                "this process only submits turns, so it cannot continue one with other limits, models or bundles"
            )
        try:
            with self._feeds.following(conversation) as feed, feed.sending(request.sink) as sender:
                await feed.update()
                number = await self._choose_elsewhere(request, feed)
                async with aclosing(feed.turn(number, sender)) as timelines:
                    async for timeline in timelines:
                        outcome = _outcome_elsewhere(timeline, number, request.answer_type)
                        if outcome is not None:
                            return outcome
                        if await self._is_left(conversation, timeline, number):
                            return react.result(
                                timeline, number, "interrupted", turn_order.CUT_OFF_AGAIN
                            )
        except asyncio.CancelledError:
            if not pending.stopping:
                raise
            _uncancel()
            raise submission.StoppedInQueue(
                "the turn was stopped, and another process ends it"
            ) from None
        raise errors.LooplineError(f"conversation {conversation.name!r} was forgotten")

    async def _choose_elsewhere(self, request: Request, feed: Feed) -> int:
        """Store the message for another process; return its turn. One that may not wait is stored only if no turn is open.

        A turn that workers leave, such as a turn that was cut off again, is put back for them.

        Raises:
            ConflictError: a turn runs or is queued, and the request may not wait.
            LooplineError: the turn may not run with this bundle, or was imported and not confirmed.
        """
        submission.check_known(feed.timeline)
        summary = await self._log.find(request.conversation)
        inherited = summary.inherited if summary else 0
        if request.wait:
            is_leased = turn_order.was_leased(feed.timeline, inherited)
            number = await request.choose(feed.timeline)
            if not is_leased:
                with suppress(errors.ConflictError):  # a worker has the conversation already
                    # After its first lease every sweep finds the conversation, however late.
                    async with self._log.lease(request.conversation, wait=False):
                        pass
        else:
            number = await self._choose_if_free(request, feed)
        await feed.update()
        timeline = await tl.reaching(self._log, request.conversation, feed.timeline, number)
        submission.check_confirmed(timeline, number)
        await self.order().check(timeline, timeline.turn(number))
        if turn_order.is_left(timeline, number, inherited):
            retry = tl.Entry(body=tl.UserRetry(), turn=number)
            await self._log.append(request.conversation, [retry], seen=timeline.seq)
        return number

    async def _choose_if_free(self, request: Request, feed: Feed) -> int:
        """Choose the turn under the lease, if no other turn runs or is queued.

        Raises:
            ConflictError: a turn runs or is queued.
        """
        while True:
            try:
                async with self._log.lease(request.conversation, wait=False):
                    await feed.update()
                    if not _is_busy(feed.timeline):
                        return await request.choose(feed.timeline)
            except errors.ConflictError:
                await feed.update()
            if _is_busy(feed.timeline):
                raise errors.ConflictError(
                    f"conversation {request.conversation.name!r} is being run already"
                )
            await asyncio.sleep(
                FIRST_LOOK_SECONDS
            )  # its runner has ended the turn and frees the lease

    async def _is_left(
        self, conversation: tl.ConversationKey, timeline: tl.Timeline, number: int
    ) -> bool:
        """Return whether no process runs the turn, and none resumes it without a request."""
        if not turn_order.is_cut_off_again(timeline.turn(number)):
            return False
        try:
            async with self._log.lease(conversation, wait=False):
                # Its runner may have ended it since the timeline was read.
                newest = await tl.open_timeline(self._log, conversation)
                return turn_order.is_cut_off_again(newest.turn(number))
        except errors.ConflictError:
            return False

    async def _wait_for_change(
        self,
        conversation: tl.ConversationKey,
        seen: int,
        wait: turn_order.WaitForTurn,
        order: turn_order.TurnOrder,
    ) -> None:
        """Wait for a block after `seen`, or until the conversation is forgotten.

        The harness that should write it counts as absent if it has gone or writes no block within `BEGIN_SECONDS`.
        """
        pause, waited = FIRST_LOOK_SECONDS, 0.0
        while not await self._log.read(conversation, after=seen, limit=1):
            if await self._log.forgotten(conversation) is not None:
                return
            sender = wait.sender
            if sender is not None and (
                waited >= BEGIN_SECONDS or not await self._log.is_present(sender)
            ):
                order.absent.add(sender.harness)
                return
            # Not by the port's clock: the other process lives in the time of this machine.
            await asyncio.sleep(pause)
            waited += pause
            pause = min(2 * pause, LAST_LOOK_SECONDS)

    async def _clear_way(
        self,
        pending: _PendingRequest,
        lease: LeasedConversation,
        number: int,
        order: turn_order.TurnOrder,
    ) -> turn_order.WaitForTurn | None:
        """Run or end the turns that precede the chosen one. Returns the step that it waits for, None if it may run.

        Raises:
            LooplineError: the chosen turn may not run with this bundle.
        """
        request, timeline = pending.request, lease.timeline
        turn = timeline.turn(number)
        if (
            request.child is not None
            or turn.exit is not None
            or turn_order.is_recalled(timeline, turn)
        ):
            return None
        self.check_bundle()
        inherited = lease.summary.inherited if lease.summary else 0
        if not request.any_bundle:
            await order.check(timeline, turn)
        while (step := await order.next_step(timeline, number, inherited)) is not None:
            if self._subscriptions.has(lease.conversation):
                await self._subscriptions.catch_up(lease.conversation, timeline, number)
            match step:
                case turn_order.WaitForTurn():
                    return step
                case turn_order.EndTurn(turn):
                    await lease.interrupt(turn.number)
                case turn_order.RunTurn(turn):
                    try:
                        await self._run_for_another(pending, lease, turn.number)
                    except errors.WrongBundle as error:
                        _log.warning(
                            "%s is not run for its sender: %s", tl.turn_id(turn.number), error
                        )
                        order.skipped.add(turn.number)
        return None

    async def _choose_turn(self, request: Request, term: int) -> tuple[int, LeasedConversation]:
        """Choose the turn from the newest blocks. Returns its number and the leased conversation.

        Background calls that were lost get their results first.

        Raises:
            StoreVersion: the conversation has blocks of a newer Loopline.
            LooplineError: the turn was imported unfinished and not confirmed.
        """
        conversation = request.conversation
        began = request.began if term == 1 else None  # nobody else has written to it then
        cached = await self._cache.read(conversation, began)
        submission.check_known(cached.timeline)
        number = await request.choose(cached.timeline)
        timeline = await tl.reaching(self._log, conversation, cached.timeline, number)
        submission.check_known(timeline)
        submission.check_confirmed(timeline, number)
        if self._bundle is not None:
            await self._bundle.services.background.settle(conversation, timeline)
        cached.timeline = timeline
        if cached.summary is None:
            cached.summary = await self._log.find(conversation)
        return number, self._lease_conversation(conversation, cached, term)

    def _lease_conversation(
        self, conversation: tl.ConversationKey, cached: CachedConversation, term: int
    ) -> LeasedConversation:
        """Return the cached conversation as leased under `term`; this does not read or write the log."""
        return LeasedConversation(
            log=self._log,
            clock=self.clock,
            subscriptions=self._subscriptions,
            conversation=conversation,
            summary=cached.summary,
            timeline=cached.timeline,
            term=term,
        )

    async def _run_chosen(
        self, pending: _PendingRequest, lease: LeasedConversation, number: int
    ) -> tl.TurnResult[Any]:
        """Run the chosen turn under the lease. The turn has ended or is left for another process when this returns.

        A turn that has ended, was recalled or is paused is not run; its result is returned.
        """
        timeline, request = lease.timeline, pending.request
        if self._subscriptions.has(lease.conversation):
            await self._subscriptions.catch_up(lease.conversation, timeline, number)
        sender = None if request.sink is None else subscriptions.Subscriber(request.sink, 0)
        turn = timeline.turn(number)
        if turn.exit is not None:
            subscriptions.replay(timeline, number, sender)
            return _build_result(timeline, number, request.answer_type)
        if turn_order.is_recalled(timeline, turn):
            return build_stopped_result(tl.turn_id(number))
        if turn.is_paused and not turn.stopped:
            subscriptions.replay(timeline, number, sender)
            return react.result(timeline, number, "paused", output=request.answer_type)
        recorder, sink = lease.recorder(number, sender)
        recorder.adopted, recorder.any_bundle = request.adopted, request.any_bundle
        with subscriptions.in_turn(recorder):
            try:
                subscriptions.replay(timeline, number, sender)
                if recorder.turn.stopped:  # by a process that did not live to end it
                    await lease.stop(recorder)
                    return _build_result(timeline, number, request.answer_type)
                return await self._run_turn(pending, lease, recorder, sink)
            except asyncio.CancelledError:
                if recorder.turn.exit is None and not pending.handed_over:
                    subscriptions.replay(timeline, number, sender)
                    await lease.stop(recorder)
                if not pending.stopping:
                    raise
                _uncancel()
                return _build_result(timeline, number, request.answer_type)

    async def _run_for_another(
        self, pending: _PendingRequest, lease: LeasedConversation, number: int
    ) -> None:
        """Run a turn of another sender, which reads the result in the log; only StoreError and WrongBundle are raised."""
        recorder, sink = lease.recorder(number)
        recorder.adopted = True
        with subscriptions.in_turn(recorder):
            try:
                await self._run_turn(pending, lease, recorder, sink)
            except (errors.StoreError, errors.WrongBundle):
                raise
            except errors.LooplineError as error:
                _log.warning("%s was run for its sender, and failed: %s", tl.turn_id(number), error)

    async def _run_turn(
        self,
        pending: _PendingRequest,
        lease: LeasedConversation,
        recorder: tl.Recorder,
        sink: EventSink,
    ) -> tl.TurnResult[Any]:
        """Prepare the turn, let the bundle run it, and record its end.

        A turn that pauses or is handed over gets no end. An error of the bundle is recorded and raised.

        Raises:
            LeaseLost: this process has begun to hand over its turns.
        """
        _check_not_handed_over(pending)
        payload, limits, schema = _payload(recorder)
        request, bundle, child = pending.request, self.check_bundle(), pending.request.child
        recorder.output = None if recorder.adopted else request.output
        if recorder.output is None and schema is not None:
            recorder.output = OutputType.from_schema(schema)
        recorder.on_stop = partial(_begin_to_stop, pending)
        recorder.begin_to_run()
        self._subscriptions.running[request.conversation] = recorder
        open_models = request.variation.models or bundle.services.models
        try:
            async with (
                nullcontext(child.models) if child else open_models(request.conversation)
            ) as models:
                run = await bundle.prepare(
                    payload=payload,
                    recorder=recorder,
                    sink=sink,
                    limits=react.merge_limits(limits, request.limits),
                    models=models,
                    model=child.model if child else None,
                    conversation=ConversationView(
                        recorder.timeline, lease.summary, history=recorder.history
                    ),
                    lookup=conversation_lookup(self._log, lease.conversation),
                    spawn=partial(self.run_child, lease.conversation, models),
                    instructions=request.variation.instructions,
                )
                done = await (child.loop(run) if child else bundle.run(run))
        except asyncio.CancelledError:
            if not pending.handed_over:
                await lease.stop(recorder)
            raise
        except (errors.LeaseLost, errors.StoreBusy, errors.StoreFailed, errors.WrongBundle):
            raise  # the turn is left as it is, to be carried on
        except Exception as error:
            if pending.handed_over:
                raise errors.LeaseLost(str(error)) from error
            await _end_failed(lease, recorder, error, bundle.services.convert_error)
        finally:
            self._subscriptions.running.pop(request.conversation, None)
        if done.exit_reason == "paused":
            return done
        await finish(lease.end(recorder, done.exit_reason, done.error))
        if child is None and self.on_turn_end is not None:
            self.on_turn_end(request.conversation)
        turn, late = recorder.turn, react.late_input(recorder.timeline)
        if (turn.usage, turn.cost, late) == (done.usage, done.cost, done.late_input):
            return done
        # a child that ended with it has told what it used
        return replace(done, usage=turn.usage, cost=turn.cost, late_input=late)


async def _end_failed(
    lease: LeasedConversation,
    recorder: tl.Recorder,
    error: Exception,
    convert_error: Callable[[Exception], Exception],
) -> NoReturn:
    """Record the end of a turn that failed, with the error that users see, and raise that error."""
    shown = convert_error(error)
    by_bundle = isinstance(error, errors.BundleError)
    await finish(lease.end(recorder, "error", str(shown), by_bundle=by_bundle))
    if shown is error:
        raise error
    raise shown from error


async def _read_inputs(recorder: tl.Recorder) -> None:
    """Pass the steers, stops and answers that the log has to the running turn."""
    with suppress(errors.StoreError):  # the turn itself reads the log soon
        stored = await recorder.newest_steer_after(0)
        newest = recorder.waiting_steer_after(stored)
        if newest:
            recorder.notify_steer(newest)


def _check_not_handed_over(pending: _PendingRequest) -> None:
    if pending.handed_over:
        raise errors.LeaseLost("the turn is left to the next process")


def _is_busy(timeline: tl.Timeline) -> bool:
    """Return whether a turn runs or is queued; a paused turn does neither."""
    return any(not turn.is_paused for turn in timeline.open_turns)


def _outcome_elsewhere(
    timeline: tl.Timeline, number: int, output: OutputType[Any] | None
) -> tl.TurnResult[Any] | None:
    """Return the result of a turn that has ended, is paused or was recalled, else None."""
    turn = timeline.turn(number)
    if turn.exit is not None:
        return _build_result(timeline, number, output)
    if turn_order.is_recalled(timeline, turn):
        return build_stopped_result(tl.turn_id(number))
    if turn.is_paused and not turn.stopped and turn.pending.keys() == turn.open_ids:
        return react.result(timeline, number, "paused", output=output)
    return None


def _find_stopped(timeline: tl.Timeline) -> list[tl.Turn]:
    """Return the turns that the user stopped and that have not ended."""
    return [turn for turn in timeline.turns.values() if turn.stopped and turn.exit is None]


def build_stopped_result(turn: str) -> tl.TurnResult[Any]:
    """Build the result of a turn that was stopped before it started."""
    return tl.TurnResult(answer="", turn_id=turn, exit_reason="stopped", ok=False)


async def _wait_for_ends(requests: Sequence[_PendingRequest]) -> None:
    if requests:
        await asyncio.wait([pending.task for pending in requests])


def _begin_to_stop(pending: _PendingRequest) -> None:
    if not pending.stopping:
        pending.stopping = True
        pending.task.cancel()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _uncancel() -> None:
    """Withdraw the cancellation that stopped the turn, so that the task can continue."""
    task = asyncio.current_task()
    while task is not None and task.cancelling() > 0:
        task.uncancel()


def _build_result(
    timeline: tl.Timeline, number: int, output: OutputType[Any] | None
) -> tl.TurnResult[Any]:
    """Build the result of an ended turn.

    Raises:
        BundleError: its bundle's code failed.
        LooplineError: the turn has not ended.
    """
    end = timeline.turn(number).exit
    if end is None:
        raise errors.LooplineError(f"{tl.turn_id(number)} has not ended")
    if end.by_bundle:
        raise errors.BundleError(end.error)
    return react.result(timeline, number, end.reason, end.error, output)


def _payload(recorder: tl.Recorder) -> tuple[react.TurnPayload, react.Limits, OutputSchema | None]:
    """Read the payload of the turn, its limits and the schema of its answer from the log.

    Raises:
        LooplineError: the turn does not have a prompt.
    """
    block, key = recorder.turn.prompt, recorder.conversation
    if block is None or not isinstance(prompt := block.body, tl.UserPrompt):
        raise errors.LooplineError(f"{tl.turn_id(recorder.number)} has no prompt to answer to")
    payload = react.TurnPayload(
        text=prompt.text,
        conversation=key.name,
        turn_id=f"turn_{recorder.number}",
        ts=block.ts,
        tenant=key.tenant,
        project=key.project,
        user=key.user,
        attachments=[*map(attachment_of, recorder.timeline.attachments(block.seq))],
    )
    return payload, react.restore_limits(prompt.limits, prompt.settings), prompt.output
