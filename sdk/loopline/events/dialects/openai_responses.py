"""A turn as a response of OpenAI's Responses API: the events of its stream, and the complete object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from loopline.events.dialects.client_run import MessageParts
from loopline.events.dialects.encoder import Dialect, DialectEncoder, RecordDraft
from loopline.events.dialects.openai_chunks import ReplyHead, TurnOutcome, TurnOutcomeFold
from loopline.events.dialects.streamed_text import PartChange, create_stored_part
from loopline.events.turn_events import AnswerGiven, CallStarted, DecisionMade, EventMeta, TurnEvent
from loopline.models import Json, JsonObject, Usage, dumps
from loopline.timeline import turn_id

Phase = Literal["commentary", "final_answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponse:
    """A response. `previous` is the id of the response that the client named, or ""; `metadata` is the client's."""

    head: ReplyHead
    previous: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def id(self) -> str:
        """The id of the response, which names its conversation and its turn."""
        return f"resp_{self.head.conversation}-{turn_id(self.head.turn)}"

    def document(
        self, status: str, output: Iterable[Json] = (), outcome: TurnOutcome | None = None
    ) -> JsonObject:
        """Return the object of the response; with an `outcome`, its error, its limit, its usage and our own fields.

        The error is set only for the status "failed", and the limit only for "incomplete".
        """
        document: JsonObject = {
            "id": self.id,
            "object": "response",
            "created_at": self.head.created,
            "status": status,
            "model": self.head.model,
            "output": list(output),
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": dict[str, Json](self.metadata),
            "conversation": {"id": self.head.conversation},
            "previous_response_id": self.previous or None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "temperature": None,
            "top_p": None,
            "usage": None,
        }
        if outcome is None:
            return document
        if status == "failed":
            message = outcome.error or outcome.reason
            document["error"] = {"code": "server_error", "message": message}
        elif status == "incomplete":
            limit = "max_output_tokens" if outcome.finish_reason == "length" else "content_filter"
            document["incomplete_details"] = {"reason": limit}
        return {**document, "usage": _usage(outcome.usage), "loopline": outcome.details(self.head)}

    def call(self, call: CallStarted, arguments: str | None = None) -> JsonObject:
        """Return a call that the client runs, as an item of the output; with `arguments` it is in progress."""
        return {
            "id": f"fc_{turn_id(self.head.turn)}.{call.call_id}",
            "type": "function_call",
            "status": "completed" if arguments is None else "in_progress",
            "call_id": self.head.call_id(call),
            "name": call.tool,
            "arguments": dumps(call.arguments) if arguments is None else arguments,
        }

    def dialect(self) -> Dialect:
        """Create the dialect of the stream."""
        return DialectEncoder(ResponseEvents(self))

    def whole(self, outcome: TurnOutcome) -> JsonObject:
        """Create the complete object; its output has the reasoning, the answer or the questions, and the calls."""
        name = turn_id(self.head.turn)
        thoughts = [
            _Item(id=f"rs_{name}.reasoning.{number}", is_reasoning=True, text=text)
            for number, text in enumerate(outcome.thoughts, start=1)
        ]
        phase: Phase | None = None if outcome.reason == "paused" else "final_answer"
        output = [thought.document("completed") for thought in thoughts]
        if outcome.content or not outcome.calls:
            answer = _Item(id=f"msg_{name}.answer", text=outcome.content)
            output.append(answer.document("completed", phase))
        output += [self.call(call) for call in outcome.calls]
        return self.document(_status(outcome), output, outcome)


def _status(outcome: TurnOutcome) -> Literal["completed", "failed", "incomplete"]:
    if outcome.has_failed:
        return "failed"
    return "completed" if outcome.finish_reason in ("stop", "tool_calls") else "incomplete"


