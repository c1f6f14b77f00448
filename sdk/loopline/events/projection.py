"""A turn as far as it has been told, and what is told of it next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from loopline.events.events import Delta, Event
from loopline.events.turn_events import (
    AnswerGiven,
    AnswerHeldBack,
    AnswerStarted,
    CallFinished,
    CallStarted,
    ChildFinished,
    ChildStarted,
    CitedSource,
    ContextCompacted,
    CustomEmitted,
    DecisionMade,
    EventMeta,
    EventsMissed,
    InputAccepted,
    InputKind,
    InputRequested,
    InputTaken,
    ModelChanged,
    ProgressReported,
    RoundStarted,
    SelectionFinished,
    SelectionStarted,
    TextReset,
    TextStreamed,
    TurnEvent,
    TurnFinished,
    TurnPaused,
    TurnStarted,
)
from loopline.timeline import (
    ArtifactKept,
    Block,
    BodyUnion,
    Checkpoint,
    Completion,
    CustomEvent,
    Decision,
    Draft,
    Exit,
    Feedback,
    Hide,
    Imported,
    ModelOverflowed,
    ModelSwitched,
    Notes,
    Notice,
    Plan,
    PlanAck,
    PlanHistory,
    RangeSummary,
    RoundStart,
    RunChild,
    Source,
    SourceAdded,
    SystemMessage,
    TextKept,
    Thinking,
    ToolCalled,
    ToolPending,
    ToolResult,
    ToolsSelected,
    ToolStarted,
    Turn,
    TurnHeader,
    Unknown,
    UserAnswer,
    UserAttachment,
    UserFollowup,
    UserInput,
    UserPrompt,
    UserRecalled,
    UserSteer,
    UserStop,
    citations,
)


@dataclass(slots=True)
class TurnProjection:
    """The fold of a turn's blocks, with its calls as they were numbered and when its children began."""

    turn: Turn
    limit: int = 0
    calls: dict[str, CallStarted] = field(default_factory=dict[str, CallStarted])
    children: dict[str, EventMeta] = field(default_factory=dict[str, EventMeta])

    @property
    def stop_reason(self) -> str:
        """How the last decision ended."""
        return self.turn.decisions[-1].stop_reason if self.turn.decisions else ""

    @property
    def waiting(self) -> tuple[str, ...]:
        """The calls that wait for an answer the user has not given."""
        turn = self.turn
        return tuple(one for one in turn.pending if one not in turn.answers)

    @property
    def is_paused(self) -> bool:
        """Whether every open call waits for the user."""
        return bool(self.turn.open_calls) and self.turn.open_calls.keys() <= {*self.waiting}

    @property
    def is_running(self) -> bool:
        """Whether a runner has begun the turn, and it has neither ended nor paused."""
        return self.turn.header is not None and self.turn.exit is None and not self.is_paused

    @property
    def paused(self) -> TurnPaused:
        """That nothing more comes."""
        return TurnPaused(calls=self.waiting, rounds=self.turn.rounds, stop_reason=self.stop_reason)

    def call(self, call_id: str, tool: str = "") -> CallStarted:
        """The call; as far as it is known where its block was not heard."""
        return self.calls.get(call_id) or CallStarted(call_id=call_id, tool=tool)

    def called(self, asked: ToolCalled) -> CallStarted:
        """The call, which is not folded yet, with its place in its decision."""
        turn = self.turn
        call = self.calls[asked.call_id] = CallStarted(
            call_id=asked.call_id,
            tool=asked.tool,
            arguments=asked.arguments,
            iteration=turn.rounds,
            index=len(turn.batches[-1].calls) if turn.batches else 0,
            total=turn.decisions[-1].calls if turn.decisions else 1,
        )
        return call

    def returned(self, result: ToolResult) -> CallFinished:
        """What came of a call; the result is folded."""
        call = self.call(result.call_id, result.tool)
        children = self.turn.children.values()
        return CallFinished(
            call=call,
            ran_with=call.arguments if result.ran_with is None else result.ran_with,
            status=result.status,
            text=result.text,
            elapsed_ms=result.elapsed_ms,
            artifact=result.artifact,
            open_calls=tuple(self.turn.open_calls),
            has_children=any(child.call_id == result.call_id for child in children),
        )

    def child(self, child: RunChild, at: EventMeta) -> ChildStarted | ChildFinished:
        """That a child has begun, or what came of it."""
        call, name = self.call(child.call_id), child.conversation
        if not child.reason:
            self.children.setdefault(name, at)
            return ChildStarted(call=call, conversation=name)
        since = at.ts - self.children.get(name, at).ts
        return ChildFinished(
            call=call,
            conversation=name,
            reason=child.reason,
            usage=child.usage,
            elapsed_ms=max(since.total_seconds() * 1000, 0.0),
        )

    def decided(self, decision: Decision) -> DecisionMade:
        """The decision, which is folded, before its thoughts are."""
        return DecisionMade(
            iteration=self.turn.rounds if decision.purpose == "decision" else 0,
            limit=self.limit,
            purpose=decision.purpose,
            thought="",
            notes="",
            raw=decision.raw,
            model=decision.model,
            stop_reason=decision.stop_reason,
            usage=decision.usage,
            calls=decision.calls,
        )


