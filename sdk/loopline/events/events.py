"""What a listener hears while a turn runs: blocks, which have a place, and deltas, which have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, cast

from typing_extensions import TypeForm, TypeVar

from loopline.models import Json, OutputType, SchemaMismatch
from loopline.timeline import Block, Completion, ConversationKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Something on its way. A completed block stands for the deltas before it.

    The channels of a reply are `answer`, `notes`, `thinking`, and `draft`, which is heard where another request
    writes the answer. Others are `tool`, `tools`, `model`, `knowledge`, `context`, and `queue`, where a turn that
    waits for another one hears which.

    `pending` says what a call asks the user, before the turn pauses.
    `compaction` says that the context is being made smaller, and from what size.
    `reset` says that what this channel showed of the current attempt is void. In the answer channel
    citations are resolved: `[1]` is the first of the sources that the answer cites, `[?]` is none.
    `progress` says how a call or the turn gets on; `total` is of how many, 0 where nothing is counted.
    `custom` is an event of a tool or a workflow, with its `name` and `data`, in the channel `tool` or `workflow`.
    `call_id` is the call that a `progress`, `pending` or `custom` comes from, empty where it comes from none.
    `missed` says that a listener was too slow for the blocks behind the seq `after` up to `through`, which
    the log still has.
    """

    type: Literal["delta", "reset", "progress", "compaction", "pending", "custom", "missed"]
    channel: str
    text: str = ""
    attempt: int = 1
    total: int = 0
    after: int = 0
    through: int = 0
    call_id: str = ""
    name: str = ""
    data: Json = None


Event = Block | Delta
EventSink = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTurn:
    """A turn that a runner has. `caller` is the call that began it; None unless it is a child run's.

    `uid` is that of its conversation, and stays the same wherever the turn is carried on.
    """

    conversation: ConversationKey
    uid: str
    turn: int
    caller: Caller | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """A call of a turn."""

    turn: ObservedTurn
    call_id: str


class Observer(Protocol):
    """Told of every turn of a harness, those of child runs too.

    It is called on the event loop between two blocks, so it does not wait. What it raises is logged, and
    it hears no more of that turn.
    """

    def begin(self, turn: ObservedTurn, blocks: Sequence[Block]) -> Callable[[Block], None]:
        """A runner begins the turn, or carries it on; what is returned is called with each new block.

        `blocks` are those that the turn has already: whoever wrote them has told of them.
        """
        ...

    async def close(self) -> None:
        """The harness closes: what is still to be sent is sent now, and not for ever."""
        ...


T_co = TypeVar("T_co", covariant=True, default=None)

SHARE = 32
"""The JSON is read anew once it has grown by one part in so many, so that all readings cost so often its length."""


class PartialOutput(Generic[T_co]):
    """The fields of a typed answer as they arrive.

    `value` is the JSON value of the answer as far as it is written: its last text or list may be shorter than it
    will be, and fields may be missing. `output` is the value of `output_type` once the answer is whole;
    None before, without a type, and of an answer that is no such value. In `value` citations are resolved.
    """

    def __init__(self, output_type: TypeForm[T_co] | None = None) -> None:
        self.value: Json = None
        self.output: T_co | None = None
        self._type = None if output_type is None else OutputType(output_type)
        self._text: list[str] = []
        self._length = self._read = 0

    def feed(self, event: Event) -> bool:
        """Take the next event of the turn; tell whether `value` or `output` changed."""
        match event:
            case Delta(type="delta", channel="answer", text=text):
                self._text.append(text)
                self._length += len(text)
                return self._length - self._read >= self._read // SHARE and self._parse()
            case Delta(type="reset", channel="answer"):
                self._text, self._length, self._read, self.value = [], 0, 0, None
                return True
            case Block(body=Completion() as answer):
                return self._end(answer)
            case _:
                return False

    def _end(self, answer: Completion) -> bool:
        if not answer.schema_sha256:
            return False
        if not self._text:  # it was not heard while it was written
            self._text = [answer.text]
        if self._type is not None:
            with suppress(SchemaMismatch):
                self.output = self._type.read(answer.text)
        return self._parse() or self.output is not None

    def _parse(self) -> bool:
        from pydantic_core import from_json

        text, before = "".join(self._text), self.value
        self._text, self._read = [text], self._length
        try:
            self.value = cast("Json", from_json(text, allow_partial="trailing-strings"))
        except ValueError:  # no value has begun yet
            return False
        return self.value != before
