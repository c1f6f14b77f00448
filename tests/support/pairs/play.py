"""A conversation is brought into a state, two events meet it, and what comes of it is observed."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from loopline import timeline as tl
from loopline.client import connect
from loopline.models import Json
from loopline.server import ServerSettings, app, make_server
from loopline.store import SqlLog
from loopline.store.postgres_log import PostgresLog
from tests.support.live_server import listening_socket
from tests.support.pairs.expected import (
    ANY,
    Door,
    Event,
    Facts,
    State,
    Step,
    allowed,
    fits,
    runner_of,
)
from tests.support.pairs.scene import ANSWERED, MARK, POLL_SECONDS, TALK, Gate, GatedModel, Scene
from tests.support.pairs.senders import KEY, LocalSender, ProcessSender, RemoteSender, Sender
from tests.support.postgres_server import running_postgres

Store = Literal["memory", "sqlite", "postgres"]
Order = Literal["then", "at once"]
PREPARED: Mapping[State, tuple[str, Gate | None, str]] = {
    "idle": ("", None, ""),
    "running": ("", "model", "model"),
    "running, queued": ("", "model", "model"),
    "calling": ("please work", "tool", "tool"),
    "stepping": ("stepwise", "tool", "tool"),
    "brewing": ("please brew", "tool", ""),
    "brewed": ("please brew", None, ""),
    "asking": ("please inquire", None, "answer"),
    "paused": ("please spend", None, ""),
    "paused, queued before": ("please spend", "model", "model"),
    "paused, sent after": ("please spend", None, ""),
    "waits for a client tool": ("please fetch", None, ""),
    "forgotten": ("", None, ""),
}
"""What the first message asks for, the gate that is closed, and where its turn waits; empty if it ends or pauses."""
SLOW_SECONDS = 30.0
SHORT_SECONDS, LONG_SECONDS = 0.02, 4.0
"""How long facts stay as they are until they are taken for settled: those that are allowed, and others."""
SEEN_SECONDS = {"process": 0.0, "processes": 0.0, "http": 0.15}
"""What a server may take to acknowledge a message that others see in its store already."""
REST_SECONDS, CUT_SECONDS = 3.0, 0.3
"""The time without a block after which nothing more is expected of a conversation, and of one that may be cut off."""
TAKEOVERS = 5
"""How often who lives takes over what a killed process left, while it runs a turn itself."""
SEND_EVENTS = ("say", "steer", "followup")
_INPUTS = tl.BodyUnion[tl.UserPrompt | tl.UserFollowup | tl.UserSteer](
    tl.UserPrompt | tl.UserFollowup | tl.UserSteer
)


@dataclass(frozen=True)
class Case:
    """A state, two events and how they meet it."""

    state: State
    events: tuple[Event, Event]
    order: Order
    store: Store
    door: Door

    def __str__(self) -> str:
        word = "and" if self.order == "at once" else "then"
        return f"{self.state}: {self.events[0]} {word} {self.events[1]} ({self.store}, {self.door})"


@dataclass
class Observed:
    """What came of a case: the facts, the nearest ones that the table allows, and which laws were broken."""

    case: Case
    facts: dict[str, str]
    allowed: Sequence[Facts]
    broken: list[str]
    refusals: list[str]

    @property
    def is_right(self) -> bool:
        return not self.broken and any(fits(self.facts, facts) for facts in self.allowed)

    def __str__(self) -> str:
        nearest = min(self.allowed, key=lambda facts: len(_differences(self.facts, facts)))
        lines = [*_differences(self.facts, nearest), *self.broken, *self.refusals]
        return "\n    ".join([f"{self.case}", *lines])


def _unheard(facts: Facts) -> set[str]:
    return {name for name, value in facts.items() if value == "waits"}


def _differences(facts: Facts, allowed: Facts) -> list[str]:
    return [
        f"{name}: {facts.get(name, '–')}, not {allowed.get(name, '–')}"
        for name in sorted(_names(facts, allowed))
    ]


def _names(facts: Facts, allowed: Facts) -> set[str]:
    return {
        name
        for name in facts.keys() | allowed.keys()
        if allowed.get(name) != ANY and facts.get(name, "–") not in allowed.get(name, "").split("|")
    }


@dataclass
class Crew:
    """The other processes, which serve one case after the other."""

    processes: dict[str, ProcessSender] = field(default_factory=dict[str, ProcessSender])

    async def sender(self, name: str) -> ProcessSender:
        process = self.processes.get(name)
        if process is None or not process.lives:
            process = self.processes[name] = await ProcessSender.begin()
        return process

    async def close(self) -> None:
        for process in self.processes.values():
            await process.kill()


class Stage:
    """A conversation in a folder, who sends to it, and what is known of it."""

    def __init__(self, case: Case, scene: Scene, log: tl.TimelineLog, crew: Crew) -> None:
        self.case, self.scene, self.log, self.crew = case, scene, log, crew
        self.senders: dict[str, Sender] = {}
        self.homes: dict[str, str] = {}
        self.lost: dict[str, str] = {}
        self.killed = False

    async def start(self, step: Step) -> None:
        blocks = await self.log.read(KEY)
        given: dict[str, Json] = {"text": f"m-{step.label}", "call_id": "c1"}
        given |= {"seq": len(blocks) or 1, "is_open": self.case.state == "asking"}
        given["name"] = f"fork-{step.label}"
        if step.event == "recall":
            found = [block for block in blocks if _INPUTS.has(block.body)]
            marked = [block for block in found if _mark(block) == step.target]
            given |= {"seq": marked[0].seq, "turn": marked[0].turn} if marked else {"turn": 1}
        self.homes[step.label] = step.sender
        await self.senders[step.sender].start(step.label, step.event, **given)

    async def say(self, label: str, what: str = "", sender: str = "a") -> None:
        text = f"m-{label} {what}"
        self.homes[label] = sender
        await self.senders[sender].start(label, "say", text=text)

    async def outcomes(self) -> dict[str, str]:
        found = dict(self.lost)
        for sender in self.senders.values():
            found |= await sender.outcomes()
        return found

    async def is_done(self, label: str) -> bool:
        return label in await self.outcomes()

    async def is_stored(self, step: Step) -> bool:
        """Return whether the event is acknowledged, or has come to its end."""
        outcomes = await self.outcomes()
        if step.label in outcomes:  # who waited hears of a forgotten conversation a little later
            return outcomes[step.label] != "forgotten" or outcomes.keys() >= self.homes.keys()
        blocks = await self.log.read(KEY)
        if not blocks:  # it was forgotten meanwhile
            return step.event != "forget"
        match step.event:
            case "say" if self.case.door != "http":
                return await self.is_done(f"{step.label} stored")
            case "say" | "steer" | "followup":
                return any(_mark(block) == step.label for block in blocks)
            case "answer":
                return any(isinstance(block.body, tl.UserAnswer) for block in blocks)
            case _:
                return False

    async def kill(self, name: str) -> None:
        """Kill a process; what it does is lost."""
        process = await self.crew.sender(name)
        done = await process.outcomes()
        await process.kill()
        self.scene.bury(process.pid)
        lost = {label: "lost" for label, home in self.homes.items() if home == name}
        self.lost |= {**lost, **done}
        del self.senders[name]
        self.killed = True

    async def waits(self) -> bool:
        """Return whether the conversation waits: at a gate, for the user, or for a message."""
        timeline, waiting = tl.Timeline(await self.log.read(KEY)), self.scene.waiting()
        steered = any(isinstance(block.body, tl.UserSteer) for block in timeline.pending.values())
        if waiting:
            answered = "answer" in waiting and "answered" in (await self.outcomes()).values()
            return not answered and not (steered and waiting == {"model"})
        turn = timeline.next_turn
        return turn is None or turn.is_paused

    async def rest(self) -> None:
        """Wait until the conversation waits, or nobody runs it."""
        size, since = -1, time.monotonic()
        is_cut = self.killed or self.case.state == "cut off"
        while not await self.waits():
            blocks = await self.log.read(KEY)
            if len(blocks) != size:
                size, since = len(blocks), time.monotonic()
            elif time.monotonic() - since > (CUT_SECONDS if is_cut else REST_SECONDS):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def settled(self, rows: Sequence[Facts]) -> Facts:
        """Return the facts once they stay as they are: for a moment if they are allowed, else for longer."""
        facts, since = dict[str, str](), time.monotonic()
        start = since
        while time.monotonic() - start < SLOW_SECONDS:
            await self.rest()
            before, facts = facts, await self.observe()
            if facts != before:
                since = time.monotonic()
            is_right = any(fits(facts, row) for row in rows)
            # What happened is stored, and only a sender has not heard of it: it may take its time.
            late = any(_names(facts, row) <= _unheard(facts) for row in rows)
            limit = SHORT_SECONDS if is_right else SLOW_SECONDS if late else LONG_SECONDS
            if time.monotonic() - since > limit:
                break
            await asyncio.sleep(5 * POLL_SECONDS)
        return facts

    async def observe(self) -> dict[str, str]:
        blocks = await self.log.read(KEY)
        outcomes = await self.outcomes()
        facts = {f"sender {label}": _word(outcomes.get(label, "waits")) for label in self.homes}
        if not blocks:
            return facts
        timeline = tl.Timeline(blocks)
        recalled = {block.body.said for block in blocks if isinstance(block.body, tl.UserRecalled)}
        taken = {seq for b in blocks if isinstance(b.body, tl.RoundStart) for seq in b.body.takes}
        for block in blocks:
            if _INPUTS.has(block.body):
                state = "taken" if block.seq in taken else "pending"
                is_recalled = block.seq in recalled and state == "pending"
                facts[f"input {_mark(block)}"] = "recalled" if is_recalled else state
        for number, turn in timeline.turns.items():
            assert turn.prompt is not None
            if turn.exit is not None:
                facts[f"turn {number}"] = turn.exit.reason
            elif turn.pending:
                facts[f"turn {number}"] = "answered" if turn.answers else "paused"
            elif facts[f"input {_mark(turn.prompt)}"] != "taken":
                is_recalled = facts[f"input {_mark(turn.prompt)}"] == "recalled"
                facts[f"turn {number}"] = "recalled" if is_recalled else "queued"
            else:
                asks = "answer" in self.scene.waiting()
                facts[f"turn {number}"] = "asking" if asks else "cut off"
        facts["calls"] = f"{len(self.scene.lines('ledger'))}"
        facts["rules"] = f"{len(await tl.ApprovalRules(self.log).of(KEY, datetime.now(UTC)))}"
        return facts

    async def broken(self, facts: dict[str, str]) -> list[str]:
        """Return which laws are broken, whatever the table says."""
        blocks = await self.log.read(KEY)
        found = list[str]()
        takes = [seq for b in blocks if isinstance(b.body, tl.RoundStart) for seq in b.body.takes]
        starts = [b.body.call_id for b in blocks if isinstance(b.body, tl.ToolStarted)]
        ledger = self.scene.lines("ledger")
        granted = [b.seq for b in blocks if isinstance(b.body, tl.ApprovalRule) and b.body.tool]
        asks_user = self.case.state != "waits for a client tool"  # its answer is only a result
        granting = [
            b.seq + 1
            for b in blocks
            if isinstance(b.body, tl.UserAnswer) and b.body.value != ANSWERED and asks_user
        ]
        if granted != granting:
            found.append(f"law: rules at {granted}, the answers that grant one before {granting}")
        for name, those in (("taken", takes), ("started", starts), ("run", ledger)):
            if len(those) != len(set(those)):
                found.append(f"law: something is {name} twice: {those}")
        shown, ends = self.scene.shown(), {"stopped", "interrupted", "cut off"}
        is_cut = any(facts.get(f"turn {number}") in ends for number in range(9))
        for name, state in facts.items():
            label = name.removeprefix("input ")
            # The request of a round that was cut off may not have been sent.
            must_be = label in shown if is_cut and state == "taken" else state == "taken"
            if label != name and (label in shown) != must_be:
                found.append(f"law: {label} is {state}, and in a request: {label in shown}")
        return found


def _mark(block: tl.Block) -> str:
    match block.body:
        case tl.UserPrompt(text=text) | tl.UserFollowup(text=text) | tl.UserSteer(text=text):
            found = MARK.search(text)
            return found[1] if found else ""
        case _:
            return ""


def _word(outcome: str) -> str:
    """Return an outcome without the text of a refusal, and without what comes behind the first turn that is resumed."""
    if outcome.startswith(("turn_", "too late")):
        return outcome
    return outcome.partition(":")[0].partition(" ")[0]


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until it holds, with a `TimeoutError` after too long."""
    end = time.monotonic() + SLOW_SECONDS
    while not await holds():
        if time.monotonic() > end:
            raise TimeoutError(what)
        await asyncio.sleep(POLL_SECONDS)


