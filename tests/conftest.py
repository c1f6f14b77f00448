"""What every test shares: a slow machine makes no test fail, cores do not wait, and what stays is looked through once."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import CAMPAIGN, SUITE

for name, number in (("suite", SUITE), ("campaign", CAMPAIGN)):
    settings.register_profile(
        name,
        max_examples=number,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("suite")


def pytest_xdist_auto_num_workers() -> int:
    """Start two workers more than there are cores, because many tests wait for processes and clocks."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the laws over a corpus first: one worker has them all, and runs each scenario once."""
    items.sort(key=lambda item: item.get_closest_marker("corpus") is None)


def pytest_collection_finish() -> None:
    """Keep modules and tests out of every later garbage collection."""
    gc.collect()
    gc.freeze()
