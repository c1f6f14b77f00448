"""Whole conversations in small windows: what happens in them is drawn, and all that was sent is kept."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256

from loopline import (
    BaseWorkflow,
    Bundle,
    Harness,
    LooplineError,
    ModelError,
    Output,
    Source,
    ToolError,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline.adapters.sql import SqlLog
from loopline.conversations import Talk
from loopline.events import Event
from loopline.models import (
    Abilities,
    JsonObject,
    Prompt,
    Reply,
    TextDelta,
    ToolCall,
    Usage,
    dumps,
)
from loopline.prompt import tools_text
from loopline.react import Limits
from loopline.refs import (
    ArtifactRef,
    BlockRef,
    CallRef,
    KnowledgeRef,
    SkillRef,
    SummaryRef,
    parse,
)
from loopline.testing import FakeClock
from loopline.timeline import (
    Block,
    MemoryLog,
    Reaction,
    RoundStart,
    TimelineLog,
    ToolCalled,
    ToolStarted,
)
from tests.support.mortal import MortalLog

WORDS = [
    "the",
    "report",
    "of",
    "Larkspur",
    "says",
    "that",
    "item",
    "4711",
    "in",
    "src/heron.py",
    "waits",
    "for",
    "launch_date",
]


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


@tool
async def stall() -> str:
    """Wait until the turn is stopped."""
    await asyncio.Event().wait()
    return "never"


TOOLS_SPECS = [{"module": __name__, "alias": "life"}]


class Living(BaseWorkflow):
    """The loop with these tools; what begins with a bang is answered without a model."""

    instructions = "Live."

    async def process(self, payload: TurnPayload) -> TurnResult:
        if payload.text.startswith("!"):
            return await self.answer(f"without a model: {payload.text}")
        react = await self.build_react(tools_module=__name__)
        return await react.run(payload)


bundle = Bundle(id="living", workflow=Living)


@dataclass(frozen=True)
class Shown:
    """A ref that the model can see, the so-manyth from the end."""

    back: int


@dataclass(frozen=True)
class Act:
    """What the model says in a round, and what the user does meanwhile."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    hides: Shown | None = None
    reads: Shown | None = None
    fails: bool = False
    followup: str = ""
    recalled: bool = False
    pause: float = 0.0


@dataclass(frozen=True)
class Judged:
    """What somebody thinks of a turn, by its number counted from the last."""

    back: int
    reaction: Reaction | None
    text: str = ""


@dataclass(frozen=True)
class Said:
    """A turn, and what happens before it."""

    text: str
    acts: tuple[Act, ...]
    answer: str = "That is all."
    model: int = 0
    protocol: str = "native"
    pause: float = 0.0
    judged: tuple[Judged, ...] = ()
    between: str = ""
    reopened: bool = False
    dies_after: int | None = None


@dataclass(frozen=True)
class Kind:
    """A model: what it is called, what it holds, and how it counts characters."""

    name: str = "one"
    window: int = 12_000
    output_limit: int = 1_000
    counts: Callable[[str], int] | None = None


@dataclass(frozen=True)
class Life:
    """What happens in a conversation."""

    turns: tuple[Said, ...]
    models: tuple[Kind, ...] = (Kind(),)
    summaries: tuple[str, ...] = ("",)
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Sent:
    """One request as the model got it, and the round that it belongs to."""

    prompt: Prompt
    start: Block
    kind: Kind
    reported: int

    @property
    def begun(self) -> RoundStart:
        assert isinstance(self.start.body, RoundStart)
        return self.start.body


@dataclass
class Lived:
    """What has become of a conversation."""

    life: Life
    sent: list[Sent] = field(default_factory=list[Sent])
    summaries: list[Prompt] = field(default_factory=list[Prompt])
    blocks: list[Block] = field(default_factory=list[Block])
    document: JsonObject = field(default_factory=JsonObject)
    first: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    last: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])