async def prepare(stage: Stage) -> None:
    """Bring the conversation into the state of the case."""
    scene, state = stage.scene, stage.case.state
    if state in ("cut off", "handed over"):
        stage.homes["first"], stage.lost["first"] = "dead", "lost"
        scene.close("model")
        if state == "handed over" and stage.case.door != "http":
            await stage.senders["b"].start("heir", "takeover")
        if state == "handed over":
            await until(_at(stage, "model"), "a runner takes over")
        return
    text, gate, place = PREPARED[state]
    if gate is not None:
        scene.close(gate)
    await stage.say("first", text)
    begun = _at(stage, place) if place else partial(stage.is_done, "first")
    await until(begun, "the first turn")
    if state.endswith(("queued", "queued before")):
        await stage.say("queued")
        await until(partial(stage.is_stored, Step("say", "queued")), "the queued message")
    await asyncio.sleep(SEEN_SECONDS[stage.case.door])
    if state == "paused, queued before":
        scene.open("model")
        await until(partial(stage.is_done, "first"), "the pause")
    if state == "brewed":
        await until(partial(_is_brewed, stage), "the result from the background")
    scene.close("model")
    if state == "paused, sent after":
        await stage.say("after")
        await until(partial(stage.is_stored, Step("say", "after")), "the message sent after")
    if state == "forgotten":
        await stage.log.forget(KEY)


