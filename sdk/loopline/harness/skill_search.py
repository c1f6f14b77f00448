"""Where skills are looked for beside the bundle: in the project around the working folder, and in the user's own folders."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from loopline.bundle import LoadedBundle, SkillSearch, load_skills
from loopline.skills import SKILLS_FOLDER, SkillPlace, Skills

logger: logging.Logger = logging.getLogger("loopline")

_HOME, _CONFIG = "HOME", "XDG_CONFIG_HOME"
PROJECT, USER = "project", "user"
"""The namespaces of the skills that are found there."""


def skill_places(
    search: SkillSearch, environment: Mapping[str, str], folder: Path
) -> tuple[SkillPlace, ...]:
    """Return the places that are searched, the first of which wins."""
    places: list[SkillPlace] = []
    if search != "bundle":
        places += (SkillPlace(PROJECT, root / SKILLS_FOLDER) for root in _project_folders(folder))
    if search == "all":
        places += (SkillPlace(USER, root) for root in _user_folders(environment))
    return tuple(places)


def _project_folders(folder: Path) -> list[Path]:
    """Return the folder and those around it up to its repository's; without a repository the folder alone."""
    around = [folder, *folder.parents]
    top = next((index for index, root in enumerate(around) if (root / ".git").exists()), 0)
    return around[: top + 1]


def _user_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environment[_HOME]) if environment.get(_HOME) else Path.home()
    yield home / SKILLS_FOLDER
    configured = Path(environment.get(_CONFIG, ""))
    config = configured if configured.is_absolute() else home / ".config"
    yield config / "agents" / "skills"


def skill_finder(
    bundle: LoadedBundle, search: SkillSearch, environment: Mapping[str, str]
) -> Callable[[str], Skills]:
    """Return what gives the skills that a descriptor module selects, once for each; what was left out elsewhere is logged."""

    @cache
    def found(module: str) -> Skills:
        places = skill_places(search, environment, Path.cwd())
        skills = load_skills(module, bundle, places=places)
        if places:
            for warning in skills.warnings:
                logger.warning("%s", warning)
        return skills

    return found