class LivingModel:
    """Says what the life has it say."""

    def __init__(self, world: World, kind: Kind) -> None:
        self._world = world
        self._kind = kind
        self.name = kind.name
        self.abilities = Abilities(window=kind.window, output_limit=kind.output_limit)

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """The next act."""
        if prompt.purpose == "summary":
            yield self._summary(prompt)
            return
        act = await self._world.asked(prompt, self._kind)
        text = spoken(act.text)
        yield TextDelta(text=text)
        if act.fails:
            raise ModelError("not today")
        usage = Usage(input_tokens=self._world.lived.sent[-1].reported)
        calls = tuple(made(act, prompt))
        if prompt.purpose == "answer":
            calls = ()
        if prompt.options.protocol == "json":
            yield Reply(text=in_json(text, calls), usage=usage)
        else:
            yield Reply(text=text, calls=calls, usage=usage)

    def _summary(self, prompt: Prompt) -> Reply:
        world = self._world
        world.lived.summaries.append(prompt)
        texts = world.lived.life.summaries
        text = texts[(len(world.lived.summaries) - 1) % len(texts)]
        if text == "fail":
            raise ModelError("no summary today")
        return Reply(text=spoken(text))


class World:
    """What the model and the user share: the script, the conversation, what was sent."""

    def __init__(self, life: Life) -> None:
        self.lived = Lived(life)
        self.acts: list[Act] = []
        self.talk: Talk | None = None
        self.clock = FakeClock()
        self._number = 0

    def harness(self, log: TimelineLog) -> Harness:
        """A harness of this world, that is yet to be entered."""
        return Harness.open(bundle, store=log, model=self._model, clock=self.clock)

    def begin(self, said: Said) -> None:
        """What the model is to say in the turn."""
        self._number = said.model
        self.acts = [*said.acts, Act(said.answer)]

    def _model(self) -> LivingModel:
        models = self.lived.life.models
        return LivingModel(self, models[self._number % len(models)])

    async def asked(self, prompt: Prompt, kind: Kind) -> Act:
        """Keep the request, look up what it names, and let the user speak."""
        assert self.talk is not None
        blocks = await self.talk.blocks()
        start = [one for one in blocks if isinstance(one.body, RoundStart) and one.body.model][-1]
        reported = kind.counts(whole(prompt)) if kind.counts else 0
        self.lived.sent.append(Sent(prompt, start, kind, reported))
        new = [ref for ref in refs_in(prompt) if ref not in self.lived.first]
        self.lived.first.update(await read(self.talk, new))
        act = self.acts.pop(0) if self.acts else Act("That is all.")
        self.clock.advance(act.pause)
        if act.followup:
            receipt = await self.talk.followup(spoken(act.followup))
            if act.recalled:
                await self.talk.recall(receipt)
        return act


def whole(prompt: Prompt) -> str:
    """The request as text."""
    return f"{prompt.system}\n{tools_text(prompt.tools)}\n{list(prompt.messages)!r}\n{prompt.tail}"


def in_json(text: str, calls: Sequence[ToolCall]) -> str:
    """A decision in the protocol of JSON actions."""
    if not calls:
        return dumps({"action": "final_answer", "answer": text or "So."})
    return "\n".join(
        dumps(
            {
                "action": "call_tool",
                "notes": text,
                "tool": call.name,
                "arguments": call.arguments,
            }
        )
        for call in calls
    )


def made(act: Act, prompt: Prompt) -> list[ToolCall]:
    """The calls of the act, and those that name what the model sees."""
    refs = list(refs_in(prompt)) or ["tc:turn_1.c1.result"]
    calls = [replace(call, arguments=said_in(call.arguments)) for call in act.calls]
    if act.hides is not None:
        path = refs[-1 - act.hides.back % len(refs)]
        calls.append(ToolCall(name="react.hide", arguments={"path": path, "replacement": "seen"}))
    if act.reads is not None:
        start = act.reads.back % len(refs)
        calls.append(ToolCall(name="react.read", arguments={"paths": [refs[start]]}))
    return calls


def said_in(arguments: JsonObject) -> JsonObject:
    """The arguments with their texts spoken."""
    return {
        name: spoken(value) if isinstance(value, str) else value
        for name, value in arguments.items()
    }


