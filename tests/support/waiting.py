"""Waiting until something holds."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from time import monotonic


async def until(
    holds: Callable[[], bool | Awaitable[bool]], *, seconds: float = 60.0, pause: float = 0.01
) -> None:
    """Wait until `holds` returns True, and ask it after each pause; `AssertionError` after so many seconds."""
    end = monotonic() + seconds
    while True:
        answer = holds()
        if (await answer) if inspect.isawaitable(answer) else answer:
            return
        if monotonic() > end:
            raise AssertionError(f"it did not become true within {seconds:g} s")
        await asyncio.sleep(pause)
