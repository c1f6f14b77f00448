"""What a program that is measured runs in: it reads a task a line, and prints what the task took.

It is copied beside each program into an environment that has that library alone, so it imports the standard
library only. A program is one async function that takes a task and a stopwatch; its model says `asked()` to the
stopwatch whenever it is asked.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from statistics import median

REPLY = "Reading the next part of it, as was planned.."
RESULT = "r" * 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Turns at once, of so many rounds and an answer: one for each name of a conversation.

    `store` is the path of an SQLite file, the URL of a PostgreSQL database, or empty for a turn in memory alone.
    `commits` says what a library that can do both commits at once.
    """

    rounds: int
    conversations: tuple[str, ...] = ("c",)
    store: str = ""
    commits: str = "round"

    @property
    def is_in_postgres(self) -> bool:
        return self.store.startswith("postgresql://")

    @property
    def has_even_rounds(self) -> bool:
        """Tell a turn whose rounds cost alike from turns at once, and from one with a commit at its end."""
        return len(self.conversations) == 1 and self.commits == "round"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a task took: milliseconds of a round and of its CPU, and when it began and ended, by the machine's clock.

    The round of one turn is the median of the times from one request to the next; else it is the time from begin to
    end, divided by all rounds, the answers counted.
    """

    ms: float
    cpu_ms: float
    began: float
    ended: float


@dataclass(slots=True)
class Stopwatch:
    """Notes when the model is asked; `begin()` is said once, when all is open."""

    asked_at: list[float] = field(default_factory=list[float])
    cpu_at: list[float] = field(default_factory=list[float])

    def begin(self) -> None:
        self.asked()

    def asked(self) -> None:
        self.cpu_at.append(time.process_time())
        self.asked_at.append(time.monotonic())

    def sample(self, task: Task) -> Sample:
        self.asked()
        expected = len(task.conversations) * (task.rounds + 1) + 2
        if len(self.asked_at) != expected:
            raise RuntimeError(f"{len(self.asked_at) - 2} requests, not {expected - 2}: {task}")
        began, ended = self.asked_at[0], self.asked_at[-1]
        if task.has_even_rounds:
            times, cpu = self.asked_at[1:-1], self.cpu_at[1:-1]
            gaps = [after - before for before, after in pairwise(times)]
            return Sample(
                ms=median(gaps) * 1000,
                cpu_ms=(cpu[-1] - cpu[0]) / len(gaps) * 1000,
                began=began,
                ended=ended,
            )
        rounds = len(task.conversations) * (task.rounds + 1)
        return Sample(
            ms=(ended - began) / rounds * 1000,
            cpu_ms=(self.cpu_at[-1] - self.cpu_at[0]) / rounds * 1000,
            began=began,
            ended=ended,
        )


class CannotRun(Exception):
    """A library has no way of its own to do a task."""


Program = Callable[[Task, Stopwatch], Awaitable[None]]


def serve(program: Program) -> None:
    """Run the task of each line that comes in; what the library itself prints goes to the errors."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            answers.write(json.dumps(answer(program, line)) + "\n")
            answers.flush()


def answer(program: Program, line: str) -> dict[str, object]:
    """Return the sample of a line's task, or why there is none."""
    fields = json.loads(line)
    task = replace(Task(**fields), conversations=tuple(fields["conversations"]))
    gc.collect()
    match asyncio.run(outcome(program, task)):
        case Sample() as sample:
            return asdict(sample)
        case CannotRun() as error:
            return {"cannot": str(error)}
        case BaseException() as error:
            return {"failed": f"{type(error).__name__}: {error}"}


async def outcome(program: Program, task: Task) -> Sample | BaseException:
    """Return the sample of a task, or what the library raised: its limits are a result too."""
    [result] = await asyncio.gather(measured(program, task), return_exceptions=True)
    return result


async def measured(program: Program, task: Task) -> Sample:
    """Return the sample of a task; closing what it has open counts."""
    stopwatch = Stopwatch()
    await program(task, stopwatch)
    return stopwatch.sample(task)
