"""`python -m tests.bench.speed` measures the cost of a round, ours beside that of five libraries, in one run.

Each library has an environment and a process of its own, and its own model that answers at once; they take turns, so
that a busy minute of the machine meets all of them. It needs `uv` and a package registry, takes a quarter of an hour,
and prints a table with the median, the spread and the CPU of each. A library that cannot be installed is skipped by
name. `--json FILE` keeps the samples, `--picture FILE` draws them, `--against COMMIT` adds the package of a commit,
`--from FILE` only prints or draws what an earlier run has kept.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.peers.__main__ import make_all, version
from tests.bench.peers.programs import LIBRARIES
from tests.bench.speed import subjects as speed_subjects
from tests.bench.speed.driver import Sample, Task
from tests.bench.speed.lock import watched
from tests.bench.speed.picture import picture
from tests.bench.speed.results import (
    MANY,
    ROUNDS_OF_MANY,
    ROWS,
    SHARED,
    SpeedResults,
    SpeedRow,
    names,
    read,
    table,
)

WARM_UP = Task(rounds=20)


@dataclass(slots=True)
class RoundRobin:
    """Subjects that take turns; each durable task has a store of its own."""

    folder: Path
    subjects: list[speed_subjects.Subject]
    results: SpeedResults
    stores: int = 0

    def store(self) -> Path:
        self.stores += 1
        return self.folder / f"{self.stores}.db"

    async def warm_up(self) -> None:
        """Run a turn in memory and a durable one of each, which no result counts."""
        for subject in self.subjects:
            await self._sample(subject, WARM_UP)
            await self._sample(subject, replace(WARM_UP, store=str(self.store())))

    async def measure(self, key: str, row: SpeedRow) -> None:
        for subject in list(self.subjects):
            task = replace(row.task, store=str(self.store())) if row.durable else row.task
            try:
                sample = await self._sample(subject, task)
            except speed_subjects.TaskFailed as error:
                self.results.failed(key, str(error))
                continue
            if sample is not None:
                self.results.add(key, subject.name, sample)

    async def _sample(self, subject: speed_subjects.Subject, task: Task) -> Sample | None:
        try:
            return await subject.sample(task)
        except speed_subjects.SubjectFailed as error:
            self.subjects.remove(subject)
            self.results.skipped.append(f"no more: {error}")
            return None

    async def share(
        self, key: str, processes: Sequence[speed_subjects.Subject], many: int = MANY
    ) -> None:
        """Split the conversations over the processes, which start together on one store."""
        store, each = self.store(), many // len(processes)
        await processes[0].sample(Task(rounds=1, conversations=("first",), store=str(store)))
        tasks = [
            Task(rounds=ROUNDS_OF_MANY, conversations=names(each, number * each), store=str(store))
            for number in range(len(processes))
        ]
        with watched(store) as lock:
            samples = await asyncio.gather(
                *(process.sample(task) for process, task in zip(processes, tasks, strict=True))
            )
        taken_samples = [sample for sample in samples if sample is not None]
        began, ended = (
            min(item.began for item in taken_samples),
            max(item.ended for item in taken_samples),
        )
        rounds = each * len(processes) * (ROUNDS_OF_MANY + 1)
        cpu = sum(item.cpu_ms for item in taken_samples) / len(taken_samples)
        sample = Sample(ms=(ended - began) / rounds * 1000, cpu_ms=cpu, began=began, ended=ended)
        self.results.add(key, processes[0].name, sample)
        self.results.lock_shares.setdefault(key, []).append(lock.share)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.speed")
    parser.add_argument("--environments", type=Path, help="a folder that keeps the environments")
    parser.add_argument("--only", nargs="*", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--rows", nargs="*", choices=[*ROWS, "shared"], default=[*ROWS, "shared"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--against", metavar="COMMIT")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    parser.add_argument("--from", dest="earlier", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


async def measured(chosen: argparse.Namespace) -> SpeedResults:
    """Make the environments, start the subjects, and let them take turns."""
    results = SpeedResults()
    async with AsyncExitStack() as stack:
        new_path = Path(stack.enter_context(TemporaryDirectory()))
        processes = await stack.enter_async_context(speed_subjects.ours(max(SHARED)))
        subjects = [processes[0]] if "loopline" in chosen.only else []
        if chosen.against:
            tree = await stack.enter_async_context(speed_subjects.checked_out(chosen.against))
            name = f"loopline@{chosen.against}"
            subjects += await stack.enter_async_context(speed_subjects.ours(1, tree, name))
        folder = (chosen.environments or new_path / "environments").resolve()
        peers = [name for name in chosen.only if name != "loopline"]
        commands, results.skipped = await make_all(peers, folder)
        for name, path in commands.items():
            results.versions[name] = await version(path, name)
            program = speed_subjects.library(name, str(path / "python"))
            subjects.append(await stack.enter_async_context(program))
        subjects.append(await stack.enter_async_context(speed_subjects.floor()))
        robin = RoundRobin(new_path, subjects, results)
        await robin.warm_up()
        for number in range(chosen.repeats):
            for key in filter(chosen.rows.__contains__, ROWS):
                sys.stderr.write(f"{number + 1} of {chosen.repeats}: {key}\n")
                await robin.measure(key, ROWS[key])
            if "shared" in chosen.rows:
                for processes_count, key in SHARED.items():
                    await robin.share(key, processes[:processes_count])
            write(results, chosen)  # who stops a long run has what it has measured
    return results


def write(results: SpeedResults, chosen: argparse.Namespace) -> None:
    if chosen.json:
        chosen.json.write_text(results.json() + "\n", "utf-8")
    if chosen.picture:
        chosen.picture.write_text(picture(results), "utf-8")


def main() -> None:
    """Measure, or read what was measured; print the table, and write what is asked for."""
    chosen = options()
    results = read(chosen.earlier) if chosen.earlier else asyncio.run(measured(chosen))
    write(results, chosen)
    sys.stdout.write("\n".join([*table(results), ""]))


if __name__ == "__main__":
    main()
