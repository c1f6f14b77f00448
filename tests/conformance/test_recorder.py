"""A recorder's timeline says what its log says, whenever it is cancelled, over every log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from loopline import timeline as tl
from loopline.clock import Clock, SystemClock
from loopline.conversations.interrupts import InterruptQueue
from loopline.errors import LeaseLost, LooplineError
from loopline.files import AttachmentCaps
from loopline.models import Json
from loopline.testing import FakeClock

HERE = tl.ConversationKey(name="here")


@pytest.fixture(autouse=True)
async def _begun(log: tl.TimelineLog) -> None:
    await log.append(HERE, [tl.Entry(body=tl.UserPrompt(text="hello"), turn=tl.NEW_TURN)], seen=0)


def recorder(log: tl.TimelineLog, term: int, heard: list[tl.Block]) -> tl.Recorder:
    return tl.Recorder(
        log,
        tl.Timeline(),
        conversation=HERE,
        uid="u",
        turn=1,
        clock=FakeClock(),
        term=term,
        listener=heard.append,
    )


async def test_what_others_wrote_is_folded_and_heard_in_the_order_of_the_log(
    log: tl.TimelineLog,
) -> None:
    async with log.lease(HERE) as term:
        pen = recorder(log, term, blocks := list[tl.Block]())
        await log.append(HERE, [tl.Entry(body=tl.UserFollowup(text="and"), turn=1)], seen=1)
        recorded = await pen.record(tl.Notes(text="one"), tl.Notes(text="two"))
    assert [block.seq for block in recorded] == [3, 4]
    assert pen.timeline.blocks == blocks == list(await log.read(HERE))


@pytest.mark.parametrize("is_read_before", [False, True])
async def test_a_stop_of_another_process_is_told_whenever_it_was_read(
    log: tl.TimelineLog, *, is_read_before: bool
) -> None:
    stops = list[bool]()
    async with log.lease(HERE) as term:
        pen = recorder(log, term, [])
        await log.append(HERE, [tl.Entry(body=tl.UserStop(), turn=1)], seen=1)
        if is_read_before:
            await pen.catch_up()
        pen.on_stop = lambda: stops.append(True)
        pen.begin_to_run()
        await pen.catch_up()
    assert stops == [True]


async def test_one_that_is_cancelled_at_any_step_has_folded_what_was_kept(
    log: tl.TimelineLog,
) -> None:
    async with log.lease(HERE) as term:
        pen = recorder(log, term, blocks := list[tl.Block]())
        for steps in range(40):
            recording = asyncio.create_task(
                pen.record(tl.Notes(text=f"{steps}"), tl.Notes(text="+"))
            )
            for _ in range(steps):
                await asyncio.sleep(0)
            recording.cancel()
            await asyncio.wait([recording])
            if steps:
                assert pen.timeline.blocks == blocks == list(await log.read(HERE))
                assert len(blocks) == 1 + 2 * steps


async def test_one_that_is_cancelled_while_another_is_first_is_recorded_all_the_same(
    log: tl.TimelineLog,
) -> None:
    async with log.lease(HERE) as term:
        pen = recorder(log, term, blocks := list[tl.Block]())
        notes = [tl.Notes(text=text) for text in "abcd"]
        recording = [asyncio.create_task(pen.record(body)) for body in notes]
        await asyncio.sleep(0)
        for task in recording:
            task.cancel()
        await asyncio.wait(recording)
    assert {block.body for block in blocks[1:]} == set(notes)
    assert pen.timeline.blocks == blocks == list(await log.read(HERE))


async def answers(log: tl.TimelineLog) -> list[Json]:
    """The answers in the log."""
    blocks = await log.read(HERE, types=["user.answer"])
    return [block.body.value for block in blocks if isinstance(block.body, tl.UserAnswer)]


@asynccontextmanager
async def asking(log: tl.TimelineLog) -> AsyncGenerator[tuple[tl.Recorder, asyncio.Task[Json]]]:
    """A recorder whose turn has a call that asks, and the task that waits for the answer."""
    async with log.lease(HERE) as term:
        pen = recorder(log, term, [])
        await pen.record(
            tl.TurnHeader(bundle="shop", model="scripted", protocol="native"),
            tl.ToolCalled(call_id="c1", tool="shop.find", arguments={}),
        )
        announced = asyncio.Event()
        question = tl.ToolQuestion(call_id="c1", question="Which tea?")
        task = asyncio.create_task(pen.ask(question, announced.set))
        await announced.wait()
        yield pen, task


class NoTurns:
    """A process that runs no turn, has read none, and has no bundle."""

    @property
    def sender(self) -> tl.Sender | None:
        """Return None."""

    @property
    def clock(self) -> Clock:
        """The clock of this machine."""
        return SystemClock()

    def steer(self, conversation: tl.ConversationKey, seq: int) -> None:
        """Tell nobody."""

    def last_seq(self, conversation: tl.ConversationKey) -> int | None:
        """Return None."""


def inbox(log: tl.TimelineLog) -> InterruptQueue:
    """The inbox of the conversation."""
    return InterruptQueue(log, HERE, NoTurns())


async def test_what_waits_while_its_turn_is_handed_over_is_left_to_the_next_process(
    log: tl.TimelineLog,
) -> None:
    async with log.lease(HERE) as term:
        pen = recorder(log, term, [])
        pen.header = tl.TurnHeader(bundle="shop", model="scripted", protocol="native")
        await pen.record(tl.Notes(text="one"))
        ending = asyncio.create_task(pen.hand_over())
        waiting = asyncio.create_task(pen.record(tl.Notes(text="two")))
        await ending
        with pytest.raises(LeaseLost):
            await waiting
    [*_, last] = await log.read(HERE)
    assert isinstance(last.body, tl.TurnHeader)
    assert last.body.handed_over


async def test_of_two_answers_at_once_the_first_in_the_log_counts_for_the_call_too(
    log: tl.TimelineLog,
) -> None:
    async with asking(log) as (pen, task):
        assert pen.questions.answer("c1", "black")
        answering = inbox(log).answer("c1", "green")
        [outcome] = await asyncio.gather(answering, return_exceptions=True)
        value = await task
    assert await answers(log) == [value]
    assert (outcome is True) == (value == "green")


async def test_of_many_answers_from_elsewhere_one_is_recorded(log: tl.TimelineLog) -> None:
    async with asking(log) as (pen, task):
        teas = [f"tea {number}" for number in range(4)]
        outcomes = await asyncio.gather(
            *(inbox(log).answer("c1", tea) for tea in teas), return_exceptions=True
        )
        assert await pen.catch_up()
        value = await task
    assert await answers(log) == [value]
    assert [tea for tea, first in zip(teas, outcomes, strict=True) if first is True] == [value]


async def test_each_of_two_questions_that_a_call_asks_at_once_gets_its_own_answer(
    log: tl.TimelineLog,
) -> None:
    async with asking(log) as (pen, first):
        announced = asyncio.Event()
        question = tl.ToolQuestion(call_id="c1", question="Which cup?")
        second = asyncio.create_task(pen.ask(question, announced.set))
        await asyncio.sleep(0)
        assert pen.questions.answer("c1", "green")
        await announced.wait()
        assert pen.questions.answer("c1", "blue")
        assert (await first, await second) == ("green", "blue")
    assert await answers(log) == ["green", "blue"]


async def test_a_question_that_is_taken_back_lets_the_next_one_of_its_call_be_asked(
    log: tl.TimelineLog,
) -> None:
    async with asking(log) as (pen, first):
        question = tl.ToolQuestion(call_id="c1", question="Which cup?")
        announced = asyncio.Event()
        second = asyncio.create_task(pen.ask(question, announced.set))
        first.cancel()
        await announced.wait()
        assert pen.questions.answer("c1", "blue")
        assert await second == "blue"
    assert await answers(log) == ["blue"]


async def test_of_two_answers_to_a_paused_call_the_second_is_refused(log: tl.TimelineLog) -> None:
    async with log.lease(HERE) as term:
        await recorder(log, term, []).record(
            tl.TurnHeader(bundle="shop", model="scripted", protocol="native"),
            tl.ToolCalled(call_id="c1", tool="shop.find", arguments={}),
            tl.ToolPending(call_id="c1", kind="question", question="Which tea?", digest=""),
        )
    outcomes = await asyncio.gather(
        *(inbox(log).answer_paused({"c1": tea}, AttachmentCaps()) for tea in ("green", "black")),
        return_exceptions=True,
    )
    [refused] = [outcome for outcome in outcomes if isinstance(outcome, LooplineError)]
    assert str(refused) == "c1 has been answered already"
    assert len(await answers(log)) == 1
