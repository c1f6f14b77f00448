"""A turn of five rounds with a plan, a guard that waits, a child and a compaction, interrupted wherever it awaits.

It awaits its log, its model, its guard, its tools and the user, who answers after hours, and each of these is a
step. Who interrupts does it from the harness that runs the turn, or from a second one over the same log, which
knows of the turn what a process would. Its model may refuse or time out, and another of another family takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, Protocol

from msgspec import structs

from loopline import (
    BaseWorkflow,
    Bundle,
    Harness,
    LooplineError,
    ToolContext,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline import timeline as tl
from loopline.clock import SystemClock
from loopline.conversations import Conversation, Receipt
from loopline.errors import ModelTimedOut
from loopline.models import Capabilities, Json, Prompt, Reply, TextDelta, ToolCall, Usage
from loopline.react import Allow, Ask, GuardedCall, Limits, PresetName, Verdict
from loopline.store import SqlLog
from loopline.testing import FakeClock
from tests.support.crashing_turns import ANSWERS, CrashPoint, KillingLog
from tests.support.scenario import said_by

Kind = Literal["steer", "followup", "recall", "stop", "wait"]
Fault = Literal["refuses", "times out"]
TICK = 0.001
"""The seconds that a step of a tool or of a model takes."""
_ASKED = ("decision", "answer")
REST = 7_200.0
"""The seconds until the user answers."""


@dataclass(frozen=True)
class Interruption:
    """What the user does at a step of the loop.

    "wait" lets `seconds` pass; "recall" adds something, and takes it back after so many turns of the event loop.
    """

    step: int
    kind: Kind
    elsewhere: bool = False
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return f"said at step {self.step}, {self.kind}"


@dataclass(frozen=True)
class Asked:
    """A request of the turn itself, no child's and no summary, and the seq of the round that it belongs to."""

    round_seq: int
    prompt: Prompt


@dataclass
class Told:
    """What became of an interrupted turn, and when it rested until the user answered."""

    blocks: Sequence[tl.Block]
    children: Sequence[Sequence[tl.Block]]
    requests: Sequence[Prompt]
    asked: Sequence[Asked]
    late: Sequence[str]
    receipts: Sequence[tuple[Interruption, Receipt]]
    began: Sequence[float]
    steps: int
    stopped: float | None
    rests: Sequence[datetime]

    @property
    def turn(self) -> tl.Turn:
        return tl.Timeline(self.blocks).turn(1)

    @property
    def reason(self) -> tl.ExitReason:
        end = self.turn.exit
        assert end is not None
        return end.reason


class Outside(Protocol):
    """Another process, that interrupts the story of a store."""

    async def interrupt(self, now: Interruption, store: str) -> Receipt | None:
        """Have it interrupt; what it says of that."""


class OwnClock(SystemClock):
    """The machine's clock, which nobody sets: another process has the same."""

    def advance(self, seconds: float) -> None:
        """Let nothing pass but what passes."""


@dataclass
class Scene:
    """What the tools and the model of a story share."""

    clock: FakeClock | OwnClock = field(default_factory=FakeClock)
    due: list[Interruption] = field(default_factory=list[Interruption])
    interrupt: Callable[[Interruption], Awaitable[None]] | None = None
    steps: int = 0
    stopped: float | None = None
    began: list[float] = field(default_factory=list[float])
    requests: list[Prompt] = field(default_factory=list[Prompt])
    asked: list[Asked] = field(default_factory=list[Asked])
    log: tl.TimelineLog | None = None
    preset: PresetName = "bare"
    made: dict[str, int] = field(default_factory=dict[str, int])
    fault: tuple[int, Fault] | None = None
    rests: list[datetime] = field(default_factory=list[datetime])

    @property
    def moment(self) -> float:
        return self.clock.elapsed() - REST * len(self.rests)

    def rest(self) -> None:
        """Let the time pass until the user answers."""
        self.rests.append(self.clock.now())
        self.clock.advance(REST)

    async def pause(self, steps: int = 1) -> None:
        """Take so many steps, and a little time; what the user does then comes between."""
        for _ in range(steps):
            self.steps += 1
            while self.interrupt and self.due and self.due[0].step <= self.steps:
                await self.interrupt(self.due.pop(0))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.clock.advance(TICK)


scenes: ContextVar[Scene] = ContextVar("scenes")


class StepLog(KillingLog):
    """A log of which every read and append of a runner is a step before it and one behind it."""

    def __init__(self, log: tl.TimelineLog, scene: Scene) -> None:
        super().__init__(log, CrashPoint())
        self._scene = scene

    async def append(
        self, conversation: tl.ConversationKey, entries: Sequence[tl.Entry], **options: Any
    ) -> Sequence[tl.Block]:
        if options.get("term") is None:
            return await super().append(conversation, entries, **options)
        await self._scene.pause()
        blocks = await super().append(conversation, entries, **options)
        await self._scene.pause()
        return blocks


