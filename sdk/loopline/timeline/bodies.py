"""Every body type: one frozen struct for each stored `type` of a block. A body never changes."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from msgspec import Struct

from loopline.models import Json, JsonObject, OutputSchema, ReasoningReplay, Usage
from loopline.models.prompt import NO_USAGE
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
)
from loopline.timeline.sources import SourceAdded, SourceSpan
from loopline.timeline.workspace import FileBody

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

    `harness` is the number of the harness in this log, from 1 in the order of opening, or 0 without a number.
    """

    bundle: str
    version: str = ""
    harness: int = 0


class KnowledgeCommit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The repository (a folder or URL) and the commit that a knowledge space was read from.

    If the space has several repositories, refs to this repository have paths that start with `name`.
    """

    repository: str
    commit: str
    roots: dict[str, str] = {}
    name: str = ""


class TurnHeader(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The configuration with which a runner starts a turn; recorded again when the configuration changes.

    It is recorded with the first body of the turn; `began` is when the turn started. `model` is the first model of
    the chain and `then` are the models after it. `limits` are the options that differ from the preset `bare`.
    `recoveries` counts how often another runner resumed the turn after its runner was lost. `output` is the schema of
    the answer. If the knowledge space has several repositories, they are in `repositories` and `knowledge` is None.
    `agent` is the agent that runs the turn, empty for the bundle's own loop, and `agent_digest` the digest of its
    definition. `version` is the version of the bundle. With `handed_over` the runner's process ended normally and left
    the turn to the next runner, which does not count it in `recoveries`. `client_tools` are the names of the tools that
    the client runs.
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
    client_tools: tuple[str, ...] = ()
    type: ClassVar[Literal["turn.header"]] = "turn.header"

    @property
    def knowledge_commits(self) -> tuple[KnowledgeCommit, ...]:
        """The commit of each repository of the knowledge space; empty without a space."""
        return self.repositories if self.knowledge is None else (self.knowledge,)


class ClientTool(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that the client runs: the turn pauses with each call until the client sends its result.

    `parameters` is the JSON Schema of the arguments, an object, and `result` that of the result; without it the result
    may be any JSON value.
    """

    name: str
    description: str = ""
    parameters: JsonObject = {}
    result: JsonObject | None = None


