"""Replaces all servers and workers of a bundle by those of its next version, under load: `python -m tests.bench.rolling_upgrade`.

Clients talk over HTTP all the time. The next version's workers and server start, then the others are asked to end, one by
one. No client may see an error, and each message must have one turn and one effect.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from loopline.client import RemoteConversation, connect
from loopline.timeline import TurnHeader
from tests.bench.program import print_table, read_options
from tests.support.kill_parts import ProgramPart
from tests.support.postgres_server import durable_postgres
from tests.support.turn_faults import find_faults


@dataclass(slots=True)
class UpgradeReport:
    turns: Counter[str] = field(default_factory=Counter[str])
    """The number of turns by the version of the bundle that ran them."""
    problems: list[str] = field(default_factory=list[str])


async def run(conversations: int, upgrades: int, *, pause: float = 0.5) -> UpgradeReport:
    """Upgrade so many times while so many conversations are under way."""
    report = UpgradeReport()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(durable_postgres())
        store, ledger = server.store_url(), Path(folder) / "ledger"

        async def start(kind: str, version: int, port: int = 0) -> ProgramPart:
            part = ProgramPart(kind, store, ledger, "", version=str(version))
            part.port = port or part.port
            await asyncio.to_thread(part.start)
            stack.callback(part.kill)
            return part

        ended = asyncio.Event()
        door = await start("server", 1)
        workers = [await start("worker", 1) for _ in range(2)]
        async with connect(f"http://127.0.0.1:{door.port}", retry_seconds=60) as remote:
            talks = [remote.conversation(f"c{n}") for n in range(conversations)]
            async with asyncio.TaskGroup() as group:
                saying = [
                    group.create_task(_converse(talk, pause, ended, report)) for talk in talks
                ]
                await asyncio.sleep(4 * pause)
                for version in range(2, upgrades + 2):
                    new = [await start("worker", version) for _ in range(2)]
                    for worker in workers:
                        await asyncio.to_thread(worker.end)
                        await asyncio.sleep(2 * pause)
                    workers = new
                    await asyncio.to_thread(door.end)
                    door = await start("server", version, door.port)
                    await asyncio.sleep(4 * pause)
                ended.set()
            for talk, task in zip(talks, saying, strict=True):
                await _check(talk, task.result(), report)
        noted = Counter(ledger.read_text().splitlines())
        report.problems += [f"twice: {line}" for line, times in noted.items() if times > 1]
        if sum(noted.values()) != sum(len(task.result()) for task in saying):
            report.problems.append("not every message has its effect")
    return report


async def _converse(
    talk: RemoteConversation, pause: float, ended: asyncio.Event, report: UpgradeReport
) -> list[str]:
    texts = list[str]()
    for number in count():
        if ended.is_set():
            return texts
        texts.append(f"call work.note text=m{number}")
        async with asyncio.timeout(120):
            result = await talk.say(texts[-1], key=f"k{number}")
        if not result.ok or not result.answer.endswith(f"noted m{number}"):
            report.problems.append(
                f"{talk.conversation.name}: {result.exit_reason} {result.answer}"
            )
        await asyncio.sleep(pause)
    return texts


async def _check(talk: RemoteConversation, texts: list[str], report: UpgradeReport) -> None:
    """Check that each message has its turn, in order, and count the turns by version."""
    blocks = await talk.blocks()
    name = talk.conversation.name
    report.problems += [f"{name}: {fault}" for fault in find_faults(texts, blocks)]
    report.turns.update(b.body.version for b in blocks if isinstance(b.body, TurnHeader))


def main() -> None:
    """Print what came of it; exit with 1 if a client saw an error."""
    options = read_options(__doc__, conversations=100, upgrades=2, pause=5.0)
    report = asyncio.run(run(options.conversations, options.upgrades, pause=options.pause))
    turns = sorted(report.turns.items())
    rows = [(f"turns begun by version {version}", f"{number:,}") for version, number in turns]
    rows.append(("errors and faults", str(len(report.problems))))
    print_table(("what", "figure"), rows)
    sys.exit("\n".join(report.problems) or 0)


if __name__ == "__main__":
    main()
