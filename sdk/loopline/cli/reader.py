"""`loopline read` and `export`, and the choice of a conversation for other commands."""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeVar

import click
from rich.rule import Rule
from rich.text import Text

from loopline import timeline as tl
from loopline.cli import parameters
from loopline.cli.options import ANSWERED, FAILED, Choices, UsageError, check_extra, command, misuse
from loopline.cli.terminal import QUIET, REF, Screen, escape, quantity
from loopline.errors import LooplineError, StoreError
from loopline.harness import ConversationNames, ReadOnlyStore
from loopline.models import Json, JsonObject
from loopline.reader import ConversationReader, Item, Reading

Handle = TypeVar("Handle", bound=ConversationReader)
MAXIMUM_DIGITS = 18
"""The most digits of a number at the end of a name that a new name counts on from."""


def open_store(choices: Choices) -> ReadOnlyStore:
    """Return the chosen store for reading, to be entered with `async with`.

    Raises:
        UsageError: the URL of the store is invalid.
    """
    with misuse(StoreError):
        return ReadOnlyStore(choices.store)


def conversation_key(name: str, choices: Choices) -> tl.ConversationKey:
    """Return the key of a conversation of the chosen user, project and tenant."""
    return tl.ConversationKey(
        name=name,
        user=choices.user_name,
        project=choices.project or tl.DEFAULT_PROJECT,
        tenant=choices.tenant or tl.DEFAULT_TENANT,
    )


def conversation_in(store: ConversationNames[Handle], name: str, choices: Choices) -> Handle:
    """Return the handle of a conversation of the chosen user, project and tenant."""
    key = conversation_key(name, choices)
    return store.conversation(name, user=key.user, project=key.project, tenant=key.tenant)


def key_document(key: tl.ConversationKey) -> JsonObject:
    """Return the name, user, project and tenant of a conversation as JSON."""
    return {
        "conversation": key.name,
        "user": key.user,
        "project": key.project,
        "tenant": key.tenant,
    }


async def choose_conversation(
    store: ConversationNames[Handle], choices: Choices, screen: Screen
) -> Handle:
    """Return the handle of the chosen conversation, or of the user's latest; print the name of the latest.

    A chosen conversation need not exist.

    Raises:
        LooplineError: no conversation was chosen, and the user does not have one.
    """
    return conversation_in(store, await choose_name(store.log, choices, screen), choices)


async def read_blocks(
    store: ConversationNames[Handle], choices: Choices, screen: Screen
) -> tuple[Handle, Sequence[tl.Block]]:
    """Return the handle and all blocks of the chosen conversation, or of the user's latest.

    Raises:
        LooplineError: the conversation does not exist.
    """
    conversation, _ = await choose_existing(store, choices, screen)
    return conversation, await conversation.blocks()


async def read_timeline(choices: Choices, screen: Screen) -> tl.Timeline:
    """Return the timeline of the chosen conversation, or of the user's latest.

    Raises:
        LooplineError: the conversation does not exist.
    """
    async with open_store(choices) as store:
        _, blocks = await read_blocks(store, choices, screen)
    return tl.Timeline(blocks)


async def choose_existing(
    store: ConversationNames[Handle], choices: Choices, screen: Screen
) -> tuple[Handle, tl.ConversationSummary]:
    """Return the handle and the summary of the chosen conversation, or of the user's latest.

    Raises:
        LooplineError: the conversation does not exist.
    """
    conversation = await choose_conversation(store, choices, screen)
    summary = await store.log.find(conversation.conversation)
    if summary is None:
        raise no_such_conversation(conversation.conversation.name, choices)
    return conversation, summary


async def choose_name(log: tl.TimelineLog, choices: Choices, screen: Screen) -> str:
    """Return the name of the chosen conversation, or of the user's latest in the project; print the name of the latest.

    A chosen conversation need not exist.

    Raises:
        LooplineError: no conversation was chosen, and the user does not have one.
    """
    if choices.conversation is not None:
        return choices.conversation
    for summary in await log.conversations(
        user=choices.user_name,
        project=choices.project or tl.DEFAULT_PROJECT,
        tenant=choices.tenant or tl.DEFAULT_TENANT,
        limit=1,
    ):
        name = summary.conversation.name
        screen.note(f"conversation {escape(name)} (the latest)")
        return name
    raise LooplineError(
        f"there is no conversation of the user {choices.user_name!r} yet: begin one with loopline run"
    )


def no_such_conversation(name: str, choices: Choices) -> LooplineError:
    """Return the error for a name that the user's store does not have."""
    return LooplineError(
        f"no conversation {name!r} of the user {choices.user_name!r}: "
        "loopline timeline --list lists those that exist"
    )


