"""The dialect of ChatCLI: log records of a worker, and an agent's events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Literal

from msgspec import ValidationError, convert

from loopline.events import turn_events as turns
from loopline.events.dialects.encoder import Record, RecordDraft, custom_data
from loopline.models import Json, JsonObject, dumps
from loopline.timeline import CustomEvent, Decision

AgentEventType = Literal["Started", "Completed", "Failed"]
_OPTIONAL = ("duration", "error")
_GO_UNITS = ((1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """An agent started, completed or failed: the run of a turn, or a child run of one of its calls.

    `call_id` is the id of the turn or of the call. `index`, from 0, is the call's position among the `total` calls of
    its decision. `duration` is in Go's notation, such as "1m1.5s", and empty at the start. `error` is the reason of a
    failure.
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
        """Parse a record of the dialect `chatcli`; return None if the record is not an agent event."""
        if record.event != "AgentEvent" or not {"index", "total"} <= record.data.keys():
            return None  # `convert` alone would use the defaults of `index` and `total`
        try:
            return convert(record.data, cls)
        except ValidationError:
            return None

    @property
    def data(self) -> JsonObject:
        """The data of its record: all fields, without `duration` and `error` if they are empty."""
        fields: JsonObject = asdict(self)
        return {key: value for key, value in fields.items() if value or key not in _OPTIONAL}


class ChatCli:
    """The dialect of ChatCLI. The run of a turn is an agent, and so is each child run."""

    def __init__(self) -> None:
        self._run = AgentEvent(type="Started", call_id="", agent="", task="")

    def drafts(self, meta: turns.EventMeta, event: turns.TurnEvent) -> Iterator[RecordDraft]:
        """Yield the log records, messages and agent events for a turn event; none for other events.

        The start of a turn is kept for the record of its end. Of streamed texts only those of the answer have drafts.
        """
        match event:
            case turns.TurnStarted(bundle=bundle, prompt=prompt):
                self._run = AgentEvent(
                    type="Started", call_id=meta.turn_id, agent=bundle, task=prompt
                )
                yield _agent(self._run)
            case turns.ChildStarted() | turns.ChildFinished():
                yield _child(event)
            case turns.DecisionMade(
                decision=Decision(purpose="decision", usage=usage), iteration=iteration
            ):
                data: JsonObject = {"agent": self._run.agent, "turn": iteration}
                yield _log("agent turn", {**data, "tokens": usage.total_tokens})
            case turns.TextStreamed(channel="answer", text=text):
                yield RecordDraft("message", {"text": text, "completed": False})
            case turns.TextReset(channel="answer"):
                yield RecordDraft("reset", {"channel": "answer"})
            case turns.AnswerGiven(text=text, flag=flag):
                yield RecordDraft("message", {"text": text, "completed": True, "flag": flag})
            case turns.TurnPaused(calls=calls):
                waiting: list[Json] = [*calls]
                yield RecordDraft("paused", {"turn_id": meta.turn_id, "calls": waiting})
            case turns.TurnFinished(reason=reason, error=error, elapsed_ms=elapsed_ms):
                yield _agent(_finish(self._run, reason, error, elapsed_ms))
            case _:
                yield from _stateless_drafts(event)


def _log(message: str, fields: JsonObject) -> RecordDraft:
    return RecordDraft("log", {"level": "info", "msg": message, **fields})


def _agent(event: AgentEvent) -> RecordDraft:
    return RecordDraft("AgentEvent", event.data)


def _finish(started: AgentEvent, reason: str, error: str, elapsed_ms: float) -> AgentEvent:
    duration = go_duration(elapsed_ms)
    if reason in turns.UNANSWERED:
        return replace(started, type="Failed", duration=duration, error=error or reason)
    return replace(started, type="Completed", duration=duration)


def _child(event: turns.ChildStarted | turns.ChildFinished) -> RecordDraft:
    """Create the agent event of a child run; the agent defaults to the tool; the task is the arguments as JSON."""
    call = event.call
    name = event.child.agent if isinstance(event, turns.ChildFinished) else event.agent
    agent = AgentEvent(
        type="Started",
        call_id=call.call_id,
        agent=name or call.tool,
        task=dumps(call.arguments),
        index=call.index,
        total=call.total,
    )
    if isinstance(event, turns.ChildFinished):
        agent = _finish(agent, event.child.reason, "", event.elapsed_ms)
    return _agent(agent)


def _stateless_drafts(event: turns.TurnEvent) -> Iterator[RecordDraft]:
    """Yield the draft for a call, result, request, input or custom event; none for all other events."""
    match event:
        case turns.CallStarted(call_id=call_id, tool=tool, arguments=arguments):
            yield _log("tool_call", {"name": tool, "args": dumps(arguments), "call_id": call_id})
        case turns.CallFinished(call=call, result=result):
            yield _log(
                "tool result",
                {
                    "lines": len(result.text.splitlines()),
                    "duration": go_duration(result.elapsed_ms),
                    "name": call.tool,
                    "call_id": call.call_id,
                    "status": result.status,
                },
            )
        case CustomEvent():
            yield _log("event", custom_data(event))
        case turns.InputTaken(text=text, kind=kind):
            yield RecordDraft("mailbox", {"content": text, "kind": kind})
        case turns.InputRequested(call=call, kind=kind, question=question):
            yield RecordDraft(
                "permission_request",
                {
                    "call_id": call.call_id,
                    "name": call.tool,
                    "args": dumps(call.arguments),
                    "kind": kind,
                    "question": question,
                },
            )
        case _:
            pass


def go_duration(milliseconds: float) -> str:
    """Format a duration as Go does, exact to the nanosecond: `1m30.5s`, `234ms`, `0s`."""
    nanoseconds = abs(round(Decimal(str(milliseconds)) * 1_000_000))
    sign = "-" if milliseconds < 0 and nanoseconds else ""
    if nanoseconds < 1_000_000_000:
        for size, unit in _GO_UNITS:
            if nanoseconds >= size:
                return f"{sign}{_format_quotient(nanoseconds, size)}{unit}"
        return "0s"
    minutes, below = divmod(nanoseconds, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    hours_text = f"{hours}h" if hours else ""
    minutes_text = f"{minutes}m" if hours or minutes else ""
    return f"{sign}{hours_text}{minutes_text}{_format_quotient(below, 1_000_000_000)}s"


def _format_quotient(count: int, size: int) -> str:
    """Format `count / size` exactly; `size` is a power of ten."""
    units, remainder = divmod(count, size)
    decimals = f"{remainder:0{len(str(size)) - 1}d}".rstrip("0") if remainder else ""
    return f"{units}.{decimals}" if decimals else str(units)
