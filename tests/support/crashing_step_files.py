"""A process whose graph has three steps that change files of the conversation, and that dies after the n-th append."""

from __future__ import annotations

from pathlib import Path

from loopline import Bundle
from loopline.crew import GraphOptions
from loopline.models import ToolCall
from loopline.testing import Call
from loopline.timeline import FileAdded
from tests.support.crews import Scripts, analysis, plan_of
from tests.support.killed_processes import read_blocks

NEEDS: dict[str, list[str]] = {"a": [], "b": [], "c": ["a", "b"]}
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
    return Call("react.write", path=f"files/{path}", content=content)


def make_turn(folder: Path) -> tuple[Bundle, Scripts]:
    del folder
    scripts = Scripts(
        {
            "Begin": [written("app.py", "a = 0\n"), Call("crew.graph", goal="the goal"), "Ok."],
            "Plan how": [plan_of(NEEDS)],
            "Your step: do a": [written("app.py", "a = 1\n"), "did a"],
            "Your step: do b": [written("b.py", "b = 1\n"), "did b"],
            "Your step: do c": [
                written("app.py", "a = 3\n"),
                written("c.py", "c = 1\n"),
                "did c",
            ],
            "Say whether": [analysis("Done.")],
        }
    )
    return bundle, scripts


async def files(folder: Path) -> list[tuple[str, int, str | None]]:
    """Return the versions of files that a store holds of the conversation."""
    bodies = [block.body for block in await read_blocks(folder)]
    return [(body.path, body.version, body.text) for body in bodies if isinstance(body, FileAdded)]
