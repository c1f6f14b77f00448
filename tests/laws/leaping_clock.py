"""A clock that leaps a day forward or back at every look, and never shows a time twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count

from loopline.clock import Alarm, SystemClock


class LeapingClock:
    """Time as a machine may have it whose clock is being set; two of them leap alike."""

    def __init__(self) -> None:
        self._looks = count()
        self._names = count()

    def now(self) -> datetime:
        """Some time within three days."""
        look = next(self._looks)
        return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(days=look * 2 % 3, milliseconds=look)

    def elapsed(self) -> float:
        """A second for each look."""
        return float(next(self._looks))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        return SystemClock().alarm(seconds, ring)

    def new_id(self) -> str:
        return f"{next(self._names):032x}"
