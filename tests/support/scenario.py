"""Whole conversations in small windows: what happens in them is drawn, and all that was sent is kept."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256

from msgspec import structs

from loopline import Attachment, Harness, LooplineError
from loopline import timeline as tl
from loopline.conversations import Conversation
from loopline.errors import ModelError, ModelTimedOut
from loopline.events import Event, Observer
from loopline.models import (
    AssistantMessage,
    Capabilities,
    Json,
    JsonObject,
    Message,
    Prompt,
    ProtocolName,
    ReasoningReplay,
    Reply,
    TailKind,
    TextDelta,
    ToolCall,
    Usage,
    UserMessage,
    dumps,
)
from loopline.models.prompt import cost_of_files
from loopline.prompt import protocol, tools_text
from loopline.prompt.rendering import digest_text
from loopline.react import Limits
from loopline.refs import (
    ArtifactRef,
    BlockRef,
    CallRef,
    FileRef,
    KnowledgeRef,
    SkillRef,
    SummaryRef,
    parse,
)
from loopline.store import SqlLog
from loopline.testing import FakeClock
from tests.support.crashing_log import CrashingLog
from tests.support.scenario_bundle import Trace, bundle, spoken, traced


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
    refuses: bool = False
    times_out: bool = False
    followup: str = ""
    recalled: bool = False
    steer: str = ""
    pause: float = 0.0


@dataclass(frozen=True)
class Judged:
    """What somebody thinks of a turn, by its number counted from the last."""

    back: int
    reaction: tl.Reaction | None
    text: str = ""


@dataclass(frozen=True)
class Said:
    """A turn, and what happens before it.

    Where it waits for the user it `rests` for so many seconds, in which they may add or steer, and then they
    answer, here or in a harness that is opened for it.
    """

    text: str
    acts: tuple[Act, ...]
    answer: str = "That is all."
    model: int = 0
    protocol: ProtocolName = "native"
    pause: float = 0.0
    judged: tuple[Judged, ...] = ()
    between: str = ""
    reopened: bool = False
    dies_after: int | None = None
    files: tuple[Attachment, ...] = ()
    approves: bool = True
    resumes: bool = True
    rests: float = 0.0
    meanwhile: str = ""
    rather: str = ""
    answered_elsewhere: bool = False


@dataclass(frozen=True)
class Kind:
    """A model: what it is called, what it holds, how it counts characters, and how its prompts end.

    One whose tails stay wants its thinking back, behind what it was thought behind and nothing else. One
    that does not `act` by calls of its own writes them, as JSON where it `writes_json`.
    """

    name: str = "one"
    window: int = 12_000
    output_limit: int = 1_000
    counts: Callable[[str], int] | None = None
    tail: TailKind = "dropped"
    vision: bool = False
    pdf: bool = False
    acts: bool = True
    writes_json: bool = False
    wire: str = "living"

    @property
    def binds(self) -> bool:
        """Whether its thinking is bound to what stood before it."""
        return self.tail in ("kept", "cleared")


@dataclass(frozen=True)
class Scenario:
    turns: tuple[Said, ...]
    models: tuple[Kind, ...] = (Kind(),)
    summaries: tuple[str, ...] = ("",)
    limits: Limits = field(default_factory=Limits)
    chained: bool = False


@dataclass(frozen=True)
class Sent:
    """One request as the model got it, and the round that it belongs to."""

    prompt: Prompt
    start: tl.Block
    kind: Kind
    reported: int

    @property
    def begun(self) -> tl.RoundStart:
        assert isinstance(self.start.body, tl.RoundStart)
        return self.start.body


@dataclass
class ScenarioRun:
    scenario: Scenario
    sent: list[Sent] = field(default_factory=list[Sent])
    summaries: list[Prompt] = field(default_factory=list[Prompt])
    replies: list[Usage] = field(default_factory=list[Usage])
    heard: list[list[Event]] = field(default_factory=list[list[Event]])
    deaths: list[list[tl.Block]] = field(default_factory=list[list[tl.Block]])
    trace: Trace = field(default_factory=Trace)
    blocks: list[tl.Block] = field(default_factory=list[tl.Block])
    document: JsonObject = field(default_factory=JsonObject)
    first: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    last: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])


class ScenarioModel:
    def __init__(self, world: World, kind: Kind) -> None:
        self._world = world
        self._kind = kind
        self.name = kind.name
        self.capabilities = Capabilities(
            window=kind.window,
            output_limit=kind.output_limit,
            tool_call=kind.acts,
            json_mode=kind.writes_json,
            vision=kind.vision,
            pdf=kind.pdf,
            tail=kind.tail,
        )

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        if prompt.purpose == "summary":
            yield self._summary(prompt)
            return
        act = await self._world.asked(prompt, self._kind)
        usage = Usage(input_tokens=self._world.run.sent[-1].reported)
        calls = () if prompt.purpose == "answer" else tuple(made(act, prompt))
        reply = said_by(prompt.options.protocol, spoken(act.text), calls)
        yield TextDelta(text=reply.text)
        if act.fails:
            raise ModelError("not today")
        if act.times_out:
            raise ModelTimedOut("too slow")
        self._world.run.replies.append(usage)
        if act.refuses:
            yield Reply(text="Not that.", stop_reason="refusal", usage=usage)
            return
        thought = ReasoningReplay(wire=self._kind.wire, parts=({"behind": behind(prompt)},))
        yield structs.replace(reply, usage=usage, echo=thought if self._kind.binds else None)

    def _summary(self, prompt: Prompt) -> Reply:
        world = self._world
        world.run.summaries.append(prompt)
        texts = world.run.scenario.summaries
        text = texts[(len(world.run.summaries) - 1) % len(texts)]
        if text == "fail":
            raise ModelError("no summary today")
        return Reply(text=spoken(text))


class World:
    """What the model and the user share: the script, the conversation, what was sent."""

    def __init__(self, scenario: Scenario, observer: Observer | None = None) -> None:
        self.run = ScenarioRun(scenario)
        self.observer = observer
        self.acts: list[Act] = []
        self.talk: Conversation | None = None
        self.clock = FakeClock()
        self._number = 0

    def harness(self, log: tl.TimelineLog) -> Harness:
        """A harness of this world, that is yet to be entered."""
        return Harness.open(
            bundle, store=log, model=self._models, clock=self.clock, telemetry=self.observer
        )

    def begin(self, said: Said) -> None:
        self._number = said.model
        self.acts = [*said.acts, Act(said.answer)]

    def _models(self) -> list[ScenarioModel]:
        scenario = self.run.scenario
        first = self._number % len(scenario.models)
        chain = [*scenario.models[first:], *scenario.models[:first]]
        return [ScenarioModel(self, kind) for kind in (chain if scenario.chained else chain[:1])]

    async def asked(self, prompt: Prompt, kind: Kind) -> Act:
        """Keep the request, look up what it names, and let the user speak."""
        assert self.talk is not None
        blocks = await self.talk.blocks()
        start = [
            block for block in blocks if isinstance(block.body, tl.RoundStart) and block.body.model
        ][-1]
        reported = kind.counts(whole(prompt)) + in_files(prompt) if kind.counts else 0
        self.run.sent.append(Sent(prompt, start, kind, reported))
        new = [ref for ref in refs_in(prompt) if ref not in self.run.first]
        self.run.first.update(await read(self.talk, new))
        act = self.acts.pop(0) if self.acts else Act("That is all.")
        self.clock.advance(act.pause)
        if act.followup:
            receipt = await self.talk.followup(spoken(act.followup))
            if act.recalled:
                await self.talk.recall(receipt)
        if act.steer:
            steering = asyncio.create_task(self.talk.steer(act.steer))
            await asyncio.wait([steering])  # and this is cut off
            steering.result()
        return act


def whole(prompt: Prompt) -> str:
    """The request as text, as a provider counts it."""
    text = "\n".join(map(_counted, prompt.messages))
    return f"{prompt.system}\n{tools_text(prompt.tools)}\n{text}\n{prompt.tail}"


def _counted(message: Message) -> str:
    """What of a message the model reads: of one that goes back as it came just that, of a past tail nothing."""
    match message:
        case AssistantMessage(echo=ReasoningReplay() as echo, calls=calls):
            return f"{echo}{calls!r}"
        case UserMessage(passing=True):
            return ""
        case _:
            return repr(message)


def behind(prompt: Prompt) -> str:
    """A digest of all that a reply stands behind."""
    tail = [UserMessage(text=prompt.tail)] if prompt.tail else []
    return _bound(prompt, [*prompt.messages, *tail])


def _bound(prompt: Prompt, messages: Sequence[Message]) -> str:
    said = [prompt.system, tools_text(prompt.tools), *map(digest_text, messages)]
    return sha256("\n".join(said).encode()).hexdigest()


def misplaced(prompt: Prompt) -> list[int]:
    """Which messages of a prompt hold thinking that was thought behind something else."""
    return [
        at
        for at, message in enumerate(prompt.messages)
        if isinstance(message, AssistantMessage)
        and message.echo is not None
        and message.echo.parts != ({"behind": _bound(prompt, prompt.messages[:at])},)
    ]


def in_files(prompt: Prompt) -> int:
    """The tokens of the files that the model is given."""
    return sum(map(cost_of_files, prompt.messages))


def said_by(name: ProtocolName, text: str, calls: tuple[ToolCall, ...]) -> Reply:
    if name == "native":
        return Reply(text=text, calls=calls)
    if name == "json":
        return Reply(text=in_json(text, calls))
    if not calls and not text:
        return Reply()
    form = protocol(name)
    return Reply(text=(form.render_calls(text, calls) if calls else form.render_answer(text)).text)


def in_json(text: str, calls: Sequence[ToolCall]) -> str:
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
    calls = [structs.replace(call, arguments=said_in(call.arguments)) for call in act.calls]
    if act.hides is not None:
        path = refs[-1 - act.hides.back % len(refs)]
        calls.append(ToolCall(name="react.hide", arguments={"path": path, "replacement": "seen"}))
    if act.reads is not None:
        start = act.reads.back % len(refs)
        calls.append(ToolCall(name="react.read", arguments={"paths": [refs[start]]}))
    return calls


def said_in(arguments: JsonObject) -> JsonObject:
    return {
        name: spoken(value) if isinstance(value, str) else value
        for name, value in arguments.items()
    }


_REF = re.compile(r"\b(?:ar|tc|su|sk|ks|fi):[A-Za-z0-9_.%:@#/-]*[A-Za-z0-9_]")
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
        case CallRef() | SummaryRef() | FileRef():
            return True
        case _:
            return False


async def read(talk: Conversation, refs: Sequence[str]) -> dict[str, tuple[str, str]]:
    if not refs:
        return {}
    reading = await talk.read(refs)
    return {
        item.requested: (item.status, sha256(item.text.encode() + item.data).hexdigest())
        for item in reading
    }


def run_scenario(scenario: Scenario, store: str = "memory:") -> ScenarioRun:
    return asyncio.run(_run(scenario, store))


async def _run(scenario: Scenario, store: str) -> ScenarioRun:
    world = World(scenario)
    log: tl.TimelineLog = tl.MemoryLog(world.clock)
    if store != "memory:":
        log = await SqlLog.open(store, clock=world.clock)
    async with aclosing_log(log):
        await live_in(world, log)
        async with world.harness(log) as harness:
            talk = harness.conversation("c")
            world.run.blocks = list(await talk.blocks())
            world.run.document = await talk.export()
            world.run.last = await read(talk, list(world.run.first))
    return world.run


async def live_in(world: World, log: tl.TimelineLog) -> None:
    traced.set(world.run.trace)
    remaining_turns = list(world.run.scenario.turns)
    while remaining_turns:
        await _session(world, log, remaining_turns)


@asynccontextmanager
async def aclosing_log(log: tl.TimelineLog) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await log.close()


async def _session(world: World, log: tl.TimelineLog, left: list[Said]) -> None:
    """Turns in one harness, until the next is to be said in another, or this one dies."""
    crashing = CrashingLog(log)
    async with world.harness(crashing) as harness:
        talk = world.talk = harness.conversation("c")
        while left:
            said = left.pop(0)
            await _before(world, talk, said)
            crashing.left = said.dies_after
            world.begin(said)
            try:
                await _turn(world, talk, said, crashing)
            except LooplineError:
                assert crashing.left == 0
                world.run.deaths.append(list(await talk.blocks()))
                break
            crashing.left = None
            if left and left[0].reopened:
                return
        else:
            return
    async with world.harness(log) as harness:
        talk = world.talk = harness.conversation("c")
        with suppress(LooplineError):  # nothing to carry on: it died before it had begun
            await _hear(world, talk, talk.stream_resume(**world.run.scenario.limits))


async def _before(world: World, talk: Conversation, said: Said) -> None:
    world.clock.advance(said.pause)
    blocks = await talk.blocks()
    if not blocks:
        return
    turns = max(block.turn for block in blocks)
    for item in said.judged:
        await talk.feedback(f"turn_{max(turns - item.back, 1)}", item.reaction, text=item.text)
    if said.between:
        await talk.followup(said.between, attachments=said.files[:1])


async def _turn(world: World, talk: Conversation, said: Said, log: tl.TimelineLog) -> None:
    limits: Limits = {**world.run.scenario.limits}
    if said.protocol != "native":
        limits["protocol"] = said.protocol
    await _hear(world, talk, talk.stream(spoken(said.text), attachments=said.files, **limits))
    while said.resumes and await _given(talk, said):
        await _meanwhile(world, talk, said)
        values = await _given(talk, said)
        if not said.answered_elsewhere:
            await _hear(world, talk, talk.stream_resume(values, **limits))
            continue
        async with world.harness(log) as harness:
            world.talk = harness.conversation("c")
            await _hear(world, world.talk, world.talk.stream_resume(values, **limits))
        world.talk = talk


async def _meanwhile(world: World, talk: Conversation, said: Said) -> None:
    """Let the time pass that a turn waits for the user, and what they say in it."""
    world.clock.advance(said.rests)
    if said.meanwhile:
        await talk.followup(said.meanwhile)
    if said.rather:
        await talk.steer(said.rather)


async def _given(talk: Conversation, said: Said) -> dict[str, Json]:
    waiting = [
        item
        for turn in tl.Timeline(await talk.blocks()).resumable
        for item in turn.pending.values()
    ]
    return {item.call_id: said.approves if item.kind == "approval" else "blue" for item in waiting}


async def _hear(world: World, talk: Conversation, events: AsyncIterator[Event]) -> None:
    """Hear a turn to its end, and stop it where it stalls."""
    stalled = set[str]()
    heard_events = list[Event]()
    world.run.heard.append(heard_events)
    async for event in events:
        heard_events.append(event)
        match event:
            case tl.Block(body=tl.ToolCalled(tool="life.stall", call_id=call_id)):
                stalled.add(call_id)
            case tl.Block(body=tl.ToolStarted(call_id=call_id)) if call_id in stalled:
                await talk.stop()
            case _:
                pass
