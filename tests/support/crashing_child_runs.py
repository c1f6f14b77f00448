"""A process that dies at the n-th append of a turn and of its child run, before or after it is committed."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from loopline import Harness, LooplineError
from loopline.store import SqlLog
from loopline.testing import Call
from tests.support.child_runs import Cast, Line, bundle
from tests.support.crashing_turns import CrashPoint, KillingLog


async def live(store: str, ledger: str, point: str, n: int) -> str:
    """Begin the turn, or carry it on when there is one; the exit reason."""
    notes = (Call("play.note", name="n", ledger=ledger), Call("play.note", name="n", ledger=ledger))
    scripts: dict[str, list[Line]] = {
        "go": [Call("kin.ask", task="write"), "Done."],
        "write": [notes, "Written."],
    }
    async with await SqlLog.open(store) as log:
        mortal = KillingLog(log, CrashPoint(point, n))
        async with Harness.open(bundle, store=mortal, model=Cast(scripts)) as harness:
            talk = harness.conversation("c")
            summary = await log.find(talk.conversation)
            return (await (talk.resume() if summary else talk.say("go"))).exit_reason


def run(store: str, ledger: str, point: str, n: int, said: str) -> None:
    """Live the turn and write down how it ended; with nothing to carry on, nothing is said."""
    with contextlib.suppress(LooplineError):
        Path(said).write_text(asyncio.run(live(store, ledger, point, n)), encoding="utf-8")
