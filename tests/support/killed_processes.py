"""A turn whose process is killed at an append, and which the next process carries on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopline import Bundle, Harness, LooplineError, Store
from loopline.models import Model
from loopline.store import SqlLog
from loopline.timeline import Block
from tests.support.crashing_turns import CrashPoint, KillingLog
from tests.support.forked_processes import forked

MakeTurn = Callable[[Path], tuple[Bundle[Any], Model]]
"""Makes the bundle and the model of the turn, which begins with `Begin`, given the folder of its store."""


async def _live(folder: Path, make_turn: MakeTurn, point: str, n: int) -> str:
    bundle, model = make_turn(folder)
    async with await SqlLog.open(f"sqlite:///{folder}/talk.db") as log:
        mortal = KillingLog(log, CrashPoint(point, n))
        async with Harness.open(bundle, store=mortal, model=model) as harness:
            talk = harness.conversation("c")
            summary = await log.find(talk.conversation)
            return (await (talk.resume() if summary else talk.say("Begin"))).exit_reason


def _run(folder: Path, make_turn: MakeTurn, point: str, n: int) -> None:
    with contextlib.suppress(LooplineError):  # there is nothing to carry on
        reason = asyncio.run(_live(folder, make_turn, point, n))
        (folder / "reason").write_text(reason, encoding="utf-8")


def run_process(
    folder: Path, make_turn: MakeTurn, point: str = "never", n: int = 0
) -> tuple[int | None, str]:
    """Begin the turn, or carry it on when there is one, in a process that dies at the n-th pass of a `CrashPoint`.

    Return the exit code of the process and the exit reason of the turn, or an empty text if it did not end.
    """
    process = forked.Process(target=_run, args=(folder, make_turn, point, n))
    process.start()
    process.join()
    reason = folder / "reason"
    return process.exitcode, reason.read_text() if reason.exists() else ""


async def read_blocks(folder: Path, conversation: str = "c") -> list[Block]:
    async with Store.open(f"sqlite:///{folder}/talk.db", read_only=True) as store:
        return list(await store.conversation(conversation).blocks())