async def _is_brewed(stage: Stage) -> bool:
    return bool(await stage.log.read(KEY, types=["react.background.result"]))


def _at(stage: Stage, place: str) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return place in stage.scene.waiting()

    return holds


def steps_of(case: Case) -> list[Step]:
    """Return the events with who sends them, and what a recall takes back."""
    newest = {"running, queued": "queued", "paused, queued before": "queued"}
    target = newest.get(case.state, "after" if case.state == "paused, sent after" else "first")
    steps = list[Step]()
    for label, event in zip(("one", "two"), case.events, strict=True):
        if event == "kill":
            before = steps if case.order == "then" else []
            sender = runner_of(case.state, before, case.door)
        elif "kill" in case.events:
            sender = "a" if runner_of(case.state, (), case.door) == "b" else "b"
        else:
            sender = (
                "b" if event == "takeover" or (case.door, label) == ("processes", "two") else "a"
            )
        steps.append(Step(event, label, sender, target))
        if case.order == "then" and event in SEND_EVENTS and case.state != "forgotten":
            target = label
    return steps


async def play(case: Case, folder: Path, cut: Path, crew: Crew) -> Observed:
    steps = steps_of(case)
    facts = allowed(case.state, steps, case.door, at_once=case.order == "at once")
    try:
        async with stages(case, folder, cut, crew) as stage:
            return await _play(stage, steps, facts)
    except TimeoutError as error:
        return Observed(case, {}, facts, [f"too slow: {error}"], [])