StampedEvent = tuple[EventMeta, TurnEvent]

_NEVER = EventMeta(seq=0, turn=0, ts=datetime(1970, 1, 1, tzinfo=UTC))
_CUT = ("interrupted", "stopped")

BeforeBody = TurnHeader | ToolCalled | RunChild | UserInput | UserRecalled
_TOLD_BEFORE = BodyUnion[BeforeBody](BeforeBody)


@dataclass(slots=True)
class _Deciding:
    """A decision whose thoughts may still follow, in the same append."""

    at: EventMeta
    moment: DecisionMade
    thinking: str = ""

    @property
    def whole(self) -> StampedEvent:
        moment = self.moment
        return self.at, replace(moment, thought=moment.notes or self.thinking)


class TurnEventFold:
    """The fold: it is to hear the events of one conversation in their order, each block once."""

    def __init__(self) -> None:
        self._newest = _NEVER
        self._running = 0
        self._turns: dict[int, TurnProjection] = {}
        self._inputs: dict[int, tuple[Block, UserInput]] = {}
        self._sources: dict[int, Source] = {}
        self._deciding: _Deciding | None = None
        self._is_open = False

    def take(self, event: Event) -> list[StampedEvent]:
        """The moments of the next event; a block that was heard before has none."""
        match event:
            case Delta(type="progress") if self._newest is _NEVER:
                return []  # of a turn that is queued: no vocabulary has a word before its first block
            case Delta():
                at = replace(self._newest, seq=0, turn=self._running)
                return [(at, moment) for moment in _passing(event)]
            case Block(seq=seq) if seq <= self._newest.seq:
                return []
            case Block():
                return [*self._flushed(event), *self._heard(event)]

    def close(self) -> list[StampedEvent]:
        """The moment that nothing more comes, where no block has said so."""
        if not self._is_open:
            return []
        self._is_open = False
        at = replace(self._newest, seq=0, turn=self._running)
        return [(at, self._telling(self._running).paused)]

    def _telling(self, number: int) -> TurnProjection:
        return self._turns.setdefault(number, TurnProjection(Turn(number)))

    def _flushed(self, block: Block) -> Iterator[StampedEvent]:
        """The decision before, once its thoughts are complete."""
        deciding, body = self._deciding, block.body
        if deciding is None:
            return
        if isinstance(body, Thinking):
            deciding.thinking = body.text
        elif isinstance(body, Notes):
            deciding.moment = replace(deciding.moment, notes=body.text)
        else:
            self._deciding = None
            flag = body.flag if isinstance(body, Completion) else ""
            deciding.moment = replace(deciding.moment, flag=flag)
            yield deciding.whole

    def _heard(self, block: Block) -> list[StampedEvent]:
        at = self._newest = EventMeta(seq=block.seq, turn=block.turn, ts=block.ts)
        telling = self._telling(block.turn)
        moments = list(self._before(block, telling, at))
        telling.turn.take(block)
        if telling.is_running:
            self._running, self._is_open = block.turn, True
        moments += self._after(block, telling, at)
        return [(at, moment) for moment in moments]

    def _before(self, block: Block, telling: TurnProjection, at: EventMeta) -> Iterator[TurnEvent]:
        """What is told with the turn as it was before the block."""
        body = block.body
        if not _TOLD_BEFORE.has(body):
            return
        match body:
            case TurnHeader(bundle=bundle):
                if telling.turn.header is None:
                    prompt = telling.turn.prompt
                    text = (
                        prompt.body.text if prompt and isinstance(prompt.body, UserPrompt) else ""
                    )
                    yield TurnStarted(prompt=text, bundle=bundle)
            case ToolCalled():
                yield telling.called(body)
            case RunChild():
                yield telling.child(body, at)
            case UserRecalled(said=said):
                self._inputs.pop(said, None)
            case UserPrompt():
                self._inputs[block.seq] = block, body
            case UserFollowup(text=text) | UserSteer(text=text):
                self._inputs[block.seq] = block, body
                yield InputAccepted(kind=_kind(body), text=text)

    def _after(self, block: Block, telling: TurnProjection, at: EventMeta) -> Iterator[TurnEvent]:
        """What is told with the turn as it is with the block."""
        match block.body:
            case RoundStart() as begun:
                yield from self._round(begun, telling)
            case Decision() as decision:
                self._deciding = _Deciding(at, telling.decided(decision))
            case ToolPending() | ToolResult() as body:
                yield from self._called(body, telling)
            case Completion() as completion:
                yield self._answered(completion, telling)
            case Exit() as end:
                yield self._ended(end, telling)
            case SourceAdded(sid=sid, source=source):
                self._sources[sid] = source
            case (
                RangeSummary() | ToolsSelected() | ModelSwitched() | Draft() | CustomEvent()
            ) as body:
                yield _noted(body)
            case (
                TurnHeader()
                | ToolCalled()
                | RunChild()
                | UserPrompt()
                | UserFollowup()
                | UserSteer()
                | UserRecalled()
            ):
                pass  # told before the turn took the block in
            case (
                UserStop()
                | UserAttachment()
                | UserAnswer()
                | ModelOverflowed()
                | Thinking()
                | Notes()
                | ToolStarted()
                | Notice()
                | Plan()
                | PlanAck()
                | PlanHistory()
                | SystemMessage()
                | Hide()
                | Checkpoint()
                | Imported()
                | TextKept()
                | ArtifactKept()
                | Feedback()
                | Unknown()
            ):
                pass  # no event stream tells of it

    def _round(self, begun: RoundStart, telling: TurnProjection) -> Iterator[TurnEvent]:
        taken = [self._inputs.pop(seq) for seq in begun.takes if seq in self._inputs]
        for block, said in taken:
            if not isinstance(said, UserPrompt) or block.turn != telling.turn.number:
                yield InputTaken(kind=_kind(said), text=said.text, said=block.seq)
        telling.limit = begun.limit
        if begun.purpose == "answer":
            yield AnswerStarted()
        else:
            yield RoundStarted(iteration=telling.turn.rounds + 1, limit=begun.limit)

    def _called(
        self, body: ToolPending | ToolResult, telling: TurnProjection
    ) -> Iterator[TurnEvent]:
        match body:
            case ToolPending():
                yield InputRequested(
                    call=telling.call(body.call_id),
                    kind=body.kind,
                    question=body.question,
                )
            case ToolResult():
                yield telling.returned(body)
        # A call that is cut off ends the turn more often than it leaves others to wait.
        if telling.is_paused and not (isinstance(body, ToolResult) and body.status in _CUT):
            self._is_open = False
            yield telling.paused

    def _answered(self, completion: Completion, telling: TurnProjection) -> AnswerGiven:
        sids = completion.sources_used
        return AnswerGiven(
            text=_resolved(completion),
            flag=completion.flag,
            sources=tuple(CitedSource(sid=sid, source=self._sources.get(sid)) for sid in sids),
            usage=telling.turn.usage,
        )

    def _ended(self, end: Exit, telling: TurnProjection) -> TurnFinished:
        turn, completion = telling.turn, telling.turn.completion
        self._is_open = False
        self._turns = {number: one for number, one in self._turns.items() if number > turn.number}
        inputs = [said for _, said in self._inputs.values()]
        late = [said.text for said in inputs if not isinstance(said, UserPrompt)]
        return TurnFinished(
            reason=end.reason,
            error=end.error,
            rounds=turn.rounds,
            elapsed_ms=end.elapsed_ms,
            usage=turn.usage,
            cost=turn.cost,
            answer=_resolved(completion) if completion else "",
            late=tuple(late),
            stop_reason=telling.stop_reason,
        )


