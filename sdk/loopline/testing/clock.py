"""A clock that stands still until it is told, or asked, to go on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from loopline.clock import milliseconds

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Time that passes only by `advance` and by sleeping, which takes no real time."""

    def __init__(self, now: datetime = BEGINNING) -> None:
        self._now = now
        self._elapsed = 0.0
        self._ids = 0

    def now(self) -> datetime:
        """The time in UTC, whole milliseconds."""
        return milliseconds(self._now)

    def elapsed(self) -> float:
        """Seconds that have passed."""
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Let the seconds pass at once, and others run."""
        self.advance(seconds)
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._elapsed += max(seconds, 0.0)
        self._now += timedelta(seconds=seconds)

    def set(self, now: datetime) -> None:
        """Set the wall clock, forward or back; elapsed time does not change."""
        self._now = now

    def new_id(self) -> str:
        """`0…01`, `0…02`, …: 32 digits."""
        self._ids += 1
        return f"{self._ids:032x}"
