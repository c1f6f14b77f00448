"""What happens in a turn: the moments that every vocabulary has its own words for."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from loopline.models import Json, JsonObject, Usage
from loopline.timeline import AnswerFlag, ExitReason, ResultStatus, Source, turn_id

UNANSWERED: frozenset[ExitReason] = frozenset({"error", "refused", "stopped", "interrupted"})
"""How a run ends that has come to no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMeta:
    """Where a moment stands: the block that gave rise to it.

    That of a delta has the seq 0, the turn that runs, and the time of the newest block.
    """

    seq: int
    turn: int
    ts: datetime

    @property
    def turn_id(self) -> str:
        """The turn as refs name it."""
        return turn_id(self.turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted:
    """A runner has begun the turn; carrying it on is no new beginning."""

    prompt: str
    bundle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted:
    """The model is about to decide, for the `iteration`-th time. A `limit` of 0 means none.

    A round that is cut off for a steer begins again under the same number.
    """

    iteration: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStarted:
    """The model is asked for the answer alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChanged:
    """The model gave no answer and the next of its chain is asked; what the attempt used."""

    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionMade:
    """The model has replied. One of the purpose "answer" is no iteration: its number is 0.

    `thought` is what it noted, else what it thought. `raw` is a reply that could not be used as it was,
    `flag` that of the answer which the reply became.
    """

    iteration: int
    limit: int
    purpose: Literal["decision", "answer"]
    thought: str
    notes: str
    raw: str
    model: str
    stop_reason: str
    usage: Usage
    calls: int
    flag: AnswerFlag = ""

    @property
    def is_unreadable(self) -> bool:
        """Whether nothing could be made of the reply, which was not merely cut off."""
        return bool(self.raw) and self.stop_reason != "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted:
    """The model asked for a tool, by the `index`-th from 0 of the `total` calls of its decision."""

    call_id: str
    tool: str
    arguments: JsonObject = field(default_factory=JsonObject)
    iteration: int = 0
    index: int = 0
    total: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFinished:
    """What came of a call; `ran_with` are the arguments it ran with. `open_calls` have no result yet."""

    call: CallStarted
    ran_with: JsonObject
    status: ResultStatus
    text: str
    elapsed_ms: float
    artifact: str
    open_calls: tuple[str, ...]
    has_children: bool = False

    @property
    def ok(self) -> bool:
        """Whether the tool did what it was asked."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequested:
    """A call waits for the user: for what its tool asked, or for leave to run."""

    call: CallStarted
    kind: Literal["question", "approval"]
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStarted:
    """A call has begun a run of its own."""

    call: CallStarted
    conversation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFinished:
    """A run that a call began is over; `elapsed_ms` is from block to block."""

    call: CallStarted
    conversation: str
    reason: ExitReason
    usage: Usage
    elapsed_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionStarted:
    """Tools are being chosen among `total`."""

    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionFinished:
    """The tools of the turn have been chosen; what that used."""

    usage: Usage


InputKind = Literal["prompt", "followup", "steer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputAccepted:
    """The user has added something; it is kept, and no round has taken it yet."""

    kind: InputKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTaken:
    """A round has taken what the user said, at the place `said`, beside the turn's own prompt."""

    kind: InputKind
    text: str
    said: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCompacted:
    """The blocks before the newest ones are summed up: so many messages became so many."""

    before: int
    after: int
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHeldBack:
    """An answer was held back."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStreamed:
    """The model is writing."""

    channel: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReset:
    """What the channel showed of this attempt is void."""

    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReported:
    """How a call or the turn gets on; in the channel "context" that it is being made smaller."""

    channel: str
    text: str
    call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomEmitted:
    """A tool, by its call, or the workflow has emitted an event of its own."""

    name: str
    data: Json
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedSource:
    """A source that an answer uses; None where the block that has it was not heard."""

    sid: int
    source: Source | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGiven:
    """The answer, its citations resolved as a listener hears them; `usage` is the turn's so far."""

    text: str
    flag: AnswerFlag
    sources: tuple[CitedSource, ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsMissed:
    """The listener was too slow for the blocks behind `after` up to `through`."""

    after: int
    through: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPaused:
    """Nothing more comes for now: the turn waits for the user, or its runner has left it.

    `calls` are those that wait, `stop_reason` is that of the last decision.
    """

    calls: tuple[str, ...]
    rounds: int
    stop_reason: str

    @property
    def reason(self) -> Literal["paused", "interrupted"]:
        """Why nothing more comes."""
        return "paused" if self.calls else "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """The turn is over. `usage` and `cost` are its own and its children's, `answer` is the last one.

    `late` is what the user added and no round took, `stop_reason` that of the last decision.
    """

    reason: ExitReason
    error: str
    rounds: int
    elapsed_ms: float
    usage: Usage
    cost: float | None
    answer: str
    late: tuple[str, ...]
    stop_reason: str


TurnEvent = (
    TurnStarted
    | RoundStarted
    | AnswerStarted
    | ModelChanged
    | DecisionMade
    | CallStarted
    | CallFinished
    | InputRequested
    | ChildStarted
    | ChildFinished
    | SelectionStarted
    | SelectionFinished
    | InputAccepted
    | InputTaken
    | ContextCompacted
    | AnswerHeldBack
    | TextStreamed
    | TextReset
    | ProgressReported
    | CustomEmitted
    | AnswerGiven
    | EventsMissed
    | TurnPaused
    | TurnFinished
)
