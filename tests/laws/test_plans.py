"""Plans: what a snapshot says, which one is current, and which lines of notes acknowledge a step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import ToolError
from loopline.refs import PlanRef, parse
from loopline.timeline import MARKS, Moment, Plans, PlanSnapshot, plan

NOON = Moment(datetime(2026, 1, 1, 12, tzinfo=UTC), "turn_1")
operations = st.lists(
    st.tuples(st.sampled_from(["new", "activate", "replace", "close", "done"]), st.integers(1, 6)),
    max_size=12,
)


def after(plans: Plans, snapshots: Sequence[PlanSnapshot]) -> Plans:
    return plan.fold([*plans.latest.values(), *snapshots])


def operate(plans: Plans, operation: str, plan_id: str, new_id: str) -> list[PlanSnapshot]:
    match operation:
        case "new":
            return plan.new(plans, new_id, ["look", "answer"], NOON)
        case "activate":
            return plan.activate(plans, plan_id, NOON)
        case "replace":
            return plan.replace_with(plans, plan_id, new_id, ["answer"], NOON)
        case "close":
            return plan.close(plans, plan_id, NOON)
        case _:
            current = plans.current
            done = plan.acknowledge(current, "✓ 1\n✓ 2", NOON) if current else None
            return [done] if done else []


def played(script: Sequence[tuple[str, int]]) -> list[PlanSnapshot]:
    """The snapshots that a script of operations makes; those that cannot be make none."""
    snapshots = list[PlanSnapshot]()
    for number, (operation, target) in enumerate(script, start=1):
        try:
            made = operate(plan.fold(snapshots), operation, f"p{target}", f"p{number}")
        except ToolError:
            continue
        snapshots += made
    return snapshots


@given(operations)
def test_at_most_one_open_plan_is_current(script: list[tuple[str, int]]) -> None:
    plans = plan.fold(played(script))
    current = [open_plan for open_plan in plans.open_plans if open_plan.current]
    assert current == ([plans.current] if plans.current else [])


@given(operations)
def test_a_plan_that_has_ended_never_changes_again(script: list[tuple[str, int]]) -> None:
    ended = dict[str, PlanSnapshot]()
    for snapshot in played(script):
        assert snapshot.plan_id not in ended
        if not snapshot.open:
            ended[snapshot.plan_id] = snapshot


@given(operations)
def test_the_last_snapshot_of_an_id_is_how_the_plan_stands(script: list[tuple[str, int]]) -> None:
    snapshots = played(script)
    plans = plan.fold(snapshots)
    assert plans.latest == {snapshot.plan_id: snapshot for snapshot in snapshots}
    assert [*plans.latest.values()][-1:] == snapshots[-1:]


@given(operations)
def test_the_history_tells_of_every_plan_but_the_current_one(script: list[tuple[str, int]]) -> None:
    plans = plan.fold(played(script))
    told = [
        parse(line.partition("snapshot_ref=")[2])
        for line in plan.history(plans).splitlines()
        if "snapshot_ref=" in line
    ]
    newest_first = [*reversed(plans.open_plans), *reversed(plans.closed_plans)]
    assert told == [PlanRef(plan_id=item.plan_id) for item in newest_first if item != plans.current]


def test_two_changes_in_one_moment_stand_in_the_order_of_the_log() -> None:
    plans = after(Plans(), plan.new(Plans(), "b", ["look"], NOON))
    plans = after(plans, plan.new(plans, "a", ["answer"], NOON))
    assert plans.current is plans.latest["a"]
    plans = after(plans, plan.activate(plans, "b", NOON))
    assert plans.current is plans.latest["b"]
    assert [open_plan.plan_id for open_plan in plans.open_plans] == ["a", "b"]


def test_a_plan_that_is_replaced_while_another_is_current_leaves_one_current() -> None:
    plans = after(Plans(), plan.new(Plans(), "a", ["look"], NOON))
    plans = after(plans, plan.new(plans, "b", ["look"], NOON))
    plans = after(plans, plan.replace_with(plans, "a", "c", ["answer"], NOON))
    assert (plans.latest["a"].status, plans.latest["a"].superseded_by_plan_id) == (
        "superseded",
        "c",
    )
    assert [(open_plan.plan_id, open_plan.current) for open_plan in plans.open_plans] == [
        ("b", False),
        ("c", True),
    ]


def test_a_closed_plan_cannot_be_activated() -> None:
    plans = after(Plans(), plan.new(Plans(), "a", ["look"], NOON))
    plans = after(plans, plan.close(plans, "a", NOON))
    with pytest.raises(ToolError, match="that plan is closed"):
        plan.activate(plans, "a", NOON)


def test_when_the_current_plan_ends_no_other_takes_its_place() -> None:
    plans = after(Plans(), plan.new(Plans(), "a", ["look"], NOON))
    plans = after(plans, plan.new(plans, "b", ["look"], NOON))
    plans = after(plans, plan.close(plans, "b", NOON))
    assert (plans.current, [open_plan.plan_id for open_plan in plans.open_plans]) == (None, ["a"])


@pytest.mark.parametrize(
    ("line", "marks"),
    [
        ("✓ [2]", {2: "done"}),
        ("✓ [2] looked", {2: "done"}),
        ("✓[2]", {2: "done"}),
        ("✓ 2.", {2: "done"}),
        ("✓ 2: x", {2: "done"}),
        ("✓ 2) x", {2: "done"}),
        ("✓ 2", {2: "done"}),
        ("  ✓ [ 2 ] x", {2: "done"}),
        ("- ✓ [2]", {2: "done"}),
        ("* ✓ 2.", {2: "done"}),
        ("• ✓ 2", {2: "done"}),
        ("✓\ufe0e [2]", {2: "done"}),
        ("✔\ufe0f [2]", {2: "done"}),
        ("✅ [2]", {2: "done"}),
        ("☑\ufe0f 2", {2: "done"}),
        ("✗ [2]", {2: "failed"}),
        ("✘ [2]", {2: "failed"}),
        ("✖\ufe0f [2]", {2: "failed"}),
        ("❌ 2.", {2: "failed"}),
        ("… [2]", {2: "in_progress"}),
        ("... [2] looking", {2: "in_progress"}),
        ("□ [2]", {2: "pending"}),
        ("☐ 2", {2: "pending"}),
        ("✓ [002]", {2: "done"}),
        ("✓ [2]\n✗ [2]", {2: "failed"}),
        ("✓ [3]\ntext\n… 1", {3: "done", 1: "in_progress"}),
        ("✓ [9]", {}),
        ("✓ [0]", {}),
        ("✓ [12345]", {}),
        ("✓ 2x", {}),
        ("✓ 2.5 ms", {}),
        ("✓ two", {}),
        ("... 2 more to go", {}),
        ("-✓ [2]", {}),
        ("[x] 2", {}),
        ("- [x] 2", {}),
        ("- [ ] 2", {}),
        ("so ✓ [2]", {}),
        ("✓ [\u0662]", {}),
    ],
)
def test_a_line_that_begins_with_a_mark_acknowledges(line: str, marks: dict[int, str]) -> None:
    assert plan.read_marks(line, steps=3) == marks


@pytest.mark.parametrize("steps", [1, 3, 40])
def test_the_last_step_can_be_acknowledged_and_the_one_behind_it_cannot(steps: int) -> None:
    notes = f"✓ [{steps}] last\n✓ [{steps + 1}] behind it\n✓ [0] before the first"
    assert plan.read_marks(notes, steps) == {steps: "done"}


@given(st.text(alphabet="✓✗…□.[]0123456789 -*•\ufe0f\nx", max_size=40), st.integers(0, 5))
def test_only_steps_that_there_are_can_be_acknowledged(notes: str, steps: int) -> None:
    assert set(plan.read_marks(notes, steps)) <= set(range(1, steps + 1))


@given(st.lists(st.sampled_from(sorted(MARKS)), min_size=1, max_size=6))
def test_a_plan_reads_back_from_its_own_lines(statuses: list[plan.StepStatus]) -> None:
    [begun] = plan.new(Plans(), "a", ["step"] * len(statuses), NOON)
    wanted = {str(n): status for n, status in enumerate(statuses, start=1)}
    notes = "\n".join(f"{MARKS[status]} [{n}] step" for n, status in enumerate(statuses, start=1))
    stands = plan.acknowledge(begun, notes, NOON) or begun
    assert {str(n): stands.at(n) for n in range(1, len(statuses) + 1)} == wanted
    assert "\n".join(stands.lines()) == notes


def test_what_is_already_so_is_no_acknowledgement() -> None:
    [begun] = plan.new(Plans(), "a", ["look"], NOON)
    done = plan.acknowledge(begun, "✓ 1", NOON)
    assert done is not None
    assert plan.acknowledge(done, "- ✔\ufe0f [1]", NOON) is None


def test_the_history_is_told_newest_first() -> None:
    plans = after(Plans(), plan.new(Plans(), "plan:turn_1:c1", ["look"], NOON))
    plans = after(
        plans, plan.replace_with(plans, "plan:turn_1:c1", "plan:turn_1:c2", ["a", "b"], NOON)
    )
    later = Moment(NOON.ts, "turn_2")
    plans = after(plans, plan.new(plans, "plan:turn_2:c3", ["answer"], later))
    assert (
        plan.history(plans)
        == """\
