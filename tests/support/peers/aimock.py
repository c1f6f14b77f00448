"""CopilotKit's aimock, a server of three wires that others wrote: installed by npm, run by node."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2

from loopline.models.json import Json, JsonObject
from tests.support.peers.call_replies import Call
from tests.support.peers.npm_packages import node

PACKAGE = "@copilotkit/aimock@^1.43.0"
CONTROL = "/__aimock"

_SERVE = """
const { LLMock } = require('@copilotkit/aimock');
const mock = new LLMock({ port: 0, host: '127.0.0.1', logLevel: 'silent' });
mock.start().then((url) => console.log(url));
process.stdin.on('end', () => process.exit()).resume();  // it ends with whoever started it
"""


@contextmanager
def running(folder: Path) -> Generator[str, None, None]:
    with subprocess.Popen(
        [node(), "-e", _SERVE],
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
