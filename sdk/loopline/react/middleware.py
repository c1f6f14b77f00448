"""Middleware around a run: its order, hooks as middleware, time limits, and a circuit breaker.

Results are values, so one that comes too late changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from typing_extensions import TypeIs

from loopline.clock import Alarm, Clock
from loopline.errors import LooplineError, StoreError
from loopline.react.extensions import Around, Run
from loopline.react.turn import TurnPayload
from loopline.timeline import TurnResult

logger: logging.Logger = logging.getLogger("loopline")

PRIORITY = 100
FAILURES = 5
REST_SECONDS = 30.0

Beforehand = Callable[[TurnPayload], Awaitable[TurnPayload | TurnResult[Any] | None]]
"""Gives another payload, a result that stands in for the run, or None to leave things as they are."""
Afterwards = Callable[[TurnPayload, TurnResult[Any]], Awaitable[TurnResult[Any] | None]]
"""Gives another result, or None to leave it as it is."""


@dataclass(frozen=True, slots=True)
class Layer:
    """An around and its place: those with a lower priority stand about those with a higher one."""

    around: Around
    priority: int = PRIORITY


def ordered(layers: Iterable[Around | Layer]) -> tuple[Around, ...]:
    """The arounds by priority and then as they come, the outermost first, as a workflow lists them."""
    placed = [one if isinstance(one, Layer) else Layer(one) for one in layers]
    return tuple(one.around for one in sorted(placed, key=lambda layer: layer.priority))


def wrapped(run: Run, layers: Iterable[Around | Layer]) -> Run:
    """The run with arounds about it: the first sees the payload first, the last the result first."""
    for around in reversed(ordered(layers)):
        run = partial(around, run=run)
    return run


def before_run(*hooks: Beforehand) -> Around:
    """Hooks that see the payload, in their order; the first that gives a result ends it there."""

    async def around(payload: TurnPayload, run: Run) -> TurnResult[Any]:
        for hook in hooks:
            match await hook(payload):
                case None:
                    pass
                case TurnResult() as instead:
                    return instead
                case changed:
                    payload = changed
        return await run(payload)

    return around


def after_run(*hooks: Afterwards) -> Around:
    """Hooks that see the result, in their order, each that of the one before it."""

    async def around(payload: TurnPayload, run: Run) -> TurnResult[Any]:
        result = await run(payload)
        for hook in hooks:
            changed = await hook(payload, result)
            result = result if changed is None else changed
        return result

    return around


def timeout(around: Around, seconds: float, clock: Clock) -> Around:
    """The around, given so much time before the run and as much after it; the run's own is not counted.

    One that takes longer is cancelled and not waited for, and may begin no run any more. It raises
    TimeoutError, which a `Breaker` about it turns into the plain result.
    """

    async def limited(payload: TurnPayload, run: Run) -> TurnResult[Any]:
        timed = _Timed(run, seconds, clock)
        working = asyncio.ensure_future(around(payload, timed))
        timed.begin()
        try:
            awaited: list[asyncio.Future[Any]] = [working, timed.late]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise TimeoutError(f"{around!r} took longer than {seconds:g} s")
            if working.cancelled():
                raise LooplineError(f"{around!r} cancelled its own work")
            return working.result()
        except asyncio.CancelledError:
            working.cancel()
            await asyncio.wait([working])
            raise
        finally:
            timed.end()
            working.cancel()
            working.add_done_callback(_forget)

    return limited


@dataclass(slots=True, eq=False)
class Breaker:
    """Keeps a broken around apart: what it raises is logged, and the plain run stands in for it.

    A run that it began is not run again: its result is the plain one, and what that run raised is
    raised. After so many failures in a row the around is left out until it has rested; the first failure
    then leaves it out again. One breaker serves many turns.
    """

    around: Around
    clock: Clock
    failures: int = FAILURES
    rest_seconds: float = REST_SECONDS
    _failed: int = field(default=0, init=False)
    _until: float = field(default=0.0, init=False)

    async def __call__(self, payload: TurnPayload, run: Run) -> TurnResult[Any]:
        """The around's result, or the plain one.

        Raises:
            StoreError: the store failed, which nothing can stand in for.
        """
        if self._failed >= self.failures:
            if self.clock.elapsed() < self._until:
                return await run(payload)
            self._rest()  # this turn tries it again, others meanwhile do without
        watched = _Watched(run)
        try:
            result = _checked(self.around, await self.around(payload, watched))
        except StoreError:
            raise
        except Exception as error:
            await watched.over()
            if watched.error is error:
                raise
            if watched.error is not None:
                raise watched.error from error
            logger.exception("%r broke, so the plain run is used", self.around)
            self._failed += 1
            self._rest()
        else:
            self._failed = 0
            return result
        finally:
            watched.closed = True
        return await run(payload) if watched.result is None else watched.result

    def _rest(self) -> None:
        self._until = self.clock.elapsed() + self.rest_seconds


class _Watched:
    """A run as an around is given it: what came of it is kept, and whether it is under way."""

    def __init__(self, run: Run) -> None:
        self.result: TurnResult[Any] | None = None
        self.error: Exception | None = None
        self.closed = False
        self.running = 0
        self._run = run
        self._over = asyncio.Event()

    async def __call__(self, payload: TurnPayload) -> TurnResult[Any]:
        if self.closed:
            raise LooplineError("it is too late for this run: its turn has gone on without it")
        self.running += 1
        self.error = None
        try:
            self.result = await self._run(payload)
        except Exception as error:
            self.error = error
            raise
        finally:
            self.running -= 1
            self._over.set()
        return self.result

    async def over(self) -> None:
        """Wait until no run is under way."""
        while self.running:
            self._over.clear()
            await self._over.wait()


class _Timed:
    """A run as an around is given it that has so much time of its own; `late` is done once that is over."""

    def __init__(self, run: Run, seconds: float, clock: Clock) -> None:
        self.late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._run = run
        self._seconds = seconds
        self._clock = clock
        self._alarm: Alarm | None = None
        self._closed = False

    def begin(self) -> None:
        """The around's own time runs from now on."""
        self._alarm = self._clock.alarm(self._seconds, self._ring)

    def end(self) -> None:
        """The around is over: no time runs any more, and no run may begin."""
        self._closed = True
        self._pause()

    async def __call__(self, payload: TurnPayload) -> TurnResult[Any]:
        if self._closed or self.late.done():
            raise LooplineError("it is too late for this run: its turn has gone on without it")
        self._pause()
        try:
            return await self._run(payload)
        finally:
            self._pause()
            if not self._closed:
                self.begin()

    def _pause(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _ring(self) -> None:
        if not self.late.done():
            self.late.set_result(None)


def _forget(working: asyncio.Future[TurnResult[Any]]) -> None:
    """Take note of how it ended, so that asyncio does not complain that nobody did."""
    if not working.cancelled():
        working.exception()


def _checked(around: Around, result: object) -> TurnResult[Any]:
    if not _is_result(result):
        raise TypeError(f"{around!r} must give a TurnResult, not {result!r}")
    return result


def _is_result(value: object) -> TypeIs[TurnResult[Any]]:
    return isinstance(value, TurnResult)
