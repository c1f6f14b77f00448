"""A stream ends with a record that says so, however the turn ended."""

from __future__ import annotations

from typing import get_args

import pytest

from loopline.events import ClientRun, DialectName, Event, Record, run_dialect
from loopline.events.dialects import RunDialectName
from loopline.events.sse import position
from loopline.models import Json
from loopline.timeline import (
    Completion,
    Exit,
    ExitReason,
    RunChild,
    ToolCalled,
    ToolPending,
    ToolResult,
    UserAnswer,
    UserFollowup,
    UserPrompt,
)
from tests.dialects.decoded_stream import NAMES, heard
from tests.dialects.sample_conversation import (
    EVENTS,
    FIRST,
    HEADER,
    SECOND,
    TALK,
    Told,
    begun,
    decided,
    delta,
    events,
    reset,
    spent,
)

REASONS: tuple[ExitReason, ...] = get_args(ExitReason)
ASKED: list[Told] = [UserPrompt(text="Go."), HEADER, begun(1)]


def is_last(name: DialectName, record: Record) -> bool:
    """Whether the record says that nothing more comes."""
    match name:
        case "plain":
            return record.event in {"react.exit", "paused"}
        case "fim" | "beakr":
            return record.event == "end"
        case "nadoo":
            return record.event == "node_finished"
        case "chatcli":
            ended = record.event == "AgentEvent" and record.data["type"] != "Started"
            return ended or record.event == "paused"
        case "kdcube":
            return record.event in {"chat_complete", "chat_error", "conv_status"}
        case "ag-ui":
            return record.event in {"RUN_FINISHED", "RUN_ERROR"}
        case "vercel":
            return record.event in {"finish", "abort"}


def ending(reason: ExitReason) -> list[Event]:
    error = "down" if reason == "error" else ""
    turn = [*ASKED, delta("answer", "A"), reset()]
    turn += [Completion(text="A."), Exit(reason=reason, error=error, rounds=1)]
    return list(events([(1, turn)]))


def field(record: Record, *path: str) -> Json:
    """What stands in the record at the end of a path."""
    value: Json = record.data
    for key in path:
        assert isinstance(value, dict)
        value = value[key]
    return value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reason", REASONS)
def test_the_last_record_is_the_end_for_every_reason(name: DialectName, reason: ExitReason) -> None:
    records = heard(name, ending(reason))
    assert is_last(name, records[-1])
    assert sum(is_last(name, record) for record in records) == 1


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [("ag-ui", ("result", "truncated"), True), ("vercel", ("finishReason",), "length")],
)
def test_a_truncated_answer_says_so_at_the_end(
    name: DialectName, path: tuple[str, ...], value: Json
) -> None:
    turn = [*ASKED, decided("length", spent(1, 1))]
    turn += [Completion(text="A", flag="cut"), Exit(reason="complete", rounds=1)]
    assert field(heard(name, events([(1, turn)]))[-1], *path) == value


@pytest.mark.parametrize("name", NAMES)
def test_a_turn_that_pauses_ends_the_stream_with_a_record_that_lasts(name: DialectName) -> None:
    records = heard(name, events([(1, FIRST), (2, SECOND)]))
    assert is_last(name, records[-1])
    assert records[-1].id == ("36.3" if name in {"ag-ui", "beakr", "vercel"} else "36.2")


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_stands_behind_one_that_waits_does_not_keep_the_stream_open(
    name: DialectName,
) -> None:
    turn = [*ASKED, decided("tool_use", spent(1, 1), calls=2)]
    turn += [ToolCalled(call_id=f"c{n}", tool="w.command") for n in (1, 2)]
    turn += [ToolPending(call_id="c1", kind="approval", question="May I?", digest="")]
    records = heard(name, events([(1, turn)]))
    assert is_last(name, records[-1])
    assert records[-1].id == ""


@pytest.mark.parametrize("name", ["ag-ui", "vercel"])
def test_a_turn_that_goes_on_beside_another_call_begins_a_run(name: RunDialectName) -> None:
    turn = [*ASKED, decided("tool_use", spent(1, 1), calls=2)]
    turn += [ToolCalled(call_id=f"c{n}", tool="w.command") for n in (1, 2)]
    turn += [ToolPending(call_id="c1", kind="approval", question="May I?", digest="")]
    turn += [UserAnswer(call_id="c1", value=True)]
    turn += [ToolResult(call_id=f"c{n}", tool="w.command", text="Done.") for n in (1, 2)]
    turn += [begun(), decided("stop", spent(1, 1)), Completion(text="A."), Exit(reason="complete")]
    run = run_dialect(name, TALK, ClientRun(turn=1, ends_after=8))
    records = [record for event in events([(1, turn)]) for record in run.take(event)]
    resumed = [record.event for record in records if record.id and position(record.id) > (8, 9)]
    first, last = ("RUN_STARTED", "RUN_FINISHED") if name == "ag-ui" else ("start", "finish")
    assert (resumed[0], resumed[-1]) == (first, last)
    opened, closed = ("STEP_STARTED", "STEP_FINISHED")
    opened, closed = (opened, closed) if name == "ag-ui" else ("start-step", "finish-step")
    steps = [kind for kind in resumed if kind in (opened, closed)]
    assert steps == [opened, closed]


