"""Live events: a process hears the turns that other processes of its store run, and learns of inputs for its own turns.

The log has every block and every input. A lost message therefore delays, and the text that it had comes with the next
block.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from secrets import token_hex
from typing import Protocol, Self

from loopline import timeline as tl
from loopline.conversations import live_messages as messages
from loopline.errors import StoreError
from loopline.events import Delta, Event, EventSink, event_size
from loopline.tasks import cancel_all, raise_lost_cancellation

FLUSH_SECONDS = 0.025
"""The least time between two transmissions of a process. What is published meanwhile is sent together."""
SECONDS_PER_MESSAGE = 0.000_1
"""How much longer it waits for each message that it has sent, so that many turns share larger messages."""
REPEAT_SECONDS = 10.0
"""How often a process repeats which conversations it listens to."""
INTEREST_SECONDS = 35.0
"""How long an interest counts that is not repeated."""
RECONNECT_SECONDS = 0.2
LAST_RECONNECT_SECONDS = 5.0
"""How long a process waits before it connects again, at first and at last."""
CLOSE_SECONDS = 2.0
DIGESTS = 200
"""The conversations that one message names."""
LARGEST_BACKLOG = 256 * 1024
"""The size of deltas that may wait for a transmission, for one turn; more are left to the log."""
MOST_TEXTS = 10_000
"""The most encoded messages that may wait for a transmission."""
logger: logging.Logger = logging.getLogger("loopline")


class Relay(Protocol):
    """Carries texts from each process of a store to all of them, itself included. It may lose texts while it is disconnected.

    `limit_bytes` is the size limit of a text.
    """

    limit_bytes: int

    def receive(self) -> AsyncGenerator[str | None]:
        """Connect, yield None, and then yield the texts of all processes, each process's in its order.

        Raises:
            StoreError: the server cannot be reached, or the connection was lost.
        """
        ...

    async def publish(self, texts: Sequence[str]) -> None:
        """Send texts in order.

        Raises:
            StoreError: the server cannot be reached; the texts may be lost.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class Follower(Protocol):
    """Receives the messages about a conversation whose turns other processes run."""

    def receive(self, events: messages.TurnEvents) -> None:
        """Take events of a turn."""
        ...

    def wake(self) -> None:
        """Read the log, since it may have new blocks."""
        ...


class Runner(Protocol):
    """Runs turns in this process."""

    def listened(
        self, conversation: tl.ConversationKey, sink: EventSink
    ) -> AbstractContextManager[None]:
        """Pass the events of the conversation's turns to `sink` inside the context."""
        ...

    def last_seq(self, conversation: tl.ConversationKey) -> int | None:
        """Return the last seq of the conversation that was read here, None if none was."""
        ...

    def turn_number(self, conversation: tl.ConversationKey) -> int:
        """Return the number of the running turn, 0 if none runs."""
        ...

    def look_for_inputs(self, conversation: tl.ConversationKey) -> None:
        """Read the log for steers, stops and answers for the running turn."""
        ...


@dataclass(slots=True, eq=False)
class _Publication:
    """The events of a conversation that this process runs. They are collected while another process listens."""

    live: LiveEvents
    runner: Runner
    conversation: tl.ConversationKey
    digest: str
    run: tuple[int, int]
    number: int = 0
    turn: int = 0
    head: int = 0
    size: int = 0
    deltas: list[tuple[int, Delta]] = field(default_factory=list[tuple[int, Delta]])
    listening: ExitStack | None = None

    def listen(self) -> None:
        """Begin to collect the events if that has not begun, and schedule a message with the newest seq."""
        if self.listening is None:
            self.listening = ExitStack()
            self.number += 1  # text may have been left out
            self.head = self.runner.last_seq(self.conversation) or 0
            self.listening.enter_context(self.runner.listened(self.conversation, self._receive))
        self.live.schedule(self)

    def stop_listening(self) -> None:
        """Collect no further events."""
        if self.listening is not None:
            self.listening.close()
            self.listening = None

    def _receive(self, event: Event) -> None:
        """Collect a delta, or note the seq of a block, and schedule a message; "missed" is ignored.

        Deltas of an earlier turn are sent first. More than 256 KiB are dropped, which leaves a gap in the numbers.
        """
        match event:
            case tl.Block(seq=seq):
                self.head = seq
            case Delta(type="missed"):
                return
            case Delta():
                turn = self.runner.turn_number(self.conversation)
                if turn != self.turn and self.deltas:
                    self.live.send(self.take_message())
                self.turn = turn
                self.deltas.append((self.head, event))
                self.size += event_size(event)
                if self.size > LARGEST_BACKLOG:
                    self.deltas = []
                    self.size = 0
                    self.number += 1
        self.live.schedule(self)

    def take_message(self) -> messages.TurnEvents:
        """Return the collected events as one message, remove them, and count the message."""
        deltas = [messages.LiveDelta.encode(at, delta) for at, delta in _joined(self.deltas)]
        message = messages.TurnEvents(
            process=self.live.process,
            conversation=self.digest,
            run=self.run,
            number=self.number,
            turn=self.turn,
            head=self.head,
            deltas=deltas,
        )
        self.deltas = []
        self.size = 0
        self.number += 1
        return message


