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
class Ear:
    """One who hears, and the place up to which they have heard: no block comes twice.

    `heard` is None where that is not known yet.
    """

    hear: Hear
    heard: int | None

    def take(self, event: Event) -> None:
        """Have it heard, unless it is a block that was."""
        match event:
            case Block(seq=seq) if seq <= (self.heard or 0):
                return
            case Block(seq=seq):
                self.heard = seq
            case Delta():
                pass
        self.hear(event)

    def place(self, otherwise: int) -> int:
        """The place up to which was heard: `otherwise`, from now on, if it is not known."""
        self.heard = otherwise if self.heard is None else self.heard
        return self.heard


class Ears:
    """Those who listen to conversations, each of which is told every block from their place on."""

    def __init__(self, log: TimelineLog) -> None:
        self._log = log
        self._ears: dict[ConversationKey, list[Ear]] = {}

    @contextmanager
    def listening(self, conversation: ConversationKey, ear: Ear) -> Generator[None, None, None]:
        """One more, until the context is left."""
        ears = self._ears.setdefault(conversation, [])
        ears.append(ear)
        try:
            yield
        finally:
            ears.remove(ear)
            if not ears:
                del self._ears[conversation]

    def telling(self, conversation: ConversationKey, sender: Ear | None = None) -> Hear:
        """What tells the sender of a turn and everybody who listens."""

        def tell(event: Event) -> None:
            if sender is not None:
                sender.take(event)
            for ear in tuple(self._ears.get(conversation, ())):
                ear.take(event)

        return tell

    async def catch_up(
        self, conversation: ConversationKey, timeline: Timeline, number: int
    ) -> None:
        """Tell those who listen what has been written since they last heard, before that turn is run.

        Whose place is not known hears the turn from its first block on.
        """
        ears = tuple(self._ears.get(conversation, ()))
        prompt = timeline.turn(number).prompt
        begins = timeline.seq if prompt is None else prompt.seq - 1
        behind = min([ear.place(begins) for ear in ears], default=timeline.seq)
        blocks = timeline.after(behind)
        if behind < timeline.base.covers:
            blocks = await self._log.read(conversation, after=behind)
        for block in blocks:
            for ear in ears:
                ear.take(block)


def replay(timeline: Timeline, number: int, sender: Ear | None) -> None:
    """Let the sender hear the turn as far as it is, and what the user said that it took or may take."""
    if sender is None:
        return
    own = blocks_of(timeline, number)
    wanted = {block.seq for block in (*own, *timeline.inputs_for(number))}
    wanted |= {seq for one in own if isinstance(one.body, RoundStart) for seq in one.body.takes}
    for block in timeline.after(min(wanted, default=1) - 1):
        if block.seq in wanted:
            sender.take(block)
        if block.turn == number and isinstance(block.body, Exit):
            return
