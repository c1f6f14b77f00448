"""Which faults no test would notice: `python -m tests.bench.mutants`, a table, or JSON with `--json`.

First the suites are run once, to learn which test runs which function. Then each mutant is put into a copy of the
repository, and the tests that run its function are run there, the most particular first, until one fails. The named
mutants are tried, and sixty that are drawn at random, the same for the same `--seed`. It takes about half an hour
on two cores; `--traces FOLDER` keeps what was learned of the tests for the next time.

Why this is no tool of the field. mutmut compiles all mutants of a function into it and runs the tests in forks of one
process, which threads, event loops and stores that refuse a fork do not survive. cosmic-ray runs one command for
every mutant: the whole suite, ten minutes for each. Neither draws a sample by seed, and neither tries a mutant that
is written down with its sentence, which is what keeps one that survived once from surviving again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.bench.mutants.mutations import Mutant, drawn, sources_of
from tests.bench.mutants.named import NAMED
from tests.bench.mutants.trial import Copy, Coverage, Result, tried
from tests.docs.pages import ROOT

DRAWN_FROM = ("timeline", "prompt", "react", "store")
COUNT = 60
SEED = 12
TARGET = 0.85


@dataclass(frozen=True, slots=True)
class Tried:
    mutant: Mutant
    change: str
    result: Result

    def line(self) -> str:
        result, mutant = self.result, self.mutant
        where = f"{mutant.path}:{mutant.line} {mutant.function}"
        by = f"  by {result.by}" if result.by else ""
        return f"{result.outcome:9} {result.seconds:6.1f} s  {where}  {mutant.operator}: {self.change}{by}"


def main(arguments: Sequence[str]) -> int:
    """Try the mutants; 1 if too few are killed."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Copy(ROOT, Path(folder) / f"{number}") for number in range(options.jobs)]
        package = copies[0].package
        found = [item.mutant(package) for item in NAMED] if options.only != "drawn" else []
        if options.only != "named":
            found += drawn(sources_of(package, DRAWN_FROM), options.count, options.seed)
        if options.match:
            found = [
                mutant for mutant in found if options.match in f"{mutant.path} {mutant.operator}"
            ]
        traces = options.traces or Path(folder) / "traces"
        tests = Coverage.traced(copies[0], traces, options.jobs)
        outcomes = list(_tried(found, copies, tests, quiet=options.json))
    _report(outcomes, as_json=options.json)
    killed = sum(outcome.result.outcome in ("killed", "timeout") for outcome in outcomes)
    return 0 if killed >= TARGET * len(outcomes) else 1


def _tried(
    found: Sequence[Mutant], copies: Sequence[Copy], tests: Coverage, *, quiet: bool
) -> Iterator[Tried]:
    """Each mutant with its outcome, in their order, as many at a time as there are copies."""
    free = SimpleQueue[Copy]()
    for copy in copies:
        free.put(copy)

    def attempt(mutant: Mutant) -> Tried:
        copy = free.get()
        try:
            change = mutant.shown((copy.package / mutant.path).read_bytes())
            one = Tried(mutant, change, tried(copy, mutant, tests.of(mutant.path, mutant.function)))
        finally:
            free.put(copy)
        if not quiet:
            sys.stdout.write(f"{one.line()}\n")
            sys.stdout.flush()
        return one

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from pool.map(attempt, found)


def _report(outcomes: Sequence[Tried], *, as_json: bool) -> None:
    counts = Counter(outcome.result.outcome for outcome in outcomes)
    if as_json:
        rows = [
            {**asdict(outcome.mutant), "change": outcome.change, **asdict(outcome.result)}
            for outcome in outcomes
        ]
        sys.stdout.write(json.dumps({"outcomes": counts, "mutants": rows}, indent=1) + "\n")
        return
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    sys.stdout.write(f"{len(outcomes)} mutants: {text}\n")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.mutants")
    parser.add_argument("--seed", type=int, default=SEED, help="which mutants are drawn")
    parser.add_argument("--count", type=int, default=COUNT, help="how many are drawn")
    parser.add_argument("--only", choices=["named", "drawn"], help="only these")
    parser.add_argument(
        "--match", default="", help="only those with this in their path or operator"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--traces", type=Path, help="where it is kept which test runs what")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
