"""`loopline serve`, `key` and `mcp`: serve bundles over HTTP or to MCP clients, and manage API keys."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack

import click

from loopline import harness as harnesses
from loopline.bundle import load
from loopline.cli import parameters
from loopline.cli.bundle_access import answer_command, open_bundle, parse_properties
from loopline.cli.options import (
    ANSWERED,
    Choices,
    TerminalLines,
    UsageError,
    check_extra,
    command,
    misuse,
)
from loopline.cli.terminal import Screen, escape, open_browser
from loopline.cli.workers import worker_arguments, worker_processes
from loopline.errors import BundleError, LooplineError
from loopline.files import AttachmentCaps
from loopline.timeline import DEFAULT_PROJECT, DEFAULT_TENANT

if TYPE_CHECKING:
    from loopline.server import Authenticator, ServerSettings


_SUFFIXES = frozenset({".py", ".yaml", ".yml", ".md", ".json", ".toml"})
_SKIPPED = frozenset({"__pycache__", "node_modules"})


def is_source(path: Path, folders: Sequence[Path]) -> bool:
    """Return whether `path` has a suffix in _SUFFIXES and is in one of `folders`, not hidden and not in _SKIPPED."""
    inside = [path.relative_to(folder) for folder in folders if path.is_relative_to(folder)]
    return path.suffix in _SUFFIXES and any(
        not any(part in _SKIPPED or part.startswith(".") for part in relative.parts)
        for relative in inside
    )


async def watch(locations: Sequence[Path], on_change: Callable[[Path], None]) -> None:
    """Wait until a file of these bundles is added, changed or removed; call `on_change` with its path, and return."""
    library = await asyncio.to_thread(import_module, "watchfiles")

    def is_watched(_: object, path: str) -> bool:
        return is_source(Path(path), locations)

    async for changes in library.awatch(*locations, watch_filter=is_watched):
        on_change(min(Path(path) for _, path in changes))
        return


RELOAD_SECONDS = 1.0
"""The seconds that a server waits for its turns before a restart, which resumes them."""
HOST, PORT = "127.0.0.1", 8_000
SCAN = "APP_AV_SCAN"


class ServeOptions(TypedDict):
    """The options of `loopline serve` that configure the server."""

    keys: Path | None
    issuer: str
    audience: str
    client_id: str
    jwks: str
    production: bool
    reload: bool
    origin: tuple[str, ...]
    public_url: str
    retention: tuple[str, ...]
    workers: int | None
    quota: tuple[str, ...]


@command
@parameters.bundles_argument
@parameters.with_default("--host", default=HOST, help="The address to listen on.")
@parameters.with_default(
    "--port", type=parameters.PORT, default=PORT, help="The port to listen on."
)
@parameters.file_option("--keys", help="API keys, as loopline key writes them.")
@click.option("--issuer", default="", metavar="URL", help="Accept JSON Web Tokens of this issuer.")
@click.option("--audience", default="", help="The audience that these tokens must have.")
@click.option(
    "--client-id",
    default="",
    metavar="ID",
    help="The id of the web page at the issuer, so that people sign in there.",
)
@click.option(
    "--jwks", default="", metavar="URL", help="The issuer's keys, if its configuration names none."
)
@parameters.flag("--production", help="Refuse to start without keys, scanner and isolation.")
@parameters.flag("--reload", help="Restart when a file of a bundle changes.")
@parameters.repeated(
    "--origin", metavar="URL", help="Pages of this origin may read answers in a browser."
)
@click.option(
    "--public-url",
    default="",
    metavar="URL",
    help="The address of the proxy in front of the server, for its URLs.",
)
@parameters.repeated(
    "--retention",
    metavar="[TENANT=]DAYS",
    help="Forget conversations without activity for this number of days.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0, max=100),
    help="Run turns in this number of worker processes; with 0 in workers that are started elsewhere.",
)
@parameters.repeated(
    "--quota", metavar="NAME=AMOUNT", help="A limit per day, such as user_tokens=200000."
)
@parameters.model_options
async def serve(
    choices: Choices,
    screen: Screen,
    bundles: tuple[str, ...],
    host: str,
    port: int,
    **options: Unpack[ServeOptions],
) -> int:
    """Serve bundles over HTTP: conversations, events, files."""
    check_extra()
    from loopline.server import FirstOf, app, make_server

    workers, reload = options["workers"], options["reload"]
    if options["production"] and reload:
        raise UsageError("--reload is for authors: omit it in production")
    if workers is not None and reload:
        raise UsageError("--reload restarts one process: omit --workers")
    if workers is not None and harnesses.parse_store_url(choices.store).is_in_memory:
        raise UsageError("a worker needs a store that other processes can open, not memory:")
    ways = _authenticators(options)
    if options["production"] and (not ways or os.environ.get(SCAN) != "1"):
        raise UsageError(f"--production needs --keys FILE or --issuer URL, and {SCAN}=1")
    settings = _make_settings(options)
    served = app(
        bundles,
        store=choices.store,
        auth=FirstOf(ways) if ways else None,
        settings=settings,
        model=choices.model,
        properties=parse_properties(choices),
    )
    _print_errors()

    def show_address(url: str) -> None:
        names = escape(", ".join(bundles))
        screen.note(f"{names} at {url}; the page is at /page/, the API is at /docs")

    with misuse(LooplineError):
        server = make_server(served, host=host, port=port, on_listening=show_address)
    # All modules stay loaded: a garbage collection over them would delay each turn by a tenth of a second.
    gc.freeze()
    if workers:
        await _serve_with_workers(server, settings, workers, bundles, choices, has_keys=bool(ways))
    elif reload:
        await _serve_until_a_change(server, bundles, screen)
    else:
        await server.serve()
    return ANSWERED


def _print_errors() -> None:
    """Print the errors of the log on stderr, if `-v` does not print the log: users get only their ids."""
    log = logging.getLogger("loopline")
    if all(isinstance(handler, logging.NullHandler) for handler in log.handlers):
        handler = logging.StreamHandler()
        handler.setLevel(logging.ERROR)
        handler.setFormatter(TerminalLines())
        log.addHandler(handler)


def _authenticators(options: ServeOptions) -> list[Authenticator]:
    """Return the authenticators for API keys and for JSON Web Tokens that the options configure; may be empty.

    Raises:
        UsageError: the file of keys does not exist.
    """
    from loopline.server import ApiKeys, TokenUsers

    keys = options["keys"]
    if keys is not None and not keys.exists():
        raise UsageError(f"{keys} does not exist; loopline key {keys} creates it")
    ways: list[Authenticator] = [] if keys is None else [ApiKeys.read(keys)]
    if options["issuer"]:
        users = TokenUsers(options["issuer"], options["audience"], jwks_url=options["jwks"])
        ways.append(users)
    return ways


def _make_settings(options: ServeOptions) -> ServerSettings:
    """Make the settings of a server from the options and environment variables.

    If LOOPLINE_SIGNING_KEY is not set, the key that signs URLs is random.

    Raises:
        UsageError: `--retention` or `--quota` is malformed, or there is a client id without an issuer.
        AttachmentError: an environment variable of the limits of attachments is malformed.
    """
    from loopline.server import DailyQuotas, PageLogin, Retention, ServerSettings

    issuer = options["issuer"]
    client_id = options["client_id"]
    if client_id and not issuer:
        raise UsageError("--client-id needs --issuer URL: the provider at which people sign in")
    secret = os.environ.get("LOOPLINE_LOGIN_SECRET", "")
    caps = AttachmentCaps.with_environment(os.environ)
    with misuse(LooplineError):
        return ServerSettings(
            isolated_only=options["production"],
            drain_seconds=RELOAD_SECONDS if options["reload"] else ServerSettings().drain_seconds,
            caps=replace(caps, decode_images=True),
            # The workers of the server sign URLs of files with the same key.
            signing_key=(os.environ.get("LOOPLINE_SIGNING_KEY") or token_hex(32)).encode(),
            submits_only=options["workers"] is not None,
            webhook_secret=os.environ.get("LOOPLINE_WEBHOOK_SECRET", "").encode(),
            login=PageLogin(issuer=issuer, client_id=client_id, secret=secret)
            if client_id
            else None,
            public_url=options["public_url"],
            origins=options["origin"],
            retention=Retention.parse(options["retention"]),
            quotas=DailyQuotas.parse(options["quota"]),
        )


class _ListeningServer(Protocol):
    """A server that listens until `should_exit` is true."""

    should_exit: bool

    async def serve(self) -> None:
        """Serve until `should_exit` is true."""
        ...


async def _serve_with_workers(
    server: _ListeningServer,
    settings: ServerSettings,
    workers: int,
    bundles: Sequence[str],
    choices: Choices,
    *,
    has_keys: bool,
) -> None:
    """Serve until the server ends, with worker processes that run its turns and end with it."""
    flags = {"--production": settings.isolated_only, "--private-errors": has_keys}
    options = [name for name, is_set in flags.items() if is_set]
    if settings.public_url:
        options += ["--public-url", settings.public_url]
    for quota in fields(settings.quotas):
        value = getattr(settings.quotas, quota.name)
        if value != quota.default:
            options += ["--quota", f"{quota.name}={value}"]
    arguments = worker_arguments(bundles, choices, options)
    secrets = {"LOOPLINE_SIGNING_KEY": settings.signing_key.decode()}
    if choices.store:
        secrets["LOOPLINE_STORE"] = choices.store
    async with worker_processes(workers, arguments, secrets, settings.drain_seconds):
        await server.serve()


async def _serve_until_a_change(
    server: _ListeningServer, bundles: Sequence[str], screen: Screen
) -> None:
    """Serve until a file of a bundle changes, then restart the process, which resumes the turns that were cut off.

    Raises:
        BundleError: a bundle cannot be loaded, or has no file.
    """
    locations: list[Path] = []
    for bundle in bundles:
        loaded = await asyncio.to_thread(load, bundle)
        location = loaded.file or loaded.folder
        if location is None:
            raise BundleError(f"{bundle} has no file, so --reload cannot watch it")
        locations.append(location)
    changed: list[Path] = []

    def stop_server(path: Path) -> None:
        changed.append(path)
        server.should_exit = True

    def report(watching: asyncio.Task[None]) -> None:
        if not watching.cancelled() and (error := watching.exception()) is not None:
            screen.note(f"changes are no longer watched: {escape(str(error))}")

    watching = asyncio.create_task(watch(locations, stop_server))
    watching.add_done_callback(report)
    await server.serve()
    watching.cancel()
    if changed:
        screen.note(f"{escape(str(changed[0]))} has changed: the server restarts")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@command
@click.argument("file", type=parameters.PATH, metavar="FILE", help="Where the digest is stored.")
@parameters.repeated(
    "--role",
    help="A role: privileged may read conversations of other users, approver may approve calls that need a second person.",
)
@click.option(
    "--revoke", default="", metavar="ID", help="Remove this key instead: the part after llk_."
)
@parameters.store_option
@click.option("--user", help="The user of the key.")
@click.option("--project", help="The project of the key.")
@click.option("--tenant", help="The tenant of the key.")
async def make_key(
    choices: Choices, screen: Screen, file: Path, role: tuple[str, ...], revoke: str
) -> int:
    """Make an API key for a user, and store its digest in a file."""
    check_extra()
    from loopline.server import Principal, add_key, revoke_key

    if revoke:
        if not await asyncio.to_thread(revoke_key, file, revoke):
            raise LooplineError(f"{file} does not have the key {revoke!r}")
        screen.note(f"revoked; servers that read {escape(str(file))} refuse it from now on")
        await harnesses.announce_revoked_key(choices.store)
        return ANSWERED

    principal = Principal(
        tenant=choices.tenant or DEFAULT_TENANT,
        project=choices.project or DEFAULT_PROJECT,
        user=choices.user_name,
        roles=frozenset(role),
    )
    key = add_key(file, principal)
    screen.note("This key is shown only once:")
    screen.write(key)
    return ANSWERED


LOOPBACK = "127.0.0.1"


@command
@parameters.bundle_argument
@click.option(
    "--port",
    type=click.IntRange(min=1, max=65535),
    help="Serve over HTTP at /mcp of this port, not stdio.",
)
@parameters.with_default("--host", default=LOOPBACK, help="The address to listen on, with --port.")
@parameters.repeated(
    "--allow-host", help="Another host name of the server, such as the name of a proxy."
)
@click.option("--login", metavar="SERVER", help="Sign in to an MCP server of the bundle instead.")
@parameters.answer_options
async def mcp(
    choices: Choices,
    screen: Screen,
    bundle: str,
    port: int | None,
    host: str,
    allow_host: tuple[str, ...],
    login: str | None,
) -> int:
    """Serve a bundle to MCP clients: its tools, questions, skills.

    A host that other machines can reach needs LOOPLINE_MCP_KEY, and `--login` needs a store in a file.
    """

    def show_address(address: str) -> None:
        screen.note(f"Open this address to sign in:\n{escape(address)}")
        open_browser(address)

    address = None
    if port is not None:
        with misuse(LooplineError):
            address = harnesses.http_address(host, port, allow_host, os.environ)
    if login is not None and harnesses.parse_store_url(choices.store).file is None:
        raise UsageError(
            "--login stores its tokens next to the file of a store, and this store is not in a file: "
            "let each program sign in with await harness.sign_in(SERVER, print)"
        )
    async with open_bundle(
        bundle, choices, screen, model=harnesses.model_or_call(choices.model)
    ) as harness:
        if login is not None:
            await harness.sign_in(login, show_address)
            screen.note(f"signed in to {escape(login)}")
            return ANSWERED
        name = harness.model.name  # checks the model string now, and not with the first question
        served = harnesses.ServedBundle(
            harness, choices.user_name, partial(answer_command, bundle, choices)
        )
        if address is not None:
            key = "with its key" if address.key_sha256 else "without a key"
            screen.note(
                f"{escape(served.name)} with {escape(name)} at http://{host}:{port}/mcp, {key}"
            )
        await harnesses.serve_mcp(served, address)
    return ANSWERED
