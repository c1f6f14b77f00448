"""The words of FIM One: `step`, `answer`, `compact`, `phase`, `inject`, `done`."""

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
    Drafted,
    Emitted,
    Ended,
    Moment,
    Paused,
    RoundBegan,
    Said,
    Selecting,
    Voided,
    Wrote,
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

    def say(self, at: At, moment: Moment) -> Iterator[Word]:
        """The words for a moment."""
        match moment:
            case Began():
                self._signalled = self._streaming = self._shown = False
            case RoundBegan() | Decided():
                yield from _thinking(moment)
            case CallBegan() | CallEnded() | Asked():
                yield from _call(moment)
            case AnswerBegan() | Answered():
                yield from self._answer(moment)
            case Drafted(reason="synthesis"):
                yield from self._signal()
            case Wrote() | Voided():
                yield from self._written(moment)
            case Paused():
                yield Word("end", {})
            case Ended():
                yield from _done(at, moment)
            case _:
                yield from _beside(moment)

    def _signal(self) -> Iterator[Word]:
        """The answer is coming: said once a turn."""
        if not self._signalled:
            self._signalled = True
            yield Word("step", {"type": "answer", "status": "start"})

    def _answer(self, moment: AnswerBegan | Answered) -> Iterator[Word]:
        yield from self._signal()
        match moment:
            case AnswerBegan():
                self._streaming, self._shown = True, False
                yield Word("answer", {"status": "start"})
            case Answered(text=text, flag=flag):
                self._streaming = self._shown = False
                yield Word("answer", {"status": "done", "content": text, "flag": flag})

    def _written(self, moment: Wrote | Voided) -> Iterator[Word]:
        match moment:
            case Wrote(channel="answer", text=text):
                if not self._streaming:
                    yield Word("answer", {"status": "start"})
                self._streaming = self._shown = True
                yield Word("answer", {"status": "delta", "content": text})
            case Wrote(channel="thinking" | "notes", text=text):
                yield Word("step", {"type": "thinking", "status": "delta", "content": text})
            case Voided(channel="answer") if self._shown:
                self._shown = False
                yield Word("answer", {"status": "start"})
            case _:
                pass


def _thinking(moment: RoundBegan | Decided) -> Iterator[Word]:
    match moment:
        case RoundBegan(iteration=iteration, limit=limit):
            yield Word(
                "step",
                {
                    "type": "thinking",
                    "status": "start",
                    "iteration": iteration,
                    "max_iterations": limit,
                },
            )
        case Decided(purpose="decision", iteration=iteration):
            reasoning = UNREADABLE if moment.flag == "unparsed" else moment.thought
            yield Word(
                "step",
                {
                    "type": "thinking",
                    "status": "done",
                    "iteration": iteration,
                    "reasoning": reasoning,
                },
            )
        case Decided():
            pass


def _call(moment: CallBegan | CallEnded | Asked) -> Iterator[Word]:
    match moment:
        case CallBegan() as call:
            asked: JsonObject = {"tool_args": call.arguments, "call_id": call.call_id}
            yield Word("step", {**_iteration(call, "start"), **asked})
        case CallEnded(call=call, text=text):
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
            yield Word("step", done)
        case Asked(call=call, kind=kind, question=question):
            yield Word(
                "awaiting_confirmation",
                {
                    "call_id": call.call_id,
                    "tool_name": call.tool,
                    "tool_args": call.arguments,
                    "kind": kind,
                    "question": question,
                },
            )


def _iteration(call: CallBegan, status: str) -> JsonObject:
    return {
        "type": "iteration",
        "status": status,
        "iteration": call.iteration,
        "tool_name": call.tool,
    }


def _beside(moment: Moment) -> Iterator[Word]:
    match moment:
        case Selecting(total=total):
            yield Word("phase", {"phase": "selecting_tools", "total_tools": total})
        case Said(text=text, said=said):
            yield Word("inject", {"type": "inject", "content": text, "id": said})
        case Emitted(name=name, data=data, call_id=call_id):
            custom: JsonObject = {"name": name, "data": data, "call_id": call_id}
            yield Word("step", {"type": "custom", **custom})
        case Compacted(before=before, after=after):
            yield Word("compact", {"original_messages": before, "kept_messages": after})
        case _:
            pass


def _done(at: At, ended: Ended) -> Iterator[Word]:
    failed = ended.reason == "error"
    late: list[Json] = [*ended.late]
    yield Word(
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
    yield Word("end", {})


def _usage(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
