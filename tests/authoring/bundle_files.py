"""What the tests of authoring share: files written in one go, and a call as the loop makes it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent

from loopline.models import Json
from loopline.prompt import Native, View
from loopline.reader import ConversationView, Reader
from loopline.timeline import Moment, Timeline
from loopline.tools import ToolContext, ToolInvocation

BUNDLE = """
from loopline import BaseWorkflow, Bundle

class Guide(BaseWorkflow):
    instructions = "Guide."

bundle = Bundle(id="guide", workflow=Guide)
"""
TOOLS = '''
from loopline import tool

@tool(effect="read")
def find(name: str) -> str:
    """Find it."""
    return f"found {name}"
'''
SPECS = 'TOOLS_SPECS = [{"ref": "tools.py", "alias": "shop"}]\n'


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """The folder, with each of the files in it; an indented text is moved to the left."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), "utf-8")
    return folder


def guide(folder: Path, files: Mapping[str, str] | None = None) -> Path:
    """A bundle `guide` in the folder, with a tool and these files."""
    own = {"__init__.py": BUNDLE, "tools.py": TOOLS, "tools_descriptor.py": SPECS}
    return write(folder / "guide", {**own, **(files or {})})


def line_of(file: Path, text: str) -> str:
    """The place in a file, as an error names it, of the first line that holds the text."""
    lines = file.read_text("utf-8").splitlines()
    number = next(at for at, line in enumerate(lines, 1) if text in line)
    return f"{file.resolve()}:{number}"


def a_context(properties: Mapping[str, Json] | None = None) -> ToolContext:
    """What the function of a tool is given in an empty conversation."""
    return ToolContext(
        call_id="c1",
        idempotency_key="k1",
        conversation="c",
        turn_id="turn_1",
        user="ann",
        properties=properties or {},
        scratchpad={},
        on_progress=lambda _: None,
    )


def a_call(properties: Mapping[str, Json] | None = None) -> ToolInvocation:
    """A call in an empty conversation."""
    timeline = Timeline()
    moment = Moment(ts=datetime(2026, 1, 1, tzinfo=UTC), turn_id="turn_1")
    return ToolInvocation(
        make_context=lambda: a_context(properties),
        timeline=timeline,
        view=View(Native()),
        reader=Reader(conversation=ConversationView(timeline)),
        moment=moment,
    )
