"""The dialect of FIM One: `step`, `answer`, `compact`, `phase`, `inject`, `done`."""

from __future__ import annotations

from collections.abc import Iterator

from loopline.events import turn_events as turns
from loopline.events.dialects.encoder import RecordDraft, compaction_data, custom_data
from loopline.models import Json, JsonObject
from loopline.timeline import CustomEvent, Decision, Draft, RangeSummary

UNREADABLE = "(could not parse LLM output as JSON)"
"""The reasoning of a reply that could not be parsed, and whose full text became the answer."""


class Fim:
    """The dialect of FIM One: steps while the model works, then the answer, then the end."""

    def __init__(self) -> None:
        self._is_announced = False
        self._is_started = False

    def drafts(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield the drafts for a turn event; none for other events. The step `answer` is sent once for each turn."""
        match event:
            case turns.TurnStarted():
                self._is_announced = self._is_started = False
            case turns.AnswerStarted():
                yield from self._announce()
                self._is_started = True
                yield RecordDraft("answer", {"status": "start"})
            case turns.AnswerGiven(text=text, flag=flag):
                yield from self._announce()
                self._is_started = False
                yield RecordDraft("answer", {"status": "done", "content": text, "flag": flag})
            case Draft(reason="synthesis"):
                yield from self._announce()
            case turns.TextStreamed() | turns.TextReset():
                yield from self._text(event)
            case turns.TurnPaused():
                yield RecordDraft("end", {})
            case turns.TurnFinished():
                yield _done(meta, event)
                yield RecordDraft("end", {})
            case (
                turns.RoundStarted()
                | turns.DecisionMade()
                | turns.CallStarted()
                | turns.CallFinished()
            ):
                yield from _step(event)
            case _:
                yield from _notice(event)

    def _announce(self) -> Iterator[RecordDraft]:
        """Yield the step that announces the answer, once for each turn."""
        if not self._is_announced:
            self._is_announced = True
            yield RecordDraft("step", {"type": "answer", "status": "start"})

    def _text(self, event: turns.TextStreamed | turns.TextReset) -> Iterator[RecordDraft]:
        """Yield the drafts for text and for a reset of the answer; start the answer at its first text."""
        match event:
            case turns.TextStreamed(channel="answer", text=text):
                if not self._is_started:
                    self._is_started = True
                    yield RecordDraft("answer", {"status": "start"})
                yield RecordDraft("answer", {"status": "delta", "content": text})
            case turns.TextStreamed(channel="thinking" | "notes", text=text):
                yield RecordDraft("step", {"type": "thinking", "status": "delta", "content": text})
            case turns.TextReset(channel="answer"):
                yield RecordDraft("answer", {"status": "start"})
            case _:
                pass


def _step(
    event: turns.RoundStarted | turns.DecisionMade | turns.CallStarted | turns.CallFinished,
) -> Iterator[RecordDraft]:
    """Yield the `step` for a round, a decision, a call or a result; a reply with the purpose "answer" yields none."""
    match event:
        case turns.RoundStarted(iteration=iteration, limit=limit):
            thinking: JsonObject = {"type": "thinking", "status": "start", "iteration": iteration}
            yield RecordDraft("step", {**thinking, "max_iterations": limit})
        case turns.DecisionMade(decision=Decision(purpose="decision"), iteration=iteration):
            reasoning = UNREADABLE if event.flag == "unparsed" else event.thought
            decided: JsonObject = {"type": "thinking", "status": "done", "iteration": iteration}
            yield RecordDraft("step", {**decided, "reasoning": reasoning})
        case turns.DecisionMade():
            pass
        case turns.CallStarted() as call:
            arguments: JsonObject = {"tool_args": call.arguments, "call_id": call.call_id}
            yield RecordDraft("step", {**_iteration(call, "start"), **arguments})
        case turns.CallFinished(call=call, result=result):
            data: JsonObject = {
                **_iteration(call, "done"),
                "observation": result.text,
                "error": None if result.status == "ok" else result.text,
                "iter_elapsed": round(result.elapsed_ms / 1000, 2),
                "tool_args": event.ran_with,
                "call_id": call.call_id,
            }
            if result.artifact:
                data["artifact"] = result.artifact
            yield RecordDraft("step", data)


def _iteration(call: turns.CallStarted, status: str) -> JsonObject:
    """Return the common fields of the steps in which a call starts and finishes."""
    return {
        "type": "iteration",
        "status": status,
        "iteration": call.iteration,
        "tool_name": call.tool,
    }


def _notice(event: turns.TurnEvent) -> Iterator[RecordDraft]:
    """Yield the draft for a request, tool selection, input, custom event or compaction; none for other events."""
    match event:
        case turns.InputRequested(call=call, kind=kind, question=question):
            yield RecordDraft(
                "awaiting_confirmation",
                {
                    "call_id": call.call_id,
                    "tool_name": call.tool,
                    "tool_args": call.arguments,
                    "kind": kind,
                    "question": question,
                },
            )
        case turns.ProgressReported(channel="tools", total=total) if total:
            yield RecordDraft("phase", {"phase": "selecting_tools", "total_tools": total})
        case turns.InputTaken(text=text, input_seq=seq):
            yield RecordDraft("inject", {"type": "inject", "content": text, "id": seq})
        case CustomEvent():
            yield RecordDraft("step", {"type": "custom", **custom_data(event)})
        case RangeSummary():
            yield RecordDraft("compact", compaction_data(event))
        case _:
            pass


def _done(meta: turns.EventMeta, event: turns.TurnFinished) -> RecordDraft:
    """Create `done`; for the exit reason "error", the answer is the error message and `iterations` is 0."""
    failed = event.reason == "error"
    usage = event.usage
    late_inputs: list[Json] = [*event.late_inputs]
    return RecordDraft(
        "done",
        {
            "answer": f"Agent error: {event.error}" if failed else event.answer,
            "iterations": 0 if failed else event.rounds,
            "usage": {
                "prompt_tokens": usage.input_tokens,
                "completion_tokens": usage.output_tokens,
                "total_tokens": usage.total_tokens,
            },
            "elapsed": round(event.elapsed_ms / 1000, 2),
            "exit_reason": event.reason,
            "turn_id": meta.turn_id,
            "pending_injections": late_inputs,
        },
    )
