"""Kills, stops and cuts off the parts of a deployment under load: `python -m tests.bench.kill_matrix --faults 20`.

Clients talk over HTTP to a server that stores messages in PostgreSQL (fsync on) and blobs in S3; two workers run the
turns, whose events are sent over Redis. Each part is killed and
started again, stopped and continued, and cut off the network and connected again, so many times, in an order that a seed draws.
Every block that a client has received must be in the store, once and in order, and no effect may happen twice. SIGINT leaves
out the faults that are left, and reports.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles

from loopline.client import RemoteConversation, connect
from loopline.timeline import Block, Exit
from tests.bench.program import print_table, read_options
from tests.support.kill_parts import BucketPart, DatabasePart, Part, ProgramPart
from tests.support.network import Network, network
from tests.support.postgres_server import durable_postgres
from tests.support.redis_server import RedisServer
from tests.support.s3_server import BUCKET
from tests.support.turn_faults import find_faults

PARTS = ("worker", "server", "postgres", "redis", "s3")
WAYS = ("killed", "stopped", "cut off")
LARGE = "\n" + "x" * 40_000
"""What makes every fourth message large enough for a blob."""
LIMIT_SECONDS = 180.0
"""How long a message may be without an answer."""


@dataclass(slots=True)
class MatrixReport:
    recoveries: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Seconds from each fault until all messages that were open then had their answer, by part and way."""
    messages: int = 0
    blocks: int = 0
    cut_off: int = 0
    """Turns that ended as cut off too often."""
    problems: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Deployment:
    """The parts, and which of the workers is killed next."""

    store: str
    ledger: Path
    blobs: str
    database: DatabasePart
    bucket: BucketPart
    redis: RedisServer
    server: ProgramPart
    workers: list[ProgramPart]
    network: Network
    stack: ExitStack
    replaced: list[ProgramPart] = field(default_factory=list[ProgramPart])

    def part(self, name: str, chance: random.Random) -> Part:
        match name:
            case "worker":
                return chance.choice(self.workers)
            case "server":
                return self.server
            case "postgres":
                return self.database
            case "redis":
                return self.redis
            case _:
                return self.bucket

    async def fail(
        self, name: str, way: str, chance: random.Random, longest: float
    ) -> Callable[[], object]:
        """Let the part fail, and end that; return what is to be done when all have recovered.

        A worker that is stopped or cut off is replaced, goes on when another has taken its turns, and is killed at the
        next fault. Another part goes on after at most `longest` seconds.
        """
        while self.replaced:
            self.replaced.pop().kill()
        part = self.part(name, chance)
        if way == "killed":
            await asyncio.to_thread(part.kill)
            await asyncio.to_thread(part.start)
            return bool
        if way == "stopped":
            part.pause()
            go_on: Callable[[], object] = part.resume
        else:
            self.network.cut(part.traffic)
            go_on = partial(self.network.join, part.traffic)
        if isinstance(part, ProgramPart) and part.kind == "worker":
            self.workers.remove(part)
            self.replaced.append(part)
            self.workers.append(await self.start("worker"))
            return go_on
        await asyncio.sleep(chance.uniform(0.5, longest))
        go_on()
        return bool

    async def start(self, kind: str) -> ProgramPart:
        part = ProgramPart(kind, self.store, self.ledger, self.blobs, relay=self.redis.url)
        part.group = self.network.new_group()
        await asyncio.to_thread(part.start)
        self.stack.callback(part.kill)
        return part


async def deploy(folder: Path, stack: ExitStack) -> Deployment:
    """Start all parts; they end with the stack."""
    database = stack.enter_context(durable_postgres())
    objects = folder / "objects"
    objects.mkdir()
    bucket = BucketPart(objects)
    bucket.start()
    stack.callback(bucket.kill)
    blobs = f"s3://{BUCKET}/talk?endpoint=http://127.0.0.1:{bucket.port}"
    redis = RedisServer()
    redis.start()
    stack.callback(redis.remove)
    store, ledger = database.store_url(), folder / "ledger"
    net = stack.enter_context(network())
    group = net.new_group()
    server = ProgramPart("server", store, ledger, blobs, relay=redis.url, group=group)
    parts = (DatabasePart(database), bucket, redis, server)
    deployment = Deployment(store, ledger, blobs, *parts, [], net, stack)
    await asyncio.to_thread(server.start)
    stack.callback(server.kill)
    deployment.workers += [await deployment.start("worker") for _ in range(2)]
    return deployment


@dataclass(slots=True, eq=False)
class Talker:
    """A client that sends one message after the other to a conversation; `sent_at` is None between messages."""

    talk: RemoteConversation
    texts: list[str] = field(default_factory=list[str])
    received: list[Block] = field(default_factory=list[Block])
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, pause: float, chance: random.Random, ended: asyncio.Event) -> None:
        """Send messages until `ended`, with pauses of `pause` seconds on average."""
        self.answered.set()
        for number in count():
            await asyncio.sleep(chance.uniform(0, 2 * pause))
            if ended.is_set():
                return
            text = f"call work.note text=m{number}{LARGE if number % 4 == 3 else ''}"
            self.texts.append(text)
            self.answered.clear()
            async with asyncio.timeout(LIMIT_SECONDS):
                async for event in self.talk.stream(text, key=f"k{number}"):
                    if isinstance(event, Block):
                        self.received.append(event)
            self.answered.set()


