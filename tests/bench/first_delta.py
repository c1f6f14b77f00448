"""What we add to the first delta: `python -m tests.bench.first_delta`.

A server in a process of its own writes the time into the first event of its reply; the clock is one for all
processes of a machine. Beside what a listener hears stands a raw read of the same bytes in the same run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median, quantiles
from time import perf_counter

import httpx2

import loopline
from loopline import Harness
from loopline.events import Delta
from loopline.models import JsonObject, Model, Prompt, TextDelta, UserMessage, dumps
from tests.bench.program import print_table, say
from tests.support.workbench import workbench

TIMES = 200
SERVE = "serve"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PAUSE = 0.01
"""Seconds between the head and the first event, so that the head is read before."""


def event(text: str, finish: str | None = None) -> bytes:
    """A chunk of a completion."""
    choice: JsonObject = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    line = f"data: {dumps({'choices': [choice]})}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(line), line)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Tell everybody who asks what time it is."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(line for line in head.lower().split(b"\r\n") if b"content-length" in line)
            await reader.readexactly(int(size.split(b":")[1]))
            writer.write(HEAD)
            await asyncio.sleep(PAUSE)
            writer.write(event(f"{perf_counter():.7f} "))
            await asyncio.sleep(PAUSE)
            writer.write(event("o'clock.", "stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    except asyncio.IncompleteReadError:
        writer.close()


async def serve() -> None:
    """Answer until whoever started this goes away."""
    server = await asyncio.start_server(answer, "127.0.0.1")
    say(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    await asyncio.to_thread(sys.stdin.read)


def since(text: str) -> float:
    """The milliseconds since the time that it tells."""
    return (perf_counter() - float(text.split()[0])) * 1_000


async def raw(client: httpx2.AsyncClient, url: str) -> float:
    """Until the bytes of the first event are here."""
    async with client.stream("POST", f"{url}/chat/completions", content=b"{}") as response:
        pieces: AsyncIterator[bytes] = response.aiter_bytes()
        first = await anext(pieces)
        late = since(first.decode().split('"content":')[1].strip('" '))
        async for _ in pieces:
            pass
    return late


async def by_model(model: Model) -> float:
    """Until the model tells its first delta."""
    late = 0.0
    async for piece in model.stream(Prompt(system="s", messages=(UserMessage(text="Time?"),))):
        if isinstance(piece, TextDelta):
            late = late or since(piece.text)
    return late


async def by_turn(harness: Harness, number: int) -> float:
    """Until whoever follows a turn hears the first delta of its answer."""
    late = 0.0
    async for event in harness.conversation(f"c{number}").stream("Time?"):
        if isinstance(event, Delta) and event.channel == "answer" and event.text:
            late = late or since(event.text)
    return late


async def measure() -> None:
    """Ask each way in turn, and print a table."""
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.first_delta", SERVE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdout is not None
    url = (await server.stdout.readline()).decode().strip()
    model = loopline.model("openai:m", base_url=url)
    async with (
        httpx2.AsyncClient() as client,
        Harness.open(workbench(), store="memory:", model=model) as harness,
    ):
        ways: dict[str, Callable[[int], Awaitable[float]]] = {
            "a raw read": lambda _: raw(client, url),
            "a model's delta": lambda _: by_model(model),
            "a turn's delta": lambda number: by_turn(harness, number),
        }
        times = {name: list[float]() for name in ways}
        for number in range(TIMES):
            for name, way in ways.items():
                times[name].append(await way(number))
    server.terminate()
    await server.wait()
    floor = median(times["a raw read"])
    rows = list[tuple[str, ...]]()
    for name, taken in times.items():
        late = median(taken)
        p95 = quantiles(taken, n=20)[-1]
        rows.append((name, f"{late:.2f}", f"{p95:.2f}", f"{late - floor:.2f}", "2"))
    print_table(
        ("behind the server's first event", "median, ms", "p95, ms", "added, ms", "target"), rows
    )


if __name__ == "__main__":
    asyncio.run(serve() if SERVE in sys.argv else measure())
