"""The bundle, the tools and the random model of the fuzzed turns, and the ledgers that they write beside the store."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import cast

from msgspec import structs

from loopline import (
    Agent,
    BaseWorkflow,
    Bundle,
    Harness,
    ToolContext,
    ToolError,
    TurnPayload,
    TurnResult,
    errors,
    tool,
)
from loopline.clock import SystemClock
from loopline.guards import ask_before
from loopline.models import (
    AssistantMessage,
    Capabilities,
    Message,
    Prompt,
    Reply,
    TextDelta,
    ToolCall,
    ToolMessage,
    Usage,
)
from loopline.prompt import tools_text
from loopline.react import PRESETS, Allow, Deny, GuardedCall, Limits, Preset, Verdict
from loopline.testing import Call
from loopline.timeline import ConversationKey
from tests.support.fuzzed_turns.tables import Tables, store_url
from tests.support.scenario import refs_in, said_by
from tests.support.scenario_bundle import words

MARK = re.compile(r"zq[0-9a-z]+qz")
"""The unique word at the beginning of every message of a user and of every task of a child run."""
WINDOWS = {"large": 24_000, "middle": 7_000, "small": 4_500}
"""The windows of the models, in tokens, by role."""
OUTPUT_LIMIT = 1_000


class Ledger:
    """A file of JSON lines; each line is one write, so a killed process loses at most the last one."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **line: object) -> None:
        """Append a line, with the time in seconds since 1970."""
        os.write(self._file, json.dumps({"at": time.time(), **line}).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


class StoreView(Tables):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._by_key: dict[str, str] = {}

    def head(self, name: str) -> int:
        [(head,)] = self.rows(f"SELECT max(seq) FROM blocks WHERE {_NAMED}", [name])
        return head or 0

    def last_round(self, name: str) -> tuple[int, int]:
        """Return the seq and the turn of the newest start of a round of a conversation."""
        query = f"SELECT seq, turn FROM blocks WHERE {_NAMED} AND type = 'react.round.start' ORDER BY seq DESC LIMIT 1"
        return cast("tuple[int, int]", (self.rows(query, [name]) or [(0, 0)])[0])

    def name_of(self, cache_key: str) -> str:
        """Return the conversation whose requests have that cache key, empty if none has."""
        if cache_key not in self._by_key:
            for (name,) in self.rows("SELECT name FROM conversations"):
                digest = sha256(repr(ConversationKey(name=name)).encode()).hexdigest()[:32]
                self._by_key[digest] = name
        return self._by_key.get(cache_key, "")


_NAMED = "conversation = (SELECT id FROM conversations WHERE name = ?)"


@dataclass(frozen=True)
class World:
    """What the tools and the model of one process share."""

    store: StoreView
    effects: Ledger
    requests: Ledger
    draw: random.Random

    @contextmanager
    def effect(self, context: ToolContext[World], key: str) -> Generator[None, None, None]:
        """Write the begin and the end of what a call changes; the head tells which blocks were stored before it."""
        place = {"conversation": context.conversation, "turn": context.turn_id}
        head = self.store.head(context.conversation)
        line = {**place, "call": context.call_id, "key": key}
        self.effects.write(event="begin", head=head, **line)
        yield
        self.effects.write(event="end", **line)


class QuickClock(SystemClock):
    """The clock of the machine, which waits a fiftieth of the time before a request is sent again."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 50)


@tool(effect="read")
def look(size: int, seed: int = 0) -> str:
    """Look at so many characters."""
    return words(size, seed)


@tool(effect="read")
async def slow(seconds: float) -> str:
    """Look for a while."""
    await asyncio.sleep(seconds)
    return "looked"


@tool(effect="read")
def nap(seconds: float) -> str:
    """Look for a while, in a thread."""
    time.sleep(seconds)
    return "rested"


@tool(effect="write", key="file:{name}")
async def write(name: str, seconds: float, context: ToolContext[World]) -> str:
    """Write a file."""
    with context.deps.effect(context, f"file:{name}"):
        await asyncio.sleep(seconds)
    return f"wrote {name}"


@tool(effect="write", key="row:{name}")
def put(name: str, seconds: float, context: ToolContext[World]) -> str:
    """Write a row, in a thread."""
    with context.deps.effect(context, f"row:{name}"):
        time.sleep(seconds)
    return f"put {name}"


@tool(effect="write", key="account")
async def pay(amount: int, context: ToolContext[World]) -> str:
    """Pay, which the user must approve."""
    with context.deps.effect(context, "account"):
        await asyncio.sleep(0)
    return f"paid {amount}"


@tool(effect="write", key="broken")
def crash(context: ToolContext[World]) -> str:
    """Write, and fail in the middle."""
    with context.deps.effect(context, "broken"):
        raise RuntimeError("a fault of the tool")


@tool
async def alone(seconds: float, context: ToolContext[World]) -> str:
    """Do something that nothing else may happen beside."""
    with context.deps.effect(context, "*"):
        await asyncio.sleep(seconds)
    return "done alone"


@tool(effect="read")
def fail(message: str) -> str:
    """Refuse."""
    raise ToolError(message)


@tool(effect="read")
def ask(question: str, context: ToolContext[World]) -> str:
    """Ask the user."""
    context.ask_user(question)


@tool(effect="meta", key="{task}")
async def helper(task: str, context: ToolContext[World]) -> str:
    """Have a child do something."""
    result = await context.spawn(task, limits={"max_iterations": 3})
    return f"{result.exit_reason}: {result.answer}"


@tool(effect="meta")
async def panel(tasks: list[str], context: ToolContext[World]) -> str:
    """Have children do things at once."""
    limits = {"max_iterations": 2}
    results = await asyncio.gather(*(context.spawn(task, limits=limits) for task in tasks))
    return " | ".join(result.answer for result in results)


class Warden:
    async def before(self, call: GuardedCall) -> Verdict:
        return Deny("That is never written.") if "forbidden" in str(call.arguments) else Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        del call
        return text


def drawn_options(name: str) -> tuple[Preset, str, Limits]:
    """Return the preset, the role of the model and the limits that a turn of that name has in every process."""
    draw = random.Random(name)
    limits = Limits(
        max_iterations=draw.choice([1, 2, 3, 4, 6]),
        on_exhausted=draw.choice(["force", "summary", "partial"]),
        parallel_tools=draw.choice([1, 2, 10]),
        model_retries=draw.choice([0, 1, 2]),
        select_tools=draw.random() < 0.1,
        early_stop=draw.random() < 0.9,
        completion_check=draw.random() < 0.1,
        failure_reflection=draw.random() < 0.1,
    )
    if draw.random() < 0.6:
        limits["protocol"] = draw.choice(["native", "json", "tagged", "thought_action"])
    if draw.random() < 0.2:
        limits["answer_mode"] = "synthesize"
    if draw.random() < 0.1:
        limits["tool_timeout_seconds"] = 0.05
    if draw.random() < 0.05:
        limits["deadline_seconds"] = draw.choice([0.2, 1.0])
    if draw.random() < 0.05:
        limits["max_tokens"] = draw.choice([8_000, 20_000])
    if draw.random() < 0.05:
        limits["max_calls_per_reply"] = 2
    return PRESETS[draw.choice(list(PRESETS))], draw.choice(list(WINDOWS)), limits


class Fuzzed(BaseWorkflow):
    """The loop with options that the conversation and the turn choose."""

    instructions = "Do anything."
    guards = (Warden(), ask_before(["fuzz.pay"]))

    async def process(self, payload: TurnPayload) -> TurnResult:
        preset, role, limits = drawn_options(f"{payload.conversation}/{payload.turn_id}")
        react = await self.build_react(preset=preset, model=role, **limits)
        return await react.run(payload)


bundle = Bundle(
    id="fuzz",
    version="1",
    workflow=Fuzzed,
    tools=[look, slow, nap, write, put, pay, crash, alone, fail, ask, helper, panel],
    agents=[Agent(name="reader", description="Reads.", instructions="Read.", tools=["fuzz.look"])],
)


def text_of(message: Message) -> str:
    calls = repr(message.calls) if isinstance(message, AssistantMessage) else ""
    return f"{message.text}{calls}"


def described(message: Message) -> list[object]:
    """Return the role, the marks, and the ids of the calls or of the result of a message."""
    marks = MARK.findall(text_of(message))
    match message:
        case AssistantMessage(calls=calls):
            return ["assistant", marks, [call.call_id for call in calls]]
        case ToolMessage(call_id=call_id):
            return ["tool", marks, [call_id]]
        case _:
            return ["user", marks, []]


@dataclass
class RandomModel:
    """A model that says anything, and writes every request that it gets into the ledger."""

    world: World
    name: str
    capabilities: Capabilities
    draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = self.world.draw

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        size = self.count(prompt)
        self._note(prompt, size)
        if prompt.purpose in ("summary", "selection"):
            await asyncio.sleep(self.draw.uniform(0, 0.02))
            if self.draw.random() < 0.2:
                raise errors.ModelError("not today")
            yield Reply(text=words(self.draw.choice([0, 100, 600]), 5))
            return
        self._fail()
        reply = self.reply(prompt, size)
        for piece in re.findall(r"(?s).{1,200}", reply.text)[: self.draw.choice([0, 1, 3])]:
            yield TextDelta(text=piece)
            await asyncio.sleep(self.draw.choice([0, 0, 0.01, 0.05]))
        if self.draw.random() < 0.02:
            raise errors.ModelStreamBroken("the stream was cut off")
        yield reply

    def count(self, prompt: Prompt) -> int:
        """Return the tokens of a request as this model counts them: four characters each."""
        text = "".join(map(text_of, prompt.messages))
        return (len(text) + len(f"{prompt.system}{tools_text(prompt.tools)}{prompt.tail}")) // 4

    def _note(self, prompt: Prompt, size: int) -> None:
        store = self.world.store
        name = store.name_of(prompt.cache_key) if prompt.cache_key else ""
        seq, turn = store.last_round(name) if name else (0, 0)
        output = prompt.options.output_limit or self.capabilities.output_limit
        self.world.requests.write(
            conversation=name,
            turn=turn,
            round=seq,
            head=store.head(name),
            purpose=prompt.purpose,
            messages=list(map(described, prompt.messages)),
            tail=MARK.findall(prompt.tail),
            size=size + output,
            window=self.capabilities.window,
        )

    def _fail(self) -> None:
        chance = self.draw.random()
        if chance < 0.01:
            raise errors.ModelOverflow("too long")
        if chance < 0.02:
            raise errors.ModelTimedOut("too slow")
        if chance < 0.03:
            raise errors.ModelError("not today")
        if chance < 0.05:
            raise errors.ModelOverloaded("busy")

    def reply(self, prompt: Prompt, size: int) -> Reply:
        draw, chance = self.draw, self.draw.random()
        usage = Usage(input_tokens=size, output_tokens=50) if draw.random() < 0.5 else Usage()
        if chance < 0.02:
            return Reply(text="Not that.", stop_reason="refusal", usage=usage)
        if chance < 0.04:
            return Reply(usage=usage)
        if chance < 0.07:
            odd = [
                '{"action": "call_tool", "tool":',
                "<tool_call name=",
                "Action: x\nAction Input: {",
            ]
            return Reply(text=draw.choice(odd), usage=usage)
        text = words(draw.choice([0, 20, 80, 300]), draw.randrange(20))
        calls = tuple(self.calls(prompt)) if prompt.options.allow_calls else ()
        reply = said_by(prompt.options.protocol, text, calls)
        if draw.random() < 0.02:
            return structs.replace(
                reply, text=reply.text[: len(reply.text) // 2], stop_reason="length", usage=usage
            )
        reason = "tool_use" if reply.calls else "stop"
        return structs.replace(reply, stop_reason=reason, usage=usage)

    def calls(self, prompt: Prompt) -> list[ToolCall]:
        """Draw up to four calls; a model that has made many calls in its prompt makes fewer."""
        made = sum(isinstance(message, AssistantMessage) for message in prompt.messages[-8:])
        count = self.draw.choice([0, 0, 1, 2, 3, 4] if made > 2 else [0, 1, 1, 2, 3, 4])
        return [self.call(prompt) for _ in range(count)]

    def call(self, prompt: Prompt) -> ToolCall:
        draw = self.draw
        # A waiting message may be read by its ref, also by a request of another turn before it is recalled.
        refs = [ref for ref in refs_in(prompt) if ".user." not in ref] or ["tc:turn_1.c1.result"]
        seconds = draw.choice([0, 0.01, 0.1])
        name = draw.choice("abcd") if draw.random() < 0.9 else "forbidden"
        task = f"zqt{draw.getrandbits(48):x}qz do it"
        possible = [
            Call("fuzz.look", size=draw.choice([10, 400, 4000]), seed=draw.randrange(20)),
            Call("fuzz.slow", seconds=seconds),
            Call("fuzz.nap", seconds=seconds),
            Call("fuzz.write", name=name, seconds=seconds),
            Call("fuzz.write", name=name, seconds=seconds),
            Call("fuzz.put", name=name, seconds=seconds),
            Call("fuzz.alone", seconds=seconds),
            Call("fuzz.fail", message="no"),
            Call("fuzz.crash"),
            Call("fuzz.look", size="many"),
            Call("fuzz.unknown", size=3),
            Call("react.plan", mode="new", steps=["look", "write"]),
            Call("react.read", paths=[draw.choice(refs)]),
            Call("react.hide", path=refs[-1], replacement="seen"),
        ]
        rare = [
            Call("fuzz.pay", amount=draw.randrange(100)),
            Call("fuzz.ask", question="Which one?"),
            Call("fuzz.helper", task=task),
            Call("fuzz.panel", tasks=[task, f"{task} too"]),
            Call("crew.delegate", agent="reader", task=task),
        ]
        return draw.choice(rare if draw.random() < 0.15 else possible)


@asynccontextmanager
async def opened(folder: Path, name: str, seed: str) -> AsyncGenerator[Harness, None]:
    effects, requests = Ledger(folder / f"effects-{name}"), Ledger(folder / f"requests-{name}")
    store = StoreView(folder)
    world = World(store, effects, requests, random.Random(f"{seed}-model"))
    models = {
        role: RandomModel(
            world,
            role,
            Capabilities(window=window, output_limit=OUTPUT_LIMIT, json_mode=role == "small"),
        )
        for role, window in WINDOWS.items()
    }
    clock = QuickClock()
    try:
        async with Harness.open(
            bundle, store=store_url(folder), model=models, clock=clock, deps=world
        ) as harness:
            yield harness
    finally:
        store.close()
        effects.close()
        requests.close()
