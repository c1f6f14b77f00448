"""Time and fresh names, as a port: what would make a run differ from its replay comes from here."""

from __future__ import annotations

import asyncio
import os
import time
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

    def new_id(self) -> str:
        """A name nobody had before: 32 hexadecimal digits."""
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

    def new_id(self) -> str:
        """16 random bytes."""
        return os.urandom(16).hex()


def milliseconds(moment: datetime) -> datetime:
    """The moment without what is finer than a millisecond."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
