"""The dialect of AG-UI 1.0: runs, messages, calls of tools, state, interrupts."""

from __future__ import annotations

from collections.abc import Iterator

from loopline.events.dialects.client_run import (
    ClientRun,
    FollowedRun,
    NamedChange,
    notice_of,
    plan_data,
)
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


class AgUiThread:
    """The messages of a thread, and its state: plans, the sources that answers cite, and files."""

    def __init__(self) -> None:
        self._messages: dict[str, JsonObject] = {}
        self._calls: dict[str, list[Json]] = {}
        self._plans = JsonObject()
        self._sources: dict[str, Json] = {}
        self._files: list[Json] = []

    @property
    def messages(self) -> list[Json]:
        """The messages as a snapshot has them."""
        return [
            {**message, "toolCalls": self._calls[key]} if key in self._calls else message
            for key, message in self._messages.items()
        ]

    @property
    def state(self) -> JsonObject:
        """The state as a snapshot has it."""
        sources, files = list(self._sources.values()), list(self._files)
        return {"plans": dict(self._plans), "sources": sources, "files": files}

    def is_known(self, client_ids: frozenset[str]) -> bool:
        """Return whether a client with these messages has all that the agent said."""
        return all(
            message_id in client_ids
            for message_id, message in self._messages.items()
            if message["role"] == "assistant"
        )

    def say(self, message_id: str, text: str) -> None:
        """Add a message of the user."""
        self._add(message_id, "user", {"content": text})

    def answer(self, message_id: str, text: str) -> None:
        """Add a message of the agent."""
        self._add(message_id, "assistant", {"content": text})

    def call(self, message_id: str, call_id: str, tool: str, arguments: str) -> None:
        """Add a call to the message of its decision."""
        if message_id not in self._calls:
            self._calls[message_id] = []
            self._add(message_id, "assistant", {})
        function: JsonObject = {"name": tool, "arguments": arguments}
        self._calls[message_id].append({"id": call_id, "type": "function", "function": function})

    def result(self, message_id: str, call_id: str, text: str, error: str) -> None:
        """Add the result of a call."""
        failure: JsonObject = {"error": error} if error else {}
        self._add(message_id, "tool", {"toolCallId": call_id, "content": text, **failure})

    def change(self, event: AnswerGiven | Plan | FileAdded) -> list[Json]:
        """Change the state, and return the operations of JSON Patch that do the same."""
        match event:
            case Plan() as plan:
                plan_id = plan.snapshot.plan_id
                self._plans[plan_id] = plan_data(plan)
                pointer = plan_id.replace("~", "~0").replace("/", "~1")
                return [_add(f"/plans/{pointer}", self._plans[plan_id])]
            case FileAdded(visibility="internal"):
                return []
            case FileAdded() as file:
                entry: JsonObject = {
                    "path": f"{file.area}/{file.path}",
                    "version": file.version,
                    "mime": file.mime,
                    "size": file.size,
                }
                self._files.append(entry)
                return [_add("/files/-", entry)]
            case AnswerGiven(sources=cited):
                sources = [item.source for item in cited if item.source is not None]
                fresh = [source for source in sources if source.url not in self._sources]
                rows: list[Json] = [{"url": item.url, "title": item.title} for item in fresh]
                self._sources |= {item.url: row for item, row in zip(fresh, rows, strict=True)}
                return [_add("/sources/-", row) for row in rows]

    def _add(self, message_id: str, role: str, data: JsonObject) -> None:
        self._messages[message_id] = {"id": message_id, "role": role, **data}


def _add(path: str, value: Json) -> Json:
    return {"op": "add", "path": path, "value": value}


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
