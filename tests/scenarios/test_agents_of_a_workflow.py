"""Agents that `process` runs: `self.run` and `self.map`, whose child runs a resumed turn finds again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from loopline import (
    Agent,
    BaseWorkflow,
    Bundle,
    BundleError,
    Harness,
    ToolContext,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline.conversations import Conversation
from loopline.events import Event
from loopline.events.projection import TurnEventFold
from loopline.events.turn_events import (
    CallFinished,
    CallStarted,
    InputRequested,
    TurnFinished,
    TurnPaused,
)
from loopline.server import app
from loopline.testing import Call, FakeClock
from loopline.timeline import Block, MemoryLog, RunChild, StepEnded, TimelineLog, ToolPending
from tests.support.child_runs import Line
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.crews import Scripts

CALLS: list[str] = []
READER = Agent(name="reader", description="Reads about a tea.", instructions="Read.")


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


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


def workflow(process: Callable[[Any, TurnPayload], Any]) -> Bundle[Any]:
    """A bundle with an agent, whose turns run this function."""
    kind = type("Steps", (BaseWorkflow,), {"process": process})
    return Bundle(id="tea", workflow=kind, tools=[note, order, ask], agents=[READER])


def scripts() -> dict[str, list[Line]]:
    """What the agents say of each tea."""
    return {
        f"about {tea}": [Call("tea.note", tea=tea), f"{tea} is good."]
        for tea in ("sencha", "assam", "earl grey", "oolong")
    }


async def live(
    bundle: Bundle[Any], lines: dict[str, list[Line]], log: TimelineLog | None = None
) -> TurnResult[Any]:
    """Begin the turn, or resume it."""
    log = log or MemoryLog()
    async with Harness.open(bundle, store=log, model=Scripts(lines), clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        begun = await log.find(talk.conversation)
        return await (talk.resume() if begun else talk.say("go"))


async def test_an_agent_runs_and_its_result_is_that_of_the_step() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        result = await self.run("reader", "about sencha")
        return await self.answer(f"{result.answer} {result.ok} {result.rounds}")

    result = await live(workflow(process), scripts())
    assert result.answer == "sencha is good. True 2"
    assert CALLS == ["sencha"]


async def test_the_time_of_the_agents_is_that_of_their_step() -> None:
    @tool(effect="read")
    async def look(context: ToolContext) -> str:
        """Look at a tea."""
        await clock.sleep(2)
        return "looked"

    class Steps(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult[Any]:
            return await self.answer((await self.run("reader", "about tea.")).answer)

    clock = FakeClock()
    bundle = Bundle(id="tea", workflow=Steps, tools=[look], agents=[READER])
    model = Scripts({"about tea.": [Call("tea.look"), "good"]})
    async with Harness.open(bundle, store="memory:", model=model, clock=clock) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        blocks = await talk.blocks()
    assert [block.body.elapsed_ms for block in blocks if isinstance(block.body, StepEnded)] == [
        2_000.0
    ]


async def test_a_fan_out_returns_the_results_in_order_and_a_failed_one_as_such() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        teas = ["sencha", "nettle", "assam"]
        results = await self.map(READER, [f"about {tea}" for tea in teas], limit=2)
        said = [result.answer if result.ok else result.exit_reason for result in results]
        return await self.answer(", ".join(said))

    result = await live(workflow(process), {**scripts()})
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

    class Steps(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult[Any]:
            results = await self.map("reader", [f"about {n}." for n in range(7)], limit=3)
            return await self.answer(f"{len(results)}")

    lines: dict[str, list[Line]] = {
        f"about {n}.": [Call("tea.look", tea=f"{n}"), "looked"] for n in range(7)
    }
    result = await live(Bundle(id="tea", workflow=Steps, tools=[look], agents=[READER]), lines)
    assert (result.answer, most) == ("7", 3)


async def _map_and_step(self: BaseWorkflow, payload: TurnPayload) -> TurnResult[Any]:
    results = await self.map("reader", ["about sencha", "about assam", "about oolong"], limit=2)
    count = await self.step("count", lambda: len(results), effect="read")
    last = await self.run("reader", "about earl grey")
    return await self.answer(f"{count} {last.answer}")


@pytest.mark.parametrize("left", range(2, 42, 3))
async def test_wherever_a_fan_out_is_cut_off_no_agent_that_has_ended_runs_again(left: int) -> None:
    log = CrashingLog(memory := MemoryLog())
    log.left = left
    try:
        result = await live(workflow(_map_and_step), scripts(), log)
    except Crashed:
        result = await live(workflow(_map_and_step), scripts(), memory)
    assert result.answer == "3 earl grey is good."
    # A note that was cut off before its result was recorded is reported as such, and not made again.
    assert max(Counter(CALLS).values()) == 1
    async with Harness.open(workflow(_map_and_step), store=memory, model=Scripts({})) as harness:
        blocks = await harness.conversation("c").blocks()
    begun = Counter(
        block.body.conversation
        for block in blocks
        if isinstance(block.body, RunChild) and not block.body.reason
    )
    assert begun == dict.fromkeys(("c~c0.1.1", "c~c0.1.1.2", "c~c0.1.1.3", "c~c0.1.2"), 1)


async def test_results_that_are_too_long_for_their_step_are_found_in_the_child_runs() -> None:
    log = CrashingLog(memory := MemoryLog())

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
        await live(workflow(process), lines, log)
    result = await live(workflow(process), {}, memory)
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
    log = MemoryLog()
    bundle = workflow(process)

    def opened() -> Any:
        return Harness.open(bundle, store=log, model=Scripts(lines), clock=FakeClock())

    async with opened() as harness:
        paused = await harness.conversation("c").say("go")
    assert paused.exit_reason == "paused"
    [pending] = paused.pending
    assert (pending.call_id, pending.tool) == ("c0.1.1", "workflow.run")
    async with opened() as harness:
        talk: Conversation[Any] = harness.conversation("c")
        result = await talk.resume({pending.call_id: answer})
    assert result.answer == "It is done. sencha is good."
    assert Counter(CALLS)["before"] == 1
    assert max(Counter(CALLS).values()) == 1


async def test_a_message_after_the_question_of_an_agent_ends_the_turn_and_its_step() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        if payload.text != "go":
            return await self.answer("fine")
        await self.run("reader", "about nettle")
        raise AssertionError

    lines: dict[str, list[Line]] = {"about nettle": [Call("tea.ask", question="Which?")]}
    model = Scripts(lines)
    async with Harness.open(workflow(process), store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        await talk.say("never mind")
        blocks = await talk.blocks(turn="turn_1")
    ends = [block.body for block in blocks if isinstance(block.body, StepEnded)]
    assert [end.status for end in ends] == ["interrupted"]


async def test_the_agents_of_a_workflow_share_the_budget_of_the_turn() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        results = await self.map("reader", ["about sencha", "about assam"])
        return await self.answer(", ".join(result.exit_reason for result in results))

    async with Harness.open(
        workflow(process), store="memory:", model=Scripts(scripts())
    ) as harness:
        result = await harness.conversation("c").say("go", max_tokens=300)
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
        await live(workflow(process), {})
    assert problem in str(raised.value)
    assert "test_agents_of_a_workflow.py:" in str(raised.value)


async def test_a_stop_ends_the_agents_and_the_step() -> None:
    begun = asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    class Steps(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult[Any]:
            await self.map("reader", ["about sencha"])
            raise AssertionError

    bundle = Bundle(id="tea", workflow=Steps, tools=[wait], agents=[READER])
    model = Scripts({"about sencha": [Call("tea.wait")]})
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        turn = asyncio.create_task(talk.say("go"))
        await begun.wait()
        await talk.stop()
        result = await turn
        bodies = [block.body for block in await talk.blocks()]
    assert result.exit_reason == "stopped"
    assert [body.status for body in bodies if isinstance(body, StepEnded)] == ["stopped"]
    assert [body.reason for body in bodies if isinstance(body, RunChild)] == ["", "stopped"]


async def test_a_server_lists_the_approval_of_an_agent_and_takes_the_answer() -> None:
    async def process(self: BaseWorkflow, payload: TurnPayload) -> TurnResult:
        result = await self.run("reader", "about nettle")
        return await self.answer(result.answer)

    lines: dict[str, list[Line]] = {
        "about nettle": [Call("tea.order", tea="nettle"), "It is done."]
    }
    served = app(workflow(process), store="memory:", model=Scripts(lines))
    async with (
        served.router.lifespan_context(served),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(served), base_url="http://localhost"
        ) as client,
    ):
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

    lines: dict[str, list[Line]] = {
        "about nettle": [Call("tea.order", tea="nettle"), "It is done."]
    }
    events = list[Event]()
    async with Harness.open(workflow(process), store="memory:", model=Scripts(lines)) as harness:
        talk = harness.conversation("c")
        async for event in talk.stream("go"):
            events.append(event)
            if isinstance(event, Block) and isinstance(event.body, ToolPending):
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
