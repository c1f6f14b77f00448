"""The words of Nadoo: a node that begins, thinks, calls, and is finished."""

from __future__ import annotations

from collections.abc import Iterator

from loopline.events.dialects.encoder import RecordDraft
from loopline.events.turn_events import (
    AnswerGiven,
    AnswerStarted,
    CallFinished,
    CallStarted,
    ContextCompacted,
    CustomEmitted,
    DecisionMade,
    EventMeta,
    InputRequested,
    RoundStarted,
    TextReset,
    TextStreamed,
    TurnEvent,
    TurnFinished,
    TurnPaused,
    TurnStarted,
)
from loopline.models import JsonObject

_CHANNELS = {"answer": "answer", "thinking": "thought", "notes": "thought", "draft": "thought"}
_STATUSES = {
    "error": "failed",
    "refused": "failed",
    "stopped": "interrupted",
    "interrupted": "interrupted",
    "paused": "interrupted",
}


class Nadoo:
    """Everything is said of one node, whose id is that of the bundle."""

    def __init__(self) -> None:
        self._node = ""
        self._shown = set[str]()
        self._held: list[RecordDraft] | None = []

    def say(self, at: EventMeta, moment: TurnEvent) -> Iterator[RecordDraft]:
        """The words for a moment."""
        match moment:
            case TurnStarted(bundle=bundle):
                self._node = bundle
                self._shown.clear()
                self._held = []
                yield RecordDraft("node_started", {"node_id": bundle, "turn_id": at.turn_id})
            case RoundStarted() | AnswerStarted():
                # Tokens of an answer follow the iteration they belong to; one asked for alone has none.
                self._held = [] if isinstance(moment, RoundStarted) else None
            case DecisionMade(purpose="decision") | ContextCompacted():
                yield self._prepared(moment)
                if isinstance(moment, DecisionMade):
                    yield from self._released()
            case CallStarted() | CallFinished() | InputRequested():
                yield self._called(moment)
            case TextStreamed() | TextReset() | AnswerGiven():
                yield from self._written(moment)
            case CustomEmitted(name=name, data=data, call_id=call_id):
                custom: JsonObject = {"name": name, "data": data, "call_id": call_id}
                yield RecordDraft("custom", {"node_id": self._node, **custom})
            case TurnPaused():
                yield RecordDraft("node_finished", self._finished(moment))
            case TurnFinished(error=error):
                yield RecordDraft("node_finished", {**self._finished(moment), "error": error})
            case _:
                pass

    def _prepared(self, moment: DecisionMade | ContextCompacted) -> RecordDraft:
        match moment:
            case DecisionMade(iteration=iteration, thought=thought, limit=limit):
                thinks: JsonObject = {"iteration": iteration, "thought": thought}
                return RecordDraft(
                    "agent_iteration", {**thinks, "node_id": self._node, "max_iterations": limit}
                )
            case ContextCompacted(before=before, after=after):
                sizes: JsonObject = {"original_messages": before, "kept_messages": after}
                return RecordDraft("context_trimmed", {"node_id": self._node, **sizes})

    def _called(self, moment: CallStarted | CallFinished | InputRequested) -> RecordDraft:
        match moment:
            case CallStarted(arguments=arguments) as call:
                return RecordDraft("agent_tool_call", self._of(call, {"arguments": arguments}))
            case CallFinished(call=call, text=text, status=status, elapsed_ms=elapsed_ms):
                named = self._of(call, {"result": text})
                return RecordDraft(
                    "agent_tool_result", {**named, "status": status, "elapsed_ms": elapsed_ms}
                )
            case InputRequested(call=call, kind=kind, question=question):
                return RecordDraft(
                    "question_asked", self._of(call, {"question": question, "kind": kind})
                )

    def _of(self, call: CallStarted, said: JsonObject) -> JsonObject:
        place: JsonObject = {"iteration": call.iteration, "node_id": self._node}
        return {"tool_name": call.tool, **said, **place, "call_id": call.call_id}

    def _written(self, moment: TextStreamed | TextReset | AnswerGiven) -> Iterator[RecordDraft]:
        match moment:
            case TextStreamed(channel=channel, text=text) if channel in _CHANNELS:
                token: JsonObject = {"token": text, "node_id": self._node}
                word = RecordDraft(
                    "llm_token", {**token, "channel": _CHANNELS[channel]}, lasts=False
                )
                if channel == "answer" and self._held is not None:
                    self._held.append(word)
                else:
                    self._shown.add(channel)
                    yield word
            case TextReset(channel="answer") if self._held:
                self._held.clear()
            case TextReset(channel=channel) if channel in self._shown:
                self._shown.remove(channel)
                yield RecordDraft("reset", {"node_id": self._node, "channel": _CHANNELS[channel]})
            case AnswerGiven(text=text, flag=flag, usage=usage):
                yield from self._released()
                self._shown.clear()
                tokens = usage.input_tokens + usage.output_tokens
                finished: JsonObject = {"node_id": self._node, "total_tokens": tokens}
                yield RecordDraft("llm_finished", {**finished, "text": text, "flag": flag})
            case _:
                pass

    def _released(self) -> Iterator[RecordDraft]:
        """The tokens that waited for their iteration."""
        held, self._held = self._held or [], None
        if held:
            self._shown.add("answer")
        yield from held

    def _finished(self, moment: TurnPaused | TurnFinished) -> JsonObject:
        """How it ended: an answer at a limit is one too."""
        return {
            "node_id": self._node,
            "status": _STATUSES.get(moment.reason, "success"),
            "iterations_used": moment.rounds,
            "exit_reason": moment.reason,
        }
