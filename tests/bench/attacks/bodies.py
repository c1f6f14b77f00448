"""Senders without a key, each with a large body that it does not finish, to a real `loopline serve` with keys.

`python -m tests.bench.attacks --only bodies` prints the resident memory of the server before, at its peak and after.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2

from loopline.server import Principal, add_key
from tests.bench.attacks.outcome import Outcome
from tests.doors.command import Loopline, wait_for

SENDERS = 100
BODY_BYTES = 33 * 1024 * 1024
PIECE = b" " * 65_536
SEND_SECONDS, REST_SECONDS = 10.0, 3.0
"""How long a sender sends and holds its connection, and how long the server rests before it is measured."""
MOST_GROWTH = 1.2
BEFORE = "1,183 MB with 30 senders"
BUNDLE = 'from loopline import Bundle\nbundle = Bundle(id="guide", instructions="You help.")\n'
PATH = "/conversations/acme/tea/c1/messages"
HEAD = (
    f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    f"Content-Length: {BODY_BYTES}\r\n\r\n"
).encode()
_RESET_PEAK = "5"
"""What `/proc/PID/clear_refs` takes to let the peak begin anew."""


@dataclass(frozen=True, slots=True)
class Server:
    process_id: int
    port: int

    def reset_peak(self) -> None:
        """Let the peak begin with the memory of now."""
        Path(f"/proc/{self.process_id}/clear_refs").write_text(_RESET_PEAK)

    @property
    def peak_mb(self) -> float:
        """The most memory that was resident since `reset_peak`."""
        return self._read_mb("VmHWM")

    @property
    def resident_mb(self) -> float:
        return self._read_mb("VmRSS")

    def _read_mb(self, name: str) -> float:
        status = Path(f"/proc/{self.process_id}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1_000


@contextmanager
def serving_with_keys(folder: Path) -> Generator[Server]:
    (folder / "guide").mkdir()
    (folder / "guide/__init__.py").write_text(BUNDLE)
    add_key(folder / "keys.json", Principal(tenant="acme", project="tea", user="ann"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    process = Loopline(folder).start("serve", "guide", "--keys", "keys.json", "--port", f"{port}")
    try:
        wait_for(lambda: _is_ready(port))
        yield Server(process.pid, port)
    finally:
        process.kill()
        process.communicate()


def _is_ready(port: int) -> bool:
    with suppress(httpx2.HTTPError):
        return httpx2.get(f"http://127.0.0.1:{port}/ready").is_success
    return False


async def send_unfinished(port: int) -> str:
    """Send a body without its last bytes, as far as the server reads it; return the status line, empty if none came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.ensure_future(reader.readline())
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(SEND_SECONDS):
            writer.write(HEAD)
            for _ in range(BODY_BYTES // len(PIECE) - 1):
                writer.write(PIECE)
                await writer.drain()
            await asyncio.wait([answer])
    writer.transport.abort()
    answer.cancel()
    [line] = await asyncio.gather(answer, return_exceptions=True)
    return line.decode() if isinstance(line, bytes) else ""


async def _send_all(port: int) -> int:
    answers = await asyncio.gather(*(send_unfinished(port) for _ in range(SENDERS)))
    return sum("401" in answer for answer in answers)


def fill_memory() -> Outcome:
    """Have all senders send at once, and return the row."""
    with TemporaryDirectory() as folder, serving_with_keys(Path(folder)) as server:
        httpx2.post(f"http://127.0.0.1:{server.port}{PATH}", json={"text": "tea"})
        time.sleep(REST_SECONDS)
        idle = server.resident_mb
        server.reset_peak()
        refused = asyncio.run(_send_all(server.port))
        peak = server.peak_mb
        time.sleep(REST_SECONDS)
        after = server.resident_mb
    size = BODY_BYTES // 1024**2
    return Outcome(
        f"{SENDERS} senders without a key, each with an unfinished body of {size} MB: memory of the server",
        BEFORE,
        f"{idle:.0f} MB idle, {peak:.0f} MB peak, {after:.0f} MB after; {refused} answered 401",
        holds=peak <= MOST_GROWTH * idle,
    )
