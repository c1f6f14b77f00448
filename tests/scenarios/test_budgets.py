"""A turn and its child runs keep within their budget together, and end with an answer."""

from __future__ import annotations

import pytest

from loopline import Harness
from loopline.react import Limits
from loopline.testing import FakeClock
from loopline.timeline import RunChild
from tests.support import kin
from tests.support.billing import BillingModel, four_at_once
from tests.support.workbench import bodies


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_tokens=8_000),
        Limits(max_cost=0.005),
        Limits(max_tokens=8_000, max_cost=0.005),
    ],
)
async def test_four_children_side_by_side_keep_within_the_budget_of_their_parent(
    limits: Limits,
) -> None:
    model = BillingModel(four_at_once)
    async with Harness.open(kin.bundle, store="memory:", model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        result = await talk.say("go", **limits)
        links = await bodies(talk, RunChild)
    assert len({one.conversation for one in links}) == 4
    assert model.tokens <= (limits.get("max_tokens") or 10**9)
    assert model.cost <= (limits.get("max_cost") or 10.0)
    assert result.answer
