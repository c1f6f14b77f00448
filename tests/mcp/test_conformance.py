"""The protocol's own conformance suite: all of it for a bundle as a server, some of it for the client.

`python -m tests.bench.mcp_conformance` runs all scenarios of the client.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mcp.test_bundle_server import over_http
from tests.support.peers.npm_packages import install, node

pytestmark = pytest.mark.service
SUITE = "@modelcontextprotocol/conformance"
VERSION = "0.2.0-alpha.12"
"""The first one with the scenarios of the protocol of 2026-07-28."""
FOLDER = Path(__file__).parent / "conformance"
ROOT = Path(__file__).parents[2]
SAMPLE = {
    "tools_call": 1,
    "elicitation-sep1034-client-defaults": 5,
    "http-standard-headers": 4,
    "auth/metadata-default": 20,
    "auth/iss-wrong-issuer": 8,
    "auth/pre-registration": 15,
}
"""Scenarios of the client, and how many checks of each pass at least."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the suite."""
    folder = tmp_path_factory.mktemp("conformance")
    install(folder, f"{SUITE}@{VERSION}")
    return folder / "node_modules" / SUITE / "dist" / "index.js"


async def run(suite: Path, results: Path, *arguments: str) -> tuple[str, Counter[str]]:
    """Return what the suite printed, which is without unexpected results, and how its checks went."""
    expected = str(FOLDER / "expected_failures.yaml")
    options = ("--expected-failures", expected, "-o", str(results))
    process = await asyncio.create_subprocess_exec(
        str(node()),
        str(suite),
        *arguments,
        *options,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed = (await process.communicate())[0].decode()
    assert process.returncode == 0, printed[printed.find("SUMMARY") :]
    return printed, counted(results)


def counted(results: Path) -> Counter[str]:
    """Return how the checks went, as the suite has written it down."""
    files = results.rglob("checks.json")
    return Counter(check["status"] for file in files for check in json.loads(file.read_text()))


async def test_a_bundle_serves_as_the_suite_expects(suite: Path, tmp_path: Path) -> None:
    async with over_http(FOLDER / "everything", store=tmp_path / "talk.db") as url:
        printed, checks = await run(
            suite, tmp_path / "results", "server", "--url", url, "--suite", "all"
        )
    passed = re.findall(r"^\S+ (\S+): \d+ passed, 0 failed", printed, re.MULTILINE)
    assert len(passed) >= 30, printed
    assert checks["SUCCESS"] >= 110


@pytest.mark.parametrize("scenario", SAMPLE)
async def test_a_harness_is_a_client_as_the_suite_expects(
    scenario: str, suite: Path, tmp_path: Path
) -> None:
    client = f"{sys.executable} -m tests.mcp.conformance.client"
    arguments = ("--command", client, "--scenario", scenario, "--timeout", "90000")
    printed, checks = await run(suite, tmp_path, "client", *arguments)
    assert checks["SUCCESS"] >= SAMPLE[scenario], printed
    assert checks["FAILURE"] == 0
