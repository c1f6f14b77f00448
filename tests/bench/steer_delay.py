"""How long the user waits until a steer cuts off what the model is writing."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from loopline.models import Capabilities, Prompt, Reply, TextDelta
from tests.bench.rounds import ROOT, Row, tell
from tests.bench.workload import Instant, opened

SAMPLES = 15


class Endless:
    """A model that writes until it is cut off, and then answers; it notes when that was."""

    name = "endless"
    capabilities = Capabilities(window=1_000_000)

    def __init__(self) -> None:
        self.writing = asyncio.Event()
        self.cut_off: list[float] = []

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Nothing but dots, until the user has steered."""
        if "[USER INTERRUPT]" in str(prompt.messages[-1]):
            yield Reply(text="Turned.")
            return
        try:
            while True:
                self.writing.set()
                yield TextDelta(text=".")
                await asyncio.sleep(0.01)
        finally:
            self.cut_off.append(time.time())


async def waits(store: str, *, from_another: bool) -> list[float]:
    """Milliseconds from each steer to the end of what was being written."""
    secondses = list[float]()
    for number in range(SAMPLES):
        model = Endless()
        async with opened(store, model) as harness:
            talk = harness.conversation(f"c{number}-{from_another}")
            turn = asyncio.ensure_future(talk.say("go"))
            await model.writing.wait()
            await asyncio.sleep(0.03 * (number % 7))  # at any moment of the other's looking around
            if from_another:
                steered = await _steered_elsewhere(store, talk.conversation.name)
            else:
                steered = time.time()
                await talk.steer("the other way")
            await turn
            secondses.append((model.cut_off[0] - steered) * 1_000)
    return secondses


async def _steered_elsewhere(store: str, name: str) -> float:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.steer_delay",
        store,
        name,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    return float(said)


async def steer(store: str, name: str) -> None:
    async with opened(store, Instant(0)) as harness:
        await harness.conversation(name).steer("the other way")
        sys.stdout.write(f"{time.time()}\n")
        sys.stdout.flush()


async def measured() -> list[Row]:
    """The middle and the longest wait, from the same process and from another."""
    rows = list[Row]()
    with TemporaryDirectory() as name:
        store = f"sqlite:///{Path(name)}/steering.db"
        for elsewhere, target in ((False, "≤ 50"), (True, "≤ 250")):
            where = "another process" if elsewhere else "the same process"
            times = await waits(store, from_another=elsewhere)
            rows.append(Row(f"a steer from {where} cuts off the model", median(times), "ms"))
            longest = f"a steer from {where}, the longest of {SAMPLES}"
            rows.append(Row(longest, max(times), "ms", target))
    return rows


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(steer(sys.argv[1], sys.argv[2]))
    else:
        tell(asyncio.run(measured()))
