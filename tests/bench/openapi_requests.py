"""Requests that schemathesis makes of the OpenAPI document: `python -m tests.bench.openapi_requests`.

A server must answer none of them with 5xx, and none with a status, a type or a body that is not described. schemathesis has an
environment of its own; `--program` names its command. The endless event streams are left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.docs.pages import ROOT

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance"
ENDLESS = r"/events"
CONFIGURATION = """
[parameters]
"path.tenant" = "default"
"path.project" = "default"
"path.conversation" = "c1"
"path.turn" = "turn_1"
"""
"""Values with which requests pass the checks of who may what; one conversation is there, until a request deletes it."""


@contextmanager
def serving(store: str) -> Generator[str]:
    """Serve a store in a process of its own, and yield its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed_server", store],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()
            process.wait()


def main() -> None:
    """Run it; exit with 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="st", help="the command of schemathesis")
    parser.add_argument("--examples", type=int, default=30, help="for each route")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--phases", default="coverage,fuzzing")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(f"sqlite:///{Path(folder)}/talk.db") as url,
    ):
        configuration = Path(folder, "schemathesis.toml")
        configuration.write_text(CONFIGURATION)
        message = {"text": "tea"}
        httpx2.post(f"{url}/conversations/default/default/c1/messages", json=message, timeout=60)
        command = [options.program, "--config-file", f"{configuration}", "run"]
        command += [f"{url}/openapi.json", "--url", url]
        command += ["--checks", CHECKS, "--exclude-path-regex", ENDLESS, "--no-color"]
        command += ["--max-examples", f"{options.examples}", "--seed", f"{options.seed}"]
        command += ["--phases", options.phases, "--request-timeout", "60"]
        sys.exit(subprocess.run(command, cwd=folder, check=False).returncode)


if __name__ == "__main__":
    main()
