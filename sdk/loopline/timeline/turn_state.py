"""The state of a turn as the fold of its blocks, the lessons of refused requests, and the result of a turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from json import dumps
from typing import ClassVar, Generic

import msgspec
from msgspec import Struct, structs
from typing_extensions import TypeVar

from loopline.models import Json, JsonObject, Usage
from loopline.models.prompt import NO_USAGE
from loopline.timeline.blocks import Block, BodyUnion, Fold
from loopline.timeline.bodies import (
    AnswerFlag,
    Completion,
    Decision,
    Draft,
    Exit,
    ExitReason,
    Notice,
    ProxiedBody,
    ProxiedCall,
    ProxiedResult,
    ResultStatus,
    RunChild,
    SearchExpanded,
    StepEnded,
    StepOutcome,
    StepStarted,
    ToolCalled,
    ToolPending,
    ToolResult,
    ToolsSelected,
    ToolStarted,
    TurnHeader,
    UserAnswer,
    UserPrompt,
    UserRetry,
    UserStop,
    WaitKind,
)
from loopline.timeline.open_calls import deciding_answer
from loopline.timeline.prompt_blocks import ModelOverflowed, ModelSwitched, RangeSummary, RoundStart
from loopline.timeline.sources import AnswerSource
from loopline.timeline.workspace import TurnFile

# The bodies that the state of a turn reads.
ActBody = ToolCalled | ToolStarted | ToolPending | UserAnswer | ToolResult
_ACT = BodyUnion[ActBody](ActBody)
OtherActBody = ProxiedBody | StepStarted | StepEnded
_OTHER_ACT = BodyUnion[OtherActBody](OtherActBody)
CourseBody = UserPrompt | UserRetry | TurnHeader | RoundStart | ModelOverflowed | Decision | Notice
_COURSE = BodyUnion[CourseBody](CourseBody)
SpentBody = ToolsSelected | RangeSummary | RunChild | ModelSwitched | SearchExpanded
_SPENT = BodyUnion[SpentBody](SpentBody)
EndBody = Draft | Completion | Exit | UserStop
_END = BodyUnion[EndBody](EndBody)


RUN_AGENTS = "workflow.run"
"""The name under which the question of an agent that a workflow runs is shown."""
STEP_CUT_OFF = "it was cut off: whether it took effect is unknown"
"""The error of a step that was cancelled, or whose process has gone."""

_MODEL_TEXT: frozenset[AnswerFlag] = frozenset({"", "unparsed", "forced", "cut"})
"""The flags of answers that are the text of the newest reply."""


class Batch(Struct, gc=False):
    """The calls of one decision and the results so far."""

    calls: list[ToolCalled] = []
    results: dict[str, ToolResult] = {}


class Turn(Struct):
    """The state of one turn, from the user's prompt to its exit.

    `open_round` is a round without a decision, and `overflowed` is true if its request was too long. `pending` are the
    calls that wait for the user, `answers` the user's answers, and `tool_answers` the answers to the user that calls of
    the last round gave, all by call id. `shared_answers` are all answers to calls that several people approve, and
    `earlier_answers` the answers to the question before, of calls that ask again. `asked_seq` is the seq of the newest pending call, `answer_seqs` are the seqs of
    the answers. `versions` are the versions of the bundle that ran the turn. `proxied` are the calls that programs made,
    `open_proxied` those without a result. `children` are the child runs by conversation. `steps` and `ended_steps` are
    the starts and the ends of the workflow's steps by name. `notice_codes` are the codes
    since the last decision. `call_counts` counts calls by tool, `failure_counts` failed calls by a digest of tool and
    arguments. `steered_at_round` is the number of finished rounds when a round took a steer, None without one.
    `model_index` is the index of the current model in the chain. `malformed` and `cut_off` count consecutive replies
    that were malformed or cut off. `stop_reason` is that of the newest reply, also of one with the purpose "answer".
    `estimated` is usage that no provider reported and that `usage` does not include.
    `elapsed_seconds` is the running time under runners; `latest_block` is the last block that a runner wrote. An `inert`
    turn was imported unfinished and is never resumed. `put_back` is true if a person has put the turn back since a runner
    last took it, and `is_answered` if the user has answered a call since then. `answered_recoveries` is the part of the
    header's `recoveries` that continued an answered pause.
    """

    number: int
    prompt: Block | None = None
    header: TurnHeader | None = None
    started_at: datetime | None = None
    open_round: RoundStart | None = None
    overflowed: bool = False
    open_calls: dict[str, ToolCalled] = {}
    results: list[ToolResult] = []
    started: dict[str, ToolStarted] = {}
    pending: dict[str, ToolPending] = {}
    tool_answers: dict[str, str] = {}
    answers: dict[str, UserAnswer] = {}
    shared_answers: dict[str, list[UserAnswer]] = {}
    earlier_answers: dict[str, UserAnswer] = {}
    asked_seq: int = 0
    answer_seqs: dict[str, int] = {}
    versions: set[str] = set()
    children: dict[str, RunChild] = {}
    steps: dict[str, StepStarted] = {}
    ended_steps: dict[str, StepEnded] = {}
    decisions: list[Decision] = []
    batches: list[Batch] = []
    proxied: dict[str, ProxiedCall] = {}
    open_proxied: dict[str, ProxiedCall] = {}
    call_counts: dict[str, int] = {}
    failure_counts: dict[str, int] = {}
    notice_codes: list[str] = []
    notice_counts: Counter[str] = msgspec.field(default_factory=Counter[str])  # round hooks read it
    selected: ToolsSelected | None = None
    steered_at_round: int | None = None
    draft: Draft | None = None
    completions: list[Completion] = []
    exit: Exit | None = None
    stopped: bool = False
    usage: Usage = NO_USAGE
    estimated: Usage = NO_USAGE
    cost: float | None = None
    model_index: int = 0
    malformed: int = 0
    cut_off: int = 0
    stop_reason: str = ""
    elapsed_seconds: float = 0.0
    latest_block: Block | None = None
    inert: bool = False
    put_back: bool = False
    is_answered: bool = False
    answered_recoveries: int = 0

    def take(self, block: Block) -> None:
        """Fold one more block of the turn.

        The time between two blocks counts as running time only if the same runner wrote both.
        """
        body = block.body
        if block.term:  # blocks of users have term 0 and do not count
            latest = self.latest_block
            self.latest_block = block
            if latest is not None and block.ts > latest.ts and latest.term == block.term:
                self.elapsed_seconds += (block.ts - latest.ts).total_seconds()
        fold = self._folds.get(type(body))
        if fold is not None:
            fold(self, block, body)

    def _take_course(self, block: Block, body: CourseBody) -> None:
        """Fold the prompt, retries, headers, round starts, decisions, notices, and requests that were too long."""
        match body:
            case RoundStart():
                self.open_round = body
                self.overflowed = False
                self.tool_answers.clear()
                self._use_measured_time(block, body)
            case Decision():
                self._decide(body)
            case UserPrompt():
                self.prompt = block
            case UserRetry():
                self.put_back = True
            case TurnHeader(began=began, recoveries=recoveries):
                if self.is_answered and self.header is not None:
                    self.answered_recoveries += recoveries - self.header.recoveries
                self.put_back = self.is_answered = False
                self.header = body
                self.started_at = self.started_at or began or block.ts
                self.versions.add(body.version)
            case ModelOverflowed(output=output):
                self.overflowed = not output
            case Notice(code=code):
                self.notice_codes.append(code)
                self.notice_counts[code] += 1

    def _use_measured_time(self, block: Block, body: RoundStart | ToolPending) -> None:
        """Replace the time between blocks by the running time that the runner measured, if the body has it."""
        if block.term and body.elapsed_ms:
            self.elapsed_seconds = body.elapsed_ms / 1000

    def _decide(self, decision: Decision) -> None:
        """Close the open round, clear the notice codes, and add the usage and cost.

        With the purpose "decision" it is also counted as a round, and as malformed or cut off if its reply was.
        """
        self.open_round = None
        self.stop_reason = decision.stop_reason
        self.notice_codes.clear()
        self._spend(decision.usage, decision.cost, decision.estimated)
        if decision.purpose == "decision":
            was_cut = decision.stop_reason == "length"
            self.malformed = self.malformed + 1 if decision.raw and not was_cut else 0
            self.cut_off = self.cut_off + 1 if was_cut else 0
            self.decisions.append(decision)
            self.batches.append(Batch())

    def _take_spent(self, _: Block, body: SpentBody) -> None:
        """Add the usage and cost of a selection, summary, search, child run or failed model.

        The selected tools, the child run, and after a refusal the index of the next model are stored.
        """
        match body:
            case ToolsSelected(usage=usage, cost=cost):
                self.selected = body
                self._spend(usage, cost)
            case RangeSummary(usage=usage, cost=cost) | SearchExpanded(usage=usage, cost=cost):
                self._spend(usage, cost)
            case ModelSwitched(why=why, place=place, usage=usage, cost=cost):
                self.model_index = place if why == "refusal" else self.model_index
                self._spend(usage, cost)
            case RunChild(conversation=conversation, usage=usage, cost=cost, estimated=estimated):
                self.children[conversation] = body
                self._spend(usage, cost, estimated)

    def _spend(self, usage: Usage, cost: float | None, estimated: Usage = NO_USAGE) -> None:
        self.usage += usage
        if estimated is not NO_USAGE:
            self.estimated += estimated
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    def _take_act(self, block: Block, body: ActBody) -> None:
        """Fold a call of the model, its start, pause or result, or the user's answer to it.

        Calls are counted by tool, calls that failed by the digest of tool and arguments.
        """
        match body:
            case ToolCalled(call_id=call_id):
                self.open_calls[call_id] = body
                for batch in self.batches[-1:]:
                    batch.calls.append(body)
                    self.call_counts[body.tool] = self.call_counts.get(body.tool, 0) + 1
            case ToolResult(call_id=call_id, status=status, answer=answer):
                if answer is not None:
                    self.tool_answers[call_id] = answer
                call = self.open_calls.pop(call_id, None)
                if call is not None and status == "error":
                    self._count_failure(call)
                self.pending.pop(call_id, None)
                self.results.append(body)
                for batch in self.batches[-1:]:
                    batch.results[call_id] = body
            case ToolStarted(call_id=call_id):
                self.started[call_id] = body
            case ToolPending():
                self._take_pending(block, body)
            case UserAnswer():
                self._take_answer(block, body)

    def _take_pending(self, block: Block, body: ToolPending) -> None:
        """Mark a call as waiting for an answer; the waiting calls keep the order of the open calls and steps.

        An answer that the call already has becomes the answer to its earlier question.
        """
        pending = {**self.pending, body.call_id: body}
        order = (*self.open_calls, *(step.call_id for step in self.open_steps.values()))
        self.pending = {key: pending[key] for key in order if key in pending}
        earlier = self.answers.pop(body.call_id, None)
        if earlier is not None:
            self.earlier_answers[body.call_id] = earlier
        self.shared_answers.pop(body.call_id, None)
        self.asked_seq = block.seq
        self._use_measured_time(block, body)

    def _take_answer(self, block: Block, body: UserAnswer) -> None:
        """Store the answer that decides about a pending call; a call that is running receives its answer directly.

        An answer to a call that is not pending, or that has been decided, is ignored.
        """
        call_id = body.call_id
        pending = self.pending.get(call_id)
        if pending is None or call_id in self.answers:
            return
        decided: UserAnswer | None = body
        if pending.people > 1:
            answers = self.shared_answers.setdefault(call_id, [])
            answers.append(body)
            decided = deciding_answer(answers, pending.people)
        if decided is not None:
            self.answers[call_id] = decided
            self.answer_seqs[call_id] = block.seq
            self.is_answered = True

    def _take_other_act(self, _: Block, body: OtherActBody) -> None:
        """Fold the calls of programs and the steps of workflows."""
        match body:
            case ProxiedCall(call_id=call_id):
                self.proxied[call_id] = self.open_proxied[call_id] = body
                self.call_counts[body.tool] = self.call_counts.get(body.tool, 0) + 1
            case ProxiedResult(call_id=call_id, status=status):
                call = self.open_proxied.pop(call_id, None)
                if call is not None and status == "error":
                    self._count_failure(call)
            case StepStarted(name=name):
                self.steps[name] = body
            case StepEnded(name=name):
                self.ended_steps[name] = body
                if name in self.steps:
                    self.pending.pop(self.steps[name].call_id, None)

    def _count_failure(self, call: ToolCalled | ProxiedCall) -> None:
        digest = _digest(call)
        self.failure_counts[digest] = self.failure_counts.get(digest, 0) + 1

    def _take_end(self, _: Block, body: EndBody) -> None:
        """Store a draft, a completion, the exit or a stop; discard the answers that tools of the last round gave."""
        self.tool_answers.clear()
        match body:
            case Draft():
                self.draft = body
            case Completion():
                self.completions.append(body)
            case Exit():
                self.exit = body
            case UserStop():
                self.stopped = True

    _folds: ClassVar[Mapping[object, Fold[Turn]]] = {
        **_ACT.table(_take_act),
        **_COURSE.table(_take_course),
        **_OTHER_ACT.table(_take_other_act),
        **_SPENT.table(_take_spent),
        **_END.table(_take_end),
    }

    @property
    def completion(self) -> Completion | None:
        """The last completion, None without one."""
        return self.completions[-1] if self.completions else None

    @property
    def is_truncated(self) -> bool:
        """Whether the answer is the text of a reply that the model's output limit cut off."""
        if self.stop_reason != "length":
            return False
        answer = self.completion
        return answer is not None and answer.flag in _MODEL_TEXT

    @property
    def unanswered(self) -> dict[str, ToolPending]:
        """The pending calls without an answer, by call id."""
        if not self.pending:
            return {}
        return {call: body for call, body in self.pending.items() if call not in self.answers}

    @property
    def new_answers(self) -> dict[int, UserAnswer]:
        """The answers to calls that are still pending and can go on, by seq.

        An approved call cannot go on while a call that it runs after waits. An open call that has asked nothing waits if
        one before it does.
        """
        if not self.pending:
            return {}
        waiting = set[str]()
        for call in dict.fromkeys((*self.open_calls, *self.pending)):
            body = self.pending.get(call)
            if body is None:
                is_waiting = bool(waiting)
            else:
                is_waiting = call not in self.answers or not waiting.isdisjoint(body.after)
            if is_waiting:
                waiting.add(call)
        return {
            self.answer_seqs[call]: self.answers[call]
            for call in self.pending
            if call not in waiting
        }

    @property
    def is_paused(self) -> bool:
        """Whether the turn has pending calls, none of which has a new answer."""
        return bool(self.pending) and not self.new_answers

    @property
    def tool_answer(self) -> str | None:
        """The answer of the turn that a tool of the last round gave, None without one or while calls are open.

        If several calls answered, the first call counts.
        """
        if not self.tool_answers or self.open_calls or not self.batches:
            return None
        call_ids = [call.call_id for call in self.batches[-1].calls]
        return next((self.tool_answers[key] for key in call_ids if key in self.tool_answers), None)

    @property
    def rounds(self) -> int:
        """The number of decisions; requests for the answer alone do not count."""
        return len(self.decisions)

    @property
    def open_steps(self) -> dict[str, StepStarted]:
        """The steps of the workflow that have not ended, by name."""
        if len(self.steps) == len(self.ended_steps):
            return {}
        return {name: step for name, step in self.steps.items() if name not in self.ended_steps}

    @property
    def open_ids(self) -> set[str]:
        """The ids of the open calls and of the open steps that run agents, and the names of other open steps."""
        return {*self.open_calls, *(step.call_id or name for name, step in self.open_steps.items())}

    def waiting_call(self, call_id: str) -> ToolCalled:
        """Return the open call of that id; for the agents of a step, a call `workflow.run` with the name of the step.

        If the user or a guard has changed its arguments, it has the changed arguments. The id must be of an open call
        or step.
        """
        call = self.open_calls.get(call_id)
        started = self.started.get(call_id)
        if call is not None and started is not None and started.ran_with is not None:
            return structs.replace(call, arguments=started.ran_with)
        if call is not None:
            return call
        names = [step.name for step in self.open_steps.values() if step.call_id == call_id]
        return ToolCalled(call_id=call_id, tool=RUN_AGENTS, arguments={"step": names[0]})

    def ends_of_steps(self, status: StepOutcome) -> list[StepEnded]:
        """Return an end with this status for each open step."""
        return [StepEnded(name=name, status=status, error=STEP_CUT_OFF) for name in self.open_steps]

    def ends_of_proxied(self, text: str, status: ResultStatus) -> list[ProxiedResult]:
        """Return a result with this text and status for each open call of a program."""
        return [
            ProxiedResult(
                call_id=call.call_id, parent=call.parent, tool=call.tool, text=text, status=status
            )
            for call in self.open_proxied.values()
        ]

    def failures(self, call: ToolCalled | ProxiedCall) -> int:
        """Return how often this tool failed in the turn with the same arguments."""
        return self.failure_counts.get(_digest(call), 0)


