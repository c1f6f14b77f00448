"""`loopline new` and `loopline bundles`: a bundle to begin with, and those that there are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.table import Table
from rich.text import Text

from loopline.bundle import Available, Installation, available, create
from loopline.cli.choices import Choices
from loopline.cli.door import ANSWERED
from loopline.cli.pasting import Started
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, visible
from loopline.models import Json, dumps

QUESTION = "How long is this sentence?"
EXAMPLE = ("text.statistics", '{"text": "One. Two more words!"}')
"""A tool that a new bundle has, and arguments for it."""


async def new(name: str, parent: Path, screen: Screen) -> int:
    """Write a new bundle, and print what to do with it next."""
    project = create(name, parent, Installation.now())
    files = sorted(path for path in project.rglob("*") if path.is_file())
    for file in files:
        screen.note(Text(str(file), style=QUIET))
    screen.note(Text(f"✓ {project} is a bundle; next:", style="green"))
    for line in next_commands(project, Started.now(), tested=find_spec("pytest") is not None):
        screen.command(line)
    return ANSWERED


def next_commands(project: Path, started: Started, *, tested: bool) -> list[str]:
    """Talk to a new bundle, call its tool, and run its test, or without pytest check it."""
    place = str(project) if project.parts[:-1] else f"./{project}"
    test = [*started.python, "-m", "pytest", place]
    check = [*started.program, "check", place]
    return [
        shlex.join([*started.program, "run", place, QUESTION]),
        shlex.join([*started.program, "tool", place, *EXAMPLE]),
        shlex.join(test if tested else check),
    ]


async def bundles(choices: Choices, screen: Screen) -> int:
    """Print what can be opened by name."""
    found = available()
    if choices.as_json:
        rows: list[Json] = [{"name": one.name, "place": one.place} for one in found]
        screen.raw(dumps(rows))
    elif found:
        plain = "\n".join(f"{visible(one.name)}\t{visible(one.place)}" for one in found)
        screen.answer_whole(_bundle_table(found), plain)
    else:
        screen.note(Text("none installed and none in ./bundles: begin one with loopline new NAME"))
    return ANSWERED


def _bundle_table(found: Sequence[Available]) -> Table:
    shown = Table.grid(padding=(0, 2))
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(style=QUIET, overflow="fold")
    for one in found:
        shown.add_row(visible(one.name), visible(one.place))
    return shown
