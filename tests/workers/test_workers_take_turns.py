"""Workers take the turns that other processes submit, in order, within limits, and whatever becomes of a worker."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loopline import (
    Agent,
    BaseWorkflow,
    Bundle,
    Harness,
    LooplineError,
    ToolContext,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline.conversations import Conversation, Submission
from loopline.files import AttachmentCaps
from loopline.harness import Worker, WorkerLimits, open_turns, open_worker
from loopline.harness.worker import WaitingConversations
from loopline.models import Model
from loopline.react import approval_digest
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry as ScriptEntry
from loopline.timeline import (
    NEW_TURN,
    Block,
    Body,
    ConversationKey,
    ConversationSummary,
    Decision,
    Entry,
    Exit,
    MemoryLog,
    Sender,
    TimelineLog,
    ToolCalled,
    ToolPending,
    ToolResult,
    TurnHeader,
    UserPrompt,
)
from tests.support.echo_model import EchoModel
from tests.support.live_server import book
from tests.support.postgres_server import running_postgres
from tests.support.turn_faults import find_faults
from tests.support.waiting import until
from tests.support.widest_read import WidestRead
from tests.support.worker_process import (
    NotStarted,
    put_back_dead_letters,
    running,
    submitter,
    work,
    worker_process,
)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/talk.db"


@asynccontextmanager
async def submitting(
    bundle: Bundle, store: str, model: Model | None = None
) -> AsyncGenerator[Harness]:
    """A harness that submits turns of the bundle, and a worker in this process that runs them."""
    async with (
        Harness.open(bundle, store=store, model=EchoModel(), submits_only=True) as harness,
        open_worker([bundle], store=store, model=model or EchoModel()) as worker,
        running(worker),
    ):
        yield harness


async def until_begun(talk: Conversation[Any], times: int) -> None:
    """Wait until runners have taken turns of the conversation so often."""

    async def have_begun() -> bool:
        return len(await talk.blocks(types=["turn.header"])) >= times

    await until(have_begun)


def noted(ledger: Path) -> Counter[str]:
    """The lines that tools have written, each with its number."""
    return Counter(ledger.read_text().splitlines())


async def test_a_worker_runs_what_another_process_submits_and_its_result_comes_back(
    store: str, ledger: Path
) -> None:
    async with submitter(store, ledger) as harness:
        talk = harness.conversation("c1")
        with worker_process(store, ledger):
            assert (await talk.say("hello")).answer == "You said: hello"
            events = [event async for event in talk.stream("call work.note text=tea")]
        assert isinstance(events[-1], Block)
        assert isinstance(events[-1].body, Exit)
        assert find_faults(["hello", "call work.note text=tea"], await talk.blocks()) == []
    assert noted(ledger) == {"c1 tea": 1}


async def test_messages_without_a_worker_wait_and_a_worker_that_starts_later_runs_them(
    store: str, ledger: Path
) -> None:
    async with submitter(store, ledger) as harness:
        talk = harness.conversation("c1")
        sent = [await talk.submit(f"number {n}") for n in range(3)]
        [queued] = [turn.state for turn in await open_turns(harness.log)][:1]
        assert queued == "queued"
        assert not any(submission.has_ended for submission in sent)
        with worker_process(store, ledger):
            answers = [(await submission.result()).answer for submission in sent]
        assert answers == [f"You said: number {n}" for n in range(3)]
        assert find_faults([f"number {n}" for n in range(3)], await talk.blocks()) == []


async def test_a_turn_that_asks_is_paused_and_a_worker_takes_the_answer(
    store: str, ledger: Path
) -> None:
    bundle = Bundle(id="shop", instructions="You help.", tools=[book])
    async with submitting(bundle, store) as harness:
        talk = harness.conversation("c1")
        asked = await talk.say("call shop.book name=tea")
        assert asked.exit_reason == "paused"
        assert [turn.state for turn in await open_turns(harness.log)] == ["waiting"]
        answered = await talk.resume({asked.pending[0].call_id: "yes"})
        assert answered.answer.endswith("yes")


@tool(effect="write", approve=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"{amount} paid"


async def test_a_worker_continues_a_turn_however_often_it_is_paused_and_answered(
    store: str,
) -> None:
    bundle = Bundle(id="shop", instructions="You help.", tools=[pay])
    script: list[ScriptEntry] = [Call("shop.pay", amount=amount) for amount in range(4)]
    script.append("Paid.")
    async with submitting(bundle, store, ScriptedModel(script, strict=False)) as harness:
        talk = harness.conversation("c1")
        result = await talk.say("Pay.")
        for _ in range(4):
            result = await talk.resume({result.pending[0].call_id: True})
    assert (result.answer, result.exit_reason) == ("Paid.", "complete")


async def cut_off(
    talk: Conversation[Any], log: TimelineLog, recoveries: int, *bodies: Body
) -> None:
    """Append what a runner of turn 1 records that has resumed it so often, and then dies."""
    header = TurnHeader(bundle="shop", model="m", protocol="native", recoveries=recoveries)
    async with log.lease(talk.conversation) as term:
        entries = [Entry(body=body, turn=1) for body in (header, *bodies)]
        await log.append(talk.conversation, entries, seen=0, term=term)


async def test_a_turn_that_was_paused_and_answered_survives_one_more_worker(store: str) -> None:
    bundle = Bundle(id="shop", instructions="You help.", tools=[pay])
    called = ToolCalled(call_id="c1", tool="shop.pay", arguments={"amount": 1})
    pending = ToolPending(
        call_id="c1", kind="approval", question="May it?", digest=approval_digest(called)
    )
    states = list[str]()
    async with Harness.open(bundle, store=store, model=EchoModel(), submits_only=True) as harness:
        talk = harness.conversation("c1")
        sent = await talk.submit("Pay.")
        decision = Decision(model="m", stop_reason="tool_use", calls=1)
        await cut_off(talk, harness.log, 0, decision, called, pending)
        await talk.interrupts.answer_paused({"c1": True}, AttachmentCaps())
        for recoveries in (1, 2):  # each time a worker takes it and dies
            states += [turn.state for turn in await open_turns(harness.log)]
            await cut_off(talk, harness.log, recoveries)
        states += [turn.state for turn in await open_turns(harness.log)]
        assert states == ["cut off", "cut off", "dead"]
        assert (await sent.result()).exit_reason == "interrupted"


async def test_a_message_ends_a_dead_letter_and_a_worker_runs_it(store: str) -> None:
    bundle = Bundle(id="shop", instructions="You help.")
    async with (
        Harness.open(bundle, store=store, model=EchoModel(), submits_only=True) as harness,
        open_worker([bundle], store=store, model=EchoModel()) as worker,
        AsyncExitStack() as stack,
    ):
        talk = harness.conversation("c1")
        await talk.submit("It ends each worker.")
        await cut_off(talk, harness.log, 1)
        assert [turn.state for turn in await open_turns(harness.log)] == ["dead"]
        await stack.enter_async_context(running(worker))
        assert (await talk.say("Go on.")).answer == "You said: Go on."
        ends = [b.body.reason for b in await talk.blocks() if isinstance(b.body, Exit)]
        assert ends == ["interrupted", "complete"]


async def test_a_worker_does_not_continue_the_turn_of_the_parent_in_a_fork(store: str) -> None:
    begun, opened, paid = asyncio.Event(), asyncio.Event(), list[str]()

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        begun.set()
        await opened.wait()
        return "seen"

    @tool
    async def transfer(context: ToolContext) -> str:
        """Transfer the money."""
        paid.append(context.conversation)
        return "transferred"

    bundle = Bundle(id="shop", tools=[look, transfer])
    script = [Say("", Call("shop.look"), Call("shop.transfer")), Say("Done.")]
    async with (
        Harness.open(bundle, store=store, model=ScriptedModel(script)) as harness,
        Harness.open(bundle, store=store, model=EchoModel(), submits_only=True) as submits,
        open_worker([bundle], store=store, model=EchoModel()) as worker,
        AsyncExitStack() as stack,
    ):
        talk = harness.conversation("c1")
        turn = asyncio.create_task(talk.say("Pay."))
        await begun.wait()
        fork = await talk.fork(seq=len(await talk.blocks()), name="fork")
        await stack.enter_async_context(running(worker))
        later = submits.conversation("fork")
        await later.schedule("Later.", delay=3_600)  # it wakes the worker, too
        assert (await later.say("Hello.")).answer == "You said: Hello."
        opened.set()
        assert (await turn).answer == "Done."
        ends = [b.body.reason for b in await fork.blocks() if isinstance(b.body, Exit)]
    assert ends == ["interrupted", "complete"]
    assert paid == ["c1"]


async def test_a_worker_that_starts_later_finds_the_messages_of_forks_and_imports(
    store: str, ledger: Path
) -> None:
    async with submitter(store, ledger) as harness:
        talk = harness.conversation("c1")
        with worker_process(store, ledger):
            assert (await talk.say("hello")).ok
        fork = await talk.fork(seq=len(await talk.blocks()), name="fork")
        copy = await harness.load(await talk.export(), name="copy")
        sent = [await each.submit("go on") for each in (fork, copy)]
        assert {"fork", "copy"} <= {
            summary.conversation.name for summary in await harness.log.unfinished()
        }
        cut = await talk.fork(seq=len(await talk.blocks()), name="cut")
        sender = Sender(bundle="work")  # of a process that died right after it had stored this
        prompt = Entry(body=UserPrompt(text="and I", sender=sender), turn=NEW_TURN)
        await harness.log.append(cut.conversation, [prompt], seen=0)
        with worker_process(store, ledger):
            answers = [(await submission.result()).answer for submission in sent]
            await until_begun(cut, 2)
    assert answers == ["You said: go on"] * 2


@pytest.mark.parametrize("name", ["c1", "fork"])
async def test_a_person_resumes_a_dead_letter_or_the_turn_of_a_fork_through_a_worker(
    store: str, name: str
) -> None:
    bundle = Bundle(id="shop")
    async with (
        Harness.open(bundle, store=store, model=EchoModel(), submits_only=True) as harness,
        open_worker([bundle], store=store, model=EchoModel()) as worker,
        AsyncExitStack() as stack,
    ):
        talk = harness.conversation("c1")
        await talk.submit("Hello.")
        await cut_off(talk, harness.log, 1)
        await talk.fork(seq=2, name="fork")
        await stack.enter_async_context(running(worker))
        result = await harness.conversation(name).resume()
        assert (result.turn_id, result.answer) == ("turn_1", "You said: Hello.")


async def test_a_fork_in_which_a_person_resumes_a_turn_is_taken_up_after_a_kill() -> None:
    log, key = MemoryLog(), ConversationKey(name="fork")
    bundle = Bundle(id="shop")
    async with Harness.open(bundle, store=log, model=EchoModel()) as harness:
        talk = harness.conversation("c1")
        await harness.log.append(
            talk.conversation, [Entry(body=UserPrompt(text="Hello."), turn=NEW_TURN)], seen=0
        )
        await cut_off(talk, log, 0)
        await talk.fork(seq=2, name="fork")
        async with log.lease(key) as term:
            assert [outcome.conversation.name for outcome in await harness.carry_on()] == ["c1"]
            header = TurnHeader(bundle="shop", model="m", protocol="native", version="2")
            await log.append(key, [Entry(body=header, turn=1)], seen=2, term=term)
        [outcome] = await harness.carry_on()
    assert (outcome.conversation, outcome.status) == (key, "resumed")


async def test_the_question_of_an_agent_that_a_workflow_runs_comes_back_from_a_worker(
    store: str,
) -> None:
    class Office(BaseWorkflow):
        agents = (Agent(name="clerk", description="Pays."),)

        async def process(self, payload: TurnPayload) -> TurnResult:
            result = await self.run("clerk", payload.text)
            return await self.answer(result.answer)

    bundle = Bundle(id="shop", tools=[pay], workflow=Office)
    model = ScriptedModel([Call("shop.pay", amount=1), "Paid."])
    async with submitting(bundle, store, model) as harness:
        talk = harness.conversation("c1")
        asked = await talk.say("Pay it.")
        [listed] = await open_turns(harness.log)
        assert (listed.state, listed.calls) == ("waiting", ["workflow.run"])
        assert (await talk.resume({asked.pending[0].call_id: True})).answer == "Paid."


async def test_a_queued_message_is_stopped_without_a_worker(store: str, ledger: Path) -> None:
    async with submitter(store, ledger) as harness:
        talk = harness.conversation("c1")
        sent = await talk.submit("hello")
        assert await talk.stop()
        assert (await sent.result()).exit_reason == "stopped"
        assert await open_turns(harness.log) == []


async def test_a_running_turn_is_stopped_from_a_process_that_only_submits(
    store: str, ledger: Path
) -> None:
    with worker_process(store, ledger):
        async with submitter(store, ledger) as harness:
            talk = harness.conversation("c1")
            sent = await talk.submit("x" * 20_000)
            await until_begun(talk, 1)
            assert [turn.state for turn in await open_turns(harness.log)] == ["running"]
            assert await talk.stop()
            assert (await sent.result()).exit_reason == "stopped"


async def test_a_busy_conversation_refuses_or_queues_as_in_one_process(
    store: str, ledger: Path
) -> None:
    async with submitter(store, ledger) as harness:
        talk = harness.conversation("c1")
        first = await talk.submit("first")
        with pytest.raises(LooplineError, match="is being run already"):
            await talk.say("second", when_busy="reject")
        with worker_process(store, ledger):
            await first.result()
            assert (await talk.say("third", when_busy="reject")).answer == "You said: third"


async def test_a_process_that_only_submits_refuses_limits_that_the_log_cannot_carry(
    store: str, ledger: Path
) -> None:
    async with submitter(store, ledger) as harness:
        talk = harness.conversation("c1")
        await talk.submit("hello")
        with pytest.raises(LooplineError, match="only submits turns"):
            await talk.resume(max_iterations=3)


async def test_no_more_turns_of_a_user_run_than_the_limit_in_all_workers(
    store: str, ledger: Path
) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(worker_process(store, ledger, limits="8,0,2"))
        async with submitter(store, ledger) as harness:
            names = [f"c{n}" for n in range(8)]
            sent = [await harness.conversation(n, user="ann").submit("x" * 2_000) for n in names]
            most = 0
            while not all(submission.has_ended for submission in sent):
                states = [turn.state for turn in await open_turns(harness.log)]
                most = max(most, states.count("running"))
                await asyncio.sleep(0.02)
            assert {(await submission.result()).ok for submission in sent} == {True}
            assert 1 <= most <= 2


def test_tenants_take_turns_whatever_the_number_of_their_conversations() -> None:
    waiting = WaitingConversations()
    for n in range(3):
        waiting.add(ConversationKey(name=f"a{n}", tenant="a"))
    waiting.add(ConversationKey(name="b0", tenant="b"))
    waiting.add(ConversationKey(name="a0", tenant="a"))
    taken = [waiting.take() for _ in range(5)]
    assert [key and key.name for key in taken] == ["a0", "b0", "a1", "a2", None]


async def test_a_worker_that_is_told_to_end_hands_its_turns_over_and_nothing_counts_against_them(
    store: str, ledger: Path
) -> None:
    with worker_process(store, ledger, drain=0.0) as first:
        async with submitter(store, ledger) as harness:
            talk = harness.conversation("c1")
            sent = await talk.submit("x" * 4_000)
            await until_begun(talk, 1)
            first.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(first.wait) == 0
            with worker_process(store, ledger):
                assert (await sent.result()).ok
            headers = [b.body for b in await talk.blocks() if isinstance(b.body, TurnHeader)]
            assert [header.handed_over for header in headers] == [False, True, False]
            assert {header.recoveries for header in headers} == {0}


async def test_a_turn_that_ends_two_workers_is_a_dead_letter_until_it_is_put_back(
    store: str, ledger: Path
) -> None:
    async with submitter(store, ledger) as harness:
        talk = harness.conversation("c1")
        sent = await talk.submit("x" * 40_000)
        for headers in (1, 2):
            with worker_process(store, ledger):
                await until_begun(talk, headers)
        result = await sent.result()
        assert (result.exit_reason, result.ok) == ("interrupted", False)
        [dead] = await open_turns(harness.log)
        assert (dead.state, dead.turn_id) == ("dead", "turn_1")

        async def is_dead() -> bool:
            return [turn.state for turn in await open_turns(harness.log)] == ["dead"]

        with worker_process(store, ledger):
            await until(is_dead)  # the worker holds the conversation while it looks
            assert await talk.retry() == "turn_1"
            await until_begun(talk, 3)
            await talk.stop()
        with pytest.raises(LooplineError, match="cut off too often"):
            await talk.retry()


async def kill_under_load(
    store: str, ledger: Path, *, conversations: int, messages: int, kills: int, seed: int
) -> None:
    """Kill, stop or end workers while they run turns, and check that nothing was lost, done twice or out of order."""
    chance = random.Random(seed)
    async with submitter(store, ledger) as harness:
        talks = [harness.conversation(f"c{n}", tenant=f"t{n % 3}") for n in range(conversations)]
        texts = [f"call work.note text=m{n}" for n in range(messages)]
        sent = list[Submission]()
        with ExitStack() as stack:
            workers = [stack.enter_context(worker_process(store, ledger)) for _ in range(2)]
            stopped = list[subprocess.Popen[str]]()
            for text in texts:
                for talk in talks:
                    sent.append(await talk.submit(text))
            for _ in range(kills):
                await asyncio.sleep(chance.uniform(0.05, 0.3))
                victim = chance.choice(workers)
                way = chance.choice(
                    [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]
                )
                victim.send_signal(way)
                if way != signal.SIGSTOP:
                    await asyncio.to_thread(victim.wait)
                else:
                    stopped.append(victim)
                workers.remove(victim)
                workers.append(
                    await asyncio.to_thread(replace_worker, stack, store, ledger, stopped)
                )
            await put_back_dead_letters(harness)
            for submission in sent:
                await submission.result()
        for talk in talks:
            blocks = await talk.blocks()
            assert find_faults(texts, blocks) == []
            results = [b.body for b in blocks if isinstance(b.body, ToolResult)]
            assert {result.status for result in results} <= {"ok", "interrupted"}
        assert max(noted(ledger).values()) == 1


def replace_worker(
    stack: ExitStack, store: str, ledger: Path, stopped: Sequence[subprocess.Popen[str]]
) -> subprocess.Popen[str]:
    """Start another worker. If a worker that was stopped within a transaction locks the file, the stopped ones go on."""
    try:
        return stack.enter_context(worker_process(store, ledger))
    except NotStarted:
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        return stack.enter_context(worker_process(store, ledger))


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
async def test_workers_that_are_killed_under_load_lose_nothing_and_do_nothing_twice(
    store: str, ledger: Path, kind: str
) -> None:
    url = running_postgres().store_url() if kind == "postgres" else store
    await kill_under_load(url, ledger, conversations=6, messages=2, kills=3, seed=1)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(2))
async def test_workers_that_are_killed_often_under_load_lose_nothing(
    store: str, ledger: Path, seed: int
) -> None:
    await kill_under_load(store, ledger, conversations=40, messages=3, kills=10, seed=seed)


class NoWakeUps:
    """Wake-ups that are all lost."""

    async def send(self, conversation: ConversationKey) -> None:
        """Lose it."""

    async def receive(self) -> AsyncGenerator[ConversationKey | None]:
        """Yield nothing and wait until it is closed."""
        await asyncio.Event().wait()
        yield None

    async def close(self) -> None:
        """Do nothing."""


async def test_a_lost_wake_up_costs_only_the_time_of_a_sweep(store: str, ledger: Path) -> None:
    async with submitter(store, ledger) as harness:
        sent = await harness.conversation("c1").submit("hello")
        async with Harness.open(work(ledger), store=store, model=EchoModel()) as runner:
            worker = Worker({"work": runner}, NoWakeUps(), WorkerLimits(), sweep_seconds=0.05)
            async with running(worker):
                assert (await sent.result()).ok
                late = await harness.conversation("c2").submit("hello again")
                assert (await late.result()).ok


class BreakingWakeUps(NoWakeUps):
    """Wake-ups whose channel breaks with an unexpected error, and then has those of the conversation `c1`."""

    has_broken = False

    async def receive(self) -> AsyncGenerator[ConversationKey | None]:
        """Yield the conversation; at first raise an error."""
        if not self.has_broken:
            self.has_broken = True
            raise KeyError("a wake-up")
        yield ConversationKey(name="c1")
        await asyncio.Event().wait()


async def test_wake_ups_are_received_again_after_an_unexpected_error_which_is_logged(
    store: str, ledger: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        submitter(store, ledger) as harness,
        Harness.open(work(ledger), store=store, model=EchoModel()) as runner,
    ):
        worker = Worker({"work": runner}, BreakingWakeUps(), sweep_seconds=60)
        async with running(worker):
            await until(lambda: "wake-ups failed" in caplog.text)
            sent = await harness.conversation("c1").submit("hello")
            assert (await asyncio.wait_for(sent.result(), 10)).ok
    assert "KeyError: 'a wake-up'" in caplog.text


class BreakingLog(MemoryLog):
    """A log in which the first look for unfinished turns breaks with an unexpected error."""

    has_broken = False

    async def unfinished(self) -> Sequence[ConversationSummary]:
        """Return the unfinished turns; at first raise an error."""
        if not self.has_broken:
            self.has_broken = True
            raise KeyError("a turn")
        return await super().unfinished()


async def test_turns_are_looked_for_again_after_an_unexpected_error_which_is_logged(
    ledger: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = BreakingLog()
    async with (
        Harness.open(work(ledger), store=log, model=EchoModel(), submits_only=True) as harness,
        Harness.open(work(ledger), store=log, model=EchoModel()) as runner,
    ):
        sent = await harness.conversation("c1").submit("hello")
        async with running(Worker({"work": runner}, NoWakeUps(), sweep_seconds=0.05)):
            assert (await asyncio.wait_for(sent.result(), 10)).ok
    assert "waiting turns were not found" in caplog.text
    assert "KeyError: 'a turn'" in caplog.text


async def test_what_is_read_for_the_next_turn_does_not_depend_on_the_turns_before(
    ledger: Path,
) -> None:
    log = WidestRead()
    key = ConversationKey(name="c1")
    widest = list[int]()
    async with Harness.open(work(ledger), store=log, model=EchoModel()) as harness:
        for _ in range(20):
            sender = Sender(bundle="work", version=harness.bundle.version, harness=0)
            prompt = Entry(body=UserPrompt(text="hello", sender=sender), turn=NEW_TURN)
            await log.append(key, [prompt], seen=0)
            log.widest = 0
            for _ in range(2):  # as a worker looks, and looks again after the turn
                await harness.newest_timeline(key)
                await harness.run_next(key)
            widest.append(log.widest)
        ended = await harness.conversation("c1").blocks(types=["react.exit"])
    assert len(ended) == 20
    assert len(set(widest[1:])) == 1