def _digest(call: ToolCalled | ProxiedCall) -> str:
    text = dumps([call.tool, call.arguments], sort_keys=True)
    return sha256(text.encode()).hexdigest()


class OverflowLesson(Struct, frozen=True):
    """A refusal of a request that was too long: its body, with the turn and the seq of its block."""

    turn: int
    seq: int
    body: ModelOverflowed


class OverflowLessons:
    """The latest lesson of each model, in `by_model`; `estimate` is the estimate of the last request in tokens.

    A lesson is dropped when a request to its model succeeds that is larger than the lesson allows.
    """

    def __init__(self) -> None:
        self.by_model: dict[str, OverflowLesson] = {}
        self.estimate: int = 0

    def take(self, block: Block, body: ModelOverflowed | RoundStart | Decision) -> None:
        """Store the estimate of a request or the lesson of a refused request.

        A decision drops the lesson of its model if the request was larger than the lesson allows.
        """
        match body:
            case RoundStart(tokens=tokens):
                self.estimate = tokens
            case ModelOverflowed(model=model):
                self.by_model[model] = OverflowLesson(block.turn, block.seq, body)
            case Decision(model=model, usage=usage):
                if model not in self.by_model:
                    return
                lesson = self.by_model[model].body
                reported = usage.input_tokens + usage.output_tokens if usage.input_tokens else 0
                if (reported or self.estimate) > (lesson.named or lesson.tokens):
                    del self.by_model[model]


