"""An index of past turns whose process is killed: `python -m tests.crashes.killed_indexing FOLDER KILLS SEED`."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from random import Random

from loopline.memory import ConversationMemory
from loopline.memory.turn_file import MemoryFile, on_connect
from loopline.search import SharedEmbedder
from loopline.testing import FakeClock
from loopline.timeline import MemoryLog
from tests.crashes.killed_forgetting import trace
from tests.crashes.processes import say
from tests.support.past_turns import NOW, OWNERS, conversations
from tests.support.vectors_in_memory import WordEmbedder

OWNER = OWNERS[0]
CONVERSATIONS = 120
FORGOTTEN = ("talk1", "talk4")
_TABLES = (
    "SELECT tenant, project, user, name, uid, head FROM conversation",
    "SELECT name, turn, seq, start, input_seq, target, ts, ref, digest, owner, body, names "
    "FROM turn_text JOIN conversation ON conversation.id = turn_text.conversation "
    "JOIN words ON words.rowid = turn_text.id",
    "SELECT count(*) FROM words",
    "SELECT digest, embedder, data FROM vector",
)


class SmallBatches(WordEmbedder):
    """Embeds few texts at once, so that there are many places to be killed."""

    batch = 4


async def index_and_forget(file: Path) -> None:
    """Index an owner's conversations with their vectors, forget two of them, and follow again."""
    log = await _filled_log()
    memory = _open_memory(log, file)
    await memory.ready(user=OWNER.user, tenant=OWNER.tenant, project=OWNER.project)
    await _forget(log)
    await memory.follow(OWNER)
    await memory.close()


async def carry_on(file: Path) -> None:
    """Index what remains, as the next process does."""
    log = await _filled_log()
    await _forget(log)
    memory = _open_memory(log, file)
    await memory.ready(user=OWNER.user, tenant=OWNER.tenant, project=OWNER.project)
    await memory.close()


def _open_memory(log: MemoryLog, file: Path) -> ConversationMemory:
    embedder = SharedEmbedder(SmallBatches)
    return ConversationMemory(log, lambda: MemoryFile(file), FakeClock(NOW), embedder)


async def _filled_log() -> MemoryLog:
    log = MemoryLog(FakeClock(NOW))
    for key, blocks, _ in conversations(CONVERSATIONS):
        await log.restore(key, blocks)
    return log


async def _forget(log: MemoryLog) -> None:
    for name in FORGOTTEN:
        await log.forget(OWNER.key(name))


def contents(file: Path) -> list[list[tuple[object, ...]]]:
    """Every row of an index, its own numbers aside. The index of words agrees with its rows, or this fails."""
    with closing(sqlite3.connect(file)) as database:
        database.execute("INSERT INTO words(words) VALUES('integrity-check')")
        return [sorted(database.execute(query).fetchall()) for query in _TABLES]


def _run(work: Callable[[Path], Coroutine[None, None, None]], file: Path) -> None:
    asyncio.run(work(file))


def in_child(work: Callable[[], None]) -> int:
    """Do the work in another process; the signal that killed it, else 0."""
    child = get_context("fork").Process(target=work)
    child.start()
    child.join()
    code = child.exitcode or 0
    assert code <= 0
    return -code


def die_at(point: int, passed: Path) -> None:
    """Be killed before the n-th statement of the database; `passed` gets how many there were."""
    statements = count(1)

    def begin(statement: str) -> None:
        number = next(statements)
        if statement.startswith("COMMIT") or number % 10 == 0:
            passed.write_text(str(number))
        if number == point:
            os.kill(os.getpid(), signal.SIGKILL)

    on_connect.append(partial(trace, begin))


def index_in_child(file: Path, passed: Path, point: int = 0) -> int:
    """Index in another process, which is killed at that statement, if any; its signal."""

    def work() -> None:
        die_at(point, passed)
        asyncio.run(index_and_forget(file))

    return in_child(work)


def kill_at(folder: Path, points: Sequence[int]) -> None:
    """Kill a process at each of these statements, let another carry on, and compare the index with the one of no kill."""
    index_in_child(folder / "whole", folder / "passed")
    whole_contents = contents(folder / "whole")
    for point in points:
        file = folder / f"killed{point}"
        killed = index_in_child(file, folder / "passed", point) == signal.SIGKILL
        in_child(partial(_run, carry_on, file))
        say(point, "killed" if killed else "ended", contents(file) == whole_contents)


def main() -> None:
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    index_in_child(folder / "counted", folder / "passed")
    statements = int((folder / "passed").read_text())
    say(statements)
    kill_at(folder, sorted(Random(seed).sample(range(1, statements + 1), kills)))


if __name__ == "__main__":
    main()
