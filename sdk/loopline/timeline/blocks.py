"""Bodies and blocks: what a conversation is made of.

A *body* says what happened: one frozen struct for each type, whose `type` is the stored name. A *block* is
a recorded body with its position in the conversation. Neither ever changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from msgspec import Struct
from typing_extensions import TypeIs

from loopline.models import Json, JsonObject, OutputSchema, ReasoningReplay, Usage
from loopline.models.prompt import NO_USAGE
from loopline.refs import (
    ArtifactRef,
    BlockRef,
    CallRef,
    FileRef,
    Ref,
    SourcesRef,
    SummaryRef,
    block_ref,
    call_ref,
    newest_ref,
    parse,
)
from loopline.timeline.attachments import UserAttachment as UserAttachment
from loopline.timeline.bodies import BackgroundResult as BackgroundResult
from loopline.timeline.bodies import CrewBody as CrewBody
from loopline.timeline.bodies import CustomEvent as CustomEvent
from loopline.timeline.bodies import ShownImage as ShownImage
from loopline.timeline.bodies import ToolPending as ToolPending
from loopline.timeline.bodies import ToolQuestion as ToolQuestion
from loopline.timeline.plan import Plan as Plan
from loopline.timeline.plan import PlanAck as PlanAck
from loopline.timeline.plan import PlanHistory as PlanHistory
from loopline.timeline.prompt_blocks import Checkpoint as Checkpoint
from loopline.timeline.prompt_blocks import Hide as Hide
from loopline.timeline.prompt_blocks import ModelOverflowed as ModelOverflowed
from loopline.timeline.prompt_blocks import ModelSwitched as ModelSwitched
from loopline.timeline.prompt_blocks import RangeSummary as RangeSummary
from loopline.timeline.prompt_blocks import RoundStart as RoundStart
from loopline.timeline.prompt_blocks import SystemMessage as SystemMessage
from loopline.timeline.prompt_blocks import turn_id
from loopline.timeline.sources import SourceAdded as SourceAdded
from loopline.timeline.sources import SourceSpan
from loopline.timeline.workspace import FileAdded as FileAdded
from loopline.timeline.workspace import FileBody as FileBody
from loopline.timeline.workspace import FileRemoved as FileRemoved
from loopline.timeline.workspace import FilesPulled as FilesPulled

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


class Sender(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The bundle through which an input was sent: its id, its version, and the harness that sent it.

    `harness` is its number in this log, from 1 in the order of opening; it is 0 if it has none.
    """

    bundle: str
    version: str = ""
    harness: int = 0


class KnowledgeCommit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The repository (a folder or URL) and the commit that a knowledge space was read from.

    `name` begins the paths of its refs, if the space has several repositories.
    """

    repository: str
    commit: str
    roots: dict[str, str] = {}
    name: str = ""


class TurnHeader(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A runner starts a turn with this configuration; recorded again when the configuration changes.

    It is recorded with the first body of the turn; `began` is when the turn started. `model` is the first model
    of the chain and `then` are the others. `limits` are the options that differ from the preset `bare`.
    `recoveries` counts how often another runner resumed the turn unasked, after its runner was gone. `output`
    is the schema of the answer. A space of several repositories has them in `repositories`, and `knowledge` is None.
    `agent` is the agent that runs the turn, if one does, and `agent_digest` what its definition was. `version` is that
    of the bundle. `handed_over` says that the runner's process ended in good order and left the turn to the next one, which
    does not count it in `recoveries`.
    """

    bundle: str
    model: str
    protocol: str
    then: tuple[str, ...] = ()
    preset: str = "bare"
    limits: dict[str, LimitValue] = {}
    knowledge: KnowledgeCommit | None = None
    began: datetime | None = None
    recoveries: int = 0
    output: OutputSchema | None = None
    repositories: tuple[KnowledgeCommit, ...] = ()
    agent: str = ""
    agent_digest: str = ""
    version: str = ""
    handed_over: bool = False
    type: ClassVar[Literal["turn.header"]] = "turn.header"

    @property
    def knowledge_commits(self) -> tuple[KnowledgeCommit, ...]:
        """The commits of the knowledge space, of one repository or several."""
        return self.repositories if self.knowledge is None else (self.knowledge,)


