"""A turn of five rounds with a guard that waits, a child and a compaction, interrupted wherever it awaits anything.

It awaits its log, its model, its guard and its tools, and each of these is a step. Who interrupts does it from the
harness that runs the turn, or from a second one over the same log, which knows of the turn what a process would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from loopline import BaseWorkflow, Bundle, Harness, ToolContext, TurnPayload, TurnResult, tool
from loopline.conversations import Receipt, Talk
from loopline.models import Abilities, Prompt, Reply, TextDelta, ToolCall, Usage
from loopline.react import Allow, GuardedCall, Limits, Verdict
from loopline.testing import FakeClock
from loopline.timeline import (
    Block,
    Conversation,
    Entry,
    MemoryLog,
    RoundStart,
    Timeline,
    TimelineLog,
)
from tests.support.dying import Doom, DyingLog

Kind = Literal["steer", "followup", "stop", "wait"]
TICK = 0.001
"""The seconds that a step of a tool or of a model takes."""


@dataclass(frozen=True)
class Interruption:
    """What the user does at a step of the loop; "wait" lets `seconds` pass."""

    step: int
    kind: Kind
    elsewhere: bool = False
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """What is said."""
        return f"said at step {self.step}, {self.kind}"


@dataclass
class Told:
    """What became of an interrupted turn."""

    result: TurnResult
    blocks: Sequence[Block]
    children: Sequence[Sequence[Block]]
    requests: Sequence[Prompt]
    receipts: Sequence[tuple[Interruption, Receipt]]
    began: Sequence[float]
    steps: int
    stopped: float | None


@dataclass
class Scene:
    """What the tools and the model of a story share."""

    clock: FakeClock = field(default_factory=FakeClock)
    due: list[Interruption] = field(default_factory=list[Interruption])
    interrupt: Callable[[Interruption], None] = lambda _: None
    steps: int = 0
    stopped: float | None = None
    began: list[float] = field(default_factory=list[float])
    requests: list[Prompt] = field(default_factory=list[Prompt])
    made: dict[str, int] = field(default_factory=dict[str, int])

    async def pause(self, steps: int = 1) -> None:
        """Take so many steps, and a little time; what the user does then comes between."""
        for _ in range(steps):
            self.steps += 1
            while self.due and self.due[0].step <= self.steps:
                self.interrupt(self.due.pop(0))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.clock.advance(TICK)


scenes: ContextVar[Scene] = ContextVar("scenes")


class StepLog(DyingLog):
    """A log of which every read and append of a runner is a step before it and one behind it."""

    def __init__(self, log: TimelineLog, scene: Scene) -> None:
        super().__init__(log, Doom())
        self._scene = scene

    async def append(
        self,
        conversation: Conversation,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None = None,
        key: str = "",
    ) -> Sequence[Block]:
        """Append, between two steps."""
        if term is None:
            return await super().append(conversation, entries, seen=seen, key=key)
        await self._scene.pause()
        blocks = await super().append(conversation, entries, seen=seen, term=term, key=key)
        await self._scene.pause()
        return blocks


async def _work() -> None:
    scene = scenes.get()
    scene.began.append(scene.clock.elapsed())
    await scene.pause(2)


@tool(effect="read")
async def look(size: int = 10) -> str:
    """Look at something."""
    await _work()
    return "heron " * size


@tool(effect="write", key="file:{path}")
async def write(path: str) -> str:
    """Write a file."""
    await _work()
    return f"wrote {path}"


@tool(effect="meta")
async def delegate(context: ToolContext, task: str) -> str:
    """Have a child do something."""
    return (await context.spawn(task, instructions="You are a child.")).answer


TOOLS_SPECS = [{"module": __name__, "alias": "s"}]


def _call(name: str, **arguments: str | int) -> ToolCall:
    return ToolCall(name=f"s.{name}", arguments=dict(arguments))


MAIN = [
    (_call("look"), _call("write", path="a"), _call("write", path="a")),
    (_call("delegate", task="look into it"), _call("look")),
    (_call("look", size=1_500), _call("look", size=1_500)),
    (_call("write", path="b"), _call("look")),
]
CHILD = [(_call("look"),), (_call("look"), _call("look", size=20))]


class Slow:
    """Lets everything run, after a while."""

    async def before(self, call: GuardedCall) -> Verdict:
        await scenes.get().pause(2)
        return Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        await scenes.get().pause()
        return text


class Teller:
    """A model that makes the calls of the story, in pieces, and answers in the end."""

    name = "teller"
    abilities = Abilities(window=7_000, output_limit=1_000)

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """The next decision, an answer or a summary."""
        scene = self._scene
        scene.requests.append(prompt)
        await scene.pause(1)
        usage = Usage(input_tokens=50, output_tokens=10)
        if prompt.purpose == "summary":
            yield Reply(text="Goal: go on.\nNext steps: answer.", usage=usage)
            return
        who, story = ("child", CHILD) if "a child" in prompt.system else ("main", MAIN)
        number = scene.made.get(who, 0)
        if number < len(story) and prompt.purpose == "decision":
            await scene.pause(1)
            scene.made[who] = number + 1
            yield Reply(calls=story[number], usage=usage)
            return
        for piece in ("So ", "it ", "is."):
            yield TextDelta(text=piece)
            await scene.pause(1)
        yield Reply(text="So it is.", usage=usage)


def _bundle() -> Bundle:
    class Story(BaseWorkflow):
        instructions = "Tell."
        guards = (Slow(),)

        async def process(self, payload: TurnPayload) -> TurnResult:
            react = await self.build_react(tools_module=__name__)
            return await react.run(payload)

    return Bundle(id="story", workflow=Story)


async def told(interruptions: Sequence[Interruption], limits: Limits | None = None) -> Told:
    """Tell the story, interrupted like this."""
    scene = Scene(due=sorted(interruptions, key=lambda one: one.step))
    scenes.set(scene)
    whole = MemoryLog(scene.clock)
    bundle, log = _bundle(), StepLog(whole, scene)
    here = Harness.open(bundle, store=log, model=Teller(scene), clock=scene.clock)
    there = Harness.open(bundle, store=whole, model=Teller(scene), clock=scene.clock)
    receipts, tasks = list[tuple[Interruption, Receipt]](), list[asyncio.Task[None]]()
    async with here as one, there as other:
        talk, elsewhere = one.conversation("c"), other.conversation("c")

        def interrupt(now: Interruption) -> None:
            by = elsewhere if now.elsewhere else talk
            tasks.append(asyncio.ensure_future(_interrupt(now, by, scene, receipts)))

        scene.interrupt = interrupt
        result = await talk.say("go", **(limits or Limits()))
        await asyncio.gather(*tasks)
        blocks = await talk.blocks()
        begun = [child.conversation.name for child in await talk.children()]
        children = [await one_of.blocks() for one_of in map(one.conversation, begun)]
    return Told(
        result=result,
        blocks=blocks,
        children=children,
        requests=scene.requests,
        receipts=receipts,
        began=scene.began,
        steps=scene.steps,
        stopped=scene.stopped,
    )


async def _interrupt(
    now: Interruption, talk: Talk, scene: Scene, receipts: list[tuple[Interruption, Receipt]]
) -> None:
    match now.kind:
        case "steer":
            receipts.append((now, await talk.steer(now.text)))
        case "followup":
            receipts.append((now, await talk.followup(now.text)))
        case "stop":
            await talk.stop()
            scene.stopped = scene.clock.elapsed()
        case "wait":
            scene.clock.advance(now.seconds)


def became(story: Told, receipt: Receipt) -> str:
    """What became of something said: the round that took it, or that the next turn takes it."""
    for block in story.blocks:
        if isinstance(block.body, RoundStart) and receipt.seq in block.body.takes:
            return f"round {block.round}"
    return "next turn" if receipt.seq in Timeline(story.blocks).pending else "lost"
