"""Opening a bundle for a command: what was typed wrong is told from what went wrong."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.door import UsageError, stopping
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, visible
from loopline.errors import CassetteError, ModelError, PropertyError, StoreError
from loopline.harness import Harness
from loopline.knowledge import Progress


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
