"""A process whose agent changes a file, takes the conversation over and has its answer reviewed, and that dies at the n-th append."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

from loopline import Agent, Bundle, Harness, LooplineError, Store
from loopline.crew import Quality, Refine
from loopline.store import SqlLog
from loopline.testing import Call
from loopline.timeline import AgentSwitched, Completion, Exit, FileAdded, RunChild
from tests.support.crashing_turns import CrashPoint, KillingLog
from tests.support.crews import Scripts, handoff
from tests.support.forked_processes import forked

DRAFT = "The lake is deep and cold, and nobody has ever seen its ground, which lies far below. " * 4
ANSWER = "Nobody has ever seen the ground of the cold lake."
CODER = Agent(name="coder", description="Codes.", tools=[], files="write", leads=True)

bundle = Bundle(
    id="desk",
    agents=[CODER],
    quality=Quality(refine=Refine(), own_turns=True),
    configuration={"react": {"workspace": "latest"}},
)


def scripts() -> Scripts:
    """Return the model of all runs."""
    return Scripts(
        {
            "Begin": [
                Call("react.write", path="files/app.py", content="a = 1\n"),
                Call("crew.delegate", agent="coder", task="Change it"),
                Call("crew.hand_over", agent="coder"),
                DRAFT,
                Call("crew.review"),
            ],
            "Change it": [
                Call("react.write", path="files/app.py", content="a = 2\n"),
                handoff("Changed, and checked, and read once more. " * 6),
            ],
            "[REFINE_DRAFT]": [f"<revised>{ANSWER}</revised>"],
        }
    )


async def live(store: str, point: str, n: int) -> str:
    """Begin the turn, or carry it on when there is one; return its answer."""
    async with await SqlLog.open(store) as log:
        mortal = KillingLog(log, CrashPoint(point, n))
        async with Harness.open(bundle, store=mortal, model=scripts()) as harness:
            talk = harness.conversation("c")
            summary = await log.find(talk.conversation)
            return (await (talk.resume() if summary else talk.say("Begin"))).answer


def run(store: str, point: str, n: int) -> None:
    """Live the turn; with nothing to carry on, nothing is said."""
    with contextlib.suppress(LooplineError):
        asyncio.run(live(store, point, n))


def run_process(folder: Path, point: str, n: int) -> int | None:
    """Return how a process that runs the turn ends."""
    process = forked.Process(target=run, args=(f"sqlite:///{folder}/talk.db", point, n))
    process.start()
    process.join()
    return process.exitcode


async def findings(folder: Path) -> dict[str, object]:
    """Return what a store holds of the turn."""
    async with Store.open(f"sqlite:///{folder}/talk.db", read_only=True) as store:
        bodies = [block.body for block in await store.conversation("c").blocks()]
    return {
        "files": [(body.version, body.text) for body in bodies if isinstance(body, FileAdded)],
        "answers": [body.text for body in bodies if isinstance(body, Completion)],
        "leaders": [body.agent for body in bodies if isinstance(body, AgentSwitched)],
        "children": Counter(
            body.agent for body in bodies if isinstance(body, RunChild) and not body.reason
        ),
        "ended": isinstance(bodies[-1], Exit),
    }


WHOLE: dict[str, object] = {
    "files": [(1, "a = 1\n"), (2, "a = 2\n")],
    "answers": [ANSWER],
    "leaders": ["coder"],
    "children": Counter({"refiner": 2, "coder": 1}),
    "ended": True,
}
