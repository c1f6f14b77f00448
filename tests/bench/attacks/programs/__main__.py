"""Attack the package class by class with programs: `python -m tests.bench.attacks.programs`.

It prints a row for each class, with the number of programs that were tried and of those that passed through, and names
the latter. It exits 1 if one did. `--only server frames` runs these classes; `--most 20` draws that many programs of
each group by `--seed`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.bench.attacks.programs import (
    attachments,
    frames,
    mcp,
    redaction,
    sandbox,
    server,
    terminal,
)
from tests.bench.attacks.programs.trial import Attack, Draw, Trial
from tests.bench.program import say, say_json

CLASSES: Mapping[str, Attack] = {
    "sandbox": sandbox.attack,
    "server": server.attack,
    "attachments": attachments.attack,
    "mcp": mcp.attack,
    "frames": frames.attack,
    "redaction": redaction.attack,
    "terminal": terminal.attack,
}


async def run_class(name: str, seed: int, most: int | None) -> list[Trial]:
    with TemporaryDirectory(prefix="lp") as folder:
        draw = Draw(Random(f"{seed}/{name}"), Path(folder), most)
        return [trial async for trial in CLASSES[name](draw)]


def main(arguments: Sequence[str]) -> int:
    """Run the classes; 1 if a program of them passed through."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.attacks.programs")
    parser.add_argument("--only", nargs="+", choices=CLASSES, default=list(CLASSES))
    parser.add_argument("--seed", type=int, default=0, help="what is drawn")
    parser.add_argument("--most", type=int, help="so many programs of each group; all without it")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    options = parser.parse_args(arguments)
    passed: dict[str, list[Trial]] = {}
    if not options.json:
        say("| class | tried | passed through |\n|---|---|---|")
    for name in options.only:
        trials = asyncio.run(run_class(name, options.seed, options.most))
        passed[name] = [trial for trial in trials if trial.passed]
        if not options.json:
            say(f"| {name} | {len(trials):,} | {len(passed[name]):,} |")
    if options.json:
        say_json(passed)
    else:
        for name, trials in passed.items():
            for trial in trials:
                say(f"{name}: {trial.program}: {trial.must_hold}: {trial.passed!r}")
    return int(any(passed.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
