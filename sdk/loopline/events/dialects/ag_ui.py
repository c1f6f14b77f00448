"""The dialect of AG-UI 1.0: runs, messages, calls of tools, state, interrupts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loopline.events import turn_events as turns
from loopline.events.dialects import client_run
from loopline.events.dialects.client_run import draft_with_type
from loopline.events.dialects.encoder import RecordDraft
from loopline.events.dialects.streamed_text import PartChange, create_stored_part
from loopline.models import Json, JsonObject, dumps
from loopline.timeline import ConversationKey, FileAdded, Plan


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
        """The messages in the form of a `MESSAGES_SNAPSHOT`."""
        return [
            {**message, "toolCalls": self._calls[key]} if key in self._calls else message
            for key, message in self._messages.items()
        ]

    @property
    def state(self) -> JsonObject:
        """The state in the form of a `STATE_SNAPSHOT`."""
        return {
            "plans": dict(self._plans),
            "sources": list(self._sources.values()),
            "files": list(self._files),
        }

    def is_known(self, client_roles: Mapping[str, str]) -> bool:
        """Return whether a client with messages of these roles, by their ids, has those of the thread, and no other replies."""
        own = {key for key, message in self._messages.items() if message["role"] != "reasoning"}
        replies = {key for key, role in client_roles.items() if role in ("assistant", "tool")}
        return own <= client_roles.keys() and replies <= own

    def add_client_message(self, message: JsonObject) -> None:
        """Add a message of the user, or the result of a call, in the client's form."""
        self._messages[str(message["id"])] = message

    def add_text(self, message_id: str, role: str, text: str) -> None:
        """Add a message with this text; its role is `user`, `assistant` or `reasoning`."""
        self._add(message_id, role, {"content": text})

    def add_call(self, message_id: str, call_id: str, tool: str, arguments: str) -> None:
        """Add a call to the message of its decision; `arguments` is JSON."""
        if message_id not in self._calls:
            self._calls[message_id] = []
            self._add(message_id, "assistant", {})
        function: JsonObject = {"name": tool, "arguments": arguments}
        self._calls[message_id].append({"id": call_id, "type": "function", "function": function})

    def add_result(self, message_id: str, call_id: str, text: str, error: str) -> None:
        """Add the result of a call; `error` is "" if the call succeeded."""
        failure: JsonObject = {"error": error} if error else {}
        self._add(message_id, "tool", {"toolCallId": call_id, "content": text, **failure})

    def change(self, event: turns.AnswerGiven | Plan | FileAdded) -> list[Json]:
        """Add a plan, a file or the cited sources to the state, and return this change as JSON Patch operations.

        A plan replaces the plan with the same id. Internal files, and sources with a known URL, are not added.
        """
        match event:
            case Plan() as plan:
                plan_id = plan.snapshot.plan_id
                self._plans[plan_id] = client_run.plan_data(plan)
                pointer = plan_id.replace("~", "~0").replace("/", "~1")
                return [_add_operation(f"/plans/{pointer}", self._plans[plan_id])]
            case FileAdded(visibility="internal"):
                return []
            case FileAdded() as file:
                entry = client_run.file_data(file)
                self._files.append(entry)
                return [_add_operation("/files/-", entry)]
            case turns.AnswerGiven(sources=cited):
                sources = [item.source for item in cited if item.source is not None]
                fresh = [source for source in sources if source.url not in self._sources]
                rows: list[Json] = [{"url": item.url, "title": item.title} for item in fresh]
                self._sources |= {item.url: row for item, row in zip(fresh, rows, strict=True)}
                return [_add_operation("/sources/-", row) for row in rows]

    def _add(self, message_id: str, role: str, data: JsonObject) -> None:
        self._messages[message_id] = {"id": message_id, "role": role, **data}


def _reasoning(message_id: str) -> Json:
    return {"id": message_id, "role": "reasoning", "content": ""}


def _add_operation(path: str, value: Json) -> Json:
    return {"op": "add", "path": path, "value": value}


_RULE_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "scope": {"enum": ["conversation", "user"]},
        "arguments": {"enum": ["any", "same"]},
        "seconds": {"type": "number", "exclusiveMinimum": 0},
    },
    "additionalProperties": False,
}
_ANSWER_SCHEMAS: dict[str, JsonObject] = {
    "approval": {
        "anyOf": [
            {"type": "boolean"},
            {
                "type": "object",
                "properties": {
                    "approved": {"type": "boolean"},
                    "reason": {"type": "string"},
                    "editedArgs": {"type": "object"},
                    "rule": _RULE_SCHEMA,
                },
                "required": ["approved"],
                "additionalProperties": False,
            },
        ]
    },
    "question": {"type": "string"},
}
_KINDS = {"start": "START", "delta": "CONTENT", "end": "END"}
_REASONS = {"approval": "tool_call", "question": "input_required"}


