"""The words of Beakr: what each node of the graph puts into which channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from loopline.events.dialects.encoder import RecordDraft
from loopline.events.turn_events import (
    AnswerGiven,
    CallFinished,
    CallStarted,
    ChildFinished,
    ContextCompacted,
    CustomEmitted,
    DecisionMade,
    EventMeta,
    InputRequested,
    InputTaken,
    ModelChanged,
    SelectionFinished,
    TextReset,
    TextStreamed,
    TurnEvent,
    TurnFinished,
    TurnPaused,
    TurnStarted,
)
from loopline.models import Json, JsonObject, Usage

Node = Literal["prepare", "call_llm", "route_after", "execute_tools", "handoff", "finalize"]
Reducer = Literal["append", "replace", "add"]

_STOPS = {
    "stop": "natural stop",
    "tool_use": "tool use",
    "refusal": "refusal",
    "length": "token limit",
}


class Beakr:
    """Channels begin anew with each turn, whose id every update has."""

    def __init__(self) -> None:
        self._open: list[Json] = []
        self._shown = set[str]()

    def say(self, at: EventMeta, moment: TurnEvent) -> Iterator[RecordDraft]:
        """The words for a moment."""
        match moment:
            case TurnStarted() | InputTaken() | SelectionFinished() | ContextCompacted():
                yield from self._prepared(at, moment)
            case ModelChanged(usage=usage):
                yield from _Channels(at, "call_llm").spends(usage)
            case DecisionMade():
                yield from _decided(_Channels(at, "call_llm"), moment)
            case CallStarted() | CallFinished() | ChildFinished():
                yield from self._called(at, moment)
            case AnswerGiven(text=text):
                self._shown.clear()
                here = _Channels(at, "finalize")
                yield here.says("assistant", text)
                yield here.puts("llm_response", "replace", text)
            case TextStreamed() | TextReset():
                yield from self._written(moment)
            case CustomEmitted(name=name, data=data, call_id=call_id):
                custom: JsonObject = {"name": name, "data": data, "call_id": call_id}
                yield RecordDraft("custom", {**custom, "turn_id": at.turn_id})
            case InputRequested() | TurnPaused() | TurnFinished():
                yield _stopped(at, moment)
            case _:
                pass

    def _prepared(
        self, at: EventMeta, moment: TurnStarted | InputTaken | SelectionFinished | ContextCompacted
    ) -> Iterator[RecordDraft]:
        here = _Channels(at, "prepare")
        match moment:
            case TurnStarted(prompt=prompt):
                self._open = []
                self._shown.clear()
                yield here.says("user", prompt)
            case InputTaken(text=text):
                yield here.says("user", text)
            case SelectionFinished(usage=usage):
                yield from here.spends(usage)
            case ContextCompacted(before=before, after=after, usage=usage):
                yield from here.spends(usage)
                yield RecordDraft("notice", {"original_messages": before, "kept_messages": after})

    def _called(
        self, at: EventMeta, moment: CallStarted | CallFinished | ChildFinished
    ) -> Iterator[RecordDraft]:
        match moment:
            case CallStarted() as call:
                self._open = [*self._open, call.call_id]
                pending = _Channels(at, "route_after").puts("pending_tools", "replace", self._open)
                yield RecordDraft(pending.event, {**pending.data, "call": _call(call)})
            case CallFinished(call=call, text=text, open_calls=left, has_children=delegated):
                here = _Channels(at, "handoff" if delegated else "execute_tools")
                self._open = [*left]
                yield here.says("tool", text, {"name": call.tool, "call_id": call.call_id})
                yield here.puts("pending_tools", "replace", self._open)
            case ChildFinished(usage=usage):
                yield from _Channels(at, "handoff").spends(usage)

    def _written(self, moment: TextStreamed | TextReset) -> Iterator[RecordDraft]:
        match moment:
            case TextStreamed(channel=channel, text=text):
                self._shown.add(channel)
                yield RecordDraft("token", {"token": text, "channel": channel, "node": "call_llm"})
            case TextReset(channel=channel) if channel in self._shown:
                self._shown.remove(channel)
                yield RecordDraft("reset", {"channel": channel, "node": "call_llm"})
            case TextReset():
                pass


class _Channels:
    """The channels as a node of the graph writes to them."""

    def __init__(self, at: EventMeta, node: Node) -> None:
        self._at, self._node = at, node

    def puts(self, channel: str, reducer: Reducer, value: Json) -> RecordDraft:
        return RecordDraft(
            "channel",
            {
                "channel": channel,
                "reducer": reducer,
                "value": value,
                "node": self._node,
                "turn_id": self._at.turn_id,
            },
        )

    def says(self, role: str, content: str, more: JsonObject | None = None) -> RecordDraft:
        return self.puts("messages", "append", {"role": role, "content": content, **(more or {})})

    def spends(self, usage: Usage) -> Iterator[RecordDraft]:
        """What a request cost, unless there was none."""
        if usage.input_tokens or usage.output_tokens:
            yield self.puts("input_tokens", "add", usage.input_tokens)
            yield self.puts("output_tokens", "add", usage.output_tokens)


def _decided(here: _Channels, decided: DecisionMade) -> Iterator[RecordDraft]:
    yield here.puts("input_tokens", "add", decided.usage.input_tokens)
    yield here.puts("output_tokens", "add", decided.usage.output_tokens)
    if decided.purpose == "answer":
        return
    text = decided.raw or decided.notes
    if text or decided.calls:
        yield here.says("assistant", text, {"calls": decided.calls})
    yield here.puts("turn", "replace", decided.iteration)
    yield here.puts("stop_reason", "replace", _stop(decided.stop_reason))
    yield here.puts("llm_response", "replace", text)


def _stop(reason: str) -> str:
    return _STOPS.get(reason, reason)


def _call(call: CallStarted) -> JsonObject:
    return {"call_id": call.call_id, "tool": call.tool, "arguments": call.arguments}


def _stopped(at: EventMeta, moment: InputRequested | TurnPaused | TurnFinished) -> RecordDraft:
    match moment:
        case InputRequested(call=call, kind=kind, question=question):
            return RecordDraft("ask_user", {"kind": kind, "question": question, **_call(call)})
        case TurnPaused():
            return RecordDraft("end", _end(at, moment))
        case TurnFinished(error=error):
            return RecordDraft("end", {**_end(at, moment), "error": error})


def _end(at: EventMeta, moment: TurnPaused | TurnFinished) -> JsonObject:
    return {
        "stop_reason": _stop(moment.stop_reason),
        "exit_reason": moment.reason,
        "turn_id": at.turn_id,
    }
