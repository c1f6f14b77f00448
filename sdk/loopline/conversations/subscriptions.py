"""Subscriptions: the receivers of a conversation's events. Each receives every block once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import Struct, structs

from loopline import events
from loopline import timeline as tl
from loopline.clock import Clock
from loopline.errors import StoreError
from loopline.models import one_line
from loopline.redaction.redaction import Redactor, redact_json, redact_text
from loopline.tasks import cancel_all

logger: logging.Logger = logging.getLogger("loopline")
_running: ContextVar[tl.Recorder | None] = ContextVar("_running", default=None)


class InTurn(logging.Filter):
    """A filter that gives each record the `conversation`, `turn_id` and `round` of the turn that made it.

    Outside a turn they are empty and 0. A child run and the thread of a tool have the values of their turn.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        recorder, fields = _running.get(), vars(record)
        fields.setdefault("conversation", recorder.conversation.name if recorder else "")
        fields.setdefault("turn_id", tl.turn_id(recorder.number) if recorder else "")
        fields.setdefault("round", recorder.round if recorder else 0)
        return True


IN_TURN: InTurn = InTurn()


@contextmanager
def in_turn(recorder: tl.Recorder) -> Generator[None, None, None]:
    """Attribute log records inside the context to the turn of `recorder`."""
    token = _running.set(recorder)
    try:
        yield
    finally:
        _running.reset(token)


Values = dict[str, str | int | float]
LINE_CHARACTERS = 1_000
"""The longest line that is logged about a block."""


LoggedBody = (
    tl.TurnHeader | tl.Decision | tl.ModelSwitched | tl.ToolPending | tl.ToolResult | tl.Exit
)
"""The bodies whose records are of use to a person."""
_LOGGED = tl.BodyUnion[LoggedBody](LoggedBody)


def log_block(conversation: str, block: tl.Block) -> None:
    """Log the block on one line, if its type is one of those that are logged."""
    body = block.body
    if _LOGGED.has(body) and logger.isEnabledFor(logging.INFO):
        turn = block.turn_id
        text, values = _record(body, block.round)
        where: Values = {"conversation": conversation, "turn_id": turn, "round": block.round}
        # Names of conversations, models and tools are from outside: they must not begin another line.
        line = one_line(f"{conversation} {turn} {text}", LINE_CHARACTERS)
        logger.info("%s", line, extra=where | values)


def _record(body: LoggedBody, number: int) -> tuple[str, Values]:
    """Return the text of a log record, and its structured values."""
    match body:
        case tl.TurnHeader(bundle=bundle, model=model):
            return f"begins: {bundle} with {model}", {"bundle": bundle, "model": model}
        case tl.Decision(stop_reason=why, calls=calls, usage=usage, model=model):
            tokens = f"{usage.input_tokens} + {usage.output_tokens} tokens"
            text = f"round {number}: {why}, {calls} calls, {tokens}"
            return text, {"model": model, "stop_reason": why, "calls": calls}
        case tl.ModelSwitched(model=model, to=to, why=why):
            text = f"round {number}: {model} gives way to {to}: {why}"
            return text, {"model": model, "to": to, "why": why}
        case tl.ToolPending(call_id=call_id, kind=kind):
            return f"{call_id} waits for the user: {kind}", {"call_id": call_id}
        case tl.ToolResult(call_id=call_id, tool=tool, status=status, elapsed_ms=elapsed):
            of_call: Values = {"call_id": call_id, "tool": tool, "status": status}
            text = f"{call_id} {tool}: {status} in {elapsed:.0f} ms"
            return text, of_call | {"elapsed_ms": elapsed}
        case tl.Exit(reason=reason, rounds=rounds, elapsed_ms=elapsed):
            text = f"ends: {reason} after {rounds} rounds, {elapsed:.0f} ms"
            return text, {"reason": reason, "rounds": rounds, "elapsed_ms": elapsed}


BUSY_SECONDS = 0.5
"""How long a turn waits before its sender is told what for."""
QUEUE_CHANNEL = "queue"

_ROUNDS = tl.BodyUnion[tl.RoundStart](tl.RoundStart)


