"""Which conversation is meant: the one that is named, the latest, or a new one."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.door import UsageError
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, visible
from loopline.conversations import Conversation
from loopline.errors import LooplineError, StoreError
from loopline.harness import Store
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    ConversationSummary,
    TimelineLog,
)


def unused(bundle: str, taken: Iterable[str]) -> str:
    """The first of `<bundle>-1`, `<bundle>-2`, … that comes after every one that is taken."""
    numbers = (name.removeprefix(f"{bundle}-") for name in taken if name.startswith(f"{bundle}-"))
    return f"{bundle}-{max((int(n) for n in numbers if n.isdecimal()), default=0) + 1}"


async def fresh(log: TimelineLog, bundle: str, user: str) -> str:
    """The name of a new conversation with a bundle."""
    return unused(bundle, [s.conversation.name for s in await log.conversations(user=user)])


async def latest(log: TimelineLog, choices: Choices, screen: Screen) -> str:
    """The conversation that was chosen, else the user's latest, which is then said.

    Raises:
        LooplineError: the user has none.
    """
    if choices.conversation is not None:
        return choices.conversation
    found = await log.conversations(user=choices.whose)
    return _said(found[0] if found else None, choices, screen)


async def latest_kept(store: Store, choices: Choices, screen: Screen) -> str:
    """`latest`, of a store that is open without a bundle."""
    if choices.conversation is not None:
        return choices.conversation
    latest_one = store.conversations(
        user=choices.whose,
        project=choices.project or DEFAULT_PROJECT,
        tenant=choices.tenant or DEFAULT_TENANT,
        limit=1,
    )
    async for summary in latest_one:
        return _said(summary, choices, screen)
    return _said(None, choices, screen)


def kept(store: Store, name: str, choices: Choices) -> Conversation:
    """The conversation of that name and of the owner that was chosen."""
    return store.conversation(
        name,
        user=choices.whose,
        project=choices.project or DEFAULT_PROJECT,
        tenant=choices.tenant or DEFAULT_TENANT,
    )


def _said(found: ConversationSummary | None, choices: Choices, screen: Screen) -> str:
    if found is None:
        raise LooplineError(
            f"there is no conversation of the user {choices.whose!r} yet: begin one with loopline run"
        )
    name = found.conversation.name
    screen.note(Text(f"conversation {visible(name)} (the latest)", style=QUIET))
    return name


def unknown(name: str, choices: Choices) -> LooplineError:
    """That there is no such conversation."""
    return LooplineError(
        f"no conversation {name!r} of the user {choices.whose!r}: "
        "loopline timeline --list shows which there are"
    )


def stored(choices: Choices) -> Store:
    """The store that was chosen, to be read.

    Raises:
        UsageError: its URL is not one that works.
    """
    try:
        return Store.open(choices.store, read_only=True)
    except StoreError as error:
        raise UsageError(str(error)) from error