async def _work() -> None:
    scene = scenes.get()
    scene.began.append(scene.moment)
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


@tool
def ask(question: str, context: ToolContext) -> str:
    """Ask the user."""
    context.ask_user(question)


@tool(effect="meta")
async def delegate(context: ToolContext, task: str) -> str:
    """Have a child do something."""
    return (await context.spawn(task, instructions="You are a child.")).answer


TOOLS_SPECS = [{"module": __name__, "alias": "s"}]


def _call(name: str, **arguments: str | int) -> ToolCall:
    return ToolCall(name=f"s.{name}", arguments=dict(arguments))


PLAN = ToolCall(name="react.plan", arguments={"mode": "new", "steps": ["look", "answer"]})
MAIN = [
    (PLAN, _call("look"), _call("write", path="a"), _call("write", path="a")),
    (_call("delegate", task="look into it"), _call("look")),
    (_call("look", size=1_500), _call("look", size=1_500)),
    (_call("write", path="dear"), _call("look"), _call("ask", question="Which colour?")),
]
NOTES = ["I look first.", "… [1] looking\n[D] SQLite it is", "[K] herons are long", "✓ [1]"]
CHILD = [(_call("look"),), (_call("look"), _call("ask", question="How tall is it?"))]


class Slow:
    """Lets everything run, after a while; the user is asked about what is dear."""

    async def before(self, call: GuardedCall) -> Verdict:
        await scenes.get().pause(2)
        return Ask("May it be written?") if call.arguments.get("path") == "dear" else Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        await scenes.get().pause()
        return text


class Teller:
    """A model that makes the calls of the story, in pieces, and answers in the end."""

    def __init__(self, scene: Scene, name: str, capabilities: Capabilities) -> None:
        self._scene = scene
        self.name = name
        self.capabilities = capabilities

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """The next decision, an answer or a summary."""
        scene = self._scene
        scene.requests.append(prompt)
        await scene.pause(1)
        usage = Usage(input_tokens=50, output_tokens=10)
        if prompt.purpose == "summary":
            yield Reply(text="Goal: go on.\nNext steps: answer.", usage=usage)
            return
        spoken = prompt.options.protocol
        await self._note(prompt)
        who, story = ("child", CHILD) if "You are a child" in prompt.system else ("main", MAIN)
        number = scene.made.get(who, 0)
        if scene.fault and (who, number, "decision") == ("main", scene.fault[0], prompt.purpose):
            yield TextDelta(text="I ")
            yield await self._declined(scene.fault[1], usage)
            return
        if number < len(story) and prompt.purpose == "decision":
            await scene.pause(1)
            scene.made[who] = number + 1
            yield structs.replace(said_by(spoken, NOTES[number], story[number]), usage=usage)
            return
        for piece in ("So ", "it ", "is.") if spoken == "native" else ():
            yield TextDelta(text=piece)
            await scene.pause(1)
        answer = (
            said_by(spoken, "So it is.", ())
            if prompt.purpose == "decision"
            else Reply(text="So it is.")
        )
        yield structs.replace(answer, usage=usage)

    async def _note(self, prompt: Prompt) -> None:
        """Keep the request with its round, if it is of the turn itself."""
        log = self._scene.log
        is_own = prompt.cache_key == self._scene.requests[0].cache_key  # else a child's
        if log is None or not is_own or prompt.purpose not in _ASKED:
            return
        starts = await log.read(tl.ConversationKey(name="c"), types=["react.round.start"])
        rounds = [b.seq for b in starts if isinstance(b.body, tl.RoundStart) and b.body.model]
        self._scene.asked.append(Asked(rounds[-1], prompt))

    async def _declined(self, fault: Fault, usage: Usage) -> Reply:
        """Refuse once, or say nothing in time."""
        scene = self._scene
        scene.fault = None
        await scene.pause(1)
        if fault == "times out":
            raise ModelTimedOut("too slow")
        return Reply(text="I will not.", stop_reason="refusal", usage=usage)


def tellers(scene: Scene) -> list[Teller]:
    """A chain of two that differ in all: the second writes its calls, and its tails stay."""
    calling = Capabilities(window=7_000, output_limit=1_000)
    writing = replace(calling, tool_call=False, json_mode=True, tail="kept")
    return [Teller(scene, "teller", calling), Teller(scene, "writer", writing)]


class Story(BaseWorkflow):
    instructions = "Tell."
    guards = (Slow(),)

    async def process(self, payload: TurnPayload) -> TurnResult:
        preset = scenes.get().preset
        react = await self.build_react(tools_module=__name__, preset=preset)
        return await react.run(payload)


