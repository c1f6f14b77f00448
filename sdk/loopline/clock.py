"""Time and fresh names, as a port: what would make a run differ from its replay comes from here."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where now, waiting and new ids come from."""

    def now(self) -> datetime:
        """The time in UTC, whole milliseconds. Order never comes from it."""
        ...

    def elapsed(self) -> float:
        """Seconds since an arbitrary start; never falls."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Have `ring` called on the running event loop once so many seconds have passed."""
        ...

    def new_id(self) -> str:
        """A name nobody had before: 32 hexadecimal digits."""
        ...


def elapsed_ms(clock: Clock, since: float) -> float:
    """The milliseconds that have passed since the clock had that many seconds elapsed."""
    return round((clock.elapsed() - since) * 1000, 3)


class Alarm(Protocol):
    """Something that will ring, unless it is cancelled before."""

    def cancel(self) -> None:
        """Never ring; after it has rung nothing happens."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """The time in UTC, whole milliseconds."""
        return milliseconds(datetime.now(UTC))

    def elapsed(self) -> float:
        """Seconds on the monotonic clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Have `ring` called on the running event loop once so many seconds have passed."""
        return asyncio.get_running_loop().call_later(max(seconds, 0.0), ring)

    def new_id(self) -> str:
        """16 random bytes."""
        return os.urandom(16).hex()


def milliseconds(moment: datetime) -> datetime:
    """The moment without what is finer than a millisecond."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
