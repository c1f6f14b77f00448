"""What a command works on: an open bundle, a store, a conversation, a JSON file."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loopline.cli.options import Choices
from loopline.cli.process import UsageError, stopping
from loopline.cli.terminal import QUIET, Screen, visible
from loopline.conversations import Conversation
from loopline.errors import CassetteError, LooplineError, ModelError, PropertyError, StoreError
from loopline.harness import Harness, Store
from loopline.knowledge import Progress
from loopline.models import Json, JsonObject
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    ConversationSummary,
    TimelineLog,
)


@asynccontextmanager
async def opened(
    bundle: str, choices: Choices, screen: Screen, *, store: str | None = None
) -> AsyncGenerator[Harness]:
    """The bundle, open; on a terminal a bar shows its knowledge space being built.

    `store` takes the place of the one that was chosen.

    Raises:
        UsageError: an option names a model, a store, a cassette or a property that there cannot be.
        LooplineError: it cannot be opened.
    """
    try:
        harness = Harness.open(
            bundle,
            store=store or choices.store,
            model=choices.model,
            properties=choices.settings,
            on_build=_bar(screen),
            cassette=choices.cassette,
        )
    except (ModelError, PropertyError, StoreError) as error:
        raise UsageError(str(error)) from error
    async with AsyncExitStack() as stack:
        try:
            with stopping(screen):
                await stack.enter_async_context(harness)
        except PropertyError as error:
            if choices.props:
                raise UsageError(str(error)) from error
            raise
        except (CassetteError, ModelError) as error:
            raise UsageError(str(error)) from error
        finally:
            screen.calm()
        # What is loaded by now stays: looking through it for garbage would hold the screen still for a tenth of a second.
        gc.freeze()
        yield harness


def _bar(screen: Screen) -> Progress | None:
    """What moves the bar; it is called from another thread."""
    if not screen.is_live:
        return None
    loop = asyncio.get_running_loop()

    def told(done: int, total: int, what: str) -> None:
        loop.call_soon_threadsafe(screen.moving, building(done, total, what))

    return told


BAR_WIDTH = 32


def building(done: int, total: int, what: str) -> RenderableType:
    """A bar for the knowledge space that is being built."""
    table = Table.grid(padding=(0, 1))
    bar = ProgressBar(
        total=total or 1, completed=done, width=BAR_WIDTH, complete_style="cyan", pulse=not total
    )
    table.add_row(
        Text(visible(what), style=QUIET),
        bar,
        Text(f"{done:,} of {total:,} files", style=QUIET),
    )
    return table


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


async def read_object(file: Path) -> JsonObject:
    """Return the JSON object that the file holds.

    Raises:
        UsageError: it holds none.
    """
    try:
        document: Json = json.loads(await asyncio.to_thread(_text, file))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{file}: it holds no JSON object: give it what loopline export prints")
    return document


def _text(file: Path) -> str:
    return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
