"""Servers behind an HTTP address: calls, a restart, one that is not there, and secrets in headers."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loopline.models import Json
from loopline.testing import Call, Say, ScriptedModel
from tests.mcp.served import SDK, Served, notices_in, results_in
from tests.web.loopback_site import PRIVATE, Answer, site

TOKEN = "token-that-nobody-may-read"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind((PRIVATE, 0))
        port: int = listening.getsockname()[1]
        return port


@asynccontextmanager
async def listening(
    port: int, program: Path = SDK, *arguments: str
) -> AsyncGenerator[dict[str, Json]]:
    """Run a server, that which is written with the SDK unless another is given, and yield its entry."""
    command = [str(program), str(port), *arguments]
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection(PRIVATE, port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                break
        yield {"type": "http", "url": f"http://{PRIVATE}:{port}/mcp"}
    finally:
        process.kill()
        await process.wait()


async def test_tools_over_http_are_called_side_by_side(tmp_path: Path) -> None:
    served = Served(tmp_path)
    async with listening(free_port()) as entry:
        served.declare({"far": entry})
        calls = [Call("mcp.far.add", a=number, b=1) for number in range(5)]
        results = results_in(await served.turn(ScriptedModel([Say("", *calls), Say("Done.")])))
    assert sorted(result.text for result in results) == ["1", "2", "3", "4", "5"]


async def test_a_server_that_was_started_again_is_called_again(tmp_path: Path) -> None:
    served, port = Served(tmp_path), free_port()
    call = Call("mcp.far.add", a=1, b=2)
    model = ScriptedModel([call, Say("Done."), call, call, Say("Done.")])
    async with listening(port) as entry:
        served.declare({"far": entry})
        opened = served.open(model)
        harness = await opened.__aenter__()
        talk = harness.conversation("c1")
        await talk.say("Go!")
    try:
        async with listening(port):
            await talk.say("Again!", tool_timeout_seconds=30.0)
            results = results_in(await talk.blocks())
    finally:
        await opened.__aexit__(None, None, None)
    assert (results[0].text, results[-1].text) == ("3", "3")


async def test_a_server_that_refuses_gives_no_tools_and_shows_no_secret(tmp_path: Path) -> None:
    refused = Answer(f"no entry for {TOKEN}", kind="text/plain", status=401)
    with site({"/mcp": refused}, host=PRIVATE) as running:
        served = Served(tmp_path, start_seconds=5.0)
        headers: Json = {"Authorization": f"Bearer {TOKEN}"}
        served.declare({"far": {"url": f"{running.url}/mcp?key={TOKEN}", "headers": headers}})
        async with served.open(ScriptedModel([Say("Done.")])) as harness:
            talk = harness.conversation("c1")
            result = await talk.say("Go!")
            blocks = await talk.blocks()
    [notice] = notices_in(blocks)
    assert result.answer == "Done."
    assert notice.text.startswith(
        "Its tools are not available now: the MCP server 'far' cannot be "
    )
    assert TOKEN not in f"{blocks}"
    assert running.asked[0][1]["Authorization"] == f"Bearer {TOKEN}"


INITIALIZED = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "serverInfo": {"name": "far", "version": "1"},
            "instructions": "x" * 20_000_000,
        },
    }
).encode()
COMPRESSED = {"Content-Encoding": "gzip"}


TOO_LARGE = "ReadError: the reply has more than 8,388,608 bytes"


@pytest.mark.parametrize(
    ("huge", "problem"),
    [
        (Answer(INITIALIZED, kind="application/json"), TOO_LARGE),
        (Answer(INITIALIZED, kind="application/json; p=event-stream"), TOO_LARGE),
        (
            Answer(gzip.compress(INITIALIZED), kind="application/json", headers=COMPRESSED),
            "DecodingError: the reply is compressed",
        ),
    ],
    ids=["plain", "parameter", "compressed"],
)
async def test_a_reply_of_any_size_is_bounded(huge: Answer, problem: str, tmp_path: Path) -> None:
    with site({"/mcp": huge}, host=PRIVATE) as running:
        served = Served(tmp_path, start_seconds=10.0)
        served.declare({"far": {"url": f"{running.url}/mcp"}})
        [notice] = notices_in(await served.turn(ScriptedModel([Say("Done.")])))
    assert f"cannot be started: {problem}" in notice.text
    assert running.asked[0][1]["Accept-Encoding"] == "identity"
