"""Runs a page in a process of its own, forked from a warm one, and tells how each of its examples came out."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.pages import ROOT, Fence
from tests.support.warm_programs import run_warm, warm_path

LOOPLINE = Path(sys.executable).parent / "loopline"
LIMIT_SECONDS = 900


@dataclass(frozen=True, slots=True)
class PageRuns:
    """Runs each page once, in a new folder below `folder`, when the first of its examples is asked for."""

    folder: Path
    _failures: dict[Path, dict[int, str]] = field(default_factory=dict[Path, dict[int, str]])

    def failure(self, fence: Fence) -> str:
        """Why the example failed; empty if it did what it shows."""
        if fence.path not in self._failures:
            folder = self.folder / str(len(self._failures))
            self._failures[fence.path] = run(fence.path, folder)
        return self._failures[fence.path].get(fence.line, f"{fence} never came to an end")


def run(page: Path, place: Path) -> dict[int, str]:
    """Run the page in `place`; the failure of each of its examples by line."""
    folder, home, results = place / "page", place / "home", place / "results"
    folder.mkdir(parents=True)
    home.mkdir()
    results.touch()
    out, err, _ = run_warm(
        "tests.docs.run_page",
        ["run_page", str(page), str(folder), str(results)],
        folder=ROOT,
        environment=environment(home),
        timeout=LIMIT_SECONDS,
        imports_from=[str(ROOT)],
    )
    sys.stdout.write(out)
    sys.stderr.write(err)
    notes: list[dict[str, str]] = [json.loads(line) for line in results.read_text().splitlines()]
    return {int(note["line"]): note["failure"] for note in notes}


def environment(home: Path) -> dict[str, str]:
    """What a newcomer's shell has: the command on the path, plain text, no setting of ours."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("LOOPLINE_")}
    who = {
        f"GIT_{role}_{part}": value
        for role in ("AUTHOR", "COMMITTER")
        for part, value in (("NAME", "Ann"), ("EMAIL", "ann@example.org"))
    }
    return (
        ours
        | who
        | {
            "PATH": warm_path(LOOPLINE),
            "HOME": str(home),
            "NO_COLOR": "1",
            "TERM": "dumb",
            "COLUMNS": "100",
            "PYTHONUTF8": "1",
        }
    )
