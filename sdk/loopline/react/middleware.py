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
from loopline.react.extensions import Middleware, Run
from loopline.react.state import TurnPayload
from loopline.timeline import TurnResult

logger: logging.Logger = logging.getLogger("loopline")

PRIORITY = 100
FAILURES = 5
COOLDOWN_SECONDS = 30.0

BeforeHook = Callable[[TurnPayload], Awaitable[TurnPayload | TurnResult[Any] | None]]
"""Returns another payload, a result that replaces the run, or None to change nothing."""
AfterHook = Callable[[TurnPayload, TurnResult[Any]], Awaitable[TurnResult[Any] | None]]
"""Returns another result, or None to change nothing."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Middleware with a priority: a lower one wraps a higher one."""

    middleware: Middleware
    priority: int = PRIORITY


def in_order(layers: Iterable[Middleware | Layer]) -> tuple[Middleware, ...]:
    """Return the middleware by priority, then as listed; the first is the outermost."""
    placed = [entry if isinstance(entry, Layer) else Layer(entry) for entry in layers]
    return tuple(entry.middleware for entry in sorted(placed, key=lambda layer: layer.priority))


def wrap(run: Run, layers: Iterable[Middleware | Layer]) -> Run:
    """Return the run wrapped in middleware: the first sees the payload first and the result last."""
    for middleware in reversed(in_order(layers)):
        run = partial(middleware, run=run)
    return run


def before_run(*hooks: BeforeHook) -> Middleware:
    """Return middleware that calls hooks with the payload in order; the first result ends the run."""

    async def middleware(payload: TurnPayload, run: Run) -> TurnResult[Any]:
        for hook in hooks:
            match await hook(payload):
                case None:
                    pass
                case TurnResult() as instead:
                    return instead
                case changed:
                    payload = changed
        return await run(payload)

    return middleware


def after_run(*hooks: AfterHook) -> Middleware:
    """Return middleware that calls hooks with the result in order, each with that of the hook before."""

    async def middleware(payload: TurnPayload, run: Run) -> TurnResult[Any]:
        result = await run(payload)
        for hook in hooks:
            changed = await hook(payload, result)
            result = result if changed is None else changed
        return result

    return middleware


def timeout(middleware: Middleware, seconds: float, clock: Clock) -> Middleware:
    """Limit the time of middleware before the run and after it; the run itself does not count.

    Middleware that takes longer is cancelled and not waited for, and can no longer begin a run. Then TimeoutError is
    raised; a `Breaker` around it uses the plain run instead.
    """

    async def limited(payload: TurnPayload, run: Run) -> TurnResult[Any]:
        timed = _TimedRun(run, seconds, clock)
        working = asyncio.ensure_future(middleware(payload, timed))
        timed.begin()
        try:
            awaited: list[asyncio.Future[Any]] = [working, timed.late]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise TimeoutError(f"{middleware!r} took longer than {seconds:g} s")
            if working.cancelled():
                raise LooplineError(f"{middleware!r} cancelled its own work")
            return working.result()
        except asyncio.CancelledError:
            working.cancel()
            await asyncio.wait([working])
            raise
        finally:
            timed.end()
            working.cancel()
            working.add_done_callback(_retrieve_outcome)

    return limited


@dataclass(slots=True, eq=False)
class Breaker:
    """Protects a run from middleware that raises: the error is logged, and the plain run is used instead.

    If the middleware had already begun the run, its result is used and the run is not repeated; an error of the run
    itself is raised. After `failures` errors in a row the middleware is skipped for `cooldown_seconds`; the first error
    after that skips it again. Use one breaker for many turns.
    """

    middleware: Middleware
    clock: Clock
    failures: int = FAILURES
    cooldown_seconds: float = COOLDOWN_SECONDS
    _failures_in_row: int = field(default=0, init=False)
    _closed_until: float = field(default=0.0, init=False)

    async def __call__(self, payload: TurnPayload, run: Run) -> TurnResult[Any]:
        """Return the result of the middleware, or of the plain run if it breaks.

        Raises:
            StoreError: the store failed, which nothing can stand in for.
        """
        if self._failures_in_row >= self.failures:
            if self.clock.elapsed() < self._closed_until:
                return await run(payload)
            self._open_circuit()  # this turn tries it again, others meanwhile do without
        watched = _ObservedRun(run)
        try:
            result = _check_result(self.middleware, await self.middleware(payload, watched))
        except StoreError:
            raise
        except Exception as error:
            await watched.wait()
            if watched.error is error:
                raise
            if watched.error is not None:
                raise watched.error from error
            logger.exception("%r broke, so the plain run is used", self.middleware)
            self._failures_in_row += 1
            self._open_circuit()
        else:
            self._failures_in_row = 0
            return result
        finally:
            watched.closed = True
        return await run(payload) if watched.result is None else watched.result

    def _open_circuit(self) -> None:
        self._closed_until = self.clock.elapsed() + self.cooldown_seconds


class _ObservedRun:
    """A run as middleware is given it: what came of it is kept, and whether it is under way."""

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

    async def wait(self) -> None:
        """Wait until no run is under way."""
        while self.running:
            self._over.clear()
            await self._over.wait()


class _TimedRun:
    """A run as middleware is given it that has so much time of its own; `late` is done once that is over."""

    def __init__(self, run: Run, seconds: float, clock: Clock) -> None:
        self.late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._run = run
        self._seconds = seconds
        self._clock = clock
        self._alarm: Alarm | None = None
        self._closed = False

    def begin(self) -> None:
        """Start the middleware's own time."""
        self._alarm = self._clock.alarm(self._seconds, self._ring)

    def end(self) -> None:
        """Stop the time; no run may begin any more."""
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


def _retrieve_outcome(working: asyncio.Future[TurnResult[Any]]) -> None:
    """Take note of how it ended, so that asyncio does not complain that nobody did."""
    if not working.cancelled():
        working.exception()


def _check_result(middleware: Middleware, result: object) -> TurnResult[Any]:
    if not _is_result(result):
        raise TypeError(f"{middleware!r} must give a TurnResult, not {result!r}")
    return result


def _is_result(value: object) -> TypeIs[TurnResult[Any]]:
    return isinstance(value, TurnResult)