class UserPrompt(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The message that starts a turn, with the turn's own limits, its settings of the model, and the schema of its answer.

    The bundle of the `sender` runs the turn; without a `sender` the bundle that ran the last turn does. `tools` are those
    that the client runs in this turn.
    """

    text: str
    limits: dict[str, LimitValue] = {}
    output: OutputSchema | None = None
    sender: Sender | None = None
    settings: JsonObject = {}
    tools: tuple[ClientTool, ...] = ()
    type: ClassVar[Literal["user.prompt"]] = "user.prompt"


class UserFollowup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that the user added while a turn was running."""

    text: str
    sender: Sender | None = None
    type: ClassVar[Literal["user.followup"]] = "user.followup"


class UserSteer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that redirects the running turn: the reply that is being written is cancelled."""

    text: str
    sender: Sender | None = None
    type: ClassVar[Literal["user.steer"]] = "user.steer"


class UserStop(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user stops the turn: its runner ends it as `stopped`, and it cannot be resumed."""

    type: ClassVar[Literal["user.stop"]] = "user.stop"


class UserRetry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person puts back a turn that was cut off too often: the next runner may continue it once more."""

    type: ClassVar[Literal["user.retry"]] = "user.retry"


class UserAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user's answer to a call that asks or is pending; None declines.

    For an approval it is true, false, or an object with `approved` and perhaps a `reason` or edited `arguments`. `by` is
    the user who answered, empty for the user of the conversation.
    """

    call_id: str
    value: Json
    sender: Sender | None = None
    by: str = ""
    type: ClassVar[Literal["user.answer"]] = "user.answer"


ApprovalMode = Literal["ask", "accept_reads", "plan", "deny"]
"""What happens to a call that needs approval: `ask` asks the user, `accept_reads` does not ask about reads, and `deny`
denies it. `plan` also denies every call that is not a read."""
RuleScope = Literal["conversation", "user"]


class ModeChanged(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The approval mode of the conversation from this block on; without such a block it is `ask`."""

    mode: ApprovalMode
    type: ClassVar[Literal["approval.mode"]] = "approval.mode"


class ScheduledMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message whose turn begins at `at` or soon after; `prompt` is then appended.

    With a line of cron in `every` it waits again for the next of these times, in the time zone `zone`, or UTC without one.
    """

    id: str
    at: datetime
    prompt: UserPrompt
    every: str = ""
    zone: str = ""


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All messages of the conversation that wait for their time. A later schedule replaces this one."""

    messages: tuple[ScheduledMessage, ...] = ()
    type: ClassVar[Literal["user.schedule"]] = "user.schedule"

    @property
    def due(self) -> datetime | None:
        """The time of the first message, None without messages."""
        return min((message.at for message in self.messages), default=None)


class ApprovalRule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user lets later calls of a tool run without a question; with an empty `tool` the rule is revoked.

    A rule with `arguments` is for calls with exactly these. A rule of the scope "user" counts in all conversations of the
    user with the same bundle. It counts before the time `until`, None means always. `call_id` is the call at whose
    approval the rule was granted.
    """

    rule_id: str
    tool: str = ""
    arguments: JsonObject | None = None
    scope: RuleScope = "conversation"
    bundle: str = ""
    until: datetime | None = None
    call_id: str = ""
    type: ClassVar[Literal["approval.rule"]] = "approval.rule"


class UserRecalled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user recalled the input at the seq `said`.

    If a round takes the same input, the block with the lower seq wins.
    """

    said: int
    type: ClassVar[Literal["user.recalled"]] = "user.recalled"


class Decision(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The model has replied; `calls` is the number of calls that follow in the same append.

    A decision with the `purpose` "answer" is the reply to a request for the answer alone and does not count as a
    round. `cost` is in US dollars, None if the price is unknown. `attempt` is the number of the request, from 1.
    `echo` is the reply in the form that the provider expects when it is sent back. If the turn has a budget,
    `estimated` is the usage that no provider reported, of this request and of the abandoned requests before it; `cost`
    includes it. `discarded` is text of the reply that is not part of the decision, such as an observation that the
    model invented; it is never in a prompt.
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
    """The model's reasoning as people read it; the model receives the `echo` of its decision instead."""

    text: str
    type: ClassVar[Literal["react.thinking"]] = "react.thinking"


class Notes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The text that the model wrote with its calls; lines that start with a mark acknowledge plan steps."""

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
    """A call that may have an effect is about to start; it never starts twice.

    `ran_with` are the arguments that the tool receives, None if they are those of the call. `rule` is the id of the
    approval rule that let it run without a question.
    """

    call_id: str
    effect: Effect
    ran_with: JsonObject | None = None
    rule: str = ""
    type: ClassVar[Literal["react.tool.start"]] = "react.tool.start"


class RunChild(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call has started a child run in its own conversation; recorded again when the run has ended.

    In the second record `reason` is the exit reason of the run, and `usage` and `cost` include those of the run's own
    children; `estimated` is the usage that no provider reported. `agent` is the agent that runs it, empty for the
    bundle's own loop, and `agent_digest` the digest of its definition.
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
    """The tools that the turn offers from this block on; `why` says how they were chosen.

    `model` is the model that chose them in `elapsed_ms`, empty if none did. `cost` is in US dollars, None if the price
    is unknown.
    """

    names: tuple[str, ...]
    why: str = ""
    model: str = ""
    elapsed_ms: float = 0.0
    usage: Usage = NO_USAGE
    cost: float | None = None
    type: ClassVar[Literal["react.tools"]] = "react.tools"


class ToolResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a call, or its error. `elapsed_ms` is the running time of the tool.

    `found` is the number of hits of a search. `shows` are the texts that a read shows to the model, as pairs of ref
    and sha256, and `images` the images. `ran_with` are the arguments that the tool received, None if they are those of
    the call. An `answer` is the answer of the turn and ends the turn. `source_spans` are the parts of the text that
    show a source with a text that differs from the recorded text of the source.
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
    """A call of a tool by a program that the call `parent` runs; recorded before the tool starts.

    Its `call_id` is `<parent>-1`, `<parent>-2` and so on. It is not part of a round or of a prompt.
    """

    call_id: str
    parent: str
    tool: str
    arguments: JsonObject = {}
    type: ClassVar[Literal["react.proxied.call"]] = "react.proxied.call"


class ProxiedResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result or the error of a program's call. `ran_with` and `source_spans` are as in `ToolResult`."""

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
    """An answer that was held back because an input was still unanswered; `reason` says why."""

    text: str
    reason: str
    type: ClassVar[Literal["react.draft"]] = "react.draft"


class TextKept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text from outside the log that is not a source, stored under the pinned ref that shows it.

    If the original is a file without text, `data` has its bytes in base64 and `text` describes it.
    """

    ref: str
    text: str
    title: str = ""
    mime: str = "text/plain"
    data: str = ""
    type: ClassVar[Literal["text.kept"]] = "text.kept"


class ArtifactKept(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An artifact that a workflow stored under a name; storing it again creates the next version."""

    name: str
    version: int
    text: str
    mime: str = "text/plain"
    type: ClassVar[Literal["artifact.kept"]] = "artifact.kept"


FactScope = Literal["user", "conversation"]


class MemoryFact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of a short fact about the user; the newest version counts, and an empty text removes the fact.

    `refs` name the blocks that support the fact. A fact of the scope "conversation" is used in its conversation alone.
    `call_id` is the call that recorded the fact, empty if a person did.
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

    `flag` is empty for an answer of the model, else the kind of text that took its place; `reason` and `error` say how
    the loop ended. If the text is a value of the turn's output type, `schema_sha256` is the digest of the type's
    schema.
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
    """A reaction of a person or a machine to a turn; None withdraws the person's reaction.

    `rated_at` is the time that the person's client gave, in UTC; None if it gave none.
    """

    reaction: Reaction | None
    text: str = ""
    origin: Literal["user", "machine"] = "user"
    confidence: float | None = None
    rated_at: datetime | None = None
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
    """Every block before this one was imported from a document of an untrusted author.

    The unfinished turns of the document run, and its repositories are read, only if a person `confirmed` them by the
    names of their `ImportedAction`.
    """

    confirmed: tuple[str, ...] = ()
    type: ClassVar[Literal["conv.imported"]] = "conv.imported"


class Unknown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A body of a type or version that this version of Loopline does not know, with its stored JSON."""

    stored_type: str
    version: int
    stored: str
    type: ClassVar[Literal["unknown"]] = "unknown"


class ShownImage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image with the pinned ref that reads it again; `data` are its bytes in base64, `width` and `height` its pixels.

    `moves` is true for an animation.
    """

    ref: str
    mime: str
    size: int
    sha256: str
    data: str
    width: int
    height: int
    moves: bool = False


class CustomEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event that a tool or a workflow emitted; `call_id` is empty for a workflow. It is never in a prompt."""

    name: str
    data: Json = None
    call_id: str = ""
    type: ClassVar[Literal["event.custom"]] = "event.custom"


BACKGROUND_STARTED = "background.started"
"""The name of the event of a call that continues in the background; its data are `owner`, `tool` and the deadline `until`.

If the call may begin again after a crash, `again` has the arguments with which it does.
"""


class BackgroundResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a call that continued in the background; it is pending until a round takes it, like a user's message.

    `source_spans` are as in `ToolResult`.
    """

    call_id: str
    tool: str
    text: str
    ok: bool = True
    source_spans: tuple[SourceSpan, ...] = ()
    type: ClassVar[Literal["react.background.result"]] = "react.background.result"


class BackgroundStop(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user, or the model, stops a call that continues in the background; the process that runs it does so."""

    call_id: str
    type: ClassVar[Literal["user.background.stop"]] = "user.background.stop"


WaitKind = Literal["question", "approval", "client"]
"""What a waiting call waits for: the user's answer, the user's approval, or the result of a tool that the client runs."""


class ToolPending(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call waits for the user: for an answer to its tool's question, or for approval; or for the client that runs it.

    A call that the client runs is a question with `client`: the answer is the result of the call, and `form` the JSON
    Schema of that result, None if it may be any JSON value. `digest` is the sha256, in hexadecimal, of the tool's name
    and the arguments, which an approval covers. If a child run of the call asks, `child` is the `cv:` ref of the block
    with its question. `elapsed_ms` is the running time of the turn up to this block, 0 if unknown. An approval needs the
    yes of `people` people, and the call then runs after the calls `after`, with which it conflicts.
    """

    call_id: str
    kind: Literal["question", "approval"]
    question: str
    digest: str
    child: str = ""
    elapsed_ms: float = 0.0
    people: int = 1
    client: bool = False
    form: Json = None
    after: tuple[str, ...] = ()
    type: ClassVar[Literal["react.tool.pending"]] = "react.tool.pending"

    @property
    def waits_for(self) -> WaitKind:
        """What the call waits for."""
        return "client" if self.client else self.kind


class ToolQuestion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A running call asks the user and stays open until the answer; a crash interrupts it like any other call.

    `form` is the schema of the answer; None asks for yes or no. `kind` is "approval" if a program made a call that
    needs approval, which needs the yes of `people` people.
    """

    call_id: str
    question: str
    form: Json = None
    kind: Literal["question", "approval"] = "question"
    people: int = 1
    type: ClassVar[Literal["react.tool.question"]] = "react.tool.question"


StepOutcome = Literal["ok", "failed", "stopped", "interrupted"]


class StepStarted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a workflow is about to begin; its name is unique in the turn.

    `effect` says whether the step may begin again after a crash. A step that runs agents has a `call_id`, by which its
    child runs and their questions are found.
    """

    name: str
    effect: Effect = "exclusive"
    call_id: str = ""
    type: ClassVar[Literal["workflow.step.start"]] = "workflow.step.start"


class StepEnded(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a step of a workflow: its result as JSON, or its error.

    The status is "stopped" if the step was cancelled, and "interrupted" if its process has gone.
    """

    name: str
    status: StepOutcome = "ok"
    value: str = ""
    error: str = ""
    elapsed_ms: float = 0.0
    type: ClassVar[Literal["workflow.step.end"]] = "workflow.step.end"


GraphStatus = Literal["pending", "running", "completed", "failed", "skipped"]


class GraphStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a graph with the ids of the steps that it depends on; the hints name a tool and a model role."""

    id: str
    task: str
    dependencies: tuple[str, ...] = ()
    tool_hint: str = ""
    model_hint: str = ""
    status: GraphStatus = "pending"


class CrewGraph(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The graph of a call at one moment. Each new plan starts the next `attempt`, from 1.

    `inputs` are the seqs of the user's messages during the run that the analysis of the results has taken into
    account; `analysed` is true once the results were analysed.
    """

    call_id: str
    goal: str
    attempt: int
    steps: tuple[GraphStep, ...] = ()
    inputs: tuple[int, ...] = ()
    analysed: bool = False
    type: ClassVar[Literal["crew.graph"]] = "crew.graph"


LessonTrigger = Literal["manual", "error", "discrepancy", "low_quality"]
"""The reason for a lesson: a hook requests it, the run failed, verification disagreed, or refining lowered the quality."""


class ReflectionDue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lesson is due from a run of `agent`, or from the turn if `agent` is empty; it is written after the answer."""

    lesson_id: str
    trigger: LessonTrigger
    task: str
    attempt: str = ""
    outcome: str = ""
    agent: str = ""
    type: ClassVar[Literal["crew.reflection"]] = "crew.reflection"


class Lesson(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lesson from a run that went wrong; if there is none, `skipped` has the reason."""

    lesson_id: str
    trigger: LessonTrigger
    situation: str = ""
    mistake: str = ""
    correction: str = ""
    tags: tuple[str, ...] = ()
    skipped: str = ""
    agent: str = ""
    model: str = ""
    usage: Usage = Usage()
    cost: float | None = None
    type: ClassVar[Literal["crew.lesson"]] = "crew.lesson"

    @property
    def text(self) -> str:
        """The lesson as text, one line for each part; empty if it was skipped."""
        if self.skipped:
            return ""
        lines = {
            "situation": self.situation,
            "mistake": self.mistake,
            "correction": self.correction,
            "tags": ", ".join(self.tags),
        }
        return "\n".join(f"{name}: {line}" for name, line in lines.items() if line)


class AgentSwitched(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """This agent leads the conversation from this block on; an empty name means the bundle's own loop."""

    agent: str = ""
    agent_digest: str = ""
    note: str = ""
    call_id: str = ""
    type: ClassVar[Literal["crew.switch"]] = "crew.switch"


class SearchExpanded(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A search was extended by the `keywords` of a hypothetical answer that a model wrote."""

    call_id: str
    query: str
    hypothesis: str
    keywords: tuple[str, ...] = ()
    model: str = ""
    usage: Usage = Usage()
    cost: float | None = None
    type: ClassVar[Literal["search.expanded"]] = "search.expanded"


UserInput = UserPrompt | UserFollowup | UserSteer
InboxBody = UserInput | BackgroundResult
InputBody = (
    InboxBody | UserStop | UserRetry | UserAttachment | UserAnswer | UserRecalled | BackgroundStop
)
"""The bodies that are appended without the lease of the conversation."""
ProxiedBody = ProxiedCall | ProxiedResult
Body = (
    InputBody
    | ModeChanged
    | Schedule
    | ApprovalRule
    | TurnHeader
    | RoundStart
    | Decision
    | Thinking
    | Notes
    | Notice
    | ToolsSelected
    | ModelSwitched
    | ModelOverflowed
    | ToolCalled
    | ToolStarted
    | ToolPending
    | ToolQuestion
    | RunChild
    | ToolResult
    | ProxiedBody
    | Plan
    | PlanAck
    | PlanHistory
    | SystemMessage
    | Hide
    | RangeSummary
    | Checkpoint
    | Imported
    | SourceAdded
    | TextKept
    | ArtifactKept
    | CustomEvent
    | StepStarted
    | StepEnded
    | CrewGraph
    | ReflectionDue
    | Lesson
    | AgentSwitched
    | SearchExpanded
    | MemoryFact
    | FileBody
    | Draft
    | Completion
    | Feedback
    | Exit
    | Unknown
)
"""Every body type: to add one, write its class, name it here, and export it from `loopline.timeline`."""
