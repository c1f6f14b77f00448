"""`loopline export`, `backup` and `forget`: what is kept, taken out, copied or removed."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.conversing import latest_kept
from loopline.cli.door import ANSWERED
from loopline.cli.reading import stored
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, visible
from loopline.harness import Store
from loopline.models import dumps


async def export(choices: Choices, screen: Screen) -> int:
    """Print the document of a conversation, whole."""
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        screen.raw(dumps(await store.conversation(name, user=choices.whose).export()))
    return ANSWERED


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
