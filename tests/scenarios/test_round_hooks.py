"""Round hooks speak when a turn goes in circles, fails, or answers too soon, and each thing once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import BaseWorkflow, Bundle, LooplineError, TurnPayload, TurnResult
from loopline.models import Usage
from loopline.react import Hold, ReactStateV2, Reminder, RoundHook, Stop
from loopline.react.extensions import (
    COMPLETION_CHECK,
    CYCLE,
    FAILURE_REFLECTION,
    SELF_CHECK,
    completion_check,
    cycle_warning,
    failure_reflection,
    self_check,
    stagnation,
)
from loopline.react.state import repetitions
from loopline.testing import Call
from loopline.timeline import Batch, Draft, Notice, ResultStatus, ToolCalled, ToolResult
from tests.support import playground
from tests.support.scripted_conversation import talking

Round = Sequence[tuple[str, ResultStatus]]
"""The calls of a round: what is asked for, and how it came out."""


def batch(number: int, calls: Round) -> Batch:
    batch = Batch()
    for at, (text, status) in enumerate(calls):
        call_id = f"c{number}.{at}"
        batch.calls.append(ToolCalled(call_id=call_id, tool="shop.find", arguments={"text": text}))
        batch.results[call_id] = ToolResult(
            call_id=call_id, tool="shop.find", text="", status=status
        )
    return batch


def test_a_round_without_calls_repeats_nothing() -> None:
    rounds: list[Round] = [[("tea", "ok")], [("tea", "ok")], [], [("tea", "ok")]]
    assert list(repetitions(batch(n, calls) for n, calls in enumerate(rounds))) == [1, 2, 0, 1]


def state(
    rounds: Sequence[Round],
    *,
    notices: Mapping[str, int] | None = None,
    answer: str | None = None,
    most: int = 99,
) -> ReactStateV2:
    return ReactStateV2(
        iteration=len(rounds),
        max_iterations=most,
        min_rounds=1,
        malformed=0,
        cut_off=0,
        steered=False,
        batches=[batch(number, calls) for number, calls in enumerate(rounds)],
        notices=notices or {},
        usage=Usage(),
        cost=None,
        elapsed_seconds=0.0,
        answer=answer,
    )


A: Round = [("a", "ok")]
B: Round = [("b", "ok")]
C: Round = [("c", "ok")]
BAD: Round = [("a", "error"), ("b", "denied")]
MIXED: Round = [("a", "error"), ("b", "ok")]
DENIED: Round = [("a", "denied")]
NOTHING: Round = []


def spoken(hook: RoundHook, rounds: Sequence[Round], most: int = 99) -> list[int]:
    """The rounds after which it speaks, each of its notices being recorded."""
    counts = Counter[str]()
    numbers = list[int]()
    for number in range(len(rounds) + 1):
        match hook(state(rounds[:number], notices=counts, most=most)):
            case Reminder(code=code):
                counts[code] += 1
                numbers.append(number)
            case _:
                pass
    return numbers


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        ([A, A], []),
        ([A, A, A], [3]),
        ([A, A, A, A, A], [3]),
        ([A, A, B, A, A], []),
        ([A, A, A, B, A, A, A], [3, 7]),
        ([A, A, A, B, B, B], [3, 6]),
        ([[*A, *B], [*B, *A], [*A, *B]], [3]),
        ([[("a b", "ok")], [(" a  b", "ok")], [("a b ", "error")]], [3]),
        ([NOTHING, NOTHING, NOTHING], []),
        ([A, A, NOTHING, A], []),
        ([A, B, A, B], []),
        ([A, B, A, B, A, B, A, B], [6]),
        ([A, B, C, A, B, C, A, B, C], [9]),
        ([A, B, A, B, A, C], []),
        ([[*A, *A, *A]], [1]),
        ([A, [*A, *A]], [2]),
        ([[*A, *B, *A, *B], [*B, *A]], [2]),
        ([[*A, *A, *B], [*A, *B, *A]], []),
    ],
)
def test_each_cycle_is_warned_of_once(rounds: Sequence[Round], message: list[int]) -> None:
    assert spoken(cycle_warning(after=3), rounds) == message


def test_a_warning_names_the_tools_and_the_rounds() -> None:
    result = cycle_warning(after=2)(state([A, A]))
    assert isinstance(result, Reminder)
    assert result.code == CYCLE
    assert result.text.startswith("The same calls were made 2 times over: shop.find.")


@pytest.mark.parametrize(
    ("rounds", "stops"),
    [
        ([A, A], False),
        ([A, A, A], True),
        ([A, A, A, A], True),
        ([A, A, B], False),
        ([A, B, A, B, A], False),
        ([A, B, A, B, A, B], True),
        ([[*A, *A, *A]], True),
    ],
)
def test_a_turn_that_stands_still_is_ended(rounds: Sequence[Round], stops: bool) -> None:
    result = stagnation(after=3)(state(rounds))
    assert isinstance(result, Stop) is stops
    if isinstance(result, Stop):
        assert result.reason == "stagnation"


def test_a_turn_looks_up_from_its_work_after_every_six_rounds_with_calls() -> None:
    assert spoken(self_check(rounds_between=6), [A, B] * 6) == [6, 12]
    assert spoken(self_check(rounds_between=2), [A, NOTHING, B, NOTHING, A, B]) == [3, 6]
    assert spoken(self_check(rounds_between=6), [A, B] * 3, most=6) == []


def test_a_self_check_quotes_what_was_asked() -> None:
    result = self_check(rounds_between=1, goal="Find tea.")(state([A]))
    assert isinstance(result, Reminder)
    assert result.code == SELF_CHECK
    assert "Find tea." in result.text


@pytest.mark.parametrize(
    ("rounds", "answer", "held"),
    [
        ([A, B, A], "Yes.", True),
        ([A, B], "Yes.", False),
        ([A, NOTHING, B], "Yes.", False),
        ([A, B, A], None, False),
        ([A, B, A], "a" * 800, True),
        ([A, B, A], "a" * 801, False),
    ],
)
def test_an_answer_after_three_rounds_with_calls_is_checked(
    rounds: Sequence[Round], answer: str | None, held: bool
) -> None:
    result = completion_check("Is it true?")(state(rounds, answer=answer))
    assert isinstance(result, Hold) is held
    if isinstance(result, Hold):
        assert result.code == COMPLETION_CHECK
        assert "Is it true?" in result.text


def test_only_one_answer_of_a_turn_is_held_for_the_checklist() -> None:
    record = {COMPLETION_CHECK: 1}
    assert completion_check("?", after=0)(state([], notices=record, answer="Yes.")) is None


def test_a_round_in_which_a_call_failed_is_spoken_of() -> None:
    assert spoken(failure_reflection(), [A, BAD, MIXED, NOTHING, BAD, BAD]) == [2, 3, 5, 6]


@pytest.mark.parametrize(
    ("rounds", "message", "firmly"),
    [
        ([BAD], "Every call of the last round failed: shop.find.", False),
        ([BAD, BAD], "Every call of the last round failed", False),
        ([BAD, BAD, BAD], "3 rounds in a row", True),
        ([MIXED], "Some calls failed: shop.find.", False),
        ([MIXED, BAD, MIXED], "3 rounds in a row", True),
        ([BAD, BAD, A, BAD], "Every call of the last round failed", False),
        ([DENIED], "None of these calls is permitted: shop.find.", False),
        ([BAD, BAD, DENIED], "None of these calls is permitted", True),
    ],
)
def test_after_three_failed_rounds_the_words_are_stronger(
    rounds: Sequence[Round], message: str, firmly: bool
) -> None:
    result = failure_reflection()(state(rounds))
    assert isinstance(result, Reminder)
    assert result.code == FAILURE_REFLECTION
    assert message in result.text
    assert ("stop trying this" in result.text) is firmly


def test_a_call_that_still_waits_has_not_failed() -> None:
    waiting = state([BAD])
    waiting.batches[0].results.popitem()
    assert failure_reflection()(waiting) is None


@pytest.mark.parametrize(
    "hook", [cycle_warning(2), stagnation(2), self_check(1), failure_reflection()]
)
def test_what_stands_between_rounds_is_silent_about_an_answer_and_when_none_is_left(
    hook: RoundHook,
) -> None:
    assert hook(state([BAD, BAD], answer="Yes.")) is None
    assert hook(state([BAD, BAD], most=2)) is None
    assert hook(state([BAD, BAD])) is not None


def test_counts_that_mean_nothing_are_refused() -> None:
    makes: list[Callable[[], RoundHook]] = [
        lambda: cycle_warning(1),
        lambda: stagnation(0),
        lambda: self_check(0),
        lambda: completion_check("?", after=-1),
        lambda: completion_check("?", longest=0),
    ]
    for make in makes:
        with pytest.raises(LooplineError, match="or more"):
            make()


ROUNDS = st.lists(st.sampled_from([A, B, BAD, MIXED, DENIED, NOTHING]), max_size=12)


@given(ROUNDS, st.sampled_from(["cycle", "self", "failure"]), st.integers(2, 4))
def test_a_turn_that_is_carried_on_hears_nothing_twice(
    rounds: list[Round], kind: str, count: int
) -> None:
    round_hooks = {
        "cycle": cycle_warning(count),
        "self": self_check(count),
        "failure": failure_reflection(),
    }
    counts = Counter[str]()
    for number in range(len(rounds) + 1):
        match round_hooks[kind](state(rounds[:number], notices=counts)):
            case Reminder(code=code):
                counts[code] += 1
            case _:
                pass
        assert round_hooks[kind](state(rounds[:number], notices=counts)) is None


class Hooked(BaseWorkflow):
    """The playground's tools, with round hooks."""

    round_hooks = (
        cycle_warning(after=2),
        failure_reflection(),
        completion_check("Is every number right?", after=1),
    )

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(tools_module=playground.__name__)
        return await react.run(payload)


HOOKED = Bundle(id="result", workflow=Hooked)


async def test_in_a_turn_the_model_reads_what_the_nudges_say() -> None:
    look, fail = Call("play.look", text="x"), Call("play.fail", message="no")
    async with talking([look, look, fail, "Seven.", "Eight."], bundle=HOOKED) as talk:
        result = await talk.say("How many?")
        bodies = [block.body for block in await talk.blocks()]
    assert [notice.code for notice in bodies if isinstance(notice, Notice)] == [
        CYCLE,
        FAILURE_REFLECTION,
        COMPLETION_CHECK,
    ]
    assert [draft.text for draft in bodies if isinstance(draft, Draft)] == ["Seven."]
    assert result.answer == "Eight."
