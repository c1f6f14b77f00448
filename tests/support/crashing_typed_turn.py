"""A process that dies in a turn whose answer is typed: in a tool, or once the answer is kept."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from pydantic import BaseModel

from loopline import BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult, tool
from loopline.testing import Call, Say, ScriptedModel

TEXT = '{"kind":"green","minutes":3}'


class Advice(BaseModel):
    """How to steep a tea."""

    kind: str
    minutes: int


class Mortal(BaseWorkflow):
    """Dies once the answer is kept, where that is its fate."""

    async def post_run_hook(self, payload: TurnPayload, result: TurnResult[Advice]) -> None:
        if os.environ.get("FATE") == "answered":
            os.kill(os.getpid(), signal.SIGKILL)


@tool(effect="read")
def look() -> str:
    """Look."""
    if os.environ.get("FATE") == "in a tool":
        os.kill(os.getpid(), signal.SIGKILL)
    return "seen"


BUNDLE = Bundle(id="tea", workflow=Mortal, tools=[look])


async def main(store: str) -> None:
    model = ScriptedModel(
        [Call("tea.look"), Say(TEXT)], json_schema=True, schema_beside_tools=True, strict=False
    )
    async with Harness.open(BUNDLE, store=store, model=model) as harness:
        await harness.conversation("c1").say("Green?", output_type=Advice)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
