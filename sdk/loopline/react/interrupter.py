"""The interrupter: it interrupts a step of the running turn at the deadline, or when the user steers the turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Literal, Self, TypeVar

from msgspec import Struct

from loopline.clock import Alarm, Clock
from loopline.errors import StoreError
from loopline.tasks import cancel_all
from loopline.timeline import Recorder

T = TypeVar("T")
InterruptCause = Literal["steer", "deadline", "budget"]

POLL_SECONDS = 0.2
"""Seconds without an append after which a turn reads the log for steers of other processes, and the interval after that."""


class Interrupted(Exception):
    """The step was interrupted; `cause` is the reason."""

    def __init__(self, cause: InterruptCause) -> None:
        super().__init__(cause)
        self.cause: InterruptCause = cause


class _Step(Struct):
    """A step that may be interrupted: its task, whether a steer may interrupt it, and the cause of its interruption."""

    task: asyncio.Task[object] | None
    steerable: bool
    cause: InterruptCause | None = None


class Interrupter:
    """Interrupts the steps of one turn at its deadline and at steers; after the deadline it begins no step.

    As a context manager it watches for them. A steer of this process interrupts at once; a steer of another process when
    it is read from the log.
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
        """Whether the time of the turn is over."""
        deadline = self._deadline
        return self._deadline_reached or (
            deadline is not None and self._recorder.elapsed_seconds >= deadline
        )

    def watch(
        self, deadline: float | None, interrupt_calls: Callable[[InterruptCause], None]
    ) -> Self:
        """Return the context manager for the turn; `deadline` is its running time in seconds, or None.

        If no step runs at an interruption, `interrupt_calls` is called with the cause to interrupt the running calls.
        """
        self._deadline = deadline
        self._interrupt_calls = interrupt_calls
        return self

    async def __aenter__(self) -> None:
        self._recorder.on_steer = self._take_steer
        if self._deadline is not None and not self.is_late:
            seconds_left = self._deadline - self._recorder.elapsed_seconds
            self._alarm = self._clock.alarm(seconds_left, self._reach_deadline)
        self._look_in(POLL_SECONDS)

    async def __aexit__(self, *_: object) -> None:
        self._recorder.on_steer = self._interrupt_calls = None  # they would form a reference cycle
        for timer in (self._alarm, self._next_look):
            if timer is not None:
                timer.cancel()
        if self._reading is not None:
            await cancel_all(self._reading)

    async def run(self, begin: Callable[[], Awaitable[T]], *, steerable: bool = True) -> T:
        """Run a step and return its outcome; a steer interrupts it only if it is `steerable`.

        Raises:
            Interrupted: the step was interrupted, or not begun because the deadline is over.
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
                    # A step that is interrupted by its own code may end before its cancellation is raised. It is
                    # raised here, since before Python 3.13 `uncancel` would leave it to the next step.
                    await asyncio.sleep(0)
        finally:
            self._step = outer
            # If cancellations remain, the whole turn is being stopped, and CancelledError is raised instead.
            if step.cause is not None and step.task is not None and not step.task.uncancel():
                raise Interrupted(step.cause) from None

    @contextmanager
    def shield(self) -> Generator[None, None, None]:
        """Protect the code inside the context from interruptions, except for steps that it runs."""
        outer, self._step = self._step, None
        try:
            yield
        finally:
            self._step = outer

    def interrupt(self, why: InterruptCause) -> bool:
        """Interrupt the current step, or the running calls between steps; return whether a step was interrupted.

        A steer does not interrupt a step that is not steerable, and no step is interrupted twice.
        """
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
        """Interrupt the step for a steer of this process, and store its seq, since the poll must not take it again."""
        if seq > self._newest_steer and self.interrupt("steer"):
            self._newest_steer = seq

    def _reach_deadline(self) -> None:
        self._deadline_reached = True
        self.interrupt("deadline")

    def _look_in(self, seconds: float) -> None:
        self._next_look = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Check for steers of other processes: those that a recent append has returned, or by reading the log."""
        quiet_seconds = self._recorder.quiet_seconds
        if quiet_seconds < POLL_SECONDS:
            # A step without an open round prepares a request, which will show the steers that were read.
            if self._step is None or self._recorder.turn.open_round is not None:
                self._take_newest(self._recorder.waiting_steer_after(self._newest_steer))
            self._look_in(POLL_SECONDS - quiet_seconds)
        else:
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with suppress(StoreError):  # the next poll tries again
            self._take_newest(await self._recorder.newest_steer_after(self._newest_steer))
        self._look_in(POLL_SECONDS)

    def _take_newest(self, newest: int) -> None:
        if newest > self._newest_steer:
            self._newest_steer = newest
            self.interrupt("steer")
