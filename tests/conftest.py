"""What every test shares: a slow machine makes no test fail, cores do not wait, and what stays is looked through once."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import CAMPAIGN, SUITE

TESTS = Path(__file__).parent

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


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import another share of the tests in each worker, before each worker collects all of them.

    What a worker imports first, it compiles for the others. Without that, each of them compiles everything at the same
    time: the first run in a new environment then takes half a minute more.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1 or session.config.args != session.config.getini("testpaths"):
        return
    for path in sorted(TESTS.rglob("test_*.py"))[int(worker) :: workers]:
        name = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
        with suppress(Exception):  # the collection reports it
            import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the laws over a corpus first: one worker has them all, and runs each scenario once."""
    items.sort(key=lambda item: item.get_closest_marker("corpus") is None)


def pytest_collection_finish() -> None:
    """Keep modules and tests out of every later garbage collection."""
    gc.collect()
    gc.freeze()
