"""Helpers for asyncio: wait for work in spite of a cancellation, and run long work outside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")

LONG_TEXT = 8_192
"""The characters from which a text is processed in a thread or in parts; at 1 µs for each character it takes 8 ms."""


async def finish(outcome: asyncio.Future[T]) -> T:
    """Return the outcome; if this is cancelled, raise the cancellation only after the outcome is known."""
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        await wait_until_done(outcome)
        raise


async def cancel_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks, and wait until all of them have ended; their results and errors are ignored."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def raise_lost_cancellation() -> None:
    """Raise the cancellation of the current task that what it awaited has swallowed.

    `asyncio.wait_for` of Python 3.11 does that if what it waits for ends at the moment of the cancellation.
    """
    current = asyncio.current_task()
    if current is not None and current.cancelling():
        raise asyncio.CancelledError


async def run_together(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until all tasks are done, or one fails; raise its error. A cancellation cancels all tasks.

    A single task is awaited directly, because `asyncio.gather` needs one more iteration of the event loop.
    """
    if len(tasks) != 1:
        await asyncio.gather(*tasks)
        return
    current = asyncio.current_task()
    before = current.cancelling() if current else 0
    await tasks[0]
    if current is not None and current.cancelling() > before:  # the task ignored the cancellation
        raise asyncio.CancelledError


async def compute(work: Callable[[], T], *, characters: int = LONG_TEXT) -> T:
    """Run `work` in a thread and return its result; the event loop stays free.

    If `characters`, the length of the text, is below `LONG_TEXT`, `work` runs directly. A cancellation is raised after the
    thread has ended, so that the thread does not work on values that change.
    """
    if characters < LONG_TEXT:
        return work()
    return await finish(asyncio.ensure_future(asyncio.to_thread(work)))


class ThreadCache(Generic[T]):
    """A cache of values by name; a missing value is computed in a thread, by one thread at a time."""

    def __init__(self, compute_value: Callable[[str], T]) -> None:
        self._compute = compute_value
        self._values: dict[str, T] = {}
        self._computing = asyncio.Lock()

    async def __call__(self, name: str) -> T:
        """Return the value of that name; if computing it fails, raise the error, and compute it again the next time."""
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
    """Wait until the future is done, and ignore cancellations of this wait."""
    while not outcome.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([outcome])
    if not outcome.cancelled():
        outcome.exception()  # asyncio warns of an exception that is never retrieved
