"""Turn events: what happens in a turn, in the form that every dialect translates."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from loopline.models import Json, JsonObject, Usage
from loopline.timeline import (
    AnswerFlag,
    CustomEvent,
    Decision,
    Draft,
    ExitReason,
    FileAdded,
    ModelSwitched,
    Plan,
    RangeSummary,
    RunChild,
    Source,
    ToolResult,
    ToolsSelected,
    turn_id,
)

UNANSWERED: frozenset[ExitReason] = frozenset({"error", "refused", "stopped", "interrupted"})
"""The exit reasons of a run without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMeta:
    """The block that a turn event comes from.

    An event of a delta has the seq 0, the running turn, and the time of the newest block.
    """

    seq: int
    turn: int
    ts: datetime

    @property
    def turn_id(self) -> str:
        """Return the turn's id in refs."""
        return turn_id(self.turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    """A runner started the turn. A turn that is resumed does not start again."""

    prompt: str
    bundle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted:
    """The model is asked for its `iteration`-th decision. A `limit` of 0 means none.

    A round that a steer cuts off starts again with the same number.
    """

    iteration: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStarted:
    """The model is asked for an answer without tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionMade:
    """The model replied. A reply of the purpose "answer" is no iteration: its number is 0.

    `thought` is the reply's notes or, without notes, its thinking. `flag` is that of the answer which the reply became.
    """

    iteration: int
    limit: int
    decision: Decision
    thought: str = ""
    notes: str = ""
    thinking: str = ""
    flag: AnswerFlag = ""

    @property
    def is_unreadable(self) -> bool:
        """Return whether the reply could not be parsed, for another reason than its length."""
        return bool(self.decision.raw) and self.decision.stop_reason != "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted:
    """The model called a tool; `index`, from 0, is the call's position among the `total` of its decision."""

    call_id: str
    tool: str
    arguments: JsonObject = field(default_factory=JsonObject)
    iteration: int = 0
    index: int = 0
    total: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished:
    """A call has its result. `ran_with` are the arguments it ran with; `open_calls` have no result yet."""

    call: CallStarted
    ran_with: JsonObject
    result: ToolResult
    open_calls: tuple[str, ...]
    has_children: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequested:
    """A call waits for the user: for the answer to its tool's question, or for approval of what `digest` is of.

    `form` is the schema of the answer, if the tool has one.
    """

    call: CallStarted
    kind: Literal["question", "approval"]
    question: str
    digest: str = ""
    form: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStarted:
    """A call started a child run; `agent` is the agent that runs it, if one does."""

    call: CallStarted
    conversation: str
    agent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFinished:
    """A child run ended; `elapsed_ms` is the time from block to block."""

    call: CallStarted
    child: RunChild
    elapsed_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InputAccepted:
    """An input of the kind `followup`, `steer` or `background` was recorded; no round has taken it yet."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTaken:
    """A round took an input at `input_seq` that is not the turn's own prompt."""

    kind: str
    text: str
    input_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStreamed:
    """The model wrote a piece of text."""

    channel: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReset:
    """The text that the channel streamed in this attempt is void."""

    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReported:
    """A call or the turn reports progress; in the channel "context", that the context is being compacted.

    With a `total` in the channel "tools", so many tools are being selected from.
    """

    channel: str
    text: str
    call_id: str
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedSource:
    """A source that an answer cites; None if its block was not received."""

    sid: int
    source: Source | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGiven:
    """The answer, with its citations resolved; `usage` is the turn's so far."""

    text: str
    flag: AnswerFlag
    sources: tuple[CitedSource, ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPaused:
    """No event follows for now: the turn waits for the user, or its runner left it.

    `calls` are the waiting ones, `stop_reason` is that of the last decision.
    """

    calls: tuple[str, ...]
    rounds: int
    stop_reason: str

    @property
    def reason(self) -> Literal["paused", "interrupted"]:
        """Return why no event follows."""
        return "paused" if self.calls else "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOpened:
    """A running call asks the user and stays open. Its turn goes on; a client that follows one run sees it as `pause`."""

    request: InputRequested
    pause: TurnPaused


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """The turn ended. `usage` and `cost` include its child runs; `answer` is the last one.

    `late_inputs` are what the user added and no round took; `stop_reason` is that of the last decision.
    """

    reason: ExitReason
    error: str
    rounds: int
    elapsed_ms: float
    usage: Usage
    cost: float | None
    answer: str
    late_inputs: tuple[str, ...]
    stop_reason: str


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
    | ToolsSelected
    | ModelSwitched
    | RangeSummary
    | Draft
    | CustomEvent
    | FileAdded
    | Plan
)
"""What happens in a turn; the bodies among them say all of it themselves."""
