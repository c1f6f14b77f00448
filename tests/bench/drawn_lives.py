"""More drawn lives than the suite draws: `python -m tests.bench.drawn_lives --examples 5000 --seed 7`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from hypothesis import seed, settings

from tests.laws import test_nothing_begins_after_the_end as interrupted
from tests.laws import test_what_every_turn_keeps as wild


def laws() -> list[tuple[str, Callable[[], Any]]]:
    """List every law that draws its lives, by its sentence."""
    found = [*vars(wild).items(), *vars(interrupted).items()]
    return [(name, law) for name, law in found if hasattr(law, "hypothesis")]


def main() -> None:
    """Hold each law to so many lives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    for name, law in laws():
        start = time.monotonic()
        seed(chosen.seed)(settings(max_examples=chosen.examples, deadline=None)(law))()
        took = time.monotonic() - start
        sys.stdout.write(f"{chosen.examples:6} lives, {took:6.1f} s: {name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
