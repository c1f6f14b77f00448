"""A bundle whose tools begin child runs, and a model that knows by the task who asks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count

from loopline import (
    BaseWorkflow,
    Bundle,
    Harness,
    ToolContext,
    TurnPayload,
    TurnResult,
    models,
    tool,
)
from loopline.react import Allow, Ask, GuardedCall, Verdict
from loopline.testing import FakeClock
from tests.support import playground

_numbers = count(1)

EACH = models.Usage(input_tokens=10, output_tokens=5)


@tool(effect="meta", key="{task}")
async def ask(task: str, context: ToolContext) -> str:
    """Have a child do something."""
    result = await context.spawn(task, limits={"max_iterations": 5})
    return f"{result.exit_reason}: {result.answer}"


@tool(effect="meta")
async def panel(tasks: list[str], context: ToolContext) -> str:
    """Have children do things at once."""
    results = await asyncio.gather(*(context.spawn(task) for task in tasks))
    return " | ".join(result.answer for result in results)


@tool(effect="meta")
async def group(tasks: list[str], context: ToolContext) -> str:
    """Have children do things in a task group."""

    async def one(task: str) -> str:
        return (await context.spawn(task)).answer

    async with asyncio.TaskGroup() as tasks_of:
        new_tasks = [tasks_of.create_task(one(task)) for task in tasks]
    return " | ".join(task.result() for task in new_tasks)


@tool(effect="meta")
async def narrow(task: str, context: ToolContext) -> str:
    """Have a child do something with one tool and other instructions."""
    return (await context.spawn(task, instructions="Be brief.", tools=["play.look"])).answer


@tool(effect="meta")
async def lend(task: str, tools: list[str], context: ToolContext) -> str:
    """Have a child do something with these tools."""
    return (await context.spawn(task, tools=tools)).answer


@tool(effect="meta")
async def fickle(context: ToolContext) -> str:
    """Have a child do another thing each time."""
    return (await context.spawn(f"task {next(_numbers)}")).answer


@tool(effect="meta")
async def lonely(context: ToolContext) -> str:
    """Have a child do nothing."""
    return (await context.spawn("  ")).answer


@tool(effect="meta")
async def leave(task: str, context: ToolContext) -> str:
    """Begin a child and do not wait for it."""
    context.spawn(task)
    await asyncio.sleep(0)
    return "left"


@tool(effect="meta")
def threaded(task: str, context: ToolContext) -> str:
    """Try to begin a child from a thread."""
    context.spawn(task)
    return "never"


@tool(effect="read")
async def shy(task: str, context: ToolContext) -> str:
    """Try to begin a child from a read."""
    return (await context.spawn(task)).answer


@tool(effect="meta")
async def confirm(task: str, context: ToolContext) -> str:
    """Have a child do something, then ask the user."""
    result = await context.spawn(task)
    context.ask_user(f"Is it {result.answer}?")


@tool(effect="meta")
async def finish(task: str, context: ToolContext) -> str:
    """Have a child do something, and finish it off without one."""
    result = await context.spawn(task)
    context.progress("finishing")
    for _ in range(50):
        await asyncio.sleep(0)
    return f"finished {result.answer}"


@tool(effect="read")
async def hang() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


@tool(effect="read")
async def question(text: str, context: ToolContext) -> str:
    """Ask the user."""
    context.ask_user(text)


TOOLS_SPECS = [
    {"module": __name__, "alias": "kin"},
    {"module": playground.__name__, "alias": "play"},
]


class Careful:
    """A guard that has the user approve of what nothing else may happen beside."""

    async def before(self, call: GuardedCall) -> Verdict:
        return Ask("May it?") if call.arguments.get("text") == "dangerous" else Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        del call
        return text


class Kin(BaseWorkflow):
    instructions = "Have others work."
    guards = (Careful(),)

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(scratchpad=self.scratchpad, tools_module=__name__)
        return await react.run(payload)


bundle = Bundle(id="kin", workflow=Kin)

Line = str | models.ToolCall | tuple[models.ToolCall, ...]


class Cast:
    """A model with a script for each task; what it says next goes by what it has said in the prompt.

    So it can be asked again after a crash, and by several runs at once. `requests` are those of each.
    """

    name = "cast"
    capabilities = models.Capabilities(
        window=1_000_000, price=models.Price(input=1.0, output=2.0, cache_read=0.0, cache_write=0.0)
    )

    def __init__(self, scripts: Mapping[str, Sequence[Line]]) -> None:
        self._scripts = scripts
        self.requests: dict[str, list[models.Prompt]] = {task: [] for task in scripts}

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        """The next line of whoever asks."""
        first = next(
            message.text for message in prompt.messages if isinstance(message, models.UserMessage)
        )
        task = self.task_of(first, [task for task in self._scripts if task in first])
        self.requests[task].append(prompt)
        total = sum(isinstance(message, models.AssistantMessage) for message in prompt.messages)
        match self._scripts[task][total]:
            case str() as text:
                yield models.TextDelta(text=text)
                yield models.Reply(text=text, usage=EACH)
            case models.ToolCall() as call:
                yield models.Reply(calls=(call,), stop_reason="tool_use", usage=EACH)
            case calls:
                yield models.Reply(calls=calls, stop_reason="tool_use", usage=EACH)

    def task_of(self, first: str, named: Sequence[str]) -> str:
        """The task, of those that the first message names, whose script goes on."""
        del first
        return named[0]


@asynccontextmanager
async def kin(
    model: Cast, *, store: str = "memory:", clock: FakeClock | None = None
) -> AsyncGenerator[Harness, None]:
    async with Harness.open(
        bundle, store=store, model=model, clock=clock or FakeClock()
    ) as harness:
        yield harness
