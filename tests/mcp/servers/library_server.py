"""A server with resources and prompts, written with the official SDK; a tool of it adds a resource."""

from __future__ import annotations

import os

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("library", version="1", log_level="ERROR")
COVER = b"\x89PNG\r\n\x1a\n\x00cover"


@server.resource("shelf://tea", mime_type="text/markdown", description="How tea is made.")
def tea() -> str:
    """Return a page; its last line is a secret of the server."""
    return f"# Tea\n\nThree minutes.\n{os.environ.get('API_TOKEN')}"


@server.resource("shelf://covers/tea.png", mime_type="image/png")
def cover() -> bytes:
    """Return bytes that are not the same twice, as a page that others edit."""
    return COVER + os.urandom(4)


@server.resource("shelf://books/{title}")
def book(title: str) -> str:
    """Return a book."""
    return f"The book of {title}."


@server.prompt()
def brew(kind: str, cups: str = "1") -> str:
    """Ask for tea."""
    return f"Make {cups} of {kind}."


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def publish(context: Context) -> str:
    """Add a prompt, and tell of it."""

    @server.prompt()
    def stir() -> str:
        """Ask to stir."""
        return "Stir."

    await context.notify_prompts_changed()
    return "published"


if __name__ == "__main__":
    server.run("stdio")
