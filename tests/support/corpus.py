"""One corpus of scenarios for many laws: each law is given the same ones, and each is run once in a process."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import seed, settings

from tests.support.scenario import Life, Lived
from tests.support.scenario import live as run_scenario

SEED = 15
"""The seed of the suite's corpus; `python -m tests.bench.fuzzed_scenarios` draws others."""
SCENARIOS = 60
"""How many scenarios most laws are held over."""
IN_FILES = 12
"""How many of them, the first, a law is held over that runs each again over a store in a file."""
KEPT = 250

_lived: dict[str, Lived] = {}


def over_corpus(examples: int) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Hold a law over so many scenarios, the same ones for each law that draws them by the same strategy."""

    def hold(law: Callable[[], None]) -> Callable[[], None]:
        return seed(SEED)(settings(max_examples=examples)(law))

    return hold


def live(life: Life) -> Lived:
    """Run the scenario, unless that was done."""
    name = repr(life)
    if name not in _lived:
        if len(_lived) >= KEPT:
            _lived.clear()
        _lived[name] = run_scenario(life)
    return _lived[name]
