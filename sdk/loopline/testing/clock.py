"""A clock whose time passes only when a test advances it or when code sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from loopline.clock import milliseconds

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class FakeAlarm:
    """An alarm that rings when the elapsed seconds reach `at`."""

    at: float
    ring: Callable[[], None]
    alarms: list[FakeAlarm]

    def cancel(self) -> None:
        """Cancel the alarm."""
        if self in self.alarms:
            self.alarms.remove(self)


class FakeClock:
    """A clock whose time passes only by `advance` and by sleeping, which takes no real time.

    Alarms ring in the order of their times as the clock advances; an alarm does not advance it.
    """

    def __init__(self, now: datetime = BEGINNING) -> None:
        self._now = now
        self._elapsed = 0.0
        self._ids = 0
        self._alarms: list[FakeAlarm] = []

    def now(self) -> datetime:
        """Return the time in UTC, in whole milliseconds."""
        return milliseconds(self._now)

    def elapsed(self) -> float:
        """Return the seconds that have passed."""
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Advance the clock at once, and let other tasks run."""
        self.advance(seconds)
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Advance the clock by this number of seconds; alarms that are due ring in the order of their times."""
        start, began = self._now, self._elapsed
        until = began + max(seconds, 0.0)
        while due := [alarm for alarm in self._alarms if alarm.at <= until]:
            first = min(due, key=lambda alarm: alarm.at)
            self._alarms.remove(first)
            self._elapsed = max(first.at, self._elapsed)
            self._now = start + timedelta(seconds=self._elapsed - began)
            first.ring()
        self._elapsed = until
        self._now = start + timedelta(seconds=seconds)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> FakeAlarm:
        """Call `ring` once this number of seconds has passed; return the alarm, which can be cancelled."""
        alarm = FakeAlarm(self._elapsed + max(seconds, 0.0), ring, self._alarms)
        self._alarms.append(alarm)
        return alarm

    def set(self, now: datetime) -> None:
        """Set the wall clock, forward or back; elapsed time does not change."""
        self._now = now

    def new_id(self) -> str:
        """Return `0…01`, `0…02`, …, with 32 digits."""
        self._ids += 1
        return f"{self._ids:032x}"
