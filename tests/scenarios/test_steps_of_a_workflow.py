"""Steps and agents of a workflow: a turn that is resumed reads what each gave instead of running it again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import pytest

from loopline import (
    Agent,
    BaseWorkflow,
    Bundle,
    BundleError,
    ToolContext,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline import timeline as tl
from loopline.errors import LeaseLost, StepFailed, StepInterrupted
from loopline.events import Event
from loopline.events.projection import TurnEventFold
from loopline.events.turn_events import (
    CallFinished,
    CallStarted,
    InputRequested,
    TurnFinished,
    TurnPaused,
)
from loopline.models import Model
from loopline.server import app
from loopline.testing import Call, FakeClock, ScriptedModel
from tests.support.child_runs import Line
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.crews import Scripts
from tests.support.live_server import in_process
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import bodies_of

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


Process: TypeAlias = Callable[[Any, TurnPayload], Any]


def workflow(process: Process, **fields: Any) -> Bundle[Any]:
    """A bundle whose turns run this function."""
    kind = type("Steps", (BaseWorkflow,), {"process": process})
    return Bundle(id="tea", workflow=kind, **fields)


async def begin_or_resume(
    bundle: Bundle[Any], model: Model, log: tl.TimelineLog | None
) -> tuple[TurnResult[Any], Sequence[tl.Block]]:
    log = tl.MemoryLog() if log is None else log
    async with talking(model, bundle=bundle, store=log) as talk:
        begun = await log.find(talk.conversation)
        result = await (talk.resume() if begun else talk.say("go"))
        return result, await talk.blocks()


async def say(
    bundle: Bundle[Any], log: tl.TimelineLog | None = None
) -> tuple[str, list[tl.StepStarted | tl.StepEnded]]:
    """Begin the turn, or resume it; return its answer and the bodies of its steps."""
    result, blocks = await begin_or_resume(bundle, ScriptedModel([], strict=False), log)
    steps = [
        block.body for block in blocks if isinstance(block.body, tl.StepStarted | tl.StepEnded)
    ]
    return result.answer, steps


async def say_after_a_cut(
    process: Process, appends: int
) -> tuple[str, list[tl.StepStarted | tl.StepEnded]]:
    """Cut the turn off after so many appends, and resume it."""
    memory = tl.MemoryLog()
    with pytest.raises((Crashed, LeaseLost)):
        await say(workflow(process), CrashingLog(memory, appends))
    return await say(workflow(process), memory)


async def test_a_step_whose_awaitable_has_no_type_returns_any_value() -> None:
    def find_number() -> Awaitable[int]:
        return asyncio.sleep(0, 4)

    find_number.__annotations__["return"] = Awaitable

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        return await self.answer(f"{await self.step('number', find_number)}")

    assert (await say(workflow(process)))[0] == "4"


async def test_a_step_returns_a_value_of_the_type_that_its_function_returns() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        price = await self.step("price", find_price, "sencha")
        stock = await self.step("stock", partial(find_stock, tea="assam"))
        number = await self.step("number", lambda: 4)
        return await self.answer(f"{price} {stock} {number}")

    answer, steps = await say(workflow(process))
    assert answer == "Price(tea='sencha', euros=7) ('assam', 3) 4"
    assert [body.type for body in steps] == ["workflow.step.start", "workflow.step.end"] * 3
    assert steps[1] == tl.StepEnded(name="price", value='{"tea":"sencha","euros":7}')


@pytest.mark.parametrize("left", range(2, 9))
async def test_wherever_a_turn_is_cut_off_its_finished_steps_are_read_and_not_run_again(
    left: int,
) -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        price = await self.step("price", find_price, "sencha", effect="read")
        stock = await self.step("stock", find_stock, "sencha", effect="read")
        return await self.answer(f"{price.euros} {stock}")

    log = CrashingLog(memory := tl.MemoryLog(), left)
    try:
        answer, _ = await say(workflow(process), log)
    except Crashed:
        answer, steps = await say(workflow(process), memory)
        ends = [body.name for body in steps if isinstance(body, tl.StepEnded)]
        starts = [body.name for body in steps if isinstance(body, tl.StepStarted)]
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

    answer, steps = await say_after_a_cut(process, 2)
    assert answer == "order: is it ordered?"
    assert CALLS == ["sencha"]
    assert [body.status for body in steps if isinstance(body, tl.StepEnded)] == ["interrupted"]


async def test_a_step_that_was_cut_off_asks_its_reconcile_for_the_result() -> None:
    def look(tea: str) -> Price | None:
        return Price(tea, 9) if tea in CALLS else None

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        price = await self.step("order", find_price, "sencha", reconcile=look)
        return await self.answer(f"{price.euros}")

    answer, _ = await say_after_a_cut(process, 2)
    assert (answer, CALLS) == ("9", ["sencha"])


async def test_the_effect_of_a_tool_function_is_that_of_its_step() -> None:
    @tool(effect="read")
    def look_up(tea: str) -> int:
        """Look a tea up."""
        CALLS.append(tea)
        return 5

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        return await self.answer(f"{await self.step('look', look_up, 'assam')}")

    answer, _ = await say_after_a_cut(process, 2)
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
        await say(workflow(process), tl.MemoryLog())
    assert CALLS == []


def found_order(tea: str, cups: int) -> str:
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
    function: Callable[..., str], effect: Literal["read", "write"] | None, recorded: tl.Effect
) -> None:
    is_partial = bool(getattr(function, "keywords", None))
    arguments = ("sencha",) if is_partial else ("sencha", 2)

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        return await self.answer(await self.step("order", function, *arguments, effect=effect))

    answer, steps = await say(workflow(process), tl.MemoryLog())
    assert answer.startswith("2 cups of sencha")
    assert [body.effect for body in steps if isinstance(body, tl.StepStarted)] == [recorded]


async def test_a_step_of_a_tool_with_bound_arguments_is_found_again_by_its_reconcile() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        return await self.answer(await self.step("order", partial(place_order, cups=2), "sencha"))

    answer, _ = await say_after_a_cut(process, 2)
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

    answer, _ = await say_after_a_cut(process, 3)
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

    log = tl.MemoryLog()
    async with talking([], bundle=workflow(process), store=log) as talk:
        turn = asyncio.create_task(talk.say("go"))
        await begun.wait()
        await talk.stop()
        result = await turn
        ends = [block.body for block in await talk.blocks(types="workflow.step.end")]
    assert result.exit_reason == "stopped"
    assert [(body.name, body.status) for body in ends if isinstance(body, tl.StepEnded)] == [
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

    answer, steps = await say_after_a_cut(process, 3)
    assert answer == "StepFailed"
    assert [body.name for body in steps if isinstance(body, tl.StepStarted)] == ["wait", "next"]


async def test_steps_may_run_at_once_and_are_found_again_in_any_order() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        teas = ["sencha", "assam", "earl grey"]
        if CALLS:
            teas.reverse()
        steps = [self.step(f"stock of {tea}", find_stock, tea, effect="read") for tea in teas]
        found = await asyncio.gather(*steps)
        await self.step("last", lambda: 1)
        return await self.answer(", ".join(sorted(tea for tea, _ in found)))

    answer, _ = await say_after_a_cut(process, 7)
    assert answer == "assam, earl grey, sencha"
    assert len(CALLS) == 3


async def test_no_prompt_shows_a_step() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        await self.step("price", find_price, "a secret tea")
        return await (await self.build_react()).run(payload)

    model = ScriptedModel(["Seven."])
    await play_turn(model, bundle=workflow(process))
    assert "secret" not in str(model.requests[0])


READER = Agent(name="reader", description="Reads about a tea.", instructions="Read.")


@tool(effect="write", key="{tea}")
def note(tea: str) -> str:
    """Note a tea."""
    CALLS.append(tea)
    return f"noted {tea}"


@tool(effect="write", approve=True)
def order(tea: str) -> str:
    """Order a tea."""
    CALLS.append(tea)
    return f"ordered {tea}"


@tool
def ask(question: str, context: ToolContext) -> str:
    """Ask the user."""
    context.ask_user(question)


def at_tea(process: Process, *tools: Callable[..., Any]) -> Bundle[Any]:
    return workflow(process, tools=[*tools] or [note, order, ask], agents=[READER])


ORDERED: dict[str, list[Line]] = {"about nettle": [Call("tea.order", tea="nettle"), "It is done."]}


def scripts() -> dict[str, list[Line]]:
    return {
        f"about {tea}": [Call("tea.note", tea=tea), f"{tea} is good."]
        for tea in ("sencha", "assam", "earl grey", "oolong")
    }


async def live(
    bundle: Bundle[Any], lines: dict[str, list[Line]], log: tl.TimelineLog | None = None
) -> TurnResult[Any]:
    """Begin the turn, or resume it."""
    result, _ = await begin_or_resume(bundle, Scripts(lines), log)
    return result


async def test_an_agent_runs_and_its_result_is_that_of_the_step() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        result = await self.run("reader", "about sencha")
        return await self.answer(f"{result.answer} {result.ok} {result.rounds}")

    result = await live(at_tea(process), scripts())
    assert result.answer == "sencha is good. True 2"
    assert CALLS == ["sencha"]


async def test_the_time_of_the_agents_is_that_of_their_step() -> None:
    @tool(effect="read")
    async def look(context: ToolContext) -> str:
        """Look at a tea."""
        await clock.sleep(2)
        return "looked"

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult[Any]:
        return await self.answer((await self.run("reader", "about tea.")).answer)

    clock = FakeClock()
    model = Scripts({"about tea.": [Call("tea.look"), "good"]})
    _, blocks = await play_turn(model, bundle=at_tea(process, look), clock=clock)
    assert [end.elapsed_ms for end in bodies_of(blocks, tl.StepEnded)] == [2_000.0]


async def test_a_fan_out_returns_the_results_in_order_and_a_failed_one_as_such() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        teas = ["sencha", "nettle", "assam"]
        results = await self.map(READER, [f"about {tea}" for tea in teas], limit=2)
        said = [result.answer if result.ok else result.exit_reason for result in results]
        return await self.answer(", ".join(said))

    result = await live(at_tea(process), {**scripts()})
    assert result.answer == "sencha is good., error, assam is good."


async def test_at_most_so_many_agents_of_a_fan_out_run_at_once() -> None:
    running, most = 0, 0

    @tool(effect="read")
    async def look(tea: str) -> str:
        """Look at a tea."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return tea

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult[Any]:
        results = await self.map("reader", [f"about {n}." for n in range(7)], limit=3)
        return await self.answer(f"{len(results)}")

    lines: dict[str, list[Line]] = {
        f"about {n}.": [Call("tea.look", tea=f"{n}"), "looked"] for n in range(7)
    }
    result = await live(at_tea(process, look), lines)
    assert (result.answer, most) == ("7", 3)


