"""The words of Nadoo: a node that begins, thinks, calls, and is finished."""

from __future__ import annotations

from collections.abc import Iterator

from loopline.events.dialects.encoder import Word
from loopline.events.turn_events import (
    AnswerBegan,
    Answered,
    Asked,
    At,
    Began,
    CallBegan,
    CallEnded,
    Compacted,
    Decided,
    Emitted,
    Ended,
    Moment,
    Paused,
    RoundBegan,
    Voided,
    Wrote,
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
        self._held: list[Word] | None = []

    def say(self, at: At, moment: Moment) -> Iterator[Word]:
        """The words for a moment."""
        match moment:
            case Began(bundle=bundle):
                self._node = bundle
                self._shown.clear()
                self._held = []
                yield Word("node_started", {"node_id": bundle, "turn_id": at.turn_id})
            case RoundBegan() | AnswerBegan():
                # Tokens of an answer follow the iteration they belong to; one asked for alone has none.
                self._held = [] if isinstance(moment, RoundBegan) else None
            case Decided(purpose="decision") | Compacted():
                yield self._prepared(moment)
                if isinstance(moment, Decided):
                    yield from self._released()
            case CallBegan() | CallEnded() | Asked():
                yield self._called(moment)
            case Wrote() | Voided() | Answered():
                yield from self._written(moment)
            case Emitted(name=name, data=data, call_id=call_id):
                custom: JsonObject = {"name": name, "data": data, "call_id": call_id}
                yield Word("custom", {"node_id": self._node, **custom})
            case Paused():
                yield Word("node_finished", self._finished(moment))
            case Ended(error=error):
                yield Word("node_finished", {**self._finished(moment), "error": error})
            case _:
                pass

    def _prepared(self, moment: Decided | Compacted) -> Word:
        match moment:
            case Decided(iteration=iteration, thought=thought, limit=limit):
                thinks: JsonObject = {"iteration": iteration, "thought": thought}
                return Word(
                    "agent_iteration", {**thinks, "node_id": self._node, "max_iterations": limit}
                )
            case Compacted(before=before, after=after):
                sizes: JsonObject = {"original_messages": before, "kept_messages": after}
                return Word("context_trimmed", {"node_id": self._node, **sizes})

    def _called(self, moment: CallBegan | CallEnded | Asked) -> Word:
        match moment:
            case CallBegan(arguments=arguments) as call:
                return Word("agent_tool_call", self._of(call, {"arguments": arguments}))
            case CallEnded(call=call, text=text, status=status, elapsed_ms=elapsed_ms):
                named = self._of(call, {"result": text})
                return Word(
                    "agent_tool_result", {**named, "status": status, "elapsed_ms": elapsed_ms}
                )
            case Asked(call=call, kind=kind, question=question):
                return Word("question_asked", self._of(call, {"question": question, "kind": kind}))

    def _of(self, call: CallBegan, said: JsonObject) -> JsonObject:
        place: JsonObject = {"iteration": call.iteration, "node_id": self._node}
        return {"tool_name": call.tool, **said, **place, "call_id": call.call_id}

    def _written(self, moment: Wrote | Voided | Answered) -> Iterator[Word]:
        match moment:
            case Wrote(channel=channel, text=text) if channel in _CHANNELS:
                token: JsonObject = {"token": text, "node_id": self._node}
                word = Word("llm_token", {**token, "channel": _CHANNELS[channel]}, lasts=False)
                if channel == "answer" and self._held is not None:
                    self._held.append(word)
                else:
                    self._shown.add(channel)
                    yield word
            case Voided(channel="answer") if self._held:
                self._held.clear()
            case Voided(channel=channel) if channel in self._shown:
                self._shown.remove(channel)
                yield Word("reset", {"node_id": self._node, "channel": _CHANNELS[channel]})
            case Answered(text=text, flag=flag, usage=usage):
                yield from self._released()
                self._shown.clear()
                tokens = usage.input_tokens + usage.output_tokens
                finished: JsonObject = {"node_id": self._node, "total_tokens": tokens}
                yield Word("llm_finished", {**finished, "text": text, "flag": flag})
            case _:
                pass

    def _released(self) -> Iterator[Word]:
        """The tokens that waited for their iteration."""
        held, self._held = self._held or [], None
        if held:
            self._shown.add("answer")
        yield from held

    def _finished(self, moment: Paused | Ended) -> JsonObject:
        """How it ended: an answer at a limit is one too."""
        return {
            "node_id": self._node,
            "status": _STATUSES.get(moment.reason, "success"),
            "iterations_used": moment.rounds,
            "exit_reason": moment.reason,
        }
