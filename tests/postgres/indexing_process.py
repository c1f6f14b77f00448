"""A process that indexes past turns in PostgreSQL: `python -m tests.postgres.indexing_process URL POINT`.

It is killed before the statement with the number POINT, 0 for none, and prints the number of its statements.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial
from itertools import count

from loopline.memory import ConversationMemory
from loopline.memory.postgres_turn_index import PostgresTurnIndex
from loopline.search import SharedEmbedder
from loopline.store import postgres
from loopline.store.postgres_log import PostgresLog
from loopline.testing import FakeClock
from tests.support.past_turns import NOW, OWNERS
from tests.support.vectors_in_memory import WordEmbedder

OWNER = OWNERS[0]


def open_shared_memory(log: PostgresLog) -> ConversationMemory:
    """Return a memory of past turns that any process with the store shares, with vectors."""
    open_index = partial(PostgresTurnIndex, log.database)
    return ConversationMemory(log, open_index, FakeClock(NOW), SharedEmbedder(WordEmbedder))


async def index_turns(url: str) -> None:
    """Index the conversations of an owner with their vectors."""
    async with await PostgresLog.open(url) as log:
        memory = open_shared_memory(log)
        await memory.ready(user=OWNER.user, tenant=OWNER.tenant, project=OWNER.project)
        await memory.close()


def main(url: str, point: int) -> None:
    """Index the turns, or be killed before a statement."""
    statements = count(1)

    def count_statement() -> None:
        if next(statements) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    postgres.on_statement.append(count_statement)
    asyncio.run(index_turns(url))
    sys.stdout.write(f"{next(statements) - 1}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
