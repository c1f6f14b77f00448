"""How long the index of a large repository takes: `python -m tests.bench.index [--seed N] [--files N] [--megabytes N]`.

The repository is generated: documents, source and tests whose words and names are drawn by `--seed`. It prints the
seconds by the clock, of this process, of the thread that reads and cuts the files, and of git; `--json` prints them
as JSON. Run it alone on the machine: the goal is one of the clock.
"""

from __future__ import annotations

import asyncio
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopline.knowledge import KnowledgeConfig, KnowledgeSpace
from loopline.knowledge.fts import FtsIndexes
from loopline.knowledge.git import GitRepository
from tests.bench.program import Row, print_rows, read_options

FILES, MEGABYTES, GOAL_SECONDS = 3_300, 40, 3
WORDS = 6_000
SYLLABLES = [
    *("ba", "ce", "di", "fo", "gu", "la", "me", "ni", "ro"),
    *("tion", "ment", "ing", "al", "er", "re"),
]
CODE_SHARE, TEST_SHARE = 0.6, 0.15
"""The shares of files that are source, and tests; the others are documents."""
PROGRESS_EVERY = 300


@dataclass(frozen=True)
class Vocabulary:
    """The words of a corpus, of which the first are drawn most, and its compound names."""

    drawn: random.Random
    words: Sequence[str]
    names: Sequence[str]

    @classmethod
    def of(cls, seed: int) -> Vocabulary:
        drawn = random.Random(seed)
        words = ["".join(drawn.choices(SYLLABLES, k=drawn.randint(1, 4))) for _ in range(WORDS)]
        names = [
            "".join(word.title() for word in drawn.choices(words, k=drawn.randint(2, 3)))
            for _ in range(WORDS)
        ]
        return cls(drawn, words, names)

    def some(self, values: Sequence[str], count: int) -> list[str]:
        return [values[int(len(values) * self.drawn.random() ** 3)] for _ in range(count)]

    def sentence(self) -> str:
        words = self.some(self.words, self.drawn.randint(6, 14))
        if self.drawn.random() < 0.3:
            words.append(f"`{self.some(self.names, 1)[0]}`")
        return f"{' '.join(words).capitalize()}.\n"


def document(vocabulary: Vocabulary) -> str:
    title = " ".join(vocabulary.some(vocabulary.words, 3)).title()
    sentences = [vocabulary.sentence() for _ in range(vocabulary.drawn.randint(4, 16))]
    return f"## {title}\n\n{''.join(sentences)}\n"


def definition(vocabulary: Vocabulary) -> str:
    """Return a Python function, which calls others."""
    words = vocabulary.some(vocabulary.words, 4)
    lines = [
        f"def {'_'.join(words)}(self, {words[0]}: {vocabulary.some(vocabulary.names, 1)[0]}):\n"
    ]
    lines.append(f'    """{vocabulary.sentence().strip()}"""\n')
    for _ in range(vocabulary.drawn.randint(4, 24)):
        left, right, value = vocabulary.some(vocabulary.words, 3)
        name = vocabulary.some(vocabulary.names, 1)[0]
        lines.append(
            f"    {left} = self.{right}_{value}({name}({value}={len(right)}), {right!r})\n"
        )
    return "".join([*lines, f"    return {words[0]}\n\n\n"])


def write_corpus(folder: Path, seed: int, files: int, size: int) -> None:
    """Write so many files, of `size` bytes together or a little more."""
    vocabulary = Vocabulary.of(seed)
    drawn = vocabulary.drawn
    for number in range(files):
        share = drawn.random()
        make: Callable[[Vocabulary], str] = definition
        if share < CODE_SHARE:
            path = folder / "src" / f"package_{number % 80}" / f"module_{number}.py"
        elif share < CODE_SHARE + TEST_SHARE:
            path = folder / "tests" / f"test_{number}.py"
        else:
            path, make = folder / "docs" / f"part_{number % 40}" / f"page_{number}.md", document
        wanted, text = drawn.uniform(0.5, 1.5) * size / files, ""
        while len(text) < wanted:
            text += make(vocabulary)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if number % PROGRESS_EVERY == 0:
            sys.stderr.write(f"{number:,} of {files:,} files written\n")
    git = ["git", "-C", str(folder), "-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    for command in ("init --quiet", "add .", "commit --quiet --message corpus"):
        subprocess.run([*git, *command.split()], check=True)


class TimedRepository(GitRepository):
    """Takes the time of the thread that reads the files, from the first file until the last is cut."""

    reading: float = 0.0

    def contents(self, blobs: Sequence[str]) -> Iterator[bytes]:
        began = time.thread_time()
        yield from super().contents(blobs)
        self.reading += time.thread_time() - began


def _progress(done: int, total: int, activity: str) -> None:
    if done % PROGRESS_EVERY == 0:
        sys.stderr.write(f"{activity}: {done:,} of {total:,}\n")


def build(repository: TimedRepository, folder: Path) -> list[Row]:
    space = KnowledgeSpace(repository, FtsIndexes(folder), KnowledgeConfig())
    git = resource.getrusage(resource.RUSAGE_CHILDREN)
    clock, processor = time.perf_counter(), time.process_time()
    with asyncio.Runner() as loop:
        state = loop.run(space.ensure(_progress))
        clock, processor = time.perf_counter() - clock, time.process_time() - processor
        loop.run(space.close())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    git_seconds = after.ru_utime + after.ru_stime - git.ru_utime - git.ru_stime
    size = sum(path.stat().st_size for path in folder.glob("*.fts"))
    return [
        Row("files", state.files, "files"),
        Row("passages", state.passages, "passages"),
        Row("the index is built", clock, "s", f"≤ {GOAL_SECONDS}"),
        Row("of this process", processor, "s of processor"),
        Row("of the thread that reads and cuts", repository.reading, "s of processor"),
        Row("of it, for a passage", repository.reading / state.passages * 1e6, "µs of processor"),
        Row("of git", git_seconds, "s of processor"),
        Row("the index", size / 1e6, "MB"),
    ]


def main() -> None:
    """Generate the repository, build its index and print the figures."""
    options = read_options(__doc__, seed=7, files=FILES, megabytes=MEGABYTES, json=False)
    with tempfile.TemporaryDirectory() as name:
        work, indexes = Path(name, "work"), Path(name, "indexes")
        write_corpus(work, options.seed, options.files, options.megabytes * 1_000_000)
        repository = TimedRepository(work, name="corpus", location=str(work), bare=False)
        rows = build(repository, indexes)
    print_rows(rows, as_json=options.json)


if __name__ == "__main__":
    main()
