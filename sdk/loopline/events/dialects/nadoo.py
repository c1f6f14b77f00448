"""The dialect of Nadoo: a node that starts, thinks, calls, and finishes."""

from __future__ import annotations

from collections.abc import Iterator

from loopline.events import turn_events as turns
from loopline.events.dialects.encoder import RecordDraft, compaction_data, custom_data
from loopline.models import JsonObject
from loopline.timeline import CustomEvent, Decision, RangeSummary

_CHANNELS = {"answer": "answer", "thinking": "thought", "notes": "thought", "draft": "thought"}
_STATUSES = {
    "error": "failed",
    "refused": "failed",
    "stopped": "interrupted",
    "interrupted": "interrupted",
    "paused": "interrupted",
}


class Nadoo:
    """The dialect of Nadoo. Every record belongs to one node, which has the id of the bundle."""

    def __init__(self) -> None:
        self._node = ""
        self._held_tokens: list[RecordDraft] | None = []

    def drafts(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield the drafts for a turn event; none for other events.

        In a round, tokens of an answer are held back until the record of the round.
        """
        match event:
            case turns.TurnStarted(bundle=bundle):
                self._node = bundle
                self._held_tokens = []
                yield RecordDraft("node_started", {"node_id": bundle, "turn_id": meta.turn_id})
            case turns.RoundStarted() | turns.AnswerStarted():
                # Tokens of an answer come after the record of their iteration. A request for an answer alone
                # has no iteration, so its tokens are sent at once.
                self._held_tokens = [] if isinstance(event, turns.RoundStarted) else None
            case turns.DecisionMade(decision=Decision(purpose="decision")):
                made: JsonObject = {"iteration": event.iteration, "thought": event.thought}
                made |= {"node_id": self._node, "max_iterations": event.limit}
                yield RecordDraft("agent_iteration", made)
                yield from self._release_tokens()
            case RangeSummary():
                data: JsonObject = {"node_id": self._node, **compaction_data(event)}
                yield RecordDraft("context_trimmed", data)
            case turns.CallStarted() | turns.CallFinished() | turns.InputRequested():
                yield self._call(event)
            case turns.TextStreamed() | turns.TextReset() | turns.AnswerGiven():
                yield from self._text(event)
            case CustomEvent():
                yield RecordDraft("custom", {"node_id": self._node, **custom_data(event)})
            case turns.TurnPaused() | turns.TurnFinished():
                yield self._finish(event)
            case _:
                pass

    def _call(
        self, event: turns.CallStarted | turns.CallFinished | turns.InputRequested
    ) -> RecordDraft:
        """Create the draft for a call, its result, or its request to the user."""
        match event:
            case turns.CallStarted(arguments=arguments) as call:
                return RecordDraft(
                    "agent_tool_call", self._call_data(call, {"arguments": arguments})
                )
            case turns.CallFinished(call=call, result=result):
                data = self._call_data(call, {"result": result.text})
                return RecordDraft(
                    "agent_tool_result",
                    {**data, "status": result.status, "elapsed_ms": result.elapsed_ms},
                )
            case turns.InputRequested(call=call, kind=kind, question=question):
                data = self._call_data(call, {"question": question, "kind": kind})
                return RecordDraft("question_asked", data)

    def _call_data(self, call: turns.CallStarted, fields: JsonObject) -> JsonObject:
        """Return the data of a call: its tool, the given fields, its round, the node and its id."""
        return {
            "tool_name": call.tool,
            **fields,
            "iteration": call.iteration,
            "node_id": self._node,
            "call_id": call.call_id,
        }

    def _text(
        self, event: turns.TextStreamed | turns.TextReset | turns.AnswerGiven
    ) -> Iterator[RecordDraft]:
        """Yield tokens, a reset, or an answer after its held tokens; a reset of held tokens only discards them."""
        match event:
            case turns.TextStreamed(channel=channel, text=text):
                yield from self._token(channel, text)
            case turns.TextReset(channel=channel):
                if channel == "answer" and self._held_tokens:
                    self._held_tokens.clear()
                elif channel in _CHANNELS:
                    data: JsonObject = {"node_id": self._node, "channel": _CHANNELS[channel]}
                    yield RecordDraft("reset", data)
            case turns.AnswerGiven(text=text, flag=flag, usage=usage):
                yield from self._release_tokens()
                finished: JsonObject = {"node_id": self._node, "total_tokens": usage.total_tokens}
                yield RecordDraft("llm_finished", {**finished, "text": text, "flag": flag})

    def _token(self, channel: str, text: str) -> Iterator[RecordDraft]:
        """Yield a token; hold those of an answer until their round's decision. Unknown channels yield none."""
        if channel not in _CHANNELS:
            return
        token: JsonObject = {"token": text, "node_id": self._node, "channel": _CHANNELS[channel]}
        draft = RecordDraft("llm_token", token, durable=False)
        if channel == "answer" and self._held_tokens is not None:
            self._held_tokens.append(draft)
        else:
            yield draft

    def _release_tokens(self) -> Iterator[RecordDraft]:
        """Yield the tokens that waited for the record of their iteration."""
        yield from self._held_tokens or []
        self._held_tokens = None

    def _finish(self, event: turns.TurnPaused | turns.TurnFinished) -> RecordDraft:
        """Return the end of the node with its status; a turn that answered at a limit counts as a success."""
        data: JsonObject = {
            "node_id": self._node,
            "status": _STATUSES.get(event.reason, "success"),
            "iterations_used": event.rounds,
            "exit_reason": event.reason,
        }
        if isinstance(event, turns.TurnFinished):
            data["error"] = event.error
        return RecordDraft("node_finished", data)
