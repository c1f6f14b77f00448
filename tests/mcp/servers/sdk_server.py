"""A server written with the official SDK: over stdio, or over HTTP if it is given a port."""

from __future__ import annotations

import asyncio
import os
import sys
from base64 import b64decode
from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, ElicitationResult, Image, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("sdk", version="3", log_level="ERROR")
READS = ToolAnnotations(read_only_hint=True)
ADDS = ToolAnnotations(destructive_hint=False, idempotent_hint=True)
NOTES = Path(os.environ.get("NOTES", os.devnull))
PIXEL = bytes.fromhex("89504e470d0a1a0a")


class Weather(BaseModel):
    """The weather of a place."""

    place: str
    degrees: float


@server.tool(annotations=READS)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=READS)
def weather(place: str) -> Weather:
    """Say how warm it is."""
    return Weather(place=place, degrees=7.5)


@server.tool(annotations=ADDS)
def note(text: str) -> str:
    """Write a line into a file."""
    with NOTES.open("a") as notes:
        notes.write(f"{text}\n")
    return "noted"


@server.tool()
def erase() -> str:
    """Do what cannot be undone."""
    return "erased"


@server.tool(annotations=READS)
async def count(to: int, context: Context) -> str:
    """Count, and tell how far it has come."""
    for number in range(1, to + 1):
        await context.report_progress(number, to, f"at {number}")
    return f"counted to {to}"


@server.tool(annotations=READS)
async def wait() -> str:
    """Wait for ever; note if that is cancelled."""
    try:
        note("waiting")
        await asyncio.sleep(3_600)
    except asyncio.CancelledError:
        note("cancelled")
        raise
    return "waited"


@server.tool()
async def hold() -> str:
    """Do for ever what is not known."""
    note("holding")
    await asyncio.sleep(3_600)
    return "held"


class Choice(BaseModel):
    """What the user chooses."""

    kind: str


def which_tea() -> Elicit[Choice]:
    """Return the question for a tea."""
    return Elicit(f"Which tea, {os.environ.get('API_TOKEN')}?", Choice)


@server.tool(annotations=READS)
def choose(choice: Annotated[ElicitationResult[Choice], Resolve(which_tea)]) -> str:
    """Ask the user for a tea."""
    return f"{choice.action}: {choice.data.kind if choice.action == 'accept' else ''}"


@server.tool()
def pick(choice: Annotated[ElicitationResult[Choice], Resolve(which_tea)]) -> str:
    """Ask the user for a tea, and do what is not known."""
    return choose(choice)


@server.tool(annotations=READS)
def picture() -> Image:
    """Show a picture."""
    return Image(data=PIXEL, format="png")


@server.tool(annotations=READS)
def show(images: list[str]) -> list[Image]:
    """Show images that are given in base64."""
    return [Image(data=b64decode(image), format="png") for image in images]


@server.tool(annotations=READS)
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


def newcomer() -> str:
    """Say hello."""
    return "hello"


@server.tool(annotations=READS)
async def change(context: Context) -> str:
    """Add a tool and take one away."""
    server.add_tool(newcomer, annotations=READS)
    server.remove_tool("erase")
    await context.notify_tools_changed()
    return "changed"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
