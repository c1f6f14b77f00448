"""What the loop and its log cost, each figure beside its target and, where it says more, a raw floor.

`python -m tests.bench.rounds [--json]` takes two minutes. Each part runs in a process of its own, so that
none measures what another has left in memory; the floors are of the same run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.bench.program import Row, print_rows, read_options

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("in_memory", "durable", "reopen", "concurrency", "imports")


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
    options = read_options(__doc__, json=False)
    print_rows([row for part in PARTS for row in measured_apart(part)], as_json=options.json)


if __name__ == "__main__":
    main()
