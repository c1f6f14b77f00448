"""Attaches every file of the corpus, and those of folders that are named, and prints what was refused, how long it took.

A file of a folder counts as harmless; `--sample` takes so many of each type from each folder, drawn by `--seed`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopline import Attachment
from loopline.errors import AttachmentError
from loopline.files import AttachmentCaps, read_attachments
from loopline.files.formats import MEMORY_BYTES
from tests.support.attachment_corpus import Sample, corpus

CAPS = AttachmentCaps(decode_images=True)
TYPES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf", ".docx", ".pptx", ".xlsx", ".md", ".csv")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a file: how long that took, and why it was refused, empty if it was taken."""

    sample: Sample
    seconds: float
    problem: str


def attach(sample: Sample) -> Outcome:
    began, problem = time.perf_counter(), ""
    try:
        read_attachments(sample.file, CAPS)
    except AttachmentError as error:
        problem = str(error)
    return Outcome(sample, time.perf_counter() - began, problem)


def real_files(folder: Path, count: int, seed: int) -> Iterator[Sample]:
    """Yield some files of each type below a folder, which are within the limits of size."""
    for suffix in TYPES:
        limit = CAPS.pdf_bytes if suffix == ".pdf" else CAPS.image_bytes
        paths = [path for path in folder.rglob(f"*{suffix}") if path.is_file()]
        paths = sorted(path for path in paths if 0 < path.stat().st_size <= limit)
        for path in random.Random(seed).sample(paths, min(count, len(paths))):
            yield Sample(f"{path}", Attachment(path.name, path.read_bytes()), harmless=True)


def report(name: str, outcomes: Sequence[Outcome]) -> None:
    """Print a table of these files, and what was not as it should be."""
    harmful = [outcome for outcome in outcomes if not outcome.sample.harmless]
    harmless = [outcome for outcome in outcomes if outcome.sample.harmless]
    taken = [outcome for outcome in harmful if not outcome.problem]
    refused = [outcome for outcome in harmless if outcome.problem]
    slowest = max(outcomes, key=lambda outcome: outcome.seconds)
    sys.stdout.write(
        f"{name}: {len(outcomes)} files\n"
        f"  harmful   {len(harmful):5}   taken   {len(taken)}\n"
        f"  harmless  {len(harmless):5}   refused {len(refused)}\n"
        f"  slowest   {slowest.seconds:.2f} s  {slowest.sample.what}\n"
    )
    for outcome in (*taken, *refused):
        sys.stdout.write(f"    {outcome.sample.what}: {outcome.problem or 'was taken'}\n")


def main() -> None:
    """Attach all files, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    wished = parser.parse_args()
    report("the corpus", [attach(sample) for sample in corpus()])
    for folder in wished.folders:
        outcomes = [attach(sample) for sample in real_files(folder, wished.sample, wished.seed)]
        if outcomes:
            report(f"{folder}", outcomes)
            types = Counter(Path(outcome.sample.what).suffix for outcome in outcomes)
            sys.stdout.write(f"  types     {dict(types)}\n")
    sys.stdout.write(f"a process that reads one has at most {MEMORY_BYTES / 2**20:.0f} MB\n")


if __name__ == "__main__":
    main()
