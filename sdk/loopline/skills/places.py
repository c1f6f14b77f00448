"""Places of skills beside a bundle: those of a project and those of a user. What stands first wins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopline.errors import BundleError
from loopline.skills.imports import joined_with_imports
from loopline.skills.skill import COMPANIONS, FILE, Skill, read_skill
from loopline.skills.skills import Skills

FOLDER = Path(".agents") / "skills"
MAX_SKILLS = 200


@dataclass(frozen=True, slots=True)
class SkillPlace:
    """A folder of skills, each in a folder of its own, and the namespace that they get."""

    namespace: str
    root: Path


def with_places(skills: Skills, places: Sequence[SkillPlace]) -> Skills:
    """Return the skills with those of the places, in their order.

    A skill whose id is taken is left out, and so is one that is malformed or imports what there is not: nobody's bundle
    breaks by what somebody else put there. Each is a warning.
    """
    taken = {skill.id: skill for skill in skills}
    warnings, added = list[str](), list[Skill]()
    for place in places:
        warnings += _without_skill(place.root)
        for path in _skill_files(place.root):
            try:
                _refuse_links(path)
                skill = read_skill(path, place.namespace)
            except (BundleError, OSError) as error:
                warnings.append(f"left out: {error}")
                continue
            if skill.id in taken:
                warnings.append(
                    f"{path}:1: left out: {taken[skill.id].path} has this name and stands first"
                )
                continue
            taken[skill.id] = skill
            added.append(skill)
    by_id = {skill.full_id: skill for skill in (*skills, *added)}
    joined: list[Skill] = []
    for skill in added:
        try:
            joined.append(joined_with_imports(skill, by_id))
        except BundleError as error:
            warnings.append(f"left out: {error}")
    own = (warning for skill in joined for warning in skill.warnings)
    return Skills((*skills, *joined), (*skills.warnings, *warnings, *own))


def _refuse_links(path: Path) -> None:
    """Refuse a skill whose own files are links: one of a stranger's could show what stands elsewhere.

    Raises:
        BundleError: one of them is a link.
    """
    for name in (FILE, *COMPANIONS):
        if (path.parent / name).is_symlink():
            raise BundleError(f"{path.parent / name}:1: it is a link: put the file itself here")


def _skill_files(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from sorted(root.glob(f"*/{FILE}"))[:MAX_SKILLS]


def _without_skill(root: Path) -> Iterator[str]:
    """Yield a warning for each folder of a place that looks like a skill's and has no SKILL.md."""
    folders = sorted(path for path in root.glob("*/") if not path.name.startswith((".", "_")))
    for folder in folders[:MAX_SKILLS]:
        if not [*folder.glob(FILE)]:
            yield f"left out: {folder}: no {FILE} in this folder"
