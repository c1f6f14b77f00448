"""What breaks in a campaign of attacks is told."""

from __future__ import annotations

from tests.bench.attacks.outcome import Tally


def test_a_campaign_in_which_something_broke_does_not_hold() -> None:
    tally = Tally()
    tally.done["kills"] = 3
    assert tally.outcome("a", "").holds
    tally.expect(False, "acknowledged block lost", 2)
    row = tally.outcome("a", "")
    assert (row.holds, row.now) == (False, "3 kills; 2 × acknowledged block lost")
