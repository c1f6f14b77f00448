"""`loopline mcp`: a bundle as an MCP server."""

from __future__ import annotations

import contextlib
import os
import webbrowser
from typing import Annotated

import typer

from loopline.cli.bundle_access import open_bundle
from loopline.cli.options import BundleArgument, Choices
from loopline.cli.process import ANSWERED, UsageError
from loopline.cli.terminal import Screen, escape
from loopline.errors import LooplineError
from loopline.harness import ServedBundle, http_address, model_or_call, serve_mcp

LOOPBACK = "127.0.0.1"


async def mcp(
    choices: Choices,
    screen: Screen,
    bundle: BundleArgument,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="Serve over HTTP at /mcp of this port, not stdio."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on, with --port.")] = LOOPBACK,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another name that clients reach it by, such as that of a proxy."),
    ] = None,
    login: Annotated[
        str | None,
        typer.Option(metavar="SERVER", help="Sign in to an MCP server of the bundle instead."),
    ] = None,
) -> int:
    """Serve a bundle to MCP clients: its tools, questions, skills."""
    address = None
    if port is not None:
        try:
            address = http_address(host, port, allow_host or (), os.environ)
        except LooplineError as error:
            raise UsageError(str(error)) from error
    async with open_bundle(bundle, choices, screen, model=model_or_call(choices.model)) as harness:
        if login is not None:
            await harness.sign_in(login, lambda address: _show(screen, address))
            screen.note(f"signed in to {escape(login)}")
            return ANSWERED
        name = harness.model.name  # a wrong model string is an error now, not at the first question
        served = ServedBundle(harness, choices.user_name)
        if address is not None:
            key = "with its key" if address.key_sha256 else "without a key"
            screen.note(
                f"{escape(served.name)} with {escape(name)} at http://{host}:{port}/mcp, {key}"
            )
        await serve_mcp(served, address)
    return ANSWERED


def _show(screen: Screen, address: str) -> None:
    """Open the address in a browser, and show it in case there is none."""
    screen.note(f"Open this address to sign in:\n{escape(address)}")
    with contextlib.suppress(webbrowser.Error):
        webbrowser.open(address)
