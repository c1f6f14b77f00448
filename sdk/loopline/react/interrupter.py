"""The interrupter: cuts off a step of the running turn at its deadline, or when the user steers it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Literal, Self, TypeVar

from msgspec import Struct

from loopline.clock import Alarm, Clock
from loopline.errors import StoreBusy
from loopline.timeline import Recorder

T = TypeVar("T")
InterruptCause = Literal["steer", "deadline", "budget"]

POLL_SECONDS = 0.2
"""How long a turn appends nothing before it looks for steers of another process, and how often it looks then."""


class Interrupted(Exception):
    """The step was cut off."""

    def __init__(self, cause: InterruptCause) -> None:
        super().__init__(cause)
        self.cause: InterruptCause = cause


class _Step(Struct):
    """What may be cut off now: the task that waits for it, whether a steer may, and what has."""

    task: asyncio.Task[object] | None
    steerable: bool
    cause: InterruptCause | None = None


class Interrupter:
    """The scope of one turn: an interruption cuts off what the turn waits for, and no step begins after the deadline.

    It watches over the turn as a context manager. A steer in this process interrupts at once; one from another process,
    when it is read from the log.
    """

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._interrupt_calls: Callable[[InterruptCause], None] | None = None
        self._alarm: Alarm | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None
        self._step: _Step | None = None
        self._deadline: float | None = None
        self._deadline_reached = False
        self._newest_steer = 0

    @property
    def is_late(self) -> bool:
        """Return whether the time of the turn is over."""
        deadline = self._deadline
        return self._deadline_reached or (
            deadline is not None and self._recorder.elapsed_seconds >= deadline
        )

    def watch(
        self, deadline: float | None, interrupt_calls: Callable[[InterruptCause], None]
    ) -> Self:
        """Return the watch over the turn, which may run so many seconds in all.

        While calls run, `interrupt_calls` is called with the cause, and cuts them off one by one.
        """
        self._deadline, self._interrupt_calls = deadline, interrupt_calls
        return self

    async def __aenter__(self) -> None:
        self._recorder.on_steer = self._take_steer
        if self._deadline is not None and not self.is_late:
            seconds_left = self._deadline - self._recorder.elapsed_seconds
            self._alarm = self._clock.alarm(seconds_left, self._reach_deadline)
        self._look_in(POLL_SECONDS)

    async def __aexit__(self, *_: object) -> None:
        self._recorder.on_steer = self._interrupt_calls = None  # else the turn is in a circle
        for timer in (self._alarm, self._next_look):
            if timer is not None:
                timer.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def run(self, begin: Callable[[], Awaitable[T]], *, steerable: bool = True) -> T:
        """Return the outcome of a step that may be cut off; after the deadline no step begins.

        Raises:
            Interrupted: it was cut off, or not begun.
        """
        if self.is_late:
            raise Interrupted("deadline")
        step = _Step(asyncio.current_task(), steerable)
        outer, self._step = self._step, step
        try:
            try:
                return await begin()
            finally:
                if step.cause is not None:
                    # Interrupted from inside, a step may end, well or by an error, before its cancellation is
                    # thrown; until Python 3.13 `uncancel` leaves that to the next step.
                    await asyncio.sleep(0)
        finally:
            self._step = outer
            # Else the turn itself is being stopped, which goes further than an interruption.
            if step.cause is not None and step.task is not None and not step.task.uncancel():
                raise Interrupted(step.cause) from None

    @contextmanager
    def shielded(self) -> Generator[None, None, None]:
        """Protect what happens between the steps of a turn from being cut off."""
        outer, self._step = self._step, None
        try:
            yield
        finally:
            self._step = outer

    def interrupt(self, why: InterruptCause) -> bool:
        """Cut off what runs; return whether that was a step."""
        step = self._step
        if step is None:
            if self._interrupt_calls is not None:
                self._interrupt_calls(why)
        elif step.task is not None and step.cause is None and (step.steerable or why != "steer"):
            step.cause = why
            step.task.cancel()
            return True
        return False

    def _take_steer(self, seq: int) -> None:
        """Cut off a step for a steer of this process, once: the poll is not to find it again."""
        if seq > self._newest_steer and self.interrupt("steer"):
            self._newest_steer = seq

    def _reach_deadline(self) -> None:
        self._deadline_reached = True
        self.interrupt("deadline")

    def _look_in(self, seconds: float) -> None:
        self._next_look = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Look for steers of other processes; what an append returned lately need not be read."""
        quiet_seconds = self._recorder.quiet_seconds
        if quiet_seconds < POLL_SECONDS:
            self._take_newest(self._recorder.waiting_steer_after(self._newest_steer))
            self._look_in(POLL_SECONDS - quiet_seconds)
        else:
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with suppress(StoreBusy):  # another writer holds it for a moment
            self._take_newest(await self._recorder.newest_steer_after(self._newest_steer))
        self._look_in(POLL_SECONDS)

    def _take_newest(self, newest: int) -> None:
        if newest > self._newest_steer:
            self._newest_steer = newest
            self.interrupt("steer")
