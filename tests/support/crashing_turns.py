"""Two turns, and a process that dies somewhere in them: at an append, at the model, or in a tool."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from loopline import Attachment, Bundle, Harness, ToolContext, tool
from loopline import timeline as tl
from loopline.conversations import Conversation
from loopline.errors import ModelError
from loopline.models import Capabilities, Json, Prompt, Reply, TextDelta, ToolCall
from loopline.react import Allow, Ask, GuardedCall, Verdict
from loopline.redaction.redacted_log import ForwardingLog
from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from tests.support.ledgers import add_line, lines_of

FILE = Attachment("go.txt", b"tea and cake, " * 3_600)
Length = Literal["short", "long", "client"]
WHERE = tl.ClientTool(
    name="where",
    parameters={"type": "object", "properties": {"name": {"type": "string"}}},
    result={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)
"""A tool that the client runs, which the message of the turn "client" brings."""
ANSWERS: Mapping[str, Json] = {"approval": True, "question": "blue"}
"""What the user gives to each kind of call that waits."""


@dataclass
class CrashPoint:
    """Which pass of which point kills this process; what it has passed is counted."""

    point: str = ""
    n: int = 0
    passed: Counter[str] = field(default_factory=Counter[str])

    def at(self, *points: str) -> None:
        """Pass these points, and die if one of them is the one."""
        self.passed.update(points)
        if self.point in points and self.passed[self.point] == self.n:
            os.kill(os.getpid(), signal.SIGKILL)


class KillingLog(ForwardingLog):
    """A log whose appends are points: before and after each, also by the types of what it keeps."""

    def __init__(self, log: tl.TimelineLog, crash_point: CrashPoint) -> None:
        super().__init__(log)
        self._crash_point = crash_point

    async def append(
        self, conversation: tl.ConversationKey, entries: Sequence[tl.Entry], **options: Any
    ) -> Sequence[tl.Block]:
        kinds = {entry.body.type for entry in entries}
        self._crash_point.at("before", *(f"before {kind}" for kind in kinds))
        blocks = await super().append(conversation, entries, **options)
        self._crash_point.at("after", *(f"after {kind}" for kind in kinds))
        return blocks


_crash_point: ContextVar[CrashPoint] = ContextVar("_crash_point")


@tool(effect="read")
async def look(size: int) -> str:
    """Look at so many characters."""
    _crash_point.get().at("in a read")
    await asyncio.sleep(0)
    return ("item 4711, " * size)[:size]


@tool(effect="write", key="note:{name}")
async def note(name: str, ledger: str, context: ToolContext) -> str:
    """Write a line into a ledger file."""
    _crash_point.get().at("in a write, before its effect")
    await asyncio.to_thread(add_line, Path(ledger), f"{context.call_id} {name}")
    _crash_point.get().at("in a write, after its effect")
    return f"noted {name}"


@tool
def ask(question: str, context: ToolContext) -> str:
    """Ask the user."""
    context.ask_user(question)


class Careful:
    """Lets nothing be noted under the name `dear` that the user has not approved of."""

    async def before(self, call: GuardedCall) -> Verdict:
        return Ask("May it be noted?") if call.arguments.get("name") == "dear" else Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        del call
        return text


bundle = Bundle(
    id="dying",
    instructions="Note it.",
    tools=[look, note, ask],
    guards=[Careful()],
    limits={"plans": True},
)


def replies(length: Length, ledger: str) -> list[Reply]:
    def call(name: str, /, **arguments: Json) -> ToolCall:
        return ToolCall(name=name, arguments=arguments)

    plan = call("react.plan", mode="new", steps=["act", "answer"])
    noting = call("dying.note", name="n", ledger=ledger)
    small, large = call("dying.look", size=20), call("dying.look", size=100_000)
    answer = Reply(text="✓ [1]\n✓ [2]\nDone.")
    if length == "short":
        return [
            Reply(calls=(plan,)),
            Reply(text="… [1]", calls=(small, noting, noting, small)),
            answer,
        ]
    if length == "client":
        here, there, later = (call("where", name=name) for name in ("here", "dear", "later"))
        return [Reply(calls=(here, noting, there, small)), Reply(calls=(later,)), answer]
    dear = call("dying.note", name="dear", ledger=ledger)
    return [
        Reply(calls=(plan,)),
        Reply(text="… [1]", calls=(large, noting, noting, small)),
        Reply(text="It is as was said before. " * 1_000, calls=(dear,)),
        Reply(calls=(call("dying.ask", question="Which colour?"),)),
        Reply(text="Almost."),
        answer,
    ]


class Repeatable:
    """A model that goes by what it has decided so far, so that it can be asked again after a crash."""

    name = "repeatable"
    capabilities = Capabilities(window=20_000, output_limit=1_000)

    def __init__(self, length: Length, ledger: str, summary: str) -> None:
        self.talk: Conversation | None = None
        self._replies = replies(length, ledger)
        self._summary = summary

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """The next decision, while the user adds something to the last but one."""
        assert self.talk is not None
        crash_point = _crash_point.get()
        crash_point.at(f"asked for a {prompt.purpose}")
        if prompt.purpose == "summary":
            if not self._summary:
                raise ModelError("no summary today")
            yield Reply(text=self._summary)
            return
        count = len(await self.talk.blocks(types="react.decision"))
        if len(self._replies) == 6 and count == 4:
            added = await self.talk.blocks(types="user.followup")
            if not added:
                await self.talk.followup("And quickly.")
        yield TextDelta(text=self._replies[count].text[:3])
        crash_point.at("in the middle of a reply")
        yield self._replies[count]


@dataclass(frozen=True)
class CrashingTurn:
    """A turn to live, where it is kept, and where this process dies; at no point, when n is 0.

    What it writes beside the store is in its folder. The store is there too, or shared with others.
    """

    folder: str
    length: Length = "short"
    summary: str = ""
    point: str = ""
    n: int = 0
    store: str = ""
    conversation: str = "c"

    @property
    def path(self) -> Path:
        return Path(self.store or f"{self.folder}/talk.db")


async def live(
    crashing_turn: CrashingTurn, crash_point: CrashPoint, logging: type[KillingLog] = KillingLog
) -> str:
    """Begin the turn, or carry it on where it was cut off or waits; how it ended."""
    _crash_point.set(crash_point)
    blobs = FileBlobs.for_store(crashing_turn.path)
    async with await SqlLog.open(f"sqlite:///{crashing_turn.path}", blobs=blobs) as log:
        model = Repeatable(
            crashing_turn.length, f"{crashing_turn.folder}/ledger", crashing_turn.summary
        )
        async with Harness.open(bundle, store=logging(log, crash_point), model=model) as harness:
            talk = model.talk = harness.conversation(crashing_turn.conversation)
            while True:
                timeline = tl.Timeline(await talk.blocks())
                turn = timeline.turn(1)
                if turn.exit is not None:
                    return turn.exit.reason
                if turn.prompt is None:
                    tools = [WHERE] if crashing_turn.length == "client" else []
                    await talk.say("go", attachments=FILE, tools=tools)
                else:
                    waiting = list(turn.pending.values())
                    folder = Path(crashing_turn.folder)
                    await talk.resume(_given(waiting, set(turn.answers), folder))


def _given(waiting: Sequence[tl.ToolPending], answered: set[str], folder: Path) -> dict[str, Json]:
    return {
        item.call_id: run_on_client(item.call_id, folder) if item.client else ANSWERS[item.kind]
        for item in waiting
        if item.call_id not in answered
    }


def run_on_client(call_id: str, folder: Path) -> Json:
    """Run a call as the client, which keeps each result in a file `client`, and runs no call twice."""
    ledger = folder / "client"
    line = f"{call_id} at home"
    if line not in lines_of(ledger):
        add_line(ledger, line)
    return {"at": line}


def run(crashing_turn: CrashingTurn) -> None:
    """Live the turn; write down how it ended, and what was passed."""
    crash_point = CrashPoint(crashing_turn.point, crashing_turn.n)
    reason = asyncio.run(live(crashing_turn, crash_point))
    text = json.dumps([reason, crash_point.passed])
    Path(crashing_turn.folder, "said").write_text(text, encoding="utf-8")
