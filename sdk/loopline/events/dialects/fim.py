"""The words of FIM One: `step`, `answer`, `compact`, `phase`, `inject`, `done`."""

from __future__ import annotations

from collections.abc import Iterator

from loopline.events.dialects.encoder import RecordDraft
from loopline.events.turn_events import (
    AnswerGiven,
    AnswerHeldBack,
    AnswerStarted,
    CallFinished,
    CallStarted,
    ContextCompacted,
    CustomEmitted,
    DecisionMade,
    EventMeta,
    InputRequested,
    InputTaken,
    RoundStarted,
    SelectionStarted,
    TextReset,
    TextStreamed,
    TurnEvent,
    TurnFinished,
    TurnPaused,
    TurnStarted,
)
from loopline.models import Json, JsonObject, Usage

UNREADABLE = "(could not parse LLM output as JSON)"
"""The reasoning of a reply that could not be read and was taken as the answer as it stands."""


class Fim:
    """Steps while the model works, then the answer, then the end."""

    def __init__(self) -> None:
        self._signalled = False
        self._streaming = False
        self._shown = False

    def say(self, at: EventMeta, moment: TurnEvent) -> Iterator[RecordDraft]:
        """The words for a moment."""
        match moment:
            case TurnStarted():
                self._signalled = self._streaming = self._shown = False
            case RoundStarted() | DecisionMade():
                yield from _thinking(moment)
            case CallStarted() | CallFinished() | InputRequested():
                yield from _call(moment)
            case AnswerStarted() | AnswerGiven():
                yield from self._answer(moment)
            case AnswerHeldBack(reason="synthesis"):
                yield from self._signal()
            case TextStreamed() | TextReset():
                yield from self._written(moment)
            case TurnPaused():
                yield RecordDraft("end", {})
            case TurnFinished():
                yield from _done(at, moment)
            case _:
                yield from _beside(moment)

    def _signal(self) -> Iterator[RecordDraft]:
        """The answer is coming: said once a turn."""
        if not self._signalled:
            self._signalled = True
            yield RecordDraft("step", {"type": "answer", "status": "start"})

    def _answer(self, moment: AnswerStarted | AnswerGiven) -> Iterator[RecordDraft]:
        yield from self._signal()
        match moment:
            case AnswerStarted():
                self._streaming, self._shown = True, False
                yield RecordDraft("answer", {"status": "start"})
            case AnswerGiven(text=text, flag=flag):
                self._streaming = self._shown = False
                yield RecordDraft("answer", {"status": "done", "content": text, "flag": flag})

    def _written(self, moment: TextStreamed | TextReset) -> Iterator[RecordDraft]:
        match moment:
            case TextStreamed(channel="answer", text=text):
                if not self._streaming:
                    yield RecordDraft("answer", {"status": "start"})
                self._streaming = self._shown = True
                yield RecordDraft("answer", {"status": "delta", "content": text})
            case TextStreamed(channel="thinking" | "notes", text=text):
                yield RecordDraft("step", {"type": "thinking", "status": "delta", "content": text})
            case TextReset(channel="answer") if self._shown:
                self._shown = False
                yield RecordDraft("answer", {"status": "start"})
            case _:
                pass


def _thinking(moment: RoundStarted | DecisionMade) -> Iterator[RecordDraft]:
    match moment:
        case RoundStarted(iteration=iteration, limit=limit):
            yield RecordDraft(
                "step",
                {
                    "type": "thinking",
                    "status": "start",
                    "iteration": iteration,
                    "max_iterations": limit,
                },
            )
        case DecisionMade(purpose="decision", iteration=iteration):
            reasoning = UNREADABLE if moment.flag == "unparsed" else moment.thought
            yield RecordDraft(
                "step",
                {
                    "type": "thinking",
                    "status": "done",
                    "iteration": iteration,
                    "reasoning": reasoning,
                },
            )
        case DecisionMade():
            pass


def _call(moment: CallStarted | CallFinished | InputRequested) -> Iterator[RecordDraft]:
    match moment:
        case CallStarted() as call:
            asked: JsonObject = {"tool_args": call.arguments, "call_id": call.call_id}
            yield RecordDraft("step", {**_iteration(call, "start"), **asked})
        case CallFinished(call=call, text=text):
            done: JsonObject = {
                **_iteration(call, "done"),
                "observation": text,
                "error": None if moment.ok else text,
                "iter_elapsed": round(moment.elapsed_ms / 1000, 2),
                "tool_args": moment.ran_with,
                "call_id": call.call_id,
            }
            if moment.artifact:
                done["artifact"] = moment.artifact
            yield RecordDraft("step", done)
        case InputRequested(call=call, kind=kind, question=question):
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


def _iteration(call: CallStarted, status: str) -> JsonObject:
    return {
        "type": "iteration",
        "status": status,
        "iteration": call.iteration,
        "tool_name": call.tool,
    }


def _beside(moment: TurnEvent) -> Iterator[RecordDraft]:
    match moment:
        case SelectionStarted(total=total):
            yield RecordDraft("phase", {"phase": "selecting_tools", "total_tools": total})
        case InputTaken(text=text, said=said):
            yield RecordDraft("inject", {"type": "inject", "content": text, "id": said})
        case CustomEmitted(name=name, data=data, call_id=call_id):
            custom: JsonObject = {"name": name, "data": data, "call_id": call_id}
            yield RecordDraft("step", {"type": "custom", **custom})
        case ContextCompacted(before=before, after=after):
            yield RecordDraft("compact", {"original_messages": before, "kept_messages": after})
        case _:
            pass


def _done(at: EventMeta, ended: TurnFinished) -> Iterator[RecordDraft]:
    failed = ended.reason == "error"
    late: list[Json] = [*ended.late]
    yield RecordDraft(
        "done",
        {
            "answer": f"Agent error: {ended.error}" if failed else ended.answer,
            "iterations": 0 if failed else ended.rounds,
            "usage": _usage(ended.usage),
            "elapsed": round(ended.elapsed_ms / 1000, 2),
            "exit_reason": ended.reason,
            "turn_id": at.turn_id,
            "pending_injections": late,
        },
    )
    yield RecordDraft("end", {})


def _usage(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
