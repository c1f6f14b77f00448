"""`loopline serve` and `loopline key`: bundles over HTTP, and the keys of those who may ask them."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from loopline.cli.bundle_access import chosen_properties
from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, UsageError
from loopline.cli.terminal import Screen, escape
from loopline.errors import LooplineError
from loopline.files import AttachmentCaps
from loopline.timeline import DEFAULT_PROJECT, DEFAULT_TENANT

HOST, PORT = "127.0.0.1", 8_000
SCAN = "APP_AV_SCAN"
NEEDED = ("fastapi", "jwt", "uvicorn")

BundlesArgument = Annotated[
    list[str], typer.Argument(metavar="BUNDLE…", help="Folders or names of bundles.")
]
KeysOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="API keys, as loopline key writes them.")
]


async def serve(
    choices: Choices,
    screen: Screen,
    bundles: BundlesArgument,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = HOST,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port to listen on.")] = PORT,
    keys: KeysOption = None,
    issuer: Annotated[
        str, typer.Option(metavar="URL", help="The issuer of JSON Web Tokens that are taken.")
    ] = "",
    audience: Annotated[str, typer.Option(help="For whom these tokens must be.")] = "",
    jwks: Annotated[
        str, typer.Option(metavar="URL", help="The issuer's keys, if its configuration names none.")
    ] = "",
    production: Annotated[
        bool, typer.Option("--production", help="Refuse to begin without keys and a virus scanner.")
    ] = False,
    origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Pages of this origin may read answers in a browser."),
    ] = None,
) -> int:
    """Serve bundles over HTTP: conversations, events, files."""
    check_extra()
    from loopline.server import (
        ApiKeys,
        Authenticator,
        FirstOf,
        ServerSettings,
        TokenUsers,
        app,
        make_server,
    )

    settings = ServerSettings(
        origins=tuple(origin or ()),
        caps=replace(AttachmentCaps.of_environment(os.environ), known_types=True),
        signing_key=os.environ.get("LOOPLINE_SIGNING_KEY", "").encode(),
    )
    if keys is not None and not keys.exists():
        raise UsageError(f"{keys}: there is no such file; loopline key {keys} makes one")
    ways: list[Authenticator] = [] if keys is None else [ApiKeys.read(keys)]
    if issuer:
        ways.append(TokenUsers(issuer, audience, jwks_url=jwks))
    if production and (not ways or os.environ.get(SCAN) != "1"):
        raise UsageError(f"--production needs --keys FILE or --issuer URL, and {SCAN}=1")
    served = app(
        bundles,
        store=choices.store,
        auth=FirstOf(ways) if ways else None,
        settings=settings,
        model=choices.model,
        properties=chosen_properties(choices),
    )
    try:
        server = make_server(served, host=host, port=port)
    except LooplineError as error:
        raise UsageError(str(error)) from error
    shown = f"[{host}]" if ":" in host else host
    screen.note(f"{escape(', '.join(bundles))} at http://{shown}:{port}; the API is at /docs")
    await server.serve()
    return ANSWERED


async def make_key(
    choices: Choices,
    screen: Screen,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the digest is stored.")],
    role: Annotated[
        list[str] | None,
        typer.Option(help="A role; who is privileged reads what other users said."),
    ] = None,
) -> int:
    """Make an API key for a user, and store its digest in a file."""
    check_extra()
    from loopline.server import Principal, add_key

    principal = Principal(
        tenant=choices.tenant or DEFAULT_TENANT,
        project=choices.project or DEFAULT_PROJECT,
        user=choices.user_name,
        roles=frozenset(role or ()),
    )
    key = add_key(file, principal)
    screen.note("This key is shown only once:")
    screen.write(key)
    return ANSWERED


def check_extra() -> None:
    """Check that the extra is installed.

    Raises:
        LooplineError: it is not.
    """
    if any(find_spec(name) is None for name in NEEDED):
        raise LooplineError("a server needs the extra: pip install 'loopline[server]'")
