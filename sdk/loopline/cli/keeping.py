"""`loopline export`, `import`, `backup`, `fork`, `feedback`, `forget`: commands on stored conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.conversing import kept, latest_kept, stored
from loopline.cli.documents import read_object
from loopline.cli.door import ANSWERED, FAILED, UsageError
from loopline.cli.keyboard import Keyboard, restored
from loopline.cli.options import REACTIONS
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, counted, visible
from loopline.errors import LooplineError
from loopline.harness import Store
from loopline.models import dumps
from loopline.reader import import_actions


async def export(choices: Choices, screen: Screen) -> int:
    """Print the document of a conversation, whole."""
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        screen.raw(dumps(await kept(store, name, choices).export()))
    return ANSWERED


async def import_(
    file: Path, name: str, confirmed: Sequence[str], choices: Choices, screen: Screen
) -> int:
    """Keep an exported conversation in the store, block by block as it was, and list what stays inert."""
    document = await read_object(file)
    async with Store.open(choices.store) as store:
        talk = await store.load(document, name=name, confirm=confirmed, user=choices.whose)
        *blocks, _ = await talk.blocks()
    kept = visible(talk.conversation.name)
    screen.note(Text(f"conversation {kept}: {counted(len(blocks), 'block')} imported", style=QUIET))
    for action in import_actions(blocks, talk.conversation.name):
        if action.name not in confirmed:
            said = f"inert: {action.name} ({action.text}); --confirm {action.name} would allow it"
            screen.note(Text(visible(said), style=QUIET))
    return ANSWERED


async def backup(target: Path, choices: Choices, screen: Screen) -> int:
    """Copy the store while it is in use."""
    async with Store.open(choices.store) as store:
        await store.backup(target)
    screen.note(Text(f"backed up to {visible(str(target))}", style=QUIET))
    return ANSWERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Which conversation to forget; `confirmed` when nobody has to be asked."""

    name: str
    cascade: bool
    confirmed: bool


async def forget(removal: Removal, choices: Choices, screen: Screen) -> int:
    """Remove a conversation for good, once the user has confirmed it.

    Raises:
        LooplineError: there is no such conversation.
        UsageError: nobody can be asked.
    """
    async with Store.open(choices.store) as store:
        handle = kept(store, removal.name, choices)
        shown = f"conversation {visible(removal.name)}"
        summary = await store.log.find(handle.conversation)
        if summary is None:
            if await store.log.forgotten(handle.conversation) is None:
                raise LooplineError(
                    f"there is no {shown} of the user {choices.whose!r}: loopline timeline --list names them"
                )
            screen.note(Text(f"{shown} was forgotten before", style=QUIET))
            return ANSWERED
        if not removal.confirmed and not await _confirmed(
            f"{shown}, {counted(summary.turns, 'turn')}"
        ):
            screen.note(Text(f"{shown} is kept", style=QUIET))
            return FAILED
        await store.forget(removal.name, cascade=removal.cascade, user=choices.whose)
    screen.note(Text(f"{shown} is forgotten", style=QUIET))
    return ANSWERED


async def _confirmed(what: str) -> bool:
    """Ask whether to remove it for good."""
    keyboard = Keyboard()
    if not keyboard.is_person:
        raise UsageError("forget removes for good, and there is no terminal to ask at: give --yes")
    with restored():
        line = await keyboard.ask(f"Remove {what}, for good? [y/N] ")
    return (line or "").strip().lower() in ("y", "yes")


async def fork(seq: int, name: str, choices: Choices, screen: Screen) -> int:
    """Begin another conversation with the blocks of one up to a place."""
    async with Store.open(choices.store) as store:
        source = await latest_kept(store, choices, screen)
        made = await kept(store, source, choices).fork(seq=seq, name=name)
    screen.answer(Text(visible(made.conversation.name)))
    return ANSWERED


async def judge(turn: str, reaction: str, text: str, choices: Choices, screen: Screen) -> int:
    """Record what the user thinks of a turn; `none` takes it back."""
    async with Store.open(choices.store) as store:
        name = await latest_kept(store, choices, screen)
        await kept(store, name, choices).feedback(turn, REACTIONS[reaction], text=text)
    screen.note(Text(f"{visible(turn)} of {visible(name)}: {reaction}", style=QUIET))
    return ANSWERED
