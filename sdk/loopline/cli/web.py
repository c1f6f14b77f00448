"""`loopline web`: open the web page over a bundle, a store, or one file with a conversation."""

from __future__ import annotations

import gc
from pathlib import Path

import click

from loopline.cli.bundle_access import parse_properties
from loopline.cli.options import ANSWERED, Choices, check_extra, command, misuse
from loopline.cli.parameters import browser_options, model_options
from loopline.cli.terminal import Screen, escape, open_browser
from loopline.errors import LooplineError, StoreError
from loopline.harness import DocumentStore, ReadOnlyStore, parse_store_url

HOST = "127.0.0.1"
PAGE = "/page/"
FILES = frozenset({".json", ".jsonl"})
DATABASES = frozenset({".db", ".sqlite", ".sqlite3"})


@command
@click.argument(
    "source",
    required=False,
    default="",
    metavar="[BUNDLE|STORE|FILE]",
    help="A bundle; or a store, an exported conversation, or a session of Claude Code or Codex (.jsonl). "
    "Without it: the store of --store.",
)
@browser_options
@model_options
async def web(choices: Choices, screen: Screen, source: str, port: int, no_browser: bool) -> int:
    """Open the web page: chat with a bundle, and look into every conversation."""
    check_extra()
    from loopline.server import app, make_server, reading_app

    file = Path(source)
    url = store_url(source, choices)
    if file.suffix in FILES:
        served = reading_app(DocumentStore(file))
    elif url is None and source:
        served = app(
            [source], store=choices.store, model=choices.model, properties=parse_properties(choices)
        )
    else:
        with misuse(StoreError):
            served = reading_app(ReadOnlyStore(url))

    is_store = url is not None and source in ("", url)
    shown = parse_store_url(url).shown_url if is_store else source or "the default store"

    def show_address(address: str) -> None:
        screen.note(f"{escape(shown)} at {address}{PAGE}")
        if not no_browser:
            open_browser(f"{address}{PAGE}")

    with misuse(LooplineError):
        server = make_server(served, host=HOST, port=port, on_listening=show_address)
    gc.freeze()
    await server.serve()
    return ANSWERED


def store_url(source: str, choices: Choices) -> str | None:
    """Return the URL of the store that `source` names as a URL or as an existing database file; None for a bundle.

    Without a source it is the store of `--store`, or None for the default one.
    """
    if not source:
        return choices.store
    if "://" in source:
        return source
    path = Path(source)
    if path.suffix in DATABASES and path.is_file():
        return f"sqlite:///{path}"
    return None