@pytest.mark.parametrize("name", NAMES)
def test_a_turn_that_is_carried_on_and_waits_again_ends_the_stream_once_more(
    name: DialectName,
) -> None:
    turn = [*ASKED, decided("tool_use", spent(1, 1), calls=1)]
    turn += [ToolCalled(call_id="c1", tool="w.ask")]
    turn += [ToolPending(call_id="c1", kind="question", question="Which?", digest="")]
    turn += [UserAnswer(call_id="c1", value="Green.")]
    turn += [ToolResult(call_id="c1", tool="w.ask", text="Green."), begun()]
    turn += [decided("tool_use", spent(1, 1), calls=2)]
    turn += [ToolCalled(call_id=f"c{n}", tool="w.command") for n in (2, 3)]
    turn += [ToolPending(call_id="c2", kind="approval", question="May I?", digest="")]
    records = heard(name, events([(1, turn)]))
    assert is_last(name, records[-1])
    assert [record.id.split(".")[0] for record in records if is_last(name, record)] == ["6", ""]


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_that_breaks_off_is_ended_all_the_same(name: DialectName) -> None:
    records = heard(name, events([(1, FIRST[:20])]))
    assert is_last(name, records[-1])


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_without_a_turn_has_no_end(name: DialectName) -> None:
    assert not [event for event in heard(name, []) if is_last(name, event)]


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        *((text, "success") for text in ("complete", "max_iterations", "deadline", "budget")),
        *((text, "failed") for text in ("error", "refused")),
        *((text, "interrupted") for text in ("stopped", "interrupted")),
    ],
)
def test_an_answer_at_a_limit_is_a_success_of_the_node(reason: ExitReason, status: str) -> None:
    last = heard("nadoo", ending(reason))[-1]
    assert (last.data["status"], last.data["exit_reason"]) == (status, reason)


def test_a_failed_run_is_told_in_the_words_for_failure() -> None:
    failed = {name: heard(name, ending("error")) for name in NAMES}
    assert failed["fim"][-2].data["answer"] == "Agent error: down"
    assert failed["chatcli"][-1].data["type"] == "Failed"
    assert failed["kdcube"][-1].event == "chat_error"
    assert failed["beakr"][-1].data["error"] == "down"


def test_what_came_too_late_is_reported_at_the_end() -> None:
    turn = [*ASKED, UserFollowup(text="And now?")]
    done = heard("fim", events([(1, [*turn, Exit(reason="complete", rounds=1)])]))[-2]
    assert done.data["pending_injections"] == ["And now?"]


@pytest.mark.parametrize("reason", ["error", "refused", "stopped", "interrupted"])
def test_a_child_that_fails_is_told_with_its_error(reason: ExitReason) -> None:
    turn = [*ASKED, decided("tool_use", spent(1, 1), calls=1)]
    turn += [ToolCalled(call_id="c1", tool="crew.agent")]
    turn += [RunChild(call_id="c1", conversation="tea~c1")]
    turn += [RunChild(call_id="c1", conversation="tea~c1", reason=reason)]
    reported_events = [
        event for event in heard("chatcli", events([(1, turn)])) if event.event == "AgentEvent"
    ]
    assert [item.data["type"] for item in reported_events] == ["Started", "Started", "Failed"]
    assert (reported_events[-1].data["error"], reported_events[-1].data["duration"]) == (
        reason,
        "1s",
    )


def test_usage_and_rounds_at_the_end_are_those_of_the_whole_turn() -> None:
    last = {name: heard(name, events([(1, FIRST)])) for name in NAMES}
    assert field(last["fim"][-2], "usage", "total_tokens") == 771
    assert field(last["kdcube"][-3], "data", "usage", "input_tokens") == 680
    assert last["nadoo"][-1].data["iterations_used"] == 3


@pytest.mark.parametrize("name", NAMES)
def test_what_was_missed_is_told_in_every_vocabulary(name: DialectName) -> None:
    (missed,) = [event for event in heard(name, EVENTS) if event.event == "missed"]
    assert (missed.data, missed.id) == ({"after": 38, "through": 39}, "")
