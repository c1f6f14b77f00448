"""Write a store with graphs that were cut off, as this version does: `python -m tests.old_stores.graphs.make NAME`.

What earlier versions wrote stays as it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loopline import Bundle, Harness
from loopline.crew import GraphOptions
from loopline.models import Capabilities, Prompt, Reply, TextDelta
from loopline.redaction.redacted_log import ForwardingLog
from loopline.store import SqlLog
from loopline.testing import Call, FakeClock
from loopline.timeline import Block, ConversationKey, Entry, TimelineLog
from tests.support.forked_processes import forked

FOLDER = Path(__file__).parent
bundle = Bundle(id="graphs", graph=GraphOptions())
Replies = Mapping[str, str]


def plan(*tasks: str, needs: object = ()) -> str:
    """Return the reply of a planner."""
    steps = [{"id": str(n), "task": task, "dependencies": needs} for n, task in enumerate(tasks, 1)]
    return json.dumps({"steps": steps})


def verdict(achieved: object, answer: str = "", feedback: str = "") -> str:
    """Return the reply of an analyst."""
    return json.dumps(
        {"achieved": achieved, "confidence": 0.9, "answer": answer, "feedback": feedback}
    )


class Answering:
    """A model that knows by the prompt who asks: the longest key that the prompt has names the reply."""

    name = "answering"
    capabilities = Capabilities(window=1_000_000)

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self.asked: list[str] = []

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Answer as the replies say; whoever asks first is told to call the graph."""
        text = "\n".join(map(str, prompt.messages))
        if "Begin." in text:
            calls = (Call("crew.graph", goal="the goal"),) if len(prompt.messages) == 1 else ()
            yield Reply(text="" if calls else "Done.", calls=calls)
            return
        key = max((key for key in self._replies if key in text), key=len)
        self.asked.append(key)
        yield TextDelta(text=self._replies[key])
        yield Reply(text=self._replies[key])


AGAIN = "Your last plan cannot be run"


@dataclass(frozen=True)
class Cut:
    """A graph that was cut off after the first block of that type in that child run, and the replies until then."""

    child: str
    type: str
    replies: Replies


CUTS: Mapping[str, Cut] = {
    "asks": Cut("~c1", "react.round.start", {"Plan how": plan("one")}),
    "plans-again": Cut("~c1.2", "react.exit", {"Plan how": "nothing", AGAIN: plan("one")}),
    "steps": Cut(
        "~c1.4",
        "react.exit",
        {"Plan how": plan("other", needs=None), AGAIN: plan("one", "two"), "Your step": "did it"},
    ),
    "says-it-is-done": Cut(
        "~c1.3",
        "react.exit",
        {"Plan how": plan("one"), "Your step": "did it", "Say whether": "It is done."},
    ),
    "begins-anew": Cut(
        "~c1.31",
        "react.exit",
        {
            "Plan how": plan("one"),
            "Your step": "did it",
            "Say whether": verdict(False, "", "the rest"),
            "Missing: the rest": plan("two"),
        },
    ),
}


class CuttingLog(ForwardingLog):
    """A log that kills its process after a block of that type in that conversation."""

    def __init__(self, log: TimelineLog, conversation: str, type: str) -> None:
        super().__init__(log)
        self._conversation = conversation
        self._type = type

    async def append(
        self, conversation: ConversationKey, entries: Sequence[Entry], **options: Any
    ) -> Sequence[Block]:
        """Append, and die at the chosen block."""
        blocks = await super().append(conversation, entries, **options)
        types = [entry.body.type for entry in entries]
        if conversation.name == self._conversation and self._type in types:
            os.kill(os.getpid(), signal.SIGKILL)
        return blocks


async def _live(store: str, name: str) -> None:
    cut = CUTS[name]
    async with await SqlLog.open(store) as log:
        cutting = CuttingLog(log, f"{name}{cut.child}", cut.type)
        model = Answering(cut.replies)
        async with Harness.open(bundle, store=cutting, model=model, clock=FakeClock()) as harness:
            await harness.conversation(name).say("Begin.")


def run(store: str, name: str) -> None:
    """Run one graph until its process is killed."""
    asyncio.run(_live(store, name))


def main() -> None:
    """Write the store under that name."""
    with TemporaryDirectory() as folder:
        for name in CUTS:
            process = forked.Process(target=run, args=(f"sqlite:///{folder}/talk.db", name))
            process.start()
            process.join()
        with closing(sqlite3.connect(f"{folder}/talk.db")) as database:
            dumped = "\n".join(database.iterdump())
    (FOLDER / f"{sys.argv[1]}.sql").write_text(f"{dumped}\n", "utf-8")


if __name__ == "__main__":
    main()
