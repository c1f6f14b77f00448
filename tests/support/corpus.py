"""One corpus of scenarios for many laws: it is drawn once in a process, and each scenario is run once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Generic, TypeVar

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.support.examples import number_of_examples
from tests.support.scenario import Scenario, ScenarioRun
from tests.support.scenario import run_scenario as run_scenario

Drawn = TypeVar("Drawn")
Result = TypeVar("Result")
SEED = 15
"""The seed of the suite's corpus; `python -m tests.bench.fuzzed_scenarios` draws others."""
SCENARIOS = 60
"""How many scenarios a campaign draws by a strategy, if a law does not say otherwise."""
IN_FILES = 12
"""How many of them, the first, a law is held over that runs each again over a store in a file."""
KEPT = 250


def over_corpus(
    strategy: SearchStrategy[Drawn], drawn: int = SCENARIOS, *, first: int | None = None
) -> Callable[[Callable[[Drawn], None]], Callable[[], None]]:
    """Hold a law over the scenarios that are drawn by a strategy, or over the first of them.

    So many are drawn in a campaign, and a tenth of them, and of the first, in the suite. A law that fails is held again over scenarios that hypothesis draws, which finds the smallest that breaks it.
    """

    number = number_of_examples(drawn)
    most = number_of_examples(first) if first else number

    def hold(law: Callable[[Drawn], None]) -> Callable[[], None]:
        shrinking = seed(SEED)(settings(max_examples=number)(given(strategy)(law)))

        @wraps(shrinking)
        def over() -> None:
            try:
                for scenario in scenarios(strategy, number)[:most]:
                    law(scenario)
            except Exception:
                shrinking()
                raise

        marked: Callable[[], None] = pytest.mark.corpus(over)
        return marked

    return hold


@cache
def scenarios(strategy: SearchStrategy[Drawn], number: int) -> Sequence[Drawn]:
    """Draw so many scenarios, the same ones in every process."""
    drawn = list[Drawn]()

    @seed(SEED)
    @settings(max_examples=number, database=None, phases=[Phase.generate])
    @given(strategy)
    def draw(scenario: Drawn) -> None:
        drawn.append(scenario)

    draw()
    return drawn


@dataclass(frozen=True)
class RunOnce(Generic[Drawn, Result]):
    """Runs each scenario once, and keeps its result for the other laws over the same corpus."""

    run: Callable[[Drawn], Result]
    _results: dict[int, tuple[Drawn, Result]] = field(
        default_factory=dict[int, tuple[Drawn, Result]]
    )
    """By the identity of the scenario, which is kept so that no other has it."""

    def __call__(self, scenario: Drawn) -> Result:
        """Run the scenario, unless that was done."""
        if id(scenario) not in self._results:
            if len(self._results) >= KEPT:
                self._results.clear()
            self._results[id(scenario)] = (scenario, self.run(scenario))
        return self._results[id(scenario)][1]


run_of: RunOnce[Scenario, ScenarioRun] = RunOnce(run_scenario)
