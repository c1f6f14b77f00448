"""A process of the fuzzed turns: users who say, add, steer, recall, stop, answer and fork, in conversations that it shares.

`python -m tests.support.fuzzed_turns.worker FOLDER SEED WORKER INCARNATION TURNS` prints `die` when it is to be killed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

from loopline import Harness, LooplineError
from loopline.conversations import Conversation, Receipt
from loopline.models import Json
from loopline.timeline import ToolPending, ToolResult, UserAnswer
from loopline.timeline import TurnResult as Result
from tests.support.fuzzed_turns.world import Ledger, StoreView, opened
from tests.support.scenario_bundle import words


class Action(Protocol):
    __name__: str

    async def __call__(self, name: str, /) -> None: ...


CONVERSATIONS = 6
"""How many conversations there are at a time."""
PER_GENERATION = 75
"""After how many messages of a worker it goes on to the next conversations."""
USERS = 5
"""How many users act at once in a worker."""
HANG_SECONDS = 60.0
"""How long an action may take after the last block of its conversation was stored."""
NUDGE_SECONDS = 5.0
"""After how long a user whose message waits answers or stops what it waits for."""
KILL = 1 / 150
"""How likely each action ends with the death of its worker."""


class Worker:
    """The users of one process, and what they are told."""

    def __init__(self, folder: Path, seed: str, name: str, turns: int, harness: Harness) -> None:
        self.harness = harness
        self.draw = random.Random(seed)
        self.told = Ledger(folder / f"told-{name}")
        self.store = StoreView(folder)
        self.name = name
        self.sent = sum(
            path.read_text("utf-8").count('"sending"') for path in folder.glob(f"told-{name[:1]}-*")
        )
        self.turns = turns
        self.made = 0
        self.receipts: list[tuple[str, Receipt]] = []
        self.forks: list[str] = []
        self.begun: dict[asyncio.Task[None], tuple[str, str, float]] = {}

    # What a user does, and what is written about it.

    def talk(self, name: str) -> Conversation[Any]:
        return self.harness.conversation(name)

    def any_name(self) -> str:
        """Draw one of the conversations of this time, now and then a fork."""
        if self.forks and self.draw.random() < 0.08:
            return self.draw.choice(self.forks[-2:])
        return f"c{self.sent // PER_GENERATION}-{self.draw.randrange(CONVERSATIONS)}"

    def text(self) -> str:
        """Return a new message, which begins with its mark."""
        self.made += 1
        mark = f"zq{self.name.replace('-', 'i')}n{self.made}qz"
        return f"{mark} {words(self.draw.choice([0, 30, 200, 1500]), self.made)}".strip()

    def note(self, action: str, name: str, **line: object) -> None:
        self.told.write(action=action, conversation=name, by=self.name, **line)

    def note_receipt(self, action: str, name: str, text: str, receipt: Receipt) -> None:
        """Write that a message is stored, and remember it to be recalled."""
        self.receipts = [*self.receipts[-9:], (name, receipt)]
        self.note(action, name, text=text, seq=receipt.seq, turn=receipt.turn)

    def note_result(self, name: str, result: Result[Any], text: str = "") -> None:
        self.note(
            "result",
            name,
            text=text,
            turn=result.turn_id,
            exit_reason=result.exit_reason,
            answer=result.answer,
            rounds=result.rounds,
            late_input=list(result.late_input),
            pending=[call.call_id for call in result.pending],
        )

    async def say(self, name: str) -> None:
        text, chance = self.text(), self.draw.random()
        self.note("sending", name, text=text)
        if chance < 0.12:
            result = await self.talk(name).say(text, when_busy="followup")
        elif chance < 0.24:
            result = await self.talk(name).say(text, when_busy="steer")
        elif chance < 0.28:
            result = await self.talk(name).say(text, when_busy="reject")
        else:
            self.note_result(name, await self.talk(name).say(text), text)
            return
        self.note_result(name, result)

    async def submit(self, name: str) -> None:
        text = self.text()
        self.note("sending", name, text=text)
        submission = await self.talk(name).submit(text, key=text)
        self.note_receipt("user.prompt", name, text, submission.receipt)
        if self.draw.random() < 0.2:
            again = await self.talk(name).submit(text, key=text)
            self.note_receipt("user.prompt", name, text, again.receipt)
        self.note_result(name, await submission.result(), text)

    async def cancel(self, name: str) -> None:
        text = self.text()
        self.note("sending", name, text=text)
        saying = asyncio.create_task(self.talk(name).say(text))
        await asyncio.wait([saying], timeout=self.draw.uniform(0, 0.5))
        saying.cancel()
        await asyncio.wait([saying])
        if not saying.cancelled() and not saying.exception():
            self.note_result(name, saying.result(), text)

    async def followup(self, name: str) -> None:
        text = self.text()
        self.note_receipt("user.followup", name, text, await self.talk(name).followup(text))

    async def steer(self, name: str) -> None:
        text = self.text()
        self.note_receipt("user.steer", name, text, await self.talk(name).steer(text))

    async def add_and_recall(self, name: str) -> None:
        await self.draw.choice([self.followup, self.steer])(name)
        await asyncio.sleep(self.draw.choice([0, 0, 0.01, 0.05]))
        await self.recall(name)

    async def recall(self, name: str) -> None:
        if self.receipts:
            name, receipt = self.draw.choice(self.receipts[-2:])
            done = await self.talk(name).recall(receipt)
            self.note("recall", name, seq=receipt.seq, done=done)

    async def stop(self, name: str) -> None:
        self.note("stop", name, done=await self.talk(name).stop())

    async def answer(self, name: str) -> None:
        values = await self.drawn_answers(name)
        if values and self.draw.random() < 0.95:
            self.note("answering", name, values=values)
            self.note_result(name, await self.talk(name).resume(values))

    async def resume(self, name: str) -> None:
        self.note_result(name, await self.talk(name).resume())

    async def carry_on(self, name: str) -> None:
        for outcome in await self.harness.carry_on():
            self.note("carried on", outcome.conversation.name, status=outcome.status)
            if outcome.result is not None:
                self.note_result(outcome.conversation.name, outcome.result)

    async def fork(self, name: str) -> None:
        blocks = await self.talk(name).blocks()
        if blocks:
            seq = self.draw.randint(1, len(blocks))
            fork = await self.talk(name).fork(seq=seq)
            self.forks.append(fork.conversation.name)
            self.note("fork", name, to=fork.conversation.name, seq=seq)
            self.begin(self.say, fork.conversation.name)

    async def feedback(self, name: str) -> None:
        receipt = await self.talk(name).feedback("turn_1", self.draw.choice(["ok", "not_ok", None]))
        self.note("feedback", name, seq=receipt.seq)

    async def drawn_answers(self, name: str) -> dict[str, Json]:
        values: dict[str, Json] = {}
        for block in await self.talk(name).blocks():
            match block.body:
                case ToolPending(call_id=call_id, kind="approval"):
                    values[call_id] = self.draw.random() < 0.6
                case ToolPending(call_id=call_id):
                    values[call_id] = "the blue one"
                case ToolResult(call_id=call_id) | UserAnswer(call_id=call_id):
                    values.pop(call_id, None)
                case _:
                    pass
        chosen = [key for key in values if self.draw.random() < 0.8] or list(values)
        return {key: values[key] for key in chosen}

    # How the users act at once.

    async def run(self) -> None:
        """Act until all messages of the worker are sent, and wait for all that was begun."""
        await self.guarded(self.carry_on, "")
        await asyncio.gather(*(self.user() for _ in range(USERS)), self.watch())

    async def user(self) -> None:
        """Act, mostly without waiting for the end of what an action began."""
        actions: Sequence[tuple[int, Action]] = (
            (30, self.say),
            (12, self.submit),
            (3, self.cancel),
            (12, self.followup),
            (12, self.steer),
            (4, self.add_and_recall),
            (8, self.recall),
            (3, self.stop),
            (14, self.answer),
            (2, self.resume),
            (2, self.carry_on),
            (1, self.fork),
            (2, self.feedback),
        )
        weights = [weight for weight, _ in actions]
        while self.sent < self.turns:
            [(_, action)] = self.draw.choices(actions, weights)
            name = self.any_name()
            self.sent += action in (self.say, self.submit, self.cancel)
            task = self.begin(action, name)
            await asyncio.wait([task], timeout=self.draw.uniform(0, 1.5))
            await asyncio.sleep(self.draw.choice([0, 0, 0.02]))
            if self.draw.random() < KILL:
                sys.stdout.write("die\n")
                sys.stdout.flush()

    def begin(self, action: Action, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self.guarded(action, name))
        self.begun[task] = (action.__name__, name, time.monotonic())
        task.add_done_callback(lambda task: self.begun.pop(task, None))
        return task

    async def guarded(self, action: Action, name: str) -> None:
        """Act, and write down the error; any that is not of Loopline is a failure by itself."""
        of = action.__name__
        try:
            await action(name)
        except LooplineError as error:
            self.note("error", name, of=of, type=type(error).__name__, text=str(error))
        except Exception:
            self.note("failure", name, of=of, text=traceback.format_exc())
            raise

    async def watch(self) -> None:
        """Answer or stop what others wait for, until every action has ended; note one that hangs."""
        while self.sent < self.turns or self.begun:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            for task, (action, name, since) in list(self.begun.items()):
                quiet = time.time() - self.last_stored(name)
                if now - since > HANG_SECONDS and quiet > HANG_SECONDS:
                    stack = [f"{frame}" for frame in task.get_stack()]
                    self.note("hang", name, of=action, seconds=now - since, stack=stack)
                    task.cancel()
                elif now - since > NUDGE_SECONDS and quiet > 2 * self.draw.random():
                    self.begin(self.draw.choice([self.answer, self.answer, self.stop]), name)

    def last_stored(self, name: str) -> float:
        """Return when the last block of a conversation or of one of its children was stored."""
        [(ms,)] = self.store.rows(
            "SELECT max(ts) FROM blocks WHERE conversation IN (SELECT id FROM conversations WHERE name = ? OR "
            "name LIKE ? || '~%')",
            [name, name],
        )
        return (ms or 0) / 1000

    # The end.

    async def close_all(self) -> None:
        """Bring every turn of the store to its end, and read all refs of some conversations again."""
        names = self.names()
        for _ in range(30):
            outcomes = await self.harness.carry_on()
            if not outcomes:
                break
            for outcome in outcomes:
                name = outcome.conversation.name
                self.note("carried on", name, status=outcome.status, reason=outcome.reason)
                match outcome.status:
                    case "waiting":
                        step = self.draw.choice([self.answer, self.stop])
                        await self.guarded(step, name)
                    case "skipped":
                        await self.guarded(self.resume, name)
                    case _:
                        pass
        for name in self.draw.sample(names, min(len(names), 12)):
            blocks = await self.talk(name).blocks()
            items = await self.talk(name).read([block.ref for block in blocks])
            for block, item in zip(blocks, items, strict=True):
                self.note("read", name, seq=block.seq, ref=block.ref, status=item.status)

    def names(self) -> list[str]:
        """Return the names of all conversations that are not child runs."""
        rows = self.store.rows("SELECT name FROM conversations WHERE name NOT LIKE '%~%'")
        return [name for (name,) in rows]


async def main(folder: Path, seed: str, worker: str, incarnation: str, turns: int) -> None:
    """Run the users of a worker, or without messages to send bring everything to its end."""
    name = f"{worker}-{incarnation}"
    own_seed = f"{seed}-{name}"
    async with AsyncExitStack() as stack:
        harness = await stack.enter_async_context(opened(folder, name, own_seed))
        users = Worker(folder, own_seed, name, turns, harness)
        stack.callback(users.store.close)
        stack.callback(users.told.close)
        await (users.run() if turns else users.close_all())


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(Path(given[0]), given[1], given[2], given[3], int(given[4])))
