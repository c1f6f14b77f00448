"""Events of a turn as subscribers receive them, the observer of turns, and the value of a typed answer in progress.

An event is a block, which has a position in the log, or a delta, which has none.
"""

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
    """Something in progress. The block that completes it replaces the deltas before it.

    The channels of a reply are `answer`, `notes`, `thinking`, and `draft` where another request writes the answer.
    Others are `tool`, `tools`, `model`, `knowledge`, `context`, and `queue`, which names the turn that a turn waits for.

    `reset` voids what this channel streamed in the current attempt. In the answer channel citations are resolved: `[1]`
    is the first source that the answer cites, `[?]` is none.
    `pending` has the question of a call for the user, before the turn pauses; with `data`, the schema of the answer, the
    call goes on once `Conversation.answer` was called.
    `compaction` has the size of a context that is being compacted.
    `progress` is that of a call or of the turn; `total` is the number of items, or 0 if nothing is counted.
    `custom` is an event of a tool or a workflow, with its `name` and `data`, in the channel `tool` or `workflow`.
    `missed` says that a subscriber was too slow for the blocks behind the seq `after` up to `through`, which the log
    still has.
    `call_id` is the call of a `progress`, `pending` or `custom`, or empty if there is none.
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
    """A turn with a runner. `caller` is the call that started it if it is a child run, else None.

    `uid` is that of its conversation, and stays the same wherever the turn is resumed.
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
    """Receives every turn of a harness, those of child runs too. Telemetry is one.

    It is called on the event loop between two blocks, so it does not wait. If it raises, the error is logged and it
    gets no more blocks of that turn.
    """

    def begin(self, turn: ObservedTurn, blocks: Sequence[Block]) -> Callable[[Block], None]:
        """Return a function that is called with each new block of a turn that a runner starts or resumes.

        `blocks` are those that the turn already has; the observer of its previous runner received them.
        """
        ...

    async def close(self) -> None:
        """Send what is not sent yet, within a limited time: the harness closes."""
        ...


T_co = TypeVar("T_co", covariant=True, default=None)

PARSE_SHARE = 32
"""The JSON is parsed anew when it has grown by one part in so many, so that parsing costs a multiple of its length."""


class PartialOutput(Generic[T_co]):
    """The fields of a typed answer as they arrive.

    `value` is the JSON value of the answer as far as it is written: its last text or list may be incomplete, and fields
    may be missing. In it citations are resolved. `output` is the value of `output_type` once the answer is complete; it
    is None before, without a type, and if the answer does not match the type.
    """

    def __init__(self, output_type: TypeForm[T_co] | None = None) -> None:
        self.value: Json = None
        self.output: T_co | None = None
        self._type = None if output_type is None else OutputType(output_type)
        self._text: list[str] = []
        self._length = self._parsed = 0

    def feed(self, event: Event) -> bool:
        """Take the next event of the turn; return whether `value` or `output` changed."""
        match event:
            case Delta(type="delta", channel="answer", text=text):
                self._text.append(text)
                self._length += len(text)
                has_grown = self._length - self._parsed >= self._parsed // PARSE_SHARE
                return has_grown and self._parse()
            case Delta(type="reset", channel="answer"):
                self._text, self._length, self._parsed, self.value = [], 0, 0, None
                return True
            case Block(body=Completion() as answer):
                return self._complete(answer)
            case _:
                return False

    def _complete(self, answer: Completion) -> bool:
        if not answer.schema_sha256:
            return False
        if not self._text:  # no delta of it was received
            self._text = [answer.text]
        if self._type is not None:
            with suppress(SchemaMismatch):
                self.output = self._type.read(answer.text)
        return self._parse() or self.output is not None

    def _parse(self) -> bool:
        from pydantic_core import from_json

        text, previous = "".join(self._text), self.value
        self._text, self._parsed = [text], self._length
        try:
            self.value = cast("Json", from_json(text, allow_partial="trailing-strings"))
        except ValueError:  # no value has begun yet
            return False
        return self.value != previous
