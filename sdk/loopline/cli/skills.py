"""`loopline skills check`: skills held to the rules of the Agent Skills format."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, FAILED, UsageError
from loopline.cli.terminal import WARNING, Screen, escape, quantity
from loopline.models import Json
from loopline.skills import check_skill, skill_folders

PLACES = (".agents/skills", "skills")
"""Where skills are looked for if no folder is given."""


async def check_skills(
    choices: Choices,
    screen: Screen,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FOLDER…", help="Skills, or folders of skills."),
    ] = None,
) -> int:
    """Check skills by the rules of the format."""
    roots = await asyncio.to_thread(_roots, folders or [])
    skills = {
        folder: check_skill(folder) for root in roots for folder in skill_folders(root) or [root]
    }
    problems = [problem for skill_problems in skills.values() for problem in skill_problems]
    if choices.as_json:
        documents: list[Json] = [
            {"path": str(problem.path), "line": problem.line, "problem": problem.text}
            for problem in problems
        ]
        screen.write_json({"skills": list[Json](map(str, skills)), "problems": documents})
    else:
        for problem in problems:
            screen.print(Text(escape(str(problem)), WARNING))
        screen.note(f"{quantity(len(problems), 'problem')} in {quantity(len(skills), 'skill')}")
    return FAILED if problems else ANSWERED


def _roots(folders: Sequence[Path]) -> Sequence[Path]:
    """Return the folders to check: those given, else those where skills usually are.

    Raises:
        UsageError: there is none, or one of them is no folder.
    """
    roots = folders or [Path(place) for place in PLACES if Path(place).is_dir()]
    if not roots:
        raise UsageError(f"no skills here: name a folder, or make one of {', '.join(PLACES)}")
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"{root} is no folder")
    return roots
