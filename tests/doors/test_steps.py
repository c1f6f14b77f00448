"""The steps on the screen are a fold over the events of a turn."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from loopline import timeline as tl
from loopline.cli.turn_display import Step, Steps, step_line, take_finished_steps
from loopline.events import Delta
from tests.support.round_starts import round_start

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = tl.plan.new(tl.Plans(), "p1", ["look", "answer"], tl.Moment(BEGINNING, "turn_1"))[0]


def acknowledged(notes: str) -> tl.Plan:
    snapshot = tl.plan.acknowledge(STEPS, notes, tl.Moment(BEGINNING, "turn_1"))
    assert snapshot is not None
    return tl.Plan(snapshot=snapshot)


def start() -> tl.RoundStart:
    return round_start(model="scripted")


def decided(calls: int = 0) -> tl.Decision:
    return tl.Decision(model="scripted", stop_reason="stop", calls=calls)


def called(call_id: str, tool: str = "shop.find", **arguments: str) -> tl.ToolCalled:
    return tl.ToolCalled(call_id=call_id, tool=tool, arguments={**arguments})


def came(call_id: str, tool: str = "shop.find", found: int | None = None) -> tl.ToolResult:
    return tl.ToolResult(call_id=call_id, tool=tool, text="tea", elapsed_ms=4.0, found=found)


def folded(*bodies: tl.Body | tuple[int, tl.Body]) -> Steps:
    """The steps after these bodies, a millisecond apart; a body alone is of the first round."""
    steps = Steps()
    for number, item in enumerate(bodies):
        round_, body = item if isinstance(item, tuple) else (1, item)
        ts = BEGINNING + timedelta(milliseconds=number)
        block = tl.Block(seq=number + 1, turn=1, round=round_, n=1, ts=ts, term=1, body=body)
        steps.take(block)
    return steps


def test_a_call_without_a_plan_is_a_step_of_its_own() -> None:
    steps = folded(start(), decided(1), called("c1", name="tea"), came("c1"))
    assert steps.steps == (Step(status="done", text='shop.find(name="tea")', ms=4.0),)


def test_a_call_that_was_approved_with_other_arguments_shows_those() -> None:
    result = tl.ToolResult(call_id="c1", tool="shop.find", text="tea", ran_with={"name": "oolong"})
    (step,) = folded(start(), decided(1), called("c1", name="tea"), result).steps
    assert step.text == 'shop.find(name="oolong")'


def test_a_call_is_at_work_until_it_has_come_back() -> None:
    (step,) = folded(start(), decided(1), called("c1")).steps
    assert (step.status, step.ms) == ("in_progress", None)


def test_a_call_that_failed_says_why() -> None:
    failed = tl.ToolResult(call_id="c1", tool="shop.find", text="no\ntea", status="error")
    (step,) = folded(start(), decided(1), called("c1"), failed).steps
    assert step_line(step).plain == "✗ shop.find() · no tea · 0.0 ms"


def test_calls_belong_to_the_step_that_is_worked_on() -> None:
    steps = folded(
        tl.Plan(snapshot=STEPS),
        acknowledged("… [1] looking"),
        called("c1"),
        called("c2"),
        called("c3", "shop.list"),
        came("c1", found=2),
        came("c2", found=1),
        (2, came("c3", "shop.list")),
    )
    assert steps.steps[0] == Step(
        status="in_progress", text="look", tool="shop.find ×2, shop.list", counts="3 hits", ms=4.0
    )


def test_a_plan_without_marks_is_worked_on_from_its_beginning() -> None:
    steps = folded(start(), tl.Plan(snapshot=STEPS), called("c1"), came("c1"))
    assert [step.status for step in steps.steps] == ["in_progress", "pending"]
    assert steps.steps[0].tool == "shop.find"


def test_the_call_that_makes_the_plan_is_not_shown() -> None:
    steps = folded(called("c1", "react.plan"), came("c1", "react.plan"), tl.Plan(snapshot=STEPS))
    assert [step.text for step in steps.steps] == ["look", "answer"]


def test_a_step_that_needed_no_tool_was_the_models_own() -> None:
    steps = folded(
        tl.Plan(snapshot=STEPS),
        called("c1"),
        came("c1"),
        start(),
        decided(),
        acknowledged("✓ [1] looked\n✓ [2] answered"),
        tl.Exit(reason="complete"),
    )
    assert [(step.tool, step.ms) for step in steps.steps] == [("shop.find", 4.0), ("scripted", 2.0)]


def test_rounds_add_up_and_calls_at_once_do_not() -> None:
    steps = folded(
        tl.Plan(snapshot=STEPS),
        (1, called("c1")),
        (1, called("c2")),
        came("c1"),
        came("c2"),
        (2, called("c3")),
        came("c3"),
    )
    assert steps.steps[0].ms == 8.0


def test_steps_of_a_plan_that_was_given_up_are_left_out() -> None:
    plans = tl.plan.fold([STEPS])
    moment = tl.Moment(BEGINNING, "turn_1")
    old, new = tl.plan.replace_with(plans, "p1", "p2", ["ask"], moment)
    steps = folded(
        tl.Plan(snapshot=STEPS),
        called("c1"),
        came("c1"),
        tl.Plan(snapshot=old),
        tl.Plan(snapshot=new),
    )
    assert [step.text for step in steps.steps] == ["look", "ask"]


def test_only_steps_that_are_over_are_written_to_a_pipe() -> None:
    done = Step(status="done", text="look")
    working = Step(status="in_progress", text="read")
    assert take_finished_steps([done, working, done]) == [done]


def test_an_answer_on_its_way_is_seen_until_it_is_void() -> None:
    steps = Steps()
    for text in ("Green ", "tea."):
        steps.take(Delta(type="delta", channel="answer", text=text))
    assert steps.preview == "Green tea."
    steps.take(Delta(type="reset", channel="answer"))
    assert steps.preview == ""


def test_a_turn_that_is_over_has_nothing_at_work() -> None:
    steps = folded(start(), tl.Plan(snapshot=STEPS), tl.Exit(reason="stopped"))
    assert [step.status for step in steps.steps] == ["pending", "pending"]
