"""Kills a server in the middle of turns, and starts it again: `python -m tests.bench.server_kills`.

Clients of `loopline.client` listen all the time. Each must get every block once and in order, and each turn must end once.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from loopline.client import RemoteConversation, connect
from loopline.timeline import Block
from tests.bench.program import print_table, read_options
from tests.docs.pages import ROOT
from tests.support.warm_programs import warm_program

LONGEST_CALL = 3.0
"""A turn waits in a call for so many seconds at most, of which a kill cuts off some."""


@dataclass(slots=True)
class KillReport:
    kills: int
    sent: int = 0
    cut: int = 0
    """Messages whose turn had not ended at the kill."""
    blocks: int = 0
    lost: list[str] = field(default_factory=list[str])
    """Conversations whose blocks were not those of the store, each once and in order."""
    unended: list[str] = field(default_factory=list[str])
    """Conversations without exactly one message and one end."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing was lost, repeated or left open."""
        return not self.lost and not self.unended


class KilledServer:
    """A server in a process of its own, which is killed and started again at the same port."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._process: asyncio.subprocess.Process | None = None
        self.port = 0

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *warm_program("-m", "tests.support.killed_server", self._store, f"{self.port}"),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.port = int(await self._process.stdout.readline())

    async def kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.communicate()


async def run(turns: int, kills: int, seed: int) -> KillReport:
    """Send so many messages before each kill, to conversations of their own, and compare what came of them."""
    drawn, began = random.Random(seed), perf_counter()
    report = KillReport(kills)
    with tempfile.TemporaryDirectory() as folder:
        server = KilledServer(f"sqlite:///{Path(folder) / 'talk.db'}")
        await server.start()
        try:
            async with connect(f"http://127.0.0.1:{server.port}", retry_seconds=120) as remote:
                for kill in range(kills):
                    talks = [remote.conversation(f"c{kill}-{n}") for n in range(turns)]
                    await _kill_in_the_middle(server, talks, drawn, report)
        finally:
            await server.kill()
    report.seconds = perf_counter() - began
    return report


async def _kill_in_the_middle(
    server: KilledServer,
    talks: Sequence[RemoteConversation],
    drawn: random.Random,
    report: KillReport,
) -> None:
    received: list[list[Block]] = [[] for _ in talks]
    waits = [round(drawn.uniform(0.1, LONGEST_CALL), 2) for _ in talks]
    sending = [
        asyncio.create_task(_converse(talk, wait, blocks))
        for talk, wait, blocks in zip(talks, waits, received, strict=True)
    ]
    await asyncio.sleep(drawn.uniform(0.2, LONGEST_CALL))
    await server.kill()
    report.sent += len(talks)
    report.cut += sum(not task.done() for task in sending)
    await server.start()
    await asyncio.gather(*sending)
    await _compare(talks, received, report)


async def _converse(talk: RemoteConversation, wait: float, blocks: list[Block]) -> None:
    async for event in talk.stream(f"call shop.wait name={wait}"):
        if isinstance(event, Block):
            blocks.append(event)


async def _compare(
    talks: Sequence[RemoteConversation], received: Sequence[list[Block]], report: KillReport
) -> None:
    for talk, blocks in zip(talks, received, strict=True):
        name = talk.conversation.name
        types = [block.type for block in blocks]
        report.blocks += len(blocks)
        if blocks != list(await talk.blocks()):
            report.lost.append(name)
        if (types.count("user.prompt"), types.count("react.exit")) != (1, 1):
            report.unended.append(name)


def main() -> None:
    """Print what came of it; exit with 1 if a block was lost or a turn did not end."""
    options = read_options(__doc__, turns=100, kills=3, seed=1)
    report = asyncio.run(run(options.turns, options.kills, options.seed))
    rows = (
        ("kills of the server", f"{report.kills}"),
        ("messages sent", f"{report.sent}"),
        ("of these not answered at the kill", f"{report.cut}"),
        ("blocks received", f"{report.blocks}"),
        ("conversations with a block lost, repeated or out of order", f"{len(report.lost)}"),
        ("turns that did not end once", f"{len(report.unended)}"),
        ("seconds", f"{report.seconds:.1f}"),
    )
    print_table(("what", "figure"), rows)
    sys.exit(0 if report.ok else f"{report.lost} {report.unended}")


if __name__ == "__main__":
    main()
