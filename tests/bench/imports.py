"""What it takes to import the package, over Python alone; its memory is what Linux says of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

from tests.bench.program import Row, say_json

REPEATS = 9
SAY_MEMORY = "print(open('/proc/self/statm').read())"
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
IMPORTS = {
    "import loopline": ("≤ 150", "≤ 40"),
    "from loopline import BaseWorkflow, Bundle, Harness, tool": ("", ""),
}


def cost(statement: str) -> tuple[float, float]:
    """Milliseconds and MB that a process takes in which the statement is all that happens."""
    times, memory = list[float](), list[float]()
    for _ in range(REPEATS):
        start = time.perf_counter()
        said = subprocess.run(
            [sys.executable, "-c", f"{statement}; {SAY_MEMORY}"], stdout=subprocess.PIPE, check=True
        )
        times.append((time.perf_counter() - start) * 1000)
        memory.append(int(said.stdout.split()[1]) * PAGE_MB)
    return median(times), median(memory)


def measured() -> list[Row]:
    """Time and memory of each import."""
    bare_time, bare_memory = cost("pass")
    rows = list[Row]()
    for statement, (time_target, memory_target) in IMPORTS.items():
        took, memory = cost(statement)
        named = f"`{statement}` over Python alone"
        rows.append(Row(named, took - bare_time, "ms", time_target))
        rows.append(Row(f"{named}, memory", memory - bare_memory, "MB", memory_target))
    return rows


if __name__ == "__main__":
    say_json(measured())
