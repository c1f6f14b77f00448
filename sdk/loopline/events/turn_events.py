"""Turn events: the events of a turn, in the form that every dialect translates."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct, field

from loopline import timeline
from loopline.models import Json, JsonObject, Usage

UNANSWERED: frozenset[timeline.ExitReason] = frozenset(
    {"error", "refused", "stopped", "interrupted"}
)
"""The exit reasons of a run without an answer."""


class EventMeta(Struct, frozen=True, kw_only=True):
    """The position and time of the block that a turn event comes from.

    An event of a delta has the seq 0, the running turn, and the time of the newest block.
    """

    seq: int
    turn: int
    ts: datetime

    @property
    def turn_id(self) -> str:
        """The turn's id in refs, such as `turn_1`."""
        return timeline.turn_id(self.turn)


class TurnStarted(Struct, frozen=True, kw_only=True):
    """A runner started the turn; this event is not repeated when the turn is resumed."""

    prompt: str
    bundle: str


class RoundStarted(Struct, frozen=True, kw_only=True):
    """The model is asked for a decision; `iteration` counts from 1, and a `limit` of 0 means unlimited.

    If a steer cuts a round off, the next round has the same number.
    """

    iteration: int
    limit: int


class AnswerStarted(Struct, frozen=True, kw_only=True):
    """The model is asked for an answer without tools."""


class DecisionMade(Struct, frozen=True, kw_only=True):
    """The model replied. `iteration` is 0 for a reply with the purpose "answer".

    `thought` is the reply's notes or, without notes, its thinking. `flag` is the flag of the answer if the reply became
    the answer.
    """

    iteration: int
    limit: int
    decision: timeline.Decision
    thought: str = ""
    notes: str = ""
    thinking: str = ""
    flag: timeline.AnswerFlag = ""

    @property
    def is_unreadable(self) -> bool:
        """Whether the reply could not be parsed for another reason than the output limit, which cut it off."""
        return bool(self.decision.raw) and self.decision.stop_reason != "length"


class CallStarted(Struct, frozen=True, kw_only=True):
    """The model called a tool; `index`, from 0, is the call's position among the `total` of its decision.

    If it `is_for_client`, the client runs it, but not before `InputRequested`.
    """

    call_id: str
    tool: str
    arguments: JsonObject = field(default_factory=JsonObject)
    iteration: int = 0
    index: int = 0
    total: int = 1
    is_for_client: bool = False


class CallFinished(Struct, frozen=True, kw_only=True):
    """A call has its result.

    `ran_with` are the arguments it ran with, which a guard may have changed. `open_calls` are the ids of the calls
    without a result. `has_children` says that the call started child runs.
    """

    call: CallStarted
    ran_with: JsonObject
    result: timeline.ToolResult
    open_calls: tuple[str, ...]
    has_children: bool = False


class InputRequested(Struct, frozen=True, kw_only=True):
    """A call waits for the user: for an answer to its tool's question, or for an approval; or for the client that runs it.

    `digest` identifies the call that is to be approved. `form` is the JSON Schema of the answer, if the tool has one. A
    `call` that the client runs has the arguments with which it must run, and the answer is its result.
    """

    call: CallStarted
    kind: timeline.WaitKind
    question: str
    digest: str = ""
    form: Json = None


class ChildStarted(Struct, frozen=True, kw_only=True):
    """A call started a child run; `agent` is the name of its agent, or ""."""

    call: CallStarted
    conversation: str
    agent: str = ""


class ChildFinished(Struct, frozen=True, kw_only=True):
    """A child run ended; `elapsed_ms` is the time between the blocks of its start and its end."""

    call: CallStarted
    child: timeline.RunChild
    elapsed_ms: float


class InputAccepted(Struct, frozen=True, kw_only=True):
    """An input of the kind `followup`, `steer` or `background` was stored; no round has taken it yet."""

    kind: str
    text: str


class InputTaken(Struct, frozen=True, kw_only=True):
    """A round took the input with the seq `input_seq`, which is not the turn's own prompt."""

    kind: str
    text: str
    input_seq: int


class TextStreamed(Struct, frozen=True, kw_only=True):
    """The model wrote a piece of text."""

    channel: str
    text: str


class TextReset(Struct, frozen=True, kw_only=True):
    """The text that the channel streamed since the last reset must be discarded."""

    channel: str


class ProgressReported(Struct, frozen=True, kw_only=True):
    """A call or the turn reports progress; in the channel `context`, the context is being compacted.

    In the channel `tools`, `total` is the number of tools from which the model selects.
    """

    channel: str
    text: str
    call_id: str
    total: int


class CitedSource(Struct, frozen=True, kw_only=True):
    """A source that an answer cites, with its number in the pool; `source` is None if its block was not received."""

    sid: int
    source: timeline.Source | None


class AnswerGiven(Struct, frozen=True, kw_only=True):
    """The turn has its answer. `text` has resolved citations; `usage` is the turn's usage until now."""

    text: str
    flag: timeline.AnswerFlag
    sources: tuple[CitedSource, ...]
    usage: Usage


class TurnPaused(Struct, frozen=True, kw_only=True):
    """The turn waits for the user, or its runner left it; no event follows until it is resumed.

    `calls` are the ids of the calls that wait for the user; `stop_reason` is the stop reason of the last decision.
    """

    calls: tuple[str, ...]
    rounds: int
    stop_reason: str

    @property
    def reason(self) -> Literal["paused", "interrupted"]:
        """`paused` if calls wait for the user, else `interrupted`."""
        return "paused" if self.calls else "interrupted"


class QuestionOpened(Struct, frozen=True, kw_only=True):
    """A call asks the user a question and keeps running, and so does its turn.

    For a client that follows one run, the question is a `request` and then a `pause`.
    """

    request: InputRequested
    pause: TurnPaused


class TurnFinished(Struct, frozen=True, kw_only=True):
    """The turn ended. `usage` and `cost` (in US dollars) include its child runs; `answer` is the last answer.

    `late_inputs` are the texts of inputs that no round took; `stop_reason` is the stop reason of the last decision.
    `truncated` is True if the model's output limit cut the answer off.
    """

    reason: timeline.ExitReason
    error: str
    rounds: int
    elapsed_ms: float
    usage: Usage
    cost: float | None
    answer: str
    late_inputs: tuple[str, ...]
    stop_reason: str
    truncated: bool = False


TurnEvent = (
    TurnStarted
    | RoundStarted
    | AnswerStarted
    | DecisionMade
    | CallStarted
    | CallFinished
    | InputRequested
    | ChildStarted
    | ChildFinished
    | InputAccepted
    | InputTaken
    | TextStreamed
    | TextReset
    | ProgressReported
    | AnswerGiven
    | TurnPaused
    | QuestionOpened
    | TurnFinished
    | timeline.ToolsSelected
    | timeline.ModelSwitched
    | timeline.RangeSummary
    | timeline.Draft
    | timeline.CustomEvent
    | timeline.FileAdded
    | timeline.Plan
)
"""An event of a turn; a body without more to say is its own event."""
