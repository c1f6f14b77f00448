"""Bundles with MCP servers that the tests start, and what came of their calls."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from loopline import Bundle, Harness
from loopline.conversations import Conversation
from loopline.events import Delta
from loopline.models import Json, ToolCall
from loopline.testing import Say, ScriptedModel
from loopline.timeline import Block, Notice, ToolResult
from tests.support.warm_programs import warm_program

SERVERS = Path(__file__).parent / "servers"
PLAIN, SDK = SERVERS / "plain_server.py", SERVERS / "sdk_server.py"


def plain(mode: str, *arguments: str | Path, **env: str) -> dict[str, Json]:
    """Return the entry of a plain server that misbehaves like that."""
    return {
        "command": sys.executable,
        "args": [str(PLAIN), mode, *map(str, arguments)],
        "env": dict(env),
    }


def sdk(**env: str) -> dict[str, Json]:
    """Return the entry of the server that is written with the SDK."""
    return warm(SDK, **env)


def warm(server: Path, **env: str) -> dict[str, Json]:
    """Return the entry of a server, in a process that need not import the SDK."""
    command, *arguments = warm_program(str(server))
    return {"command": command, "args": [*arguments], "env": dict(env)}


@dataclass(frozen=True, slots=True)
class Served:
    """A folder with a `.mcp.json`, and a store beside it."""

    folder: Path
    start_seconds: float = 20.0
    in_memory: bool = True

    def declare(self, servers: Mapping[str, Json]) -> Self:
        """Write the file, and return the folder."""
        document: Json = {"mcpServers": dict(servers)}
        (self.folder / ".mcp.json").write_text(json.dumps(document), "utf-8")
        return self

    @asynccontextmanager
    async def open(self, model: ScriptedModel, **options: Json) -> AsyncGenerator[Harness]:
        """Open a harness whose bundle has only these servers."""
        store = "memory:" if self.in_memory else f"sqlite:///{self.folder}/talk.db"
        properties: dict[str, Json] = {
            "mcp.file": str(self.folder / ".mcp.json"),
            "mcp.start_seconds": self.start_seconds,
            "react.select_tools": False,
            **options,
        }
        async with Harness.open(
            Bundle(id="served"), store=store, model=model, properties=properties
        ) as harness:
            yield harness

    async def turn(self, model: ScriptedModel, **options: Json) -> Sequence[Block]:
        """Return the blocks of a conversation of one turn."""
        async with self.open(model, **options) as harness:
            talk = harness.conversation("c1")
            await talk.say("Go!")
            return await talk.blocks()

    async def calls(self, *calls: ToolCall, **limits: float) -> list[ToolResult]:
        """Return the results of these calls, one a round, in a turn that was answered."""
        async with self.open(ScriptedModel([*calls, Say("Done.")])) as harness:
            talk = harness.conversation("c1")
            seconds = limits.get("seconds")
            result = await talk.say("Go!", tool_timeout_seconds=seconds, select_tools=False)
            assert result.answer == "Done."
            return results_in(await talk.blocks())


def notices_in(blocks: Sequence[Block]) -> list[Notice]:
    return [block.body for block in blocks if isinstance(block.body, Notice)]


async def follow(talk: Conversation[Any], **limits: Any) -> AsyncGenerator[Delta]:
    """Send a message, and yield each question that a running call asks."""
    async for event in talk.stream("Go!", **limits):
        if isinstance(event, Delta) and event.type == "pending":
            yield event


def results_in(blocks: Sequence[Block]) -> list[ToolResult]:
    return [block.body for block in blocks if isinstance(block.body, ToolResult)]
