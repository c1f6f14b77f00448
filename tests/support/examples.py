"""How many examples and cases a law has: few in the suite, more in `.ci/run`, many in a campaign."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

SUITE, GATES, CAMPAIGN = 10, 40, 100
"""The profiles' numbers of examples for a law that does not say how many it needs."""


def number_of_examples(most: int) -> int:
    """Return `most` under the profile `campaign`, else the share of the profile, but 5 at least."""
    return max(5, most * settings().max_examples // CAMPAIGN)


def examples(most: int, **others: Any) -> settings:
    """Return settings that draw `number_of_examples(most)` examples, with `others` as they are."""
    return settings(max_examples=number_of_examples(most), **others)


def sampled(cases: Iterable[object], every: int) -> list[Any]:
    """Return the cases as parameters; the suite has the first of each `every` cases, a campaign the others."""
    return [
        pytest.param(case, marks=pytest.mark.campaign if number % every else ())
        for number, case in enumerate(cases)
    ]