class UserPrompt(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The message that begins a turn, with the turn's own limits and the schema of its answer.

    The bundle of the `sender` runs the turn; a message of an older Loopline has no sender.
    """

    text: str
    limits: dict[str, LimitValue] = {}
    output: OutputSchema | None = None
    sender: Sender | None = None
    type: ClassVar[Literal["user.prompt"]] = "user.prompt"


class UserFollowup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that the user added while a turn was running."""

    text: str
    sender: Sender | None = None
    type: ClassVar[Literal["user.followup"]] = "user.followup"


class UserSteer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that redirects the running turn: the reply being written is cut off."""

    text: str
    sender: Sender | None = None
    type: ClassVar[Literal["user.steer"]] = "user.steer"


class UserStop(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user stops the turn: its runner ends it as `stopped`, and nobody can resume it."""

    type: ClassVar[Literal["user.stop"]] = "user.stop"


class UserAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user's answer to a call that asks or is pending; for an approval it is true or false, and None declines."""

    call_id: str
    value: Json
    sender: Sender | None = None
    type: ClassVar[Literal["user.answer"]] = "user.answer"


class UserRecalled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user took back the input whose seq is `said`.

    If a round takes the same input, the block with the lower seq wins.
    """

    said: int
    type: ClassVar[Literal["user.recalled"]] = "user.recalled"


class Decision(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The model has replied; `calls` is the number of calls that follow in the same append.

    A decision with the `purpose` "answer" was asked for the answer alone and does not count as a round. `cost` is
    in US dollars, None if the price is unknown. `attempt` is the number of the request it answers, from 1.
    `echo` is the reply in the form in which the provider wants it back. If the turn has a budget, `estimated` is
    the usage of this request and the abandoned ones before it that no provider reported; `cost` includes it.
    `discarded` is text of the reply that is not part of the decision, such as an observation that the model
    invented; no prompt shows it.
    """

    model: str
    stop_reason: str
    calls: int = 0
    raw: str = ""
    usage: Usage = NO_USAGE
    cost: float | None = None
    purpose: Literal["decision", "answer"] = "decision"
    attempt: int = 1
    echo: ReasoningReplay | None = None
    estimated: Usage = NO_USAGE
    discarded: str = ""
    type: ClassVar[Literal["react.decision"]] = "react.decision"


class Thinking(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model's reasoning, for people to read; the model gets the echo of its decision back instead."""

    text: str
    type: ClassVar[Literal["react.thinking"]] = "react.thinking"


class Notes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The text beside the model's calls; lines that begin with a mark acknowledge plan steps."""

    text: str
    type: ClassVar[Literal["react.notes"]] = "react.notes"


class ToolCalled(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The model called a tool."""

    call_id: str
    tool: str
    arguments: JsonObject = {}
    provider_id: str = ""
    type: ClassVar[Literal["react.tool.call"]] = "react.tool.call"


class ToolStarted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that may change something is about to start; it never starts twice.

    `ran_with` are the arguments it runs with, if a guard changed them.
    """

    call_id: str
    effect: Effect
    ran_with: JsonObject | None = None
    type: ClassVar[Literal["react.tool.start"]] = "react.tool.start"


class RunChild(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call has started a child run in a conversation of its own; recorded again when the run is over.

    Then `reason` is its exit reason, and `usage` and `cost` include those of its own children; `estimated` is the
    usage that no provider reported. `agent` is the agent that runs it, if one does, and `agent_digest` what its
    definition was.
    """

    call_id: str
    conversation: str
    reason: ExitReason | Literal[""] = ""
    usage: Usage = NO_USAGE
    cost: float | None = None
    estimated: Usage = NO_USAGE
    agent: str = ""
    agent_digest: str = ""
    type: ClassVar[Literal["run.child"]] = "run.child"


class ToolsSelected(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tools that the turn offers from now on; `why` says how they were chosen.

    `model` was asked to choose, which took `elapsed_ms`. `cost` is in US dollars, None if the price is unknown.
    """

    names: tuple[str, ...]
    why: str = ""
    model: str = ""
    elapsed_ms: float = 0.0
    usage: Usage = NO_USAGE
    cost: float | None = None
    type: ClassVar[Literal["react.tools"]] = "react.tools"


class ToolResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a call, or its error. `elapsed_ms` is the time it ran.

    `found` is the number of hits of a search. `shows` are the texts that a read shows to the model, as pairs of
    ref and sha256, and `images` the images. `ran_with` are the arguments it ran with, if a guard changed them. An
    `answer` is the answer of the turn and ends it. `source_spans` are the parts of the text that show a source with
    another text than its recorded one.
    """

    call_id: str
    tool: str
    text: str
    status: ResultStatus = "ok"
    elapsed_ms: float = 0.0
    found: int | None = None
    shows: tuple[tuple[str, str], ...] = ()
    images: tuple[ShownImage, ...] = ()
    artifact: str = ""
    ran_with: JsonObject | None = None
    answer: str | None = None
    source_spans: tuple[SourceSpan, ...] = ()
    type: ClassVar[Literal["react.tool.result"]] = "react.tool.result"


class ProxiedCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A program called a tool while the call `parent` ran it; recorded before the tool starts.

    Its `call_id` is `<parent>-1`, `<parent>-2` and so on. It belongs to no round, and no prompt shows it.
    """

    call_id: str
    parent: str
    tool: str
    arguments: JsonObject = {}
    type: ClassVar[Literal["react.proxied.call"]] = "react.proxied.call"


class ProxiedResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a program's call gave to the program, or its error. `ran_with` and `source_spans` are as in `ToolResult`."""

    call_id: str
    parent: str
    tool: str
    text: str
    status: ResultStatus = "ok"
    elapsed_ms: float = 0.0
    artifact: str = ""
    ran_with: JsonObject | None = None
    source_spans: tuple[SourceSpan, ...] = ()
    type: ClassVar[Literal["react.proxied.result"]] = "react.proxied.result"


class Notice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message from the runtime to the model, for example why its reply was malformed."""

    code: str
    text: str
    type: ClassVar[Literal["react.notice"]] = "react.notice"


class Draft(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer that was held back, because some input was still unanswered."""

    text: str
    reason: str
    type: ClassVar[Literal["react.draft"]] = "react.draft"


class TextKept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text from outside the log that is not a source, stored under the pinned ref that shows it.

    `data` are the bytes of a file that is no text, in base64; then `text` describes it.
    """

    ref: str
    text: str
    title: str = ""
    mime: str = "text/plain"
    data: str = ""
    type: ClassVar[Literal["text.kept"]] = "text.kept"


class ArtifactKept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An artifact that a workflow stored under a name; storing it again makes the next version."""

    name: str
    version: int
    text: str
    mime: str = "text/plain"
    type: ClassVar[Literal["artifact.kept"]] = "artifact.kept"


FactScope = Literal["user", "conversation"]


class MemoryFact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of a short fact that is remembered under an id; the newest counts, and an empty text removes the fact.

    `refs` name what the fact rests on. A fact of the scope "conversation" is recalled there alone. `call_id` names the
    call that recorded it, empty if a person did.
    """

    fact_id: str
    text: str
    scope: FactScope = "user"
    refs: tuple[str, ...] = ()
    origin: Literal["model", "user"] = "model"
    call_id: str = ""
    type: ClassVar[Literal["memory.fact"]] = "memory.fact"


AnswerFlag = Literal["", "unparsed", "forced", "draft", "summary", "partial", "cut"]


class Completion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer, with its citation tokens as written; `sources_used` are their sids.

    `flag` says what the text is if it is not the model's answer; `reason` and `error` say how the loop ended. If
    the text is a value of the turn's output type, `schema_sha256` is the digest of that type's schema.
    """

    text: str
    sources_used: tuple[int, ...] = ()
    unknown_sources: tuple[int, ...] = ()
    flag: AnswerFlag = ""
    reason: ExitReason = "complete"
    error: str = ""
    schema_sha256: str = ""
    type: ClassVar[Literal["assistant.completion"]] = "assistant.completion"


Reaction = Literal["ok", "not_ok", "neutral"]


class Feedback(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reaction of a person or a machine to a turn; None from a person withdraws theirs."""

    reaction: Reaction | None
    text: str = ""
    origin: Literal["user", "machine"] = "user"
    confidence: float | None = None
    type: ClassVar[Literal["turn.feedback"]] = "turn.feedback"


class Exit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a turn and its reason; `by_bundle` is true if the bundle's own code failed."""

    reason: ExitReason
    error: str = ""
    by_bundle: bool = False
    rounds: int = 0
    elapsed_ms: float = 0.0
    type: ClassVar[Literal["react.exit"]] = "react.exit"


class Imported(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every block before this one was imported from a document, which anybody may have written.

    Its unfinished turns are never run and its repositories are never read, unless a person `confirmed` them
    by the names of their `ImportedAction`.
    """

    confirmed: tuple[str, ...] = ()
    type: ClassVar[Literal["conv.imported"]] = "conv.imported"


class Unknown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A body of a type or version that this version of Loopline does not know, kept as it is stored."""

    stored_type: str
    version: int
    stored: str
    type: ClassVar[Literal["unknown"]] = "unknown"


UserInput = UserPrompt | UserFollowup | UserSteer
InboxBody = UserInput | BackgroundResult
InputBody = InboxBody | UserStop | UserAttachment | UserAnswer | UserRecalled
"""What is appended without the lease of the conversation."""
ModelBody = ModelSwitched | ModelOverflowed
RoundBody = RoundStart | Decision | Thinking | Notes | Notice | ToolsSelected | ModelBody
CallBody = ToolCalled | ToolStarted | ToolPending | ToolQuestion | RunChild | ToolResult
ProxiedBody = ProxiedCall | ProxiedResult
PlanBody = Plan | PlanAck | PlanHistory
ContextBody = SystemMessage | Hide | RangeSummary | Checkpoint | Imported
KeptBody = SourceAdded | TextKept | ArtifactKept | CustomEvent | CrewBody | MemoryFact | FileBody
OutcomeBody = TurnHeader | Draft | Completion | Feedback | Exit
Body = (
    InputBody
    | RoundBody
    | CallBody
    | ProxiedBody
    | PlanBody
    | ContextBody
    | KeptBody
    | OutcomeBody
    | Unknown
)
"""Every body type. A new one joins one of the unions above."""

B = TypeVar("B", bound=Body)
S = TypeVar("S")
Fold = Callable[[S, "Block", Any], None]

NEW_TURN = 0
"""The turn of an entry that opens the conversation's next turn."""


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A body to be appended. `turn` counts from 1; `NEW_TURN` opens the next turn."""

    body: Body
    turn: int
    round: int = 0


class Block(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A recorded body with its position in a conversation.

    `seq` is the position, from 1 without gaps; it is the only order. `n` counts the blocks of this type in this
    turn, from 1. `round` is 0 outside a round. `ts` is UTC in whole milliseconds.
    """

    # With gc=False the collector does not go through all blocks again and again: what is frozen is in no circle.

    seq: int
    turn: int
    round: int
    n: int
    ts: datetime
    term: int
    body: Body

    @property
    def type(self) -> str:
        """Return the stored type."""
        return stored_type(self.body)

    @property
    def turn_id(self) -> str:
        """Return the turn's id, as in refs."""
        return turn_id(self.turn)

    @property
    def ref(self) -> str:
        """Return the pinned ref of this block as text."""
        body = self.body
        if type(body) is ToolCalled:  # these are written in every round and turn
            return call_ref(f"turn_{self.turn}", body.call_id, "call")
        if type(body) is ToolResult:
            return call_ref(f"turn_{self.turn}", body.call_id, "result")
        if type(body) is UserPrompt:
            return newest_ref(f"turn_{self.turn}", body.type)
        if type(body) not in _NAMED.types:
            return block_ref(f"turn_{self.turn}", stored_type(body), self.n)
        return str(self.name)

    @property
    def name(self) -> Ref:
        """Return the pinned ref of this block."""
        body, turn = self.body, self.turn_id
        if not _NAMED.has(body):
            return BlockRef(turn_id=turn, type=self.type, n=self.n)
        match body:
            case UserPrompt():
                return BlockRef(turn_id=turn, type=body.type)
            case UserAttachment() | FileAdded():
                return _file_ref(turn, body)
            case ToolCalled(call_id=call_id) | ProxiedCall(call_id=call_id):
                return CallRef(turn_id=turn, call_id=call_id, part="call")
            case ToolResult(call_id=call_id) | ProxiedResult(call_id=call_id):
                return CallRef(turn_id=turn, call_id=call_id, part="result")
            case RangeSummary():
                return SummaryRef(turn_id=turn, n=self.n)
            case SourceAdded(sid=sid):
                return SourcesRef(ranges=((sid, sid),))
            case TextKept(ref=ref):
                return parse(ref)
            case ArtifactKept(name=name, version=version):
                return ArtifactRef(turn_id=turn, name=name, version=version)


def _file_ref(turn: str, file: UserAttachment | FileAdded) -> FileRef:
    match file:
        case UserAttachment(name=name):
            return FileRef(turn_id=turn, area="user.attachments", path=name)
        case FileAdded(area=area, path=path, version=version):
            return FileRef(turn_id=turn, area=area, path=path, version=version)


class BodyUnion(Generic[B]):
    """The body types that a fold reads: `CALLS = BodyUnion[CallBody](CallBody)`.

    What it lets through is matched type by type, without a default. A type that is new to `Body` concerns no fold.
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

    def table(self, fold: Callable[[S, Block, B], None]) -> dict[object, Fold[S]]:
        """Return the fold by type, so that one look-up finds what takes a block."""
        return dict.fromkeys(self.types, fold)


NamedBody = (
    UserPrompt
    | UserAttachment
    | ToolCalled
    | ToolResult
    | ProxiedBody
    | RangeSummary
    | SourceAdded
    | TextKept
    | ArtifactKept
    | FileAdded
)
"""What has a ref that says more than the type and the number of its block."""
_NAMED = BodyUnion[NamedBody](NamedBody)


def as_entry(block: Block) -> Entry:
    """Return the block without its position."""
    return Entry(body=block.body, turn=block.turn, round=block.round)


def stored_type(body: Body) -> str:
    """Return the name under which a body's type is stored."""
    return body.stored_type if isinstance(body, Unknown) else body.type


def input_seq_of(block: Block) -> int:
    """Return the seq of the input that an attachment came with, 0 for any other block."""
    return block.seq - block.body.place if isinstance(block.body, UserAttachment) else 0
