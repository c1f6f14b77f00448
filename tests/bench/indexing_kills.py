"""Processes that index past turns are killed at places drawn by lot, and the index is compared with one of no kill.

`python -m tests.bench.indexing_kills [--kills 50] [--seed N]` prints each statement at which a process was killed, and
exits 1 when an index differs after the next process carried on.
"""

from __future__ import annotations

import sys
import tempfile

from tests.bench.program import read_options
from tests.crashes.processes import finish, start


def main() -> int:
    """Kill, compare, print, and return 1 when an index differs."""
    arguments = read_options(__doc__, kills=50, seed=7)
    with tempfile.TemporaryDirectory() as folder:
        process = start(
            folder, arguments.kills, arguments.seed, tasks="tests.crashes.killed_indexing"
        )
        statements, *kills = finish(process)
    same_kills = [kill for kill in kills if kill.endswith("killed True")]
    for kill in kills:
        sys.stdout.write(f"statement {kill}\n")
    sys.stdout.write(
        f"{len(same_kills)} of {len(kills)} kills at {statements} statements end with the same index\n"
    )
    return 0 if len(same_kills) == arguments.kills else 1


if __name__ == "__main__":
    sys.exit(main())
