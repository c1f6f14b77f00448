"""Runners killed with SIGKILL at a random moment of a turn, which another process carries on to its end.

The turn has four parallel calls, a 100 KB result, a file, an approval, a question, a followup and a summary. Each is
a conversation of a store that it shares with others, with blobs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from loopline import Store
from loopline.timeline import Block, ConversationKey, Entry, ToolStarted
from tests.bench.attacks.outcome import Outcome, Tally
from tests.crashes.processes import say
from tests.support import crashing_turns
from tests.support.crashing_turns import CrashingTurn, CrashPoint, KillingLog
from tests.support.forked_processes import forked
from tests.support.killed_turns import LONG, SUMMARY, check, check_long, run, stored
from tests.support.memory_folders import quick_folder

A_STORE = 25
"""So many turns share a store."""
SECONDS = 0.02
"""A kill comes up to so long behind an append; there are a few of them in that time."""
BEFORE = "250: nothing lost, no effect twice"


class SpeakingLog(KillingLog):
    """A log that writes to stdout the last place of what was acknowledged."""

    async def append(
        self, conversation: ConversationKey, entries: Sequence[Entry], **options: Any
    ) -> Sequence[Block]:
        blocks = await super().append(conversation, entries, **options)
        say(blocks[-1].seq)
        return blocks


class Runner:
    """A process that lives a turn, and what it writes to stdout."""

    def __init__(self, crashing_turn: CrashingTurn) -> None:
        reader, writer = forked.Pipe(duplex=False)
        self._process = forked.Process(target=live, args=(crashing_turn, writer))
        self._process.start()
        writer.close()
        self._lines = os.fdopen(os.dup(reader.fileno()), encoding="ascii")
        reader.close()
        self._lines.readline()  # the turn begins

    def finish(self) -> int:
        """Wait for the end of the turn; how often it wrote."""
        with self._lines as lines:
            count = len(list(lines))
        self._process.join()
        return count

    def kill(self, lines: int, seconds: float) -> tuple[int, bool]:
        """Kill it so long after it wrote so many lines; the last acknowledged place, and whether it lived until then."""
        with self._lines as said:
            before = list(islice(said, lines))
            self._process.join(seconds)
            self._process.kill()
            self._process.join()
            acknowledged = [int(line) for line in (*before, *said) if line.endswith("\n")]
        return (acknowledged or [0])[-1], self._process.exitcode == -signal.SIGKILL


def live(crashing_turn: CrashingTurn, output: Connection) -> None:
    """Live the turn; stdout is the pipe."""
    os.dup2(output.fileno(), sys.stdout.fileno())
    say("begun")
    asyncio.run(crashing_turns.live(crashing_turn, CrashPoint(), SpeakingLog))


def judge(crashing_turn: CrashingTurn, acknowledged: int) -> Tally:
    """Read what the kill left, have another process do the rest, and hold both against what was acknowledged."""
    tally = Tally()
    left, read = asyncio.run(stored(crashing_turn))
    tally.done["acknowledged blocks"] += acknowledged
    lost = max(0, acknowledged - len(left))
    tally.expect(lost == 0, "acknowledged block lost", lost)
    ended = run(replace(crashing_turn, n=0))[:2]
    tally.expect(ended == (0, "complete"), f"turn not carried on: {ended}")
    blocks, read_again = asyncio.run(stored(crashing_turn))
    tally.expect(blocks[: len(left)] == left, "block changed")
    tally.expect({ref: read_again.get(ref) for ref in read} == read, "ref reads otherwise")
    faults = asyncio.run(
        count_faults(crashing_turn.path, ConversationKey(name=crashing_turn.conversation))
    )
    tally.expect(faults == 0, "fault found by the audit", faults)
    started = [block.body.call_id for block in blocks if isinstance(block.body, ToolStarted)]
    tally.done["calls started"] += len(started)
    tally.expect(len(started) == len(set(started)), "call started twice")
    try:
        check(blocks, Path(crashing_turn.folder), LONG)
        check_long(blocks, SUMMARY)
    except AssertionError as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        tally.broken[f"law broken: {at.line}"] += 1
    return tally


async def count_faults(store: Path, only: ConversationKey | None = None) -> int:
    """Audit the store, or one conversation of it."""
    async with Store.open(f"sqlite:///{store}", read_only=True) as opened:
        return sum(len(audit.faults) for audit in await opened.audit(only=only))


def _fates(folder: Path) -> Iterator[CrashingTurn]:
    number = 0
    while True:
        number += 1
        store = folder / f"{(number - 1) // A_STORE}.db"
        own = folder / str(number)
        own.mkdir()
        yield CrashingTurn(
            str(own), length="long", summary=SUMMARY, store=str(store), conversation=f"c{number}"
        )


def kill_runners(kills: int, seed: int) -> Outcome:
    """Kill so many runners, each at a moment drawn between its start and the end of its turn.

    The moment is a number of appends and a time behind the last of them, so that a busy machine draws as a quiet one.
    """
    drawn, tally = Random(seed), Tally()
    with quick_folder() as folder:
        fates = _fates(folder)
        Runner(next(fates)).finish()  # the first one loads what the others have
        lines = Runner(next(fates)).finish()
        stores = set[Path]()
        while tally.done["kills"] < kills:
            crashing_turn = next(fates)
            moment = drawn.randrange(lines), drawn.uniform(0, SECONDS)
            acknowledged, killed = Runner(crashing_turn).kill(*moment)
            tally.done["kills"] += killed
            tally.add(judge(crashing_turn, acknowledged))
            stores.add(crashing_turn.path)
        faults = sum(asyncio.run(count_faults(store)) for store in stores)
    tally.done["stores audited"] = len(stores)
    tally.expect(faults == 0, "fault found by the audit", faults)
    return tally.outcome("a runner is killed at a random moment", BEFORE)
