"""Durations are written as Go writes them."""

from __future__ import annotations

import pytest

from loopline.events.dialects.chatcli import go_duration


@pytest.mark.parametrize(
    ("milliseconds", "written"),
    [
        (0.0, "0s"),
        (234.0, "234ms"),
        (234.5, "234.5ms"),
        (0.25, "250µs"),
        (0.0015, "1.5µs"),
        (0.000001, "1ns"),
        (1.0, "1ms"),
        (999.999, "999.999ms"),
        (1000.0, "1s"),
        (1234.0, "1.234s"),
        (60_000.0, "1m0s"),
        (61_500.0, "1m1.5s"),
        (3_600_000.0, "1h0m0s"),
        (90_061_001.0, "25h1m1.001s"),
        (0.1 + 0.2, "300µs"),
        (-1500.0, "-1.5s"),
    ],
)
def test_a_duration_has_the_units_it_takes(milliseconds: float, written: str) -> None:
    assert go_duration(milliseconds) == written
