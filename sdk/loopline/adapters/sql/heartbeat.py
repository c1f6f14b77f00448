"""The heartbeat of leases: a thread of its own, so that work which blocks the event loop loses none."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable

HANG_SECONDS = 300.0
"""A loop that has been blocked for so long hangs: nothing beats for it any more."""

logger: logging.Logger = logging.getLogger("loopline")


class Heartbeat:
    """Calls `beat` on a thread, again and again, until it is stopped or the event loop hangs.

    It beats for a loop that is blocked, for that one goes on; it beats again once a loop that hung
    has gone on. A stopped process has no heartbeat, for its threads are stopped too.
    """

    def __init__(
        self, beat: Callable[[], None], *, every: float, hang_seconds: float = HANG_SECONDS
    ) -> None:
        """Begin to beat for the running loop."""
        self._beat = beat
        self._every = every
        self._hang_seconds = hang_seconds
        self._loop = asyncio.get_running_loop()
        self._ticked = time.monotonic()
        self._asked = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loopline-lease", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop, after a beat that has begun."""
        self._stopped.set()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        while not self._stopped.wait(self._every) and self._ask():
            if time.monotonic() - self._ticked < self._hang_seconds:
                self._beat()

    def _ask(self) -> bool:
        """Have the loop say that it ticks; whether there is a loop."""
        if not self._asked:
            self._asked = True
            try:
                self._loop.call_soon_threadsafe(self._tick, time.monotonic())
            except RuntimeError:  # it was closed
                return False
        return True

    def _tick(self, asked: float) -> None:
        self._ticked, self._asked = time.monotonic(), False
        blocked = self._ticked - asked
        if blocked > 4 * self._every:
            logger.warning(
                "the event loop was blocked for %.0f s: await what takes long, or run it in a thread, "
                "as tools that are plain functions are",
                blocked,
            )
