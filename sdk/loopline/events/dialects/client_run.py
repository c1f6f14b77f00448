"""The run of a turn that one client follows, and what the protocols for user interfaces share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from loopline.events.dialects.encoder import (
    DialectEncoder,
    RecordDraft,
    Vocabulary,
    compaction_data,
)
from loopline.events.dialects.streamed_text import PartChange, StreamedPart
from loopline.events.turn_events import (
    AnswerGiven,
    ChildFinished,
    ChildStarted,
    DecisionMade,
    EventMeta,
    InputAccepted,
    InputRequested,
    ProgressReported,
    QuestionOpened,
    RoundStarted,
    TextReset,
    TextStreamed,
    TurnEvent,
    TurnFinished,
    TurnPaused,
    TurnStarted,
)
from loopline.models import Json, JsonObject
from loopline.timeline import (
    CustomEvent,
    Draft,
    FileAdded,
    ModelSwitched,
    Plan,
    RangeSummary,
    ToolsSelected,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRun:
    """The run of a turn that one client follows, until the turn ends or pauses behind the block `ends_after`.

    `run_id` and `message_id` are what the client calls the run and its own message, empty if it has no name for them.
    `message_ids` are the ids of the messages that the client has. `sign` returns the signed approval of a call, from its id and
    the digest of what is approved; without it calls are approved by their ids. `file_url` returns the URL of an output,
    from the id of its turn and its body; without it the client gets none.
    """

    turn: int
    run_id: str = ""
    message_id: str = ""
    ends_after: int = 0
    message_ids: frozenset[str] = frozenset()
    sign: Callable[[str, str], str] | None = None
    file_url: Callable[[str, FileAdded], str] | None = None

    def has_ended(self, meta: EventMeta, event: TurnEvent) -> bool:
        """Return whether the run ends with the event."""
        is_end = isinstance(event, TurnFinished | TurnPaused)
        return is_end and meta.turn == self.turn and (not meta.seq or meta.seq > self.ends_after)


class RunVocabulary(Vocabulary, Protocol):
    """A vocabulary that may follow one run."""

    @property
    def is_over(self) -> bool:
        """Return whether the run that is followed has ended."""
        ...


class RunDialect(DialectEncoder):
    """A dialect whose records name themselves in their data, and that may follow one run."""

    def __init__(self, vocabulary: RunVocabulary) -> None:
        super().__init__(vocabulary, named=False)
        self._run_vocabulary = vocabulary

    @property
    def is_over(self) -> bool:
        """Return whether the run that is followed has ended."""
        return self._run_vocabulary.is_over


class FollowedRun(ABC):
    """What vocabularies share that tell runs: when a run starts, its parts, and one run that may be followed."""

    def __init__(self, run: ClientRun | None = None) -> None:
        self._run = run
        self._parts = MessageParts()
        self._is_running = False
        self.is_over: bool = False

    def drafts(self, meta: EventMeta, event: TurnEvent) -> Iterator[RecordDraft]:
        """Yield the drafts for a turn event; with a run, of its turn alone.

        A run that one client follows ends with what a running call asks, as these protocols have it, and goes on when
        the client answers; whoever listens to all runs goes on like the turn.
        """
        if isinstance(event, QuestionOpened):
            if self._followed(meta):
                yield from self.drafts(meta, event.request)
                yield from self.drafts(meta, event.pause)
            return
        drafts = list(self._drafts(meta, event))
        if self._run is None or self._run.turn == meta.turn:
            yield from drafts
            self.is_over = self.is_over or (
                self._run is not None and self._run.has_ended(meta, event)
            )

    def _drafts(self, meta: EventMeta, event: TurnEvent) -> Iterator[RecordDraft]:
        if not self._is_running:
            if not meta.seq or isinstance(event, InputAccepted):
                return  # only a block of the turn itself starts or resumes it
            self._is_running = True
            yield from self._start(meta, event)
        for change in self._parts.changes(meta, event):
            yield self._part(change)
        yield from self._words(meta, event)
        if isinstance(event, TurnPaused | TurnFinished):
            self._is_running = False

    @abstractmethod
    def _start(self, meta: EventMeta, event: TurnEvent) -> Iterator[RecordDraft]:
        """Yield the start of a run, of which this is the first event."""

    @abstractmethod
    def _part(self, named: NamedChange) -> RecordDraft:
        """Return the record for the change of a text or of reasoning."""

    @abstractmethod
    def _words(self, meta: EventMeta, event: TurnEvent) -> Iterator[RecordDraft]:
        """Yield what else there is to say of an event."""

    def _request_id(self, event: InputRequested) -> str:
        """Return the name by which the client answers: of an approval what was signed, else the call's id."""
        call_id = event.call.call_id
        if self._run is None or self._run.sign is None or event.kind == "question":
            return call_id
        return self._run.sign(call_id, event.digest)

    def _followed(self, meta: EventMeta) -> ClientRun | None:
        """Return the run that is followed, if the event is of it."""
        return self._run if self._run is not None and self._run.turn == meta.turn else None


