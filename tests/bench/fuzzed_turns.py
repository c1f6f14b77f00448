"""Random users of random turns in two processes that are killed: `python -m tests.bench.fuzzed_turns --turns 10000 --seed 1`.

The processes share one store and its conversations. A model that says anything, tools that write down what they change, and
users who are told what became of their messages leave ledgers; an independent check compares them with the tables of the
store, and prints what does not agree.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.program import read_options
from tests.support.fuzzed_turns.check import check, count, read_world
from tests.support.fuzzed_turns.tables import ADDRESS
from tests.support.postgres_server import running_postgres

ROOT = Path(__file__).resolve().parents[2]
WORKER = "tests.support.fuzzed_turns.worker"
WORKERS = 2
SHOWN = 10
"""How many violations are printed."""


@dataclass
class Report:
    counts: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])


def start(
    folder: Path, seed: int, name: str, incarnation: int, turns: int
) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        WORKER,
        f"{folder}",
        f"{seed}",
        name,
        f"{incarnation}",
        f"{turns}",
    ]
    with (folder / f"errors-{name}-{incarnation}").open("w") as errors:
        return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)


def live(folder: Path, seed: int, name: str, turns: int, report: Report, *, kills: bool) -> None:
    """Run a worker to its end; when it asks for its death, kill it at some moment and begin it again."""
    draw, incarnation = random.Random(f"{seed}-{name}-kills"), 0
    while True:
        with start(folder, seed, name, incarnation, turns) as process:
            assert process.stdout is not None
            is_killed = False
            for _ in process.stdout:
                if kills:
                    is_killed = True
                    time.sleep(draw.uniform(0, 0.3))
                    process.kill()
                    break
        if not is_killed:
            break
        incarnation += 1
        report.counts["kills"] += 1
    if process.returncode:
        errors = (folder / f"errors-{name}-{incarnation}").read_text("utf-8")
        report.wrong.append(f"worker {name} ended with {process.returncode}: {errors[-3000:]}")


def drive(folder: Path, seed: int, turns: int, *, kills: bool = True) -> Report:
    """Run all workers, killed now and then or not, bring what they left to its end, and check it."""
    report = Report()
    workers = [
        threading.Thread(
            target=live,
            args=(folder, seed, f"{name}", turns // WORKERS, report),
            kwargs={"kills": kills},
        )
        for name in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    live(folder, seed, "end", 0, report, kills=False)
    world = read_world(folder)
    report.wrong += check(world)
    report.counts += count(world)
    return report


def main() -> int:
    given = read_options(__doc__, turns=1_000, seed=1, folder="", postgres=False)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(given.folder or name)
        folder.mkdir(parents=True, exist_ok=True)
        if given.postgres:
            (folder / ADDRESS).write_text(running_postgres().store_url())
        report = drive(folder, given.seed, given.turns)
    for what, number in sorted(report.counts.items()):
        sys.stdout.write(f"{number:8} {what}\n")
    sys.stdout.write(f"{time.monotonic() - began:8.0f} seconds\n{len(report.wrong):8} violations\n")
    sys.stdout.write("".join(f"{line}\n" for line in report.wrong[:SHOWN]))
    return min(len(report.wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
