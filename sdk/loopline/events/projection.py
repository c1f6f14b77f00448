"""Turn events from blocks and deltas: the fold that every dialect uses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256

from msgspec import structs

from loopline import timeline
from loopline.events import turn_events as turns
from loopline.events.events import Delta, Event
from loopline.models import JsonObject

StampedEvent = tuple[turns.EventMeta, turns.TurnEvent]
CallBody = (
    timeline.ToolCalled
    | timeline.RunChild
    | timeline.ToolQuestion
    | timeline.ToolPending
    | timeline.ToolResult
    | timeline.UserAnswer
    | timeline.StepEnded
)
InputBody = timeline.InboxBody | timeline.UserRecalled | timeline.SourceAdded | timeline.ProxiedBody
"""The bodies that later events use."""
OwnBody = (
    timeline.RangeSummary
    | timeline.ToolsSelected
    | timeline.ModelSwitched
    | timeline.Draft
    | timeline.CustomEvent
    | timeline.FileAdded
    | timeline.Plan
)
"""The bodies that are their own turn events."""
StepBody = (
    timeline.TurnHeader
    | timeline.RoundStart
    | timeline.Decision
    | timeline.Completion
    | timeline.Exit
)
_CALLS = timeline.BodyUnion[CallBody](CallBody)
_INPUTS = timeline.BodyUnion[InputBody](InputBody)
_OWN = timeline.BodyUnion[OwnBody](OwnBody)
_STEPS = timeline.BodyUnion[StepBody](StepBody)

_START = turns.EventMeta(seq=0, turn=0, ts=datetime(1970, 1, 1, tzinfo=UTC))
_CUT_OFF = ("interrupted", "stopped")
OPEN_QUESTION = "loopline.question"
"""The name of the custom event for a question of a call that keeps running."""
PROGRAM_CALL = "loopline.program_call"
"""The name of the custom events for a call that a program makes, since no protocol has nested calls."""


@dataclass(slots=True)
class TurnProjection:
    """The fold of one turn's blocks, with its calls by id and the start of each child run by conversation."""

    turn: timeline.Turn
    limit: int = 0
    has_started: bool = False
    calls: dict[str, turns.CallStarted] = field(default_factory=dict[str, turns.CallStarted])
    child_starts: dict[str, turns.EventMeta] = field(default_factory=dict[str, turns.EventMeta])

    @property
    def stop_reason(self) -> str:
        """The stop reason of the last decision; "" before the first one."""
        return self.turn.decisions[-1].stop_reason if self.turn.decisions else ""

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The ids of the calls that wait for the user's answer."""
        return tuple(self.turn.unanswered)

    @property
    def is_paused(self) -> bool:
        """Whether there are open calls or steps, and all of them wait for the user."""
        open_ids = self.turn.open_ids
        return bool(open_ids) and open_ids <= {*self.unanswered}

    @property
    def is_running(self) -> bool:
        """Whether the turn was started by a runner and has neither ended nor paused."""
        return self.turn.header is not None and self.turn.exit is None and not self.is_paused

    def pause(self, calls: tuple[str, ...] | None = None) -> turns.TurnPaused:
        """Create the event of a pause, in which `calls` wait for the user; by default all unanswered calls."""
        return turns.TurnPaused(
            calls=self.unanswered if calls is None else calls,
            rounds=self.turn.rounds,
            stop_reason=self.stop_reason,
        )

    def open_question(self, question: timeline.ToolQuestion) -> turns.QuestionOpened:
        """Create the event for a question of a call that keeps running; without a form, the answer is yes or no."""
        request = turns.InputRequested(
            call=self.call(question.call_id),
            kind=question.kind,
            question=question.question,
            digest=question_digest(question),
            form={"type": "boolean"} if question.form is None else question.form,
        )
        return turns.QuestionOpened(request=request, pause=self.pause((question.call_id,)))

    def request(self, pending: timeline.ToolPending) -> turns.InputRequested:
        """Create the event for a call that waits; a call for the client has the arguments with which it must run."""
        call = self.call(pending.call_id)
        if pending.client and pending.call_id in self.turn.open_calls:
            waiting = self.turn.waiting_call(pending.call_id)
            call = structs.replace(call, arguments=waiting.arguments)
        return turns.InputRequested(
            call=call,
            kind=pending.waits_for,
            question=pending.question,
            digest=pending.digest,
            form=pending.form,
        )

    def call(self, call_id: str, tool: str = "") -> turns.CallStarted:
        """Return the call with this id; if its block was not received, one that has only the id and `tool`."""
        return self.calls.get(call_id) or turns.CallStarted(call_id=call_id, tool=tool)

    def start(self, bundle: str) -> Iterator[turns.TurnStarted]:
        """Yield the event for the start of the turn, at the first call only."""
        if not self.has_started:
            self.has_started = True
            prompt = self.turn.prompt and self.turn.prompt.body
            text = prompt.text if isinstance(prompt, timeline.UserPrompt) else ""
            yield turns.TurnStarted(prompt=text, bundle=bundle)

    def start_call(self, called: timeline.ToolCalled) -> turns.CallStarted:
        """Store the call with its position in its decision, and return its event."""
        turn = self.turn
        for_client = turn.header.client_tools if turn.header else ()
        call = self.calls[called.call_id] = turns.CallStarted(
            call_id=called.call_id,
            tool=called.tool,
            arguments=called.arguments,
            iteration=turn.rounds,
            index=len(turn.batches[-1].calls) - 1 if turn.batches else 0,
            total=turn.decisions[-1].calls if turn.decisions else 1,
            is_for_client=called.tool in for_client,
        )
        return call

    def finish_call(self, result: timeline.ToolResult) -> turns.CallFinished:
        """Create the event for the result of a call; the turn has already taken the result.

        It has the ids of the calls that are still open. Without `ran_with` in the result, it has the arguments of the
        call.
        """
        call = self.call(result.call_id, result.tool)
        children = self.turn.children.values()
        return turns.CallFinished(
            call=call,
            ran_with=call.arguments if result.ran_with is None else result.ran_with,
            result=result,
            open_calls=tuple(self.turn.open_calls),
            has_children=any(child.call_id == result.call_id for child in children),
        )

    def start_step(self, call_id: str) -> Iterator[turns.CallStarted]:
        """Yield and store a call for the open step with this `call_id`; none for another id, or if it is stored."""
        steps = [step.call_id for step in self.turn.open_steps.values()]
        if call_id in steps and call_id not in self.calls:
            called = self.turn.waiting_call(call_id)
            call = self.calls[call_id] = turns.CallStarted(
                call_id=call_id,
                tool=called.tool,
                arguments=called.arguments,
                iteration=self.turn.rounds,
            )
            yield call

    def finish_step(self, ended: timeline.StepEnded) -> Iterator[turns.CallFinished]:
        """Yield the end of a step as the result of its call; none if `start_step` did not yield a call for the step."""
        step = self.turn.steps.get(ended.name)
        if step is not None and step.call_id in self.calls:
            status = "error" if ended.status == "failed" else ended.status
            yield self.finish_call(
                timeline.ToolResult(
                    call_id=step.call_id,
                    tool=self.calls[step.call_id].tool,
                    text=ended.error,
                    status=status,
                    elapsed_ms=ended.elapsed_ms,
                )
            )

    def child_event(
        self, child: timeline.RunChild, meta: turns.EventMeta
    ) -> turns.ChildStarted | turns.ChildFinished:
        """Create the event for a child run: its end if the body has an exit reason, and its start if not.

        The elapsed time is that between both blocks, and 0 if the start was not received.
        """
        call = self.call(child.call_id)
        name = child.conversation
        if not child.reason:
            self.child_starts.setdefault(name, meta)
            return turns.ChildStarted(call=call, conversation=name, agent=child.agent)
        elapsed = meta.ts - self.child_starts.get(name, meta).ts
        return turns.ChildFinished(
            call=call, child=child, elapsed_ms=max(elapsed.total_seconds() * 1000, 0.0)
        )


