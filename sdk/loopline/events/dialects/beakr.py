"""The dialect of Beakr: the updates that each node of its graph writes to the channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from loopline.events import turn_events as turns
from loopline.events.dialects.encoder import RecordDraft, compaction_data, custom_data
from loopline.models import Json, JsonObject, Usage
from loopline.timeline import CustomEvent, ModelSwitched, RangeSummary, ToolsSelected

GraphNode = Literal["prepare", "call_llm", "route_after", "execute_tools", "handoff", "finalize"]
Reducer = Literal["append", "replace", "add"]

_STOP_REASONS = {
    "stop": "natural stop",
    "tool_use": "tool use",
    "refusal": "refusal",
    "length": "token limit",
}


class Beakr:
    """The dialect of Beakr. Channels are empty when a turn starts; every update has the turn's id."""

    def __init__(self) -> None:
        self._open_calls: list[Json] = []

    def drafts(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield channel updates, tokens, resets, requests and the end for a turn event; none for other events."""
        match event:
            case turns.TurnStarted() | turns.InputTaken() | ToolsSelected() | RangeSummary():
                yield from self._prepare(meta, event)
            case ModelSwitched(usage=usage):
                yield from _Channels(meta, "call_llm").spend(usage)
            case turns.DecisionMade():
                yield from _decision(_Channels(meta, "call_llm"), event)
            case turns.CallStarted() | turns.CallFinished() | turns.ChildFinished():
                yield from self._call(meta, event)
            case turns.AnswerGiven(text=text):
                channels = _Channels(meta, "finalize")
                yield channels.message("assistant", text)
                yield channels.put("llm_response", "replace", text)
            case turns.TextStreamed(channel=channel, text=text):
                token: JsonObject = {"token": text, "channel": channel, "node": "call_llm"}
                yield RecordDraft("token", token)
            case turns.TextReset(channel=channel):
                yield RecordDraft("reset", {"channel": channel, "node": "call_llm"})
            case CustomEvent():
                yield RecordDraft("custom", {**custom_data(event), "turn_id": meta.turn_id})
            case turns.InputRequested() | turns.TurnPaused() | turns.TurnFinished():
                yield _stop(meta, event)
            case _:
                pass

    def _prepare(
        self,
        meta: turns.EventMeta,
        event: turns.TurnStarted | turns.InputTaken | ToolsSelected | RangeSummary,
    ) -> Iterator[RecordDraft]:
        """Yield user messages, token counts and the `notice` of a compaction; a new turn clears the open calls."""
        channels = _Channels(meta, "prepare")
        match event:
            case turns.TurnStarted(prompt=prompt):
                self._open_calls = []
                yield channels.message("user", prompt)
            case turns.InputTaken(text=text):
                yield channels.message("user", text)
            case ToolsSelected(usage=usage):
                yield from channels.spend(usage)
            case RangeSummary(usage=usage):
                yield from channels.spend(usage)
                yield RecordDraft("notice", compaction_data(event))

    def _call(
        self,
        meta: turns.EventMeta,
        event: turns.CallStarted | turns.CallFinished | turns.ChildFinished,
    ) -> Iterator[RecordDraft]:
        """Yield the updates for a call or the end of a child run, and update the list of open calls."""
        match event:
            case turns.CallStarted() as call:
                self._open_calls = [*self._open_calls, call.call_id]
                channels = _Channels(meta, "route_after")
                pending = channels.put("pending_tools", "replace", self._open_calls)
                yield RecordDraft(pending.event, {**pending.data, "call": _call_data(call)})
            case turns.CallFinished(call=call, result=result, open_calls=open_calls):
                channels = _Channels(meta, "handoff" if event.has_children else "execute_tools")
                self._open_calls = [*open_calls]
                names: JsonObject = {"name": call.tool, "call_id": call.call_id}
                yield channels.message("tool", result.text, names)
                yield channels.put("pending_tools", "replace", self._open_calls)
            case turns.ChildFinished(child=child):
                yield from _Channels(meta, "handoff").spend(child.usage)


class _Channels:
    """The channels of one turn, to which one node of the graph writes."""

    def __init__(self, meta: turns.EventMeta, node: GraphNode) -> None:
        self._meta = meta
        self._node = node

    def put(self, channel: str, reducer: Reducer, value: Json) -> RecordDraft:
        """Create the draft of an update of a channel; `reducer` is the way in which `value` changes the channel."""
        return RecordDraft(
            "channel",
            {
                "channel": channel,
                "reducer": reducer,
                "value": value,
                "node": self._node,
                "turn_id": self._meta.turn_id,
            },
        )

    def message(self, role: str, content: str, fields: JsonObject | None = None) -> RecordDraft:
        value: JsonObject = {"role": role, "content": content, **(fields or {})}
        return self.put("messages", "append", value)

    def spend(self, usage: Usage) -> Iterator[RecordDraft]:
        """Yield the token counts of a request if it used tokens."""
        if usage.input_tokens or usage.output_tokens:
            yield from self.add(usage)

    def add(self, usage: Usage) -> Iterator[RecordDraft]:
        yield self.put("input_tokens", "add", usage.input_tokens)
        yield self.put("output_tokens", "add", usage.output_tokens)


def _decision(channels: _Channels, event: turns.DecisionMade) -> Iterator[RecordDraft]:
    """Yield the token counts of a reply; for a decision also its message, if any, round, stop reason and text."""
    decision = event.decision
    yield from channels.add(decision.usage)
    if decision.purpose == "answer":
        return
    text = decision.raw or event.notes
    if text or decision.calls:
        yield channels.message("assistant", text, {"calls": decision.calls})
    yield channels.put("turn", "replace", event.iteration)
    stop_reason = _STOP_REASONS.get(decision.stop_reason, decision.stop_reason)
    yield channels.put("stop_reason", "replace", stop_reason)
    yield channels.put("llm_response", "replace", text)


def _call_data(call: turns.CallStarted) -> JsonObject:
    return {"call_id": call.call_id, "tool": call.tool, "arguments": call.arguments}


def _stop(
    meta: turns.EventMeta, event: turns.InputRequested | turns.TurnPaused | turns.TurnFinished
) -> RecordDraft:
    """Create `ask_user` for a request to the user, or `end`, which has an `error` only if the turn finished."""
    if isinstance(event, turns.InputRequested):
        request: JsonObject = {"kind": event.kind, "question": event.question}
        return RecordDraft("ask_user", {**request, **_call_data(event.call)})
    end: JsonObject = {
        "stop_reason": _STOP_REASONS.get(event.stop_reason, event.stop_reason),
        "exit_reason": event.reason,
        "turn_id": meta.turn_id,
    }
    if isinstance(event, turns.TurnFinished):
        end["error"] = event.error
    return RecordDraft("end", end)