def _joined(deltas: Sequence[tuple[int, Delta]]) -> list[tuple[int, Delta]]:
    """Return the deltas with adjacent texts of a channel joined."""
    result = list[tuple[int, Delta]]()
    for (at, kind), equal in groupby(deltas, lambda item: (item[0], replace(item[1], text=""))):
        if kind.type == "delta":
            result.append((at, replace(kind, text="".join(delta.text for _, delta in equal))))
        else:
            result += equal
    return result


class LiveEvents:
    """The live events of a process over one relay. Use it as an async context manager.

    A process publishes the events of a conversation only while another process has a listener of it.
    """

    def __init__(self, relay: Relay) -> None:
        self.process: str = token_hex(6)
        self.is_connected: bool = False
        self.on_keys_changed: list[Callable[[], None]] = []
        self._relay = relay
        self._reader = messages.MessageReader()
        self._ids = count()
        self._runs = count()
        self._followers: dict[str, list[Follower]] = {}
        self._publications: dict[str, _Publication] = {}
        self._interests: dict[str, dict[str, float]] = {}
        self._announcements: dict[str, bool] = {}
        self._scheduled: dict[_Publication, None] = {}
        self._texts: list[str] = []
        self._news: dict[str, None] = {}  # the conversations that texts in `_texts` are about
        self._has_work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        steps = (self._receive(), self._transmit(), self._repeat())
        self._tasks = [asyncio.create_task(step) for step in steps]
        return self

    async def __aexit__(self, *error: object) -> None:
        await cancel_all(*self._tasks)
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                if self.is_connected:
                    await self._relay.publish(self._take_texts())
        await self._relay.close()

    @contextmanager
    def following(
        self, conversation: tl.ConversationKey, follower: Follower
    ) -> Generator[None, None, None]:
        """Pass messages about the conversation to `follower` inside the context."""
        digest = messages.conversation_digest(conversation)
        followers = self._followers.setdefault(digest, [])
        followers.append(follower)
        if len(followers) == 1:
            self._announce(digest, is_interested=True)
        try:
            yield
        finally:
            followers.remove(follower)
            if not followers:
                del self._followers[digest]
                self._announce(digest, is_interested=False)

    @contextmanager
    def running(
        self, conversation: tl.ConversationKey, term: int, runner: Runner
    ) -> Generator[None, None, None]:
        """Publish the events of the conversation, whose lease this process holds in that term, inside the context.

        Followers in this process are woken at the begin and at the end; in between they read the log while `runs` is true.
        """
        digest = messages.conversation_digest(conversation)
        publication = _Publication(self, runner, conversation, digest, (term, next(self._runs)))
        self._publications[digest] = publication
        if digest in self._interests:
            publication.listen()
        self._wake(digest)
        try:
            yield
        finally:
            publication.stop_listening()
            if publication in self._scheduled:
                del self._scheduled[publication]
                self.send(publication.take_message())
            if self._publications.get(digest) is publication:
                del self._publications[digest]
            self._wake(digest)

    def runs(self, conversation: tl.ConversationKey) -> bool:
        """Return whether a harness of this process runs a turn of the conversation."""
        return messages.conversation_digest(conversation) in self._publications

    def announce_input(self, conversation: tl.ConversationKey) -> None:
        """Tell the other processes that the log of the conversation has a new input, or that it was forgotten."""
        digest = messages.conversation_digest(conversation)
        self.send(messages.NewInput(self.process, digest))
        self._wake(digest)

    def schedule(self, publication: _Publication) -> None:
        """Transmit the events of a publication soon."""
        self._scheduled[publication] = None
        self._has_work.set()

    def send(self, message: messages.LiveMessage) -> None:
        """Transmit a message soon."""
        self._add_text(message)
        self._has_work.set()

    def _add_text(self, message: messages.LiveMessage) -> None:
        if len(self._texts) >= MOST_TEXTS:
            return
        if isinstance(message, messages.TurnEvents | messages.NewInput):
            self._news[message.conversation] = None
        self._texts += messages.encode_message(message, self._relay.limit_bytes, self._ids)

    def _announce(self, digest: str, *, is_interested: bool) -> None:
        self._announcements[digest] = is_interested
        self._has_work.set()

    async def _transmit(self) -> None:
        """Send everything that is scheduled, at most every `FLUSH_SECONDS`, until the task is cancelled.

        A failure is logged once until texts are sent again.
        """
        pause = RECONNECT_SECONDS
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            texts = list[str]()
            news = dict[str, None]()
            try:
                texts = self._take_texts()
                news, self._news = self._news, {}
                await self._relay.publish(texts)
            except StoreError as error:
                if pause == RECONNECT_SECONDS:
                    logger.warning(
                        "live events are not sent, and other processes read the log: %s", error
                    )
                for digest in news:  # these conversations have new blocks
                    self.send(messages.NewInput(self.process, digest))
                self._repeat_interests()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_RECONNECT_SECONDS)
                continue
            except Exception:  # one message fails alone; the log has what it was about
                logger.exception("live events were not encoded, and other processes read the log")
            raise_lost_cancellation()
            if pause != RECONNECT_SECONDS:
                logger.info("live events are sent again")
                pause = RECONNECT_SECONDS
            await asyncio.sleep(max(FLUSH_SECONDS, len(texts) * SECONDS_PER_MESSAGE))

    def _take_texts(self) -> list[str]:
        """Remove and return everything that waits, encoded: messages, then interests, then collected events."""
        announcements = self._announcements
        publications = self._scheduled
        self._announcements = {}
        self._scheduled = {}
        interests = [digest for digest, is_interested in announcements.items() if is_interested]
        losses = [digest for digest, is_interested in announcements.items() if not is_interested]
        for digests in messages.split_digests(interests, DIGESTS):
            self._add_text(messages.Interest(self.process, digests))
        for digests in messages.split_digests(losses, DIGESTS):
            self._add_text(messages.Disinterest(self.process, digests))
        for publication in publications:
            self._add_text(publication.take_message())
        texts = self._texts
        self._texts = []
        return texts

    async def _receive(self) -> None:
        """Receive and handle messages until the task is cancelled; connect again after a lost connection."""
        pause = RECONNECT_SECONDS
        while True:
            try:
                async with aclosing(self._relay.receive()) as texts:
                    async for text in texts:
                        if text is None:
                            if pause != RECONNECT_SECONDS:
                                logger.info("live events continue")
                            pause = RECONNECT_SECONDS
                            self._begin()
                        else:
                            self._take_alone(text)
            except StoreError as error:
                if self.is_connected or pause == RECONNECT_SECONDS:
                    logger.warning("live events pause, and listeners read the log: %s", error)
            except Exception:  # no caller awaits this task, and the next connection may work
                logger.exception("live events pause, and listeners read the log")
            self.is_connected = False
            self._wake_all()  # they read the log more often from now on
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_RECONNECT_SECONDS)

    def _begin(self) -> None:
        """After a connect, exchange interests, wake the followers, and have running turns look for inputs."""
        self.is_connected = True
        self.send(messages.Greeting(self.process))
        self._repeat_interests()
        self._wake_all()
        for publication in self._publications.values():
            publication.runner.look_for_inputs(publication.conversation)

    def _wake(self, digest: str) -> None:
        for follower in tuple(self._followers.get(digest, ())):
            follower.wake()

    def _wake_all(self) -> None:
        for digest in tuple(self._followers):
            self._wake(digest)

    async def _repeat(self) -> None:
        """Announce the own interests every 10 s, and forget those of processes that did not repeat them for 35 s."""
        while True:
            await asyncio.sleep(REPEAT_SECONDS)
            self._repeat_interests()
            now = time.monotonic()
            for digest, processes in list(self._interests.items()):
                for process in [name for name, end in processes.items() if end < now]:
                    self._lose_interest(process, [digest])

    def _repeat_interests(self) -> None:
        for digest in self._followers:
            self._announcements.setdefault(digest, True)
        if self._announcements:
            self._has_work.set()

    def _take_alone(self, text: str) -> None:
        """Handle a message; an error of a listener is logged."""
        try:
            self._take(text)
        except Exception:
            logger.exception("a listener failed with a live event")

    def _take(self, text: str) -> None:
        """Decode a message and dispatch it; ignore an incomplete message and messages of this process."""
        message = self._reader.read(text)
        if message is None or message.process == self.process:
            return
        match message:
            case messages.TurnEvents(conversation=digest):
                for follower in tuple(self._followers.get(digest, ())):
                    follower.receive(message)
            case messages.NewInput(conversation=digest):
                self._take_input(digest)
            case messages.Interest(process=process, conversations=digests):
                self._take_interest(process, digests)
            case messages.Disinterest(process=process, conversations=digests):
                self._lose_interest(process, digests)
            case messages.Greeting():
                self._repeat_interests()
            case messages.KeysChanged():
                for check in self.on_keys_changed:
                    check()

    def _take_input(self, digest: str) -> None:
        publication = self._publications.get(digest)
        if publication is not None:
            publication.runner.look_for_inputs(publication.conversation)
        self._wake(digest)

    def _take_interest(self, process: str, digests: Sequence[str]) -> None:
        """Note the interest of a process for 35 s; if it is new, start to collect the events of running turns."""
        end = time.monotonic() + INTEREST_SECONDS
        for digest in digests:
            processes = self._interests.setdefault(digest, {})
            is_new = process not in processes
            processes[process] = end
            publication = self._publications.get(digest)
            if is_new and publication is not None:
                publication.listen()

    def _lose_interest(self, process: str, digests: Sequence[str]) -> None:
        """Forget the interest of a process; without further interests the conversation's events are not collected."""
        for digest in digests:
            processes = self._interests.get(digest, {})
            processes.pop(process, None)
            if processes:
                continue
            self._interests.pop(digest, None)
            if publication := self._publications.get(digest):
                publication.stop_listening()
