"""Appends that wait for the writer at the same time, kept in one transaction."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from loopline.adapters.sql.asked import Append
from loopline.adapters.sql.ledger import Ledger
from loopline.adapters.sql.threads import Writer
from loopline.errors import LooplineError, StoreError
from loopline.timeline import Block
from loopline.timeline.waiting import ended, settled

MOST_TOGETHER = 256
"""So many appends share a transaction at most; other processes wait for the store meanwhile."""
DRAIN_SECONDS = 10.0

_Outcomes = list[list[Block] | LooplineError]


@dataclass(slots=True)
class _Waiting:
    """An append and who waits for it; `told` once there is an outcome."""

    asked: Append
    outcome: asyncio.Future[list[Block]]
    told: bool = False

    def tell(self, outcome: list[Block] | BaseException) -> None:
        """Let who waits go on, with what was kept or with why nothing was."""
        self.told = True
        if self.outcome.done():  # it was cancelled just now
            return
        if isinstance(outcome, BaseException):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


@dataclass(slots=True)
class Group:
    """Hands the writer all that has come while it was busy with what came before."""

    writer: Writer
    ledger: Ledger
    _queue: deque[_Waiting] = field(default_factory=deque[_Waiting])
    _busy: asyncio.Future[None] | None = None

    async def keep(self, asked: Append) -> list[Block]:
        """Every block after what was seen; a cancellation is raised once the outcome is known."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(asked, loop.create_future())
        self._queue.append(waiting)
        self._next()
        try:
            return await waiting.outcome
        except asyncio.CancelledError:
            if not waiting.told:  # the cancellation took the future with it: another one is told
                waiting.outcome = loop.create_future()
                await ended(waiting.outcome)
            raise

    async def drain(self) -> None:
        """Wait for what was asked for, and refuse what has not begun by then."""
        until = asyncio.get_running_loop().time() + DRAIN_SECONDS
        while self._busy is not None:
            await settled(self._busy)
            if asyncio.get_running_loop().time() > until:
                self._refuse(StoreError("the log was closed before this could be kept"))

    def _next(self) -> None:
        if self._busy is not None or not self._queue:
            return
        batch = [self._queue.popleft() for _ in range(min(MOST_TOGETHER, len(self._queue)))]
        asked = [waiting.asked for waiting in batch]
        told = asyncio.get_running_loop().create_future()
        self.writer.begin(partial(self._keep, asked), partial(self._tell, batch, told))
        self._busy = told

    def _keep(self, batch: list[Append]) -> _Outcomes:
        survives_power = any(asked.survives_power for asked in batch)
        with self.writer.transaction(survives_power=survives_power) as connection:
            return self.ledger.append(connection, batch)

    def _tell(
        self, batch: list[_Waiting], told: asyncio.Future[None], done: Future[_Outcomes]
    ) -> None:
        self._busy = None
        told.set_result(None)
        failed = done.exception()
        outcomes = [failed] * len(batch) if failed is not None else done.result()
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.tell(outcome)
        self._next()

    def _refuse(self, error: StoreError) -> None:
        while self._queue:
            self._queue.popleft().tell(error)
