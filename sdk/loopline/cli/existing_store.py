"""A store that a command changes: it must exist already."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from loopline.cli.options import Choices
from loopline.harness import Store


@asynccontextmanager
async def existing_store(choices: Choices) -> AsyncGenerator[Store]:
    """Open a store to change what is in it, and create none.

    Raises:
        StoreError: there is none.
    """
    async with Store.open(choices.store, read_only=True):
        pass  # opened to write, one that is missing would be created
    async with Store.open(choices.store) as store:
        yield store
