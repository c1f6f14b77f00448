"""A thousand listeners of turns that another process runs: the delay of the first delta, the CPU, and the delay of steers and stops.

`python -m tests.bench.live_events` starts PostgreSQL (with fsync), a worker and this process, which submits and listens. With
`--relay redis` it starts a Redis too, which carries the events.
The pieces of the model are the times at which it wrote them, so that the delays need no other channel.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing
from pathlib import Path
from statistics import quantiles
from typing import Any

from loopline import Bundle, Harness
from loopline.conversations import Conversation
from loopline.events import Delta
from loopline.harness import WorkerLimits, open_worker
from loopline.models import Capabilities, Prompt, Reply, TextDelta
from loopline.timeline import Block, Exit
from tests.bench.program import Row, read_options, say, say_json
from tests.bench.rounds import ROOT
from tests.support.postgres_server import durable_postgres
from tests.support.redis_server import RedisServer

PIECES = 20
PIECE_SECONDS = 0.05
LIMITS = {"turns": 200}
SAMPLES = 10


class Clockwork:
    """A model that writes the time, and dots for a second; told to write on, until it is cut off, of which it writes the time."""

    name = "clockwork"
    capabilities = Capabilities(window=1_000_000)

    def __init__(self) -> None:
        self._cut_off = 0.0

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        asked = str(prompt.messages[-1])
        if "cut off?" in asked:
            yield Reply(text=f"{self._cut_off}")
            return
        text = f"{time.time()} "
        yield TextDelta(text=text)
        endless = "write on" in asked
        try:
            count = 0
            while endless or count < PIECES:
                await asyncio.sleep(PIECE_SECONDS)
                yield TextDelta(text=".")
                text += "."
                count += 1
        finally:
            self._cut_off = time.time()
        yield Reply(text=text)


BUNDLE = Bundle(id="clock", instructions="You tell the time.")


async def run_worker(store: str, relay: str) -> None:
    """Run turns until the standard input ends, then print the seconds of CPU."""
    async with open_worker(
        [BUNDLE],
        store=store,
        relay=relay,
        model=Clockwork(),
        worker_limits=WorkerLimits(**LIMITS),
    ) as worker:
        running = asyncio.create_task(worker.run())
        say("running")
        await asyncio.to_thread(sys.stdin.read)
        await worker.drain(5)
        await running
        say(f"{time.process_time()}")


async def first_delta(talk: Conversation[Any], delays: list[float]) -> None:
    """Listen to one turn; add the milliseconds that its first delta took."""
    arrived = 0.0
    written = ""
    async with aclosing(talk.listen(after=0)) as events:
        async for event in events:
            match event:
                case Delta(type="delta", text=text):
                    arrived = arrived or time.time()
                    written += text
                case Block(body=Exit()):
                    break
                case _:
                    pass
    if arrived:
        delays.append((arrived - float(written.split()[0])) * 1_000)


async def listen(harness: Harness[Any], listeners: int, rate: float) -> list[Row]:
    """All listen from the beginning; `rate` turns begin in a second, one in each conversation."""
    delays = list[float]()
    talks = [harness.conversation(f"c{number}") for number in range(listeners)]
    listening = [asyncio.create_task(first_delta(talk, delays)) for talk in talks]
    await asyncio.sleep(5)
    cpu = time.process_time()
    begun = time.monotonic()
    sent = list[Any]()
    for number, talk in enumerate(talks):
        await asyncio.sleep(max(begun + number / rate - time.monotonic(), 0))
        sent.append(await talk.submit("go"))
    await asyncio.gather(*listening)
    seconds = time.monotonic() - begun
    own = time.process_time() - cpu
    points = quantiles(delays, n=100)
    return [
        Row(f"listeners, {rate:g} turns begun in a second", listeners, "listeners"),
        Row("turns of which a delta was heard", len(delays), "turns"),
        Row("the first delta, p50", points[49], "ms"),
        Row("the first delta, p99", points[98], "ms"),
        Row("CPU of the listening process", own / seconds * 100, "%"),
        Row("CPU of the listening process, for a turn", own / listeners * 1_000, "ms"),
    ]


async def idle(harness: Harness[Any], listeners: int) -> list[Row]:
    """The CPU of listeners to whom nothing happens."""
    talks = [harness.conversation(f"idle{number}") for number in range(listeners)]
    listening = [asyncio.create_task(first_delta(talk, [])) for talk in talks]
    await asyncio.sleep(10)
    cpu = time.process_time()
    await asyncio.sleep(10)
    share = (time.process_time() - cpu) * 10
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)
    return [Row("CPU of the listening process while nothing happens", share, "%")]


async def cut_off(harness: Harness[Any], kind: str) -> list[Row]:
    """The milliseconds from a call of `steer` or `stop` here to the moment at which the model there is cut off."""
    delays = list[float]()
    for number in range(SAMPLES):
        talk = harness.conversation(f"{kind}{number}")
        begun = asyncio.Event()

        def note(event: object, begun: asyncio.Event = begun) -> None:
            if isinstance(event, Delta):
                begun.set()

        with talk.subscribed(note):
            sent = await talk.submit("write on")
            await begun.wait()
            await asyncio.sleep(0.03 * (number % 7))
            told = time.time()
            if kind == "steer":
                await talk.steer("cut off?")
                answer = (await sent.result()).answer
            else:
                await talk.stop()
                answer = (await talk.say("cut off?")).answer
        delays.append((float(answer) - told) * 1_000)
    points = quantiles(delays, n=100)
    return [
        Row(f"a {kind} cuts off the model in another process, p50", points[49], "ms"),
        Row(f"a {kind}, the longest of {SAMPLES}", max(delays), "ms", "≤ 250"),
    ]


def processor_seconds(parent: int) -> float:
    """The seconds of CPU of the processes whose parent is `parent`, those of ended ones included."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent or entry.parent.name == str(parent):
            ticks += sum(
                map(int, fields[11:15] if entry.parent.name == str(parent) else fields[11:13])
            )
    return ticks / os.sysconf("SC_CLK_TCK")


