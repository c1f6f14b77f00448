"""How fast a space follows a commit: `python -m tests.bench.retrieval.moved_commit [--commits N] [--files N]`.

The repository is the Django source that `tests/bench/ten_questions.py` asks about, with 20 changed files in each commit by default. Each commit changes other files. It prints the milliseconds by the clock and of this process, and the
blobs that were read.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from loopline.knowledge import KnowledgeConfig, KnowledgeSpace
from loopline.knowledge.fts import FtsIndexes
from loopline.knowledge.git import GitRepository
from tests.bench.program import read_options, say
from tests.bench.ten_questions import source_repository

COMMITS, CHANGED_FILES = 8, 20
GOAL_MILLISECONDS = 150


class CountedRepository(GitRepository):
    blobs: int = 0

    def contents(self, blobs: Sequence[str]) -> Iterator[bytes]:
        self.blobs += len(blobs)
        return super().contents(blobs)


def measured(folder: Path, commits: int, changed: int) -> list[tuple[float, float, int]]:
    """The seconds, the processor's seconds and the blobs of each moved commit."""
    work = folder / "work"
    shutil.copytree(source_repository("Django", "5.2.8"), work, symlinks=True)
    git = ["git", "-C", str(work), "-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    listed = subprocess.run(
        [*git, "ls-files", "docs/", "django/db"], capture_output=True, check=True
    )
    files = [
        work / name for name in listed.stdout.decode().split() if name.endswith((".txt", ".py"))
    ]
    repository = CountedRepository(work, name="django", location=str(work), bare=False)
    config = KnowledgeConfig()
    space = KnowledgeSpace(repository, FtsIndexes(folder / "indexes"), config)
    rows: list[tuple[float, float, int]] = []
    with asyncio.Runner() as loop:
        state = loop.run(space.ensure())
        say(f"{state.files:,} files, {state.passages:,} passages: {state.seconds:.1f} s")
        for number in range(commits):
            for file in files[number * changed : (number + 1) * changed]:
                file.write_text(f"{file.read_text()}\n# one more line {number}\n")
            subprocess.run([*git, "commit", "--quiet", "--all", "--message", "moved"], check=True)
            repository.blobs = 0
            clock, processor = time.perf_counter(), time.process_time()
            loop.run(space.ensure())
            rows.append(
                (time.perf_counter() - clock, time.process_time() - processor, repository.blobs)
            )
        loop.run(space.close())
    return rows


def main() -> int:
    """Measure and print; 1 when the median misses the goal or other files were read."""
    options = read_options(__doc__, commits=COMMITS, files=CHANGED_FILES)
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(Path(folder), options.commits, options.files)
    for seconds, processor, blobs in rows:
        own = f"{1_000 * processor:8.0f} ms of this process"
        say(f"{1_000 * seconds:8.0f} ms{own}{blobs:6} blobs")
    median = 1_000 * statistics.median(seconds for seconds, _, _ in rows)
    say(f"{median:8.0f} ms in the median (goal {GOAL_MILLISECONDS})")
    return int(median > GOAL_MILLISECONDS or any(blobs != options.files for _, _, blobs in rows))


if __name__ == "__main__":
    sys.exit(main())
