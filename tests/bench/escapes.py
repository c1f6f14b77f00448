"""Runs each program of the corpus of escapes alone, and prints what stopped it and how many got out."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from loopline.adapters.execution.process import BubblewrapSandbox
from tests.support.escapes import NAMES, canaries, judge_all


def write(line: str) -> None:
    """Write a line of the report."""
    sys.stdout.write(f"{line}\n")


async def measure(folder: Path) -> int:
    """Print a line for each program; return how many got out."""
    runs, watched_folder = folder / "r", folder / "c"
    runs.mkdir()
    watched_folder.mkdir()
    sandbox = BubblewrapSandbox(folder=runs)
    with canaries(watched_folder) as watched:
        verdicts = await judge_all(sandbox, NAMES, watched, at_once=2)
    await sandbox.close()
    write("| program | stopped by |\n|---|---|")
    for verdict in verdicts:
        write(
            f"| {verdict.name} | {'**ESCAPED** ' if verdict.escaped else ''}{verdict.stopped_by} |"
        )
    escaped = sum(verdict.escaped for verdict in verdicts)
    write(f"\n{escaped} of {len(verdicts)} got out; {watched.touched} canaries were touched")
    return escaped + watched.touched


def main() -> int:
    """Run the corpus."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="lx") as folder:
        return 1 if asyncio.run(measure(Path(folder))) else 0


if __name__ == "__main__":
    sys.exit(main())