async def measured(listeners: int, rate: float, *, uses_redis: bool) -> list[Row]:
    with ExitStack() as stack:
        server, redis = stack.enter_context(durable_postgres()), RedisServer()
        stack.callback(redis.remove)
        if uses_redis:
            redis.start()
        relay = redis.url if uses_redis else ""
        store = server.store_url()
        command = [sys.executable, "-m", "tests.bench.live_events", "--worker", store, relay]
        pipe = asyncio.subprocess.PIPE
        worker = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
        assert worker.stdout is not None
        await worker.stdout.readline()
        try:
            async with Harness.open(
                BUNDLE, store=store, relay=relay, model=Clockwork(), submits_only=True
            ) as harness:
                rows = await cut_off(harness, "steer") + await cut_off(harness, "stop")
                rows += await idle(harness, listeners)
                assert server.process is not None
                processes = {"PostgreSQL": server.process.pid, "the worker": worker.pid}
                if redis.process is not None:
                    processes["Redis"] = redis.process.pid
                before = {name: processor_seconds(pid) for name, pid in processes.items()}
                rows += await listen(harness, listeners, rate)
                for name, pid in processes.items():
                    seconds = processor_seconds(pid) - before[name]
                    rows.append(
                        Row(f"CPU of {name}, for a turn", seconds / listeners * 1_000, "ms")
                    )
        finally:
            await worker.communicate(b"")  # without bytes Python 3.11 leaves its input open
        return rows


def main() -> None:
    """Measure, with `--rate` turns begun in a second; with a store and a relay, be the worker."""
    match sys.argv[1:]:
        case ["--worker", store, relay]:
            asyncio.run(run_worker(store, relay))
        case _:
            options = read_options(__doc__, listeners=1_000, rate=10.0, relay=("notify", "redis"))
            uses_redis = options.relay == "redis"
            say_json(asyncio.run(measured(options.listeners, options.rate, uses_redis=uses_redis)))


if __name__ == "__main__":
    main()
