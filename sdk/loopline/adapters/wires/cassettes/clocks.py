"""A clock that keeps what it said, and one that says it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime

from loopline.adapters.wires.cassettes.lines import Times
from loopline.clock import Alarm, Clock, SystemClock

FINEST = 6
"""The decimals of a second that are kept."""


class KeepingClock:
    """A clock that keeps each time it tells, until they are taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.elapsed()
        self._loop: list[datetime] = []
        self._threads: list[datetime] = []
        self._elapsed: list[float] = []

    def now(self) -> datetime:
        """The time, which is kept."""
        now = self._clock.now()
        (self._loop if _is_on_a_loop() else self._threads).append(now)
        return now

    def elapsed(self) -> float:
        """Seconds since the recording began, which are kept."""
        elapsed = round(self._clock.elapsed() - self._began, FINEST)
        if _is_on_a_loop():
            self._elapsed.append(elapsed)
        return elapsed

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._clock.sleep(seconds)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Have `ring` called once so many seconds have passed."""
        return self._clock.alarm(seconds, ring)

    def new_id(self) -> str:
        """A name nobody had before."""
        return self._clock.new_id()

    def taken(self) -> Times:
        """What was told since this was last asked."""
        times = Times(
            loop=tuple(self._loop), threads=tuple(self._threads), elapsed=tuple(self._elapsed)
        )
        self._loop, self._threads, self._elapsed = [], [], []
        return times


class RepeatingClock:
    """A clock that tells recorded times, those between two requests between the same two.

    Who asks more often than was recorded is told the last one again, and before `go_on` when the
    recording began. Sleeping takes no real time; alarms ring, and ids are new, as ever.
    """

    def __init__(self, began: datetime, times: Mapping[int, Times]) -> None:
        """`times` are those after so many requests, up to the next."""
        self._times = times
        self._now, self._passed = began, 0.0
        self._real = SystemClock()
        self.go_on(-1)

    def go_on(self, requests: int) -> None:
        """So many requests have been made."""
        times = self._times.get(requests, Times())
        self._loop, self._threads = iter(times.loop), iter(times.threads)
        self._elapsed = iter(times.elapsed)

    def now(self) -> datetime:
        """The next time of those that were recorded."""
        self._now = next(self._loop if _is_on_a_loop() else self._threads, self._now)
        return self._now

    def elapsed(self) -> float:
        """The next seconds of those that were recorded."""
        if _is_on_a_loop():
            self._passed = next(self._elapsed, self._passed)
        return self._passed

    async def sleep(self, seconds: float) -> None:
        """Let others run."""
        del seconds
        await asyncio.sleep(0)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Have `ring` called once so many real seconds have passed."""
        return self._real.alarm(seconds, ring)

    def new_id(self) -> str:
        """16 random bytes."""
        return self._real.new_id()


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
