"""A process whose agent changes a file, takes the conversation over and has its answer reviewed, and that dies at the n-th append."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from loopline import Agent, Bundle
from loopline.crew import Quality, Refine
from loopline.testing import Call
from loopline.timeline import AgentSwitched, Completion, Exit, FileAdded, RunChild
from tests.support.crews import Scripts, handoff
from tests.support.killed_processes import read_blocks

DRAFT = "The lake is deep and cold, and nobody has ever seen its ground, which lies far below. " * 4
ANSWER = "Nobody has ever seen the ground of the cold lake."
CODER = Agent(name="coder", description="Codes.", tools=[], files="write", leads=True)

bundle = Bundle(
    id="desk",
    agents=[CODER],
    quality=Quality(refine=Refine(), own_turns=True),
    configuration={"react": {"workspace": "latest"}},
)


def make_turn(folder: Path) -> tuple[Bundle, Scripts]:
    del folder
    scripts = Scripts(
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
    return bundle, scripts


async def findings(folder: Path) -> dict[str, object]:
    bodies = [block.body for block in await read_blocks(folder)]
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
