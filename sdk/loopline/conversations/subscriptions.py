"""Subscriptions: who is told of a conversation's events, and how each of them is told every block once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from msgspec import Struct, structs

from loopline.clock import Clock
from loopline.conversations.turn_log import log_block
from loopline.errors import StoreError
from loopline.events import Caller, Delta, Event, EventSink, ObservedTurn, Observer
from loopline.redaction.redaction import Redactor, redact_json, redact_text
from loopline.timeline import (
    Block,
    BodyUnion,
    ConversationKey,
    Exit,
    Recorder,
    RoundStart,
    Timeline,
    TimelineLog,
    open_timeline,
    parent_name,
    turn_id,
)

BUSY_SECONDS = 0.5
"""How long a turn waits before its sender is told what for."""
QUEUE_CHANNEL = "queue"

_ROUNDS = BodyUnion[RoundStart](RoundStart)
logger: logging.Logger = logging.getLogger("loopline")


@dataclass(slots=True, eq=False)
class Subscriber:
    """A receiver of events, and the seq of the last block that it received: no block comes twice.

    `seq` is None where that is not known yet.
    """

    sink: EventSink
    seq: int | None

    def receive(self, event: Event) -> None:
        """Pass the event on, unless it is a block that was received before."""
        match event:
            case Block(seq=seq) if seq <= (self.seq or 0):
                return
            case Block(seq=seq):
                self.seq = seq
            case Delta():
                pass
        self.sink(event)


class Subscriptions:
    """All receivers of the events of turns: their senders, the subscribers of conversations, and an observer.

    `running` has the recorders of the turns that run here.
    """

    def __init__(
        self,
        log: TimelineLog,
        observer: Observer | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self._log = log
        self._observer = observer
        self._redactor = redactor
        self._subscribers: dict[ConversationKey, list[Subscriber]] = {}
        self.running: dict[ConversationKey, Recorder] = {}

    @contextmanager
    def subscribed(
        self, conversation: ConversationKey, subscriber: Subscriber
    ) -> Generator[None, None, None]:
        """Tell the subscriber of the conversation's events until the context is left."""
        subscribers = self._subscribers.setdefault(conversation, [])
        subscribers.append(subscriber)
        try:
            yield
        finally:
            subscribers.remove(subscriber)
            if not subscribers:
                del self._subscribers[conversation]

    def notify(self, conversation: ConversationKey, text: str) -> None:
        """Tell the subscribers of a conversation what its next turn waits for."""
        notice = Delta(type="progress", channel=QUEUE_CHANNEL, text=text)
        for subscriber in tuple(self._subscribers.get(conversation, ())):
            subscriber.receive(notice)

    def audience(
        self, turn: ObservedTurn, timeline: Timeline, sender: Subscriber | None
    ) -> Audience:
        """Return all who receive the events of a turn, with its sender if there is one."""
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

    def has(self, conversation: ConversationKey) -> bool:
        """Return whether anybody subscribes to the conversation."""
        return conversation in self._subscribers

    async def catch_up(
        self, conversation: ConversationKey, timeline: Timeline, number: int
    ) -> None:
        """Send the subscribers what was written since their last block, before that turn is run.

        A subscriber without a known last block receives the turn from its first block on.
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

    def observed(self, conversation: ConversationKey, uid: str, number: int) -> ObservedTurn:
        """Return the turn as an observer knows it, with the call that began it if a turn that runs here did."""
        name = parent_name(conversation.name)
        parent = (
            None if name is None else self.running.get(structs.replace(conversation, name=name))
        )
        child = None if parent is None else parent.turn.children.get(conversation.name)
        caller = None
        if parent is not None and child is not None:
            turn = self.observed(parent.conversation, parent.uid, parent.number)
            caller = Caller(turn, child.call_id)
        return ObservedTurn(conversation=conversation, uid=uid, turn=number, caller=caller)


class Audience(Struct, frozen=True, kw_only=True):
    """Who receives the events of a turn: the observer, the program's log, the sender and the subscribers."""

    conversation: ConversationKey
    sender: Subscriber | None
    subscribers: Mapping[ConversationKey, Sequence[Subscriber]]
    observation: _Observation | None
    redactor: Redactor | None
    logs: bool

    def receive(self, event: Event) -> None:
        """Pass the event on to everybody."""
        match event:
            case Block():
                if self.observation is not None:
                    self.observation.tell(event)
                if self.logs:
                    log_block(self.conversation.name, event)
            case Delta():
                event = _redacted(event, self.redactor)
        if self.sender is not None:
            self.sender.receive(event)
        if self.subscribers:
            for subscriber in tuple(self.subscribers.get(self.conversation, ())):
                subscriber.receive(event)

    def is_there(self) -> bool:
        """Return whether there is a sender, or anybody subscribes to the conversation."""
        return self.sender is not None or self.conversation in self.subscribers

    def has_user(self) -> bool:
        """Return whether somebody who hears a question can answer it: the sender of a child run is its parent."""
        is_child = parent_name(self.conversation.name) is not None
        return self.conversation in self.subscribers if is_child else self.is_there()


