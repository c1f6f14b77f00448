"""Many listeners of one server: `python -m tests.bench.server_load`.

500 listeners on 100 conversations, with a model that answers at once: the delay of the first delta beside that of a bare
Starlette app in the same run, messages in a second with listeners and without, all listeners disconnected and connected again,
and the memory while fifty (`--asleep`) never read the answers of a hundred turns (`--unread`).
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from tests.bench.program import print_table, read_options
from tests.docs.pages import ROOT
from tests.support.waiting import until

HERE = "/conversations/default/default"
TIME = re.compile(rb"time=(\d+\.\d+)")
ID = re.compile(rb"^id: (\d+)\.(\d+)$", re.MULTILINE)
ENDED = re.compile(rb"^loopline_turns_total\{[^}]*\} (\d+)$", re.MULTILINE)
LONG = 200_000
"""The characters of a long answer."""
DELTA, EXIT = b"event: delta\n", b"event: react.exit\n"
patiently = partial(until, seconds=3_600.0, pause=0.005)


@dataclass(slots=True)
class LoadedServer:
    port: int
    pid: int

    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6


@asynccontextmanager
async def serving(*arguments: str) -> AsyncGenerator[LoadedServer]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.load_server", *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield LoadedServer(int(await process.stdout.readline()), process.pid)
    finally:
        process.kill()
        await process.wait()


@dataclass(slots=True)
class Listener:
    """A listener of a stream, by a plain socket: what it costs must not be what is measured."""

    port: int
    path: str
    events: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """The ids that came."""
    delays: list[float] = field(default_factory=list[float])
    """Milliseconds from the model's first piece to the listener."""
    exits: int = 0
    _writer: asyncio.StreamWriter | None = None
    _task: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Connect behind the last event that came, and read in the background."""
        last = (
            f"Last-Event-ID: {self.events[-1][0]}.{self.events[-1][1]}\r\n" if self.events else ""
        )
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**22)
        self._writer.write(f"GET {self.path} HTTP/1.1\r\nHost: localhost\r\n{last}\r\n".encode())
        await reader.readuntil(b"retry: 2000\n\n")
        self._task = asyncio.create_task(self._read(reader))

    async def disconnect(self) -> None:
        """Close the connection in the middle of whatever comes."""
        if self._task is not None and self._writer is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                frame = await reader.readuntil(b"\n\n")
                for match in ID.finditer(frame):
                    self.events.append((int(match[1]), int(match[2])))
                if EXIT in frame:
                    self.exits += 1
                if DELTA in frame and (told := TIME.search(frame)):
                    self.delays.append((perf_counter() - float(told[1])) * 1_000)


async def post(port: int, path: str, text: str = "tea") -> int:
    """Send a message in the background, and return the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"text": text, "background": True}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


@dataclass(slots=True)
class LoadReport:
    """What the listeners of one server got, in milliseconds and MB."""

    alone: Sequence[float] = ()
    """The delays of messages that were sent one after another."""
    burst: Sequence[float] = ()
    """The delays of messages that were sent to all conversations at once."""
    messages_per_second: float = 0.0
    turns_per_second: float = 0.0
    """Messages in a second to conversations that nobody listens to: what the turns themselves cost."""
    wrong: int = 0
    """Listeners that lost, repeated or misordered an event over a disconnection."""
    calm_mb: Sequence[float] = ()
    """What the same turns added before, while nobody was behind."""
    unread_mb: Sequence[float] = ()
    """What listeners that never read added, after each quarter of what was sent to each of them."""
    sent_mb: float = 0.0


def listeners_of(port: int, here: str, conversations: int, each: int) -> list[Listener]:
    return [
        Listener(port, f"{here}/c{number}/events")
        for number in range(conversations)
        for _ in range(each)
    ]


async def measure_delays(
    server: LoadedServer, here: str, listeners: Sequence[Listener], conversations: int, rounds: int
) -> tuple[list[float], list[float], float]:
    """Return the delays of single messages, those of bursts, and the messages in a second of the bursts."""

    async def settle(number: int) -> None:
        await patiently(lambda: all(len(listener.delays) >= number for listener in listeners))

    for listener in listeners:
        listener.delays = []
    each = len(listeners) // conversations
    for number in range(conversations):
        group = listeners[number * each : (number + 1) * each]
        await post(server.port, f"{here}/c{number}/messages")
        await _until_told(group, with_exits=bool(here))
    await settle(1)
    alone = [delay for listener in listeners for delay in listener.delays]
    began = perf_counter()
    for turn in range(rounds):
        await asyncio.gather(
            *(post(server.port, f"{here}/c{number}/messages") for number in range(conversations))
        )
        await settle(turn + 2)
    seconds = perf_counter() - began
    burst = [delay for listener in listeners for delay in listener.delays[1:]]
    return alone, burst, conversations * rounds / seconds


async def _until_told(group: Sequence[Listener], *, with_exits: bool) -> None:
    """Wait until listeners have a first delta, and the end of its turn."""
    await patiently(lambda: all(listener.delays for listener in group))
    if with_exits:
        await patiently(lambda: all(listener.exits for listener in group))


async def measure_turns(server: LoadedServer, conversations: int, rounds: int) -> float:
    """Return the messages in a second to conversations that nobody listens to."""
    before, began = await ended_turns(server.port), perf_counter()
    for _ in range(rounds):
        sending = [post(server.port, f"{HERE}/t{n}/messages") for n in range(conversations)]
        await asyncio.gather(*sending)
    for _ in count():
        if await ended_turns(server.port) >= before + rounds * conversations:
            break
        await asyncio.sleep(0.02)
    return rounds * conversations / (perf_counter() - began)


