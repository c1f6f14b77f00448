"""The words of Nadoo: a node that begins, thinks, calls, and is finished."""

from __future__ import annotations

from collections.abc import Iterator

from loopline.events.dialects.speaking import Word
from loopline.events.moments import (
    Answered,
    Asked,
    At,
    Began,
    CallBegan,
    CallEnded,
    Compacted,
    Decided,
    Ended,
    Moment,
    Paused,
    Voided,
    Wrote,
)
from loopline.models import JsonObject

_CHANNELS = {"answer": "answer", "thinking": "thought", "notes": "thought"}
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

    def say(self, at: At, moment: Moment) -> Iterator[Word]:
        """The words for a moment."""
        for event, data in self._said(at, moment):
            yield Word(event, {**data, "node_id": self._node})

    def _said(self, at: At, moment: Moment) -> Iterator[tuple[str, JsonObject]]:
        match moment:
            case Began(bundle=bundle):
                self._node = bundle
                self._shown.clear()
                yield "node_started", {"turn_id": at.turn_id}
            case Decided() | Answered() | Compacted():
                yield from _thought(moment)
            case CallBegan() | CallEnded() | Asked():
                yield from _call(moment)
            case Wrote(channel=channel, text=text) if channel in _CHANNELS:
                self._shown.add(channel)
                yield "llm_token", {"token": text, "channel": _CHANNELS[channel]}
            case Voided(channel=channel) if channel in self._shown:
                self._shown.remove(channel)
                yield "reset", {"channel": _CHANNELS[channel]}
            case Paused() | Ended():
                yield "node_finished", _finished(moment)
            case _:
                pass
        if isinstance(moment, Answered):
            self._shown.clear()


def _thought(moment: Decided | Answered | Compacted) -> Iterator[tuple[str, JsonObject]]:
    match moment:
        case Decided(purpose="decision", iteration=iteration, thought=thought, limit=limit):
            yield (
                "agent_iteration",
                {"iteration": iteration, "thought": thought, "max_iterations": limit},
            )
        case Decided():
            pass
        case Answered(text=text, flag=flag, usage=usage):
            tokens = usage.input_tokens + usage.output_tokens
            yield "llm_finished", {"total_tokens": tokens, "text": text, "flag": flag}
        case Compacted(before=before, after=after):
            yield "context_trimmed", {"original_messages": before, "kept_messages": after}


def _call(moment: CallBegan | CallEnded | Asked) -> Iterator[tuple[str, JsonObject]]:
    match moment:
        case CallBegan(arguments=arguments) as call:
            yield "agent_tool_call", {**_named(call), "arguments": arguments}
        case CallEnded(call=call, text=text, status=status, elapsed_ms=elapsed_ms):
            ended: JsonObject = {"result": text, "status": status, "elapsed_ms": elapsed_ms}
            yield "agent_tool_result", {**_named(call), **ended}
        case Asked(call=call, kind=kind, question=question):
            yield "question_asked", {**_named(call), "kind": kind, "question": question}


def _named(call: CallBegan) -> JsonObject:
    return {"tool_name": call.tool, "iteration": call.iteration, "call_id": call.call_id}


def _finished(moment: Paused | Ended) -> JsonObject:
    """How it ended: an answer at a limit is one too."""
    finished: JsonObject = {
        "status": _STATUSES.get(moment.reason, "success"),
        "iterations_used": moment.rounds,
        "exit_reason": moment.reason,
    }
    match moment:
        case Ended(error=error) if error:
            return {**finished, "error": error}
        case _:
            return finished
