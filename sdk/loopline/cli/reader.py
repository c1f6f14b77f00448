"""Commands that read one conversation, and need neither a bundle nor the loop: read and export."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated

import typer
from rich.rule import Rule
from rich.text import Text

from loopline.cli.access import chosen_conversation, open_store
from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, FAILED
from loopline.cli.terminal import QUIET, REF, Screen, escape, quantity
from loopline.models import Json, JsonObject
from loopline.reader import ConversationReader, Item, Reading


async def read(
    choices: Choices,
    screen: Screen,
    refs: Annotated[
        list[str], typer.Argument(metavar="REF…", help="Refs, as other commands print them.")
    ],
) -> int:
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