async def ended_turns(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    text = await reader.read()
    writer.close()
    return sum(int(number) for number in ENDED.findall(text))


async def measure_loopline(
    store: str, conversations: int, each: int, rounds: int, unread: int, asleep: int = 1
) -> LoadReport:
    """Measure our server: delays, turns, a disconnection of all, and listeners that never read."""
    report = LoadReport()
    async with serving("loopline", store) as server:
        listeners = listeners_of(server.port, HERE, conversations, each)
        await asyncio.gather(*(listener.connect() for listener in listeners))
        report.alone, report.burst, report.messages_per_second = await measure_delays(
            server, HERE, listeners, conversations, rounds
        )
        turns = rounds + 1
        sending = [post(server.port, f"{HERE}/c{n}/messages") for n in range(conversations)]
        sent = asyncio.gather(*sending)
        await asyncio.sleep(0.05)
        await asyncio.gather(*(listener.disconnect() for listener in listeners))
        await sent
        await asyncio.gather(*(listener.connect() for listener in listeners))
        await patiently(lambda: all(listener.exits > turns for listener in listeners))
        report.wrong = sum(map(_is_wrong, listeners))
        await asyncio.gather(*(listener.disconnect() for listener in listeners))
        report.turns_per_second = await measure_turns(server, conversations, rounds)
        report.calm_mb = await _measure_unread(server, "calm", unread, 0)
        report.unread_mb = await _measure_unread(server, "still", unread, asleep)
        report.sent_mb = unread * LONG * 2 / 1e6  # a delta, and the block of the answer
    return report


def _is_wrong(listener: Listener) -> bool:
    """Return whether an event is missing, doubled or out of order: every block has the k-th record 1."""
    seqs = [seq for seq, k in listener.events if k == 1]
    return seqs != list(range(1, len(seqs) + 1))


async def _measure_unread(
    server: LoadedServer, name: str, turns: int, asleep: int
) -> Sequence[float]:
    """Have listeners that never read while long answers are written; return the MB after each quarter of them."""
    for _ in range(3):
        await _say(server, name, LONG)
    idle_mb = server.resident_mb()
    writers = list[asyncio.StreamWriter]()
    for _ in range(asleep):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1_024)
        writer.write(f"GET {HERE}/{name}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        writers.append(writer)
    quarters = list[float]()
    for quarter in range(4):
        for _ in range(turns * quarter // 4, turns * (quarter + 1) // 4):
            await _say(server, name, LONG)
        quarters.append(server.resident_mb() - idle_mb)
    for writer in writers:
        writer.transport.abort()
    return quarters


async def _say(server: LoadedServer, name: str, size: int) -> None:
    listener = Listener(server.port, f"{HERE}/{name}/events")
    await listener.connect()
    await asyncio.sleep(0.2)
    before = listener.exits
    await post(server.port, f"{HERE}/{name}/messages", f"say {size}")
    await patiently(lambda: listener.exits > before)
    await listener.disconnect()


async def measure_bare(conversations: int, each: int, rounds: int) -> LoadReport:
    """Measure the bare app."""
    report = LoadReport()
    async with serving("starlette") as server:
        listeners = listeners_of(server.port, "", conversations, each)
        await asyncio.gather(*(listener.connect() for listener in listeners))
        report.alone, report.burst, report.messages_per_second = await measure_delays(
            server, "", listeners, conversations, rounds
        )
        await asyncio.gather(*(listener.disconnect() for listener in listeners))
    return report


def percentiles(delays: Sequence[float]) -> str:
    return f"{median(delays):.1f} / {quantiles(delays, n=100)[98]:.1f}"


def main() -> None:
    """Print a table; exit with 1 if an event was lost or repeated."""
    options = read_options(__doc__, conversations=100, each=5, rounds=5, unread=100, asleep=50)

    async def both() -> tuple[LoadReport, LoadReport]:
        bare = await measure_bare(options.conversations, options.each, options.rounds)
        with tempfile.TemporaryDirectory() as folder:
            store = f"sqlite:///{Path(folder) / 'talk.db'}"
            return bare, await measure_loopline(
                store,
                options.conversations,
                options.each,
                options.rounds,
                options.unread,
                options.asleep,
            )

    bare, ours = asyncio.run(both())
    first = "first delta, one message at a time, p50 / p99 ms"
    burst = "first delta, all conversations at once, p50 / p99 ms"
    messages = f"{bare.messages_per_second:,.0f}", f"{ours.messages_per_second:,.0f}"
    calm = "MB that the turns of the next row add without listeners, by quarters"
    unread = (
        f"MB that {options.asleep} unread streams of {ours.sent_mb:.0f} MB each add, by quarters"
    )
    rows = (
        (first, percentiles(bare.alone), percentiles(ours.alone)),
        (burst, percentiles(bare.burst), percentiles(ours.burst)),
        ("messages a second", *messages),
        ("messages a second that nobody listens to", "", f"{ours.turns_per_second:,.0f}"),
        ("listeners with an event lost or repeated", "", f"{ours.wrong}"),
        (calm, "", " ".join(f"{amount:.1f}" for amount in ours.calm_mb)),
        (unread, "", " ".join(f"{amount:.1f}" for amount in ours.unread_mb)),
    )
    print_table(("what", "Starlette alone", "Loopline"), rows)
    sys.exit(1 if ours.wrong else 0)


if __name__ == "__main__":
    main()