def _usage(usage: Usage) -> JsonObject:
    """Return the usage in the form of the Responses API, with cached and reasoning tokens."""
    cached: JsonObject = {"cached_tokens": usage.cache_read_tokens}
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {**cached, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


@dataclass(slots=True, kw_only=True)
class _Item:
    """An item of the output while it is sent: a message with one text, or reasoning with one summary."""

    id: str
    index: int = 0
    is_reasoning: bool = False
    text: str = ""

    def document(self, status: str, phase: Phase | None = None) -> JsonObject:
        """Return the item; an item in progress has no part yet."""
        parts: list[Json] = [] if status == "in_progress" else [self.part()]
        if self.is_reasoning:
            return {"id": self.id, "type": "reasoning", "status": status, "summary": parts}
        message: JsonObject = {"id": self.id, "type": "message", "role": "assistant"}
        named: JsonObject = {} if phase is None else {"phase": phase}
        return {**message, "status": status, "content": parts, **named}

    def part(self) -> JsonObject:
        """Return the part with the text written so far."""
        if self.is_reasoning:
            return {"type": "summary_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def event(self, kind: Literal["part", "text"], verb: str, **data: Json) -> JsonObject:
        """Return an event of the part, or of its text; `verb` is the end of its type, and `data` are more fields."""
        place: JsonObject = {"item_id": self.id, "output_index": self.index, **data}
        if self.is_reasoning:
            return {
                "type": f"response.reasoning_summary_{kind}.{verb}",
                **place,
                "summary_index": 0,
            }
        if kind == "part":
            return {"type": f"response.content_part.{verb}", **place, "content_index": 0}
        return {"type": f"response.output_text.{verb}", **place, "content_index": 0, "logprobs": []}


class ResponseEvents:
    """The vocabulary of a streamed response: the texts and the reasoning of one turn, each as an item of the output.

    Of the calls only those are sent that the client runs. A text that became void is an incomplete item, which the last response leaves out.
    """

    def __init__(self, response: ModelResponse) -> None:
        self._response = response
        self._outcomes = TurnOutcomeFold(response.head)
        self._parts = MessageParts()
        self._open: dict[str, _Item] = {}
        self._output: list[Json] = []
        self._items = self._events = 0

    def drafts(self, meta: EventMeta, event: TurnEvent) -> Iterator[RecordDraft]:
        """Yield the events of the response for a turn event; `created` and `in_progress` precede the first of them.

        Other turns, and events that the client has already, yield none.
        """
        if meta.turn != self._response.head.turn:
            return
        outcome = self._outcomes.take(meta, event)
        changes = [part for part in self._parts.changes(meta, event) if not part.streamed]
        if not self._response.head.is_new(meta):
            return
        if not self._events:
            for name in ("created", "in_progress"):
                yield self._lifecycle(name, self._response.document("in_progress"))
        phase: Phase | None = None
        match event:
            case DecisionMade():
                phase = "commentary"
            case AnswerGiven():
                phase = "final_answer"
            case _:
                pass
        for change in changes:
            yield from self._change(change, phase)
        if outcome is not None:
            yield from self._end(outcome, meta)

    def _change(self, change: PartChange, phase: Phase | None) -> Iterator[RecordDraft]:
        """Yield the records that start an item, extend it or end it.

        An item that ends is added to the output. A void item ends as incomplete and is not added.
        """
        match change.kind:
            case "start":
                prefix = "rs" if change.is_reasoning else "msg"
                item = self._open[change.part_id] = _Item(
                    id=f"{prefix}_{change.part_id}",
                    index=self._items,
                    is_reasoning=change.is_reasoning,
                )
                self._items += 1
                yield self._item_event("added", item, item.document("in_progress"))
                yield self._draft(item.event("part", "added", part=item.part()))
            case "delta":
                item = self._open[change.part_id]
                item.text += change.text
                yield self._draft(item.event("text", "delta", delta=change.text))
            case "end":
                item = self._open.pop(change.part_id)
                document = item.document("incomplete" if change.is_void else "completed", phase)
                yield self._draft(item.event("text", "done", text=item.text))
                yield self._draft(item.event("part", "done", part=item.part()))
                yield self._item_event("done", item, document)
                self._output += [] if change.is_void else [document]

    def _end(self, outcome: TurnOutcome, meta: EventMeta) -> Iterator[RecordDraft]:
        """Yield the questions as a message, the calls for the client, and the last event with the whole response."""
        if outcome.questions:
            for change in create_stored_part(f"{meta.turn_id}.question", outcome.content):
                yield from self._change(change, None)
        for call in outcome.calls:
            yield from self._call(call)
        status = _status(outcome)
        yield self._lifecycle(status, self._response.document(status, self._output, outcome))

    def _call(self, call: CallStarted) -> Iterator[RecordDraft]:
        """Yield the events of a call for the client, with its arguments in one delta, and add it to the output."""
        document = self._response.call(call)
        index, self._items = self._items, self._items + 1
        place: JsonObject = {"item_id": document["id"], "output_index": index}
        arguments = document["arguments"]
        started = self._response.call(call, "")
        yield self._draft(
            {"type": "response.output_item.added", "output_index": index, "item": started}
        )
        kind = "response.function_call_arguments"
        yield self._draft({"type": f"{kind}.delta", **place, "delta": arguments})
        yield self._draft(
            {"type": f"{kind}.done", **place, "name": call.tool, "arguments": arguments}
        )
        yield self._draft(
            {"type": "response.output_item.done", "output_index": index, "item": document}
        )
        self._output.append(document)

    def _lifecycle(self, name: str, response: JsonObject) -> RecordDraft:
        return self._draft({"type": f"response.{name}", "response": response})

    def _item_event(self, name: str, item: _Item, document: JsonObject) -> RecordDraft:
        place: JsonObject = {"output_index": item.index, "item": document}
        return self._draft({"type": f"response.output_item.{name}", **place})

    def _draft(self, data: JsonObject) -> RecordDraft:
        number = self._events
        self._events += 1
        return RecordDraft(str(data["type"]), {**data, "sequence_number": number}, durable=False)
