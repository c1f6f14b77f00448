"""A tool that emits and is killed: `python -m tests.crashes.event_process STORE`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from loopline import Bundle, Harness, ToolContext, tool
from loopline.testing import Call, Say, ScriptedModel
from tests.crashes.processes import HERE, url


@tool
async def emit(context: ToolContext) -> str:
    """Emit, and be killed."""
    await context.emit("kept", {"n": 1}, durable=True)
    await asyncio.to_thread(context.emit, "kept", {"n": 2}, durable=True)
    await context.emit("passing")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


BUNDLE = Bundle(id="w", tools=[emit])


async def be_killed(store: str) -> None:
    """Run a turn whose call never returns."""
    model = ScriptedModel([Call("w.emit"), Say("Done.")])
    async with Harness.open(BUNDLE, store=url(store), model=model) as harness:
        await harness.conversation(HERE.name).say("Emit.")


if __name__ == "__main__":
    asyncio.run(be_killed(sys.argv[1]))
