"""What the conformance suite runs as a client, with the address of its server: a harness, whose turn calls every tool."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2

from loopline import Bundle, Harness, ToolError
from loopline.events import Delta
from loopline.models import Json, JsonObject, Prompt, ToolCall
from loopline.testing import Call, Say, ScriptedModel

VALUES: dict[str, Json] = {
    "string": "text",
    "number": 5,
    "integer": 3,
    "boolean": True,
    "object": {},
    "array": [],
}
"""An argument of each type."""
ECHO, ECHOED = "mcp.suite.json_schema_echo", "mcp.suite.json_schema_2020_12_tool"


def client_of(context: JsonObject) -> JsonObject:
    """Return the fields of `oauth`, for a suite that has registered a client."""
    match context:
        case {"client_id": str(client_id), "client_secret": str(secret)}:
            return {"clientId": client_id, "clientSecret": secret}
        case _:
            return {}


def wanted_calls(context: JsonObject) -> Iterator[ToolCall]:
    """Yield the calls that the scenario asks for by name, none if it leaves them to the client."""
    calls = context.get("toolCalls")
    for call in calls if isinstance(calls, list) else ():
        match call:
            case {"name": str(name), "arguments": dict(arguments)}:
                yield Call(f"mcp.suite.{name}", **arguments)
            case _:
                raise ValueError(f"{call} is no call")


async def open_address(address: str) -> None:
    """Do what a user's browser does."""
    async with httpx2.AsyncClient(follow_redirects=True) as browser:
        await browser.get(address)


async def run(url: str, folder: Path) -> None:
    """Sign in if the server wants it, list its tools, and call each of them."""
    context: JsonObject = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    oauth = client_of(context)
    entry: Json = {"type": "http", "url": url, **({"oauth": oauth} if oauth else {})}
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"suite": entry}}), "utf-8")
    wanted = list(wanted_calls(context))
    calling = Say("", *wanted) if wanted else every_tool
    model = ScriptedModel([Say("Done."), calling, Say("Done.")], strict=False)
    browsing = list[asyncio.Task[None]]()
    async with Harness.open(
        Bundle(id="client"),
        store=f"sqlite:///{folder}/talk.db",
        model=model,
        properties={
            "mcp.file": str(folder / ".mcp.json"),
            "mcp.start_seconds": 60,
            "react.select_tools": False,
        },
    ) as harness:
        talk = harness.conversation("c1")
        if "auth/" in os.environ["MCP_CONFORMANCE_SCENARIO"]:
            try:
                await harness.sign_in(
                    "suite",
                    lambda address: browsing.append(asyncio.create_task(open_address(address))),
                )
            except ToolError as error:
                sys.stderr.write(f"{error}\n")
        await talk.say("List the tools.")
        async for event in talk.stream("Call them.", tool_timeout_seconds=20.0):
            if isinstance(event, Delta) and event.type == "pending":
                talk.answer(event.call_id, {})
        for block in await talk.blocks():
            sys.stdout.write(f"{block.body}\n")


def every_tool(request: Prompt) -> Say:
    """Return a call of each tool of the server."""
    schemas = {tool.name: tool.parameters for tool in request.tools if tool.name.startswith("mcp.")}
    calls = [
        Call(name, **({"schema": schemas[ECHOED]} if name == ECHO else arguments_for(schema)))
        for name, schema in schemas.items()
    ]
    return Say("", *calls) if calls else Say("There is none.")


def arguments_for(schema: JsonObject) -> JsonObject:
    """Return a value for each property that a schema describes."""
    properties = schema.get("properties")
    described = properties if isinstance(properties, dict) else {}
    return {
        name: VALUES.get(str(each.get("type")), "text")
        for name, each in described.items()
        if isinstance(each, dict)
    }


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        asyncio.run(run(sys.argv[1], Path(name)))