_REF = re.compile(r"\b(?:ar|tc|su|sk|ks):[A-Za-z0-9_.%:@#/-]*[A-Za-z0-9_]")
_CUT = re.compile(r"\s*(?:\[TRUNCATED\]|…)|\\n\[TRUNCATED\]")


def refs_in(prompt: Prompt) -> dict[str, None]:
    """The pinned refs that the messages and the tail name, in order."""
    texts = [*(repr(message) for message in prompt.messages), prompt.tail]
    found = dict[str, None]()
    for text in texts:
        for match in _REF.finditer(text):
            if not _CUT.match(text, match.end()) and is_pinned(match[0]):
                found.setdefault(match[0])
    return found


def is_pinned(text: str) -> bool:
    """Whether the text is a ref that always names the same."""
    try:
        ref = parse(text)
    except LooplineError:
        return False
    match ref:
        case BlockRef(type=kind, n=n):
            return n is not None or kind == "user.prompt"
        case ArtifactRef(version=version):
            return version is not None
        case KnowledgeRef(commit=commit):
            return commit is not None
        case SkillRef(digest=digest):
            return digest is not None
        case CallRef() | SummaryRef():
            return True
        case _:
            return False


async def read(talk: Talk, refs: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The status and the digest of what each ref gives."""
    if not refs:
        return {}
    reading = await talk.read(refs)
    return {item.asked: (item.status, sha256(item.text.encode()).hexdigest()) for item in reading}


def live(life: Life, store: str = "memory:") -> Lived:
    """Live it, to its end."""
    return asyncio.run(_lived(life, store))


async def _lived(life: Life, store: str) -> Lived:
    world = World(life)
    log: TimelineLog = MemoryLog(world.clock)
    if store != "memory:":
        log = await SqlLog.open(store, clock=world.clock)
    async with aclosing_log(log):
        left = list(life.turns)
        while left:
            await _session(world, log, left)
        async with world.harness(log) as harness:
            talk = harness.conversation("c")
            world.lived.blocks = list(await talk.blocks())
            world.lived.document = await talk.export()
            world.lived.last = await read(talk, list(world.lived.first))
    return world.lived


@asynccontextmanager
async def aclosing_log(log: TimelineLog) -> AsyncGenerator[None, None]:
    """Close the log in the end."""
    try:
        yield
    finally:
        await log.close()


async def _session(world: World, log: TimelineLog, left: list[Said]) -> None:
    """Turns in one harness, until the next is to be said in another, or this one dies."""
    mortal = MortalLog(log)
    async with world.harness(mortal) as harness:
        talk = world.talk = harness.conversation("c")
        while left:
            said = left.pop(0)
            await _before(world, talk, said)
            mortal.left = said.dies_after
            world.begin(said)
            try:
                await _turn(world, talk, said)
            except LooplineError:
                assert mortal.left == 0
                break
            mortal.left = None
            if left and left[0].reopened:
                return
        else:
            return
    async with world.harness(log) as harness:
        talk = world.talk = harness.conversation("c")
        with suppress(LooplineError):  # nothing to carry on: it died before it had begun
            await _hear(talk, talk.stream_resume(**world.lived.life.limits))


async def _before(world: World, talk: Talk, said: Said) -> None:
    world.clock.advance(said.pause)
    blocks = await talk.blocks()
    if not blocks:
        return
    turns = max(block.turn for block in blocks)
    for one in said.judged:
        await talk.feedback(f"turn_{max(turns - one.back, 1)}", one.reaction, text=one.text)
    if said.between:
        await talk.followup(said.between)


async def _turn(world: World, talk: Talk, said: Said) -> None:
    limits: Limits = {**world.lived.life.limits}
    if said.protocol == "json":
        limits["protocol"] = "json"
    await _hear(talk, talk.stream(spoken(said.text), **limits))


async def _hear(talk: Talk, events: AsyncIterator[Event]) -> None:
    """Hear a turn to its end, and stop it where it stalls."""
    stalled = set[str]()
    async for event in events:
        match event:
            case Block(body=ToolCalled(tool="life.stall", call_id=call_id)):
                stalled.add(call_id)
            case Block(body=ToolStarted(call_id=call_id)) if call_id in stalled:
                await talk.stop()
            case _:
                pass
