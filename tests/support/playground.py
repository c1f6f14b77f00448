"""A bundle to play with: a tool of each effect, and one that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loopline import (
    BaseWorkflow,
    Bundle,
    Output,
    Source,
    ToolContext,
    ToolError,
    TurnPayload,
    TurnResult,
    tool,
)
from tests.support.ledgers import add_line


@tool(effect="read")
async def look(text: str = "") -> str:
    """Say the text back."""
    await asyncio.sleep(0)
    return f"seen {text}"


@tool(effect="read")
async def find(url: str) -> Output:
    """Find a page."""
    return Output(f"one page: {url}", sources=[Source(url=url, title="A page")])


@tool(effect="write", key="note:{name}")
async def note(name: str, ledger: str, context: ToolContext) -> str:
    """Write a line into a ledger file."""
    await asyncio.to_thread(add_line, Path(ledger), f"{context.idempotency_key} {name}")
    return f"noted {name}"


@tool
async def alone(text: str) -> str:
    """Do something that nothing else may happen beside."""
    await asyncio.sleep(0)
    return f"alone with {text}"


@tool(effect="read")
def fail(message: str) -> str:
    """Refuse."""
    raise ToolError(message)


@tool(effect="read")
def crash() -> str:
    """Break."""
    raise ValueError("broken")


TOOLS_SPECS = [{"module": __name__, "alias": "play"}]


class Playground(BaseWorkflow):
    instructions = "Play."

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(scratchpad=self.scratchpad, tools_module=__name__)
        return await react.run(payload)


bundle = Bundle(id="playground", workflow=Playground)


class Fatal(BaseException):
    """What ends the process."""


class Fragile(BaseWorkflow):
    async def pre_run_hook(self, payload: TurnPayload) -> None:
        if payload.text == "poison":
            raise Fatal


fragile = Bundle(id="fragile", workflow=Fragile)
