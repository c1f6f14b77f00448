"""Threads that outlive their calls: what they claim stays claimed in their conversation until they end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future

from loopline.clock import Clock
from loopline.errors import ToolError
from loopline.react.judging import Claim

_claimed: dict[str, list[tuple[Claim, Future[object]]]] = {}
"""By the uid of a conversation, for as long as the threads run: they belong to the process."""


def outlived(uid: str, claim: Claim, thread: Future[object]) -> None:
    """Keep claimed what a thread claims whose call was cut off."""
    one = (claim, thread)
    _claimed.setdefault(uid, []).append(one)

    def release(_: Future[object]) -> None:
        left = [other for other in _claimed.get(uid, []) if other is not one]
        _claimed[uid] = left
        if not left:
            _claimed.pop(uid, None)

    thread.add_done_callback(release)


async def unclaimed(uid: str, claim: Claim, clock: Clock, seconds: float | None) -> None:
    """Wait until no thread that outlived its call claims the same.

    Raises:
        ToolError: one still does after so many seconds.
    """
    threads = [thread for other, thread in _claimed.get(uid, []) if other.conflicts(claim)]
    if threads:
        await _ended(threads, clock, seconds)


async def _ended(threads: Sequence[Future[object]], clock: Clock, seconds: float | None) -> None:
    late = asyncio.Event()
    alarm = None if seconds is None else clock.alarm(seconds, late.set)
    waited = [asyncio.ensure_future(_over(threads)), asyncio.ensure_future(late.wait())]
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if alarm is not None:
            alarm.cancel()
        for one in waited:
            one.cancel()
    if not all(thread.done() for thread in threads):
        raise ToolError(
            "This call was not begun: an earlier one that it must not run beside was cut off, and still runs. "
            "Try again later."
        )


async def _over(threads: Sequence[Future[object]]) -> bool:
    await asyncio.gather(*map(asyncio.wrap_future, threads), return_exceptions=True)
    return True
