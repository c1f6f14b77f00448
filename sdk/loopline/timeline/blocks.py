"""What a conversation is made of.

A *body* says what happened: one frozen dataclass a type, whose `type` is the word that is stored. A
*block* is a body that has been recorded, so it has a place. Nothing here changes after it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Literal, TypeVar, get_args

from typing_extensions import TypeIs

from loopline.models import Json, JsonObject, OutputSchema, ReasoningReplay, Usage
from loopline.refs import (
    ArtifactRef,
    BlockRef,
    CallRef,
    FileRef,
    Ref,
    SourcesRef,
    SummaryRef,
    parse,
)
from loopline.timeline.attachments import UserAttachment
from loopline.timeline.plan import Plan, PlanAck, PlanHistory
from loopline.timeline.prompt_blocks import (
    Checkpoint,
    Hide,
    ModelOverflowed,
    ModelSwitched,
    RangeSummary,
    RoundStart,
    SystemMessage,
    turn_id,
)
from loopline.timeline.sources import SourceAdded

Effect = Literal["read", "write", "exclusive", "meta"]
ExitReason = Literal[
    "complete",
    "max_iterations",
    "paused",
    "stopped",
    "deadline",
    "budget",
    "refused",
    "stagnation",
    "interrupted",
    "error",
]
ResultStatus = Literal["ok", "error", "interrupted", "stopped", "denied"]
LimitValue = int | float | str | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeCommit:
    """Which repository a knowledge space was read from (a folder or URL), and at which commit."""

    repository: str
    commit: str
    roots: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHeader:
    """A runner begins a turn, and with what; again where the loop that is wired goes by something else.

    `model` is the first of the chain, `then` are the others.

    It is recorded with the first thing that the turn says; `began` is when it was begun. `limits` are the
    policies in force that are not those of the preset `bare`. `recoveries` counts how often the turn was
    taken up by somebody who was not asked to, after its runner was gone. `output` is what the answer is to be.
    """

    bundle: str
    model: str
    protocol: str
    then: tuple[str, ...] = ()
    preset: str = "bare"
    limits: dict[str, LimitValue] = field(default_factory=dict[str, LimitValue])
    knowledge: KnowledgeCommit | None = None
    began: datetime | None = None
    recoveries: int = 0
    output: OutputSchema | None = None
    type: Literal["turn.header"] = "turn.header"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPrompt:
    """What the user said to begin a turn, the limits asked for it, and what its answer is to be."""

    text: str
    limits: dict[str, LimitValue] = field(default_factory=dict[str, LimitValue])
    output: OutputSchema | None = None
    type: Literal["user.prompt"] = "user.prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFollowup:
    """What the user added while a turn was running."""

    text: str
    type: Literal["user.followup"] = "user.followup"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSteer:
    """The user wants the running turn to go another way: what is being written is cut off for it."""

    text: str
    type: Literal["user.steer"] = "user.steer"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserStop:
    """The user wants the turn to end: whoever runs it ends it as stopped, and nobody carries it on."""

    type: Literal["user.stop"] = "user.stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAnswer:
    """What the user gave a call that was waiting for it; an approval takes true or false."""

    call_id: str
    value: Json
    type: Literal["user.answer"] = "user.answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecalled:
    """The user took back what they said at `said`, a seq, before any round had taken it.

    Of a recall and a round that takes the same input the one with the lower seq counts.
    """

    said: int
    type: Literal["user.recalled"] = "user.recalled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The model has replied; `calls` says how many calls follow in the same append.

    One whose `purpose` is "answer" was asked for the answer alone and is no round. `cost` is in US
    dollars, None while nobody knows a price. `attempt` is which request it answers, from 1. `echo` is the
    reply as the provider wants it back, where it does. Where the turn has a budget, `estimated` is what this
    request and those given up before it used that no provider reported; `cost` includes it. `discarded` is
    text of the reply that is no part of the decision, such as an observation that the model invented; no
    prompt shows it.
    """

    model: str
    stop_reason: str
    calls: int = 0
    raw: str = ""
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    purpose: Literal["decision", "answer"] = "decision"
    attempt: int = 1
    echo: ReasoningReplay | None = None
    estimated: Usage = field(default_factory=Usage)
    discarded: str = ""
    type: Literal["react.decision"] = "react.decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """The model's reasoning, for people; what goes back to the model is the echo of its decision."""

    text: str
    type: Literal["react.thinking"] = "react.thinking"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What the model said beside its calls; lines that begin with a marker acknowledge plan steps."""

    text: str
    type: Literal["react.notes"] = "react.notes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    """The model asked for a tool."""

    call_id: str
    tool: str
    arguments: JsonObject = field(default_factory=JsonObject)
    provider_id: str = ""
    type: Literal["react.tool.call"] = "react.tool.call"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    """A call that may change something is about to begin; it is never begun twice.

    `ran_with` are the arguments it runs with, where a guard changed them.
    """

    call_id: str
    effect: Effect
    ran_with: JsonObject | None = None
    type: Literal["react.tool.start"] = "react.tool.start"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPending:
    """A call waits for the user: for what its tool asked, or for leave to run at all.

    `digest` is the sha256, in hexadecimal, of the tool's name and the arguments: what is approved.
    Where a child run of the call asks, `child` is the `cv:` ref of the block by which it does.
    `elapsed_ms` is how long the turn had run until then, 0 where nobody noted it.
    """

    call_id: str
    kind: Literal["question", "approval"]
    question: str
    digest: str
    child: str = ""
    elapsed_ms: float = 0.0
    type: Literal["react.tool.pending"] = "react.tool.pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChild:
    """A call has begun a run of its own, in a conversation of its own; once more when that is over.

    Then `reason` says why it ended, and `usage` and `cost` what it used, its own children included;
    `estimated` is what no provider reported of it.
    """

    call_id: str
    conversation: str
    reason: ExitReason | Literal[""] = ""
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    estimated: Usage = field(default_factory=Usage)
    type: Literal["run.child"] = "run.child"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsSelected:
    """The tools that the turn offers from now on; `why` says how they came to be these.

    The `model` was asked, which took `elapsed_ms`. `cost` is in US dollars, None while nobody knows a price.
    """

    names: tuple[str, ...]
    why: str = ""
    model: str = ""
    elapsed_ms: float = 0.0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    type: Literal["react.tools"] = "react.tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What the tool said, for good or ill. `elapsed_ms` is the time it ran.

    `found` counts what a search found. `shows` names what a read put before the model, as pairs of
    ref and sha256 of the text. `ran_with` are the arguments it ran with, where a guard changed them.
    An `answer` is that of the turn, which ends with it.
    """

    call_id: str
    tool: str
    text: str
    status: ResultStatus = "ok"
    elapsed_ms: float = 0.0
    found: int | None = None
    shows: tuple[tuple[str, str], ...] = ()
    artifact: str = ""
    ran_with: JsonObject | None = None
    answer: str | None = None
    type: Literal["react.tool.result"] = "react.tool.result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The runtime tells the model something it must know, such as how its reply was malformed."""

    code: str
    text: str
    type: Literal["react.notice"] = "react.notice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An answer that was held back, because something had still to be answered to."""

    text: str
    reason: str
    type: Literal["react.draft"] = "react.draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKept:
    """A text from outside the log that is no source, kept under the pinned ref it was shown by."""

    ref: str
    text: str
    title: str = ""
    mime: str = "text/plain"
    type: Literal["text.kept"] = "text.kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactKept:
    """What a workflow kept under a name; a name kept again makes the next version."""

    name: str
    version: int
    text: str
    mime: str = "text/plain"
    type: Literal["artifact.kept"] = "artifact.kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomEvent:
    """A tool or a workflow emitted an event of its own; `call_id` is empty for a workflow. No prompt shows it."""

    name: str
    data: Json = None
    call_id: str = ""
    type: Literal["event.custom"] = "event.custom"


