"""The words of ChatCLI: log records of a worker, and an agent's events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from loopline.events.dialects.encoder import Record, RecordDraft
from loopline.events.turn_events import (
    UNANSWERED,
    AnswerGiven,
    CallFinished,
    CallStarted,
    ChildFinished,
    ChildStarted,
    CustomEmitted,
    DecisionMade,
    EventMeta,
    InputRequested,
    InputTaken,
    TextReset,
    TextStreamed,
    TurnEvent,
    TurnFinished,
    TurnPaused,
    TurnStarted,
)
from loopline.models import Json, JsonObject, dumps
from loopline.timeline import ExitReason

AgentEventType = Literal["Started", "Completed", "Failed"]
_MAY_BE_ABSENT = ("duration", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """An agent began, completed or failed: the run of a turn, or a child run of one of its calls.

    `call_id` is the turn's id, or that of the call. `index`, from 0, is its place among the `total` calls made
    at once. `duration` is empty when it begins, else in Go's notation, such as "1m1.5s"; `error` says why it failed.
    """

    type: AgentEventType
    call_id: str
    agent: str
    task: str
    duration: str = ""
    error: str = ""
    index: int = 0
    total: int = 1

    @classmethod
    def of(cls, record: Record) -> AgentEvent | None:
        """Return the event that a record of the dialect `chatcli` tells, or None if it tells something else."""
        match record:
            case Record(
                event="AgentEvent",
                data={
                    "type": "Started" | "Completed" | "Failed" as kind,
                    "call_id": str(call_id),
                    "agent": str(agent),
                    "task": str(task),
                    "index": int(index),
                    "total": int(total),
                    **rest,
                },
            ):
                return cls(
                    type=kind,
                    call_id=call_id,
                    agent=agent,
                    task=task,
                    duration=str(rest.get("duration", "")),
                    error=str(rest.get("error", "")),
                    index=index,
                    total=total,
                )
            case _:
                return None

    @property
    def data(self) -> JsonObject:
        """Return what its record holds: every field but a `duration` and an `error` that are empty."""
        every: JsonObject = {
            "type": self.type,
            "call_id": self.call_id,
            "agent": self.agent,
            "task": self.task,
            "duration": self.duration,
            "error": self.error,
            "index": self.index,
            "total": self.total,
        }
        return {key: value for key, value in every.items() if value or key not in _MAY_BE_ABSENT}


class ChatCli:
    """A run is an agent of its own, and so is every run that its calls begin."""

    def __init__(self) -> None:
        self._run = AgentEvent(type="Started", call_id="", agent="", task="")
        self._shown = False

    def say(self, at: EventMeta, moment: TurnEvent) -> Iterator[RecordDraft]:
        """The words for a moment."""
        match moment:
            case TurnStarted(bundle=bundle, prompt=prompt):
                self._run = AgentEvent(
                    type="Started", call_id=at.turn_id, agent=bundle, task=prompt
                )
                self._shown = False
                yield _agent(self._run)
            case ChildStarted() | ChildFinished():
                yield _child(moment)
            case DecisionMade() | CallStarted() | CallFinished():
                yield from self._logged(moment)
            case TextStreamed() | TextReset() | AnswerGiven():
                yield from self._message(moment)
            case TurnPaused(calls=calls):
                waiting: list[Json] = [*calls]
                yield RecordDraft("paused", {"turn_id": at.turn_id, "calls": waiting})
            case TurnFinished(reason=reason, error=error, elapsed_ms=elapsed_ms):
                yield _agent(_ended(self._run, reason, error, elapsed_ms))
            case _:
                yield from _beside(moment)

    def _logged(self, moment: DecisionMade | CallStarted | CallFinished) -> Iterator[RecordDraft]:
        match moment:
            case DecisionMade(purpose="decision", iteration=iteration, usage=usage):
                tokens = usage.input_tokens + usage.output_tokens
                agent = self._run.agent
                yield _log("agent turn", {"agent": agent, "turn": iteration, "tokens": tokens})
            case DecisionMade():
                pass
            case CallStarted(call_id=call_id, tool=tool, arguments=arguments):
                yield _log(
                    "tool_call", {"name": tool, "args": dumps(arguments), "call_id": call_id}
                )
            case CallFinished(call=call, text=text, status=status):
                ended: JsonObject = {
                    "lines": len(text.splitlines()),
                    "duration": go_duration(moment.elapsed_ms),
                }
                known: JsonObject = {"name": call.tool, "call_id": call.call_id, "status": status}
                yield _log("tool result", {**ended, **known})

    def _message(self, moment: TextStreamed | TextReset | AnswerGiven) -> Iterator[RecordDraft]:
        match moment:
            case TextStreamed(channel="answer", text=text):
                self._shown = True
                yield RecordDraft("message", {"text": text, "completed": False})
            case TextReset(channel="answer") if self._shown:
                self._shown = False
                yield RecordDraft("reset", {"channel": "answer"})
            case AnswerGiven(text=text, flag=flag):
                self._shown = False
                yield RecordDraft("message", {"text": text, "completed": True, "flag": flag})
            case _:
                pass


def _log(message: str, more: JsonObject) -> RecordDraft:
    return RecordDraft("log", {"level": "info", "msg": message, **more})


def _agent(event: AgentEvent) -> RecordDraft:
    return RecordDraft("AgentEvent", event.data)


def _ended(begun: AgentEvent, reason: ExitReason, error: str, elapsed_ms: float) -> AgentEvent:
    duration = go_duration(elapsed_ms)
    if reason in UNANSWERED:
        return replace(begun, type="Failed", duration=duration, error=error or reason)
    return replace(begun, type="Completed", duration=duration)


def _child(moment: ChildStarted | ChildFinished) -> RecordDraft:
    call = moment.call
    begun = AgentEvent(
        type="Started",
        call_id=call.call_id,
        agent=call.tool,
        task=dumps(call.arguments),
        index=call.index,
        total=call.total,
    )
    match moment:
        case ChildStarted():
            return _agent(begun)
        case ChildFinished(reason=reason, elapsed_ms=elapsed_ms):
            return _agent(_ended(begun, reason, "", elapsed_ms))


def _beside(moment: TurnEvent) -> Iterator[RecordDraft]:
    match moment:
        case CustomEmitted(name=name, data=data, call_id=call_id):
            yield _log("event", {"name": name, "data": data, "call_id": call_id})
        case InputTaken(text=text, kind=kind):
            yield RecordDraft("mailbox", {"content": text, "kind": kind})
        case InputRequested(call=call, kind=kind, question=question):
            asked: JsonObject = {"kind": kind, "question": question}
            named: JsonObject = {"name": call.tool, "args": dumps(call.arguments)}
            yield RecordDraft("permission_request", {"call_id": call.call_id, **named, **asked})
        case _:
            pass


_SMALL = ((1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


def go_duration(milliseconds: float) -> str:
    """The duration, exact to the nanosecond: hours, minutes and seconds, or one unit below a second."""
    left = abs(round(Decimal(str(milliseconds)) * 1_000_000))
    sign = "-" if milliseconds < 0 and left else ""
    if left < 1_000_000_000:
        for size, unit in _SMALL:
            if left >= size:
                return f"{sign}{_decimal(left, size)}{unit}"
        return "0s"
    minutes, below = divmod(left, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    parts = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{parts}{_decimal(below, 1_000_000_000)}s"


def _decimal(count: int, size: int) -> str:
    """How many of a size, with as many decimals as it takes."""
    whole, rest = divmod(count, size)
    decimals = f"{rest:0{len(str(size)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{decimals}" if decimals else str(whole)
