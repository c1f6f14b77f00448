"""Bundles with agents, and a model that answers each task by its own script."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from loopline import Agent, Bundle, Harness, Output, Source, tool
from loopline.clock import Clock
from loopline.models import (
    AssistantMessage,
    Capabilities,
    Price,
    Prompt,
    Reply,
    TextDelta,
    ToolCall,
    Usage,
    UserMessage,
)
from loopline.testing import FakeClock

EACH = Usage(input_tokens=10, output_tokens=5)

Line = str | ToolCall | tuple[ToolCall, ...]


@tool(effect="read")
def find(name: str) -> Output:
    """Find a page."""
    source = Source(title=name, url=f"https://example.org/{name}")
    return Output(f"{name} is on a page", sources=[source])


def handoff(summary: str, **parts: str) -> str:
    """Return an answer that ends in a handoff block."""
    lines = "\n".join(f"{name}: {text}" for name, text in parts.items())
    return f"Done.\n<handoff>\nsummary: {summary}\n{lines}\n</handoff>"


READER = Agent(name="reader", description="Reads pages.", instructions="Read.", tools=["desk.*"])
WRITER = Agent(name="writer", description="Writes texts.", instructions="Write.", tools=[])
AGENTS = (READER, WRITER)


def desk(*agents: Agent) -> Bundle:
    """Return a bundle whose loop has these agents."""
    return Bundle(
        id="desk", instructions="Have agents work.", tools=[find], agents=agents or AGENTS
    )


class Scripts:
    """A model with a script for each task; what it says next goes by what it has said in the prompt.

    So it can be asked again after a crash, and by several runs at once. `requests` are those of each.
    """

    name = "scripts"
    capabilities = Capabilities(
        window=1_000_000, price=Price(input=1.0, output=2.0, cache_read=0.0, cache_write=0.0)
    )

    def __init__(self, scripts: Mapping[str, Sequence[Line]]) -> None:
        self._scripts = scripts
        self.requests: dict[str, list[Prompt]] = {task: [] for task in scripts}

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Say the next line of the script whose task comes first in the prompt."""
        first = next(
            message.text for message in prompt.messages if isinstance(message, UserMessage)
        )
        named = [task for task in self._scripts if task in first]
        task = min(named, key=lambda task: (first.index(task), -len(task)))
        self.requests[task].append(prompt)
        total = sum(isinstance(message, AssistantMessage) for message in prompt.messages)
        match self._scripts[task][total]:
            case str() as text:
                yield TextDelta(text=text)
                yield Reply(text=text, usage=EACH)
            case ToolCall() as call:
                yield Reply(calls=(call,), stop_reason="tool_use", usage=EACH)
            case calls:
                yield Reply(calls=calls, stop_reason="tool_use", usage=EACH)

    def prompt_of(self, task: str) -> str:
        """Return the text of the last request for a task."""
        prompt = self.requests[task][-1]
        return "\n".join(f"{message}" for message in prompt.messages)


@asynccontextmanager
async def crew_harness(
    model: Scripts, *agents: Agent, store: str = "memory:", clock: Clock | None = None
) -> AsyncGenerator[Harness, None]:
    """Open a harness of the bundle with this model."""
    opened = Harness.open(desk(*agents), store=store, model=model, clock=clock or FakeClock())
    async with opened as harness:
        yield harness
