"""`loopline export`, `import`, `backup`, `forget`: what is kept, taken out and in, copied, removed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.conversing import kept, latest_kept
from loopline.cli.door import ANSWERED, UsageError
from loopline.cli.reading import stored
from loopline.cli.screen import Screen
from loopline.cli.steps import counted
from loopline.cli.words import QUIET, visible
from loopline.harness import Store
from loopline.models import Json, dumps


async def export(choices: Choices, screen: Screen) -> int:
    """Print the document of a conversation, whole."""
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        screen.raw(dumps(await kept(store, name, choices).export()))
    return ANSWERED


async def import_(file: Path, name: str, choices: Choices, screen: Screen) -> int:
    """Keep an exported conversation in the store, block by block as it was."""
    try:
        document: Json = json.loads(await asyncio.to_thread(_text, file))
    except ValueError as error:
        raise UsageError(f"{file}: it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{file}: it holds no JSON object: give it what loopline export prints")
    async with Store.open(choices.store) as store:
        talk = await store.load(document, name=name, user=choices.whose)
        count = len(await talk.blocks())
    kept = visible(talk.conversation.name)
    screen.note(Text(f"conversation {kept}: {counted(count, 'block')} imported", style=QUIET))
    return ANSWERED


def _text(file: Path) -> str:
    return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")


async def backup(target: Path, choices: Choices, screen: Screen) -> int:
    """Copy the store while it is in use."""
    async with Store.open(choices.store) as store:
        await store.backup(target)
    screen.note(Text(f"backed up to {visible(str(target))}", style=QUIET))
    return ANSWERED


async def forget(name: str, cascade: bool, choices: Choices, screen: Screen) -> int:
    """Remove a conversation for good."""
    async with Store.open(choices.store) as store:
        await store.forget(name, cascade=cascade, user=choices.whose)
    screen.note(Text(f"conversation {visible(name)} is forgotten", style=QUIET))
    return ANSWERED
