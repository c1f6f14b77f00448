"""A tool that stops its own process: `python -m tests.crashes.stopped_process STORE LEDGER SECONDS`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from loopline import Bundle, Harness, tool
from loopline.errors import LeaseLost
from loopline.store import SqlLog
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import Block
from tests.crashes.processes import HERE, say, url


@tool
def stop(ledger: str) -> str:
    """Be stopped half way."""
    with Path(ledger).open("a", encoding="utf-8") as lines:
        lines.write("entered\n")
        lines.flush()
        say("stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
        lines.write("left\n")
    return "done"


async def be_stopped_in_a_tool(store: str, ledger: str, seconds: float) -> None:
    """Say what a listener hears of a turn that calls the tool twice, and how it ended."""
    call = Call("stop.stop", ledger=ledger)
    model = ScriptedModel([Say("", call, call), "Done."], strict=False)
    async with (
        await SqlLog.open(url(store), lease_seconds=seconds) as log,
        Harness.open(Bundle(id="stop", tools=[stop]), store=log, model=model) as harness,
    ):
        try:
            async for event in harness.conversation(HERE.name).stream("go"):
                say("heard", event.seq if isinstance(event, Block) else event.type)
        except LeaseLost:
            say("lost")
        else:
            say("done")


if __name__ == "__main__":
    asyncio.run(be_stopped_in_a_tool(sys.argv[1], sys.argv[2], float(sys.argv[3])))
