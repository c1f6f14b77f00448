"""Samples of the fuzzed turns and of the pairs of events, and proof that the check of turns sees what is wrong."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.fuzzed_turns import drive
from tests.bench.pairs_of_events import DOORS, cases, observe, sample
from tests.support.fuzzed_turns.check import Talk, World, check, read_world
from tests.support.fuzzed_turns.tables import ADDRESS
from tests.support.pairs.expected import EVENTS, STATES, Door, read_table
from tests.support.pairs.play import Store
from tests.support.postgres_server import running_postgres

pytestmark = pytest.mark.campaign

SEED, TURNS = 1, 40


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, whose check has found nothing."""
    folder = tmp_path_factory.mktemp("lived")
    report = drive(folder, SEED, TURNS, kills=False)
    assert report.wrong == []
    assert report.counts["react.exit"] > TURNS // 2
    return folder


def test_a_sample_of_random_turns_of_two_processes_agrees_with_its_ledgers(lived: Path) -> None:
    world = read_world(lived)
    assert check(world) == []
    assert sum(len(talk.requests) for talk in world.talks.values()) > TURNS


@pytest.mark.service
def test_a_sample_over_postgres_agrees_with_its_ledgers(tmp_path: Path) -> None:
    (tmp_path / ADDRESS).write_text(running_postgres().store_url())
    report = drive(tmp_path, SEED, TURNS)
    assert report.wrong == []
    assert report.counts["react.exit"] > 0


def plant_in(world: World, plant: Callable[[Talk], None]) -> None:
    """Plant a fault into the first conversation that has what the fault is about."""
    for talk in world.talks.values():
        with suppress(IndexError, StopIteration, ValueError):
            plant(talk)
            return
    raise AssertionError("no conversation has it")


def drop_result(talk: Talk) -> None:
    ended = [row for row in talk.of("react.tool.result") if row.turn in talk.exits]
    talk.rows.remove(ended[0])


def repeat_exit(talk: Talk) -> None:
    talk.rows.append(replace(talk.of("react.exit")[0], seq=len(talk.rows) + 1))


def drop_exit(talk: Talk) -> None:
    talk.rows.remove(talk.of("react.exit")[0])


def repeat_effect(talk: Talk) -> None:
    talk.effects.append(talk.effects[0])


def start_late(talk: Talk) -> None:
    talk.effects[0]["head"] = 1


def lose_message(talk: Talk) -> None:
    for line in talk.requests:
        line["messages"] = [[role, [], ids] for role, _, ids in line["messages"]]


def take_twice(talk: Talk) -> None:
    first, second = [row for row in talk.of("react.round.start") if row.body.get("takes")][:2]
    second.body["takes"] = first.body["takes"]


def tell_otherwise(talk: Talk) -> None:
    next(line for line in talk.told if line.get("exit_reason") == "complete")["answer"] = (
        "something else"
    )


def acknowledge_falsely(talk: Talk) -> None:
    line = next(line for line in talk.told if line["action"] == "user.prompt")
    line["text"] = "never said"


def unpair(talk: Talk) -> None:
    talk.requests[0]["messages"].append(["assistant", [], ["c1"]])


def grow(talk: Talk) -> None:
    talk.requests[0]["size"] = 1_000_000


def deny_afterwards(talk: Talk) -> None:
    done = {line["call"] for line in talk.effects}
    next(r for r in talk.of("react.tool.result") if r.body["call_id"] in done).body["status"] = (
        "denied"
    )


PLANTED: dict[Callable[[Talk], None], str] = {
    drop_result: "has no result",
    repeat_exit: "has a second exit",
    drop_exit: "has not ended",
    repeat_effect: "took effect 2 times",
    start_late: "before its start was stored",
    lose_message: "is not in the request",
    take_twice: "is taken by",
    tell_otherwise: "is not what is stored",
    acknowledge_falsely: "is not what is stored",
    unpair: "a call without its result",
    grow: "tokens for a window",
    deny_afterwards: "was denied, and took effect",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_check_finds_what_is_planted(plant: Callable[[Talk], None], lived: Path) -> None:
    world = read_world(lived)
    plant_in(world, plant)
    assert any(PLANTED[plant] in problem for problem in check(world))


def test_the_check_finds_a_block_that_is_missing_in_the_store(lived: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(lived, folder, ignore=shutil.ignore_patterns("*-locks"))
    store = sqlite3.connect(folder / "store.db")
    triggers = store.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        store.execute(f'DROP TRIGGER "{name}"')
    store.execute("DELETE FROM blocks WHERE seq = 2")
    store.commit()
    store.close()
    assert any("not contiguous" in problem for problem in check(read_world(folder)))


SIZES: dict[Door, int] = {"process": 40, "processes": 8, "http": 6}
SAMPLES = [
    pytest.param(
        store,
        door,
        marks=() if door == "process" and store != "postgres" else pytest.mark.campaign,
    )
    for store, door in DOORS
]
SAMPLE_SEED = 29


def test_the_table_has_a_cell_for_each_event_in_each_state() -> None:
    columns = {"idle", "running", "calling", "asking", "paused", "cut off", "forgotten"}
    assert read_table().keys() == {(event, column) for event in EVENTS for column in columns}


def test_every_state_every_event_and_every_door_has_its_cases() -> None:
    found = cases()
    assert {case.state for case in found} == set(STATES)
    assert {event for case in found for event in case.events} == set(EVENTS)
    assert {(case.store, case.door) for case in found} == set(DOORS)
    assert len({(case.state, case.events, case.order) for case in found}) == 3870


@pytest.mark.parametrize(("store", "door"), SAMPLES)
async def test_two_events_come_to_what_the_table_says(store: Store, door: Door) -> None:
    of_door = [case for case in cases() if (case.store, case.door) == (store, door)]
    found = await observe(sample(of_door, SIZES[door], SAMPLE_SEED), lanes=3)
    assert [f"{one}" for one in found if not one.is_right] == []
