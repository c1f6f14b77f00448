"""Processes that use one store at once: turns with writes, steers, forgetting and backups side by side.

Each keeps a journal of what was acknowledged to it; the store is held against the journals at the end.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Literal

from loopline import Harness, Store
from loopline.conversations import Conversation
from loopline.errors import LooplineError, StoreBusy
from loopline.models import AssistantMessage, JsonObject, Prompt, ToolCall, UserMessage, dumps
from loopline.timeline import Block, Completion, ToolResult, ToolStarted, UserFollowup, UserSteer
from tests.bench.attacks.outcome import Outcome, Tally
from tests.support.billed_model import BillingModel, Move
from tests.support.forked_processes import forked
from tests.support.ledgers import lines_of
from tests.support.playground import bundle

SHARED = ("s0", "s1", "s2")
"""Conversations in which every process speaks."""
TASK = "Make two notes."
ROUNDS = 2
FORGET_ABOVE = 2
"""A process forgets one of its own conversations once it has more than these."""
BEFORE = "8 processes, 300 s: nothing lost; a backup beside a forget fails"

Kind = Literal["turn", "steer", "followup", "forgotten"]


class Member:
    """One process of the crowd: it speaks, interrupts, forgets and backs up until its time is over."""

    def __init__(self, harness: Harness, folder: Path, number: int, random: Random) -> None:
        self._harness = harness
        self._folder = folder
        self._number = number
        self._random = random
        self._own: list[str] = []
        self._journal = (folder / f"journal-{number}").open("a", encoding="utf-8")
        self.tally = Tally()

    def acknowledge(self, kind: Kind, talk: Conversation, **values: str | int) -> None:
        entry: JsonObject = {"kind": kind, "conversation": talk.conversation.name, **values}
        self._journal.write(dumps(entry) + "\n")
        self._journal.flush()
        self.tally.done[f"{kind}s" if kind != "forgotten" else "forgets"] += 1

    async def repeat(
        self, act: Callable[[], Coroutine[None, None, None]], pause: float, end: float
    ) -> None:
        """Act again and again; whatever is raised is counted by its type."""
        while time.monotonic() < end:
            for error in await asyncio.gather(act(), return_exceptions=True):
                match error:
                    case None:
                        pass
                    case StoreBusy():
                        self.tally.broken[f"lock error: {error}"] += 1
                    case LooplineError():
                        self.tally.broken[f"{type(error).__name__}: {error}"] += 1
                    case _:
                        self.tally.broken[f"error not of the tree: {error!r}"] += 1
            await asyncio.sleep(self._random.uniform(0, 2 * pause))

    async def speak(self) -> None:
        """Live a turn, alone in a conversation or where all others speak too."""
        if self._random.random() < 0.5:
            self._own.append(f"p{self._number}-{self.tally.done['turns']}")
        name = self._random.choice([*self._own[-FORGET_ABOVE:], *SHARED])
        talk = self._harness.conversation(name)
        result = await talk.say(TASK)
        # So many messages of others may come into a shared conversation that they take all rounds of a turn.
        is_flooded = name in SHARED and result.exit_reason == "max_iterations"
        self.tally.expect(
            result.ok or is_flooded, f"turn ended as {result.exit_reason}: {result.error}"[:120]
        )
        self.acknowledge("turn", talk, turn=result.turn_id, answer=result.answer)

    async def interrupt(self) -> None:
        """Say something into a shared conversation, whoever runs it."""
        talk = self._harness.conversation(self._random.choice(SHARED))
        if not await talk.blocks(types="user.prompt"):
            return
        text = f"{self._number}: {time.monotonic_ns()}"
        if self._random.random() < 0.5:
            self.acknowledge("steer", talk, seq=(await talk.steer(text)).seq, text=text)
        else:
            self.acknowledge("followup", talk, seq=(await talk.followup(text)).seq, text=text)

    async def forget(self) -> None:
        """Forget the oldest conversation of this process, for good."""
        if len(self._own) > FORGET_ABOVE:
            talk = self._harness.conversation(self._own.pop(0))
            await self._harness.log.forget(talk.conversation)
            self.acknowledge("forgotten", talk)

    async def back_up(self) -> None:
        """Copy the store, open the copy, audit it and read a conversation of it."""
        folder = self._folder / f"backup-{self._number}"
        before = await blocks_of(self._harness.conversation(SHARED[0]))
        async with Store.open(url(self._folder), read_only=True) as store:
            await store.backup(folder / "copy.db")
        async with Store.open(url(folder, "copy.db"), read_only=True) as copy:
            faults = sum(len(audit.faults) for audit in await copy.audit())
            copied = await blocks_of(copy.conversation(SHARED[0]))
        self.tally.expect(faults == 0, "fault in a backup", faults)
        self.tally.expect(copied[: len(before)] == before, "backup lacks what came before it")
        names = sorted(path.name for path in await asyncio.to_thread(lambda: [*folder.iterdir()]))
        unfinished = [name for name in names if "unfinished" in name]
        self.tally.expect(not unfinished, "unfinished file left", len(unfinished))
        await asyncio.to_thread(shutil.rmtree, folder)
        self.tally.done["backups"] += 1


def url(folder: Path, name: str = "crowd.db") -> str:
    return f"sqlite:///{folder}/{name}"


async def blocks_of(talk: Conversation) -> list[Block]:
    return list(await talk.blocks())


def play(member: str, ledger: Path) -> Callable[[Prompt], Move]:
    """Return a model's moves: two rounds of a write and a long read, then the answer."""
    numbers = count(1)

    def move(prompt: Prompt) -> Move:
        if prompt.purpose == "summary":
            return Move(text="Notes were made.")
        since = 0
        for message in prompt.messages:
            match message:
                case UserMessage(text=text) if text.endswith(TASK):
                    since = 0
                case AssistantMessage():
                    since += 1
                case _:
                    pass
        if since >= ROUNDS:
            return Move(text="Done.")
        name = f"{member}/{next(numbers)}"
        note = ToolCall(name="play.note", arguments={"name": name, "ledger": str(ledger)})
        look = ToolCall(name="play.look", arguments={"text": name * 4_000})
        return Move(calls=(note, look), ticks=20)

    return move


