"""Clocks that tests set."""

from __future__ import annotations

from datetime import datetime, timedelta

from loopline.clock import SystemClock


class ClockAhead(SystemClock):
    """The clock of this machine, put ahead."""

    def __init__(self, ahead: timedelta = timedelta()) -> None:
        super().__init__()
        self.ahead = ahead

    def now(self) -> datetime:
        """Return the time in UTC."""
        return super().now() + self.ahead
