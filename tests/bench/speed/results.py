"""What a run has measured: samples by row and subject, as JSON and as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from tests.bench.speed.driver import Sample, Task
from tests.bench.speed.subjects import NAMES

MANY = 200
ROUNDS_OF_MANY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """A row of the table: a task without its store; `per_second` rows count rounds, the others milliseconds."""

    title: str
    task: Task
    durable: bool = False
    per_second: bool = False


def names(count: int, first: int = 0) -> tuple[str, ...]:
    return tuple(f"c{number}" for number in range(first, first + count))


ROWS = {
    "memory_10": SpeedRow(title="in memory, 10 rounds", task=Task(rounds=10)),
    "memory_100": SpeedRow(title="in memory, 100 rounds", task=Task(rounds=100)),
    "memory_500": SpeedRow(title="in memory, 500 rounds", task=Task(rounds=500)),
    "durable_500": SpeedRow(
        title="durable, 500 rounds, a commit a round at least",
        task=Task(rounds=500),
        durable=True,
    ),
    "run_500": SpeedRow(
        title="durable, 500 rounds, one commit a run",
        task=Task(rounds=500, commits="run"),
        durable=True,
    ),
    "crowd": SpeedRow(
        title=f"{MANY} conversations at once, durable",
        task=Task(rounds=ROUNDS_OF_MANY, conversations=names(MANY)),
        durable=True,
        per_second=True,
    ),
}
SHARED = {count: f"shared_{count}" for count in (1, 2, 4)}
"""The rows of so many processes on one store."""
TITLES = {
    **{key: row.title for key, row in ROWS.items()},
    **{
        key: f"{MANY} conversations over {count} process{'es' if count > 1 else ''}"
        for count, key in SHARED.items()
    },
}


@dataclass(slots=True)
class SpeedResults:
    """The samples of each row and subject, in the order they were taken, and what the run was of."""

    versions: dict[str, str] = field(default_factory=dict[str, str])
    skipped: list[str] = field(default_factory=list[str])
    samples: dict[str, dict[str, list[Sample]]] = field(
        default_factory=dict[str, dict[str, list[Sample]]]
    )
    lock_shares: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def add(self, row: str, subject: str, sample: Sample) -> None:
        self.samples.setdefault(row, {}).setdefault(subject, []).append(sample)

    def failed(self, row: str, problem: str) -> None:
        """Keep, once, that a subject could not do a row."""
        line = f"fails: {TITLES[row]}: {problem}"
        if line not in self.skipped:
            self.skipped.append(line)

    def json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @property
    def subjects(self) -> list[str]:
        """List the subjects that have a sample, ours first."""
        fromkeys = dict.fromkeys(name for row in self.samples.values() for name in row)
        return sorted(
            fromkeys, key=lambda name: (not name.startswith("loopline"), list(fromkeys).index(name))
        )


def read(path: Path) -> SpeedResults:
    """Return the results of a JSON file that an earlier run has written."""
    fields = json.loads(path.read_text("utf-8"))
    samples = {
        row: {subject: [Sample(**item) for item in taken] for subject, taken in subjects.items()}
        for row, subjects in fields.pop("samples").items()
    }
    return SpeedResults(**fields, samples=samples)


def is_per_second(row: str) -> bool:
    """Tell the rows that count rounds a second."""
    return row in SHARED.values() or ROWS[row].per_second


def figure(row: str, sample: Sample) -> float:
    """Return milliseconds a round, or rounds a second."""
    return 1000 / sample.ms if is_per_second(row) else sample.ms


def spread(values: list[float]) -> tuple[float, float, float]:
    return min(values), median(values), max(values)


def written(value: float) -> str:
    """Write a figure with as many digits as it deserves."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def cell(row: str, samples: list[Sample]) -> str:
    """Write the median with its spread, and the median of CPU milliseconds."""
    if not samples:
        return "–"
    low, middle, high = map(written, spread([figure(row, sample) for sample in samples]))
    cpu = written(median(sample.cpu_ms for sample in samples))
    return f"{middle} ({low}–{high}), CPU {cpu}"


def table(results: SpeedResults) -> Iterator[str]:
    """Make the table: a row a task, a column a subject."""
    subjects = results.subjects
    yield " | ".join(["| a round", *(NAMES.get(name, name) for name in subjects)]) + " |"
    yield "|---" * (len(subjects) + 1) + "|"
    for row in filter(results.samples.__contains__, TITLES):
        unit = "rounds/s" if is_per_second(row) else "ms"
        cells = [cell(row, results.samples[row].get(name, [])) for name in subjects]
        yield " | ".join([f"| {TITLES[row]}, {unit}", *cells]) + " |"
    for row, shares in results.lock_shares.items():
        low, middle, high = (f"{share:.0%}" for share in spread(shares))
        yield f"\n{TITLES[row]}: the write lock is held {middle} of the time ({low}–{high})."
    yield from pairs(results)
    yield ""
    yield from (f"{NAMES.get(name, name)}: {text}" for name, text in results.versions.items())
    yield from results.skipped


def pairs(results: SpeedResults) -> Iterator[str]:
    """Compare this tree with the other commit, pair by pair: the CPU of each sample over that of its neighbour."""
    for row, subjects in results.samples.items():
        for other_subject in subjects:
            if other_subject.startswith("loopline@") and "loopline" in subjects:
                both = zip(subjects["loopline"], subjects[other_subject], strict=False)
                ratios = [now.cpu_ms / then.cpu_ms for now, then in both]
                low, middle, high = (f"{ratio:.2f}" for ratio in spread(ratios))
                yield f"\n{TITLES[row]}: CPU {middle} of {other_subject}'s ({low}–{high}, {len(ratios)} pairs)."
