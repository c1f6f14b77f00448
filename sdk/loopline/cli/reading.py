"""`loopline read`: anything that has a ref, from the store alone."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

from rich.rule import Rule
from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.conversing import kept, latest_kept, stored
from loopline.cli.door import ANSWERED, FAILED
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, REF, counted, visible
from loopline.models import Json, JsonObject, dumps
from loopline.reader import Item, Reading


async def read(refs: Sequence[str], choices: Choices, screen: Screen) -> int:
    """Print what the refs name; a failure if there is one that names nothing."""
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        talk = kept(store, name, choices)
        reading = await talk.read(refs)
    if choices.as_json:
        screen.raw(dumps({"conversation": name, **_reading_document(reading)}))
    else:
        _show_reading(reading, screen)
    return FAILED if reading.missing else ANSWERED


def _reading_document(reading: Reading) -> JsonObject:
    """The status of a reading and its items, for programs."""
    return {**reading.status(), "items": [_item_document(item) for item in reading]}


def _item_document(item: Item) -> Json:
    data: JsonObject = {"data": b64encode(item.data).decode()} if item.data else {}
    return {
        "ref": item.ref,
        "asked": item.asked,
        "status": item.status,
        "mime": item.mime,
        "title": item.title,
        "message": item.message,
        "text": item.text,
        **data,
    }


def _show_reading(reading: Reading, screen: Screen) -> None:
    parts = [counted(len(reading.paths), "ref") + " read"]
    if reading.missing:
        parts.append(f"{len(reading.missing)} missing")
    parts.append(f"about {counted(reading.total_tokens, 'token')}")
    screen.note(Text(" · ".join(parts), style=QUIET))
    several = len(reading.items) > 1
    for item in reading:
        if not item.found:
            screen.error(f"{item.asked}: {item.message}")
            continue
        title = f"{item.ref} — {item.title}" if item.title else item.ref
        if several:
            rule = Rule(Text(visible(title), style=REF), align="left", style=QUIET)
            screen.answer_whole(rule, f"--- {visible(title)}")
        elif item.ref != item.asked or item.title:
            screen.note(Text(visible(title), style=REF))
        screen.exact(item.text)
        if item.message:
            screen.note(Text(item.message, style=QUIET))
