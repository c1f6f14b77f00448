"""What the vocabularies tell apart, and how a listener learns that what it showed is void."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loopline.events import DialectName, Event, Record
from loopline.timeline import (
    Completion,
    Decision,
    Draft,
    Exit,
    ExitReason,
    Notes,
    Notice,
    ResultStatus,
    Thinking,
    ToolCalled,
    ToolPending,
    ToolResult,
    UserPrompt,
    UserRecalled,
    UserSteer,
)
from tests.dialects.decoded_stream import IN_PARTS, NAMES, heard, lasting
from tests.dialects.sample_conversation import (
    BLOCKS,
    EVENTS,
    HEADER,
    TALK,
    Told,
    answer_begun,
    begun,
    delta,
    events,
    reset,
)

CALLS: dict[DialectName, tuple[str, str]] = {
    "fim": ("step", "call_id"),
    "nadoo": ("agent_tool_result", "call_id"),
    "chatcli": ("log", "call_id"),
}


def steps(records: Sequence[Record], kind: str, status: str) -> list[Record]:
    """The steps of FIM of that type and status."""
    found_records = [
        record for record in records if record.event == "step" and record.data["type"] == kind
    ]
    return [item for item in found_records if item.data["status"] == status]


def test_parallel_calls_of_one_tool_can_be_told_apart() -> None:
    for name, (event, key) in CALLS.items():
        ended = [
            record.data[key]
            for record in heard(name, EVENTS)
            if record.event == event and record.id in {"9.1", "11.1"}
        ]
        assert ended == ["c2", "c1"], name
    steps_of_kdcube = [event for event in heard("kdcube", EVENTS) if event.id in {"9.1", "11.1"}]
    calls = [item.data["data"] for item in steps_of_kdcube]
    assert [call["call_id"] for call in calls if isinstance(call, dict)] == ["c2", "c1"]
    messages = [
        event.data["value"] for event in heard("beakr", EVENTS) if event.id in {"9.1", "11.1"}
    ]
    assert [message["call_id"] for message in messages if isinstance(message, dict)] == ["c2", "c1"]


def test_each_call_has_the_time_it_took_itself() -> None:
    done = steps(heard("fim", EVENTS), "iteration", "done")
    assert [item.data["iter_elapsed"] for item in done[:2]] == [1.23, 0.23]


@pytest.mark.parametrize("name", [item for item in NAMES if item != "fim" and item not in IN_PARTS])
def test_after_a_reset_a_listener_is_told_that_what_it_showed_is_void(name: DialectName) -> None:
    told = [*_asked(), answer_begun(), delta("answer", "Ma"), reset()]
    records = heard(name, events([(1, told)]))
    assert "reset" in [record.event for record in records]


def test_after_a_reset_an_answer_begins_again() -> None:
    records = heard("fim", events([(1, [*_asked(), delta("answer", "Ma"), reset()])]))
    answers = [record.data for record in records if record.event == "answer"]
    assert answers == [
        {"status": "start"},
        {"status": "delta", "content": "Ma"},
        {"status": "start"},
    ]


@pytest.mark.parametrize("name", [item for item in NAMES if item != "plain"])
def test_a_reset_of_what_was_never_shown_is_not_told(name: DialectName) -> None:
    with_it, without = [*_asked(), reset()], _asked()
    assert heard(name, events([(1, with_it)])) == heard(name, events([(1, without)]))


def test_an_answer_of_the_decision_itself_is_signalled_once() -> None:
    told = [*_asked(), Decision(model="m", stop_reason="stop"), Completion(text="Tea.")]
    records = lasting(heard("fim", events([(1, [*told, Exit(reason="complete")])])))
    assert [record.data for record in records][1:4] == [
        {"type": "thinking", "status": "done", "iteration": 1, "reasoning": ""},
        {"type": "answer", "status": "start"},
        {"status": "done", "content": "Tea.", "flag": ""},
    ]


def test_an_unreadable_reply_that_is_the_answer_says_so_as_its_reasoning() -> None:
    notice = Notice(code="malformed_reply", text="no JSON")
    repaired: list[Told] = [Decision(model="m", stop_reason="stop", raw="Eh?"), notice, begun()]
    bodies: list[Told] = [
        Decision(model="m", stop_reason="stop"),
        Thinking(text="hm"),
        Completion(text="Oh.", flag="unparsed"),
    ]
    told = [*_asked(), *repaired, *bodies]
    done = steps(heard("fim", events([(1, told)])), "thinking", "done")
    assert [item.data["reasoning"] for item in done] == ["", "(could not parse LLM output as JSON)"]


def test_what_the_model_notes_is_its_thought_and_else_what_it_thinks() -> None:
    notes, thinking = Notes(text="I look."), Thinking(text="hm")
    decision = Decision(model="m", stop_reason="tool_use", calls=1)
    call = ToolCalled(call_id="c1", tool="w.look")
    for beside, thought in (
        ([thinking, notes], "I look."),
        ([thinking], "hm"),
        ([notes], "I look."),
    ):
        told = [*_asked(), decision, *beside, call]
        (done,) = steps(heard("fim", events([(1, told)])), "thinking", "done")
        assert done.data["reasoning"] == thought


def test_a_run_that_failed_has_made_no_iterations_in_fim() -> None:
    told: list[Told] = [
        *_asked(),
        Decision(model="m", stop_reason="stop"),
        Draft(text="x", reason="y"),
    ]
    ends: list[tuple[ExitReason, int]] = [("error", 0), ("deadline", 1)]
    for reason, made in ends:
        records = heard("fim", events([(1, [*told, Exit(reason=reason, error="down")])]))
        (done,) = [record for record in records if record.event == "done"]
        assert done.data["iterations"] == made


def test_a_turn_that_waits_is_not_told_as_paused_by_a_call_that_was_cut_off() -> None:
    calls = [ToolCalled(call_id=name, tool="w.ask") for name in ("c1", "c2")]
    waits = ToolPending(call_id="c1", kind="question", question="How much?", digest="")
    decision = Decision(model="m", stop_reason="tool_use", calls=2)
    ends: list[tuple[ResultStatus, bool]] = [
        ("ok", True),
        ("interrupted", False),
        ("stopped", False),
    ]
    for status, pauses in ends:
        result = ToolResult(call_id="c2", tool="w.ask", text="", status=status)
        records = heard("nadoo", events([(1, [*_asked(), decision, *calls, waits, result])]))
        assert (lasting(records)[-1].event == "node_finished") == pauses


def test_the_tokens_of_an_answer_follow_the_iteration_they_belong_to() -> None:
    decision = Decision(model="m", stop_reason="stop")
    told = [*_asked(), delta("thinking", "hm"), delta("answer", "Te"), delta("answer", "a.")]
    told += [decision, Thinking(text="hm"), Completion(text="Tea."), Exit(reason="complete")]
    records = heard("nadoo", events([(1, told)]))
    assert [
        (record.event, record.data.get("token"), bool(record.id)) for record in records[1:]
    ] == [
        ("llm_token", "hm", False),
        ("agent_iteration", None, True),
        ("llm_token", "Te", False),
        ("llm_token", "a.", False),
        ("llm_finished", None, True),
        ("node_finished", None, True),
    ]


def test_an_answer_that_is_void_before_its_iteration_is_told_is_never_shown() -> None:
    decision = Decision(model="m", stop_reason="tool_use", calls=1)
    told = [*_asked(), delta("answer", "No tea."), reset(), decision]
    told += [ToolCalled(call_id="c1", tool="w.look")]
    words = [event.event for event in heard("nadoo", events([(1, told)]))]
    assert words[:-1] == ["node_started", "agent_iteration", "agent_tool_call"]


def test_the_tokens_of_an_answer_that_is_asked_for_alone_are_told_as_they_come() -> None:
    told = [*_asked(), Decision(model="m", stop_reason="stop"), Draft(text="x", reason="synthesis")]
    told += [answer_begun(), delta("answer", "Tea.")]
    (token,) = [
        event for event in heard("nadoo", events([(1, told)])) if event.event == "llm_token"
    ]
    assert token.data["token"] == "Tea."


def test_a_forced_answer_is_no_further_iteration() -> None:
    answer = Decision(model="m", stop_reason="stop", purpose="answer")
    told = [*_asked(), answer, Completion(text="Tea.", flag="forced"), Exit(reason="complete")]
    words = [event.event for event in heard("nadoo", events([(1, told)]))]
    assert words == ["node_started", "llm_finished", "node_finished"]


def test_what_was_taken_back_is_never_told_as_taken() -> None:
    told = [*_asked(), UserSteer(text="Black!"), UserRecalled(said=4), begun(4)]
    assert "inject" not in [event.event for event in heard("fim", events([(1, told)]))]


def test_a_citation_is_told_as_it_was_heard_while_it_was_written() -> None:
    told = [*_asked(), Completion(text="[[S:4]] and [[S:2-9]]", sources_used=(4, 2, 3))]
    (answer,) = [
        event for event in heard("chatcli", events([(1, told)])) if event.event == "message"
    ]
    assert answer.data["text"] == "[1] and [2] [3] [1]"


def test_the_deltas_of_a_channel_are_counted_to_their_end() -> None:
    records = heard("kdcube", EVENTS)
    answers = [record.data["delta"] for record in records if record.event == "chat_delta"]
    counted = [
        (answer["index"], answer["completed"])
        for answer in answers
        if isinstance(answer, dict) and answer["marker"] == "answer"
    ]
    # what was begun and void each time begins at 0 again
    assert counted == [(0, False), (0, False), (0, False), (1, False), (2, True), (0, False)]


def test_an_envelope_says_whose_conversation_it_is() -> None:
    (start, *_) = heard("kdcube", EVENTS)
    assert start.data["service"] == {
        "request_id": "tea:turn_1",
        "tenant": TALK.tenant,
        "project": TALK.project,
        "user": TALK.user,
        "user_type": "registered",
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_vocabulary_may_begin_in_the_middle(name: DialectName) -> None:
    for first in range(len(BLOCKS)):
        stream: Sequence[Event] = BLOCKS[first:]
        assert heard(name, stream)


def _asked() -> list[Told]:
    return [UserPrompt(text="Which tea?"), HEADER, begun(1)]
