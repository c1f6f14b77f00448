"""A workbench: a tool of each kind that says on a desk when it begins and ends, and models that speak slowly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar, Unpack

from loopline import (
    BaseWorkflow,
    Bundle,
    Harness,
    Output,
    Source,
    ToolContext,
    ToolError,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline.bundle import Setting
from loopline.conversations import Conversation
from loopline.events import Delta, Event
from loopline.models import Capabilities, Message, Model, Prompt, Reply, TextDelta, ToolMessage
from loopline.react import (
    Allow,
    Ask,
    Deny,
    Guard,
    GuardedCall,
    Limits,
    Middleware,
    Preset,
    PresetName,
    RoundHook,
    Verdict,
)
from loopline.testing import FakeClock, ScriptedModel
from loopline.testing.scripted import CapabilityChoices, Entry
from loopline.timeline import Block, Body, Completion, RoundStart, TimelineLog

T = TypeVar("T")


@dataclass(slots=True)
class Desk:
    """What tools leave behind: which began (`+`) and ended (`-`), in order, and what the clock is."""

    clock: FakeClock = field(default_factory=FakeClock)
    order: list[str] = field(default_factory=list[str])
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    beside: int = 0
    most: int = 0

    async def work(self, name: str, ticks: int) -> None:
        """Be at it for so many turns of the loop."""
        self.order.append(f"+{name}")
        self.beside += 1
        self.most = max(self.most, self.beside)
        try:
            for _ in range(ticks):
                await asyncio.sleep(0)
            self.order.append(f"-{name}")
        finally:
            self.beside -= 1

    @property
    def began(self) -> list[str]:
        return [row[1:] for row in self.order if row[0] == "+"]


def desk_of(context: ToolContext) -> Desk:
    desk: Desk = context.scratchpad["desk"]
    return desk


@tool(effect="read")
async def look(context: ToolContext, text: str = "", ticks: int = 1) -> str:
    """Say the text back."""
    await desk_of(context).work(text, ticks)
    return f"seen {text}"


@tool(effect="write", key="file:{path}")
async def write(context: ToolContext, path: str, text: str = "", ticks: int = 1) -> str:
    """Write a file."""
    await desk_of(context).work(f"{path}{text}", ticks)
    return f"wrote {path}"


@tool
async def command(context: ToolContext, text: str = "", ticks: int = 1) -> str:
    """Run a command."""
    await desk_of(context).work(text, ticks)
    return f"ran {text}"


@tool(effect="read")
async def big(size: int) -> str:
    """Give a long text."""
    return "x" * size


@tool(effect="read")
async def nothing() -> str:
    """Give nothing."""
    return ""


@tool(effect="read")
async def fail(message: str = "not today") -> str:
    """Refuse."""
    raise ToolError(message)


@tool(effect="read")
async def crash() -> str:
    """Break."""
    raise ValueError("broken")


@tool(effect="read")
async def count(number: int) -> str:
    """Count."""
    return f"{number}"


@tool(effect="read")
async def page(name: str = "a") -> Output:
    """Make a page that is not for the model to read."""
    return Output(f"the page {name} was made", artifact={"html": f"<b>{name}</b>"})


@tool(effect="read")
async def find(url: str) -> Output:
    """Find a source."""
    return Output("found", sources=[Source(url=url, title=url)])


@tool(effect="read")
async def sleep(context: ToolContext, seconds: float) -> str:
    """Let time pass."""
    await desk_of(context).clock.sleep(seconds)
    await asyncio.sleep(0)
    return "awake"


@tool(effect="read")
async def hang(context: ToolContext) -> str:
    """Never end."""
    desk_of(context).hanging.set()
    await asyncio.Event().wait()
    return "never"


@tool(effect="read")
async def ask(context: ToolContext, question: str = "Which one?") -> str:
    """Ask the user."""
    desk_of(context).order.append("+ask")
    context.ask_user(question)


@dataclass(slots=True)
class Policy:
    """A guard that denies or asks about what it is told to, and changes arguments and results."""

    deny: Sequence[str] = ()
    ask: Sequence[str] = ()
    change: str = ""
    mark: str = ""
    seen: list[str] = field(default_factory=list[str])

    async def before(self, call: GuardedCall) -> Verdict:
        self.seen.append(f"{call.tool} {call.arguments.get('text', '')}")
        if call.tool in self.deny or call.effect in self.deny:
            return Deny(f"{call.tool} is not allowed here")
        if call.tool in self.ask:
            return Ask(f"May {call.tool} run?")
        return Allow({**call.arguments, "text": self.change}) if self.change else Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        return f"{text}{self.mark}"


class Redacting:
    """Lets nobody read what is secret."""

    async def before(self, call: GuardedCall) -> Verdict:
        return Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        return text.replace("s3cret", "***")


TOOLS_SPECS = [{"module": __name__, "alias": "w"}]
TWELVE = ["w.look", "w.write", "w.command", "w.big", "w.nothing", "w.fail", "w.crash", "w.count", "w.page", "w.find", "w.sleep", "w.hang"]  # fmt: skip
"""As many tools as a model is shown without a choice; the loop's own do not count."""
THIRTEEN = [*TWELVE, "w.ask"]


