"""More drawn scenarios than the suite draws: `python -m tests.bench.fuzzed_scenarios --examples 5000 --seed 7`.

Each is run once and held to every law; what the scenarios had in them is counted.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from hypothesis import given, seed, settings
from hypothesis.strategies import SearchStrategy

from loopline.timeline import Block, Exit, ModelSwitched, ToolPending
from tests.bench.program import read_options
from tests.laws import test_a_prompt_fits as fitting
from tests.laws import test_carrying_on_only_extends_the_prompt as extended
from tests.laws import test_nothing_begins_after_the_end as interrupted
from tests.laws import test_the_invariants_of_a_turn as invariants
from tests.support.corpus import run_of
from tests.support.fuzzed_scenarios import fuzzed_scenarios
from tests.support.interruption_strategies import drawn
from tests.support.scenario_strategies import drawn_scenarios

HELD: tuple[tuple[ModuleType, SearchStrategy[Any], Callable[[Any], Sequence[Block]]], ...] = (
    (invariants, fuzzed_scenarios, lambda scenario: run_of(scenario).blocks),
    (extended, drawn_scenarios, lambda scenario: run_of(scenario).blocks),
    (fitting, drawn_scenarios, lambda scenario: run_of(scenario).blocks),
    (interrupted, drawn, lambda drawing: interrupted.tell(drawing).blocks),
)
"""The modules of laws, what these are held over, and the blocks of one of it."""


def laws(module: ModuleType) -> list[Callable[[Any], None]]:
    return [
        law.hypothesis.inner_test for law in vars(module).values() if hasattr(law, "hypothesis")
    ]


def seen(blocks: Sequence[Block]) -> set[str]:
    types = {block.type for block in blocks}
    for block in blocks:
        match block.body:
            case Exit(reason=reason):
                types.add(f"{block.type}, {reason}")
            case ModelSwitched(why=why):
                types.add(f"{block.type}, {why}")
            case ToolPending(kind=kind):
                types.add(f"{block.type}, {kind}")
            case _:
                pass
    return types


def hold(
    module: ModuleType,
    strategy: SearchStrategy[Any],
    blocks_of: Callable[[Any], Sequence[Block]],
    *,
    examples: int,
    start: int,
) -> Counter[str]:
    held_laws, counted = laws(module), Counter[str]()

    @seed(start)
    @settings(max_examples=examples, deadline=None)
    @given(strategy)
    def every(one: object) -> None:
        for law in held_laws:
            law(one)
        counted.update(["scenarios", *seen(blocks_of(one))])

    every()
    return counted


def main() -> None:
    chosen = read_options(__doc__, examples=1_000, seed=0)
    for module, strategy, blocks_of in HELD:
        start, busy = time.monotonic(), time.process_time()
        counted = hold(module, strategy, blocks_of, examples=chosen.examples, start=chosen.seed)
        took, worked = time.monotonic() - start, time.process_time() - busy
        sys.stdout.write(
            f"{counted['scenarios']} scenarios and {len(laws(module))} laws in {took:.0f} s, {worked:.0f} s of "
            f"them at work: {module.__name__.split('.')[-1]}\n"
        )
        for what, count in sorted(counted.items()):
            sys.stdout.write(f"  {count:6}  {what}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