async def _map_and_step(self: BaseWorkflow, payload: TurnPayload) -> TurnResult[Any]:
    results = await self.map("reader", ["about sencha", "about assam", "about oolong"], limit=2)
    count = await self.step("count", lambda: len(results), effect="read")
    last = await self.run("reader", "about earl grey")
    return await self.answer(f"{count} {last.answer}")


@pytest.mark.parametrize("left", range(2, 42, 3))
async def test_wherever_a_fan_out_is_cut_off_no_agent_that_has_ended_runs_again(left: int) -> None:
    log = CrashingLog(memory := tl.MemoryLog(), left)
    try:
        result = await live(at_tea(_map_and_step), scripts(), log)
    except Crashed:
        result = await live(at_tea(_map_and_step), scripts(), memory)
    assert result.answer == "3 earl grey is good."
    # A note that was cut off before its result was recorded is reported as such, and not made again.
    assert max(Counter(CALLS).values()) == 1
    async with talking(Scripts({}), bundle=at_tea(_map_and_step), store=memory) as talk:
        blocks = await talk.blocks()
    begun = Counter(
        block.body.conversation
        for block in blocks
        if isinstance(block.body, tl.RunChild) and not block.body.reason
    )
    assert begun == dict.fromkeys(("c~c0.1.1", "c~c0.1.1.2", "c~c0.1.1.3", "c~c0.1.2"), 1)


