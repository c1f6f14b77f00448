"""A thousand streams at once from one process, three times over: `python -m tests.bench.streams`.

The server is one of ours, in a process of its own.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path
from time import perf_counter

from loopline.models import TextDelta, Timeouts
from loopline.providers.http import HttpModel
from tests.bench.program import print_table, say
from tests.providers.local_model import PROMPT, model_at
from tests.support.peers import openai_replies as oai
from tests.support.peers.http_server import Peer
from tests.support.peers.openai_like import openai_like

AT_ONCE = 1_000
WAVES = 3
SERVE = "serve"
SAID = oai.Says("It is so, and this is why. " * 10, pieces=20)


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def serve() -> None:
    """Answer until whoever started this goes away."""
    async with openai_like(SAID) as peer:
        say(peer.url)
        await asyncio.to_thread(sys.stdin.read)


async def wave(model: HttpModel) -> list[float]:
    """So many requests at once; the seconds until each one's first piece."""

    async def one() -> float:
        start, first = perf_counter(), 0.0
        async for piece in model.stream(PROMPT):
            if isinstance(piece, TextDelta) and not first:
                first = perf_counter() - start
        return first

    return await asyncio.gather(*(one() for _ in range(AT_ONCE)))


async def measure() -> None:
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.streams", SERVE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdout is not None
    url = (await server.stdout.readline()).decode().strip()
    rows = list[tuple[str, ...]]()
    async with model_at(Peer(url=url), "chat", Timeouts(connect=60.0)) as model:
        for number in range(1, WAVES + 1):
            start = perf_counter()
            firsts = sorted(await wave(model))
            took = perf_counter() - start
            median = f"{firsts[AT_ONCE // 2]:.2f}"
            rows.append((f"{number}", f"{took:.1f}", median, f"{resident_mb():.0f}"))
    server.terminate()
    await server.wait()
    print_table(("wave", "seconds", "to the first piece, median s", "resident MB"), rows)


if __name__ == "__main__":
    asyncio.run(serve() if SERVE in sys.argv else measure())
