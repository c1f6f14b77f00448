"""A turn that was begun for a caller from outside: what it asks goes to that caller while its call stays open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from loopline.conversations import Conversation
from loopline.events import Delta
from loopline.mcp.served import ServedCaller, ServedQuestion
from loopline.models import Json
from loopline.tasks import finish
from loopline.timeline import Exit, ToolCalled, ToolQuestion, TurnResult

DRAIN_SECONDS = 1.0
"""How long the events of a turn that has ended are waited for; they are there already."""


class ServedTurn:
    """A running turn and its caller, who may leave with a question and come back with the answer."""

    def __init__(
        self,
        talk: Conversation[object],
        run: Callable[[], Awaitable[TurnResult[object]]],
        caller: ServedCaller,
    ) -> None:
        self._talk = talk
        self._caller = caller
        self._questions: dict[str, ServedQuestion] = {}
        self._kinds: dict[str, Literal["question", "approval"]] = {}
        self._asks = asyncio.Event()
        self._hearing = asyncio.create_task(self._hear())
        self._running = asyncio.ensure_future(run())
        self._running.add_done_callback(self._leave)

    @property
    def questions(self) -> tuple[ServedQuestion, ...]:
        """Return what its calls ask and stay open for."""
        return tuple(self._questions.values())

    @property
    def is_over(self) -> bool:
        """Return whether it has ended."""
        return self._running.done()

    def answer(self, answers: Mapping[str, Json]) -> None:
        """Give the answers to the calls that still ask; None declines."""
        for call_id, value in answers.items():
            self._questions.pop(call_id, None)
            self._talk.answer(call_id, value)

    async def go_on(self, caller: ServedCaller) -> TurnResult[object] | None:
        """Wait for its result, or until one of its calls asks: then there is None. Cancelling this stops the turn."""
        self._caller = caller
        self._asks.clear()
        asking = asyncio.ensure_future(self._asks.wait())
        try:
            if not self._questions:
                await asyncio.wait([self._running, asking], return_when=asyncio.FIRST_COMPLETED)
            if self._questions and not self._running.done():
                return None
            result = await asyncio.shield(self._running)
            await asyncio.wait([self._hearing], timeout=DRAIN_SECONDS)
            return result
        except asyncio.CancelledError:
            await finish(asyncio.ensure_future(self._talk.stop()))
            await asyncio.wait([self._running])
            raise
        finally:
            asking.cancel()
            if self._running.done():
                self._hearing.cancel()
                await asyncio.gather(self._hearing, return_exceptions=True)

    async def _hear(self) -> None:
        async for event in self._talk.listen():
            if isinstance(event, Delta):
                if event.type == "progress":
                    self._caller.on_progress(event.text)
                elif event.type == "pending":
                    self._ask(event)
            elif isinstance(event.body, ToolCalled):
                self._caller.on_progress(event.body.tool)
            elif isinstance(event.body, ToolQuestion):
                self._kinds[event.body.call_id] = event.body.kind
            elif isinstance(event.body, Exit):
                return

    def _ask(self, event: Delta) -> None:
        """Keep a question for the caller; decline it where the caller cannot ask, or would approve of its own call."""
        if not self._talk.asks(event.call_id):
            return  # the turn pauses for it
        if not self._caller.can_ask or self._kinds.get(event.call_id) == "approval":
            self._talk.answer(event.call_id, None)
            return
        self._questions[event.call_id] = ServedQuestion(
            call_id=event.call_id, text=event.text, form=event.data, is_open=True
        )
        self._asks.set()

    def _leave(self, running: asyncio.Future[TurnResult[object]]) -> None:
        """Stop listening; an error that nobody waits for has been recorded."""
        if not running.cancelled():
            running.exception()
        self._questions.clear()
        self._asks.set()