async def test_results_that_are_too_long_for_their_step_are_found_in_the_child_runs() -> None:
    log = CrashingLog(memory := tl.MemoryLog())

    def cut_off() -> None:
        log.left = 0

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        results = await self.map(READER, ["about sencha", "about assam"])
        await self.step("pause", cut_off, effect="read")
        return await self.answer(" ".join(result.answer.split()[-3] for result in results))

    lines = scripts()
    for tea in ("sencha", "assam"):
        lines[f"about {tea}"][1] = "long " * 250_000 + f"{tea} is good."
    with pytest.raises(Crashed):
        await live(at_tea(process), lines, log)
    result = await live(at_tea(process), {}, memory)
    assert result.answer == "sencha assam"
    assert sorted(CALLS) == ["assam", "sencha"]


@pytest.mark.parametrize(
    ("call", "answer"),
    [(Call("tea.order", tea="nettle"), True), (Call("tea.ask", question="Which?"), "green")],
)
async def test_an_agent_that_asks_the_user_pauses_the_turn_and_goes_on_with_the_answer(
    call: Line, answer: Any
) -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        await self.step("before", lambda: CALLS.append("before"))
        first, second = await asyncio.gather(
            self.run("reader", "about nettle"), self.run("reader", "about sencha")
        )
        return await self.answer(f"{first.answer} {second.answer}")

    lines: dict[str, list[Line]] = {**scripts(), "about nettle": [call, "It is done."]}
    log, bundle = tl.MemoryLog(), at_tea(process)
    paused = await live(bundle, lines, log)
    assert paused.exit_reason == "paused"
    [pending] = paused.pending
    assert (pending.call_id, pending.tool) == ("c0.1.1", "workflow.run")
    async with talking(Scripts(lines), bundle=bundle, store=log) as talk:
        result = await talk.resume({pending.call_id: answer})
    assert result.answer == "It is done. sencha is good."
    assert Counter(CALLS)["before"] == 1
    assert max(Counter(CALLS).values()) == 1