async def _play(stage: Stage, steps: Sequence[Step], rows: Sequence[Facts]) -> Observed:
    await prepare(stage)
    for together in [steps] if stage.case.order == "at once" else [[step] for step in steps]:
        await send(stage, together)
    stage.scene.open("tool")
    stage.scene.open("model")
    if stage.killed:
        await take_over_the_rest(stage)
    facts = await stage.settled(rows)
    outcomes = await stage.outcomes()
    refusals = [f"({label}: {text})" for label, text in outcomes.items() if ":" in text]
    return Observed(stage.case, facts, rows, await stage.broken(facts), refusals)


async def take_over_the_rest(stage: Stage) -> None:
    """Have the process that lives do what the killed one left, also behind a turn that it runs already."""
    [living] = stage.senders.values()
    for attempt in range(TAKEOVERS):
        await stage.rest()
        label = f"end {attempt}"
        await living.start(label, "takeover")
        await until(partial(stage.is_done, label), "the takeover")
        if "running" not in (await stage.outcomes())[label]:
            return


async def send(stage: Stage, steps: Sequence[Step]) -> None:
    """Send events at once, and wait until each is acknowledged and the conversation waits again."""
    for step in steps:
        if step.event == "kill":
            await stage.kill(step.sender)
            stage.lost[step.label] = "killed"
            stage.homes[step.label] = "user"
    await asyncio.gather(*(stage.start(step) for step in steps if step.event != "kill"))
    for step in steps:
        if step.event in ("resume", "takeover"):  # nothing says that they wait
            await asyncio.sleep(10 * POLL_SECONDS)
        else:
            await until(partial(stage.is_stored, step), f"{step.event} is acknowledged")
    await asyncio.sleep(SEEN_SECONDS[stage.case.door])
    await stage.rest()


