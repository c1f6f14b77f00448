"""A set of skills: loaded from a folder, filtered for a consumer, and listed in a prompt."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from loopline.errors import BundleError, RefError
from loopline.skills.skill import DEFAULT_NAMESPACE, FILE, REACT, Skill, SkillSelection, read_skills

GALLERY_CHARACTERS = 16_000
"""The maximum length of a gallery. Skills that do not fit are listed by ref only, and further skills are counted."""


@dataclass(frozen=True, slots=True)
class Skills:
    """Skills in the order of their names.

    `imported` skills can be read, but are not listed. `warnings` describe settings and folders without effect.
    """

    skills: tuple[Skill, ...] = ()
    warnings: tuple[str, ...] = ()
    imported: tuple[Skill, ...] = ()

    def __iter__(self) -> Iterator[Skill]:
        return iter(self.skills)

    def __len__(self) -> int:
        return len(self.skills)

    @staticmethod
    def load(root: Path) -> Skills:
        """Load the skills at `<root>/<namespace>/<id>/SKILL.md`, and at `<root>/<id>/SKILL.md` with the namespace `custom`.

        Raises:
            BundleError: the folder is missing, files are malformed, or two skills have the same name.
        """
        if not root.is_dir():
            raise BundleError(f"no folder of skills at {root}: create it, or name another root")
        own = [(path, DEFAULT_NAMESPACE) for path in sorted(root.glob(f"*/{FILE}"))]
        spaced = [(path, path.parent.parent.name) for path in sorted(root.glob(f"*/*/{FILE}"))]
        by_id: dict[str, Skill] = {}
        for skill in read_skills([*own, *spaced]):
            existing = by_id.setdefault(skill.full_id, skill)
            if existing is not skill:
                raise BundleError(
                    f"{skill.path}:1: {skill.full_id!r} is also at {existing.path}: rename one of them"
                )
        skills = tuple(skill for _, skill in sorted(by_id.items()))
        written = tuple(warning for skill in skills for warning in skill.warnings)
        return Skills(skills, (*written, *_empty(root)))

    def enabled(self, config: Mapping[str, SkillSelection], consumer: str = REACT) -> Skills:
        """Return the skills that `consumer` sees; without a selection, all skills that are not internal."""
        selection = config.get(consumer, SkillSelection())
        selected = tuple(
            skill
            for skill in self.skills
            if selection.takes(skill.namespace, skill.id)
            and (not skill.include_for or consumer in skill.include_for)
        )
        seen = {skill.full_id for skill in selected}
        needed = {name for skill in selected for name in skill.closure} - seen
        imported = tuple(skill for skill in self.skills if skill.full_id in needed)
        return Skills(selected, self.warnings, imported)

    def find(self, namespace: str, id: str) -> Skill:
        """Return the skill with this namespace and id.

        Raises:
            RefError: there is no such skill; the message names the most similar ones.
        """
        for skill in (*self.skills, *self.imported):
            if (skill.namespace, skill.id) == (namespace, id):
                return skill
        name = f"{namespace}.{id}"
        close = get_close_matches(name, [skill.full_id for skill in self.skills], 3, 0.0)
        hint = f"nearest are {close}" if close else "there are no skills here"
        raise RefError(f"no skill {name}: {hint}")

    def gallery(self, offered: Container[str] | None = None) -> str:
        """Return a line for each skill: its ref, name and description, when to use it, and which of its tools are offered.

        `offered` are the ids of the tools that are offered; None leaves the tools out.
        """
        lines: list[str] = []
        room = GALLERY_CHARACTERS
        unnamed = 0
        for skill in self.skills:
            line = f"{skill}{_tools(skill, offered)}"
            line = line if len(line) <= room else f"sk:{skill.full_id}"
            if len(line) > room:
                unnamed += 1
                continue
            lines.append(line)
            room -= len(line)
        remainder = [f"and {unnamed} more skills"] if unnamed else []
        return "\n".join([*lines, *remainder])


def _tools(skill: Skill, offered: Container[str] | None) -> str:
    if offered is None or not skill.tools:
        return ""
    here = [tool.id for tool in skill.tools if tool.id in offered]
    absent = [tool.id for tool in skill.tools if tool.id not in offered]
    named = [f"tools: {', '.join(here)}"] if here else []
    lacking = [f"not offered here: {', '.join(absent)}"] if absent else []
    return f" [{'; '.join([*named, *lacking])}]"


def _empty(root: Path) -> Iterator[str]:
    """Yield a warning for each folder without a SKILL.md in it or one level below."""
    for folder in sorted(root.iterdir()):
        holds = folder.is_dir() and not folder.name.startswith((".", "_"))
        if holds and not [*folder.glob(FILE), *folder.glob(f"*/{FILE}")]:
            yield f"{folder}: no {FILE} here or one folder below"
