"""Requests that schemathesis makes of the OpenAPI document: `python -m tests.bench.openapi_requests`.

A server must answer none of them with 5xx, and none with a status, a type or a body that is not described. schemathesis has an
environment of its own; `--program` names its command. The endless event streams are left out.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.bench.program import read_options
from tests.docs.pages import ROOT

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "positive_data_acceptance",
)
ENDLESS = r"/events"
CONFIGURATION = """
[parameters]
"path.tenant" = "default"
"path.project" = "default"
"path.conversation" = "c1"
"path.turn" = "turn_1"
"""
"""Values with which requests pass the checks of who may what; one conversation is there, until a request deletes it."""


STATEFUL = {
    "/messages": "a webhook needs a server with a secret, and a host that is known",
    "/multipart": "a webhook needs a server with a secret, and a host that is known",
    "/interrupts": "a file needs a type that can be attached",
    "/schedule": "a schema cannot list time zones, lines of cron, or the days of the next ten years",
    "/rerun": "the model must be one that the server knows",
    "/answers": "a conversation in which no call waits has nothing to answer",
    "/feedback/conversations-in-period": "a cursor comes from the page before",
    "/ag-ui": "its body is a type of the protocol's package; a thread needs a name that is not blank",
    "/api/chat": "the last message needs a text, and a schema cannot name the last item",
    "/v1/chat/completions": "the last message needs a text, and a schema cannot name the last item",
    "/v1/responses": "the last item needs a text, and a schema cannot name the last item",
}
"""Operations that may refuse what their schema allows, each with what the schema cannot say."""


def configuration() -> str:
    rules = [
        f'[[operations]]\ninclude-path-regex = "{path}$"\nchecks.positive_data_acceptance.enabled = false\n'
        for path in STATEFUL
    ]
    checks = "".join(f"{name}.enabled = true\n" for name in CHECKS)
    return f"{CONFIGURATION}\n[checks]\nenabled = false\n{checks}\n{''.join(rules)}"


@contextmanager
def serving(store: str) -> Generator[str]:
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
    options = read_options(__doc__, program="st", examples=30, seed=7, phases="coverage,fuzzing")
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(f"sqlite:///{Path(folder)}/talk.db") as url,
    ):
        settings = Path(folder, "schemathesis.toml")
        settings.write_text(configuration())
        message = {"text": "tea"}
        httpx2.post(f"{url}/conversations/default/default/c1/messages", json=message, timeout=60)
        command = [options.program, "--config-file", f"{settings}", "run"]
        command += [f"{url}/openapi.json", "--url", url]
        command += ["--exclude-path-regex", ENDLESS, "--no-color"]
        command += ["--max-examples", f"{options.examples}", "--seed", f"{options.seed}"]
        command += ["--phases", options.phases, "--request-timeout", "60"]
        sys.exit(subprocess.run(command, cwd=folder, check=False).returncode)


if __name__ == "__main__":
    main()
