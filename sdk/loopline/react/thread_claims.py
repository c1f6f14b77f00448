"""Thread claims: what threads that outlived their calls keep other calls from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future

from loopline.clock import Clock, done_within
from loopline.errors import ToolError
from loopline.react.guards import Claim

_claimed: dict[str, list[tuple[Claim, Future[object]]]] = {}
"""By the uid of a conversation, for as long as the threads run: they belong to the process."""


def claim_for_thread(uid: str, claim: Claim, thread: Future[object]) -> None:
    """Keep claimed what a thread claims whose call was cut off."""
    entry = (claim, thread)
    _claimed.setdefault(uid, []).append(entry)

    def release(_: Future[object]) -> None:
        remaining = [
            other_entry for other_entry in _claimed.get(uid, []) if other_entry is not entry
        ]
        _claimed[uid] = remaining
        if not remaining:
            _claimed.pop(uid, None)

    thread.add_done_callback(release)


async def wait_for_threads(uid: str, claim: Claim, clock: Clock, seconds: float | None) -> None:
    """Wait until no thread that outlived its call claims the same.

    Raises:
        ToolError: one still does after so many seconds.
    """
    threads = [thread for claimed, thread in _claimed.get(uid, []) if claimed.conflicts(claim)]
    if not threads:
        return
    await done_within(clock, seconds, _all_done(threads))
    if not all(thread.done() for thread in threads):
        raise ToolError(
            "This call was not begun: an earlier one that it must not run beside was cut off, and still runs. "
            "Try again later."
        )


async def _all_done(threads: Sequence[Future[object]]) -> None:
    await asyncio.gather(*map(asyncio.wrap_future, threads), return_exceptions=True)