async def test_a_stop_while_the_step_of_an_agent_that_asks_waits_for_another_step_ends_the_turn() -> (
    None
):
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        async with asyncio.TaskGroup() as steps:
            steps.create_task(self.run("reader", "about nettle"))
            steps.create_task(self.step("wait", asyncio.Event().wait, effect="read"))
        raise AssertionError

    model = Scripts({"about nettle": [Call("tea.ask", question="Which?")]})
    async with talking(model, bundle=at_tea(process)) as talk:
        events = talk.stream("go")
        async with asyncio.timeout(20):
            async for event in events:
                if isinstance(event, tl.Block) and isinstance(event.body, tl.ToolPending):
                    await talk.stop()
        [exit_body] = bodies_of(await talk.blocks(), tl.Exit)
    assert (exit_body.reason, exit_body.error) == ("stopped", "")


async def test_a_message_after_the_question_of_an_agent_ends_the_turn_and_its_step() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        if payload.text != "go":
            return await self.answer("fine")
        await self.run("reader", "about nettle")
        raise AssertionError

    model = Scripts({"about nettle": [Call("tea.ask", question="Which?")]})
    async with talking(model, bundle=at_tea(process)) as talk:
        await talk.say("go")
        await talk.say("never mind")
        blocks = await talk.blocks(turn="turn_1")
    ends = bodies_of(blocks, tl.StepEnded)
    assert [end.status for end in ends] == ["interrupted"]


