"""What comes of two events in a state of a conversation is what the table of the flow page says."""

from __future__ import annotations

import pytest

from tests.bench.pairs_of_events import DOORS, cases, observe, sample
from tests.support.pairs.expected import EVENTS, STATES, Door, read_table
from tests.support.pairs.play import Store

SIZES: dict[Door, int] = {"process": 40, "processes": 12, "http": 12}
SAMPLES = [
    pytest.param(
        store,
        door,
        marks=() if door == "process" and store != "postgres" else pytest.mark.campaign,
    )
    for store, door in DOORS
]
SEED = 29


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
    found = await observe(sample(of_door, SIZES[door], SEED), lanes=3)
    assert [f"{one}" for one in found if not one.is_right] == []
