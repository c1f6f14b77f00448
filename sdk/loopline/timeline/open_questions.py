"""Questions that a running call asks the user: they wait in this process, and nothing of them is recorded."""

from __future__ import annotations

import asyncio

from loopline.models import Json


class OpenQuestions:
    """The questions of the calls of a turn, at most one a call at a time."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Json]] = {}

    async def answer_to(self, call_id: str) -> Json:
        """Return the user's answer to the question that the call asks now; a later question takes its place.

        If another question takes its place, the answer is None.
        """
        before = self._waiting.get(call_id)
        if before is not None and not before.done():
            before.set_result(None)
        waiting: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = waiting
        try:
            return await waiting
        finally:
            if self._waiting.get(call_id) is waiting:
                del self._waiting[call_id]

    def asks(self, call_id: str) -> bool:
        """Return whether the call waits for an answer now."""
        waiting = self._waiting.get(call_id)
        return waiting is not None and not waiting.done()

    def answer(self, call_id: str, value: Json) -> bool:
        """Give the user's answer to the call; return whether it asks anything."""
        waiting = self._waiting.get(call_id)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(value)
        return True