story = Bundle(id="story", workflow=Story)


async def told(
    interruptions: Sequence[Interruption],
    limits: Limits | None = None,
    fault: tuple[int, Fault] | None = None,
    *,
    preset: PresetName = "bare",
    then: str = "",
) -> Told:
    """Tell the story, interrupted like this; its first model does so instead of that decision.

    With `then` the user says that in a turn behind it.
    """
    due = sorted(interruptions, key=lambda one: one.step)
    scene = Scene(due=due, fault=fault, preset=preset)
    whole_log = tl.MemoryLog(scene.clock)
    harness = Harness.open(story, store=whole_log, model=tellers(scene), clock=scene.clock)
    async with harness as other:
        elsewhere = other.conversation("c")

        async def interrupt(now: Interruption, talk: Conversation) -> Receipt | None:
            return await interrupted(now, elsewhere if now.elsewhere else talk, scene)

        return await play(scene, whole_log, interrupt, limits, then=then)


async def told_outside(now: Interruption, store: str, other: Outside) -> Told:
    """Tell the story in a store, interrupted by another process."""
    scene = Scene(clock=OwnClock(), due=[now])

    async def interrupt(now: Interruption, talk: Conversation) -> Receipt | None:
        del talk
        return await other.interrupt(now, store)

    async with await SqlLog.open(store) as log:

        async def landed() -> None:
            """Come back once it is in the log."""
            kind = "followup" if now.kind == "recall" else now.kind
            while not await log.read(tl.ConversationKey(name="c"), types=[f"user.{kind}"]):
                await scene.clock.sleep(0.01)

        return await play(scene, log, interrupt, landed=landed)


async def play(
    scene: Scene,
    whole: tl.TimelineLog,
    interrupt: Callable[[Interruption, Conversation], Coroutine[None, None, Receipt | None]],
    limits: Limits | None = None,
    *,
    landed: Callable[[], Awaitable[None]] | None = None,
    then: str = "",
) -> Told:
    """Tell the story in this log to its end; no step goes on before what interrupts it has landed."""
    scenes.set(scene)
    scene.log = whole
    asked_limits: Limits = limits or Limits()
    said = list[tuple[Interruption, asyncio.Task[Receipt | None]]]()
    here_harness = Harness.open(
        story, store=StepLog(whole, scene), model=tellers(scene), clock=scene.clock
    )
    async with here_harness as harness:
        talk = harness.conversation("c")

        async def begin(now: Interruption) -> None:
            task = asyncio.create_task(interrupt(now, talk))
            said.append((now, task))
            if landed:
                await landed()

        scene.interrupt = begin
        result = await talk.say("go", **asked_limits)
        while values := await _wanted(talk):
            await scene.pause()
            scene.rest()
            with suppress(LooplineError):  # it was stopped meanwhile
                result = await talk.resume(values, **asked_limits)
        receipts = [(now, await task) for now, task in said]
        if then:
            await talk.say(then, **asked_limits)
        names = [child.conversation.name for child in await talk.children()]
        children = [await one_of.blocks() for one_of in map(harness.conversation, names)]
        return Told(
            blocks=await talk.blocks(),
            children=children,
            requests=scene.requests,
            asked=scene.asked,
            late=result.late_input,
            receipts=[(now, receipt) for now, receipt in receipts if receipt],
            began=scene.began,
            steps=scene.steps,
            stopped=scene.stopped,
            rests=scene.rests,
        )


async def _wanted(talk: Conversation) -> dict[str, Json]:
    """What the user answers to every call that waits."""
    waiting = [
        item
        for turn in tl.Timeline(await talk.blocks()).resumable
        for item in turn.pending.values()
    ]
    return {item.call_id: ANSWERS[item.kind] for item in waiting}


async def interrupted(now: Interruption, talk: Conversation, scene: Scene) -> Receipt | None:
    match now.kind:
        case "steer":
            return await talk.steer(now.text)
        case "followup":
            return await talk.followup(now.text)
        case "recall":
            receipt = await talk.followup(now.text)
            for _ in range(int(now.seconds)):
                await asyncio.sleep(0)
            return None if await talk.recall(receipt) else receipt
        case "stop":
            await talk.stop()
            scene.stopped = scene.moment
        case "wait":
            scene.clock.advance(now.seconds)
    return None


def became(story: Told, receipt: Receipt) -> str:
    """What became of something said: the round that took it, or that the next turn takes it."""
    for block in story.blocks:
        if isinstance(block.body, tl.RoundStart) and receipt.seq in block.body.takes:
            return f"round {block.round}"
    return "next turn" if receipt.seq in tl.Timeline(story.blocks).pending else "lost"
