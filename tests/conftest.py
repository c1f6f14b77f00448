"""What every test shares: a slow machine makes no test fail, cores do not wait, and what stays is looked through once."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from itertools import groupby
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings

from tests.support.examples import CAMPAIGN, GATES, SUITE

TESTS = Path(__file__).parent

for name, number in (("suite", SUITE), ("gates", GATES), ("campaign", CAMPAIGN)):
    settings.register_profile(
        name,
        max_examples=number,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("suite")


LARGE, SEED = 20, 1
"""From how many cases on `--one-in` draws a sample of a campaign, and of what seed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that makes a campaign short."""
    parser.addoption(
        "--one-in",
        type=int,
        default=1,
        metavar="N",
        help=f"of a campaign of {LARGE} cases or more, run one in N, drawn with a fixed seed",
    )


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw a sample of each large campaign, and put first what keeps one worker busy for long: laws over a corpus, killed workers."""
    campaigns = [item for item in items if item.get_closest_marker("campaign")]
    left = set[pytest.Item]()
    for _, cases in groupby(campaigns, key=lambda item: item.nodeid.partition("[")[0]):
        matrix = list(cases)
        if len(matrix) >= LARGE:
            drawn = Random(SEED).sample(matrix, len(matrix) // config.option.one_in)
            left |= set(matrix) - set(drawn)
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]
    items.sort(
        key=lambda item: (
            item.get_closest_marker("corpus") is None,
            not item.path.is_relative_to(TESTS / "workers"),
        )
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: there is none, and looking would take a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep modules and tests out of every later garbage collection."""
    gc.collect()
    gc.freeze()
