"""The run of a turn that one client follows, and the parts that AG-UI and the AI SDK have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from loopline import timeline
from loopline.events import turn_events as turns
from loopline.events.dialects.encoder import DialectEncoder, RecordDraft, compaction_data
from loopline.events.dialects.streamed_text import PartChange, StreamedParts
from loopline.models import Json, JsonObject

FileUrl = Callable[[str, timeline.FileAdded], str]
"""Returns the URL of an output file, from the id of its turn and its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRun:
    """The run of a turn that one client follows until the turn ends or pauses after the block with the seq `ends_after`.

    `run_id` is the client's id of the run, or "". `prompts` are the client's own messages that are the prompts of turns, by
    the number of the turn. `roles` are the roles of all messages that the client has, by their ids.
    `sign(call_id, digest)` returns the token that approves a call; without it the call's id approves it.
    `results` are the client's own messages with results of calls that it ran, by call id. `file_url(turn_id, file)` returns the URL of an output file; without it, files are sent without URL. The ids of messages
    begin with `branch`.
    """

    turn: int
    run_id: str = ""
    ends_after: int = 0
    prompts: Mapping[int, JsonObject] = field(default_factory=dict[int, JsonObject])
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    sign: Callable[[str, str], str] | None = None
    results: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    file_url: FileUrl | None = None
    branch: str = ""

    def has_ended(self, meta: turns.EventMeta, event: turns.TurnEvent) -> bool:
        """Return whether the event ends this run."""
        is_end = isinstance(event, turns.TurnFinished | turns.TurnPaused)
        return is_end and meta.turn == self.turn and (not meta.seq or meta.seq > self.ends_after)


