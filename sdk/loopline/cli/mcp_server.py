"""`loopline mcp`: a bundle as an MCP server."""

from __future__ import annotations

from typing import Annotated

import typer

from loopline.cli.bundle_access import open_bundle
from loopline.cli.options import BundleArgument, Choices
from loopline.cli.process import ANSWERED
from loopline.cli.terminal import Screen, escape
from loopline.harness import ServedBundle, model_or_call, serve_mcp

HOST = "127.0.0.1"


async def serve(
    choices: Choices,
    screen: Screen,
    bundle: BundleArgument,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="Serve over HTTP at /mcp of this port, not stdio."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on, with --port.")] = HOST,
) -> int:
    """Serve a bundle to MCP clients: its tools, questions, skills."""
    async with open_bundle(bundle, choices, screen, model=model_or_call(choices.model)) as harness:
        name = harness.model.name  # a wrong model string is an error now, not at the first question
        served = ServedBundle(harness, choices.user_name)
        if port is not None:
            screen.note(f"{escape(served.name)} with {escape(name)} at http://{host}:{port}/mcp")
        await serve_mcp(served, host, port)
    return ANSWERED
