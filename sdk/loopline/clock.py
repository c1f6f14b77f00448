"""The clock: time, waiting and new ids, as one protocol that tests and replays can replace."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """The source of the time, of waiting and of new ids."""

    def now(self) -> datetime:
        """Return the time in UTC, in whole milliseconds. It may go back, so do not order events by it."""
        ...

    def elapsed(self) -> float:
        """Return the seconds since an arbitrary start; the value never decreases."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        ...

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Call `ring` on the running event loop after `seconds`; return a handle that cancels the call."""
        ...

    def new_id(self) -> str:
        """Return a new unique id of 32 hexadecimal digits."""
        ...


def in_ms(seconds: float) -> float:
    """Convert seconds to milliseconds, rounded to three decimals."""
    return round(seconds * 1_000_000) / 1000


def elapsed_ms(clock: Clock, since: float) -> float:
    """Return the milliseconds since `since`, an earlier value of `clock.elapsed()`."""
    return in_ms(clock.elapsed() - since)


class Alarm(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call; this has no effect after the call."""
        ...


async def done_within(
    clock: Clock, seconds: float | None, work: Coroutine[Any, Any, object]
) -> bool:
    """Wait at most `seconds` for `work`, then cancel it; return whether it finished. None means no limit.

    It does not wait for the end of cancelled work. The result and the error of `work` are dropped.
    """
    working = asyncio.ensure_future(work)
    late = asyncio.Event()
    waiting = asyncio.ensure_future(late.wait())
    alarm = None if seconds is None else clock.alarm(seconds, late.set)
    try:
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        return working.done()
    finally:
        if alarm is not None:
            alarm.cancel()
        working.cancel()
        waiting.cancel()


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        """Return the time in UTC, in whole milliseconds."""
        return datetime.fromtimestamp(time.time_ns() // 1_000_000 / 1_000, UTC)

    def elapsed(self) -> float:
        """Return the seconds of the monotonic clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        await asyncio.sleep(seconds)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Call `ring` on the running event loop after `seconds`."""
        return asyncio.get_running_loop().call_later(max(seconds, 0.0), ring)

    def new_id(self) -> str:
        """Return 16 random bytes in hexadecimal."""
        return os.urandom(16).hex()


def milliseconds(moment: datetime) -> datetime:
    """Return the time rounded down to whole milliseconds."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


@cache
def boot_id() -> str:
    """Return the id of the machine's current boot; "" if the system does not have one.

    Raises:
        OSError: the id cannot be read now; the next call tries again.
    """
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (FileNotFoundError, PermissionError):
        return ""
