"""The calls that a program makes are events of their own: no dialect shows them as calls of the model."""

from __future__ import annotations

import json

import pytest

from loopline import Harness, tool
from loopline.events.dialects import DialectName
from loopline.testing import ScriptedModel
from tests.dialects.decoded_stream import NAMES, heard
from tests.support.programs import bundle, python


@tool(effect="read")
def price(kind: str) -> float:
    """Return the price of a kind of tea."""
    return {"green": 4.0}[kind]


PROGRAM = """
print(await tools.call("shop.price", kind="green"))
try:
    await tools.call("shop.price", kind="none")
except ToolFailed:
    print("failed")
"""


@pytest.mark.parametrize("dialect", [name for name in NAMES if name != "plain"])
async def test_a_subscriber_gets_the_start_and_the_end_of_each_call_of_a_program(
    dialect: DialectName,
) -> None:
    model = ScriptedModel([python(PROGRAM), "Done."])
    async with Harness.open(bundle(price), store="memory:", model=model) as harness:
        events = [event async for event in harness.conversation("c").stream("go")]
    records = [json.dumps(record.data) for record in heard(dialect, events)]
    told = [record for record in records if "loopline.program_call" in record]
    assert ['"c1-1"' in record for record in told] == [True, True, False, False]
    assert ['"c1-2"' in record for record in told] == [False, False, True, True]
    assert ['"started"' in record for record in told] == [True, False, True, False]
    assert '"error"' in told[3]
    assert all('"parent": "c1"' in record for record in told)
    assert not any('"c1-1"' in record for record in records if record not in told)
