"""The lines that say that a turn waits for another one, and that the wait is over."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from loopline.cli.words import QUIET, visible
from loopline.conversations import QUEUE_CHANNEL
from loopline.events import Delta, Event
from loopline.timeline import Block


class QueueLines:
    """Make lines of the events of one turn; `hint` says what can be done instead of waiting."""

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._waits = False

    def take(self, event: Event) -> Iterator[Text]:
        """Yield the line that the event makes, if it begins or ends a wait."""
        match event:
            case Delta(type="progress", channel=channel, text=text) if channel == QUEUE_CHANNEL:
                self._waits = True
                yield Text(f"waiting: {visible(text)} · {self._hint}", style="yellow")
            case Block(turn_id=own) if self._waits:
                self._waits = False
                yield Text(f"the wait is over: {own} runs", style=QUIET)
            case _:
                pass