async def belong(folder: Path, number: int, seconds: float, seed: int) -> Tally:
    model = BillingModel(play(f"p{number}", folder / "ledger"))
    end = time.monotonic() + seconds
    async with Harness.open(bundle, store=url(folder), model=model) as harness:
        member = Member(harness, folder, number, Random(f"{seed}/{number}"))
        async with asyncio.TaskGroup() as group:
            group.create_task(member.repeat(member.speak, 0.01, end))
            group.create_task(member.repeat(member.interrupt, 0.2, end))
            group.create_task(member.repeat(member.forget, 0.3, end))
            group.create_task(member.repeat(member.back_up, 8.0, end))
    return member.tally


def run_member(folder: Path, number: int, seconds: float, seed: int) -> None:
    tally = asyncio.run(belong(folder, number, seconds, seed))
    text = dumps({"done": dict(tally.done), "broken": dict(tally.broken)})
    (folder / f"tally-{number}").write_text(text, encoding="utf-8")


def tally_of(path: Path) -> Tally:
    """The tally that a process left; one that left none broke."""
    if not path.exists():
        return Tally(broken=Counter({"process died": 1}))
    value = json.loads(path.read_text("utf-8"))
    return Tally(done=Counter(value["done"]), broken=Counter(value["broken"]))


def entries_of(folder: Path) -> list[dict[str, str | int]]:
    return [json.loads(line) for path in folder.glob("journal-*") for line in lines_of(path)]


async def judge(folder: Path) -> Tally:
    """Hold the store and the ledger against what was acknowledged to the processes."""
    tally = Tally()
    entries = await asyncio.to_thread(entries_of, folder)
    forgotten = {str(entry["conversation"]) for entry in entries if entry["kind"] == "forgotten"}
    noted = Counter(
        line.split(" ", 1)[1] for line in await asyncio.to_thread(lines_of, folder / "ledger")
    )
    tally.expect(max(noted.values(), default=0) < 2, "effect twice")
    async with Store.open(url(folder), read_only=True) as store:
        audits = await store.audit()
        names = [summary.conversation.name async for summary in store.conversations()]
        held = {name: await blocks_of(store.conversation(name)) for name in names}
    faults = sum(len(audit.faults) for audit in audits)
    tally.expect(faults == 0, "fault found by the audit", faults)
    tally.expect(not forgotten & set(held), "forgotten conversation still there")
    for blocks in held.values():
        tally.add(judge_conversation(blocks, noted))
    for entry in entries:
        name = str(entry["conversation"])
        if name not in forgotten:
            there = is_there(entry, held.get(name, []))
            tally.expect(there, f"acknowledged {entry['kind']} lost")
    return tally


def judge_conversation(blocks: list[Block], noted: Counter[str]) -> Tally:
    """Hold one conversation against the ledger: each call begun once, and each write that ended well there."""
    tally = Tally()
    started = [block.body.call_id for block in blocks if isinstance(block.body, ToolStarted)]
    tally.expect(len(started) == len(set(started)), "call started twice")
    tally.expect(
        [block.seq for block in blocks] == list(range(1, len(blocks) + 1)), "places not dense"
    )
    for block in blocks:
        match block.body:
            case ToolResult(tool="play.note", status="ok", text=text):
                there = noted[text.removeprefix("noted ")] == 1
                tally.expect(there, "write acknowledged and not made")
            case _:
                pass
    tally.done["blocks held"] += len(blocks)
    return tally


def is_there(entry: dict[str, str | int], blocks: list[Block]) -> bool:
    match entry["kind"]:
        case "turn":
            answers = [
                block.body.text
                for block in blocks
                if isinstance(block.body, Completion) and block.turn_id == entry["turn"]
            ]
            return entry["answer"] in answers
        case _:
            bodies = [block.body for block in blocks if block.seq == entry["seq"]]
            texts = [item.text for item in bodies if isinstance(item, UserSteer | UserFollowup)]
            return texts == [entry["text"]]


def crowd(members: int, seconds: float, seed: int) -> Outcome:
    """Let so many processes use one store for so long."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ledger").touch()
        children = [
            forked.Process(target=run_member, args=(folder, number, seconds, seed))
            for number in range(members)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join()
        tally = Tally(done=Counter({f"processes, {seconds:.0f} s each": members}))
        for number in range(members):
            tally.add(tally_of(folder / f"tally-{number}"))
        tally.add(asyncio.run(judge(folder)))
    return tally.outcome("processes use one store at once", BEFORE)
