"""What the loop and its log cost, each figure beside its target and, where it says more, a raw floor.

`python tests/bench/rounds.py [--json]` takes two minutes. Each part runs in a process of its own, so that
none measures what another has left in memory; the floors are of the same run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("in_memory", "durable", "reopen", "concurrency", "imports")


@dataclass(frozen=True)
class Row:
    """One figure, and the target it is held against."""

    what: str
    value: float
    unit: str
    target: str = ""


def tell(rows: list[Row]) -> None:
    """Say what a part has measured, to the process that has started it."""
    sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def measured_apart(part: str, *arguments: str) -> list[Row]:
    """What a module of this folder measures in a process of its own."""
    sys.stderr.write(f"measuring: {' '.join((part, *arguments[:1])).replace('_', ' ')}\n")
    said = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{part}", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return [Row(**row) for row in json.loads(said.stdout)]


def main() -> None:
    rows = [row for part in PARTS for row in measured_apart(part)]
    if "--json" in sys.argv[1:]:
        tell(rows)
        return
    table = Table("what", "value", "unit", "target")
    for row in rows:
        table.add_row(row.what, f"{row.value:,.2f}", row.unit, row.target)
    Console().print(table)


if __name__ == "__main__":
    main()
