"""Async tools that block: a step of theirs that keeps the event loop for long is told of in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

LONGEST_STEP_SECONDS = 1.0
"""How long a tool may keep the event loop between two awaits without being told of."""

logger: logging.Logger = logging.getLogger("loopline")


class WatchedSteps(Generator[Any, Any, object]):
    """The steps of a tool's coroutine; the first that is too long is told of with the tool's name and place."""

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, object],
        *,
        name: str,
        location: str,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coroutine = coroutine
        self._name = name
        self._location = location
        self._elapsed = elapsed
        self._reported = False

    def __await__(self) -> Generator[Any, Any, object]:
        """Await the coroutine."""
        return self

    def send(self, value: Any, /) -> Any:
        """Take the next step."""
        return self._step(partial(self._coroutine.send, value))

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> Any:
        """Take the next step with this error, such as a cancellation."""
        del val, tb  # an awaiting coroutine passes the error itself
        return self._step(partial(self._coroutine.throw, typ))

    def _step(self, take: Callable[[], Any]) -> Any:
        began = self._elapsed()
        try:
            return take()
        finally:
            self._report(self._elapsed() - began)

    def _report(self, seconds: float) -> None:
        if seconds < LONGEST_STEP_SECONDS or self._reported:
            return
        self._reported = True
        logger.warning(
            "%s blocked the event loop for %.1f s: write it with def instead of async def, so that it "
            "runs in a thread, or await what takes long (%s)",
            self._name,
            seconds,
            self._location,
        )
