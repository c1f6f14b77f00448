"""Bundles with agents, and a model that answers each task by its own script."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from loopline import Agent, Bundle, Harness, Output, Source, tool
from loopline.clock import Clock
from loopline.testing import FakeClock
from tests.support.child_runs import Cast


@tool(effect="read")
def find(name: str) -> Output:
    """Find a page."""
    source = Source(title=name, url=f"https://example.org/{name}")
    return Output(f"{name} is on a page", sources=[source])


def handoff(summary: str, **parts: str) -> str:
    lines = "\n".join(f"{name}: {text}" for name, text in parts.items())
    return f"Done.\n<handoff>\nsummary: {summary}\n{lines}\n</handoff>"


def plan_of(needs: Mapping[str, Sequence[str]]) -> str:
    """Return the plan of a graph, whose steps need others."""
    steps = [
        {"id": id, "task": f"do {id}", "dependencies": [*needed]} for id, needed in needs.items()
    ]
    return json.dumps({"steps": steps})


def analysis(answer: str) -> str:
    return json.dumps({"achieved": True, "confidence": 1, "answer": answer})


READER = Agent(name="reader", description="Reads pages.", instructions="Read.", tools=["desk.*"])
WRITER = Agent(name="writer", description="Writes texts.", instructions="Write.", tools=[])
AGENTS = (READER, WRITER)


def desk(*agents: Agent) -> Bundle:
    return Bundle(
        id="desk", instructions="Have agents work.", tools=[find], agents=agents or AGENTS
    )


class Scripts(Cast):
    """A model with a script for each task; the task that comes first in the prompt goes on."""

    name = "scripts"

    def task_of(self, first: str, named: Sequence[str]) -> str:
        """Return the task that comes first, the longest of those at the same place."""
        return min(named, key=lambda task: (first.index(task), -len(task)))

    def prompt_of(self, task: str) -> str:
        prompt = self.requests[task][-1]
        return "\n".join(f"{message}" for message in prompt.messages)


@asynccontextmanager
async def crew_harness(
    model: Scripts, *agents: Agent, store: str = "memory:", clock: Clock | None = None
) -> AsyncGenerator[Harness, None]:
    opened = Harness.open(desk(*agents), store=store, model=model, clock=clock or FakeClock())
    async with opened as harness:
        yield harness
