"""Wake-ups from the rows of a SQLite file: each new input of a user is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TypeVar

from loopline.store import sqlite, statements
from loopline.store.rows import key_of
from loopline.timeline import ConversationKey

T = TypeVar("T")
POLL_SECONDS = 0.05
"""How long it waits before it looks for new inputs again. A look that finds none takes some 20 µs."""


class InputWakeUps:
    """Wake-ups of all processes that use a file: prompts, answers, put back turns, and turns that were handed over.

    Nothing is stored: a worker reads the rows that were inserted since its last look.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def send(self, conversation: ConversationKey) -> None:
        """Do nothing: the rows are the wake-ups."""

    async def close(self) -> None:
        """Do nothing: `receive` closes what it opened."""

    async def receive(self) -> AsyncGenerator[ConversationKey | None, None]:
        """Yield the conversations with new inputs, until it is closed; None if inputs may have been missed.

        That is so after the newest rows were forgotten, because the ids of these rows are used again.

        Raises:
            StoreError: the file cannot be read.
        """
        pool = sqlite.read_pool(self._path, read_only=False)
        try:
            last = await self._read(pool, _last_id)
            while True:
                last, conversations = await self._read(pool, partial(_inputs_after, last=last))
                for conversation in conversations:
                    yield conversation
                await asyncio.sleep(POLL_SECONDS)
        finally:
            pool.close()

    async def _read(self, pool: sqlite.ConnectionPool, work: Callable[[sqlite.Connection], T]) -> T:
        try:
            return await asyncio.to_thread(pool.transact, work)
        except sqlite.DATABASE_ERRORS as error:
            raise sqlite.store_error(self._path, error) from error


def _last_id(connection: sqlite.Connection) -> int:
    """Return the id of the newest row of the table of blocks, 0 without rows."""
    return int(connection.execute(statements.SELECT_LAST_ID).fetchone()[0])


def _inputs_after(
    connection: sqlite.Connection, last: int
) -> tuple[int, Sequence[ConversationKey | None]]:
    """Return the id of the newest row, and the conversations with an input whose row has an id above `last`.

    If the newest row has an id below `last`, None is returned instead of conversations: inputs may have been missed.
    """
    newest = _last_id(connection)
    if newest < last:
        return newest, [None]
    if newest == last:
        return last, []
    rows = connection.execute(statements.SELECT_INPUTS_AFTER, {"last": last})
    return newest, [*starmap(key_of, rows)]