[EARLIER PLANS]
plan_id=plan:turn_1:c2 (open, not current), last changed in turn_2
  □ [1] a
  □ [2] b
  snapshot_ref=ar:plan.latest:plan:turn_1:c2
plan_id=plan:turn_1:c1 (superseded by plan:turn_1:c2), last changed in turn_1: □ [1] look \
snapshot_ref=ar:plan.latest:plan:turn_1:c1"""
    )


def test_without_earlier_plans_there_is_no_history() -> None:
    assert plan.history(after(Plans(), plan.new(Plans(), "a", ["look"], NOON))) == ""


def test_a_plan_that_is_current_already_is_not_recorded_again() -> None:
    begun = after(Plans(), plan.new(Plans(), "plan:a", ["look"], NOON))
    assert plan.activate(begun, "plan:a", NOON) == []


@pytest.mark.parametrize(
    ("answer", "marks"),
    [
        ("✓ [1] run\n\n- ✗ 2. failed\nSo.", "✓ [1] run\n\n- ✗ 2. failed"),
        ("✓ 1\n✓ 2:\nSo.", "✓ 1\n✓ 2:"),
        ("✓ [1] run\n✓ [3] is none\nSo.", "✓ [1] run"),
        ("✓ 1 test passes\n✗ 2 tests fail\nSo.", ""),
        ("✓ 12 tests pass\nSo.", ""),
        ("✓ [3] is none\n✓ [1] run\nSo.", ""),
        ("So.\n✓ [1] run", ""),
    ],
)
def test_the_lines_that_lead_an_answer_are_marks_as_long_as_each_names_a_step(
    answer: str, marks: str
) -> None:
    taken, rest = plan.split_marks(answer, steps=2)
    assert taken == marks
    assert rest == answer.removeprefix(marks).lstrip("\n" if marks else "")


@given(st.text(st.sampled_from("✓✗[]12 3.:\nax-")), st.integers(0, 3), st.integers(0, 40))
def test_no_line_that_acknowledges_is_taken_before_it_may_be_one(
    answer: str, steps: int, size: int
) -> None:
    marks, rest = plan.split_marks(answer, steps)
    assert len(marks) + len(rest) <= len(answer)
    assert answer.endswith(rest)
    assert all(plan.read_mark(line, steps) for line in marks.splitlines() if line.strip())
    begun_marks = marks[:size]
    assert all(map(plan.may_lead, begun_marks.splitlines()))
