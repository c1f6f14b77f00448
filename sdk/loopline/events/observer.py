"""Who is told what turns do while they run: the port behind which telemetry stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from loopline.timeline import Block, ConversationKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTurn:
    """A turn that a runner has. `caller` is the call that began it; None unless it is a child run's.

    `uid` is that of its conversation, and stays the same wherever the turn is carried on.
    """

    conversation: ConversationKey
    uid: str
    turn: int
    caller: Caller | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """A call of a turn."""

    turn: ObservedTurn
    call_id: str


class Observer(Protocol):
    """Told of every turn of a harness, those of child runs too.

    It is called on the event loop between two blocks, so it does not wait. What it raises is logged, and
    it hears no more of that turn.
    """

    def begin(self, turn: ObservedTurn, blocks: Sequence[Block]) -> Callable[[Block], None]:
        """A runner begins the turn, or carries it on; what is returned is called with each new block.

        `blocks` are those that the turn has already: whoever wrote them has told of them.
        """
        ...

    async def close(self) -> None:
        """The harness closes: what is still to be sent is sent now, and not for ever."""
        ...