def _passing(delta: Delta) -> Iterator[TurnEvent]:
    match delta.type:
        case "delta":
            yield TextStreamed(channel=delta.channel, text=delta.text)
        case "reset":
            yield TextReset(channel=delta.channel)
        case "progress" if delta.channel == "tools" and delta.total:
            yield SelectionStarted(total=delta.total)
        case "progress" | "compaction":
            yield ProgressReported(channel=delta.channel, text=delta.text, call_id=delta.call_id)
        case "custom":
            yield CustomEmitted(name=delta.name, data=delta.data, call_id=delta.call_id)
        case "missed":
            yield EventsMissed(after=delta.after, through=delta.through)
        case "pending":  # the block before it has told
            pass


def _noted(
    body: RangeSummary | ToolsSelected | ModelSwitched | Draft | CustomEvent,
) -> TurnEvent:
    match body:
        case RangeSummary(messages_before=before, messages_after=after, usage=usage):
            return ContextCompacted(before=before, after=after, usage=usage)
        case ToolsSelected(usage=usage):
            return SelectionFinished(usage=usage)
        case ModelSwitched(usage=usage):
            return ModelChanged(usage=usage)
        case Draft(reason=reason):
            return AnswerHeldBack(reason=reason)
        case CustomEvent(name=name, data=data, call_id=call_id):
            return CustomEmitted(name=name, data=data, call_id=call_id)


def _kind(said: UserInput) -> InputKind:
    match said:
        case UserPrompt():
            return "prompt"
        case UserFollowup():
            return "followup"
        case UserSteer():
            return "steer"


def _resolved(completion: Completion) -> str:
    """The answer as a listener hears it. A range ends at the last source there is, which is then cited."""
    used = completion.sources_used
    return citations.resolve(completion.text, citations.Marks(used), newest=max(used, default=0))
