"""Records of agents are values of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest

from loopline.events import AgentEvent, DialectName, Record
from tests.dialects.decoded_stream import GOLDEN


def told(name: str) -> list[Record]:
    lines = (GOLDEN / f"{name}.jsonl").read_text("utf-8").splitlines()
    return [Record(**json.loads(line)) for line in lines]


def test_an_agents_record_is_read_as_what_it_was_made_of() -> None:
    records = [record for record in told("chatcli") if record.event == "AgentEvent"]
    read = [AgentEvent.of(record) for record in records]
    assert [event.data for event in read if event] == [record.data for record in records]
    assert {event.type for event in read if event} == {"Started", "Completed", "Failed"}


@pytest.mark.parametrize("name", get_args(DialectName))
def test_no_other_record_is_an_agents(name: str) -> None:
    others = [record for record in told(name) if record.event != "AgentEvent"]
    assert others
    assert [AgentEvent.of(record) for record in others] == [None] * len(others)


def test_an_agents_record_that_lacks_a_field_or_has_another_type_is_none() -> None:
    record = Record(
        event="AgentEvent",
        data=AgentEvent(type="Started", call_id="c1", agent="crew", task="look").data,
    )
    for key, value in record.data.items():
        assert AgentEvent.of(replace(record, data={**record.data, key: [value]})) is None
        rest = {name: other for name, other in record.data.items() if name != key}
        assert AgentEvent.of(replace(record, data=rest)) is None