T_co = TypeVar("T_co", covariant=True, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """A call that waits for an answer, an approval, or its result from the client that runs it.

    An approval needs the yes of `people` people; those in `approved_by` have approved it, with these `arguments`. The
    result of a `client` call has the form of the JSON Schema `form`, if it has one.
    """

    call_id: str
    tool: str
    arguments: JsonObject
    question: str = ""
    kind: WaitKind = "question"
    form: Json = None
    people: int = 1
    approved_by: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult(Generic[T_co]):
    """The result of a turn, computed from the blocks of the turn.

    Attributes:
        answer: the text of `assistant.completion`, with its citation tokens.
        turn_id: the turn.
        exit_reason: why the turn ended.
        ok: whether there is an answer and `exit_reason` is `complete`.
        error: the reason if the turn failed.
        rounds: the number of decisions.
        usage: the tokens of all requests of the turn and its child runs, as the models reported them.
        cost: their cost in US dollars; None if a price is unknown.
        sources: the sources that the answer cites, in the order of first mention.
        pending: the calls that wait for an answer or an approval. Pass the answers to `resume` by `call_id`.
        late_input: the refs of messages that arrived too late for this turn; the next turn takes them.
        output: the answer as a value of the turn's output type; None without a type, or if the answer does not match it.
        truncated: whether the answer is incomplete because of the model's output limit, even after the requests that
            continue a reply.
        files: the files that the turn made or changed, without internal outputs and without those that a later turn has
            changed again; `await file.read()` returns the bytes of one.
    """

    answer: str
    turn_id: str
    exit_reason: ExitReason
    ok: bool
    error: str = ""
    rounds: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    sources: Sequence[AnswerSource] = ()
    pending: Sequence[PendingCall] = ()
    late_input: Sequence[str] = ()
    output: T_co | None = None
    truncated: bool = False
    files: Sequence[TurnFile] = ()
