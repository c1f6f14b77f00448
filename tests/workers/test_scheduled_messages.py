"""Scheduled messages: each time begins one turn, in whatever process, and whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx2
import pytest

from loopline import Bundle, Harness, LooplineError, tool
from loopline.conversations import Conversation, MessageSchedule
from loopline.conversations.schedule import next_time
from loopline.harness import forget_inactive, open_turns, open_worker
from loopline.server import ServerSettings, app
from loopline.testing import FakeClock
from loopline.timeline import NEW_TURN, Block, Entry, Exit, Sender, TurnHeader, UserPrompt
from loopline.tools import ToolFunction
from tests.doors.command import Loopline
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, book, serving
from tests.support.waiting import until
from tests.support.worker_process import (
    put_back_dead_letters,
    running,
    submitter,
    work,
    worker_process,
)

START = datetime(2026, 3, 27, 8, 0, tzinfo=UTC)
"""A Friday, before the clocks of Berlin go forward on Sunday."""


def shop(store: str, extra: ToolFunction[..., Any] = book) -> Harness:
    """A harness that runs the turns of a bundle with one tool."""
    return Harness.open(Bundle(id="shop", tools=[extra]), store=store, model=EchoModel())


async def any_sender(_: Sender | None) -> bool:
    return True


def prompts(blocks: Sequence[Block]) -> list[str]:
    return [block.body.text for block in blocks if isinstance(block.body, UserPrompt)]


async def until_ended(talk: Conversation[Any], turns: int) -> Sequence[Block]:
    """Wait until so many turns of the conversation have ended, and return its blocks."""

    async def have_ended() -> bool:
        return len(await talk.blocks(types=["react.exit"])) >= turns

    await until(have_ended)
    return await talk.blocks()


async def test_a_delayed_message_begins_a_turn_after_its_time_and_others_do_not_wait_for_it(
    store: str, ledger: Path
) -> None:
    with worker_process(store, ledger):
        async with submitter(store, ledger) as harness:
            talk = harness.conversation("c1")
            message = await talk.schedule("later", delay=1.5)
            assert [(m.id, m.at) for m in await talk.scheduled()] == [(message.id, message.at)]
            assert (await talk.say("now")).answer == "You said: now"
            blocks = await until_ended(talk, 2)
            assert prompts(blocks) == ["now", "later"]
            started = [block.ts for block in blocks if isinstance(block.body, TurnHeader)]
            assert started[1] >= message.at
            assert await talk.scheduled() == []


async def test_a_turn_that_was_due_while_no_process_ran_begins_when_a_worker_starts(
    store: str, ledger: Path
) -> None:
    async with submitter(store, ledger) as harness:
        talk = harness.conversation("c1")
        await talk.schedule("call work.note text=due", at=START)
        [waiting] = await open_turns(harness.log)
        assert (waiting.state, waiting.since) == ("scheduled", START)
        with worker_process(store, ledger):
            blocks = await until_ended(talk, 1)
        assert prompts(blocks) == ["call work.note text=due"]
        assert (await talk.blocks(types=["turn.header"]))[0].turn == 1


async def test_a_repeated_message_that_missed_several_times_begins_one_turn_and_waits_for_the_next(
    store: str, ledger: Path
) -> None:
    clock = FakeClock(START)
    async with submitter(store, ledger, clock) as harness:
        talk = harness.conversation("c1")
        added = await talk.schedule("good morning", every="30 9 * * *", zone="Europe/Berlin")
        assert added.at == datetime(2026, 3, 27, 8, 30, tzinfo=UTC)
        schedule = MessageSchedule(harness.log, talk.conversation)
        late = START + timedelta(days=3)
        following = await schedule.begin_due(late, any_sender)
        assert following == datetime(2026, 3, 31, 7, 30, tzinfo=UTC)
        assert prompts(await talk.blocks()) == ["good morning"]
        await schedule.begin_due(late, any_sender)
        assert prompts(await talk.blocks()) == ["good morning"]


async def test_a_due_message_begins_one_turn_however_many_processes_look(
    store: str, ledger: Path
) -> None:
    async with submitter(store, ledger) as first, submitter(store, ledger) as second:
        talk = first.conversation("c1")
        for n in range(5):
            await talk.schedule(f"number {n}", at=START + timedelta(seconds=n))
        now = START + timedelta(days=1)
        looks = [
            MessageSchedule(harness.log, talk.conversation).begin_due(now, any_sender)
            for harness in (first, second) * 3
        ]
        await asyncio.gather(*looks)
        blocks = await talk.blocks()
        assert prompts(blocks) == [f"number {n}" for n in range(5)]
        assert [b.turn for b in blocks if isinstance(b.body, UserPrompt)] == [1, 2, 3, 4, 5]


def ends(blocks: Sequence[Block]) -> list[tuple[int, str]]:
    """The turns that have ended, each with the reason."""
    return [(b.turn, b.body.reason) for b in blocks if isinstance(b.body, Exit)]


async def test_a_message_that_is_due_ends_a_turn_that_waits_for_its_user(store: str) -> None:
    async with shop(store) as harness:
        talk = harness.conversation("c1")
        asked = await talk.say("call shop.book name=tea")
        assert asked.exit_reason == "paused"
        await talk.schedule("never mind", delay=0)
        await harness.carry_on()
        blocks = await talk.blocks()
        assert ends(blocks) == [(1, "interrupted"), (2, "complete")]
        assert prompts(blocks) == ["call shop.book name=tea", "never mind"]
        with pytest.raises(LooplineError):
            await talk.resume({asked.pending[0].call_id: "yes"})


async def test_a_message_that_is_due_waits_for_the_turn_that_runs_and_for_those_before_it(
    store: str,
) -> None:
    begun, opened = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def look(name: str) -> str:
        """Look at a tea."""
        begun.set()
        await opened.wait()
        return name

    async with shop(store, look) as harness:
        talk = harness.conversation("c1")
        first = asyncio.create_task(talk.say("call shop.look name=tea"))
        await begun.wait()
        queued = await talk.submit("queued")
        await talk.schedule("due", delay=0)
        looking = asyncio.create_task(harness.carry_on())
        for _ in range(1_000):
            if "due" in prompts(await talk.blocks()):
                break
            await asyncio.sleep(0.01)
        opened.set()
        assert (await first).ok
        assert (await queued.result()).ok
        await looking
        await harness.carry_on()
        blocks = await until_ended(talk, 3)
        assert prompts(blocks) == ["call shop.look name=tea", "queued", "due"]
        assert ends(blocks) == [(1, "complete"), (2, "complete"), (3, "complete")]


ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", ""]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("every", ["30 2 * * *", "30 1 * * *", "*/30 * * * *", "0 0 * * *"])
def test_the_next_time_is_later_also_when_clocks_change(every: str, zone: str) -> None:
    at, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    while at < end:
        assert next_time(every, zone, at) > at, at
        at += timedelta(minutes=470)  # some moment of each day
    for changes in (datetime(2026, 10, 25, tzinfo=UTC), datetime(2026, 3, 29, tzinfo=UTC)):
        for minutes in range(0, 240, 5):
            moment = changes + timedelta(minutes=minutes)
            assert next_time(every, zone, moment) > moment, moment


async def test_a_message_of_the_hour_that_comes_twice_begins_one_turn(
    store: str, ledger: Path
) -> None:
    clock = FakeClock(datetime(2026, 10, 24, 12, tzinfo=UTC))
    async with submitter(store, ledger, clock) as harness:
        talk = harness.conversation("c1")
        await talk.schedule("good night", every="30 2 * * *", zone="Europe/Berlin")
        schedule = MessageSchedule(harness.log, talk.conversation)
        after = await schedule.begin_due(datetime(2026, 10, 25, 1, 10, tzinfo=UTC), any_sender)
        assert prompts(await talk.blocks()) == ["good night"]
        assert after is not None
        assert after > datetime(2026, 10, 25, 1, 10, tzinfo=UTC)


async def test_the_mode_of_a_conversation_that_has_not_begun_is_that_of_its_scheduled_turn(
    store: str,
) -> None:
    async with shop(store) as harness:
        talk = harness.conversation("c1")
        await talk.set_mode("plan")
        await talk.schedule("call shop.book name=tea", delay=0)
        assert await harness.conversation("c1").mode() == "plan"
        await harness.carry_on()
        blocks = await talk.blocks()
        assert ends(blocks) == [(1, "complete")]
        assert not await talk.blocks(types=["react.tool.start"])


async def test_a_conversation_that_began_with_a_schedule_and_a_mode_can_be_imported(
    store: str,
) -> None:
    async with shop(store) as harness:
        talk = harness.conversation("c1")
        await talk.schedule("later", delay=1_000)
        await talk.set_mode("plan")
        await talk.say("now")
        copy = await harness.load(await talk.export(), name="copy")
        assert prompts(await copy.blocks()) == ["now"]
        assert await copy.scheduled() == []


async def test_a_schedule_that_cannot_be_read_here_does_not_hold_up_other_messages(
    store: str,
) -> None:
    async with shop(store) as harness:
        talk = harness.conversation("c1")
        schedule = MessageSchedule(harness.log, talk.conversation)
        await schedule.add(UserPrompt(text="x"), START, every="0 9 * * *", zone="Mars/Base")
        opened = open_worker([Bundle(id="shop")], store=store, model=EchoModel())
        async with opened as worker, running(worker):
            await harness.log.append(
                talk.conversation, [Entry(body=UserPrompt(text="now"), turn=NEW_TURN)], seen=0
            )
            blocks = await until_ended(talk, 1)
        assert prompts(blocks) == ["now"]
        assert len(await talk.scheduled()) == 1


async def test_a_message_whose_time_zone_is_missing_here_is_left_and_the_others_begin(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop(store) as harness:
        talk = harness.conversation("c1")
        schedule = MessageSchedule(harness.log, talk.conversation)
        hour = timedelta(hours=1)
        left = await schedule.add(UserPrompt(text="x"), START, every="0 9 * * *", zone="Mars/Base")
        await schedule.add(UserPrompt(text="now"), START + hour)
        await schedule.add(UserPrompt(text="later"), START + 3 * hour)
        following = await schedule.begin_due(START + 2 * hour, any_sender)
        assert following == START + 3 * hour
        assert prompts(await talk.blocks()) == ["now"]
        assert [message.prompt.text for message in await talk.scheduled()] == ["x", "later"]
    assert f"scheduled message {left.id} was not begun: no time zone 'Mars/Base'" in caplog.text


async def test_a_message_waits_for_a_process_of_its_bundle_and_then_begins_one_turn(
    store: str,
) -> None:
    tea, coffee = Bundle(id="tea", version="1"), Bundle(id="coffee")
    async with Harness.open(tea, store=store, model=EchoModel(), clock=FakeClock(START)) as harness:
        talk = harness.conversation("c1")
        await talk.schedule("good morning", every="30 9 * * *")
    for days in range(1, 4):
        later = FakeClock(START + timedelta(days=days))
        async with Harness.open(coffee, store=store, model=EchoModel(), clock=later) as harness:
            assert await harness.carry_on() == []
    opened = open_worker([coffee], store=store, model=EchoModel())
    async with opened as worker, running(worker):
        worker.wake(talk.conversation)
        await asyncio.sleep(0.3)
    later = FakeClock(START + timedelta(days=5))
    async with Harness.open(tea, store=store, model=EchoModel(), clock=later) as harness:
        assert prompts(await harness.conversation("c1").blocks()) == []
        [outcome] = await harness.carry_on()
        assert (outcome.turn_id, outcome.status) == ("turn_1", "resumed")


async def test_an_earlier_version_leaves_the_messages_of_a_later_one(store: str) -> None:
    async def carry_on(version: str) -> list[str]:
        bundle = Bundle(id="tea", version=version)
        async with Harness.open(bundle, store=store, model=EchoModel()) as harness:
            return [outcome.status for outcome in await harness.carry_on()]

    assert await carry_on("1") == []
    async with Harness.open(Bundle(id="tea", version="2"), store=store, model=EchoModel()) as newer:
        await newer.conversation("c1").schedule("later", delay=0)
    assert await carry_on("1") == []
    assert await carry_on("2") == ["resumed"]


async def test_a_message_that_was_scheduled_first_begins_the_turn_behind_those_before_it(
    store: str,
) -> None:
    async with shop(store) as harness:
        talk = harness.conversation("c1")
        await talk.schedule("due", at=START)
        await talk.say("now")
        schedule = MessageSchedule(harness.log, talk.conversation)
        await schedule.begin_due(START + timedelta(days=1), any_sender)
        # A process that dies here leaves a turn that the next one finds.
        assert [each.conversation.name for each in await harness.log.unfinished()] == ["c1"]
        [outcome] = await harness.carry_on()
        assert (outcome.turn_id, outcome.status) == ("turn_3", "resumed")
        assert prompts(await talk.blocks()) == ["now", "due"]


async def test_a_conversation_that_began_with_a_schedule_and_a_followup_can_be_imported(
    store: str,
) -> None:
    async with shop(store) as harness:
        talk = harness.conversation("c1")
        await talk.schedule("later", delay=1_000)
        await talk.followup("with milk")
        copy = await harness.load(await talk.export(), name="copy")
        assert [block.type for block in await copy.blocks()] == [
            "user.schedule",
            "user.followup",
            "conv.imported",
        ]


async def test_a_conversation_whose_message_waits_is_not_forgotten_as_inactive(store: str) -> None:
    async with shop(store) as harness:
        await harness.conversation("c1").schedule("yearly", delay=3e7)
        await harness.conversation("c2").say("hello")
        await forget_inactive(harness.log, datetime.now(UTC) + timedelta(seconds=5))
        assert [each.conversation.name for each in await harness.log.conversations()] == ["c1"]


async def test_a_scheduled_message_is_removed_by_its_id_or_with_all(
    store: str, ledger: Path
) -> None:
    async with submitter(store, ledger) as harness:
        talk = harness.conversation("c1")
        ids = [(await talk.schedule(f"number {n}", delay=60)).id for n in range(3)]
        assert len(set(ids)) == 3
        assert await talk.unschedule(ids[1])
        assert not await talk.unschedule(ids[1])
        assert [message.id for message in await talk.scheduled()] == [ids[0], ids[2]]
        assert await talk.unschedule()
        assert await harness.log.scheduled() == []
        assert await open_turns(harness.log) == []


async def test_workers_that_are_killed_lose_no_scheduled_message_and_begin_none_twice(
    store: str, ledger: Path
) -> None:
    async with submitter(store, ledger) as harness:
        talks = [harness.conversation(f"c{n}") for n in range(4)]
        for talk in talks:
            for n in range(3):
                await talk.schedule(f"call work.note text=m{n}", delay=0.3 * n)
        for _ in range(2):
            with worker_process(store, ledger):
                await asyncio.sleep(0.2)
        with worker_process(store, ledger):
            await put_back_dead_letters(harness)
            for talk in talks:
                assert prompts(await talk.blocks()) == [
                    f"call work.note text=m{n}" for n in range(3)
                ]


async def test_a_fork_and_an_import_begin_no_turn_of_the_original(store: str, ledger: Path) -> None:
    async with submitter(store, ledger) as harness:
        talk = harness.conversation("c1")
        await talk.schedule("later", at=START)
        fork = await talk.fork(seq=1, name="fork")
        assert await fork.scheduled() == []
        document = await talk.export()
        await harness.load(document, name="copy")
        scheduled = await harness.log.scheduled()
        assert [key.name for key, _ in scheduled] == ["c1"]
        assert await harness.conversation("copy").scheduled() == []
        await harness.log.forget(fork.conversation)
        await harness.log.forget(talk.conversation)
        assert await harness.log.scheduled() == []


async def test_a_server_without_workers_begins_what_is_due(store: str, ledger: Path) -> None:
    async with Harness.open(work(ledger), store=store, model=EchoModel()) as harness:
        talk = harness.conversation("c1")
        await talk.schedule("due", at=START)
        await talk.schedule("not due", delay=3600)
        outcomes = await harness.carry_on()
        assert [outcome.status for outcome in outcomes] == ["resumed"]
        assert prompts(await talk.blocks()) == ["due"]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({}, "needs a time"),
        ({"at": START, "delay": 3}, "not both"),
        ({"delay": -1}, "a delay is 0 seconds"),
        ({"every": "every day"}, "five fields"),
        ({"every": "61 * * * *"}, "not a line of cron"),
        ({"every": "0 0 30 2 *"}, "not a line of cron"),
        ({"every": "0 0 * * *", "zone": "Mars/Base"}, "no time zone 'Mars/Base'"),
        ({"every": "0 0 * * *", "zone": "../etc/passwd"}, "no time zone"),
        ({"at": START + timedelta(days=9_999)}, "for the next"),
        ({"at": datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=14)))}, "calendar"),
        ({"delay": float("nan")}, "a delay of nan seconds"),
        ({"delay": 1e300}, "a delay of 1e[+]300 seconds"),
    ],
)
async def test_a_time_that_is_not_valid_is_refused(
    times: dict[str, Any], said: str, ledger: Path
) -> None:
    async with Harness.open(
        work(ledger), store="memory:", model=EchoModel(), clock=FakeClock(START)
    ) as harness:
        with pytest.raises(LooplineError, match=said):
            await harness.conversation("c1").schedule("hello", **times)
        assert await harness.conversation("c1").blocks() == []


def test_the_command_schedules_lists_and_removes(tmp_path: Path) -> None:
    loopline = Loopline(tmp_path)
    loopline("new", "hello")
    loopline(
        *("run", "hello", "wake up", "-c", "c1", "--every", "0 7 * * *", "--zone", "Asia/Tokyo")
    )
    second = loopline("run", "hello", "later", "-c", "c1", "--at", "2036-01-01T10:00")
    assert second.out.startswith("s2 of c1 begins at 2036-01-01T10:00:00"), second
    assert second.out.endswith("in a worker or server of the bundle\n"), second
    nothing = loopline("run", "hello", "-c", "c1")
    assert "a scheduled message begins at" in nothing.err, nothing
    listed = loopline("turns").out.splitlines()
    assert [line.split()[0] for line in listed] == ["scheduled"] * 2
    assert ["s1 of c1" in listed[0], "s2 of c1" in listed[1]] == [True, True]
    assert loopline("turns", "--unschedule", "c1:s2").code == 0
    assert loopline("turns", "--unschedule", "c1:s2").code == 1
    assert loopline("turns", "--unschedule", "c1").code == 0
    assert "no turn" in loopline("turns").out
    assert loopline("run", "hello", "later", "--at", "tomorrow").code == 2


def test_a_server_schedules_lists_begins_and_removes(tmp_path: Path) -> None:
    settings = ServerSettings(recovery_seconds=0.1)
    served = app(SHOP, store=f"sqlite:///{tmp_path}/talk.db", model=EchoModel(), settings=settings)
    talk = "/conversations/default/default/c1"
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        soon = client.post(f"{talk}/schedule", json={"text": "soon", "delay": 0.2})
        assert soon.status_code == 201
        daily = {"text": "daily", "every": "0 7 * * *", "zone": "Asia/Tokyo"}
        assert client.post(f"{talk}/schedule", json=daily).json()["id"] == "s2"
        assert client.post(f"{talk}/schedule", json={"text": "never"}).status_code == 422
        while client.get(f"{talk}/turns/turn_1").json().get("answer") != "You said: soon":
            time.sleep(0.05)
        [waiting] = client.get(f"{talk}/schedule").json()["messages"]
        assert (waiting["text"], waiting["zone"]) == ("daily", "Asia/Tokyo")
        assert client.delete(f"{talk}/schedule/s2").json() == {"done": True}
        assert client.delete(f"{talk}/schedule/s2").json() == {"done": False}


def test_a_server_begins_what_is_due_while_another_scheduled_turn_runs(tmp_path: Path) -> None:
    settings = ServerSettings(recovery_seconds=0.1, drain_seconds=0.1)
    served = app(SHOP, store=f"sqlite:///{tmp_path}/talk.db", model=EchoModel(), settings=settings)
    talks = "/conversations/default/default"
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        long = {"text": "call shop.wait name=600", "delay": 0}
        assert client.post(f"{talks}/c1/schedule", json=long).status_code == 201
        while client.get(f"{talks}/c1/status").json().get("state") != "in_progress":
            time.sleep(0.02)
        client.post(f"{talks}/c2/schedule", json={"text": "soon", "delay": 0})
        while client.get(f"{talks}/c2/turns/turn_1").json().get("answer") != "You said: soon":
            time.sleep(0.02)
        assert client.get(f"{talks}/c1/status").json()["state"] == "in_progress"


@pytest.mark.parametrize("sends", ["schedule", "messages"])
def test_a_conversation_of_which_only_a_message_waits_belongs_to_the_bundle_of_that_message(
    tmp_path: Path, sends: str
) -> None:
    bundles = [Bundle(id="tea"), Bundle(id="coffee")]
    settings = ServerSettings(submits_only=True, drain_seconds=0.1)
    store = f"sqlite:///{tmp_path}/talk.db"
    served = app(bundles, store=store, model=EchoModel(), settings=settings)
    talk = "/conversations/default/default/c1"
    waiting: dict[str, Any] = {"text": "x", "bundle_id": "coffee"}
    waiting |= {"delay": 3_600} if sends == "schedule" else {"background": True}
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        assert client.post(f"{talk}/{sends}", json=waiting).is_success
        other = {"text": "y", "bundle_id": "tea", "background": True}
        refused = client.post(f"{talk}/messages", json=other)
        assert (refused.status_code, "belongs to the bundle 'coffee'" in refused.text) == (
            409,
            True,
        )
