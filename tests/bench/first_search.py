"""The first search in memory after many turns, in a store in a file and in PostgreSQL.

`python -m tests.bench.first_search [--turns N] [--rounds N] [--postgres]`. For one user with 1, 30 and 300 conversations, in
a new process with the vectors that come with the package: the milliseconds of the first search when no turn is indexed, of the
next search, and of one after another turn; then those of the first and the next search in another process. Medians of the rounds.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from pathlib import Path
from random import Random
from statistics import median

from loopline import timeline as tl
from loopline.clock import SystemClock
from loopline.harness.read_only_store import open_log, parse_store_url
from loopline.harness.spaces import open_memory
from loopline.memory import ConversationMemory
from loopline.search import Embedder, SharedEmbedder
from tests.bench.program import read_options, say, say_json
from tests.support.past_turns import NOW, blocks_of
from tests.support.postgres_server import PostgresServer, durable_postgres

SHAPES = (1, 30, 300)
WORDS = [f"{first}{last}" for first in ["kalmo", "pitre", "sundra", "vobel"] for last in range(500)]
USER = "ann"
STEPS = ("nothing indexed", "next", "after a turn", "another process", "next")


def turns_of(random: Random, count: int) -> list[list[tl.Body]]:
    """Turns with a question of 12 words and an answer of 60."""
    return [
        [
            tl.UserPrompt(text=" ".join(random.choices(WORDS, k=12))),
            tl.Completion(text=" ".join(random.choices(WORDS, k=60))),
        ]
        for _ in range(count)
    ]


async def fill(log: tl.TimelineLog, conversations: int, turns: int) -> None:
    random = Random(7)
    for number in range(conversations):
        key = tl.ConversationKey(name=f"c{number}", user=USER)
        blocks = blocks_of(turns_of(random, turns // conversations), NOW - timedelta(days=200))
        await log.restore(key, blocks)


async def timed(memory: ConversationMemory) -> float:
    began = time.perf_counter()
    hits = await memory.search(f"what was {WORDS[3]} and {WORDS[700]}", user=USER)
    assert hits
    return 1_000 * (time.perf_counter() - began)


async def search(url: str, seen: int) -> list[float]:
    """Search twice, and after another turn if `seen` is the last seq of the first conversation; return the milliseconds."""
    place = parse_store_url(url)
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        log = await open_log(place, clock, collects=False)
        stack.push_async_callback(log.close)
        memory = open_memory(log, log, place.file, clock, SharedEmbedder(load_embedder))
        stack.push_async_callback(memory.close)
        milliseconds = [await timed(memory)]
        await memory.ready(user=USER)
        milliseconds.append(await timed(memory))
        if seen:
            entry = tl.Entry(body=tl.UserPrompt(text=f"and {WORDS[3]}?"), turn=tl.NEW_TURN)
            await log.append(tl.ConversationKey(name="c0", user=USER), [entry], seen=seen)
            milliseconds.append(await timed(memory))
    return milliseconds


def load_embedder() -> Embedder:
    """Load the embedder of static vectors, and NumPy for it, as the harness does."""
    from loopline.search.static_vectors import load_static_embedder

    return load_static_embedder()


async def fill_store(url: str, conversations: int, turns: int) -> None:
    log = await open_log(parse_store_url(url), SystemClock(), collects=False)
    await fill(log, conversations, turns)
    await log.close()


def measure(url: str, conversations: int, turns: int) -> list[float]:
    """Fill a new store, and search it in two new processes; return the milliseconds of each of `STEPS`."""
    asyncio.run(fill_store(url, conversations, turns))
    milliseconds: list[float] = []
    for seen in (2 * (turns // conversations), 0):
        command = [sys.executable, "-m", "tests.bench.first_search", "--search", url, str(seen)]
        milliseconds += json.loads(subprocess.check_output(command))
    return milliseconds


def report(store: str, conversations: int, rounds: Sequence[Sequence[float]]) -> None:
    figures = [f"{median(step):8.0f}" for step in zip(*rounds, strict=True)]
    say(f"{store:10}{conversations:14}{' '.join(figures)}")


def main() -> None:
    """Measure; with a store and the seq of its last block, search it in this process."""
    match sys.argv[1:]:
        case ["--search", url, seen]:
            say_json(asyncio.run(search(url, int(seen))))
        case _:
            measure_all(read_options(__doc__, turns=3_000, rounds=5, postgres=False))


def measure_all(arguments: Namespace) -> None:
    say(f"store     conversations  {', '.join(STEPS)} (ms)")
    with ExitStack() as stack:
        server: PostgresServer | None = None
        if arguments.postgres:
            server = stack.enter_context(durable_postgres())
        for conversations in SHAPES:
            rounds: dict[str, list[list[float]]] = {"file": []}
            for _ in range(arguments.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    url = f"sqlite:///{Path(folder) / 'talk.db'}"
                    rounds["file"].append(measure(url, conversations, arguments.turns))
                if server is not None:
                    rounds.setdefault("postgres", []).append(
                        measure(server.store_url(), conversations, arguments.turns)
                    )
            for store, measured in rounds.items():
                report(store, conversations, measured)


if __name__ == "__main__":
    main()
