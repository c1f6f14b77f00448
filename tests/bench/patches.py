"""Patches between releases of public packages, applied by the workspace beside `git apply`.

`python -m tests.bench.patches [--json] [--cache FOLDER] [PACKAGE=OLD..NEW …]` gets two releases of each package by pip, lets
`git diff` compare them file by file and as a whole, and applies each diff both ways. Then it breaks sixty of them, and
counts those that are refused with their place. It exits 1 when a tree differs by a byte, or a broken diff changes one.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.ten_questions import download, unpack
from tests.workspace.real_patches import (
    Tree,
    broken,
    git_apply,
    git_diff,
    our_apply,
    read_tree,
    refusal,
)

RELEASES = (
    "click=8.1.7..8.1.8",
    "attrs=23.2.0..24.1.0",
    "jinja2=3.1.4..3.1.6",
    "flask=3.0.0..3.0.3",
    "werkzeug=3.0.1..3.0.4",
    "itsdangerous=2.1.2..2.2.0",
    "packaging=24.0..24.2",
)
LEAST_DIFFS, LEAST_BROKEN = 200, 50
BROKEN = 60
LARGEST = 400_000
CACHE = Path(tempfile.gettempdir()) / "loopline-bench-patches"


@dataclass(slots=True)
class Count:
    """The diffs of one package: how many were applied, as Git does, and what went otherwise."""

    package: str
    files: int = 0
    wholes: int = 0
    same: int = 0
    lines: int = 0
    faults: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Broken:
    """The broken diffs: how many were refused, with the place of the hunk."""

    tried: int = 0
    refused: int = 0
    placed: int = 0
    kinds: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])


def source(package: str, version: str, cache: Path) -> Tree:
    """The files of a release, from the cache if they are there."""
    folder = cache / f"{package}-{version}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as fresh:
            archive = download(f"{package}=={version}", Path(fresh))
            unpack(archive, cache / f"{package}-{version}.unfinished").rename(folder)
    files = read_tree(folder)
    return {path: data for path, data in files.items() if len(data) <= LARGEST}


def changes(before: Tree, after: Tree) -> Iterator[tuple[Tree, Tree]]:
    """Every file that differs, as two trees of one file."""
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old != new:
            yield ({} if old is None else {path: old}), ({} if new is None else {path: new})


def compare(count: Count, before: Tree, after: Tree, *options: str) -> bytes:
    """Apply the diff of two trees both ways, and count whether it came to the same; return it."""
    patch = git_diff(before, after, *options)
    expected = git_apply(before, patch)
    try:
        actual = our_apply(before, patch)
    except ValueError as error:
        count.faults.append(f"{list(before) or list(after)}: {error}")
        return patch
    if actual == expected == dict(after):
        count.same += 1
    else:
        count.faults.append(f"{list(before) or list(after)}: another tree")
    count.lines += patch.count(b"\n")
    return patch


def measure(release: str, cache: Path) -> tuple[Count, list[tuple[Tree, bytes]]]:
    """Compare all diffs of two releases; also return those that change a file, to be broken."""
    package, _, versions = release.partition("=")
    old, new = (source(package, version, cache) for version in versions.split(".."))
    count, changing = Count(release), list[tuple[Tree, bytes]]()
    for number, (before, after) in enumerate(changes(old, new)):
        patch = compare(count, before, after, f"-U{(3, 3, 1, 5)[number % 4]}")
        count.files += 1
        if before and after:
            changing.append((before, patch))
    for options in (["-M"], ["-M", "-U1"]):
        compare(count, old, new, *options)
        count.wholes += 1
    return count, changing


def break_some(changing: Sequence[tuple[Tree, bytes]]) -> Broken:
    """Break some of the diffs, each in one way, and count how they are refused."""
    lot, result = random.Random(7), Broken()
    for before, patch in lot.sample(changing, len(changing)):
        for breakage in broken(patch, lot):
            if result.tried >= BROKEN:
                return result
            if git_apply(before, breakage.patch) is not None:
                continue  # Git takes it all the same, where only white space was changed
            result.tried += 1
            said = refusal(before, breakage.patch)
            result.refused += said is not None
            result.placed += said is not None and said.is_placed
            result.kinds[breakage.how] += 1
            if said is None or not said.is_placed:
                result.faults.append(f"{list(before)}: {breakage.how}: {said}")
    return result


def main() -> None:
    """Measure, print, and say by the exit code whether all is as it should be."""
    parser = argparse.ArgumentParser(description="Patches between releases of public packages")
    parser.add_argument("releases", nargs="*", default=RELEASES, metavar="PACKAGE=OLD..NEW")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cache", type=Path, default=CACHE)
    asked = parser.parse_args()
    asked.cache.mkdir(parents=True, exist_ok=True)
    measured = [measure(release, asked.cache) for release in asked.releases]
    counts = [count for count, _ in measured]
    wrong = break_some([change for _, changing in measured for change in changing])
    diffs = sum(count.files + count.wholes for count in counts)
    good = (
        all(not count.faults for count in counts)
        and (wrong.refused, wrong.placed) == (wrong.tried, wrong.tried)
        and diffs >= LEAST_DIFFS
        and wrong.tried >= LEAST_BROKEN
    )
    if asked.json:
        sys.stdout.write(json.dumps({"diffs": list(map(asdict, counts)), "broken": asdict(wrong)}))
    else:
        show(counts, wrong)
    sys.exit(0 if good else 1)


def show(counts: Sequence[Count], wrong: Broken) -> None:
    """Print the tables."""
    console, table = Console(), Table("releases", "files", "whole trees", "as git apply", "lines")
    for count in counts:
        numbers = (count.files, count.wholes, count.same, count.lines)
        table.add_row(count.package, *(f"{number:,}" for number in numbers))
    total = [
        sum(values)
        for values in zip(*((c.files, c.wholes, c.same, c.lines) for c in counts), strict=True)
    ]
    table.add_row("all", *(f"{number:,}" for number in total))
    console.print(table)
    console.print(f"broken: {wrong.tried}, refused {wrong.refused}, with the place {wrong.placed}")
    for fault in [*(fault for count in counts for fault in count.faults), *wrong.faults][:20]:
        console.print(fault, style="red", markup=False)


if __name__ == "__main__":
    main()
