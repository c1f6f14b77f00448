"""All scenarios that the protocol's conformance suite has for clients.

`python -m tests.bench.mcp_conformance` prints for each how many of its checks passed, and fails if one is unexpected. It
takes five minutes on two cores.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from tests.bench.program import print_table
from tests.mcp.test_conformance import FOLDER, ROOT, SUITE, VERSION, counted
from tests.support.peers.npm_packages import install, node

AT_ONCE = 2


def scenarios(suite: Path) -> list[str]:
    listed = subprocess.run([node(), suite, "list"], capture_output=True, text=True, check=True)
    clients = listed.stdout.partition("Client scenarios")[2].partition("Authorization server")[0]
    return re.findall(r"^  - (\S+)", clients, re.MULTILINE)


def trial(suite: Path, scenario: str, results: Path) -> Counter[str]:
    client = f"{sys.executable} -m tests.mcp.conformance.client"
    options = ["--timeout", "120000", "-o", str(results)]
    command = [str(node()), str(suite), "client", "--command", client, *options]
    command += ["--scenario", scenario]
    subprocess.run(command, capture_output=True, cwd=ROOT, check=False)
    return counted(results)


def main() -> None:
    expected = yaml.safe_load((FOLDER / "expected_failures.yaml").read_text("utf-8"))["client"]
    with TemporaryDirectory() as name, ThreadPoolExecutor(AT_ONCE) as pool:
        folder = Path(name)
        install(folder, f"{SUITE}@{VERSION}")
        suite = folder / "node_modules" / SUITE / "dist" / "index.js"
        names = scenarios(suite)
        places = [folder / "results" / str(number) for number in range(len(names))]
        counts = list(pool.map(partial(trial, suite), names, places))
    total, unexpected, rows = Counter[str](), list[str](), list[tuple[str, ...]]()
    for scenario, count in zip(names, counts, strict=True):
        failed = count["FAILURE"] + count["WARNING"]
        if bool(failed) != (scenario in expected):
            unexpected.append(scenario)
        total += count
        known = "no" if scenario in unexpected else "yes"
        rows.append((scenario, str(count["SUCCESS"]), str(failed), known))
    rows.append(("all", str(total["SUCCESS"]), str(total["FAILURE"] + total["WARNING"]), ""))
    print_table(("scenario", "passed", "failed", "as expected"), rows, width=100)
    if unexpected:
        sys.exit(f"unexpected: {json.dumps(unexpected)}")


if __name__ == "__main__":
    main()
