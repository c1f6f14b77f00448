"""An answer on its way to a listener: its citations are resolved, and held back until they are whole."""

from __future__ import annotations

from loopline.events import Delta, Event, Listen
from loopline.timeline import Pool, citations


class Resolved:
    """A listener before another one, which hears the answer channel with its citations resolved.

    A token becomes `[1]`, `[2]`, …: which of the cited sources it is, in the order of their first
    mention, as `TurnResult.sources` has them; `[?]` is a number that no source has. Whatever is not of
    the answer passes as it is. One stands for one reply: `close` gives out what is held back.
    """

    def __init__(self, listen: Listen, pool: Pool) -> None:
        self._listen = listen
        self._pool = pool
        self._attempt = 1
        self._resolver = self._begun()

    def __call__(self, event: Event) -> None:
        """Hear an event, and let the other one hear what can be told of it now."""
        match event:
            case Delta(type="delta", channel="answer", text=text, attempt=attempt):
                self._attempt = attempt
                self._tell(self._resolver.feed(text))
            case Delta(type="reset", channel="answer"):
                self._resolver = self._begun()
                self._listen(event)
            case _:
                self._listen(event)

    def close(self) -> None:
        """The reply is whole."""
        self._tell(self._resolver.close())
        self._resolver = self._begun()

    def _begun(self) -> citations.Resolver:
        marks = citations.Marks(self._pool.sources)
        return citations.Resolver(marks, newest=self._pool.newest)

    def _tell(self, text: str) -> None:
        if text:
            self._listen(Delta(type="delta", channel="answer", text=text, attempt=self._attempt))
