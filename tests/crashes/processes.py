"""What other processes do to a store: `python -m tests.crashes.processes TASK ARGUMENTS`."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

from loopline.errors import LeaseLost, StoreBusy, StoreError, StoreFull
from loopline.store import SqlLog, postgres, sqlite
from loopline.store.blobs import FileBlobs
from loopline.store.leases import LEASE_SECONDS
from loopline.store.postgres_log import PostgresLog
from loopline.timeline import (
    NEW_TURN,
    ConversationKey,
    Entry,
    Notes,
    TimelineLog,
    UserPrompt,
    encode,
)

ROOT = Path(__file__).resolve().parents[2]
HERE = ConversationKey(name="here")
THERE = ConversationKey(name="there")
PRODUCERS = "abc"


def url(path: Path | str) -> str:
    return f"sqlite:///{path}"


def store_in(folder: Path | str, name: object) -> str:
    """A store of that name in a folder, or beside a store in PostgreSQL."""
    return f"{folder}_{name}" if is_postgres(folder) else f"{folder}/{name}.db"


def is_postgres(store: Path | str) -> bool:
    return str(store).startswith("postgresql://")


async def open_log(
    store: Path | str, *, lease_seconds: float = LEASE_SECONDS
) -> SqlLog | PostgresLog:
    """Open the log in a file, or at a URL of PostgreSQL."""
    if is_postgres(store):
        return await PostgresLog.open(str(store), lease_seconds=lease_seconds)
    return await SqlLog.open(url(store), lease_seconds=lease_seconds)


def start(
    task: str, *arguments: object, tasks: str = "tests.crashes.processes"
) -> subprocess.Popen[str]:
    """Another process at its task, in the repository, its output lines to be read."""
    return subprocess.Popen(
        [sys.executable, "-m", tasks, task, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    """The lines it still says, once it has ended well."""
    said, complained = process.communicate()
    assert (process.returncode, complained) == (0, ""), complained
    return said.splitlines()


def kill(process: subprocess.Popen[str]) -> list[str]:
    """The lines it still said, once it has been killed."""
    process.kill()
    with process:
        # `communicate` would pass over the lines that came with the one read last.
        return process.stdout.read().splitlines() if process.stdout else []


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def prompt(text: str) -> Entry:
    return Entry(body=UserPrompt(text=text), turn=NEW_TURN)


def notes(text: str) -> Entry:
    return Entry(body=Notes(text=text), turn=1)


async def append_for_ever(store: str) -> None:
    """Append two blocks at a time; say how many are acknowledged."""
    async with await open_log(store) as log:
        for number in count():
            blocks = await log.append(HERE, [prompt(f"{number}"), prompt("+")], seen=2 * number)
            say(blocks[-1].seq)


async def produce(store: str, process: int, appends: int) -> None:
    """Append to two conversations from three producers at once."""
    async with await open_log(store) as log:

        async def one(conversation: ConversationKey, producer: str) -> None:
            count = 0
            for number in range(appends):
                text = f"{process}{producer} {number}"
                while True:
                    with suppress(
                        StoreBusy
                    ):  # nothing was stored: on a busy machine it is tried again
                        met = await log.append(conversation, [prompt(text)], seen=count)
                        break
                assert [block.seq for block in met] == list(range(count + 1, count + len(met) + 1))
                count = met[-1].seq

        await asyncio.gather(*(one(place, who) for place in (HERE, THERE) for who in PRODUCERS))


async def begin_stores(folder: str, stores: int, at_once: Barrier) -> None:
    """Open one new store after another at the same moment as others, and append to it."""
    for number in range(stores):
        at_once.wait()
        async with await open_log(store_in(folder, number)) as log:
            await log.append(HERE, [prompt("hello")], seen=0)


async def hold_lease(store: str) -> None:
    """Take the lease, and never give it back."""
    async with await open_log(store) as log, log.lease(HERE) as term:
        say(term)
        await asyncio.Event().wait()


def block(seconds: float) -> None:
    """Keep this thread, and its event loop, from doing anything else."""
    time.sleep(seconds)


async def hold_until_told(store: str, seconds: float) -> None:
    """Take the lease and say the term; told to, append as its owner and say what came of it.

    Told to `block`, it blocks its event loop for longer than the lease lasts.
    """
    async with (
        await open_log(store, lease_seconds=seconds) as log,
        log.lease(HERE) as term,
    ):
        await log.append(HERE, [prompt("one"), notes("mine")], seen=0, term=term)
        say(term)
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line.strip() == "block":
                block(2.5 * seconds)
                say("went on")
                continue
            try:
                say(len(await log.append(HERE, [notes("late")], seen=2, term=term)))
            except LeaseLost as error:
                say("LeaseLost", error)


async def fill(store: str, limit_bytes: int, size: int) -> None:
    """Append until no file may grow any more, then go on when it may."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with await SqlLog.open(url(store), blobs=FileBlobs.for_store(Path(store))) as log:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, most))
        count = 0
        try:
            while True:
                count = (await log.append(HERE, [prompt(f"{count}" + "x" * size)], seen=count))[
                    -1
                ].seq
        except StoreFull as error:
            say(count, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        say((await log.append(HERE, [prompt("x" * size)], seen=count))[-1].seq)


async def forget(store: str) -> None:
    """Forget the conversation."""
    async with await SqlLog.open(url(store), blobs=FileBlobs.for_store(Path(store))) as log:
        await log.forget(HERE)


def fork_with_a_log(store: str) -> None:
    """Use in a child what its parent opened, then in the parent."""
    with asyncio.Runner() as runner:
        log = runner.run(SqlLog.open(url(store)))
        runner.run(log.append(HERE, [prompt("parent")], seen=0))
        child = os.fork()
        if not child:
            say_what_is_refused(log)
            os._exit(0)
        os.waitpid(child, 0)
        say(len(runner.run(log.append(HERE, [prompt("parent")], seen=0))))
        runner.run(log.close())


def say_what_is_refused(log: TimelineLog) -> None:
    async def use() -> None:
        try:
            await log.append(HERE, [prompt("child")], seen=0)
        except StoreError as error:
            say("append:", error)
        try:
            await log.read(HERE)
        except StoreError as error:
            say("read:", error)
        await log.close()

    asyncio.run(use())


async def tell_a_story(folder: str, point: int) -> None:
    """Open a store, append as a user and as a runner, and say what is acknowledged."""
    async with await open_log(store_in(folder, point)) as log:
        await append_a_story(log, point)


async def append_a_story(log: TimelineLog, point: int) -> None:
    """Append as a user, then as a runner; say what is acknowledged."""
    await log.append(HERE, [prompt("one")], seen=0, key="1")
    say(point, 1)
    async with log.lease(HERE) as term:
        whole_notes = [notes("two"), notes("three"), notes("four")]
        await log.append(HERE, whole_notes, seen=1, term=term, key="2")
    say(point, 4)


def die_at_every_point(
    folder: str, live: Callable[[str, int], Coroutine[None, None, None]], *, commits: bool = False
) -> int:
    """Live again and again, killed one point later each time; how many points there are.

    With `commits` the points are commits and touched files alone.
    """
    for point in count(1):
        child = os.fork()
        if not child:
            die_at(point, commits=commits)
            asyncio.run(live(folder, point))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0
            return point - 1
    raise AssertionError


TOUCHING = {"open", "os.rename", "os.remove", "os.mkdir", "os.utime", "os.link", "fcntl.flock"}


def die_at(point: int, *, commits: bool = False) -> None:
    """Be killed before the n-th statement, a commit among them, or only a commit, or before a file is touched."""
    passed = count(1)

    def passing() -> None:
        if next(passed) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def beginning(statement: str) -> None:
        # A statement after "-- " is one of a trigger.
        if not statement.startswith("-- ") and (not commits or statement == "COMMIT"):
            passing()

    def touching(what: str, arguments: tuple[object, ...]) -> None:
        if what in TOUCHING and any("/talk" in str(argument) for argument in arguments[:1]):
            passing()

    sqlite.on_connect.append(lambda connection: connection.set_trace_callback(beginning))
    postgres.on_statement.append(passing)
    sys.addaudithook(touching)


def together(processes: str, work: Callable[[int, Barrier], Coroutine[None, None, None]]) -> None:
    """Do the work in so many processes at once, each of which is given its number."""
    fork = get_context("fork")
    barrier = fork.Barrier(int(processes))

    def run(number: int) -> None:
        asyncio.run(work(number, barrier))

    children = [fork.Process(target=run, args=(number,)) for number in range(int(processes))]
    for child in children:
        child.start()
    for child in children:
        child.join()
    sys.exit(max(abs(child.exitcode or 0) for child in children))


def main() -> None:
    task, arguments = sys.argv[1], sys.argv[2:]
    encode(UserPrompt(text=""))  # once, and not in each child
    match task, arguments:
        case "append", [store]:
            asyncio.run(append_for_ever(store))
        case "produce", [store, processes, appends]:
            together(processes, lambda number, _: produce(store, number, int(appends)))
        case "begin", [folder, processes, stores]:
            together(processes, lambda _, barrier: begin_stores(folder, int(stores), barrier))
        case "hold", [store]:
            asyncio.run(hold_lease(store))
        case "own", [store, seconds]:
            asyncio.run(hold_until_told(store, float(seconds)))
        case "fill", [store, limit_bytes, size]:
            asyncio.run(fill(store, int(limit_bytes), int(size)))
        case "forget", [store]:
            asyncio.run(forget(store))
        case "fork", [store]:
            fork_with_a_log(store)
        case "die", [folder]:
            die_at_every_point(folder, tell_a_story)
        case _:
            sys.exit(f"no task {task!r} with {arguments}")


if __name__ == "__main__":
    main()
