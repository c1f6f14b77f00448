"""Disks that fill up under a store: small file systems in memory, which get room again.

On every other disk a process appends, large and small, until there is no room; on the rest turns run. Where no
file system can be mounted, the size of files is limited instead.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from loopline import Harness, Store
from loopline.errors import StoreError
from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry as ScriptEntry
from loopline.timeline import Block, ConversationKey
from tests.bench.attacks.outcome import Outcome, Tally
from tests.crashes.processes import HERE, finish, prompt, start, url
from tests.support.ledgers import lines_of
from tests.support.playground import bundle

ROOMY_MB = 64
SIZES = (20, 2_000, 20_000, 200_000)
"""Characters of a text; a text above 32 KB is a blob, a file of its own."""
BEFORE = "12: nothing acknowledged lost"


@contextmanager
def small_disk(folder: Path, size_mb: int) -> Generator[None, None, None]:
    run_mount("-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True, capture_output=True)


def may_mount(folder: Path) -> bool:
    """Whether this process may mount, which it tries."""
    try:
        with small_disk(folder, 1):
            return True
    except (subprocess.CalledProcessError, FileNotFoundError):
        return False


def give_room(folder: Path) -> None:
    run_mount("-o", f"remount,size={ROOMY_MB}m", str(folder))


def run_mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


async def append_until_full(store: Path, random: Random) -> Tally:
    """Append until the disk is full, look at what is there, and go on once there is room."""
    tally, acknowledged = Tally(), list[Block]()
    async with await SqlLog.open(url(store), blobs=FileBlobs.for_store(store)) as log:
        full = False
        while not full:
            texts = ["x" * random.choice(SIZES) for _ in range(random.randint(1, 3))]
            count = len(acknowledged)
            try:
                acknowledged += await log.append(HERE, list(map(prompt, texts)), seen=count)
            except StoreError as error:
                full = True
                tally.done[f"told as {type(error).__name__}"] += 1
        blocks = list(await log.read(HERE))
        tally.expect(blocks == acknowledged, "what is held is not what was acknowledged")
        await asyncio.to_thread(give_room, store.parent)
        acknowledged += await log.append(HERE, [prompt("room")], seen=len(acknowledged))
    tally.add(await judge(store, HERE, acknowledged))
    return tally


async def talk_until_full(store: Path, ledger: Path, random: Random) -> Tally:
    """Run turns until the disk is full, and carry the cut one on once there is room."""
    tally, answered = Tally(), 0
    size = random.choice(SIZES)
    note = Call("play.note", name="n", ledger=str(ledger))
    turn: list[ScriptEntry] = [Say("", note, Call("play.look", text="x" * size)), "Done."]
    model = ScriptedModel(turn * 10_000, strict=False)
    async with Harness.open(bundle, store=url(store), model=model) as harness:
        talk = harness.conversation(HERE.name)
        full = False
        while not full:
            try:
                answered += (await talk.say("go " + "y" * size)).ok
            except StoreError as error:
                full = True
                tally.done[f"told as {type(error).__name__}"] += 1
        await asyncio.to_thread(give_room, store.parent)
        remaining_blocks = list(await talk.blocks())
    closing = ScriptedModel(["Done."] * 9, strict=False)
    async with Harness.open(bundle, store=url(store), model=closing) as harness:
        outcomes = await harness.carry_on()
        result = await harness.conversation(HERE.name).say("more")
    ends = [outcome.status for outcome in outcomes]
    tally.expect(set(ends) <= {"resumed"}, f"cut turn is {ends}")
    tally.expect(result.ok, f"the next turn ended as {result.exit_reason}")
    tally.done["turns answered"] += answered
    keys = [line.split()[0] for line in await asyncio.to_thread(lines_of, ledger)]
    tally.expect(len(keys) == len(set(keys)) >= answered, "effect twice or lost")
    tally.add(await judge(store, HERE, remaining_blocks))
    return tally


async def judge(store: Path, conversation: ConversationKey, acknowledged: list[Block]) -> Tally:
    """Open the store anew and hold it against what was acknowledged."""
    tally = Tally()
    async with Store.open(url(store), read_only=True) as opened:
        blocks = list(await opened.conversation(conversation.name).blocks())
        faults = sum(len(audit.faults) for audit in await opened.audit())
    tally.done["acknowledged blocks"] += len(acknowledged)
    tally.expect(blocks[: len(acknowledged)] == acknowledged, "acknowledged block lost")
    tally.expect(faults == 0, "fault found by the audit", faults)
    return tally


def limit_files(store: Path, random: Random) -> Tally:
    """Do the like where nothing can be mounted: no file may grow above a limit, then it may."""
    limit, size = random.randint(200, 2_000) * 1_000, random.choice(SIZES)
    full, after = finish(start("fill", store, limit, size))
    number = int(full.split(" ", 1)[0])
    tally = Tally()
    tally.done["limited files"] += 1
    tally.done["acknowledged blocks"] += number
    tally.expect(int(after) == number + 1, "acknowledged block lost")
    return tally


def fill_disks(disks: int, seed: int) -> Outcome:
    random, tally = Random(seed), Tally()
    for number in range(disks):
        with TemporaryDirectory() as name:
            folder = Path(name) / "disk"
            folder.mkdir()
            store = folder / "talk.db"
            if not may_mount(folder):
                tally.add(limit_files(store, random))
                continue
            with small_disk(folder, random.randint(1, 6)):
                tally.done["full disks"] += 1
                tally.add(_fill(store, Path(name) / "ledger", random, turns=number % 2 == 1))
    return tally.outcome("a disk is full", BEFORE)


def _fill(store: Path, ledger: Path, random: Random, *, turns: bool) -> Tally:
    filling = talk_until_full(store, ledger, random) if turns else append_until_full(store, random)
    return asyncio.run(filling)
