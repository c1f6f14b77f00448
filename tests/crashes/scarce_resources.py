"""What a process does without files or threads: `python -m tests.crashes.scarce_resources TASK STORE`."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from loopline.errors import StoreBusy, StoreError
from loopline.store import SqlLog
from loopline.timeline import TimelineLog
from tests.crashes.processes import HERE, notes, prompt, say, url

TASKS = "tests.crashes.scarce_resources"


@contextmanager
def no_free_descriptor() -> Generator[None]:
    """Let this process open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    taken = list[int]()
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def run_out_of_files(store: str) -> None:
    """Append and take the lease while no file can be opened, and later; say what is acknowledged."""
    async with await SqlLog.open(url(store)) as log:
        with no_free_descriptor():
            say((await log.append(HERE, [prompt("without files")], seen=0))[-1].seq)
            taking = asyncio.create_task(take_lease(log))
            await asyncio.sleep(0.2)
            say(taking.done())
            try:
                await log.check()
            except StoreBusy as error:
                say(error)
        await taking
        await log.check()
        say((await log.append(HERE, [prompt("later")], seen=2))[-1].seq)


def used_bytes() -> int:
    """The memory that is mapped into this process."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    return pages * resource.getpagesize()


async def run_out_of_threads(store: str) -> None:
    """Append while no thread can be begun, and later; say what comes of it."""
    async with await SqlLog.open(url(store)) as log:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes() + 2_000_000, hard))
        try:
            await log.append(HERE, [prompt("one")], seen=0)
        except StoreError as error:
            say(error)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        say((await log.append(HERE, [prompt("two")], seen=0))[-1].seq)


async def take_lease(log: TimelineLog) -> None:
    """Append as a runner; say what is acknowledged."""
    async with log.lease(HERE) as term:
        say((await log.append(HERE, [notes("mine")], seen=1, term=term))[-1].seq)


if __name__ == "__main__":
    asyncio.run(
        {"files": run_out_of_files, "threads": run_out_of_threads}[sys.argv[1]](sys.argv[2])
    )
