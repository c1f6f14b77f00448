"""Stories that processes live until they are killed, and live again to their end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from loopline.errors import ConflictError, LeaseLost, StoreError
from loopline.harness import Harness
from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.store.sqlite import on_connect
from loopline.testing import Call, ScriptedModel
from loopline.timeline import Block, ConversationKey, Entry, ToolStarted, encode
from tests.crashes.processes import (
    HERE,
    THERE,
    append_for_ever,
    die_at_every_point,
    notes,
    prompt,
    say,
    url,
)
from tests.support.playground import bundle

FORK = ConversationKey(name="fork")
LARGE = prompt("é" * 50_000)
SECRET = prompt("secret " * 10_000)


async def opened(store: Path) -> SqlLog:
    return await SqlLog.open(url(store), blobs=FileBlobs.for_store(store))


def store_of(folder: Path | str, point: int) -> Path:
    return Path(folder) / str(point) / "talk.db"


def copy_of(store: Path) -> Path:
    return store.with_name("talk-copy.db")


async def tell_everything(folder: str, point: int) -> None:
    """Open the store and do all that a log can; say what has been acknowledged."""
    store = store_of(folder, point)
    async with await opened(store) as log:
        await do_everything(log, store, point)


async def do_everything(log: SqlLog, store: Path, point: int) -> None:
    """Append small and large, fork, forget and back up; say what has been acknowledged."""
    await log.append(HERE, [prompt("one"), LARGE], seen=0, key="1")
    say(point, "kept")
    with suppress(ConflictError):
        await log.fork(HERE, FORK, 1)
    say(point, "forked")
    await log.append(FORK, [prompt("two")], seen=1, key="2")
    say(point, "added")
    if await log.forgotten(THERE) is None:
        await log.append(THERE, [SECRET, LARGE], seen=0, key="3")
    await log.forget(THERE)
    say(point, "forgotten")
    await log.collect()
    if not await asyncio.to_thread(copy_of(store).exists):
        await log.backup(copy_of(store), FileBlobs.for_store(copy_of(store)))
    say(point, "copied")


async def stored_blocks(log: SqlLog) -> dict[ConversationKey, list[Block]]:
    """Read every block of a store."""
    return {c.conversation: list(await log.read(c.conversation)) for c in await log.conversations()}


async def write_until_killed(store: str) -> None:
    """Append as a user and as a runner, small and large; say each time how long the WAL is."""
    path = Path(store)
    wal = Path(f"{store}-wal")
    async with await opened(path) as log, log.lease(HERE) as term:
        for number in range(24):
            large = [prompt(f"{number} " * 20_000)] if number % 6 == 5 else []
            user = [prompt(f"{number}"), prompt("+"), *large]
            runner = [notes(f"{number}"), notes("+"), *large]
            said = runner if number % 2 else user
            blocks = await log.append(HERE, said, seen=0, term=term if number % 2 else None)
            say(len(blocks), await asyncio.to_thread(_size, wal))
        say("done")
        await asyncio.Event().wait()


def _size(path: Path) -> int:
    return path.stat().st_size


async def say_old_orphans(store: str, times: int) -> None:
    """Append what is an old orphan each time, for as long as another process collects."""
    async with await opened(Path(store)) as log:
        for number in range(times):
            said = prompt(f"{number} " * 20_000)
            with suppress(StoreError):
                await log.append(HERE, [said], seen=0, term=99)  # refused: only its blob is kept
            await asyncio.to_thread(_make_old, Path(store))
            await log.append(HERE, [said], seen=0)
    say("done")


def _make_old(store: Path) -> None:
    for path in store.with_name(f"{store.name}-blobs").glob("??/*"):
        with suppress(FileNotFoundError):
            os.utime(path, (1, 1))


async def collect_for_ever(store: str) -> None:
    """Collect again and again, until killed."""
    async with await opened(Path(store)) as log:
        say("collecting")
        while True:
            await log.collect()


class StoppedAtAStart(SqlLog):
    """A log whose process is stopped as soon as the start of a call is committed."""

    async def append(
        self, conversation: ConversationKey, entries: Sequence[Entry], **options: Any
    ) -> Sequence[Block]:
        """Append, and be stopped."""
        blocks = await super().append(conversation, entries, **options)
        if any(isinstance(entry.body, ToolStarted) for entry in entries):
            say("stopped at", blocks[-1].seq)
            os.kill(os.getpid(), signal.SIGSTOP)
        return blocks


async def be_stopped_before_a_tool(store: str, ledger: str, seconds: float) -> None:
    """Say what a listener hears of a turn whose one call writes to the ledger, and how it ended."""
    call = Call("play.note", name="n", ledger=ledger)
    model = ScriptedModel([call, "Done."], strict=False)
    async with (
        await StoppedAtAStart.open(url(store), lease_seconds=seconds) as log,
        Harness.open(bundle, store=log, model=model) as harness,
    ):
        try:
            async for event in harness.conversation(HERE.name).stream("go"):
                say("heard", event.seq if isinstance(event, Block) else event.type)
        except LeaseLost:
            say("lost")
        else:
            say("done")


def stop_at(commit: int) -> None:
    """Be stopped within the n-th transaction, before it is committed."""
    passed = count(1)

    def beginning(statement: str) -> None:
        if statement == "COMMIT" and next(passed) == commit:
            say("stopping")
            os.kill(os.getpid(), signal.SIGSTOP)

    on_connect.append(lambda connection: connection.set_trace_callback(beginning))


def main() -> None:
    task, arguments = sys.argv[1], sys.argv[2:]
    encode(LARGE.body)  # once, and not in each child
    match task, arguments:
        case "everything", [folder]:
            die_at_every_point(folder, tell_everything)
        case "write", [store]:
            asyncio.run(write_until_killed(store))
        case "orphans", [store, times]:
            asyncio.run(say_old_orphans(store, int(times)))
        case "collect", [store]:
            asyncio.run(collect_for_ever(store))
        case "start", [store, ledger, seconds]:
            asyncio.run(be_stopped_before_a_tool(store, ledger, float(seconds)))
        case "stop", [store, commit]:
            stop_at(int(commit))
            asyncio.run(append_for_ever(store))
        case _:
            sys.exit(f"no task {task!r} with {arguments}")


if __name__ == "__main__":
    main()