class AgUi(client_run.FollowedRun):
    """The dialect of AG-UI. A turn is a run, and so is each time that it is resumed."""

    def __init__(
        self, conversation: ConversationKey, run: client_run.ClientRun | None = None
    ) -> None:
        super().__init__(run)
        self._thread_id = conversation.name
        self._thread = AgUiThread()
        self._interrupts: dict[str, JsonObject] = {}
        self._client_calls: dict[str, turns.CallStarted] = {}
        self._step = ""
        self._has_error = False

    def _start(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield the start of the run with the state, and the messages if the client lacks some of them.

        If no client follows the run, the prompt of a new turn is sent. The prompt and the results that the client
        sent are added to the thread.
        """
        self._step = ""
        self._has_error = False
        run = self._find_run(meta)
        if isinstance(event, turns.TurnStarted):
            message = self._run.prompts.get(meta.turn) if self._run else None
            if message is None:
                self._thread.add_text(f"{meta.turn_id}.user", "user", event.prompt)
            else:  # the client sent it in its own form
                self._thread.add_client_message(message)
        yield draft_with_type(
            "RUN_STARTED", {"threadId": self._thread_id, "runId": self._run_id(meta)}
        )
        yield draft_with_type("STATE_SNAPSHOT", {"snapshot": self._thread.state})
        if run is not None:  # the client has the results that it sends for this run
            for result in filter(None, map(self._client_result, self._client_calls.values())):
                self._thread.add_client_message(result)
        if run is not None and not self._thread.is_known(run.roles):
            yield from self._replace_messages(meta, durable=True)
        elif run is None and isinstance(event, turns.TurnStarted):
            yield from _user_text(f"{meta.turn_id}.user", event.prompt)

    def _replace_messages(
        self, meta: turns.EventMeta, *, durable: bool = False
    ) -> Iterator[RecordDraft]:
        """Yield snapshots after which the client has the messages of the thread in their order.

        A client keeps the order of the messages that it has, so a first snapshot has it drop them. It drops reasoning only
        for a snapshot with reasoning; in a thread without any, that is the empty beginning of the turn's reasoning.
        """
        messages = self._thread.messages
        has_reasoning = any(
            isinstance(row, dict) and row["role"] == "reasoning" for row in messages
        )
        run = self._find_run(meta)
        if not has_reasoning and run is not None and "reasoning" in run.roles.values():
            has_reasoning = True
            messages.append(_reasoning(f"{meta.turn_id}.reasoning.1"))
        first: list[Json] = [_reasoning("dropped")] if has_reasoning else []
        for snapshot in (first, messages):
            yield draft_with_type("MESSAGES_SNAPSHOT", {"messages": snapshot}, durable=durable)

    def _run_id(self, meta: turns.EventMeta) -> str:
        run = self._find_run(meta)
        return run.run_id if run and run.run_id else meta.turn_id

    def _part(self, change: PartChange) -> RecordDraft:
        return _text_draft(change)

    def _event_drafts(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield the drafts for an event, without those of its parts, and update the thread and the step."""
        match event:
            case turns.RoundStarted(iteration=iteration):
                yield from self._next_step(f"round {iteration}")
            case turns.AnswerStarted():
                yield from self._next_step("answer")
            case turns.DecisionMade() | turns.AnswerGiven():
                yield from self._add_texts(meta, event)
            case turns.CallStarted() | turns.CallFinished() | turns.InputRequested():
                yield from self._call(meta, event)
            case turns.InputTaken(text=text, input_seq=seq):
                self._thread.add_text(f"{meta.turn_id}.user.{seq}", "user", text)
                yield from _user_text(f"{meta.turn_id}.user.{seq}", text)
            case Plan() | FileAdded():
                yield from self._change_state(event)
            case turns.TurnPaused() | turns.TurnFinished():
                yield from self._end(meta, event)
            case _:
                yield from self._notice(event)

    def _notice(self, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        notice = client_run.notice_of(event)
        if notice is not None:
            custom: JsonObject = {"name": notice.name, "value": notice.value}
            yield draft_with_type("CUSTOM", custom, durable=notice.durable)

    def _add_texts(
        self, meta: turns.EventMeta, event: turns.DecisionMade | turns.AnswerGiven
    ) -> Iterator[RecordDraft]:
        """Add stored texts to the thread; for an answer also yield the `STATE_DELTA` with its new sources."""
        text_id = self._parts.texts.newest_id(meta.turn_id)
        match event:
            case turns.DecisionMade(notes=notes, thinking=thinking):
                if thinking:
                    self._thread.add_text(
                        self._parts.thoughts.newest_id(meta.turn_id), "reasoning", thinking
                    )
                if notes:
                    self._thread.add_text(text_id, "assistant", notes)
            case turns.AnswerGiven(text=text):
                self._thread.add_text(text_id, "assistant", text)
                yield from self._change_state(event)

    def _next_step(self, name: str) -> Iterator[RecordDraft]:
        if self._step:
            yield draft_with_type("STEP_FINISHED", {"stepName": self._step})
        self._step = name
        if name:
            yield draft_with_type("STEP_STARTED", {"stepName": name})

    def _change_state(self, event: turns.AnswerGiven | Plan | FileAdded) -> Iterator[RecordDraft]:
        if delta := self._thread.change(event):
            yield draft_with_type("STATE_DELTA", {"delta": delta})

    def _call(
        self,
        meta: turns.EventMeta,
        event: turns.CallStarted | turns.CallFinished | turns.InputRequested,
    ) -> Iterator[RecordDraft]:
        """Update the thread and the open interrupts, and yield the drafts for a call.

        A request to the user, and a result that the client sent in its own message, yield no draft. A call that the
        client must run yields a `CUSTOM` notice.
        """
        match event:
            case turns.CallStarted(call_id=call_id, tool=tool, arguments=arguments):
                parent = f"{meta.turn_id}.calls.{event.iteration}"
                text = dumps(arguments)
                if event.is_for_client:
                    self._client_calls[call_id] = event
                self._thread.add_call(parent, call_id, tool, text)
                started: JsonObject = {"toolCallId": call_id, "toolCallName": tool}
                yield draft_with_type("TOOL_CALL_START", {**started, "parentMessageId": parent})
                yield draft_with_type("TOOL_CALL_ARGS", {"toolCallId": call_id, "delta": text})
                yield draft_with_type("TOOL_CALL_END", {"toolCallId": call_id})
            case turns.CallFinished(call=call) if message := self._client_result(call):
                self._client_calls.pop(call.call_id, None)
                self._thread.add_client_message(message)
            case turns.CallFinished(call=call, result=result):
                self._client_calls.pop(call.call_id, None)
                self._interrupts.pop(call.call_id, None)
                result_id = f"{call.call_id}.result"
                error = "" if result.status == "ok" else result.text
                self._thread.add_result(result_id, call.call_id, result.text, error)
                answer: JsonObject = {"messageId": result_id, "toolCallId": call.call_id}
                answer |= {"content": result.text, "role": "tool"}
                if error:
                    self._has_error = True
                    answer |= {"metadata": {"error": error}}
                yield draft_with_type("TOOL_CALL_RESULT", answer)
            case turns.InputRequested(kind="client"):  # no interrupt: the client sends a message
                self._interrupts.pop(event.call.call_id, None)
                yield from self._notice(event)
            case turns.InputRequested(call=call, kind=kind, question=question, form=form):
                self._interrupts[call.call_id] = {
                    "id": self._request_id(event),
                    "reason": _REASONS[kind],
                    "message": question,
                    "toolCallId": call.call_id,
                    "responseSchema": _ANSWER_SCHEMAS[kind] if form is None else form,
                }

    def _end(
        self, meta: turns.EventMeta, event: turns.TurnPaused | turns.TurnFinished
    ) -> Iterator[RecordDraft]:
        """Yield the end of the step and the run: `RUN_ERROR` for a reason in `UNANSWERED`, otherwise `RUN_FINISHED`.

        Snapshots of the messages precede it if a streamed text is void, or if a call failed in a followed run. For a
        pause, `RUN_FINISHED` has the interrupts of the waiting calls.
        """
        yield from self._next_step("")
        if self._parts.has_void:
            yield from self._replace_messages(meta)
        elif self._has_error and self._find_run(meta):  # the event of a result has no field for it
            snapshot: JsonObject = {"messages": self._thread.messages}
            yield draft_with_type("MESSAGES_SNAPSHOT", snapshot)
        if event.reason in turns.UNANSWERED:
            error = event.error if isinstance(event, turns.TurnFinished) else ""
            code: JsonObject = {"message": error or event.reason, "code": event.reason}
            yield draft_with_type("RUN_ERROR", code)
            return
        finished: JsonObject = {"threadId": self._thread_id, "runId": self._run_id(meta)}
        match event:
            case turns.TurnPaused(calls=calls):
                # A client that has to run calls starts the next run with messages that have their results.
                waiting = list[Json](
                    self._interrupts[call] for call in calls if call in self._interrupts
                )
                outcome: JsonObject = {"type": "success"}
                if waiting:
                    outcome = {"type": "interrupt", "interrupts": waiting}
                yield draft_with_type("RUN_FINISHED", {**finished, "outcome": outcome})
            case turns.TurnFinished():
                result: JsonObject = {"answer": event.answer, "exitReason": event.reason}
                if event.truncated:
                    result["truncated"] = True
                success: JsonObject = {"result": result, "outcome": {"type": "success"}}
                yield draft_with_type("RUN_FINISHED", {**finished, **success})


def _text_draft(change: PartChange) -> RecordDraft:
    """Create the AG-UI draft for a change of a text or reasoning, with the change's `durable` and `streamed`."""
    kind = f"{'REASONING' if change.is_reasoning else 'TEXT'}_MESSAGE_{_KINDS[change.kind]}"
    data: JsonObject = {"type": kind, "messageId": change.part_id}
    match change.kind:
        case "start":
            data |= {"role": "reasoning" if change.is_reasoning else "assistant"}
        case "delta":
            data |= {"delta": change.text}
        case "end":
            pass
    return RecordDraft(kind, data, change.durable, change.streamed)


def _user_text(message_id: str, text: str) -> Iterator[RecordDraft]:
    for change in create_stored_part(message_id, text):
        draft = _text_draft(change)
        if change.kind == "start":
            draft = RecordDraft(draft.event, {**draft.data, "role": "user"})
        yield draft
