"""Work that goes on after its call has ended: its result comes to the conversation's inbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from loopline.errors import ToolError
from loopline.timeline import ConversationKey, Recorder, Timeline
from loopline.tools.outcome import Outcome

Work = Callable[[], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundCall:
    """A call whose work goes on in the background, for so many seconds at most."""

    conversation: ConversationKey
    turn: int
    call_id: str
    tool: str
    seconds: float


class Background(Protocol):
    """Runs work of calls that have ended, and gives each call one result, also after a crash."""

    def begin(self, call: BackgroundCall, work: Work) -> Outcome:
        """Begin the work, and return the result of the call itself.

        Raises:
            ToolError: no work can be begun here.
        """
        ...

    async def settle(self, conversation: ConversationKey, timeline: Timeline) -> None:
        """Give each call a result whose work is not done any more, and fold it into the timeline."""
        ...

    def follow(self, recorders: Mapping[ConversationKey, Recorder]) -> None:
        """Take the recorders of the turns that run: results are recorded beside these turns."""
        ...


class NoBackground:
    """No work goes on in the background here."""

    def begin(self, call: BackgroundCall, work: Work) -> Outcome:
        """Refuse."""
        del work
        raise ToolError(
            f"{call.tool} cannot go on in the background here: call it without background"
        )

    async def settle(self, conversation: ConversationKey, timeline: Timeline) -> None:
        """Do nothing."""

    def follow(self, recorders: Mapping[ConversationKey, Recorder]) -> None:
        """Do nothing."""
