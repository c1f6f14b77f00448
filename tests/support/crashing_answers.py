"""A process that dies in a turn whose answer is typed.

`crashing_answers.py STORE` dies before the first round, in a tool, or once the answer is kept, as `FATE` says.
"""

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


def meet(fate: str) -> None:
    if os.environ.get("FATE") == fate:
        os.kill(os.getpid(), signal.SIGKILL)


class Mortal(BaseWorkflow):
    async def pre_run_hook(self, payload: TurnPayload) -> None:
        meet("before the first round")

    async def post_run_hook(self, payload: TurnPayload, result: TurnResult[Advice]) -> None:
        meet("answered")


@tool(effect="read")
def look() -> str:
    """Look."""
    meet("in a tool")
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
