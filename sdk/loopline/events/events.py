"""Events of a turn as subscribers receive them, the observer of turns, and the value of a typed answer in progress.

An event is a block, which has a position in the log, or a delta, which has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Generic, Literal, Protocol, cast

from typing_extensions import TypeForm, TypeVar

from loopline.models import Json, OutputType, SchemaMismatch
from loopline.timeline import Block, Completion, ConversationKey, RoundStart


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """An event that is not stored: text while it is written, or progress. A later block replaces the deltas before it.

    The channels of a reply are `answer`, `notes`, `thinking`, and `draft` if another request writes the answer. Other
    channels are `tool`, `tools`, `model`, `knowledge`, `context`, and `queue`, which names the turn that a turn waits for.

    The types:
    `delta` adds text to the channel. In the channel `answer` citations are resolved: `[1]` is the first source that the
    answer cites, `[?]` a number without a source.
    `reset` discards the text that the channel streamed in the current attempt.
    `progress` reports the progress of a call or of the turn; `total` is the number of items, or 0 if it is unknown.
    `compaction` has the size of a context that is being compacted.
    `pending` has a question of a call to the user. With `data`, the schema of the answer, the call keeps running and
    continues after `Conversation.answer`; without, the turn pauses.
    `custom` is an event of a tool or a workflow, with its `name` and `data`, in the channel `tool` or `workflow`.
    `missed` says that a slow subscriber did not get the blocks after the seq `after` up to and including `through`; the
    log still has them.

    `call_id` is the call of a `progress`, `pending` or `custom`, or "".
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
NotesMode = Literal["hold", "show"]
"""The treatment of a text that may still become a note: it is held back, or shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTurn:
    """A turn that an observer sees. `caller` is the call that started it if it is a child run, else None.

    `uid` is the id of its conversation; it stays the same when another process resumes the turn.
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
    """An observer of all turns of a harness, including those of child runs. Telemetry is an observer.

    It is called on the event loop between two blocks, and must not block. If it raises, the error is logged, and the
    observer gets no more blocks of that turn.
    """

    def begin(self, turn: ObservedTurn, blocks: Sequence[Block]) -> Callable[[Block], None]:
        """Observe a turn that a runner starts or resumes; return the function to call with each new block.

        `blocks` are the blocks that the turn already has; the observer of its previous runner received them.
        """
        ...

    async def close(self) -> None:
        """Send the data that was not sent yet, within a limited time, because the harness closes."""
        ...


NO_TOOLS = sha256(b"").hexdigest()
"""The digest of the tools of a round without tools."""


class AnswerText:
    """The text of the answer as it becomes certain, from the events of its turn.

    The model may still make a call after a text; the text is then a note, not the answer. With `notes` "hold", a text is
    held back until its reply is complete, unless the round offers no tools, or only asks for the answer. With "show" each
    text is passed on at once; if it becomes a note, an empty line separates it from the following text.
    """

    def __init__(self, notes: NotesMode = "hold") -> None:
        self._holds = notes == "hold"
        self._is_certain = not self._holds
        self._held: list[str] = []
        self._passed: list[str] = []

    def feed(self, event: Event) -> str:
        """Take the next event of the turn, and return the text that it makes certain; often empty.

        For the stored answer, that is the rest that was not passed on. With `notes` "show", a reset returns an empty
        line if text was passed on.
        """
        match event:
            case Block(body=RoundStart(purpose=purpose, tools_sha256=tools)):
                self._is_certain = not self._holds or purpose == "answer" or tools == NO_TOOLS
            case Delta(type="delta", channel="answer", text=text):
                (self._passed if self._is_certain else self._held).append(text)
                return text if self._is_certain else ""
            case Delta(type="reset", channel="answer"):
                self._held = []
                if self._holds:
                    self._is_certain = False  # the text is written again, and only its end is new
                    return ""
                has_passed, self._passed = bool(self._passed), []
                return "\n\n" if has_passed else ""
            case Block(body=Completion(text=text)):
                return self._complete(text)
            case _:
                pass
        return ""

    def _complete(self, recorded: str) -> str:
        """Return the part of the answer that was not passed on, and start again for the next answer.

        It is all of `recorded`, the text without resolved citations, if no text was streamed; "" if all was passed
        on; and all of the held text after an empty line if that does not continue the passed text.
        """
        text, passed = "".join(self._held), "".join(self._passed)
        self._held = []
        self._passed = []
        if not passed:
            return text or recorded
        if not text or text == passed:
            return ""
        return text.removeprefix(passed) if text.startswith(passed) else f"\n\n{text}"


T_co = TypeVar("T_co", covariant=True, default=None)

PARSE_SHARE = 32
"""The JSON is parsed again when it has grown by 1/32, so the cost of all parsing is a multiple of its length."""


class PartialOutput(Generic[T_co]):
    """The fields of a typed answer as they arrive.

    `value` is the JSON value of the answer written so far: its last text or list may be incomplete, fields may be
    missing, and its citations are resolved. `output` is the complete answer as a value of `output_type`; it is None until
    the answer is complete, without a type, and if the answer does not match the type.
    """

    def __init__(self, output_type: TypeForm[T_co] | None = None) -> None:
        self.value: Json = None
        self.output: T_co | None = None
        self._type = None if output_type is None else OutputType(output_type)
        self._text: list[str] = []
        self._length = self._parsed = 0

    def feed(self, event: Event) -> bool:
        """Take the next event of the turn, and return whether `value` or `output` changed.

        The text is parsed again only when it has grown by 1/32. A reset clears `value` and returns True. `output` is
        set by the stored answer; it stays None if the answer does not fit the type.
        """
        match event:
            case Delta(type="delta", channel="answer", text=text):
                self._text.append(text)
                self._length += len(text)
                has_grown = self._length - self._parsed >= self._parsed // PARSE_SHARE
                return has_grown and self._parse()
            case Delta(type="reset", channel="answer"):
                self._text = []
                self._length = self._parsed = 0
                self.value = None
                return True
            case Block(body=Completion() as answer):
                return self._complete(answer)
            case _:
                return False

    def _complete(self, answer: Completion) -> bool:
        """Parse the stored answer into `output` and `value`, and return whether one changed; False without a type."""
        if not answer.schema_sha256:
            return False
        if not self._text:  # no delta of it was received
            self._text = [answer.text]
        if self._type is not None:
            with suppress(SchemaMismatch):
                self.output = self._type.read(answer.text)
        return self._parse() or self.output is not None

    def _parse(self) -> bool:
        """Parse the text so far into `value`, and return whether it changed; invalid JSON keeps the old value."""
        from pydantic_core import from_json

        text = "".join(self._text)
        previous = self.value
        self._text = [text]
        self._parsed = self._length
        try:
            self.value = cast("Json", from_json(text, allow_partial="trailing-strings"))
        except ValueError:  # no value has begun yet
            return False
        return self.value != previous