@asynccontextmanager
async def stages(case: Case, place: Path, cut: Path, crew: Crew) -> AsyncGenerator[Stage]:
    """Open what the case needs in a new folder: a store, perhaps the one in `cut`, who sends, and a server."""
    is_cut = case.state in ("cut off", "handed over")
    if is_cut:
        await asyncio.to_thread(shutil.copytree, cut, place)
    await asyncio.to_thread(place.mkdir, exist_ok=True)
    scene, url, cut_url = Scene(place), f"sqlite:///{place}/talk.db", f"sqlite:///{cut}/talk.db"
    if case.store == "postgres":
        url = (await asyncio.to_thread(running_postgres)).store_url()
    try:
        async with AsyncExitStack() as stack:
            log = await _open_log(case.store, url, stack)
            if is_cut and not isinstance(log, SqlLog):
                await _restore(log, cut_url)
            stage = Stage(case, scene, log, crew)
            stack.push_async_callback(_close, stage)
            await _open_door(stage, stack, url)
            yield stage
            scene.open("model")
            scene.open("tool")
    finally:
        await asyncio.to_thread(shutil.rmtree, place)


async def _open_log(
    store: Store, url: str, stack: AsyncExitStack
) -> tl.MemoryLog | SqlLog | PostgresLog:
    match store:
        case "memory":
            return tl.MemoryLog()
        case "sqlite":
            return await stack.enter_async_context(await SqlLog.open(url))
        case "postgres":
            return await stack.enter_async_context(await PostgresLog.open(url))


async def _close(stage: Stage) -> None:
    for sender in stage.senders.values():
        await sender.close()


async def _open_door(stage: Stage, stack: AsyncExitStack, url: str) -> None:
    scene, log, case = stage.scene, stage.log, stage.case
    match case.door:
        case "process":
            stage.senders["a"] = await LocalSender.open(scene, log)
            stage.senders["b"] = await LocalSender.open(scene, log)
        case "processes":
            for name in ("a", "b"):
                process = await stage.crew.sender(name)
                await process.open(scene.folder, url)
                stage.senders[name] = process
        case "http":
            if case.state == "handed over":
                scene.close("model")
            settings = ServerSettings(requests_per_minute=1_000_000)
            served = app(scene.bundle(), store=log, model=GatedModel(scene), settings=settings)
            listener = listening_socket()
            server = make_server(served, host="127.0.0.1", port=0)
            serving = asyncio.create_task(server.serve([listener]))

            async def stop() -> None:
                server.should_exit = True
                await serving
                listener.close()

            stack.push_async_callback(stop)
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            remote = await stack.enter_async_context(connect(address))
            stage.senders["a"] = RemoteSender(remote.conversation(TALK))
            stage.senders["b"] = await LocalSender.open(scene, log)
            stack.push_async_callback(_close, stage)


async def _restore(log: tl.MemoryLog | PostgresLog, url: str) -> None:
    """Fill a log with the conversation of a store, which was run there."""
    async with await SqlLog.open(url, read_only=True) as stored:
        await log.restore(KEY, await stored.read(KEY))
    async with log.lease(KEY):
        pass


async def cut_off(place: Path, crew: Crew) -> None:
    """Store a conversation whose process was killed while a call ran, in a new folder."""
    await asyncio.to_thread(place.mkdir)
    scene = Scene(place)
    scene.close("tool")
    process = await crew.sender("a")
    await process.open(place, f"sqlite:///{place}/talk.db")
    await process.start("first", "say", text="m-first please work")

    async def is_called() -> bool:
        return "tool" in scene.waiting()

    await until(is_called, "the call")
    await process.kill()
    scene.bury(process.pid)
    scene.open("tool")
