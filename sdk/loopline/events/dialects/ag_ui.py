"""The dialect of AG-UI 1.0: runs, messages, calls of tools, state, interrupts."""

from __future__ import annotations

from collections.abc import Iterator

from loopline.events.dialects.ag_ui_thread import AgUiThread
from loopline.events.dialects.client_run import ClientRun, FollowedRun, NamedChange, notice_of
from loopline.events.dialects.encoder import RecordDraft
from loopline.events.dialects.streamed_text import stored_part
from loopline.events.turn_events import (
    UNANSWERED,
    AnswerGiven,
    AnswerStarted,
    CallFinished,
    CallStarted,
    DecisionMade,
    EventMeta,
    InputRequested,
    InputTaken,
    RoundStarted,
    TurnEvent,
    TurnFinished,
    TurnPaused,
    TurnStarted,
)
from loopline.models import Json, JsonObject, dumps
from loopline.timeline import (
    ConversationKey,
    FileAdded,
    Plan,
)

_ANSWER_SCHEMAS: dict[str, JsonObject] = {
    "approval": {"type": "boolean"},
    "question": {"type": "string"},
}
_KINDS = {"start": "START", "delta": "CONTENT", "end": "END"}
_REASONS = {"approval": "tool_call", "question": "input_required"}


class AgUi(FollowedRun):
    """The dialect of AG-UI. A turn is a run, and so is each time that it is resumed."""

    def __init__(self, conversation: ConversationKey, run: ClientRun | None = None) -> None:
        super().__init__(run)
        self._thread_id = conversation.name
        self._thread = AgUiThread()
        self._interrupts: dict[str, JsonObject] = {}
        self._step = ""

    def _start(self, meta: EventMeta, event: TurnEvent) -> Iterator[RecordDraft]:
        """Yield the start of the run, with what the client cannot know of the thread."""
        self._step = ""
        run = self._followed(meta)
        if isinstance(event, TurnStarted):
            message_id = run.message_id if run else ""
            self._thread.say(message_id or f"{meta.turn_id}.user", event.prompt)
        yield _draft("RUN_STARTED", {"threadId": self._thread_id, "runId": self._run_id(meta)})
        yield _draft("STATE_SNAPSHOT", {"snapshot": self._thread.state})
        if run is not None and not self._thread.is_known(run.message_ids):
            yield _draft("MESSAGES_SNAPSHOT", {"messages": self._thread.messages})
        elif run is None and isinstance(event, TurnStarted):
            yield from _user_text(f"{meta.turn_id}.user", event.prompt)

    def _run_id(self, meta: EventMeta) -> str:
        run = self._followed(meta)
        return run.run_id if run and run.run_id else meta.turn_id

    def _part(self, named: NamedChange) -> RecordDraft:
        return _text_draft(named)

    def _words(self, meta: EventMeta, event: TurnEvent) -> Iterator[RecordDraft]:
        match event:
            case RoundStarted(iteration=iteration):
                yield from self._next_step(f"round {iteration}")
            case AnswerStarted():
                yield from self._next_step("answer")
            case DecisionMade(notes=notes) if notes:
                self._thread.answer(self._parts.text_id(meta), notes)
            case AnswerGiven(text=text):
                self._thread.answer(self._parts.text_id(meta), text)
                yield from self._change_state(event)
            case CallStarted() | CallFinished() | InputRequested():
                yield from self._call(meta, event)
            case InputTaken(text=text, input_seq=seq):
                self._thread.say(f"{meta.turn_id}.user.{seq}", text)
                yield from _user_text(f"{meta.turn_id}.user.{seq}", text)
            case Plan() | FileAdded():
                yield from self._change_state(event)
            case TurnPaused() | TurnFinished():
                yield from self._end(meta, event)
            case _:
                notice = notice_of(event)
                if notice is not None:
                    custom: JsonObject = {"name": notice.name, "value": notice.value}
                    yield _draft("CUSTOM", custom, durable=notice.durable)

    def _next_step(self, name: str) -> Iterator[RecordDraft]:
        if self._step:
            yield _draft("STEP_FINISHED", {"stepName": self._step})
        self._step = name
        if name:
            yield _draft("STEP_STARTED", {"stepName": name})

    def _change_state(self, event: AnswerGiven | Plan | FileAdded) -> Iterator[RecordDraft]:
        if delta := self._thread.change(event):
            yield _draft("STATE_DELTA", {"delta": delta})

    def _call(
        self, meta: EventMeta, event: CallStarted | CallFinished | InputRequested
    ) -> Iterator[RecordDraft]:
        match event:
            case CallStarted(call_id=call_id, tool=tool, arguments=arguments):
                parent, text = f"{meta.turn_id}.calls.{event.iteration}", dumps(arguments)
                self._thread.call(parent, call_id, tool, text)
                started: JsonObject = {"toolCallId": call_id, "toolCallName": tool}
                yield _draft("TOOL_CALL_START", {**started, "parentMessageId": parent})
                yield _draft("TOOL_CALL_ARGS", {"toolCallId": call_id, "delta": text})
                yield _draft("TOOL_CALL_END", {"toolCallId": call_id})
            case CallFinished(call=call, result=result):
                self._interrupts.pop(call.call_id, None)
                result_id = f"{call.call_id}.result"
                error = "" if result.status == "ok" else result.text
                self._thread.result(result_id, call.call_id, result.text, error)
                answer: JsonObject = {"messageId": result_id, "toolCallId": call.call_id}
                yield _draft("TOOL_CALL_RESULT", {**answer, "content": result.text, "role": "tool"})
            case InputRequested(call=call, kind=kind, question=question, form=form):
                self._interrupts[call.call_id] = {
                    "id": self._request_id(event),
                    "reason": _REASONS[kind],
                    "message": question,
                    "toolCallId": call.call_id,
                    "responseSchema": _ANSWER_SCHEMAS[kind] if form is None else form,
                }

    def _end(self, meta: EventMeta, event: TurnPaused | TurnFinished) -> Iterator[RecordDraft]:
        yield from self._next_step("")
        if self._parts.has_void:
            snapshot: JsonObject = {"messages": self._thread.messages}
            yield _draft("MESSAGES_SNAPSHOT", snapshot, durable=False)
        if event.reason in UNANSWERED:
            error = event.error if isinstance(event, TurnFinished) else ""
            code: JsonObject = {"message": error or event.reason, "code": event.reason}
            yield _draft("RUN_ERROR", code)
            return
        finished: JsonObject = {"threadId": self._thread_id, "runId": self._run_id(meta)}
        match event:
            case TurnPaused(calls=calls):
                waiting = list[Json](self._interrupts[call] for call in calls)
                outcome: JsonObject = {"type": "interrupt", "interrupts": waiting}
                yield _draft("RUN_FINISHED", {**finished, "outcome": outcome})
            case TurnFinished():
                result: JsonObject = {"answer": event.answer, "exitReason": event.reason}
                success: JsonObject = {"result": result, "outcome": {"type": "success"}}
                yield _draft("RUN_FINISHED", {**finished, **success})


def _draft(kind: str, data: JsonObject, *, durable: bool = True) -> RecordDraft:
    return RecordDraft(kind, {"type": kind, **data}, durable)


def _text_draft(named: NamedChange) -> RecordDraft:
    """Return the event for the change of a text or of reasoning."""
    change = named.change
    kind = f"{'REASONING' if named.is_reasoning else 'TEXT'}_MESSAGE_{_KINDS[change.kind]}"
    data: JsonObject = {"type": kind, "messageId": change.part_id}
    match change.kind:
        case "start":
            data |= {"role": "reasoning" if named.is_reasoning else "assistant"}
        case "delta":
            data |= {"delta": change.text}
        case "end":
            pass
    return RecordDraft(kind, data, change.durable, change.streamed)


def _user_text(message_id: str, text: str) -> Iterator[RecordDraft]:
    for change in stored_part(message_id, text):
        draft = _text_draft(NamedChange(is_reasoning=False, change=change))
        if change.kind == "start":
            draft = RecordDraft(draft.event, {**draft.data, "role": "user"})
        yield draft
