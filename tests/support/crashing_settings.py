"""A process that is killed in a turn whose message has settings of the model."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from loopline import BaseWorkflow, Bundle, Harness, ModelSettings, TurnPayload, tool
from loopline.testing import Call, Say, ScriptedModel

SETTINGS = ModelSettings(temperature=0.4, seed=3, stop=["END"], extra_headers={"X-Trace": "1"})


class Mortal(BaseWorkflow):
    """Dies before the first round, if that is its fate."""

    async def pre_run_hook(self, payload: TurnPayload) -> None:
        if os.environ.get("FATE") == "before the first round":
            os.kill(os.getpid(), signal.SIGKILL)


@tool(effect="read")
def look() -> str:
    """Look."""
    if os.environ.get("FATE") == "in a tool":
        os.kill(os.getpid(), signal.SIGKILL)
    return "seen"


BUNDLE = Bundle(id="tea", workflow=Mortal, tools=[look])


async def main(store: str) -> None:
    model = ScriptedModel([Call("tea.look"), Say("Tea.")], strict=False)
    async with Harness.open(BUNDLE, store=store, model=model) as harness:
        await harness.conversation("c1").say("Tea?", settings=SETTINGS)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
