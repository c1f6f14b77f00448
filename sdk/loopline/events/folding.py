"""From events to moments: the fold that all vocabularies share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from loopline.events.events import Delta, Event
from loopline.events.moments import (
    Accepted,
    AnswerBegan,
    Answered,
    Asked,
    At,
    Began,
    Cited,
    Compacted,
    Decided,
    Drafted,
    Emitted,
    Ended,
    InputKind,
    Missed,
    Moment,
    Progressed,
    RoundBegan,
    Said,
    Selected,
    Selecting,
    Switched,
    Voided,
    Wrote,
)
from loopline.events.telling import Telling
from loopline.timeline import (
    Block,
    Completion,
    CustomEvent,
    Decision,
    Draft,
    Exit,
    ModelSwitched,
    Notes,
    RangeSummary,
    RoundStart,
    RunChild,
    Source,
    SourceAdded,
    Thinking,
    ToolCalled,
    ToolPending,
    ToolResult,
    ToolsSelected,
    Turn,
    TurnHeader,
    UserFollowup,
    UserPrompt,
    UserRecalled,
    UserSteer,
    citations,
)

Happening = tuple[At, Moment]

_NEVER = At(seq=0, turn=0, ts=datetime(1970, 1, 1, tzinfo=UTC))
_CUT = ("interrupted", "stopped")


@dataclass(slots=True)
class _Deciding:
    """A decision whose thoughts may still follow, in the same append."""

    at: At
    moment: Decided
    thinking: str = ""

    @property
    def whole(self) -> Happening:
        moment = self.moment
        return self.at, replace(moment, thought=moment.notes or self.thinking)


class Moments:
    """The fold: it is to hear the events of one conversation in their order, each block once."""

    def __init__(self) -> None:
        self._newest = _NEVER
        self._running = 0
        self._turns: dict[int, Telling] = {}
        self._inputs: dict[int, Block] = {}
        self._sources: dict[int, Source] = {}
        self._deciding: _Deciding | None = None
        self._is_open = False

    def take(self, event: Event) -> list[Happening]:
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

    def close(self) -> list[Happening]:
        """The moment that nothing more comes, where no block has said so."""
        if not self._is_open:
            return []
        self._is_open = False
        at = replace(self._newest, seq=0, turn=self._running)
        return [(at, self._telling(self._running).paused)]

    def _telling(self, number: int) -> Telling:
        return self._turns.setdefault(number, Telling(Turn(number)))

    def _flushed(self, block: Block) -> Iterator[Happening]:
        """The decision before, once its thoughts are complete."""
        deciding = self._deciding
        match block.body:
            case Thinking(text=text) if deciding is not None:
                deciding.thinking = text
            case Notes(text=text) if deciding is not None:
                deciding.moment = replace(deciding.moment, notes=text)
            case body if deciding is not None:
                self._deciding = None
                flag = body.flag if isinstance(body, Completion) else ""
                deciding.moment = replace(deciding.moment, flag=flag)
                yield deciding.whole
            case _:
                pass

    def _heard(self, block: Block) -> list[Happening]:
        at = self._newest = At(seq=block.seq, turn=block.turn, ts=block.ts)
        telling = self._telling(block.turn)
        moments = list(self._before(block, telling, at))
        telling.turn.take(block)
        if telling.is_running:
            self._running, self._is_open = block.turn, True
        moments += self._after(block, telling, at)
        return [(at, moment) for moment in moments]

    def _before(self, block: Block, telling: Telling, at: At) -> Iterator[Moment]:
        """What is told with the turn as it was before the block."""
        match block.body:
            case TurnHeader(bundle=bundle) if telling.turn.header is None:
                yield from self._begun(telling, bundle)
            case ToolCalled() as asked:
                yield telling.called(asked)
            case RunChild() as child:
                yield telling.child(child, at)
            case UserPrompt() | UserFollowup() | UserSteer() | UserRecalled():
                yield from self._said(block)
            case _:
                pass

    def _begun(self, telling: Telling, bundle: str) -> Iterator[Moment]:
        match telling.turn.prompt:
            case Block(body=UserPrompt(text=text)):
                yield Began(prompt=text, bundle=bundle)
            case _:
                yield Began(prompt="", bundle=bundle)

    def _said(self, block: Block) -> Iterator[Moment]:
        match block.body:
            case UserRecalled(said=said):
                self._inputs.pop(said, None)
            case UserFollowup(text=text) | UserSteer(text=text):
                self._inputs[block.seq] = block
                yield Accepted(kind=_kind(block), text=text)
            case _:
                self._inputs[block.seq] = block

    def _after(self, block: Block, telling: Telling, at: At) -> Iterator[Moment]:
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
            case _:
                yield from _noted(block)

    def _round(self, begun: RoundStart, telling: Telling) -> Iterator[Moment]:
        taken = [self._inputs.pop(seq) for seq in begun.takes if seq in self._inputs]
        for block in taken:
            match block.body:
                case UserPrompt() if block.turn == telling.turn.number:
                    pass
                case UserPrompt(text=text) | UserFollowup(text=text) | UserSteer(text=text):
                    yield Said(kind=_kind(block), text=text, said=block.seq)
                case _:
                    pass
        telling.limit = begun.limit
        if begun.purpose == "answer":
            yield AnswerBegan()
        else:
            yield RoundBegan(iteration=telling.turn.rounds + 1, limit=begun.limit)

    def _called(self, body: ToolPending | ToolResult, telling: Telling) -> Iterator[Moment]:
        match body:
            case ToolPending():
                yield Asked(
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

    def _answered(self, completion: Completion, telling: Telling) -> Answered:
        sids = completion.sources_used
        return Answered(
            text=_resolved(completion),
            flag=completion.flag,
            sources=tuple(Cited(sid=sid, source=self._sources.get(sid)) for sid in sids),
            usage=telling.turn.usage,
        )

    def _ended(self, end: Exit, telling: Telling) -> Ended:
        turn, completion = telling.turn, telling.turn.completion
        self._is_open = False
        self._turns = {number: one for number, one in self._turns.items() if number > turn.number}
        late = [_text(block) for block in self._inputs.values() if _kind(block) != "prompt"]
        return Ended(
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


def _passing(delta: Delta) -> Iterator[Moment]:
    match delta.type:
        case "delta":
            yield Wrote(channel=delta.channel, text=delta.text)
        case "reset":
            yield Voided(channel=delta.channel)
        case "progress" if delta.channel == "tools" and delta.total:
            yield Selecting(total=delta.total)
        case "progress" | "compaction":
            yield Progressed(channel=delta.channel, text=delta.text, call_id=delta.call_id)
        case "custom":
            yield Emitted(name=delta.name, data=delta.data, call_id=delta.call_id)
        case "missed":
            yield Missed(after=delta.after, through=delta.through)
        case "pending":  # the block before it has told
            pass


def _noted(block: Block) -> Iterator[Moment]:
    match block.body:
        case RangeSummary(messages_before=before, messages_after=after, usage=usage):
            yield Compacted(before=before, after=after, usage=usage)
        case ToolsSelected(usage=usage):
            yield Selected(usage=usage)
        case ModelSwitched(usage=usage):
            yield Switched(usage=usage)
        case Draft(reason=reason):
            yield Drafted(reason=reason)
        case CustomEvent(name=name, data=data, call_id=call_id):
            yield Emitted(name=name, data=data, call_id=call_id)
        case _:
            pass


def _kind(block: Block) -> InputKind:
    match block.body:
        case UserFollowup():
            return "followup"
        case UserSteer():
            return "steer"
        case _:
            return "prompt"


def _text(block: Block) -> str:
    match block.body:
        case UserPrompt(text=text) | UserFollowup(text=text) | UserSteer(text=text):
            return text
        case _:
            return ""


def _resolved(completion: Completion) -> str:
    """The answer as a listener hears it. A range ends at the last source there is, which is then cited."""
    used = completion.sources_used
    return citations.resolve(completion.text, citations.Marks(used), newest=max(used, default=0))
