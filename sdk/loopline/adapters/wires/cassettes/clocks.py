"""Clocks that keep what they said, and clocks that say it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from loopline.adapters.wires.cassettes.lines import Times
from loopline.clock import Alarm, Clock, SystemClock


@dataclass(slots=True)
class _Lanes:
    """Times as they are asked for: in the order of the event loop, and in that of other threads."""

    loop: list[datetime] = field(default_factory=list[datetime])
    threads: list[datetime] = field(default_factory=list[datetime])

    @property
    def here(self) -> list[datetime]:
        """The lane of whoever asks."""
        return self.loop if _is_on_a_loop() else self.threads


class KeepingClock:
    """A clock that keeps each time it tells, until they are taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told = _Lanes()

    def now(self) -> datetime:
        """The time, which is kept."""
        now = self._clock.now()
        self._told.here.append(now)
        return now

    def elapsed(self) -> float:
        """Seconds since an arbitrary start."""
        return self._clock.elapsed()

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
        """The times since this was last asked."""
        told, self._told = self._told, _Lanes()
        return Times(loop=tuple(told.loop), threads=tuple(told.threads))


class RepeatingClock:
    """A clock that tells recorded times, those between two requests between the same two.

    Who asks more often than was recorded is told the last one again. Sleeping takes no real time;
    alarms ring, and ids are new, as ever.
    """

    def __init__(self, begun: datetime, times: Mapping[int, Times]) -> None:
        """`times` are those after so many requests, up to the next."""
        self._times = times
        self._last = begun
        self._slept = 0.0
        self._real = SystemClock()
        self._left = _Lanes()
        self.go_on(0)

    def go_on(self, requests: int) -> None:
        """So many requests have been made."""
        if requests in self._times:
            times = self._times[requests]
            self._left = _Lanes(list(reversed(times.loop)), list(reversed(times.threads)))

    def now(self) -> datetime:
        """The next time of those that were recorded."""
        left = self._left.here
        if left:
            self._last = left.pop()
        return self._last

    def elapsed(self) -> float:
        """Seconds since an arbitrary start, those that were slept among them."""
        return self._real.elapsed() + self._slept

    async def sleep(self, seconds: float) -> None:
        """Let others run; the seconds count as passed."""
        self._slept += max(seconds, 0.0)
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
