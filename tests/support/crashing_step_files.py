"""A process whose graph has three steps that change files of the conversation, and that dies after the n-th append."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

from loopline import Bundle, Harness, LooplineError, Store
from loopline.crew import GraphOptions
from loopline.models import ToolCall
from loopline.store import SqlLog
from loopline.testing import Call
from loopline.timeline import FileAdded
from tests.support.crashing_turns import CrashPoint, KillingLog
from tests.support.crews import Scripts
from tests.support.forked_processes import forked

NEEDS: dict[str, list[str]] = {"a": [], "b": [], "c": ["a", "b"]}
PLAN = json.dumps(
    {
        "steps": [
            {"id": id, "task": f"do {id}", "dependencies": needed} for id, needed in NEEDS.items()
        ]
    }
)
ANALYSIS = json.dumps({"achieved": True, "confidence": 1, "answer": "Done."})
WHOLE = [
    ("app.py", 1, "a = 0\n"),
    ("app.py", 2, "a = 3\n"),
    ("b.py", 1, "b = 1\n"),
    ("c.py", 1, "c = 1\n"),
]
"""The files that the conversation has after a graph that was run to its end."""

bundle = Bundle(
    id="graphs",
    graph=GraphOptions(files="write"),
    configuration={"react": {"workspace": "latest"}},
)


def written(path: str, content: str) -> ToolCall:
    """Return the call that writes a file."""
    return Call("react.write", path=f"files/{path}", content=content)


def scripts() -> Scripts:
    """Return the model of all runs."""
    return Scripts(
        {
            "Begin": [written("app.py", "a = 0\n"), Call("crew.graph", goal="the goal"), "Ok."],
            "Plan how": [PLAN],
            "Your step: do a": [written("app.py", "a = 1\n"), "did a"],
            "Your step: do b": [written("b.py", "b = 1\n"), "did b"],
            "Your step: do c": [
                written("app.py", "a = 3\n"),
                written("c.py", "c = 1\n"),
                "did c",
            ],
            "Say whether": [ANALYSIS],
        }
    )


async def live(store: str, n: int) -> None:
    """Begin the turn, or carry it on when there is one."""
    async with await SqlLog.open(store) as log:
        mortal = KillingLog(log, CrashPoint("after" if n else "never", n))
        async with Harness.open(bundle, store=mortal, model=scripts()) as harness:
            talk = harness.conversation("c")
            summary = await log.find(talk.conversation)
            await (talk.resume() if summary else talk.say("Begin"))


def run(store: str, n: int) -> None:
    """Live the turn; with nothing to carry on, nothing is said."""
    with contextlib.suppress(LooplineError):
        asyncio.run(live(store, n))


def run_process(folder: Path, n: int) -> int | None:
    """Return how a process that runs the turn ends; with 0 for `n` it lives."""
    process = forked.Process(target=run, args=(f"sqlite:///{folder}/talk.db", n))
    process.start()
    process.join()
    return process.exitcode


async def files(folder: Path) -> list[tuple[str, int, str | None]]:
    """Return the versions of files that a store holds of the conversation."""
    async with Store.open(f"sqlite:///{folder}/talk.db", read_only=True) as store:
        bodies = [block.body for block in await store.conversation("c").blocks()]
    return [(body.path, body.version, body.text) for body in bodies if isinstance(body, FileAdded)]
