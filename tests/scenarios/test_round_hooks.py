"""Round hooks speak when a turn goes in circles, and middleware wraps a run; broken or slow middleware costs nothing."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import BaseWorkflow, Bundle, LooplineError, TurnPayload, TurnResult
from loopline.clock import SystemClock
from loopline.errors import StoreError
from loopline.models import Usage
from loopline.react import Hold, Middleware, ReactStateV2, Reminder, RoundHook, Run, Stop
from loopline.react.extensions import (
    COMPLETION_CHECK,
    CYCLE,
    FAILURE_REFLECTION,
    SELF_CHECK,
    Breaker,
    Layer,
    after_run,
    before_run,
    completion_check,
    cycle_warning,
    failure_reflection,
    in_order,
    self_check,
    stagnation,
    timeout,
    wrap,
)
from loopline.react.state import repetitions
from loopline.testing import Call, FakeClock, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Batch, Draft, Notice, ResultStatus, ToolCalled, ToolResult
from tests.support.playground import Playground
from tests.support.rows import each_row
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import bodies_of, shown

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


@each_row(
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
    ]
)
def test_each_cycle_is_warned_of_once(rounds: Sequence[Round], message: list[int]) -> None:
    assert spoken(cycle_warning(after=3), rounds) == message


def test_a_warning_names_the_tools_and_the_rounds() -> None:
    result = cycle_warning(after=2)(state([A, A]))
    assert isinstance(result, Reminder)
    assert result.code == CYCLE
    assert result.text.startswith("The same calls were made 2 times over: shop.find.")


@each_row(
    [
        ([A, A], False),
        ([A, A, A], True),
        ([A, A, A, A], True),
        ([A, A, B], False),
        ([A, B, A, B, A], False),
        ([A, B, A, B, A, B], True),
        ([[*A, *A, *A]], True),
    ]
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


@each_row(
    [
        ([A, B, A], "Yes.", True),
        ([A, B], "Yes.", False),
        ([A, NOTHING, B], "Yes.", False),
        ([A, B, A], None, False),
        ([A, B, A], "a" * 800, True),
        ([A, B, A], "a" * 801, False),
    ]
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


@each_row(
    [
        ([BAD], "Every call of the last round failed: shop.find.", False),
        ([BAD, BAD], "Every call of the last round failed", False),
        ([BAD, BAD, BAD], "3 rounds in a row", True),
        ([MIXED], "Some calls failed: shop.find.", False),
        ([MIXED, BAD, MIXED], "3 rounds in a row", True),
        ([BAD, BAD, A, BAD], "Every call of the last round failed", False),
        ([DENIED], "None of these calls is permitted: shop.find.", False),
        ([BAD, BAD, DENIED], "None of these calls is permitted", True),
    ]
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


class Hooked(Playground):
    round_hooks = (
        cycle_warning(after=2),
        failure_reflection(),
        completion_check("Is every number right?", after=1),
    )


HOOKED = Bundle(id="result", workflow=Hooked)


async def test_in_a_turn_the_model_reads_what_the_nudges_say() -> None:
    look, fail = Call("play.look", text="x"), Call("play.fail", message="no")
    model = ScriptedModel([look, look, fail, "Seven.", "Eight."])
    result, blocks = await play_turn(model, "How many?", bundle=HOOKED)
    notices = bodies_of(blocks, Notice)
    assert [notice.code for notice in notices] == [CYCLE, FAILURE_REFLECTION, COMPLETION_CHECK]
    requests = [shown(request) for request in model.requests]
    told = [[notice.text in request for notice in notices] for request in requests]
    assert told == [
        [False, False, False],
        [False, False, False],
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
    assert [draft.text for draft in bodies_of(blocks, Draft)] == ["Seven."]
    assert result.answer == "Eight."


async def test_what_an_earlier_turn_called_is_not_called_again_by_this_one() -> None:
    look = Call("play.look", text="x")
    script: list[Entry] = [look, "One.", "One!", look, "Two.", "Two!"]
    async with talking(script, bundle=HOOKED) as talk:
        await talk.say("go")
        await talk.say("again")
        notices = [b.body for b in await talk.blocks() if isinstance(b.body, Notice)]
    assert [notice.code for notice in notices] == [COMPLETION_CHECK] * 2


PAYLOAD = TurnPayload(
    text="x", conversation="c", turn_id="turn_1", ts=datetime(2026, 1, 1, tzinfo=UTC)
)


def said(text: str) -> TurnResult:
    return TurnResult(answer=text, turn_id="turn_1", exit_reason="complete", ok=True)


@dataclass
class Plain:
    """A run that answers with what it was asked, and knows how often it was run."""

    runs: int = 0
    error: Exception | None = None
    first: Callable[[], None] = field(default=lambda: None)

    async def __call__(self, payload: TurnPayload) -> TurnResult:
        self.runs += 1
        self.first()
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return said(f"answer to {payload.text}")


def marks(name: str) -> Middleware:
    async def wrapper(payload: TurnPayload, run: Run) -> TurnResult:
        result = await run(replace(payload, text=f"{payload.text}>{name}"))
        return replace(result, answer=f"{result.answer}<{name}")

    return wrapper


async def breaks_before(payload: TurnPayload, run: Run) -> TurnResult:
    raise ValueError("broken")


async def breaks_after(payload: TurnPayload, run: Run) -> TurnResult:
    await run(payload)
    raise ValueError("broken")


async def instead(payload: TurnPayload, run: Run) -> TurnResult:
    return said("instead")


async def test_the_first_around_is_the_outermost() -> None:
    run = wrap(Plain(), [marks("a"), marks("b")])
    assert (await run(PAYLOAD)).answer == "answer to x>a>b<b<a"


async def test_middleware_is_placed_by_priority_and_then_in_the_order_given() -> None:
    layers: list[Middleware | Layer] = [
        marks("a"),
        Layer(marks("b"), 200),
        Layer(marks("c"), 1),
        Layer(marks("d"), 100),
    ]
    run = wrap(Plain(), layers)
    assert (await run(PAYLOAD)).answer == "answer to x>c>a>d>b<b<d<a<c"
    assert len(in_order(layers)) == 4


async def test_without_arounds_the_run_is_as_it_was() -> None:
    plain = Plain()
    assert wrap(plain, []) is plain


async def test_hooks_before_a_run_change_what_it_is_given_in_their_order() -> None:
    async def one(payload: TurnPayload) -> TurnPayload:
        return replace(payload, text=f"[1]{payload.text}")

    async def two(payload: TurnPayload) -> TurnPayload:
        return replace(payload, text=f"[2]{payload.text}")

    async def looks(payload: TurnPayload) -> None:
        assert payload.text == "[2][1]x"

    run = wrap(Plain(), [before_run(one, two, looks)])
    assert (await run(PAYLOAD)).answer == "answer to [2][1]x"


async def test_a_hook_that_gives_a_result_ends_it_there_and_hooks_after_the_run_still_see_it() -> (
    None
):
    async def ends(payload: TurnPayload) -> TurnResult:
        return said("cached")

    async def never(payload: TurnPayload) -> TurnPayload:
        raise AssertionError("the hooks went on")

    async def checks(payload: TurnPayload, result: TurnResult) -> TurnResult:
        return replace(result, answer=f"{result.answer}, checked")

    plain = Plain()
    run = wrap(plain, [after_run(checks), before_run(ends, never)])
    assert (await run(PAYLOAD)).answer == "cached, checked"
    assert plain.runs == 0


async def test_hooks_after_a_run_work_each_on_what_the_one_before_gave() -> None:
    order = list[str]()

    async def refine(payload: TurnPayload, result: TurnResult) -> TurnResult:
        order.append("refine")
        return replace(result, answer=f"{result.answer} refined")

    async def verify(payload: TurnPayload, result: TurnResult) -> None:
        order.append(f"verify {result.answer}")

    run = wrap(Plain(), [after_run(refine, verify)])
    assert (await run(PAYLOAD)).answer == "answer to x refined"
    assert order == ["refine", "verify answer to x refined"]


@pytest.mark.parametrize("wrapper", [breaks_before, breaks_after])
async def test_the_plain_run_stands_in_for_a_broken_around_and_is_run_once(
    wrapper: Middleware, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Plain()
    with caplog.at_level(logging.ERROR, "loopline"):
        result = await Breaker(wrapper, FakeClock())(PAYLOAD, plain)
    assert (result.answer, plain.runs) == ("answer to x", 1)
    assert "broke, so the plain run is used" in caplog.text


async def test_what_a_run_raises_is_not_the_around_s_failure() -> None:
    async def tries_and_breaks(payload: TurnPayload, run: Run) -> TurnResult:
        try:
            return await run(payload)
        except LooplineError as error:
            raise ValueError("broken") from error

    breaker = Breaker(tries_and_breaks, FakeClock(), failures=1)
    plain = Plain(error=LooplineError("down"))
    for _ in range(3):
        with pytest.raises(LooplineError, match="down"):
            await breaker(PAYLOAD, plain)
    with pytest.raises(LooplineError, match="down"):
        await Breaker(marks("a"), FakeClock())(PAYLOAD, plain)
    assert plain.runs == 4


async def test_an_around_may_answer_for_a_run_that_failed() -> None:
    async def answers(payload: TurnPayload, run: Run) -> TurnResult:
        try:
            return await run(payload)
        except LooplineError:
            return said("sorry")

    plain = Plain(error=LooplineError("down"))
    assert (await Breaker(answers, FakeClock())(PAYLOAD, plain)).answer == "sorry"


async def test_nothing_stands_in_for_a_store_that_failed() -> None:
    async def keeps(payload: TurnPayload, run: Run) -> TurnResult:
        raise StoreError("no disk")

    plain = Plain()
    with pytest.raises(StoreError):
        await Breaker(keeps, FakeClock())(PAYLOAD, plain)
    assert plain.runs == 0


async def test_an_around_that_keeps_failing_is_left_out_until_it_has_rested() -> None:
    tries = 0
    sound = False

    async def unsteady(payload: TurnPayload, run: Run) -> TurnResult:
        nonlocal tries
        tries += 1
        if sound:
            return await instead(payload, run)
        return await breaks_before(payload, run)

    clock = FakeClock()
    run = wrap(Plain(), [Breaker(unsteady, clock)])
    for _ in range(8):
        assert (await run(PAYLOAD)).answer == "answer to x"
    assert tries == 5
    clock.advance(30)
    await run(PAYLOAD)
    await run(PAYLOAD)
    assert tries == 6
    clock.advance(30)
    sound = True
    assert [(await run(PAYLOAD)).answer for _ in range(2)] == ["instead", "instead"]


async def test_a_success_between_failures_counts_them_anew() -> None:
    outcomes = iter([False] * 4 + [True] + [False] * 4 + [True])

    async def unsteady(payload: TurnPayload, run: Run) -> TurnResult:
        return await (instead if next(outcomes) else breaks_before)(payload, run)

    run = wrap(Plain(), [Breaker(unsteady, FakeClock())])
    answers = [(await run(PAYLOAD)).answer for _ in range(10)]
    assert [number for number, answer in enumerate(answers) if answer == "instead"] == [4, 9]


async def test_an_around_that_is_being_tried_again_is_left_out_of_the_other_turns() -> None:
    clock = FakeClock()
    trying = asyncio.Event()
    go_on = asyncio.Event()
    sound = False

    async def slow(payload: TurnPayload, run: Run) -> TurnResult:
        if not sound:
            return await breaks_before(payload, run)
        trying.set()
        await go_on.wait()
        return said("instead")

    breaker = Breaker(slow, clock, failures=1)
    await breaker(PAYLOAD, Plain())
    clock.advance(30)
    sound = True
    first = asyncio.create_task(breaker(PAYLOAD, Plain()))
    await trying.wait()
    assert (await breaker(PAYLOAD, Plain())).answer == "answer to x"
    go_on.set()
    assert (await first).answer == "instead"


async def test_an_around_that_gives_no_result_is_broken() -> None:
    class Forgets:
        async def __call__(self, payload: TurnPayload, run: Run) -> TurnResult:
            result: list[TurnResult | str] = ["no result"]
            return (
                result[0]
                if isinstance(result[0], TurnResult)
                else await breaks_before(payload, run)
            )

    assert (await Breaker(Forgets(), FakeClock())(PAYLOAD, Plain())).answer == "answer to x"


async def test_an_around_that_takes_too_long_before_the_run_is_cut_off() -> None:
    clock, plain = FakeClock(), Plain()
    late = list[str]()

    async def stubborn(payload: TurnPayload, run: Run) -> TurnResult:
        while not late:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                late.append("cancelled")
        try:
            return await run(payload)
        except LooplineError as error:
            late.append(str(error))
            raise

    turn = asyncio.create_task(Breaker(timeout(stubborn, 30, clock), clock)(PAYLOAD, plain))
    await asyncio.sleep(0)
    clock.advance(29)
    await asyncio.sleep(0)
    assert not turn.done()
    clock.advance(1)
    assert (await turn).answer == "answer to x"
    await asyncio.sleep(0)
    assert plain.runs == 1
    assert late[0] == "cancelled"
    assert late[1].startswith("it is too late for this run")


async def test_an_around_that_takes_too_long_after_the_run_leaves_the_result_as_it_was() -> None:
    clock, plain = FakeClock(), Plain()
    done = asyncio.Event()

    async def hangs(payload: TurnPayload, run: Run) -> TurnResult:
        await run(payload)
        done.set()
        await asyncio.Event().wait()
        return said("late")

    turn = asyncio.create_task(Breaker(timeout(hangs, 30, clock), clock)(PAYLOAD, plain))
    await done.wait()
    clock.advance(30)
    assert ((await turn).answer, plain.runs) == ("answer to x", 1)


async def test_the_time_of_the_run_itself_is_not_counted() -> None:
    clock = FakeClock()
    plain = Plain(first=lambda: clock.advance(3_600))
    result = await timeout(marks("a"), 30, clock)(PAYLOAD, plain)
    assert result.answer == "answer to x>a<a"


async def test_alone_a_timeout_is_an_error() -> None:
    async def hangs(payload: TurnPayload, run: Run) -> TurnResult:
        await asyncio.Event().wait()
        return said("late")

    with pytest.raises(TimeoutError, match=r"longer than 0\.001 s"):
        await timeout(hangs, 0.001, SystemClock())(PAYLOAD, Plain())


async def test_a_turn_that_is_cancelled_takes_its_arounds_with_it() -> None:
    texts = list[str]()

    async def hangs(payload: TurnPayload, run: Run) -> TurnResult:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            texts.append("cleaned up")
        return said("late")

    clock = FakeClock()
    turn = asyncio.create_task(Breaker(timeout(hangs, 30, clock), clock)(PAYLOAD, Plain()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert texts == ["cleaned up"]


async def test_an_around_that_cancels_itself_does_not_cancel_the_turn() -> None:
    async def gives_up(payload: TurnPayload, run: Run) -> TurnResult:
        raise asyncio.CancelledError

    clock = FakeClock()
    result = await Breaker(timeout(gives_up, 30, clock), clock)(PAYLOAD, Plain())
    assert result.answer == "answer to x"


async def test_an_around_that_breaks_while_its_run_is_under_way_waits_for_that() -> None:
    async def begins_and_breaks(payload: TurnPayload, run: Run) -> TurnResult:
        running = asyncio.ensure_future(run(payload))
        await asyncio.sleep(0)
        assert not running.done()
        raise ValueError("broken")

    plain = Plain()
    result = await Breaker(begins_and_breaks, FakeClock())(PAYLOAD, plain)
    assert (result.answer, plain.runs) == ("answer to x", 1)


class Wrapped(BaseWorkflow):
    """A loop with broken middleware, and one that writes the answer anew."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        broken = Breaker(breaks_after, FakeClock())
        self.middleware = in_order([Layer(broken, 200), after_run(self._louder)])
        react = await self.build_react()
        return await react.run(payload)

    async def _louder(self, payload: TurnPayload, result: TurnResult) -> TurnResult:
        return await self.answer(result.answer.upper())


async def test_in_a_turn_arounds_stand_about_the_loop() -> None:
    async with talking(["Yes."], bundle=Bundle(id="wrapped", workflow=Wrapped)) as talk:
        assert (await talk.say("Is it so?")).answer == "YES."
        (read,) = await talk.read(["ar:turn_1.assistant.completion"])
    assert read.text == "YES."