class FollowedRun(ABC):
    """A vocabulary with runs and messages in parts; with `run`, it has drafts only for that run."""

    def __init__(self, run: ClientRun | None = None) -> None:
        self._run = run
        self._parts = MessageParts()
        self._is_running = False
        self.is_over: bool = False

    def drafts(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield the drafts for a turn event; with a run, only for events of its turn.

        A question of a call that keeps running ends the run that a client follows, because these protocols do not support
        open questions; the client's answer starts the next run. Without a run, the question is skipped.
        """
        if isinstance(event, turns.QuestionOpened):
            if self._find_run(meta):
                yield from self.drafts(meta, event.request)
                yield from self.drafts(meta, event.pause)
            return
        drafts = list(self._drafts(meta, event))
        if self._run is None or self._run.turn == meta.turn:
            yield from drafts
            self.is_over = self.is_over or (
                self._run is not None and self._run.has_ended(meta, event)
            )

    def _drafts(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield the drafts for an event of any turn; if no run is open, start one first.

        Deltas and waiting inputs do not start a run, and yield none then. A pause or the end of the turn ends the
        run.
        """
        if not self._is_running:
            if not meta.seq or isinstance(event, turns.InputAccepted):
                return  # a run starts with a block of its turn, not with a delta or a waiting input
            self._is_running = True
            yield from self._start(meta, event)
        for change in self._parts.changes(meta, event):
            yield self._part(change)
        yield from self._event_drafts(meta, event)
        if isinstance(event, turns.TurnPaused | turns.TurnFinished):
            self._is_running = False

    @abstractmethod
    def _start(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield the drafts for the start of a run; `event` is its first event."""

    @abstractmethod
    def _part(self, change: PartChange) -> RecordDraft:
        """Return the draft for a change of a text or of reasoning."""

    @abstractmethod
    def _event_drafts(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield the drafts for an event, without those of its parts."""

    def _request_id(self, event: turns.InputRequested) -> str:
        """Return the id that the client answers with: the token of an approval if the run has `sign`, else the call's id."""
        call_id = event.call.call_id
        if self._run is None or self._run.sign is None or event.kind != "approval":
            return call_id
        return self._run.sign(call_id, event.digest)

    def _client_result(self, call: turns.CallStarted) -> JsonObject | None:
        """Return the client's own message with the result of a call that it ran, None if it has none."""
        return self._run.results.get(call.call_id) if self._run and call.is_for_client else None

    def _find_run(self, meta: turns.EventMeta) -> ClientRun | None:
        """Return the run that the client follows if the event belongs to its turn."""
        return self._run if self._run is not None and self._run.turn == meta.turn else None


class RunDialect(DialectEncoder):
    """A dialect that may follow one run; the name of a record is in its data."""

    def __init__(self, vocabulary: FollowedRun) -> None:
        super().__init__(vocabulary, named=False)
        self._run_vocabulary = vocabulary

    @property
    def is_over(self) -> bool:
        """Whether the followed run has ended; False if the dialect follows all runs."""
        return self._run_vocabulary.is_over


def draft_with_type(kind: str, data: JsonObject, *, durable: bool = True) -> RecordDraft:
    """Create the draft of a record that has its name in the field `type` of its data."""
    return RecordDraft(kind, {"type": kind, **data}, durable)


class NoticeOfRun(Struct, frozen=True):
    """A value for an event that the protocols do not have, under one of our names; not durable if it is of a delta."""

    name: str
    value: Json
    durable: bool = True


def notice_of(event: turns.TurnEvent) -> NoticeOfRun | None:
    """Return the notice for an event that the protocols do not have, such as progress; None for all other events."""
    match event:
        case timeline.CustomEvent(name=name, data=data):
            return NoticeOfRun(name, data)
        case turns.ProgressReported(channel=channel, text=text, call_id=call_id, total=total):
            progress: JsonObject = {"channel": channel, "text": text}
            count: JsonObject = {"total": total, "callId": call_id}
            return NoticeOfRun("loopline.progress", {**progress, **count}, durable=False)
        case turns.InputRequested(kind="client", call=call, form=form):
            waiting: JsonObject = {"callId": call.call_id, "tool": call.tool}
            waiting |= {"arguments": call.arguments, "form": form}
            return NoticeOfRun("loopline.client_call", waiting)
        case turns.ChildStarted(call=call, conversation=conversation, agent=agent):
            child: JsonObject = {"callId": call.call_id, "conversation": conversation}
            return NoticeOfRun("loopline.child.started", {**child, "agent": agent})
        case turns.ChildFinished(call=call, child=run):
            ended: JsonObject = {"callId": call.call_id, "conversation": run.conversation}
            return NoticeOfRun("loopline.child.finished", {**ended, "exitReason": run.reason})
        case timeline.RangeSummary() as summary:
            return NoticeOfRun("loopline.compaction", compaction_data(summary))
        case timeline.ModelSwitched() | timeline.ToolsSelected() | timeline.Draft():
            return NoticeOfRun(f"loopline.{event.type.removeprefix('react.')}", None)
        case _:
            return None


def plan_data(plan: timeline.Plan) -> JsonObject:
    """Return the fields of a plan: its steps with their statuses, its own status, and whether it is current."""
    snapshot = plan.snapshot
    steps: list[Json] = [
        {"text": text, "status": snapshot.at(number)}
        for number, text in enumerate(snapshot.steps, start=1)
    ]
    return {"steps": steps, "status": snapshot.status, "current": snapshot.current}


def file_data(file: timeline.FileAdded) -> JsonObject:
    """Return the fields of a file: path, version, MIME type, and size in bytes."""
    return {
        "path": f"{file.area}/{file.path}",
        "version": file.version,
        "mime": file.mime,
        "size": file.size,
    }


class MessageParts:
    """The texts and the reasoning of a turn as parts. `has_void` is set once a text was sent that is not stored."""

    def __init__(self) -> None:
        self.texts: StreamedParts = StreamedParts("text")
        self.thoughts: StreamedParts = StreamedParts("reasoning")
        self.has_void: bool = False
        self._channels = {"answer": self.texts, "notes": self.texts, "thinking": self.thoughts}

    def changes(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[PartChange]:
        """Yield the changes that a turn event makes to the parts."""
        for change in self._changes(meta.turn_id, event):
            self.has_void = self.has_void or (change.is_void and not change.is_reasoning)
            yield change

    def _changes(self, turn_id: str, event: turns.TurnEvent) -> Iterator[PartChange]:
        """Yield the changes of an event; at a start, a round, a pause or an end, text that was not stored is void."""
        match event:
            case turns.TurnStarted():
                yield from self._abandon()
                self.texts.stored = self.thoughts.stored = 0
                self.has_void = False
            case turns.TextStreamed(channel=channel, text=text) if channel in self._channels:
                yield from self._channels[channel].feed(turn_id, text)
            case turns.TextReset(channel=channel) if channel in self._channels:
                self._channels[channel].reset()
            case turns.DecisionMade(thinking=thinking, notes=notes):
                if thinking:
                    yield from self.thoughts.settle(turn_id, thinking)
                if notes:
                    yield from self.texts.settle(turn_id, notes)
            case turns.AnswerGiven(text=text):
                yield from self.texts.settle(turn_id, text)
            case turns.RoundStarted() | turns.TurnPaused() | turns.TurnFinished():
                yield from self._abandon()
            case _:
                pass

    def _abandon(self) -> Iterator[PartChange]:
        yield from self.thoughts.abandon()
        yield from self.texts.abandon()
