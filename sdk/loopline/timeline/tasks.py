"""Helpers for asyncio: wait for work that must be finished, and keep long work off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

LONG_TEXT = 8_192
"""Characters of a text that is worked on in a thread, or in parts: at a microsecond each, that is 8 ms."""


def is_long(text: str) -> bool:
    """Whether work on each character of a text would be noticed by other tasks of the loop."""
    return len(text) >= LONG_TEXT


async def finish(outcome: asyncio.Future[T]) -> T:
    """The outcome, which is waited for come what may: a cancellation is raised only after it."""
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        await wait_until_done(outcome)
        raise


async def compute(work: Callable[[], T], *, characters: int = LONG_TEXT) -> T:
    """Return what `work` gives, which only computes: it runs in a thread, so that the event loop stays free.

    A cancellation is raised once the thread is done: nothing computes with values that change meanwhile.
    Work on a text of fewer than `MANY_CHARACTERS` is done at once.
    """
    if characters < LONG_TEXT:
        return work()
    return await finish(asyncio.ensure_future(asyncio.to_thread(work)))


async def text_parts(text: str) -> AsyncIterator[str]:
    """Yield a text in parts of `MANY_CHARACTERS` at most; other tasks of the loop come between them."""
    yield text[:LONG_TEXT]
    for at in range(LONG_TEXT, len(text), LONG_TEXT):
        await asyncio.sleep(0)
        yield text[at : at + LONG_TEXT]


async def wait_until_done(outcome: asyncio.Future[Any]) -> None:
    """Wait until there is an outcome, whatever it is, however often this is cancelled meanwhile."""
    while not outcome.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([outcome])
    if not outcome.cancelled():
        outcome.exception()  # it is nobody's any more, and asyncio would complain of that
