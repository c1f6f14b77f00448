"""Attack the package as its audits did, and print what comes of it: `python -m tests.bench.attacks`.

A row for each attack: the figure that it had before its cause was mended, where it was measured, the figure now,
and whether that holds. It exits 1 if one does not. By default, in about a minute, the campaigns at the end are
small; `--full` is 250 kills, 8 processes for 300 seconds, 12 full disks, 400 episodes of failing writes and 19,200 tampered documents, in an hour.
`--only kills --kills 20` makes a part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.attacks import measurements
from tests.bench.attacks.bodies import fill_memory
from tests.bench.attacks.disks import fill_disks
from tests.bench.attacks.documents import tamper
from tests.bench.attacks.errors import fail_writes
from tests.bench.attacks.kills import kill_runners
from tests.bench.attacks.outcome import Outcome
from tests.bench.attacks.processes import crowd
from tests.bench.program import say, say_json

JOBS = 2
PARTS = ("measured", "bodies", "kills", "processes", "disks", "errors", "documents")
SMALL = {"kills": 10, "seconds": 15, "full_disks": 2, "errors": 8, "documents": 500}
FULL = {"kills": 250, "seconds": 300, "full_disks": 12, "errors": 400, "documents": 19_200}


def measure() -> Iterator[Outcome]:
    """Make the attacks that have a figure, each with a folder of its own."""
    for attack in measurements.MEASURED:
        with TemporaryDirectory() as folder:
            yield from asyncio.run(measurements.make_attack(attack, Path(folder)))


def make(part: str, options: argparse.Namespace) -> Iterable[Outcome]:
    seed: int = options.seed
    match part:
        case "measured":
            return measure()
        case "bodies":
            return [fill_memory()]
        case "kills":
            return [kill_runners(options.kills, seed)]
        case "processes":
            return [crowd(options.processes, options.seconds, seed)]
        case "disks":
            return [fill_disks(options.full_disks, seed)]
        case "errors":
            return [fail_writes(options.errors, seed)]
        case _:
            return [tamper(options.documents, seed, JOBS)]


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    sizes = FULL if "--full" in arguments else SMALL
    parser = argparse.ArgumentParser(prog="python -m tests.bench.attacks")
    parser.add_argument("--full", action="store_true", help="the whole campaign")
    parser.add_argument("--kills", type=int, default=sizes["kills"])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=sizes["seconds"])
    parser.add_argument("--full-disks", type=int, default=sizes["full_disks"])
    parser.add_argument("--errors", type=int, default=sizes["errors"])
    parser.add_argument("--documents", type=int, default=sizes["documents"])
    parser.add_argument("--seed", type=int, default=0, help="what is drawn")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts alone")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Make the attacks; 1 if one of them does not hold."""
    options = _options(arguments)
    rows = list[Outcome]()
    if not options.json:
        say("| attack | before | now | holds |\n|---|---|---|---|")
    for part in options.only:
        for row in make(part, options):
            rows.append(row)
            if not options.json:
                holds = "yes" if row.holds else "NO"
                say(f"| {row.attack} | {row.before or '–'} | {row.now} | {holds} |")
    if options.json:
        say_json(rows)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
