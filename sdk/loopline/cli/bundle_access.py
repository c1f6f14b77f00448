"""A bundle opened for a command, with the properties and the cassette of its options."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loopline.bundle import Setting, parse_setting
from loopline.cli.options import Choices
from loopline.cli.process import UsageError, stop_on_signal
from loopline.cli.terminal import QUIET, Screen, escape
from loopline.errors import CassetteError, ModelError, PropertyError, StoreError
from loopline.harness import Cassette, Harness, ModelChoice
from loopline.knowledge import Progress

BAR_WIDTH = 32


@asynccontextmanager
async def open_bundle(
    bundle: str, choices: Choices, screen: Screen, *, model: ModelChoice = None
) -> AsyncGenerator[Harness]:
    """Open a bundle; on a terminal a bar shows how far its knowledge space is built.

    A `model` takes the place of the option.

    Raises:
        UsageError: an option names a model, a store, a cassette or a property that cannot be.
        LooplineError: the bundle cannot be opened.
    """
    try:
        harness = Harness.open(
            bundle,
            store=choices.store,
            model=choices.model if model is None else model,
            properties=chosen_properties(choices),
            on_build=progress_bar(screen),
            cassette=chosen_cassette(choices),
        )
    except (ModelError, PropertyError, StoreError) as error:
        raise UsageError(str(error)) from error
    async with AsyncExitStack() as stack:
        try:
            with stop_on_signal(screen):
                await stack.enter_async_context(harness)
        except PropertyError as error:
            if choices.props:
                raise UsageError(str(error)) from error
            raise
        except (CassetteError, ModelError) as error:
            raise UsageError(str(error)) from error
        finally:
            screen.stop_animation()
        # What is loaded by now stays: looking through it for garbage would hold the screen still for a tenth of a second.
        gc.freeze()
        yield harness


def progress_bar(screen: Screen) -> Progress | None:
    """Return what moves the bar; another thread calls it."""
    if not screen.is_live:
        return None
    loop = asyncio.get_running_loop()

    def move(done: int, total: int, activity: str) -> None:
        table = Table.grid(padding=(0, 1))
        table.add_row(
            Text(escape(activity), style=QUIET),
            ProgressBar(
                total=total or 1,
                completed=done,
                width=BAR_WIDTH,
                complete_style="cyan",
                pulse=not total,
            ),
            Text(f"{done:,} of {total:,}", style=QUIET),
        )
        loop.call_soon_threadsafe(screen.animate, table)

    return move


def chosen_properties(choices: Choices) -> dict[str, Setting]:
    """Return the properties that `--prop` sets, by name.

    Raises:
        PropertyError: a `--prop` sets nothing.
    """
    return dict(map(parse_setting, choices.props))


def chosen_cassette(choices: Choices) -> Cassette | None:
    """Return the file in which the replies of a provider's model are recorded, or from which they come.

    Raises:
        UsageError: it is to do both.
    """
    if choices.record is not None and choices.replay is not None:
        raise UsageError("--record makes a file and --replay reads one: choose one of them")
    if choices.record is not None:
        return Cassette(choices.record, mode="record")
    return None if choices.replay is None else Cassette(choices.replay)
