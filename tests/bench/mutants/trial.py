"""A trial of a mutant: in a copy of the repository, the tests that run its function, until one fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.bench.mutants.coverage import PACKAGE
from tests.bench.mutants.mutations import Mutant

Outcome = Literal["killed", "survived", "timeout", "untested", "broken"]
OUTCOMES: dict[int, Outcome] = {0: "survived", 1: "killed", 2: "killed"}
"""What an exit code of pytest says: 2 is a mutant that a test file cannot even be imported with, any other no trial."""
SUITES = (
    *("authoring", "conformance", "dialects", "knowledge", "laws", "models", "presets"),
    *("providers", "scenarios", "telemetry"),
    *("crashes/test_a_clock_leaps.py", "crashes/test_a_large_body_is_a_blob.py"),
    *("crashes/test_a_recall_meets_a_round.py", "crashes/test_a_silent_runner_is_taken_over.py"),
    *("crashes/test_a_store_is_backed_up.py", "crashes/test_appends_are_kept_whole.py"),
)
"""What is run in one process, and can so be traced; a process that is killed tells nothing."""
FIRST_TESTS = 15
TRIAL_SECONDS = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a mutant, by which test, after how many seconds, of how many tests."""

    outcome: Outcome
    by: str
    seconds: float
    tests: int


class Copy:
    """The files of the repository as they are now, in a folder of their own."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self._passes: dict[str, bool] = {}
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_file():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / name, target)
        for command in (["init", "-q"], ["add", "-A"], [*_AUTHOR, "commit", "-qm", "copy"]):
            subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)

    @property
    def package(self) -> Path:
        return self.folder / PACKAGE.strip("/")

    def pytest(
        self, tests: Iterable[str], *options: str, seconds: float, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run these tests on the package there, with a `TimeoutExpired` after so many seconds."""
        paths = [str(self.folder / part) for part in ("sdk", "bundles", ".")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def tests(self) -> list[str]:
        """The tests of the suites, as they are now: since they were traced some may have gone."""
        suites = [f"tests/{suite}" for suite in SUITES]
        listed = self.pytest(suites, "--collect-only", "-n", "0", seconds=600).stdout
        return [line for line in listed.splitlines() if "::" in line]

    def passes(self, test: str) -> bool:
        """Whether a test passes, and soon enough, as things are; it is run once."""
        if test not in self._passes:
            try:
                ran = self.pytest([test], "-n", "0", seconds=TRIAL_SECONDS)
                self._passes[test] = ran.returncode == 0
            except subprocess.TimeoutExpired:
                self._passes[test] = False
        return self._passes[test]

    def trial(self, path: str, mutated: bytes, tests: Sequence[str], seconds: float) -> Result:
        """What the tests say of a file that is another; afterwards it is as it was."""
        file = self.package / path
        source, began = file.read_bytes(), time.monotonic()
        file.write_bytes(mutated)
        outcome: Outcome
        try:
            ran = self.pytest(tests, "-x", "-n", "0", seconds=seconds)
            failed = [
                line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
            ]
            outcome = OUTCOMES.get(ran.returncode, "broken")
            by = failed[0].partition(" ")[2].partition(" - ")[0] if failed else ""
        except subprocess.TimeoutExpired:
            outcome, by = "timeout", ""
        finally:
            file.write_bytes(source)
        took = time.monotonic() - began
        return Result(outcome=outcome, by=by, seconds=round(took, 1), tests=len(tests))


_AUTHOR = ["-c", "user.name=mutants", "-c", "user.email=mutants@localhost"]


class Coverage:
    """Which tests run which function, the most particular first."""

    def __init__(self, found: Mapping[str, Sequence[str]]) -> None:
        self._by_function = defaultdict[str, list[str]](list)
        self._by_module = defaultdict[str, list[str]](list)
        for test in sorted(found, key=lambda test: len(found[test])):
            for name in found[test]:
                self._by_function[name].append(test)
            for module in {name.partition(":")[0] for name in found[test]}:
                self._by_module[module].append(test)

    @classmethod
    def traced(cls, copy: Copy, traces: Path, jobs: int) -> Coverage:
        """Find it out by running the suites once, unless the folder has it already."""
        if not traces.exists():
            suites = [f"tests/{suite}" for suite in SUITES]
            plugin = ("-p", "tests.bench.mutants.coverage", "-n", str(jobs))
            copy.pytest(suites, *plugin, seconds=3600, TRACES=str(traces))
        found: dict[str, list[str]] = {}
        for file in sorted(traces.glob("*.json")):
            found |= json.loads(file.read_text("utf-8"))
        return cls({test: found[test] for test in copy.tests() if test in found})

    def of(self, path: str, function: str) -> list[str]:
        """Those of a function, of functions in it too; else of its module, for what is run on import."""
        name = f"{path}:{function}"
        tests = [
            test
            for key, tests in self._by_function.items()
            if function and key.replace(".<locals>", "") == name
            for test in tests
        ]
        return list(dict.fromkeys(tests or self._by_module[path]))


def tried(copy: Copy, mutant: Mutant, tests: Sequence[str]) -> Result:
    """What becomes of a mutant; a test that fails without it too tells nothing, and is left out."""
    remaining_tests = list(tests)
    while True:
        result = _tried(copy, mutant, remaining_tests)
        if result.by not in remaining_tests or copy.passes(result.by):
            return result
        remaining_tests.remove(result.by)


def _tried(copy: Copy, mutant: Mutant, tests: Sequence[str]) -> Result:
    """The most particular tests first, and all of them if it survives those."""
    if not tests:
        return Result(outcome="untested", by="", seconds=0.0, tests=0)
    mutated = mutant.applied((copy.package / mutant.path).read_bytes())
    first = copy.trial(mutant.path, mutated, tests[:FIRST_TESTS], TRIAL_SECONDS)
    if first.outcome != "survived" or len(tests) <= FIRST_TESTS:
        return first
    rest = copy.trial(mutant.path, mutated, tests[FIRST_TESTS:], 4 * TRIAL_SECONDS)
    return Result(
        outcome=rest.outcome,
        by=rest.by,
        seconds=round(first.seconds + rest.seconds, 1),
        tests=len(tests),
    )