async def test_the_agents_of_a_workflow_share_the_budget_of_the_turn() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        results = await self.map("reader", ["about sencha", "about assam"])
        return await self.answer(", ".join(result.exit_reason for result in results))

    result, _ = await play_turn(Scripts(scripts()), bundle=at_tea(process), max_tokens=300)
    assert "budget" in result.answer


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("raeder", ["a"]), "agents, nearest is 'reader'"),
        (("reader", "about sencha"), "the tasks of map"),
        (("reader", [""]), "one of them is empty"),
        (("reader", [3]), "a task must be a text, not 3"),
        (("reader", ["a"] * 1_001), "map has 1,001 tasks, and may have 1,000"),
    ],
)
async def test_a_wrong_argument_of_map_is_an_error_with_file_and_line(
    arguments: Any, problem: str
) -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        await self.map(*arguments)
        raise AssertionError

    with pytest.raises(BundleError) as raised:
        await live(at_tea(process), {})
    assert problem in str(raised.value)
    assert "test_steps_of_a_workflow.py:" in str(raised.value)


async def test_a_stop_ends_the_agents_and_the_step() -> None:
    begun = asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult[Any]:
        await self.map("reader", ["about sencha"])
        raise AssertionError

    model = Scripts({"about sencha": [Call("tea.wait")]})
    async with talking(model, bundle=at_tea(process, wait)) as talk:
        turn = asyncio.create_task(talk.say("go"))
        await begun.wait()
        await talk.stop()
        result = await turn
        bodies = [block.body for block in await talk.blocks()]
    assert result.exit_reason == "stopped"
    assert [body.status for body in bodies if isinstance(body, tl.StepEnded)] == ["stopped"]
    assert [body.reason for body in bodies if isinstance(body, tl.RunChild)] == ["", "stopped"]


async def test_a_server_lists_the_approval_of_an_agent_and_takes_the_answer() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        result = await self.run("reader", "about nettle")
        return await self.answer(result.answer)

    served = app(at_tea(process), store="memory:", model=Scripts(ORDERED))
    async with in_process(served) as client:
        talk = "/conversations/default/default/c"
        paused = (await client.post(f"{talk}/messages", json={"text": "go"})).json()
        [asked] = (await client.get(f"{talk}/approvals")).json()["approvals"]
        answered = await client.post(
            f"{talk}/answers",
            json={"values": {"c0.1.1": True}, "approvals": {"c0.1.1": asked["approval"]}},
        )
    assert (paused["exit_reason"], asked["call_id"], asked["tool"]) == (
        "paused",
        "c0.1.1",
        "workflow.run",
    )
    assert answered.json()["answer"] == "It is done."
    assert CALLS == ["nettle"]


async def test_clients_are_shown_the_step_whose_agent_asks_and_a_pause_once_all_steps_wait() -> (
    None
):
    asked = asyncio.Event()

    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        result, _ = await asyncio.gather(
            self.run("reader", "about nettle"), self.step("wait", asked.wait, effect="read")
        )
        return await self.answer(result.answer)

    events = list[Event]()
    async with talking(Scripts(ORDERED), bundle=at_tea(process)) as talk:
        async for event in talk.stream("go"):
            events.append(event)
            if isinstance(event, tl.Block) and isinstance(event.body, tl.ToolPending):
                asked.set()
        async for event in talk.stream_resume({"c0.1.1": True}):
            events.append(event)
    fold = TurnEventFold()
    told = [turn_event for event in events for _, turn_event in fold.take(event)]
    shown = [type(turn_event) for turn_event in told if isinstance(turn_event, SHOWN)]
    assert shown == [CallStarted, InputRequested, TurnPaused, CallFinished, TurnFinished]
    [started] = [turn_event for turn_event in told if isinstance(turn_event, CallStarted)]
    assert (started.tool, "step" in started.arguments) == ("workflow.run", True)


SHOWN = (CallStarted, InputRequested, TurnPaused, CallFinished, TurnFinished)
