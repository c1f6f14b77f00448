"""An answer on its way to a listener: its citations are resolved, and held back until they are whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from loopline.errors import ModelUnavailable
from loopline.events import Delta, Event, Listen
from loopline.models import ProtocolName, TextDelta
from loopline.prompt import ChannelSplitter, ThoughtSplitter
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


Piece = tuple[str, str]


class Splitter(Protocol):
    """Tells channel from channel while a text comes in."""

    def feed(self, text: str) -> list[Piece]:
        """What the next piece of the text adds to which channel."""
        ...

    def close(self) -> list[Piece]:
        """What is left when nothing more comes."""
        ...


class Hearing:
    """What listeners hear of one reply while it is written, by its protocol.

    With `is_answer` False nothing of it is the answer: what would be is heard as thinking. Half a JSON
    object is nothing to hear. `attempt` is the number of the request that is heard, from 1.
    """

    def __init__(
        self, listen: Listen, pool: Pool, protocol: ProtocolName, *, is_answer: bool = True
    ) -> None:
        self._resolved = Resolved(listen, pool)
        self._protocol: ProtocolName = protocol
        self.attempt: int = 1
        self._answer = "answer" if is_answer else "thinking"
        self._splitter: Splitter | None = _splitter(protocol)

    def __call__(self, piece: TextDelta) -> None:
        """Hear the next piece."""
        if piece.channel == "thinking":
            self._tell("thinking", piece.text)
        elif self._splitter is not None:
            self._tell_all(self._splitter.feed(piece.text))
        elif self._protocol == "native":
            self._tell(self._answer, piece.text)

    def again(self, attempt: int, error: ModelUnavailable, seconds: float) -> None:
        """The attempt is given up, and what was heard of it is void; another follows."""
        self._resolved(Delta(type="reset", channel="answer", attempt=attempt))
        said = f"{error}; asked again in {seconds:.1f} s"
        self._resolved(Delta(type="progress", channel="model", text=said, attempt=attempt))
        self.attempt, self._splitter = attempt + 1, _splitter(self._protocol)

    def close(self) -> None:
        """The reply is whole."""
        if self._splitter is not None:
            self._tell_all(self._splitter.close())
        self._resolved.close()

    def _tell_all(self, pieces: Iterable[Piece]) -> None:
        for name, text in pieces:
            channel = _CHANNELS.get(name, name)
            self._tell(self._answer if channel == "answer" else channel, text)

    def _tell(self, channel: str, text: str) -> None:
        if text:
            self._resolved(Delta(type="delta", channel=channel, text=text, attempt=self.attempt))


_CHANNELS = {"": "notes", "tool_call": "tool", "agent_call": "tool", "code": "tool"}


def _splitter(protocol: ProtocolName) -> Splitter | None:
    match protocol:
        case "tagged":
            return ChannelSplitter()
        case "thought_action":
            return ThoughtSplitter()
        case "native" | "json":
            return None
