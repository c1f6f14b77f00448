"""Waiting for what must not be left half done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def settled(outcome: asyncio.Future[T]) -> T:
    """The outcome, which is waited for come what may: a cancellation is raised only after it."""
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        await ended(outcome)
        raise


async def computed(work: Callable[[], T]) -> T:
    """Return what `work` gives, which only computes: it runs in a thread, so that the event loop stays free.

    A cancellation is raised once the thread is done: nothing computes with values that change meanwhile.
    """
    return await settled(asyncio.ensure_future(asyncio.to_thread(work)))


async def ended(outcome: asyncio.Future[Any]) -> None:
    """Wait until there is an outcome, whatever it is, however often this is cancelled meanwhile."""
    while not outcome.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([outcome])
    if not outcome.cancelled():
        outcome.exception()  # it is nobody's any more, and asyncio would complain of that
