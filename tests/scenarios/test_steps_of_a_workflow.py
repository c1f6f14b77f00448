"""Steps of a workflow: each is recorded, and a turn that is resumed reads its result instead of running it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from loopline import BaseWorkflow, Bundle, BundleError, Harness, TurnPayload, TurnResult, tool
from loopline.errors import LeaseLost, StepFailed, StepInterrupted
from loopline.testing import FakeClock, ScriptedModel
from loopline.timeline import Effect, MemoryLog, StepEnded, StepStarted, TimelineLog
from tests.support.crashing_log import Crashed, CrashingLog

CALLS: list[str] = []


@dataclass
class Price:
    """A price of a tea."""

    tea: str
    euros: int


def find_price(tea: str) -> Price:
    CALLS.append(tea)
    return Price(tea, 7)


async def find_stock(tea: str) -> tuple[str, int]:
    CALLS.append(f"stock of {tea}")
    return tea, 3


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def workflow(process: Callable[[Any, TurnPayload], Any]) -> Bundle[Any]:
    """A bundle whose turns run this function."""
    return Bundle(id="steps", workflow=type("Steps", (BaseWorkflow,), {"process": process}))


async def say(
    bundle: Bundle[Any], log: TimelineLog | None = None
) -> tuple[str, list[StepStarted | StepEnded]]:
    """Begin the turn, or resume it; return its answer and the bodies of its steps."""
    log = MemoryLog() if log is None else log
    model = ScriptedModel([], strict=False)
    async with Harness.open(bundle, store=log, model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        begun = await log.find(talk.conversation)
        result = await (talk.resume() if begun else talk.say("go"))
        blocks = await talk.blocks()
    steps = [block.body for block in blocks if isinstance(block.body, StepStarted | StepEnded)]
    return result.answer, steps


async def test_a_step_returns_a_value_of_the_type_that_its_function_returns() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        price = await self.step("price", find_price, "sencha")
        stock = await self.step("stock", partial(find_stock, tea="assam"))
        number = await self.step("number", lambda: 4)
        return await self.answer(f"{price} {stock} {number}")

    answer, steps = await say(workflow(process))
    assert answer == "Price(tea='sencha', euros=7) ('assam', 3) 4"
    assert [body.type for body in steps] == ["workflow.step.start", "workflow.step.end"] * 3
    assert steps[1] == StepEnded(name="price", value='{"tea":"sencha","euros":7}')


@pytest.mark.parametrize("left", range(2, 9))
async def test_wherever_a_turn_is_cut_off_its_finished_steps_are_read_and_not_run_again(
    left: int,
) -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        price = await self.step("price", find_price, "sencha", effect="read")
        stock = await self.step("stock", find_stock, "sencha", effect="read")
        return await self.answer(f"{price.euros} {stock}")

    log = CrashingLog(memory := MemoryLog())
    log.left = left
    try:
        answer, _ = await say(workflow(process), log)
    except Crashed:
        answer, steps = await say(workflow(process), memory)
        ends = [body.name for body in steps if isinstance(body, StepEnded)]
        starts = [body.name for body in steps if isinstance(body, StepStarted)]
        assert starts == ends == ["price", "stock"]
    assert answer == "7 ('sencha', 3)"
    # What is run again is at most the step whose end was not recorded.
    assert len(CALLS) <= 3


async def test_a_step_with_an_effect_that_was_cut_off_is_not_begun_again() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        try:
            await self.step("order", find_price, "sencha")
        except StepInterrupted as error:
            return await self.answer(f"{error.name}: is it ordered?")
        return await self.answer("ordered")

    log = CrashingLog(memory := MemoryLog())
    log.left = 2
    with pytest.raises(Crashed):
        await say(workflow(process), log)
    answer, steps = await say(workflow(process), memory)
    assert answer == "order: is it ordered?"
    assert CALLS == ["sencha"]
    assert [body.status for body in steps if isinstance(body, StepEnded)] == ["interrupted"]


async def test_a_step_that_was_cut_off_asks_its_reconcile_for_the_result() -> None:
    def look(tea: str) -> Price | None:
        return Price(tea, 9) if tea in CALLS else None

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        price = await self.step("order", find_price, "sencha", reconcile=look)
        return await self.answer(f"{price.euros}")

    log = CrashingLog(memory := MemoryLog())
    log.left = 2
    with pytest.raises(Crashed):
        await say(workflow(process), log)
    answer, _ = await say(workflow(process), memory)
    assert (answer, CALLS) == ("9", ["sencha"])


async def test_the_effect_of_a_tool_function_is_that_of_its_step() -> None:
    @tool(effect="read")
    def look_up(tea: str) -> int:
        """Look a tea up."""
        CALLS.append(tea)
        return 5

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        return await self.answer(f"{await self.step('look', look_up, 'assam')}")

    log = CrashingLog(memory := MemoryLog())
    log.left = 2
    with pytest.raises(Crashed):
        await say(workflow(process), log)
    answer, _ = await say(workflow(process), memory)
    assert (answer, CALLS) == ("5", ["assam", "assam"])


async def test_a_tool_that_needs_approval_is_no_step() -> None:
    @tool(effect="write", key="orders", approve=True)
    def buy(tea: str) -> str:
        """Buy a tea."""
        CALLS.append(tea)
        return tea

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        return await self.answer(await self.step("buy", partial(buy, "assam")))

    with pytest.raises(BundleError, match="its tool has approve=, and a step asks nobody"):
        await say(workflow(process), MemoryLog())
    assert CALLS == []


def found_order(tea: str, cups: int) -> str:
    """Find an order again."""
    return f"{cups} cups of {tea}, found again"


@tool(effect="write", key="orders", reconcile=found_order)
def place_order(tea: str, cups: int) -> str:
    """Order tea."""
    CALLS.append(tea)
    return f"{cups} cups of {tea}"


@tool(effect="meta")
def plan_tasting(tea: str, cups: int) -> str:
    """Plan a tasting."""
    return f"{cups} cups of {tea}"


@pytest.mark.parametrize(
    ("function", "effect", "recorded"),
    [
        (place_order, None, "write"),
        (partial(place_order, cups=2), None, "write"),
        (place_order, "read", "read"),
        (plan_tasting, None, "meta"),
        (found_order, "write", "write"),
        (found_order, None, "exclusive"),
    ],
)
async def test_a_step_is_recorded_with_the_effect_of_its_function(
    function: Callable[..., str], effect: Literal["read", "write"] | None, recorded: Effect
) -> None:
    is_partial = bool(getattr(function, "keywords", None))
    arguments = ("sencha",) if is_partial else ("sencha", 2)

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        return await self.answer(await self.step("order", function, *arguments, effect=effect))

    answer, steps = await say(workflow(process), MemoryLog())
    assert answer.startswith("2 cups of sencha")
    assert [body.effect for body in steps if isinstance(body, StepStarted)] == [recorded]


async def test_a_step_of_a_tool_with_bound_arguments_is_found_again_by_its_reconcile() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        return await self.answer(await self.step("order", partial(place_order, cups=2), "sencha"))

    log = CrashingLog(memory := MemoryLog())
    log.left = 2
    with pytest.raises(Crashed):
        await say(workflow(process), log)
    answer, _ = await say(workflow(process), memory)
    assert (answer, CALLS) == ("2 cups of sencha, found again", ["sencha"])


async def test_a_step_that_raises_fails_in_the_same_way_when_the_turn_is_resumed() -> None:
    def divide() -> float:
        CALLS.append("once")
        return 1 / 0

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        try:
            await self.step("divide", divide)
        except StepFailed as error:
            text = f"{error}"
            await self.step("next", lambda: 1)
            return await self.answer(text)
        raise AssertionError

    log = CrashingLog(memory := MemoryLog())
    log.left = 3
    with pytest.raises(Crashed):
        await say(workflow(process), log)
    answer, _ = await say(workflow(process), memory)
    assert answer == "the step 'divide' failed: ZeroDivisionError: division by zero"
    assert CALLS == ["once"]


async def test_a_failed_step_that_nobody_catches_ends_the_turn_with_file_and_line() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        await self.step("divide", lambda: 1 / 0)
        raise AssertionError

    with pytest.raises(BundleError, match=r"test_steps_of_a_workflow.py:\d+: StepFailed: the step"):
        await say(workflow(process))


@pytest.mark.parametrize(
    ("name", "function", "problem"),
    [
        ("twice", lambda: 1, "this turn has a step 'twice' already"),
        ("", lambda: 1, "the name of a step is a text of 1 to 200 characters, not ''"),
        (3, lambda: 1, "the name of a step must be a text, not 3"),
        ("price", lambda: Price("a", 1), "annotate the return type of its function"),
        ("pair", lambda: (1, 2), "annotate the return type of its function"),
        ("nan", lambda: float("nan"), "annotate the return type of its function"),
        (
            "large",
            lambda: "x" * 2_000_001,
            "its result has 2,000,003 bytes, and may have 2,000,000",
        ),
    ],
)
async def test_a_step_that_is_not_allowed_says_why(
    name: Any, function: Callable[[], Any], problem: str
) -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        await self.step("twice", lambda: 1)
        await self.step(name, function)
        return await self.answer("done")

    with pytest.raises(BundleError) as raised:
        await say(workflow(process))
    assert problem in str(raised.value)


async def test_a_stop_ends_the_step_that_runs() -> None:
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        await self.step("wait", wait)
        raise AssertionError

    log = MemoryLog()
    async with Harness.open(workflow(process), store=log, model=ScriptedModel([])) as harness:
        talk = harness.conversation("c")
        turn = asyncio.create_task(talk.say("go"))
        await begun.wait()
        await talk.stop()
        result = await turn
        ends = [block.body for block in await talk.blocks(types="workflow.step.end")]
    assert result.exit_reason == "stopped"
    assert [(body.name, body.status) for body in ends if isinstance(body, StepEnded)] == [
        ("wait", "stopped")
    ]


async def test_a_step_that_takes_too_long_has_ended_for_a_turn_that_is_resumed() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        problem = "none"
        try:
            async with asyncio.timeout(0.01):
                await self.step("wait", asyncio.Event().wait)
        except (TimeoutError, StepFailed) as error:
            problem = type(error).__name__
        await self.step("next", lambda: 1)
        return await self.answer(problem)

    log = CrashingLog(memory := MemoryLog())
    log.left = 3
    with pytest.raises(Crashed):
        await say(workflow(process), log)
    answer, steps = await say(workflow(process), memory)
    assert answer == "StepFailed"
    assert [body.name for body in steps if isinstance(body, StepStarted)] == ["wait", "next"]


async def test_steps_may_run_at_once_and_are_found_again_in_any_order() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        teas = ["sencha", "assam", "earl grey"]
        if CALLS:
            teas.reverse()
        steps = [self.step(f"stock of {tea}", find_stock, tea, effect="read") for tea in teas]
        found = await asyncio.gather(*steps)
        await self.step("last", lambda: 1)
        return await self.answer(", ".join(sorted(tea for tea, _ in found)))

    log = CrashingLog(memory := MemoryLog())
    log.left = 7
    with pytest.raises((Crashed, LeaseLost)):
        await say(workflow(process), log)
    answer, _ = await say(workflow(process), memory)
    assert answer == "assam, earl grey, sencha"
    assert len(CALLS) == 3


async def test_no_prompt_shows_a_step() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        await self.step("price", find_price, "a secret tea")
        return await (await self.build_react()).run(payload)

    model = ScriptedModel(["Seven."])
    async with Harness.open(workflow(process), store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
    assert "secret" not in str(model.requests[0])


async def test_a_stop_of_another_process_ends_the_step_that_runs(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        await self.step("wait", wait)
        raise AssertionError

    store, bundle = f"sqlite:///{tmp_path}/s.db", workflow(process)
    async with (
        Harness.open(bundle, store=store, model=ScriptedModel([])) as harness,
        Harness.open(bundle, store=store, model=ScriptedModel([])) as other,
    ):
        turn = asyncio.create_task(harness.conversation("c").say("go"))
        await begun.wait()
        assert await other.conversation("c").stop()
        assert (await turn).exit_reason == "stopped"
