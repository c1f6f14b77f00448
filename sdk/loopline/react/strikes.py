"""Strikes: what may cut off a step of the running turn, such as a steer of the user."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, TypeVar

from loopline.clock import Alarm, Clock
from loopline.timeline import Recorder

T = TypeVar("T")
Why = Literal["steer", "deadline"]

LOOK_SECONDS = 0.2
"""How often a turn looks for what another process has said meanwhile, while a step takes long."""


class Struck(Exception):
    """The step was cut off."""

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why: Why = why


class Strikes:
    """Watches over a turn while it runs.

    A steer of this process strikes at once, one of another process when it is seen. `cut` is called with
    a strike while calls run, which are cut off one by one.
    """

    def __init__(
        self, recorder: Recorder, clock: Clock, deadline: float | None, cut: Callable[[Why], None]
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._deadline = deadline
        self._cut = cut
        self._step: asyncio.Task[object] | None = None
        self._struck: Why | None = None
        self._alarm: Alarm | None = None
        self._look: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Strikes:
        """Begin to watch; `deadline` is in seconds from now."""
        self._recorder.on_steer = self._steered
        if self._deadline is not None:
            self._alarm = self._clock.alarm(self._deadline, lambda: self.strike("deadline"))
        self._look_later()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Watch no more."""
        del kind, error, trace
        self._recorder.on_steer = None
        for timer in (self._alarm, self._look):
            if timer is not None:
                timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def over(self, step: Awaitable[T]) -> T:
        """The outcome of a step that may be cut off.

        Raises:
            Struck: it was.
        """
        task = asyncio.current_task()
        self._step, self._struck = task, None
        try:
            return await step
        except asyncio.CancelledError:
            if self._struck is None or task is None or task.uncancel():
                raise  # the turn itself is being stopped
            raise Struck(self._struck) from None
        finally:
            self._step = None

    def strike(self, why: Why) -> None:
        """Cut off what runs."""
        if self._step is not None and self._struck is None:
            self._struck = why
            self._step.cancel()
        self._cut(why)

    def _steered(self) -> None:
        self.strike("steer")

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(LOOK_SECONDS, self._begin_to_look)

    def _begin_to_look(self) -> None:
        self._looking = asyncio.ensure_future(self._look_around())

    async def _look_around(self) -> None:
        """Look again and again; turns that are over sooner never come to it."""
        seen = 0
        while True:
            newest = await self._recorder.steered_since(seen)
            if newest > seen:
                seen = newest
                self.strike("steer")
            await asyncio.sleep(LOOK_SECONDS)
