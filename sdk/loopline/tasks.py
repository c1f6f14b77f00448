"""Helpers for asyncio: wait for work that must be finished, and keep long work off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")

LONG_TEXT = 8_192
"""Length from which a text is processed in a thread or in parts: at a microsecond a character, 8 ms."""


async def finish(outcome: asyncio.Future[T]) -> T:
    """Return the outcome; a cancellation is raised only once there is one."""
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        await wait_until_done(outcome)
        raise


async def run_together(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the tasks, or for the first error of one; a cancellation reaches all, and is raised once they are done.

    A lone task is awaited itself, for `asyncio.gather` takes a turn of the event loop more.
    """
    if len(tasks) != 1:
        await asyncio.gather(*tasks)
        return
    current = asyncio.current_task()
    before = current.cancelling() if current else 0
    await tasks[0]
    if current is not None and current.cancelling() > before:  # the task paid no heed to it
        raise asyncio.CancelledError


async def compute(work: Callable[[], T], *, characters: int = LONG_TEXT) -> T:
    """Return the result of `work`, computed in a thread so that the event loop stays free.

    A cancellation is raised once the thread is done, so that no value changes under it. Work on a text of fewer
    than `LONG_TEXT` characters is done at once.
    """
    if characters < LONG_TEXT:
        return work()
    return await finish(asyncio.ensure_future(asyncio.to_thread(work)))


class ThreadCache(Generic[T]):
    """Values that are computed in a thread when they are first asked for; then no thread is needed."""

    def __init__(self, compute_value: Callable[[str], T]) -> None:
        self._compute = compute_value
        self._values: dict[str, T] = {}
        self._computing = asyncio.Lock()

    async def __call__(self, name: str) -> T:
        """Return the value of that name; what failed is computed again."""
        if name not in self._values:
            async with self._computing:
                if name not in self._values:
                    self._values[name] = await asyncio.to_thread(self._compute, name)
        return self._values[name]


async def text_parts(text: str) -> AsyncIterator[str]:
    """Yield a text in parts of at most `LONG_TEXT` characters, and let other tasks run between them."""
    yield text[:LONG_TEXT]
    for at in range(LONG_TEXT, len(text), LONG_TEXT):
        await asyncio.sleep(0)
        yield text[at : at + LONG_TEXT]


async def wait_until_done(outcome: asyncio.Future[Any]) -> None:
    """Wait until the future is done, however often this is cancelled meanwhile."""
    while not outcome.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([outcome])
    if not outcome.cancelled():
        outcome.exception()  # otherwise asyncio warns that it was never retrieved