@dataclass(frozen=True, slots=True)
class NoticeOfRun:
    """Something that protocols have no event for, by a name of ours. One of a delta is not durable."""

    name: str
    value: Json
    durable: bool = True


def notice_of(event: TurnEvent) -> NoticeOfRun | None:
    """Return the notice for an event, if it is one that protocols have no event for."""
    match event:
        case CustomEvent(name=name, data=data):
            return NoticeOfRun(name, data)
        case ProgressReported(channel=channel, text=text, call_id=call_id, total=total):
            progress: JsonObject = {"channel": channel, "text": text}
            count: JsonObject = {"total": total, "callId": call_id}
            return NoticeOfRun("loopline.progress", {**progress, **count}, durable=False)
        case ChildStarted(call=call, conversation=conversation, agent=agent):
            child: JsonObject = {"callId": call.call_id, "conversation": conversation}
            return NoticeOfRun("loopline.child.started", {**child, "agent": agent})
        case ChildFinished(call=call, child=run):
            over: JsonObject = {"callId": call.call_id, "conversation": run.conversation}
            return NoticeOfRun("loopline.child.finished", {**over, "exitReason": run.reason})
        case RangeSummary() as summary:
            return NoticeOfRun("loopline.compaction", compaction_data(summary))
        case ModelSwitched() | ToolsSelected() | Draft():
            return NoticeOfRun(f"loopline.{event.type.removeprefix('react.')}", None)
        case _:
            return None


def plan_data(plan: Plan) -> JsonObject:
    """Return a plan as a client shows it."""
    shown = plan.snapshot
    steps: list[Json] = [
        {"text": text, "status": shown.at(number)}
        for number, text in enumerate(shown.steps, start=1)
    ]
    return {"steps": steps, "status": shown.status, "current": shown.current}


@dataclass(frozen=True, slots=True)
class NamedChange:
    """A change of a part, which is a text of the agent or its reasoning."""

    is_reasoning: bool
    change: PartChange


@dataclass(slots=True)
class MessageParts:
    """The texts and the reasoning of a turn as parts with ids, such as `turn_1.text.2`."""

    turn: int = 0
    texts: int = 0
    thoughts: int = 0
    has_void: bool = False
    _text: StreamedPart = field(default_factory=StreamedPart)
    _reasoning: StreamedPart = field(default_factory=StreamedPart)

    def changes(self, meta: EventMeta, event: TurnEvent) -> Iterator[NamedChange]:
        """Yield the changes of parts with a turn event."""
        match event:
            case TurnStarted():
                yield from self._abandon()
                self.turn, self.texts, self.thoughts, self.has_void = meta.turn, 0, 0, False
            case TextStreamed(channel="answer" | "notes", text=text):
                yield from self._name(self._text.feed(self.text_id(meta, 1), text))
            case TextStreamed(channel="thinking", text=text):
                part_id = self._reasoning_id(meta, 1)
                yield from self._name(self._reasoning.feed(part_id, text), is_reasoning=True)
            case TextReset(channel="answer" | "notes"):
                self._text.reset()
            case TextReset(channel="thinking"):
                self._reasoning.reset()
            case DecisionMade() | AnswerGiven():
                yield from self._store(meta, event)
            case RoundStarted() | TurnPaused() | TurnFinished():
                yield from self._abandon()
            case _:
                pass

    def text_id(self, meta: EventMeta, offset: int = 0) -> str:
        """Return the id of the newest text that is stored, or of the next one."""
        return f"{meta.turn_id}.text.{self.texts + offset}"

    def _reasoning_id(self, meta: EventMeta, offset: int = 0) -> str:
        return f"{meta.turn_id}.reasoning.{self.thoughts + offset}"

    def _store(self, meta: EventMeta, event: DecisionMade | AnswerGiven) -> Iterator[NamedChange]:
        match event:
            case DecisionMade(thinking=thinking, notes=notes):
                if thinking:
                    self.thoughts += 1
                    part = self._reasoning.settle(self._reasoning_id(meta), thinking)
                    yield from self._name(part, is_reasoning=True)
                if notes:
                    self.texts += 1
                    yield from self._name(self._text.settle(self.text_id(meta), notes))
            case AnswerGiven(text=text):
                self.texts += 1
                yield from self._name(self._text.settle(self.text_id(meta), text))

    def _abandon(self) -> Iterator[NamedChange]:
        yield from self._name(self._reasoning.abandon(), is_reasoning=True)
        yield from self._name(self._text.abandon())

    def _name(
        self, changes: Iterator[PartChange], *, is_reasoning: bool = False
    ) -> Iterator[NamedChange]:
        for change in changes:
            self.has_void = self.has_void or (change.is_void and not is_reasoning)
            yield NamedChange(is_reasoning, change)
