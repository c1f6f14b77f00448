"""The extra `mcp`: a tool of a server that is a few lines is called over its standard input and output."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from loopline import Bundle, Harness
from loopline.testing import Call, Say, ScriptedModel

SERVER = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("tea")

@server.tool()
def steep(kind: str) -> str:
    """Say how long."""
    return f"{kind}: 3 minutes"

server.run("stdio")
'''


async def main() -> None:
    """Run a turn with one call."""
    model = ScriptedModel([Call("mcp.tea.steep", kind="green"), Say("Three minutes.")])
    async with Harness.open(
        Bundle(id="guide"),
        store="memory:",
        model=model,
        properties={"mcp.file": str(FILE)},
    ) as harness:
        await harness.conversation("c").say("How long?")
    assert "green: 3 minutes" in str(model.requests[-1])


FILE = Path("servers.json").resolve()
FILE.with_name("tea_server.py").write_text(SERVER, "utf-8")
ENTRY = {"command": sys.executable, "args": ["tea_server.py"]}
FILE.write_text(json.dumps({"mcpServers": {"tea": ENTRY}}), "utf-8")
asyncio.run(main())
