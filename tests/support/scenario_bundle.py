"""The bundle of the scenarios: tools that look, find and write, a guard, and a loop with them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

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
from loopline.models import dumps
from loopline.react import Allow, Ask, Deny, GuardedCall, Verdict


@dataclass
class Trace:
    """What tools have left behind: the secret ones that ran, and how many looked at once."""

    secrets: list[str] = field(default_factory=list[str])
    busiest: int = 0
    busy: int = 0

    @contextmanager
    def looking(self) -> Generator[None, None, None]:
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            yield
        finally:
            self.busy -= 1


traced: ContextVar[Trace] = ContextVar("traced")

WORDS = (
    *("the", "report", "of", "Larkspur", "says", "that", "item", "4711", "in", "src/heron.py"),
    *("waits", "for", "launch_date"),
)


def words(size: int, seed: int = 0) -> str:
    """So many characters of words, numbers, names and paths."""
    text, place = list[str](), seed
    length = 0
    while length < size:
        word = f"{WORDS[place % len(WORDS)]}{place if place % 7 == 0 else ''}"
        text.append(word)
        length += len(word) + 1
        place += 1
    return " ".join(text)[:size]


def spoken(text: str) -> str:
    """The text, in which `@500` stands for so many characters."""
    return re.sub(r"@(\d+)", lambda found: words(int(found[1])), text)


@tool(effect="read")
def look(size: int, seed: int = 0) -> str:
    """Look at so many characters."""
    return words(size, seed)


@tool(effect="read")
def rows(count: int, width: int = 40) -> str:
    """Look at rows, as JSON."""
    return dumps([{"row": number, "text": words(width, number)} for number in range(count)])


@tool(effect="read")
def find(page: int, size: int = 0) -> Output:
    """Find a page."""
    url = f"https://example.com/{page}"
    return Output(f"found {words(size, page)}", sources=[Source(url=url, title=f"Page {page}")])


@tool(effect="write", key="file:{name}")
async def write(name: str, text: str) -> str:
    """Write a file."""
    await asyncio.sleep(0)
    return f"wrote {len(spoken(text))} characters to {name}"


@tool
async def alone(size: int) -> str:
    """Do something that nothing else may happen beside."""
    await asyncio.sleep(0)
    return words(size, 3)


@tool(effect="read")
def fail(message: str) -> str:
    """Refuse."""
    raise ToolError(message)


@tool(effect="read")
async def linger() -> str:
    """Look for a while."""
    with traced.get(Trace()).looking():
        for _ in range(3):
            await asyncio.sleep(0)
    return "looked"


@tool
def ask(question: str, context: ToolContext) -> str:
    """Ask the user."""
    context.ask_user(question)


@tool
def secret() -> str:
    """Do what no turn may do."""
    traced.get().secrets.append("life.secret")
    return "done"


@tool
async def stall() -> str:
    """Wait until the turn is stopped."""
    await asyncio.Event().wait()
    return "never"


TOOLS_SPECS = [{"module": __name__, "alias": "life"}]


class Warden:
    """Lets nothing be written that is called `forbidden`, and asks about what is called `dear`."""

    async def before(self, call: GuardedCall) -> Verdict:
        match call.arguments.get("name"):
            case "forbidden":
                return Deny("That is never written.")
            case "dear":
                return Ask("May it be written?")
            case _:
                return Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        del call
        return text


class Living(BaseWorkflow):
    """The loop with these tools; what begins with a bang is answered without a model.

    A machine judges the turns whose text begins with a question mark.
    """

    instructions = "Live."
    guards = (Warden(),)

    async def process(self, payload: TurnPayload) -> TurnResult:
        if payload.text.startswith("!"):
            return await self.answer(f"without a model: {payload.text}")
        react = await self.build_react(tools_module=__name__, tools=ALLOWED)
        result = await react.run(payload)
        if payload.text.startswith("?"):
            await self.feedback("neutral", text="a machine was here")
        return result


ALLOWED = ["life.[!s]*", "life.stall"]
"""All tools but the secret one."""
bundle = Bundle(id="living", workflow=Living)