class TurnEventFold:
    """The turn events of a conversation, from its blocks and deltas in order.

    A reset of a channel has an event only if text was streamed in the channel since the last reset, the start of the turn
    and its answer, because a subscriber that joined later did not receive any text.
    """

    def __init__(self) -> None:
        self._newest = _START
        self._running = 0
        self._turns: dict[int, TurnProjection] = {}
        self._inputs: dict[int, tuple[timeline.Block, timeline.InboxBody]] = {}
        self._sources: dict[int, timeline.Source] = {}
        self._streamed_channels: set[str] = set()
        # A decision waits for its thinking and notes, which may follow in the same append.
        self._pending: tuple[turns.EventMeta, turns.DecisionMade] | None = None
        self._is_open = False

    def take(self, event: Event) -> list[StampedEvent]:
        """Return the turn events of the next event, each with its position; a block that was already taken has none.

        The event of a decision is returned with the next block of the conversation that is not its thinking or notes.
        Progress before the first block has none.
        """
        match event:
            case Delta(type="progress") if self._newest is _START:
                return []  # the turn is queued, and no dialect has a record before its first block
            case Delta():
                meta = structs.replace(self._newest, seq=0, turn=self._running)
                return [(meta, turn_event) for turn_event in self._delta_events(event)]
            case timeline.Block(seq=seq) if seq <= self._newest.seq:
                return []
            case timeline.Block():
                return [*self._complete_decision(event), *self._take_block(event)]

    def close(self) -> list[StampedEvent]:
        """Return the event of a pause if the stream ends while the turn still runs; the runner has left the turn."""
        if not self._is_open:
            return []
        self._is_open = False
        meta = structs.replace(self._newest, seq=0, turn=self._running)
        return [(meta, self._projection(self._running).pause())]

    def _projection(self, turn: int) -> TurnProjection:
        return self._turns.setdefault(turn, TurnProjection(timeline.Turn(turn)))

    def _complete_decision(self, block: timeline.Block) -> Iterator[StampedEvent]:
        """Add thinking and notes to the pending decision, and yield its event at the first other block.

        If that block is an answer, the event has its flag.
        """
        if self._pending is None:
            return
        meta, event = self._pending
        body = block.body
        if isinstance(body, timeline.Thinking):
            self._pending = meta, structs.replace(event, thinking=body.text)
        elif isinstance(body, timeline.Notes):
            self._pending = meta, structs.replace(event, notes=body.text)
        else:
            self._pending = None
            flag = body.flag if isinstance(body, timeline.Completion) else ""
            thought = event.notes or event.thinking
            yield meta, structs.replace(event, flag=flag, thought=thought)

    def _take_block(self, block: timeline.Block) -> list[StampedEvent]:
        """Add a block to its turn, and return its events; the start and the answer forget the streamed channels."""
        meta = self._newest = turns.EventMeta(seq=block.seq, turn=block.turn, ts=block.ts)
        projection = self._projection(block.turn)
        projection.turn.take(block)
        body = block.body
        if projection.is_running:
            self._running = block.turn
            self._is_open = self._is_open or not isinstance(body, timeline.UserAnswer)
        events = list(self._events(block, projection, meta))
        if any(isinstance(event, turns.TurnStarted | turns.AnswerGiven) for event in events):
            self._streamed_channels.clear()
        return [(meta, event) for event in events]

    def _events(
        self, block: timeline.Block, projection: TurnProjection, meta: turns.EventMeta
    ) -> Iterator[turns.TurnEvent]:
        """Yield the events of a block that its turn has already taken; a decision is stored as pending instead."""
        body = block.body
        if _CALLS.has(body):
            yield from self._update_call(body, projection, meta)
        elif _INPUTS.has(body):
            yield from self._take_input(block, body)
        elif _OWN.has(body):
            yield body
        elif _STEPS.has(body):
            match body:
                case timeline.TurnHeader(bundle=bundle):
                    yield from projection.start(bundle)
                case timeline.RoundStart():
                    yield from self._start_round(body, projection)
                case timeline.Decision():
                    made = turns.DecisionMade(
                        iteration=projection.turn.rounds if body.purpose == "decision" else 0,
                        limit=projection.limit,
                        decision=body,
                    )
                    self._pending = meta, made
                case timeline.Completion(sources_used=sids, flag=flag):
                    yield turns.AnswerGiven(
                        text=_resolve_citations(body),
                        flag=flag,
                        sources=tuple(
                            turns.CitedSource(sid=sid, source=self._sources.get(sid))
                            for sid in sids
                        ),
                        usage=projection.turn.usage,
                    )
                case timeline.Exit():
                    yield self._finish(body, projection)

    def _take_input(self, block: timeline.Block, body: InputBody) -> Iterator[turns.TurnEvent]:
        """Store inputs and sources for later events, and yield the event of an input or of a program's call.

        The prompt and a source yield none; a recalled input is removed.
        """
        match body:
            case timeline.ProxiedCall() | timeline.ProxiedResult():
                yield _program_call_event(body)
            case timeline.SourceAdded(sid=sid, source=source):
                self._sources[sid] = source
            case timeline.UserRecalled(said=seq):
                self._inputs.pop(seq, None)
            case timeline.UserPrompt():
                self._inputs[block.seq] = block, body
            case (
                timeline.UserFollowup(text=text)
                | timeline.UserSteer(text=text)
                | timeline.BackgroundResult(text=text)
            ):
                self._inputs[block.seq] = block, body
                yield turns.InputAccepted(kind=_kind(body), text=text)

    def _start_round(
        self, start: timeline.RoundStart, projection: TurnProjection
    ) -> Iterator[turns.TurnEvent]:
        """Yield the inputs that the round takes, except its turn's prompt, then its start; store its limit."""
        inputs = [(seq, *self._inputs.pop(seq)) for seq in start.takes if seq in self._inputs]
        for seq, block, body in inputs:
            if not isinstance(body, timeline.UserPrompt) or block.turn != projection.turn.number:
                yield turns.InputTaken(kind=_kind(body), text=body.text, input_seq=seq)
        projection.limit = start.limit
        if start.purpose == "answer":
            yield turns.AnswerStarted()
        else:
            yield turns.RoundStarted(iteration=projection.turn.rounds + 1, limit=start.limit)

    def _update_call(
        self, body: CallBody, projection: TurnProjection, meta: turns.EventMeta
    ) -> Iterator[turns.TurnEvent]:
        """Yield the events of a call, then a pause if all open calls and steps wait for the user.

        An interrupted or stopped result or step does not yield a pause.
        """
        match body:
            case timeline.ToolCalled():
                yield projection.start_call(body)
                return
            case timeline.RunChild():
                yield projection.child_event(body, meta)
                return
            case timeline.ToolQuestion():
                yield _question_event(body)
                yield projection.open_question(body)
                return
            case timeline.UserAnswer(call_id=call_id):
                # Another call waits behind the paused call, so that no block has ended the stream of the turn before.
                if self._is_open and call_id in projection.turn.pending:
                    self._is_open = False
                    yield projection.pause((call_id, *projection.unanswered))
                return
            case timeline.ToolPending():
                yield from projection.start_step(body.call_id)
                yield projection.request(body)
            case timeline.ToolResult():
                yield projection.finish_call(body)
            case timeline.StepEnded():
                yield from projection.finish_step(body)
        # An interrupted call usually means that the turn ends, not that it pauses for the other calls.
        is_cut_off = (
            isinstance(body, timeline.ToolResult | timeline.StepEnded) and body.status in _CUT_OFF
        )
        if projection.is_paused and not is_cut_off:
            self._is_open = False
            yield projection.pause()

    def _finish(self, end: timeline.Exit, projection: TurnProjection) -> turns.TurnFinished:
        """Create the end of a turn, with all inputs that no round took; forget this and all earlier turns."""
        turn = projection.turn
        completion = turn.completion
        self._is_open = False
        self._turns = {number: item for number, item in self._turns.items() if number > turn.number}
        inputs = [body for _, body in self._inputs.values()]
        return turns.TurnFinished(
            reason=end.reason,
            error=end.error,
            rounds=turn.rounds,
            elapsed_ms=end.elapsed_ms,
            usage=turn.usage,
            cost=turn.cost,
            answer=_resolve_citations(completion) if completion else "",
            late_inputs=tuple(
                body.text for body in inputs if not isinstance(body, timeline.UserPrompt)
            ),
            stop_reason=projection.stop_reason,
            truncated=turn.is_truncated,
        )

    def _delta_events(self, delta: Delta) -> Iterator[turns.TurnEvent]:
        """Yield the event of a delta; none for `pending`, `missed` and resets of channels without streamed text."""
        match delta.type:
            case "delta":
                self._streamed_channels.add(delta.channel)
                yield turns.TextStreamed(channel=delta.channel, text=delta.text)
            case "reset":
                if delta.channel in self._streamed_channels:
                    self._streamed_channels.remove(delta.channel)
                    yield turns.TextReset(channel=delta.channel)
            case "progress" | "compaction":
                yield turns.ProgressReported(
                    channel=delta.channel, text=delta.text, call_id=delta.call_id, total=delta.total
                )
            case "custom":
                yield timeline.CustomEvent(name=delta.name, data=delta.data, call_id=delta.call_id)
            case "pending":
                pass  # the block of the question had the event
            case "missed":
                pass  # not an event of the turn


