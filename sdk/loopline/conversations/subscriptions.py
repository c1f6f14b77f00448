"""Who hears a conversation's turns: whoever said something, and those who listen."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from loopline.conversations.watching import blocks_of
from loopline.events import Delta, Event
from loopline.timeline import Block, ConversationKey, Exit, RoundStart, Timeline, TimelineLog

Hear = Callable[[Event], None]


@dataclass(slots=True, eq=False)
class Subscriber:
    """One who hears, and the place up to which they have heard: no block comes twice.

    `heard` is None where that is not known yet.
    """

    sink: Hear
    seq: int | None

    def receive(self, event: Event) -> None:
        """Have it heard, unless it is a block that was."""
        match event:
            case Block(seq=seq) if seq <= (self.seq or 0):
                return
            case Block(seq=seq):
                self.seq = seq
            case Delta():
                pass
        self.sink(event)

    def place(self, otherwise: int) -> int:
        """The place up to which was heard: `otherwise`, from now on, if it is not known."""
        self.seq = otherwise if self.seq is None else self.seq
        return self.seq


class Subscriptions:
    """Those who listen to conversations, each of which is told every block from their place on."""

    def __init__(self, log: TimelineLog) -> None:
        self._log = log
        self._subscribers: dict[ConversationKey, list[Subscriber]] = {}

    @contextmanager
    def subscribed(
        self, conversation: ConversationKey, ear: Subscriber
    ) -> Generator[None, None, None]:
        """One more, until the context is left."""
        ears = self._subscribers.setdefault(conversation, [])
        ears.append(ear)
        try:
            yield
        finally:
            ears.remove(ear)
            if not ears:
                del self._subscribers[conversation]

    def telling(self, conversation: ConversationKey, sender: Subscriber | None = None) -> Hear:
        """What tells the sender of a turn and everybody who listens."""

        def tell(event: Event) -> None:
            if sender is not None:
                sender.receive(event)
            for ear in tuple(self._subscribers.get(conversation, ())):
                ear.receive(event)

        return tell

    async def catch_up(
        self, conversation: ConversationKey, timeline: Timeline, number: int
    ) -> None:
        """Tell those who listen what has been written since they last heard, before that turn is run.

        Whose place is not known hears the turn from its first block on.
        """
        ears = tuple(self._subscribers.get(conversation, ()))
        prompt = timeline.turn(number).prompt
        begins = timeline.seq if prompt is None else prompt.seq - 1
        behind = min([ear.place(begins) for ear in ears], default=timeline.seq)
        blocks = timeline.after(behind)
        if behind < timeline.base.covers:
            blocks = await self._log.read(conversation, after=behind)
        for block in blocks:
            for ear in ears:
                ear.receive(block)


def replay(timeline: Timeline, number: int, sender: Subscriber | None) -> None:
    """Let the sender hear the turn as far as it is, and what the user said that it took or may take."""
    if sender is None:
        return
    own = blocks_of(timeline, number)
    wanted = {block.seq for block in (*own, *timeline.inputs_for(number))}
    wanted |= {seq for one in own if isinstance(one.body, RoundStart) for seq in one.body.takes}
    for block in timeline.after(min(wanted, default=1) - 1):
        if block.seq in wanted:
            sender.receive(block)
        if block.turn == number and isinstance(block.body, Exit):
            return
