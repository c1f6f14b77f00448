"""One corpus of scenarios for many laws: it is drawn once in a process, and each scenario is run once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps

from hypothesis import Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.support.scenario import Life, Lived
from tests.support.scenario import live as run_scenario

SEED = 15
"""The seed of the suite's corpus; `python -m tests.bench.fuzzed_scenarios` draws others."""
SCENARIOS = 60
"""How many scenarios are drawn by a strategy, where a law does not say otherwise."""
IN_FILES = 12
"""How many of them, the first, a law is held over that runs each again over a store in a file."""
KEPT = 250

_lived: dict[int, tuple[Life, Lived]] = {}
"""What was lived, by the identity of the scenario, which is kept so that no other has it."""


def over_corpus(
    strategy: SearchStrategy[Life], drawn: int = SCENARIOS, *, first: int | None = None
) -> Callable[[Callable[[Life], None]], Callable[[], None]]:
    """Hold a law over the scenarios that are drawn by a strategy, or over the first of them.

    A law that fails is held again over scenarios that hypothesis draws, which finds the smallest that breaks it.
    """

    def hold(law: Callable[[Life], None]) -> Callable[[], None]:
        shrinking = seed(SEED)(settings(max_examples=drawn)(given(strategy)(law)))

        @wraps(shrinking)
        def over() -> None:
            try:
                for life in scenarios(strategy, drawn)[:first]:
                    law(life)
            except Exception:
                shrinking()
                raise

        return over

    return hold


@cache
def scenarios(strategy: SearchStrategy[Life], number: int) -> Sequence[Life]:
    """Draw so many scenarios, the same ones in every process."""
    drawn = list[Life]()

    @seed(SEED)
    @settings(max_examples=number, database=None, phases=[Phase.generate])
    @given(strategy)
    def draw(life: Life) -> None:
        drawn.append(life)

    draw()
    return drawn


def live(life: Life) -> Lived:
    """Run the scenario, unless that was done."""
    if id(life) not in _lived:
        if len(_lived) >= KEPT:
            _lived.clear()
        _lived[id(life)] = (life, run_scenario(life))
    return _lived[id(life)][1]