def question_digest(question: timeline.ToolQuestion) -> str:
    """Return the SHA-256 of a running call's question, in hexadecimal; an approval of the call is signed over it."""
    text = json.dumps([question.call_id, question.question])
    return sha256(text.encode()).hexdigest()


def _question_event(question: timeline.ToolQuestion) -> timeline.CustomEvent:
    """Create the custom event for a question of a call that keeps running, with the form of the answer."""
    data: JsonObject = {
        "callId": question.call_id,
        "question": question.question,
        "form": question.form,
    }
    return timeline.CustomEvent(name=OPEN_QUESTION, data=data, call_id=question.call_id)


def _program_call_event(body: timeline.ProxiedBody) -> timeline.CustomEvent:
    """Create the event for the start or the end of a program's call, without its result, which has a ref."""
    data: JsonObject = {"callId": body.call_id, "parent": body.parent, "tool": body.tool}
    match body:
        case timeline.ProxiedCall(arguments=arguments):
            data |= {"status": "started", "arguments": arguments}
        case timeline.ProxiedResult(status=status, elapsed_ms=elapsed):
            data |= {"status": status, "elapsedMs": elapsed}
    return timeline.CustomEvent(name=PROGRAM_CALL, data=data, call_id=body.parent)


def _kind(body: timeline.InboxBody) -> str:
    is_background = isinstance(body, timeline.BackgroundResult)
    return "background" if is_background else body.type.removeprefix("user.")


def _resolve_citations(completion: timeline.Completion) -> str:
    """Return the answer with its citations as `[1]`, `[2]`, …; a range ends at the newest cited source."""
    used = completion.sources_used
    return timeline.citations.resolve(
        completion.text, timeline.citations.Marks(used), newest=max(used, default=0)
    )
