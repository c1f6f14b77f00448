"""What a user does to a conversation, from this process, from another one, or over HTTP.

`python -m tests.support.pairs.senders` is another process: it reads a line of JSON for each thing to do, and answers with one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol, cast

from loopline import Harness, LooplineError
from loopline.client import RemoteConversation
from loopline.conversations import Conversation, Receipt
from loopline.models import Json
from loopline.timeline import ConversationKey, TimelineLog
from tests.support.pairs.expected import Event
from tests.support.pairs.scene import ANSWERED, GRANTING, TALK, GatedModel, Scene

ROOT = Path(__file__).resolve().parents[3]
KEY = ConversationKey(name=TALK)


class Sender(Protocol):
    """Does things to the conversation, each under a label, and knows what came of it."""

    async def start(self, label: str, event: Event, **given: Json) -> None: ...

    async def outcomes(self) -> dict[str, str]:
        """Return what came of what is done, by label."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


class Doing:
    """Things that are done in this process, each in a task."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[str]] = {}
        self.stored: dict[str, str] = {}
        self._stack = AsyncExitStack()

    def do(self, label: str, doing: Awaitable[str]) -> None:
        self._tasks[label] = asyncio.ensure_future(_outcome(doing))

    async def outcomes(self) -> dict[str, str]:
        """Return what came of what is done, by label, and under `LABEL stored` which messages have a receipt."""
        done = {label: task.result() for label, task in self._tasks.items() if task.done()}
        return {**self.stored, **done}

    async def close(self) -> None:
        """Cancel what is not done, and close what was opened for it."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._stack.aclose()


async def _outcome(doing: Awaitable[str]) -> str:
    try:
        return await doing
    except LooplineError as error:
        return f"refused: {type(error).__name__}: {error}"


class LocalSender(Doing):
    def __init__(self, harness: Harness, log: TimelineLog | None = None) -> None:
        super().__init__()
        self._harness = harness
        self._log = log or harness.log
        self._talk: Conversation[Any] = harness.conversation(TALK)

    @classmethod
    async def open(cls, scene: Scene, store: str | TimelineLog) -> LocalSender:
        harness = Harness.open(scene.bundle(), store=store, model=GatedModel(scene))
        async with AsyncExitStack() as stack:
            sender = cls(await stack.enter_async_context(harness))
            stack.enter_context(sender._talk.subscribed(lambda _event: None))
            sender._stack = stack.pop_all()
        return sender

    async def start(self, label: str, event: Event, **given: Json) -> None:
        match event:
            case "takeover":
                self.do(label, self._take_over())
            case "forget":
                self.do(label, self._forget())
            case "answer" if given["is_open"]:
                self.do(label, self._answer_open(f"{given['call_id']}"))
            case "say":
                self.do(label, self._say(label, f"{given['text']}"))
            case _:
                self.do(label, act(self._talk, event, given))

    async def _say(self, label: str, text: str) -> str:
        submission = await self._talk.submit(text)
        self.stored[f"{label} stored"] = submission.receipt.turn_id
        result = await submission.result()
        return f"{result.turn_id} {result.exit_reason}"

    async def _take_over(self) -> str:
        outcomes = await self._harness.carry_on()
        return " ".join(outcome.status for outcome in outcomes) or "nothing"

    async def _forget(self) -> str:
        await self._log.forget(KEY)
        return "forgotten"

    async def _answer_open(self, call_id: str) -> str:
        if self._talk.asks(call_id):
            done = self._talk.answer(call_id, ANSWERED)
        else:
            done = await self._talk.interrupts.answer(call_id, ANSWERED)
        return "answered" if done else "refused"


class RemoteSender(Doing):
    def __init__(self, talk: RemoteConversation) -> None:
        super().__init__()
        self._talk = talk

    async def start(self, label: str, event: Event, **given: Json) -> None:
        match event:
            case "forget":
                self.do(label, self._forget())
            case "answer" if given["is_open"]:
                self.do(label, self._answer_open(f"{given['call_id']}"))
            case _:
                self.do(label, act(self._talk, event, given))

    async def _forget(self) -> str:
        await self._talk.forget()
        return "forgotten"

    async def _answer_open(self, call_id: str) -> str:
        return "answered" if await self._talk.answer(call_id, ANSWERED) else "refused"


async def act(
    talk: Conversation[Any] | RemoteConversation, event: Event, given: dict[str, Json]
) -> str:
    """Do what both handles can, and return what came of it."""
    match event:
        case "say":
            result = await talk.say(cast("str", given["text"]))
            return f"{result.turn_id} {result.exit_reason}"
        case "steer" | "followup":
            send = talk.steer if event == "steer" else talk.followup
            await send(cast("str", given["text"]))
            return "stored"
        case "answer" | "resume":
            values = {f"{given['call_id']}": GRANTING} if event == "answer" else None
            result = await talk.resume(values)
            return f"{result.turn_id} {result.exit_reason}"
        case "recall":
            receipt = Receipt(cast("int", given["seq"]), cast("int", given["turn"]))
            return "recalled" if await talk.recall(receipt) else "too late"
        case "stop":
            return "stopped" if await talk.stop() else "nothing"
        case "fork":
            await talk.fork(seq=cast("int", given["seq"]), name=f"{given['name']}")
            return "forked"
        case "mode":
            await talk.set_mode("plan")
            return "changed"
        case "revoke":
            rule_ids = [rule.rule_id for rule in await talk.rules()]
            await talk.revoke_rule(next(iter(rule_ids), "none"))
            return "revoked"
        case "takeover" | "kill" | "forget":
            raise AssertionError(event)


class ProcessSender:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._last: dict[str, str] = {}
        self._lock = asyncio.Lock()

    @classmethod
    async def begin(cls) -> ProcessSender:
        return cls(
            await create_subprocess_exec(
                sys.executable, "-m", __name__, cwd=ROOT, stdin=PIPE, stdout=PIPE
            )
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Return whether nobody has killed it."""
        return self._process.returncode is None

    async def open(self, folder: Path, store: str) -> None:
        self._last = {}
        await self._ask("open", f"{folder}", store)

    async def start(self, label: str, event: Event, **given: Json) -> None:
        await self._ask("start", label, event, dict(given))

    async def outcomes(self) -> dict[str, str]:
        """Return what came of what is done, by label; of one that was killed, what was known."""
        if self.lives:
            self._last = json.loads(await self._ask("outcomes"))
        return self._last

    async def close(self) -> None:
        """Close the harness; the process stays."""
        if self.lives:
            await self._ask("close")

    async def kill(self) -> None:
        if self.lives:
            self._process.kill()
            await self._process.wait()

    async def _ask(self, *words: Json) -> bytes:
        async with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(f"{json.dumps(words)}\n".encode())
            return await self._process.stdout.readline()


async def serve() -> None:
    loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    sender: LocalSender | None = None
    while line := await lines.readline():
        answer: Json = None
        words: Json = json.loads(line)
        match words:
            case ["open", str(folder), str(store)]:
                sender = await LocalSender.open(Scene(Path(folder)), store)
            case ["start", str(label), event, dict(given)] if sender is not None:
                await sender.start(label, cast("Event", event), **given)
            case ["outcomes"] if sender is not None:
                answer = cast("dict[str, Json]", await sender.outcomes())
            case ["close"] if sender is not None:
                await sender.close()
                sender = None
            case _:
                pass
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve())