@dataclass(slots=True, eq=False)
class Subscriber:
    """A receiver of events that drops blocks it has received before. `seq` is that of its last block.

    `seq` is None before the first block. `position` is the newest seq of which a feed has told it.
    """

    sink: events.EventSink
    seq: int | None
    position: int = 0

    def receive(self, event: events.Event) -> None:
        """Pass the event to the sink; drop a block that was received before."""
        match event:
            case tl.Block(seq=seq) if seq <= (self.seq or 0):
                return
            case tl.Block(seq=seq):
                self.seq = seq
            case events.Delta():
                pass
        self.sink(event)


class Subscriptions:
    """All receivers of events of turns: senders, subscribers of conversations, and the observer.

    `running` has the recorders of the turns that run in this process.
    """

    def __init__(
        self,
        log: tl.TimelineLog,
        observer: events.Observer | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self._log = log
        self._observer = observer
        self._redactor = redactor
        self._subscribers: dict[tl.ConversationKey, list[Subscriber]] = {}
        self.running: dict[tl.ConversationKey, tl.Recorder] = {}

    @contextmanager
    def subscribed(
        self, conversation: tl.ConversationKey, subscriber: Subscriber
    ) -> Generator[None, None, None]:
        """Deliver the conversation's events to `subscriber` inside the context."""
        subscribers = self._subscribers.setdefault(conversation, [])
        subscribers.append(subscriber)
        try:
            yield
        finally:
            subscribers.remove(subscriber)
            if not subscribers:
                del self._subscribers[conversation]

    def notify(self, conversation: tl.ConversationKey, text: str) -> None:
        """Send the subscribers of a conversation a notice."""
        notice = events.Delta(type="progress", channel=QUEUE_CHANNEL, text=text)
        for subscriber in tuple(self._subscribers.get(conversation, ())):
            subscriber.receive(notice)

    def deliver(self, conversation: tl.ConversationKey, block: tl.Block) -> None:
        """Deliver a block that another process has stored to the subscribers of its conversation."""
        for subscriber in tuple(self._subscribers.get(conversation, ())):
            subscriber.position = block.seq
            subscriber.receive(block)

    def deliver_delta(
        self, conversation: tl.ConversationKey, delta: events.Delta | None, seq: int
    ) -> None:
        """Deliver a delta of another process that follows the block at `seq`, or with None the position `seq` alone.

        A subscriber that has not received that block is told of it first by a `missed` that names no block.
        """
        for subscriber in tuple(self._subscribers.get(conversation, ())):
            if subscriber.position < seq:
                subscriber.position = seq
                subscriber.sink(events.Delta(type="missed", channel="", after=seq, through=seq))
            if delta is not None:
                subscriber.receive(delta)

    def audience(
        self, turn: events.ObservedTurn, timeline: tl.Timeline, sender: Subscriber | None
    ) -> Audience:
        """Return the receivers of a turn's events, with its sender if it has one. An observer knows the blocks in `timeline`."""
        observation = None
        if self._observer is not None:
            observation = _Observation(self._observer, turn, blocks_of(timeline, turn.turn))
        return Audience(
            conversation=turn.conversation,
            sender=sender,
            subscribers=self._subscribers,
            observation=observation,
            redactor=self._redactor,
            logs=logger.isEnabledFor(logging.INFO),
        )

    def delivered(self, conversation: tl.ConversationKey) -> int:
        """Return the seq up to which every subscriber of the conversation has received the blocks."""
        subscribers = self._subscribers.get(conversation, ())
        return min([subscriber.seq or 0 for subscriber in subscribers], default=0)

    def has(self, conversation: tl.ConversationKey) -> bool:
        """Return whether the conversation has a subscriber."""
        return conversation in self._subscribers

    async def catch_up(
        self, conversation: tl.ConversationKey, timeline: tl.Timeline, number: int
    ) -> None:
        """Send the subscribers the blocks since their last one, before the turn runs.

        A subscriber without a last block receives the turn from its first block on.
        """
        subscribers = tuple(self._subscribers.get(conversation, ()))
        prompt = timeline.turn(number).prompt
        for subscriber in subscribers:
            if subscriber.seq is None:
                subscriber.seq = timeline.seq if prompt is None else prompt.seq - 1
        after = min([subscriber.seq or 0 for subscriber in subscribers], default=timeline.seq)
        blocks = timeline.after(after)
        if after < timeline.base.covers:
            blocks = await self._log.read(conversation, after=after)
        for block in blocks:
            for subscriber in subscribers:
                subscriber.receive(block)

    def observed(
        self, conversation: tl.ConversationKey, uid: str, number: int
    ) -> events.ObservedTurn:
        """Return the turn for an observer, with the call that started it if its parent runs in this process."""
        name = tl.parent_name(conversation.name)
        parent = (
            None if name is None else self.running.get(structs.replace(conversation, name=name))
        )
        child = None if parent is None else parent.turn.children.get(conversation.name)
        caller = None
        if parent is not None and child is not None:
            turn = self.observed(parent.conversation, parent.uid, parent.number)
            caller = events.Caller(turn, child.call_id)
        return events.ObservedTurn(conversation=conversation, uid=uid, turn=number, caller=caller)


class Audience(Struct, frozen=True, kw_only=True):
    """The receivers of one turn's events: the observer, the log, the sender and the subscribers."""

    conversation: tl.ConversationKey
    sender: Subscriber | None
    subscribers: Mapping[tl.ConversationKey, Sequence[Subscriber]]
    observation: _Observation | None
    redactor: Redactor | None
    logs: bool

    def receive(self, event: events.Event) -> None:
        """Deliver the event to all receivers."""
        match event:
            case tl.Block():
                if self.observation is not None:
                    self.observation.tell(event)
                if self.logs:
                    log_block(self.conversation.name, event)
            case events.Delta():
                event = _redact(event, self.redactor)
        if self.sender is not None:
            self.sender.receive(event)
        if self.subscribers:
            for subscriber in tuple(self.subscribers.get(self.conversation, ())):
                subscriber.receive(event)

    def is_there(self) -> bool:
        """Return whether the turn has a sender or the conversation a subscriber."""
        return self.sender is not None or self.conversation in self.subscribers

    def has_user(self) -> bool:
        """Return whether a receiver can answer a question. The sender of a child run is its parent, which cannot."""
        is_child = tl.parent_name(self.conversation.name) is not None
        return self.conversation in self.subscribers if is_child else self.is_there()


def _redact(delta: events.Delta, redactor: Redactor | None) -> events.Delta:
    """Redact a delta of a tool or workflow. Deltas of a model are redacted before they arrive here."""
    if redactor is None or delta.type not in ("progress", "custom", "pending"):
        return delta
    text, data = redact_text(redactor, delta.text), redact_json(redactor, delta.data)
    return replace(delta, text=text, data=data)


class _Observation:
    """An observer of a turn. If it raises, the turn continues and the observer receives no more of it."""

    def __init__(
        self, observer: events.Observer, turn: events.ObservedTurn, blocks: Sequence[tl.Block]
    ) -> None:
        self._tell: Callable[[tl.Block], None] | None = None
        try:
            self._tell = observer.begin(turn, blocks)
        except Exception:
            logger.exception("the observer broke: it hears nothing of this turn")

    def tell(self, block: tl.Block) -> None:
        """Pass a block to the observer; if it raises, log the error and stop calling it."""
        if self._tell is None:
            return
        try:
            self._tell(block)
        except Exception:
            logger.exception("the observer broke: it hears no more of this turn")
            self._tell = None


def blocks_of(timeline: tl.Timeline, number: int) -> list[tl.Block]:
    """Return the blocks of a turn, from its prompt on; none if it has no prompt."""
    prompt = timeline.turn(number).prompt
    after = timeline.seq if prompt is None else prompt.seq - 1
    return [block for block in timeline.after(after) if block.turn == number]


def replay(timeline: tl.Timeline, number: int, sender: Subscriber | None) -> None:
    """Send a sender, if not None, the blocks of the turn so far, with the user input that it took or may take."""
    if sender is None:
        return
    blocks = blocks_of(timeline, number)
    seqs = {block.seq for block in (*blocks, *timeline.inputs_for(number))}
    seqs |= {seq for _, start in _ROUNDS.among(blocks) for seq in start.takes}
    for block in timeline.after(min(seqs, default=1) - 1):
        if block.seq in seqs:
            sender.receive(block)
        if block.turn == number and isinstance(block.body, tl.Exit):
            return


class BusyNotice:
    """A notice for a sender that has waited `BUSY_SECONDS`: it names the turn that the sender waits for."""

    def __init__(
        self,
        log: tl.TimelineLog,
        clock: Clock,
        conversation: tl.ConversationKey,
        sink: events.EventSink | None,
    ) -> None:
        self._log = log
        self._conversation = conversation
        self._sink = sink
        self._telling: asyncio.Task[None] | None = None
        self._alarm = clock.alarm(BUSY_SECONDS, self._begin)

    async def end(self) -> None:
        """Cancel the notice."""
        self._alarm.cancel()
        telling, self._telling = self._telling, None
        if telling is not None:
            await cancel_all(telling)

    def _begin(self) -> None:
        self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        """Log the turn that the sender waits for, and send this text to the sink; not if the store cannot be read."""
        try:
            timeline = await tl.open_timeline(self._log, self._conversation)
        except StoreError:
            return  # the turn itself reads the store next, and raises what is wrong with it
        text = "another turn is about to run"
        running = next(iter(timeline.unfinished), None)
        if running is not None and running.is_paused:
            calls = ", ".join(running.unanswered)
            text = f"{tl.turn_id(running.number)} waits for an answer to {calls}"
        elif running is not None and running.started_at is not None:
            since = f"{running.started_at:%H:%M:%S} UTC"
            text = f"{tl.turn_id(running.number)} has been running since {since}"
        logger.info("conversation %r is busy: %s", self._conversation.name, text)
        if self._sink is not None:
            self._sink(events.Delta(type="progress", channel=QUEUE_CHANNEL, text=text))


PAGE = 200
"""So many blocks are read from the log at a time."""
FIRST_PAGE = 8
"""So many are read first for whoever may not read them soon, then more while they are small."""


class ReadBlocks(Protocol):
    """A function that reads at most `limit` blocks of a conversation after a seq."""

    def __call__(self, *, after: int, limit: int) -> Awaitable[Sequence[tl.Block]]:
        """Return the blocks."""
        ...


@dataclass(slots=True, eq=False)
class EventOrder:
    """Decides which events follow the block `newest`.

    `reached` is the newest block that turns have published. The log may be ahead of it; then deltas that precede the
    last block in the log are dropped.
    """

    newest: int
    reached: int
    _stands: int = 0

    def take_stored(self, blocks: Sequence[tl.Block]) -> list[tl.Block]:
        """Note blocks of the log, without a gap after `newest`; return those after `newest`."""
        new = [block for block in blocks if block.seq > self.newest]
        self._stands = max([block.seq for block in new if block.term], default=self._stands)
        self.newest = max([block.seq for block in new], default=self.newest)
        return new

    def missing(self, event: events.Event) -> int:
        """Return the number of blocks to read from the log before the event is taken."""
        match event:
            case tl.Block(seq=seq):
                return max(seq - 1 - self.newest, 0)
            case events.Delta(type="missed", through=through):
                return max(through - self.newest, 0)
            case events.Delta():
                return 0

    def take(self, event: events.Event) -> bool:
        """Note an event; return whether to yield it: a block after `newest`, or a delta that is not outdated."""
        match event:
            case tl.Block(seq=seq):
                self.reached, is_next = max(self.reached, seq), seq > self.newest
                self.newest = max(self.newest, seq)
                return is_next
            case events.Delta(type="missed", through=through):
                self.reached = max(self.reached, through)
                return False
            case events.Delta():
                return self.reached >= self._stands


async def order_events(
    mailbox: events.Mailbox, order: EventOrder, read: ReadBlocks
) -> AsyncGenerator[events.Event, None]:
    """Yield the next blocks of the log, then the events of the mailbox, with blocks that the mailbox lacks read from the log."""
    limit, is_behind = FIRST_PAGE, True
    while is_behind:
        page = await read(after=order.newest, limit=limit)
        is_behind, limit = len(page) == limit, _next_limit(limit, page)
        for block in order.take_stored(page):
            yield block
    async for event in mailbox:
        if order.missing(event):
            async for block in missing_blocks(order, event, read):
                yield block
        if order.take(event):
            yield event


async def missing_blocks(
    order: EventOrder, event: events.Event, read: ReadBlocks
) -> AsyncGenerator[tl.Block, None]:
    """Yield the blocks that precede an event, read from the log page by page; end if it has no more."""
    limit = FIRST_PAGE
    while missing := order.missing(event):
        page = await read(after=order.newest, limit=min(missing, limit))
        limit = _next_limit(limit, page)
        for block in order.take_stored(page):
            yield block
        if not page:
            return


def _next_limit(limit: int, page: Sequence[tl.Block]) -> int:
    """Return the number of blocks to read next: twice `limit` after a small page, at most `PAGE`; otherwise half."""
    size = sum(map(events.event_size, page))
    return min(limit * 2, PAGE) if size < events.HELD_SIZE // 4 else max(limit // 2, 1)