AnswerFlag = Literal["", "unparsed", "forced", "draft", "summary", "partial", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The answer, with its citation tokens as they were written; `sources_used` are their sids.

    `flag` says what it is when it is not the model's own; `reason` and `error` say how the loop ended. A text
    that is a value of the turn's output type has the digest of its schema in `schema_sha256`.
    """

    text: str
    sources_used: tuple[int, ...] = ()
    unknown_sources: tuple[int, ...] = ()
    flag: AnswerFlag = ""
    reason: ExitReason = "complete"
    error: str = ""
    schema_sha256: str = ""
    type: Literal["assistant.completion"] = "assistant.completion"


Reaction = Literal["ok", "not_ok", "neutral"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What a person or a machine thought of a turn; a person's None takes theirs back."""

    reaction: Reaction | None
    text: str = ""
    origin: Literal["user", "machine"] = "user"
    confidence: float | None = None
    type: Literal["turn.feedback"] = "turn.feedback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The turn is over, and why; `by_bundle` says that the bundle's own code failed."""

    reason: ExitReason
    error: str = ""
    by_bundle: bool = False
    rounds: int = 0
    elapsed_ms: float = 0.0
    type: Literal["react.exit"] = "react.exit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Every block before this one was imported from a document, which anybody may have written.

    Turns that had not ended there are never run, and repositories named there are never read, unless a
    person `confirmed` them by the names that `ImportedAction` gives them.
    """

    confirmed: tuple[str, ...] = ()
    type: Literal["conv.imported"] = "conv.imported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A body of a type or version that this loopline does not know, kept as it is stored."""

    stored_type: str
    version: int
    stored: str
    type: Literal["unknown"] = "unknown"


UserInput = UserPrompt | UserFollowup | UserSteer
InputBody = UserInput | UserStop | UserAttachment | UserAnswer | UserRecalled
"""What a user says: it is appended without the lease of the conversation."""
ModelBody = ModelSwitched | ModelOverflowed
RoundBody = RoundStart | Decision | Thinking | Notes | Notice | ToolsSelected | ModelBody
CallBody = ToolCalled | ToolStarted | ToolPending | RunChild | ToolResult
PlanBody = Plan | PlanAck | PlanHistory
ContextBody = SystemMessage | Hide | RangeSummary | Checkpoint | Imported
KeptBody = SourceAdded | TextKept | ArtifactKept | CustomEvent
OutcomeBody = TurnHeader | Draft | Completion | Feedback | Exit
Body = InputBody | RoundBody | CallBody | PlanBody | ContextBody | KeptBody | OutcomeBody | Unknown
"""Every body type. A new one joins one of the unions above."""

B = TypeVar("B", bound=Body)

NEW_TURN = 0
"""The turn of an entry that opens the conversation's next turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A body on its way into the log. `turn` counts from 1; `NEW_TURN` opens the next one."""

    body: Body
    turn: int
    round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A body with its place in a conversation.

    `seq` is its place, from 1 without a gap, and the only order there is. `n` counts the blocks of
    its type in its turn, from 1. `round` is 0 outside a round. `ts` is UTC in whole milliseconds.
    """

    seq: int
    turn: int
    round: int
    n: int
    ts: datetime
    term: int
    body: Body

    @property
    def type(self) -> str:
        """The stored type."""
        return stored_type(self.body)

    @property
    def turn_id(self) -> str:
        """The turn as refs name it."""
        return turn_id(self.turn)

    @property
    def ref(self) -> str:
        """The pinned name by which this block can be read again."""
        return str(self.name)

    @property
    def name(self) -> Ref:
        """The ref as a value."""
        body, turn = self.body, self.turn_id
        if not _NAMED.has(body):
            return BlockRef(turn_id=turn, type=self.type, n=self.n)
        match body:
            case UserPrompt():
                return BlockRef(turn_id=turn, type=body.type)
            case UserAttachment(name=name):
                return FileRef(turn_id=turn, area="user.attachments", path=name)
            case ToolCalled(call_id=call_id):
                return CallRef(turn_id=turn, call_id=call_id, part="call")
            case ToolResult(call_id=call_id):
                return CallRef(turn_id=turn, call_id=call_id, part="result")
            case RangeSummary():
                return SummaryRef(turn_id=turn, n=self.n)
            case SourceAdded(sid=sid):
                return SourcesRef(ranges=((sid, sid),))
            case TextKept(ref=ref):
                return parse(ref)
            case ArtifactKept(name=name, version=version):
                return ArtifactRef(turn_id=turn, name=name, version=version)


class BodyUnion(Generic[B]):
    """The body types that a fold reads: `CALLS = BodyUnion[CallBody](CallBody)`.

    What it lets through is matched type by type, without a default. A type that is new to `Body` is none
    of them, so that it concerns no fold that does not ask for it.
    """

    def __init__(self, union: object) -> None:
        self.types: frozenset[object] = frozenset(get_args(union) or (union,))

    def has(self, body: Body) -> TypeIs[B]:
        """Return whether the body is of one of these types."""
        return type(body) in self.types

    def among(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, B]]:
        """Yield the blocks whose body is of one of these types, each with that body."""
        for block in blocks:
            if self.has(body := block.body):
                yield block, body


NamedBody = (
    UserPrompt
    | UserAttachment
    | ToolCalled
    | ToolResult
    | RangeSummary
    | SourceAdded
    | TextKept
    | ArtifactKept
)
"""What has a ref that says more than the type and the number of its block."""
_NAMED = BodyUnion[NamedBody](NamedBody)


def as_entry(block: Block) -> Entry:
    """The block as it was before it had its place."""
    return Entry(body=block.body, turn=block.turn, round=block.round)


def stored_type(body: Body) -> str:
    """The word by which a body's type is stored."""
    return body.stored_type if isinstance(body, Unknown) else body.type


def input_seq_of(block: Block) -> int:
    """The place of the input that an attachment came with; 0 for what is none."""
    return block.seq - block.body.place if isinstance(block.body, UserAttachment) else 0
