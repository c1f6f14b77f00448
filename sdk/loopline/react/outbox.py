"""The outbox of a call: what it tells its listeners, in the order in which it tells it."""

from __future__ import annotations

import asyncio

from loopline.errors import LooplineError
from loopline.events import Delta, Listen
from loopline.models import well_formed
from loopline.timeline import CustomEvent, Recorder
from loopline.timeline.waiting import settled
from loopline.tools import Emission


class Outbox:
    """Sends at once what passes by, unless a durable event is being recorded: then it goes after that."""

    def __init__(self, call_id: str, *, recorder: Recorder, listen: Listen) -> None:
        self._call_id = call_id
        self._recorder = recorder
        self._listen = listen
        self._loop = asyncio.get_running_loop()
        self._last: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closed = False

    def progress(self, text: str) -> None:
        """Tell how far the call has come; from any thread."""
        said = well_formed(text)
        self._pass_on(Delta(type="progress", channel="tool", text=said, call_id=self._call_id))

    def relay(self, event: CustomEvent) -> None:
        """Tell of an event of a child run, as one of the call that began it."""
        self._pass_on(_passing(event, self._call_id))

    def emit(self, event: CustomEvent, durable: bool) -> Emission:
        """Tell of an event of the call; from any thread, where a durable one is recorded on return.

        Raises:
            LooplineError: the call has ended; in a thread also: it could not be recorded.
        """
        self._check_open(event)
        if not durable:
            self._pass_on(_passing(event, self._call_id))
            return Emission()
        if self._is_here:
            return Emission(self._send(event))
        asyncio.run_coroutine_threadsafe(self._recorded(event), self._loop).result()
        return Emission()

    async def close(self) -> None:
        """Take nothing more, and wait until all of it is sent.

        Raises:
            LooplineError: an event could not be recorded.
        """
        self._closed = True
        if self._last is not None:
            await settled(asyncio.gather(self._last, return_exceptions=True))
        if self._failure is not None:
            raise self._failure

    @property
    def _is_here(self) -> bool:
        """Whether this is the thread of the turn's event loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _check_open(self, event: CustomEvent) -> None:
        if self._closed:
            raise LooplineError(
                f"the event {event.name!r} comes too late: the call {self._call_id} has ended"
            )

    def _pass_on(self, delta: Delta) -> None:
        if self._is_here:
            self._tell(delta)
        else:
            self._loop.call_soon_threadsafe(self._tell, delta)

    def _tell(self, delta: Delta) -> None:
        if self._last is None or self._last.done():
            self._listen(delta)
        else:
            self._send(delta)

    async def _recorded(self, event: CustomEvent) -> None:
        self._check_open(event)
        await self._send(event)

    def _send(self, said: Delta | CustomEvent) -> asyncio.Task[None]:
        self._last = asyncio.create_task(self._after(self._last, said))
        self._last.add_done_callback(self._note)
        return self._last

    async def _after(self, before: asyncio.Task[None] | None, said: Delta | CustomEvent) -> None:
        if before is not None:
            await asyncio.wait([before])
        match said:
            case Delta():
                self._listen(said)
            case CustomEvent():
                await self._recorder.record(said)

    def _note(self, sent: asyncio.Task[None]) -> None:
        if not sent.cancelled() and self._failure is None:
            self._failure = sent.exception()


def _passing(event: CustomEvent, call_id: str) -> Delta:
    return Delta(type="custom", channel="tool", name=event.name, data=event.data, call_id=call_id)