async def run(
    conversations: int,
    faults: int,
    seed: int,
    *,
    parts: Sequence[str] = PARTS,
    pause: float = 5.0,
    longest: float = 4.0,
) -> MatrixReport:
    """Let each part fail `faults` times in each way while so many conversations are under way.

    A part other than a worker is stopped or cut off for at most `longest` seconds.
    """
    chance = random.Random(seed)
    report = MatrixReport()
    plan = [(part, way) for part in parts for way in WAYS] * faults
    chance.shuffle(plan)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        deployment = await deploy(Path(folder), stack)
        url = f"http://127.0.0.1:{deployment.server.port}"
        async with connect(url, retry_seconds=LIMIT_SECONDS) as remote:
            talkers = [Talker(remote.conversation(f"c{n}")) for n in range(conversations)]
            ended = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for talker in talkers:
                    group.create_task(talker.run(pause, chance, ended))
                await asyncio.sleep(2 * pause)
                asyncio.get_running_loop().add_signal_handler(signal.SIGINT, plan.clear)
                while plan:
                    part, way = plan.pop()
                    await _fail(deployment, part, way, talkers, report, chance, longest)
                ended.set()
            for talker in talkers:
                await _check(talker, report)
        noted = Counter(deployment.ledger.read_text().splitlines())
        report.problems += [f"twice: {line}" for line, times in noted.items() if times > 1]
    return report


async def _fail(
    deployment: Deployment,
    part: str,
    way: str,
    talkers: Sequence[Talker],
    report: MatrixReport,
    chance: random.Random,
    longest: float,
) -> None:
    """Measure how long the open messages take without a fault, then with one."""
    for name in ("no fault", f"{part} {way}"):
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        open_now = [talker for talker in talkers if not talker.answered.is_set()]
        start = time.monotonic()
        waiting = asyncio.create_task(_wait_for_answers(open_now))
        finish: Callable[[], object] = bool
        if name != "no fault":
            finish = await deployment.fail(part, way, chance, longest)
        seconds = await waiting - start
        report.recoveries.setdefault(name, []).append(seconds)
        finish()
        sys.stderr.write(f"{name}: {len(open_now)} open, {seconds:.1f} s\n")


async def _wait_for_answers(talkers: Sequence[Talker]) -> float:
    """Wait until none of the messages that are open now is, and return the time."""
    await asyncio.gather(*(talker.answered.wait() for talker in talkers))
    return time.monotonic()


async def _check(talker: Talker, report: MatrixReport) -> None:
    """Compare what a client has received with the store, and check the order of the turns."""
    name = talker.talk.conversation.name
    blocks = list(await talker.talk.blocks())
    stored = {block.seq: block for block in blocks}
    ends = [block.body for block in blocks if isinstance(block.body, Exit)]
    cut_off = [end for end in ends if end.reason == "interrupted"]
    report.messages += len(talker.texts)
    report.blocks += len(talker.received)
    report.cut_off += len(cut_off)
    lost = [block.seq for block in talker.received if stored.get(block.seq) != block]
    received = [block.seq for block in talker.received]
    faults = find_faults(talker.texts, blocks, untaken=len(cut_off), unended=len(talker.texts))
    faults += ["a received block is not stored"] if lost else []
    if received != sorted(set(received)):
        faults.append("blocks were received twice or out of order")
    report.problems += [f"{name}: {fault}" for fault in faults]


def main() -> None:
    """Print what came of it; exit with 1 if a block was lost, repeated or out of order, or an effect happened twice."""
    options = read_options(
        __doc__,
        conversations=100,
        faults=20,
        seed=1,
        pause=5.0,
        longest=4.0,
        parts=",".join(PARTS),
    )
    report = asyncio.run(
        run(
            options.conversations,
            options.faults,
            options.seed,
            parts=options.parts.split(","),
            pause=options.pause,
            longest=options.longest,
        )
    )
    rows = list[tuple[str, ...]]()
    for name, seconds in sorted(report.recoveries.items()):
        high = quantiles(seconds, n=100, method="inclusive")[98] if len(seconds) > 1 else seconds[0]
        figures = (median(seconds), high, max(seconds))
        rows.append((name, str(len(seconds)), *(f"{figure:.1f}" for figure in figures)))
    print_table(("what", "times", "p50 s", "p99 s", "longest s"), rows)
    sys.stdout.write(
        f"{report.messages:,} messages, {report.blocks:,} blocks received, {report.cut_off} turns cut off too often, "
        f"{len(report.problems)} problems\n"
    )
    sys.exit("\n".join(report.problems) or 0)


if __name__ == "__main__":
    main()
