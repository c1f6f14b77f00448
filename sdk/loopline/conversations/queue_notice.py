"""What the sender of a turn is told while another turn keeps it waiting."""

from __future__ import annotations

import asyncio
import logging

from loopline.clock import Clock
from loopline.errors import StoreError
from loopline.events import Delta, EventSink
from loopline.timeline import ConversationKey, Timeline, TimelineLog, open_timeline, turn_id

BUSY_SECONDS = 0.5
"""How long a turn waits before its sender is told what for."""
QUEUE_CHANNEL = "queue"

_log = logging.getLogger("loopline")


class QueueNotice:
    """Tells the sender of a turn once, and the log, which turn it waits for, if it waits for long."""

    def __init__(
        self, log: TimelineLog, clock: Clock, conversation: ConversationKey, hear: EventSink | None
    ) -> None:
        """Begin to count the time."""
        self._store = log
        self._conversation = conversation
        self._hear = hear
        self._task: asyncio.Task[None] | None = None
        self._alarm = clock.alarm(BUSY_SECONDS, self._start)

    async def end(self) -> None:
        """Tell nothing more: the wait is over."""
        self._alarm.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _start(self) -> None:
        self._task = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        try:
            text = _reason(await open_timeline(self._store, self._conversation))
        except StoreError:
            return  # the turn itself reads the store next, and raises what is wrong with it
        _log.info("conversation %r is busy: %s", self._conversation.name, text)
        if self._hear is not None:
            self._hear(Delta(type="progress", channel=QUEUE_CHANNEL, text=text))


def _reason(timeline: Timeline) -> str:
    running = next(iter(timeline.unfinished), None)
    if running is None or running.started_at is None:
        return "another turn is about to run"
    return f"{turn_id(running.number)} has been running since {running.started_at:%H:%M:%S} UTC"
