"""A process that dies in a turn whose answer is typed, or whose message has settings of the model.

`crashing_answers.py STORE typed|set` dies before the first round, in a tool, or once the answer is kept, as `FATE` says.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from pydantic import BaseModel

from loopline import BaseWorkflow, Bundle, Harness, ModelSettings, TurnPayload, TurnResult, tool
from loopline.testing import Call, Say, ScriptedModel

TEXT = '{"kind":"green","minutes":3}'
SETTINGS = ModelSettings(temperature=0.4, seed=3, stop=["END"], extra_headers={"X-Trace": "1"})


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


async def main(store: str, *, typed: bool) -> None:
    model = ScriptedModel(
        [Call("tea.look"), Say(TEXT)], json_schema=typed, schema_beside_tools=typed, strict=False
    )
    async with Harness.open(BUNDLE, store=store, model=model) as harness:
        talk = harness.conversation("c1")
        if typed:
            await talk.say("Green?", output_type=Advice)
        else:
            await talk.say("Tea?", settings=SETTINGS)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], typed=sys.argv[2] == "typed"))
