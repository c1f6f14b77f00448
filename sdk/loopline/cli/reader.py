"""Commands that read one conversation, and need neither a bundle nor the loop: read and export."""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import click
from rich.rule import Rule
from rich.text import Text

from loopline.cli.options import ANSWERED, FAILED, Choices, UsageError, command
from loopline.cli.parameters import (
    conversation_argument,
    conversation_option,
    json_option,
    scope_options,
)
from loopline.cli.terminal import QUIET, REF, Screen, escape, quantity
from loopline.errors import LooplineError, StoreError
from loopline.harness import ConversationNames, ReadOnlyStore
from loopline.models import Json, JsonObject
from loopline.reader import ConversationReader, Item, Reading
from loopline.timeline import DEFAULT_PROJECT, DEFAULT_TENANT, Block, ConversationKey, TimelineLog

Handle = TypeVar("Handle", bound=ConversationReader)


def open_store(choices: Choices) -> ReadOnlyStore:
    """Open the store for reading.

    Raises:
        UsageError: its URL cannot be.
    """
    try:
        return ReadOnlyStore(choices.store)
    except StoreError as error:
        raise UsageError(str(error)) from error


def conversation_key(name: str, choices: Choices) -> ConversationKey:
    """Return the key of a conversation of the chosen user, project and tenant."""
    return ConversationKey(
        name=name,
        user=choices.user_name,
        project=choices.project or DEFAULT_PROJECT,
        tenant=choices.tenant or DEFAULT_TENANT,
    )


def conversation_in(store: ConversationNames[Handle], name: str, choices: Choices) -> Handle:
    """Return a conversation of the chosen user, project and tenant."""
    key = conversation_key(name, choices)
    return store.conversation(name, user=key.user, project=key.project, tenant=key.tenant)


def key_document(key: ConversationKey) -> JsonObject:
    """Return the fields by which a JSON document names a conversation."""
    return {
        "conversation": key.name,
        "user": key.user,
        "project": key.project,
        "tenant": key.tenant,
    }


async def chosen_conversation(
    store: ConversationNames[Handle], choices: Choices, screen: Screen
) -> Handle:
    """Return the conversation that was named, else the user's latest in the store.

    Raises:
        LooplineError: the user has none.
    """
    return conversation_in(store, await chosen_name(store.log, choices, screen), choices)


async def stored_blocks(
    store: ConversationNames[Handle], choices: Choices, screen: Screen
) -> tuple[Handle, Sequence[Block]]:
    """Return the conversation that was named, else the user's latest in the store, with its blocks.

    Raises:
        LooplineError: there is no such conversation.
    """
    conversation = await chosen_conversation(store, choices, screen)
    blocks = await conversation.blocks()
    if not blocks:
        raise no_such_conversation(conversation.conversation.name, choices)
    return conversation, blocks


async def chosen_name(log: TimelineLog, choices: Choices, screen: Screen) -> str:
    """Return the conversation that was named, else the user's latest in the project, which is printed.

    Raises:
        LooplineError: the user has none.
    """
    if choices.conversation is not None:
        return choices.conversation
    for summary in await log.conversations(
        user=choices.user_name,
        project=choices.project or DEFAULT_PROJECT,
        tenant=choices.tenant or DEFAULT_TENANT,
        limit=1,
    ):
        name = summary.conversation.name
        screen.note(f"conversation {escape(name)} (the latest)")
        return name
    raise LooplineError(
        f"there is no conversation of the user {choices.user_name!r} yet: begin one with loopline run"
    )


def no_such_conversation(name: str, choices: Choices) -> LooplineError:
    """Return the error for a conversation that does not exist."""
    return LooplineError(
        f"no conversation {name!r} of the user {choices.user_name!r}: "
        "loopline timeline --list lists those that exist"
    )


def unused_name(bundle: str, names: Iterable[str]) -> str:
    """Return the first of `<bundle>-1`, `<bundle>-2`, … that comes after all of the names."""
    numbers = (name.removeprefix(f"{bundle}-") for name in names if name.startswith(f"{bundle}-"))
    return f"{bundle}-{max((int(n) for n in numbers if n.isdecimal()), default=0) + 1}"


async def new_name(log: TimelineLog, bundle: str, user: str) -> str:
    """Return the name of a new conversation with a bundle."""
    return unused_name(bundle, [s.conversation.name for s in await log.conversations(user=user)])


async def read_object(file: Path) -> JsonObject:
    """Return the JSON object that a file holds; `-` is stdin.

    Raises:
        UsageError: it holds none.
    """
    try:
        text = await asyncio.to_thread(
            sys.stdin.read if str(file) == "-" else lambda: file.read_text(encoding="utf-8")
        )
        document: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{file}: it holds no JSON object: give it what loopline export prints")
    return document


@command
@click.argument(
    "refs", nargs=-1, required=True, metavar="REF…", help="Refs, as other commands print them."
)
@conversation_option
@scope_options
@json_option
async def read(choices: Choices, screen: Screen, refs: tuple[str, ...]) -> int:
    """Read anything that has a ref."""
    async with open_store(choices) as store:
        conversation = await chosen_conversation(store, choices, screen)
        reading = await conversation.read(refs)
    if choices.as_json:
        items: list[Json] = [_item_document(item) for item in reading]
        name = conversation.conversation.name
        screen.write_json({"conversation": name, **reading.status(), "items": items})
    else:
        _show_reading(reading, screen)
    return FAILED if reading.missing else ANSWERED


def _show_reading(reading: Reading, screen: Screen) -> None:
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
@conversation_argument
@conversation_option
@scope_options
async def export(choices: Choices, screen: Screen) -> int:
    """Print a conversation as a JSON document."""
    async with open_store(choices) as store:
        conversation = await chosen_conversation(store, choices, screen)
        await write_document(conversation, screen)
    return ANSWERED


async def write_document(conversation: ConversationReader, screen: Screen) -> None:
    """Write a conversation as JSON to stdout, without holding all of it."""
    async for piece in conversation.export_text():
        screen.write_part(piece)
    screen.write("")
