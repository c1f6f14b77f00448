"""The words of ChatCLI: log records of a worker, and an agent's events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loopline.events.dialects.durations import go_duration
from loopline.events.dialects.speaking import Word
from loopline.events.moments import (
    UNANSWERED,
    Answered,
    Asked,
    At,
    Began,
    CallBegan,
    CallEnded,
    ChildBegan,
    ChildEnded,
    Decided,
    Ended,
    Moment,
    Paused,
    Said,
    Voided,
    Wrote,
)
from loopline.models import Json, JsonObject, dumps
from loopline.timeline import ExitReason


@dataclass(frozen=True, slots=True)
class _Agent:
    """Who is at work: a run, or a child of it."""

    call_id: str
    agent: str
    task: str
    index: int = 0
    total: int = 1

    def began(self) -> Word:
        return self._event("Started", {})

    def ended(self, reason: ExitReason, error: str, elapsed_ms: float) -> Word:
        duration: JsonObject = {"duration": go_duration(elapsed_ms)}
        if reason in UNANSWERED:
            return self._event("Failed", {**duration, "error": error or reason})
        return self._event("Completed", duration)

    def _event(self, kind: str, more: JsonObject) -> Word:
        named: JsonObject = {"call_id": self.call_id, "agent": self.agent, "task": self.task}
        place: JsonObject = {"index": self.index, "total": self.total}
        return Word("AgentEvent", {"type": kind, **named, **more, **place})


class ChatCli:
    """A run is an agent of its own, and so is every run that its calls begin."""

    def __init__(self) -> None:
        self._run = _Agent("", "", "")
        self._shown = False

    def say(self, at: At, moment: Moment) -> Iterator[Word]:
        """The words for a moment."""
        match moment:
            case Began(bundle=bundle, prompt=prompt):
                self._run = _Agent(at.turn_id, bundle, prompt)
                self._shown = False
                yield self._run.began()
            case ChildBegan() | ChildEnded():
                yield _child(moment)
            case Decided() | CallBegan() | CallEnded():
                yield from self._logged(moment)
            case Wrote() | Voided() | Answered():
                yield from self._message(moment)
            case Paused(calls=calls):
                waiting: list[Json] = [*calls]
                yield Word("paused", {"turn_id": at.turn_id, "calls": waiting})
            case Ended(reason=reason, error=error, elapsed_ms=elapsed_ms):
                yield self._run.ended(reason, error, elapsed_ms)
            case _:
                yield from _beside(moment)

    def _logged(self, moment: Decided | CallBegan | CallEnded) -> Iterator[Word]:
        match moment:
            case Decided(purpose="decision", iteration=iteration, usage=usage):
                tokens = usage.input_tokens + usage.output_tokens
                agent = self._run.agent
                yield _log("agent turn", {"agent": agent, "turn": iteration, "tokens": tokens})
            case Decided():
                pass
            case CallBegan(call_id=call_id, tool=tool, arguments=arguments):
                yield _log(
                    "tool_call", {"name": tool, "args": dumps(arguments), "call_id": call_id}
                )
            case CallEnded(call=call, text=text, status=status):
                ended: JsonObject = {
                    "lines": len(text.splitlines()),
                    "duration": go_duration(moment.elapsed_ms),
                }
                known: JsonObject = {"name": call.tool, "call_id": call.call_id, "status": status}
                yield _log("tool result", {**ended, **known})

    def _message(self, moment: Wrote | Voided | Answered) -> Iterator[Word]:
        match moment:
            case Wrote(channel="answer", text=text):
                self._shown = True
                yield Word("message", {"text": text, "completed": False})
            case Voided(channel="answer") if self._shown:
                self._shown = False
                yield Word("reset", {"channel": "answer"})
            case Answered(text=text, flag=flag):
                self._shown = False
                yield Word("message", {"text": text, "completed": True, "flag": flag})
            case _:
                pass


def _log(message: str, more: JsonObject) -> Word:
    return Word("log", {"level": "info", "msg": message, **more})


def _child(moment: ChildBegan | ChildEnded) -> Word:
    call = moment.call
    agent = _Agent(call.call_id, call.tool, dumps(call.arguments), call.index, call.total)
    match moment:
        case ChildBegan():
            return agent.began()
        case ChildEnded(reason=reason, elapsed_ms=elapsed_ms):
            return agent.ended(reason, "", elapsed_ms)


def _beside(moment: Moment) -> Iterator[Word]:
    match moment:
        case Said(text=text, kind=kind):
            yield Word("mailbox", {"content": text, "kind": kind})
        case Asked(call=call, kind=kind, question=question):
            asked: JsonObject = {"kind": kind, "question": question}
            named: JsonObject = {"name": call.tool, "args": dumps(call.arguments)}
            yield Word("permission_request", {"call_id": call.call_id, **named, **asked})
        case _:
            pass