def _redacted(delta: Delta, redactor: Redactor | None) -> Delta:
    """Return what a tool or a workflow reports, redacted; what a model writes is redacted as it comes."""
    if redactor is None or delta.type not in ("progress", "custom", "pending"):
        return delta
    text, data = redact_text(redactor, delta.text), redact_json(redactor, delta.data)
    return replace(delta, text=text, data=data)


class _Observation:
    """An observer of a turn. One that breaks cannot harm the turn, and is told no more of it."""

    def __init__(self, observer: Observer, turn: ObservedTurn, blocks: Sequence[Block]) -> None:
        self._tell: Callable[[Block], None] | None = None
        try:
            self._tell = observer.begin(turn, blocks)
        except Exception:
            logger.exception("the observer broke: it hears nothing of this turn")

    def tell(self, block: Block) -> None:
        if self._tell is None:
            return
        try:
            self._tell(block)
        except Exception:
            logger.exception("the observer broke: it hears no more of this turn")
            self._tell = None


def blocks_of(timeline: Timeline, number: int) -> list[Block]:
    """Return the blocks of a turn, which begins with its prompt."""
    prompt = timeline.turn(number).prompt
    after = timeline.seq if prompt is None else prompt.seq - 1
    return [block for block in timeline.after(after) if block.turn == number]


def replay(timeline: Timeline, number: int, sender: Subscriber | None) -> None:
    """Tell the sender the turn as far as it goes, and the user's input that it took or may take."""
    if sender is None:
        return
    blocks = blocks_of(timeline, number)
    seqs = {block.seq for block in (*blocks, *timeline.inputs_for(number))}
    seqs |= {seq for _, start in _ROUNDS.among(blocks) for seq in start.takes}
    for block in timeline.after(min(seqs, default=1) - 1):
        if block.seq in seqs:
            sender.receive(block)
        if block.turn == number and isinstance(block.body, Exit):
            return


class BusyNotice:
    """A notice of which turn the sender of a turn waits for, told once it has waited `BUSY_SECONDS`, until it ends."""

    def __init__(
        self, log: TimelineLog, clock: Clock, conversation: ConversationKey, sink: EventSink | None
    ) -> None:
        self._log = log
        self._conversation = conversation
        self._sink = sink
        self._telling: asyncio.Task[None] | None = None
        self._alarm = clock.alarm(BUSY_SECONDS, self._begin)

    async def end(self) -> None:
        """Tell nothing more."""
        self._alarm.cancel()
        telling, self._telling = self._telling, None
        if telling is not None:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    def _begin(self) -> None:
        self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        """Tell the sender, and the log of the program."""
        try:
            timeline = await open_timeline(self._log, self._conversation)
        except StoreError:
            return  # the turn itself reads the store next, and raises what is wrong with it
        text = "another turn is about to run"
        running = next(iter(timeline.unfinished), None)
        if running is not None and running.is_paused:
            calls = ", ".join(running.unanswered)
            text = f"{turn_id(running.number)} waits for an answer to {calls}"
        elif running is not None and running.started_at is not None:
            since = f"{running.started_at:%H:%M:%S} UTC"
            text = f"{turn_id(running.number)} has been running since {since}"
        logger.info("conversation %r is busy: %s", self._conversation.name, text)
        if self._sink is not None:
            self._sink(Delta(type="progress", channel=QUEUE_CHANNEL, text=text))
