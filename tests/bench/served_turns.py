"""The CPU of a streamed turn over HTTP beside the same turn in process: `python -m tests.bench.served_turns`.

One process has a server and a harness of the same bundle and model, each over a store in a file of its own. A client in another process
sends the messages, so only the server's side is counted. Batches of both kinds alternate. `--profile FILE` writes a profile of the
served turns.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median

from loopline import Bundle, Harness, tool
from loopline.models import Capabilities, Prompt, Reply, TextDelta, ToolCall
from loopline.server import ServerSettings, app, make_server
from tests.docs.pages import ROOT
from tests.support.live_server import listening_socket

DELTAS = 40
ROUNDS = 2
BATCH = 20
PAIRS = 15


@tool(effect="read")
async def part(number: int) -> str:
    """Give a part."""
    del number
    return "r" * 1_000


class Talker:
    """Calls the tool in each of `ROUNDS` rounds, then answers in `DELTAS` pieces, each of which is sent by itself."""

    name = "talker"
    capabilities = Capabilities(window=1_000_000, tool_call=True)

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        results = 0
        for message in reversed(prompt.messages):
            if type(message).__name__ == "UserMessage":
                break
            results += type(message).__name__ == "ToolMessage"
        if results < ROUNDS:
            yield Reply(calls=(ToolCall(name="talk.part", arguments={"number": results}),))
            return
        for _ in range(DELTAS):
            yield TextDelta(text="a few words ")
            await asyncio.sleep(0.001)
        yield Reply(text="a few words " * DELTAS)


TALK = Bundle(id="talk", instructions="You help.", tools=[part])


async def send(port: int, name: str) -> None:
    """Send a message and read the events of its turn to their end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    body = b'{"text": "tell me"}'
    writer.write(
        f"POST /conversations/default/default/{name}/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Accept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    text = await reader.read()
    writer.close()
    assert text.count(b"event: delta") > DELTAS // 2, text
    assert b"event: react.exit" in text


async def run_client(port: int) -> None:
    """Send a batch of messages, one after another, for each line that comes in."""
    for line in iter(sys.stdin.readline, ""):
        for number in range(BATCH):
            await send(port, f"{line.strip()}-{number}")
        sys.stdout.write("done\n")
        sys.stdout.flush()


async def cpu_ms(batch: Callable[[], Awaitable[None]]) -> float:
    gc.collect()
    began = time.process_time()
    await batch()
    return (time.process_time() - began) / BATCH * 1_000


async def measure(folder: Path, pairs: int, profile: Path | None) -> None:
    """Alternate batches in process and over HTTP, and print what a turn costs."""
    listener = listening_socket()
    served = app(
        TALK,
        store=f"sqlite:///{folder}/served.db",
        model=Talker(),
        settings=ServerSettings(requests_per_minute=10_000_000),
    )
    server = make_server(served, host="127.0.0.1", port=0)
    serving = asyncio.create_task(server.serve([listener]))
    client = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.bench.served_turns",
            "--client",
            f"{listener.getsockname()[1]}",
        ),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert client.stdin is not None
    assert client.stdout is not None
    own, over_http = list[float](), list[float]()
    recorded = cProfile.Profile(time.thread_time) if profile is not None else None
    async with Harness.open(TALK, store=f"sqlite:///{folder}/own.db", model=Talker()) as harness:
        for pair in range(-1, pairs):

            async def in_process(pair: int = pair) -> None:
                for number in range(BATCH):
                    async for _ in harness.conversation(f"c{pair}-{number}").stream("tell me"):
                        pass

            async def by_client(pair: int = pair) -> None:
                assert client.stdin is not None
                assert client.stdout is not None
                client.stdin.write(f"c{pair}\n".encode())
                await client.stdout.readline()

            spent = await cpu_ms(in_process)
            with recorded if recorded is not None and pair >= 0 else nullcontext():
                spent_over_http = await cpu_ms(by_client)
            if pair >= 0:  # the first pair imports and compiles
                own.append(spent)
                over_http.append(spent_over_http)
    if recorded is not None and profile is not None:
        recorded.dump_stats(profile)
    client.stdin.close()
    await client.wait()
    server.should_exit = True
    await serving
    differences = [after - before for before, after in zip(own, over_http, strict=True)]
    for name, numbers in (
        ("in process", own),
        ("over HTTP", over_http),
        ("difference of a pair", differences),
    ):
        span = f"{min(numbers):.2f} to {max(numbers):.2f}"
        sys.stdout.write(f"{name}: {median(numbers):.2f} ms of CPU a turn ({span})\n")


def main() -> None:
    """Measure, or be the client of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        asyncio.run(run_client(options.client))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), options.pairs, options.profile))


if __name__ == "__main__":
    main()