def workbench(
    desk: Desk | None = None,
    *,
    tools: Sequence[str] | None = None,
    guards: Sequence[Guard] = (),
    round_hooks: Sequence[RoundHook] = (),
    middleware: Sequence[Middleware] = (),
    preset: PresetName | Preset = "bare",
    **limits: Unpack[Limits],
) -> Bundle:
    shared, around_calls = desk or Desk(), tuple(guards)
    between, about = tuple(round_hooks), tuple(middleware)

    class Workbench(BaseWorkflow):
        instructions = "Work."
        guards = around_calls
        round_hooks = between
        middleware = about

        async def process(self, payload: TurnPayload) -> TurnResult:
            self.scratchpad["desk"] = shared
            react = await self.build_react(
                scratchpad=self.scratchpad,
                tools_module=__name__,
                tools=tools,
                preset=preset,
                **limits,
            )
            return await react.run(payload)

    return Bundle(id="workbench", workflow=Workbench)


@asynccontextmanager
async def at_work(
    model: str | Model | tuple[Model, ...] | list[Entry],
    bundle: Bundle | None = None,
    *,
    clock: FakeClock | None = None,
    store: str | TimelineLog = "memory:",
    properties: Mapping[str, Setting] | None = None,
) -> AsyncGenerator[Conversation, None]:
    asked_model = ScriptedModel(model) if isinstance(model, list) else model
    opened = Harness.open(
        bundle or workbench(),
        store=store,
        model=asked_model,
        clock=clock or FakeClock(),
        properties=properties,
    )
    async with opened as harness:
        yield harness.conversation("c")


def in_json(script: Sequence[Entry], **capabilities: Unpack[CapabilityChoices]) -> ScriptedModel:
    """A model without calls of its own, that can be held to JSON."""
    chosen: CapabilityChoices = {"tool_call": False, "json_mode": True, **capabilities}
    return ScriptedModel(script, **chosen)


async def run_turn(
    model: str | Model | tuple[Model, ...] | list[Entry],
    bundle: Bundle | None = None,
    text: str = "go",
    *,
    clock: FakeClock | None = None,
    store: str | TimelineLog = "memory:",
    **limits: Unpack[Limits],
) -> tuple[TurnResult, list[Block]]:
    """Say the text in a conversation of its own; return the result, and all blocks."""
    async with at_work(model, bundle, clock=clock, store=store) as talk:
        return await talk.say(text, **limits), list(await talk.blocks())


def bodies_of(blocks: Sequence[Block], kind: type[T]) -> list[T]:
    return [block.body for block in blocks if isinstance(block.body, kind)]


async def bodies(talk: Conversation, kind: type[T]) -> list[T]:
    return bodies_of(await talk.blocks(), kind)


async def begun(talk: Conversation, kind: str = "react.round.start") -> None:
    for _ in range(10_000):
        if kind in await types(talk):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"no {kind} came")


async def types(talk: Conversation) -> list[str]:
    return [block.type for block in await talk.blocks()]


def results(prompt: Prompt) -> list[ToolMessage]:
    return [message for message in prompt.messages if isinstance(message, ToolMessage)]


def shown(prompt: Prompt) -> str:
    """All that a request says, tools aside."""
    return "\n".join([prompt.system, *map(str, prompt.messages), prompt.tail])


def roles(messages: Sequence[Message]) -> list[str]:
    return [type(message).__name__.removesuffix("Message").lower() for message in messages]


def decisions(model: ScriptedModel) -> list[Prompt]:
    return [request for request in model.requests if request.purpose == "decision"]


async def heard(
    talk: Conversation,
    text: str,
    act: Callable[[Event], object] | None = None,
    **limits: Unpack[Limits],
) -> list[Event]:
    events = list[Event]()
    async for event in talk.stream(text, **limits):
        events.append(event)
        if act is not None:
            act(event)
    return events


def said(events: Sequence[Event], channel: str = "answer") -> str:
    """What a listener has on the screen of one channel when all is over."""
    text = ""
    for event in events:
        match event:
            case Delta(type="reset", channel=name) if name == channel:
                text = ""
            case Delta(type="delta", channel=name, text=piece) if name == channel:
                text += piece
            case _:
                pass
    return text


async def interrupted(
    talk: Conversation, text: str, *more: str, at: type[Body] = RoundStart, **limits: Unpack[Limits]
) -> str:
    """The answer of a turn into which more is said as soon as it has a block of that kind."""
    left = list(more)
    async for event in talk.stream(text, **limits):
        if isinstance(event, Block) and isinstance(event.body, at):
            while left:
                await talk.followup(left.pop(0))
    return (await bodies(talk, Completion))[-1].text


class Spoken:
    """A model whose replies come whole or in pieces: each entry is a reply, or texts and then a reply."""

    name = "spoken"

    def __init__(
        self, *replies: Reply | Sequence[str], capabilities: Capabilities | None = None
    ) -> None:
        self.capabilities = capabilities or Capabilities()
        self.requests: list[Prompt] = []
        self._replies = list(replies)

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        self.requests.append(prompt)
        reply = self._replies.pop(0)
        if not isinstance(reply, Reply):
            for piece in reply:
                yield TextDelta(text=piece)
                await asyncio.sleep(0)
            reply = Reply(text="".join(reply))
        yield reply
