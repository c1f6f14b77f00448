"""Turn events from blocks and deltas: the fold that all dialects share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from loopline.events.events import Delta, Event
from loopline.events.turn_events import (
    AnswerGiven,
    AnswerStarted,
    CallFinished,
    CallStarted,
    ChildFinished,
    ChildStarted,
    CitedSource,
    DecisionMade,
    EventMeta,
    InputAccepted,
    InputRequested,
    InputTaken,
    ProgressReported,
    RoundStarted,
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
    Checkpoint,
    Completion,
    CrewGraph,
    CustomEvent,
    Decision,
    Draft,
    Exit,
    Feedback,
    FileAdded,
    FileRemoved,
    FilesPulled,
    Hide,
    Imported,
    MemoryFact,
    ModelOverflowed,
    ModelSwitched,
    Notes,
    Notice,
    Plan,
    PlanAck,
    PlanHistory,
    ProxiedCall,
    ProxiedResult,
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

StampedEvent = tuple[EventMeta, TurnEvent]

_START = EventMeta(seq=0, turn=0, ts=datetime(1970, 1, 1, tzinfo=UTC))
_CUT_OFF = ("interrupted", "stopped")


@dataclass(slots=True)
class TurnProjection:
    """The fold of a turn's blocks, with its numbered calls and the starts of its child runs."""

    turn: Turn
    limit: int = 0
    has_started: bool = False
    calls: dict[str, CallStarted] = field(default_factory=dict[str, CallStarted])
    child_starts: dict[str, EventMeta] = field(default_factory=dict[str, EventMeta])

    @property
    def stop_reason(self) -> str:
        """Return the stop reason of the last decision."""
        return self.turn.decisions[-1].stop_reason if self.turn.decisions else ""

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Return the calls that wait for the user and have no answer yet."""
        return tuple(call_id for call_id in self.turn.pending if call_id not in self.turn.answers)

    @property
    def is_paused(self) -> bool:
        """Return whether every open call waits for the user."""
        return bool(self.turn.open_calls) and self.turn.open_calls.keys() <= {*self.unanswered}

    @property
    def is_running(self) -> bool:
        """Return whether a runner started the turn, and it has neither ended nor paused."""
        return self.turn.header is not None and self.turn.exit is None and not self.is_paused

    def pause(self) -> TurnPaused:
        """Return the event that no event follows for now."""
        return TurnPaused(
            calls=self.unanswered, rounds=self.turn.rounds, stop_reason=self.stop_reason
        )

    def call(self, call_id: str, tool: str = "") -> CallStarted:
        """Return the call; only its id and tool if its block was not received."""
        return self.calls.get(call_id) or CallStarted(call_id=call_id, tool=tool)

    def start(self, bundle: str) -> Iterator[TurnStarted]:
        """Yield the start of the turn, once."""
        if not self.has_started:
            self.has_started = True
            prompt = self.turn.prompt and self.turn.prompt.body
            text = prompt.text if isinstance(prompt, UserPrompt) else ""
            yield TurnStarted(prompt=text, bundle=bundle)

    def start_call(self, called: ToolCalled) -> CallStarted:
        """Return the call with its position in its decision."""
        turn = self.turn
        call = self.calls[called.call_id] = CallStarted(
            call_id=called.call_id,
            tool=called.tool,
            arguments=called.arguments,
            iteration=turn.rounds,
            index=len(turn.batches[-1].calls) - 1 if turn.batches else 0,
            total=turn.decisions[-1].calls if turn.decisions else 1,
        )
        return call

    def finish_call(self, result: ToolResult) -> CallFinished:
        """Return the end of a call, whose result is folded."""
        call = self.call(result.call_id, result.tool)
        children = self.turn.children.values()
        return CallFinished(
            call=call,
            ran_with=call.arguments if result.ran_with is None else result.ran_with,
            result=result,
            open_calls=tuple(self.turn.open_calls),
            has_children=any(child.call_id == result.call_id for child in children),
        )

    def child(self, child: RunChild, meta: EventMeta) -> ChildStarted | ChildFinished:
        """Return the start of a child run, or its end."""
        call, name = self.call(child.call_id), child.conversation
        if not child.reason:
            self.child_starts.setdefault(name, meta)
            return ChildStarted(call=call, conversation=name, agent=child.agent)
        elapsed = meta.ts - self.child_starts.get(name, meta).ts
        return ChildFinished(
            call=call,
            child=child,
            elapsed_ms=max(elapsed.total_seconds() * 1000, 0.0),
        )

    def decision(self, decision: Decision) -> DecisionMade:
        """Return the decision, whose block is folded, before its notes and its thinking are."""
        return DecisionMade(
            iteration=self.turn.rounds if decision.purpose == "decision" else 0,
            limit=self.limit,
            decision=decision,
        )


@dataclass(slots=True)
class _PendingDecision:
    """A decision whose thinking and notes may follow in the same append."""

    meta: EventMeta
    event: DecisionMade
    thinking: str = ""


class TurnEventFold:
    """The turn events of a conversation, from its blocks and deltas in order."""

    def __init__(self) -> None:
        self._newest = _START
        self._running = 0
        self._turns: dict[int, TurnProjection] = {}
        self._inputs: dict[int, tuple[Block, UserInput]] = {}
        self._sources: dict[int, Source] = {}
        self._pending: _PendingDecision | None = None
        self._is_open = False

    def take(self, event: Event) -> list[StampedEvent]:
        """Return the turn events of the next event; a block that was taken before has none."""
        match event:
            case Delta(type="progress") if self._newest is _START:
                return []  # of a queued turn: no dialect has a record before the turn's first block
            case Delta():
                meta = replace(self._newest, seq=0, turn=self._running)
                return [(meta, turn_event) for turn_event in _delta_events(event)]
            case Block(seq=seq) if seq <= self._newest.seq:
                return []
            case Block():
                return [*self._complete_decision(event), *self._take_block(event)]

    def close(self) -> list[StampedEvent]:
        """Return the pause of a stream that no block ended or paused."""
        if not self._is_open:
            return []
        self._is_open = False
        meta = replace(self._newest, seq=0, turn=self._running)
        return [(meta, self._projection(self._running).pause())]

    def _projection(self, turn: int) -> TurnProjection:
        return self._turns.setdefault(turn, TurnProjection(Turn(turn)))

    def _complete_decision(self, block: Block) -> Iterator[StampedEvent]:
        """Yield the pending decision at the first block after its thinking and notes."""
        pending, body = self._pending, block.body
        if pending is None:
            return
        if isinstance(body, Thinking):
            pending.thinking = body.text
        elif isinstance(body, Notes):
            pending.event = replace(pending.event, notes=body.text)
        else:
            self._pending = None
            flag = body.flag if isinstance(body, Completion) else ""
            thought = pending.event.notes or pending.thinking
            yield pending.meta, replace(pending.event, flag=flag, thought=thought)

    def _take_block(self, block: Block) -> list[StampedEvent]:
        meta = self._newest = EventMeta(seq=block.seq, turn=block.turn, ts=block.ts)
        projection = self._projection(block.turn)
        projection.turn.take(block)
        if projection.is_running:
            self._running, self._is_open = block.turn, True
        return [(meta, event) for event in self._events(block, projection, meta)]

    def _events(
        self, block: Block, projection: TurnProjection, meta: EventMeta
    ) -> Iterator[TurnEvent]:
        """Yield the events of a block, which the turn has already taken."""
        match block.body:
            case TurnHeader(bundle=bundle):
                yield from projection.start(bundle)
            case RoundStart() as start:
                yield from self._start_round(start, projection)
            case Decision() as decision:
                self._pending = _PendingDecision(meta, projection.decision(decision))
            case ToolCalled() | RunChild() | ToolPending() | ToolResult() as body:
                yield from self._update_call(body, projection, meta)
            case Completion() as completion:
                yield self._answer(completion, projection)
            case Exit() as end:
                yield self._finish(end, projection)
            case (
                UserPrompt() | UserFollowup() | UserSteer() | UserRecalled() | SourceAdded()
            ) as body:
                yield from self._note(block, body)
            case (
                RangeSummary()
                | ToolsSelected()
                | ModelSwitched()
                | Draft()
                | CustomEvent()
                | FileAdded()
            ) as body:
                yield body
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
                | FileRemoved()
                | FilesPulled()
                | ProxiedCall()
                | ProxiedResult()
                | CrewGraph()
                | MemoryFact()
                | Feedback()
                | Unknown()
            ):
                pass  # no turn event

    def _note(
        self, block: Block, body: UserInput | UserRecalled | SourceAdded
    ) -> Iterator[TurnEvent]:
        """Note what later blocks refer to."""
        match body:
            case SourceAdded(sid=sid, source=source):
                self._sources[sid] = source
            case UserRecalled(said=seq):
                self._inputs.pop(seq, None)
            case UserPrompt():
                self._inputs[block.seq] = block, body
            case UserFollowup(text=text) | UserSteer(text=text):
                self._inputs[block.seq] = block, body
                yield InputAccepted(kind=_kind(body), text=text)

    def _start_round(self, start: RoundStart, projection: TurnProjection) -> Iterator[TurnEvent]:
        inputs = [(seq, *self._inputs.pop(seq)) for seq in start.takes if seq in self._inputs]
        for seq, block, body in inputs:
            if not isinstance(body, UserPrompt) or block.turn != projection.turn.number:
                yield InputTaken(kind=_kind(body), text=body.text, input_seq=seq)
        projection.limit = start.limit
        if start.purpose == "answer":
            yield AnswerStarted()
        else:
            yield RoundStarted(iteration=projection.turn.rounds + 1, limit=start.limit)

    def _update_call(
        self,
        body: ToolCalled | RunChild | ToolPending | ToolResult,
        projection: TurnProjection,
        meta: EventMeta,
    ) -> Iterator[TurnEvent]:
        match body:
            case ToolCalled():
                yield projection.start_call(body)
                return
            case RunChild():
                yield projection.child(body, meta)
                return
            case ToolPending(call_id=call_id, kind=kind, question=question):
                yield InputRequested(call=projection.call(call_id), kind=kind, question=question)
            case ToolResult():
                yield projection.finish_call(body)
        # A call that was cut off usually means the end of the turn, not a pause for the other calls.
        is_cut_off = isinstance(body, ToolResult) and body.status in _CUT_OFF
        if projection.is_paused and not is_cut_off:
            self._is_open = False
            yield projection.pause()

    def _answer(self, completion: Completion, projection: TurnProjection) -> AnswerGiven:
        sids = completion.sources_used
        return AnswerGiven(
            text=_resolved(completion),
            flag=completion.flag,
            sources=tuple(CitedSource(sid=sid, source=self._sources.get(sid)) for sid in sids),
            usage=projection.turn.usage,
        )

    def _finish(self, end: Exit, projection: TurnProjection) -> TurnFinished:
        turn, completion = projection.turn, projection.turn.completion
        self._is_open = False
        self._turns = {number: item for number, item in self._turns.items() if number > turn.number}
        inputs = [body for _, body in self._inputs.values()]
        return TurnFinished(
            reason=end.reason,
            error=end.error,
            rounds=turn.rounds,
            elapsed_ms=end.elapsed_ms,
            usage=turn.usage,
            cost=turn.cost,
            answer=_resolved(completion) if completion else "",
            late_inputs=tuple(body.text for body in inputs if not isinstance(body, UserPrompt)),
            stop_reason=projection.stop_reason,
        )


def _delta_events(delta: Delta) -> Iterator[TurnEvent]:
    match delta.type:
        case "delta":
            yield TextStreamed(channel=delta.channel, text=delta.text)
        case "reset":
            yield TextReset(channel=delta.channel)
        case "progress" | "compaction":
            yield ProgressReported(
                channel=delta.channel, text=delta.text, call_id=delta.call_id, total=delta.total
            )
        case "custom":
            yield CustomEvent(name=delta.name, data=delta.data, call_id=delta.call_id)
        case "pending":
            pass  # the block before it gave the event
        case "missed":
            pass  # says nothing of the turn


def _kind(body: UserInput) -> str:
    return body.type.removeprefix("user.")


def _resolved(completion: Completion) -> str:
    """Return the answer as subscribers get it. A range of citations ends at the newest source cited."""
    used = completion.sources_used
    return citations.resolve(completion.text, citations.Marks(used), newest=max(used, default=0))