def make_name(bundle: str, names: Collection[str]) -> str:
    """Return `<bundle>-<n>`, where n is one above the highest number in `names` of this form.

    Numbers with more than MAXIMUM_DIGITS digits are ignored.
    """
    ends = (name.removeprefix(f"{bundle}-") for name in names if name.startswith(f"{bundle}-"))
    numbers = (int(end) for end in ends if len(end) <= MAXIMUM_DIGITS and end.isdecimal())
    number = max(numbers, default=0) + 1
    while f"{bundle}-{number}" in names:  # a number with more digits
        number += 1
    return f"{bundle}-{number}"


async def new_name(log: tl.TimelineLog, bundle: str, user: str) -> str:
    """Return an unused name for a conversation with a bundle, such as `guide-3`.

    The name of a forgotten conversation counts as used.
    """
    names = {summary.conversation.name for summary in await log.conversations(user=user)}
    while True:
        name = make_name(bundle, names)
        if await log.forgotten(tl.ConversationKey(name=name, user=user)) is None:
            return name
        names.add(name)


async def read_object(file: Path) -> JsonObject:
    """Read a JSON object from a file, or from stdin if `file` is `-`.

    Raises:
        UsageError: the content is not a JSON object.
        OSError: the file cannot be read.
    """
    try:
        text = await asyncio.to_thread(
            sys.stdin.read if str(file) == "-" else lambda: file.read_text(encoding="utf-8")
        )
        document: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{file} is not a JSON object: use the output of loopline export")
    return document


@command
@click.argument(
    "refs", nargs=-1, required=True, metavar="REF…", help="Refs, as other commands print them."
)
@parameters.conversation_option
@parameters.report_options
async def read(choices: Choices, screen: Screen, refs: tuple[str, ...]) -> int:
    """Read anything that has a ref."""
    async with open_store(choices) as store:
        conversation = await choose_conversation(store, choices, screen)
        key = conversation.conversation
        if await store.log.find(key) is None and await store.log.forgotten(key) is None:
            raise no_such_conversation(key.name, choices)
        reading = await conversation.read(refs)
    if choices.as_json:
        items: list[Json] = [_item_document(item) for item in reading]
        name = conversation.conversation.name
        screen.write_json({"conversation": name, **reading.status(), "items": items})
    else:
        _show_reading(reading, screen)
    return FAILED if reading.missing else ANSWERED


def _show_reading(reading: Reading, screen: Screen) -> None:
    """Print each text to stdout, with its title if there are several; print counts, messages and errors to stderr."""
    parts = [quantity(len(reading.paths), "ref") + " read"]
    if reading.missing:
        parts.append(f"{len(reading.missing)} missing")
    parts.append(f"about {quantity(reading.total_tokens, 'token')}")
    screen.note(" · ".join(parts))
    for item in reading:
        if not item.readable:
            screen.error(f"{item.requested}: {item.message}")
            continue
        title = escape(f"{item.ref} — {item.title}" if item.title else item.ref)
        if len(reading.items) > 1:
            rule = Rule(Text(title, style=REF), align="left", style=QUIET)
            screen.print_layout(rule, f"--- {title}")
        elif item.ref != item.requested or item.title:
            screen.note(Text(title, style=REF))
        screen.write_escaped(item.text)
        if item.message:
            screen.note(item.message)


def _item_document(item: Item) -> Json:
    """Return an item as JSON; `asked` is the ref as it was requested, and `data` (Base64) exists only for a file."""
    data: JsonObject = {"data": b64encode(item.data).decode()} if item.data else {}
    return {
        "ref": item.ref,
        "asked": item.requested,
        "status": item.status,
        "mime": item.mime,
        "title": item.title,
        "message": item.message,
        "text": item.text,
        **data,
    }


@command
@parameters.conversation_argument
@parameters.flag("--html", help="Print it as one HTML page that needs nothing else.")
@parameters.repeated(
    "--redact",
    metavar="KIND",
    help="With --html: replace secrets (secret) or personal data, such as email.",
)
@parameters.scope_options
async def export(choices: Choices, screen: Screen, html: bool, redact: tuple[str, ...]) -> int:
    """Print a conversation as a JSON document, or as an HTML page."""
    if redact and not html:
        raise UsageError("--redact is for --html: a document must match its chain of digests")
    if html:
        check_extra()
    async with open_store(choices) as store:
        conversation, _ = await choose_existing(store, choices, screen)
        if html:
            from loopline.server import export_page

            screen.write(await export_page(store.log, conversation.conversation, redact))
            return ANSWERED
        await write_document(conversation, screen)
    return ANSWERED


async def write_document(conversation: ConversationReader, screen: Screen) -> None:
    """Write a conversation as JSON to stdout piece by piece, to use little memory."""
    async for piece in conversation.export_text():
        screen.write_part(piece)
    screen.write("")
