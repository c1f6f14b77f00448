"""The router: what becomes of a reply, as a pure table; the first row that fits decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct, structs

from loopline.models import Reply, ToolCall
from loopline.prompt import Answer, Calls, DecodedReply, Malformed
from loopline.react.extensions import Hold, Reminder, RoundHook, Stop
from loopline.react.loop_options import LoopOptions
from loopline.react.state import ReactStateV2
from loopline.timeline import AnswerFlag


@dataclass(frozen=True, slots=True)
class Refused:
    """The model declines."""


@dataclass(frozen=True, slots=True)
class Continue:
    """The reply was cut off by its output limit: the model is to write on, with more room."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The reply cannot be read, so the model must write it again."""

    raw: str
    problem: str
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Unusable:
    """Nothing can be done with the reply, and no repair is left; `error` says so to the user."""

    raw: str
    problem: str
    error: str


class Act(Struct, frozen=True):
    """The calls are to run."""

    notes: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """The answer is held and becomes a draft; `reminder` is the text for the model, if there is one."""

    notes: str
    text: str
    reason: str
    reminder: Hold | None = None


@dataclass(frozen=True, slots=True)
class Accept:
    """The answer is the turn's."""

    notes: str
    text: str
    flag: AnswerFlag = ""


@dataclass(frozen=True, slots=True)
class End:
    """A round hook ends the turn with the answer that is on the table."""

    notes: str
    text: str
    stop: Stop


NEW_INPUT = "the user has said more"

Route = Refused | Continue | Repair | Unusable | Act | Held | Accept | End


class Table(Struct, frozen=True, kw_only=True):
    """The input of the routing table beside the reply: the state, pending inputs, the options, the round hooks."""

    state: ReactStateV2
    waiting: bool
    options: LoopOptions
    round_hooks: Sequence[RoundHook] = ()


def route(reply: Reply, decided: DecodedReply, table: Table) -> Route:
    """Return what to do with a decoded reply."""
    state = table.state
    if reply.stop_reason == "refusal":
        return Refused()
    match decided:
        case Calls(notes=notes, calls=calls):
            return _route_calls(notes, calls, table)
        case Answer() | Malformed() if _is_cut_off(reply, table) and reply.text.strip():
            return Continue()
        case Malformed(raw=raw, problem=problem) if _may_repair(table):
            return Repair(raw, problem)
        case Malformed(raw=raw, is_text=True) if raw.strip():
            return Accept("", raw, "unparsed")
        case Malformed(raw=raw, problem=problem):
            return _unusable(raw, problem, table)
        case Answer(notes=notes, text=text):
            return _route_answer(
                notes,
                text,
                reply,
                structs.replace(table, state=structs.replace(state, answer=text)),
            )


def _route_calls(notes: str, calls: tuple[ToolCall, ...], table: Table) -> Route:
    """Return the calls to run, unless they are more than one reply may make."""
    limit = table.options.max_calls_per_reply
    if len(calls) <= limit:
        return Act(notes, calls)
    raw = f"{notes}\n({len(calls)} calls)".strip()
    problem = (
        f"The reply made {len(calls)} calls and none was run: a reply may make {limit} at most "
        "(max_calls_per_reply). Make fewer calls, and the rest after their results."
    )
    return Repair(raw, problem) if _may_repair(table) else _unusable(raw, problem, table)


def _unusable(raw: str, problem: str, table: Table) -> Route:
    """Return what becomes of a reply without repairs: after the last round the turn ends anyway."""
    if table.state.last:
        return Repair(raw, problem)
    replies = table.state.malformed + 1
    error = f"none of {replies} replies in a row could be used; of the last one: {problem}"
    return Unusable(raw, problem, error)


def _route_answer(notes: str, text: str, reply: Reply, table: Table) -> Route:
    """Accept an answer if and only if nothing holds it; on the last round nothing does."""
    state = table.state
    if table.waiting and not state.last:
        return Held(notes, text, NEW_INPUT)
    if not state.last and state.iteration + 1 < state.min_rounds:
        return Held(notes, text, f"there are to be {state.min_rounds} rounds", _too_early(state))
    for hook in table.round_hooks:
        match hook(state):
            case Hold() as hold if not state.last:
                return Held(notes, text, hold.code, hold)
            case Stop() as stop:
                return End(notes, text, stop)
            case Hold() | Reminder() | None:
                pass
    return Accept(notes, text, "cut" if reply.stop_reason == "length" else "")


def _too_early(state: ReactStateV2) -> Hold:
    """Return what the model is told of an answer before the required rounds are made."""
    rounds, minimum = state.iteration + 1, state.min_rounds
    return Hold(
        "answer_held",
        f"Your answer is kept as a draft: this was round {rounds} of at least {minimum}. Check it or look "
        "further, then answer again; the last answer counts.",
    )


def _is_cut_off(reply: Reply, table: Table) -> bool:
    may_continue = table.state.cut_off < table.options.output_escalations and not table.state.last
    return reply.stop_reason == "length" and may_continue


def _may_repair(table: Table) -> bool:
    repairs = table.options.repairs
    may_repair = repairs is None or table.state.malformed < repairs
    return may_repair and not table.state.last
