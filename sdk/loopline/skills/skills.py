"""The skills of a bundle: loaded from a folder, selected for an agent, listed for a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from loopline.errors import BundleError, RefError
from loopline.skills.selection import REACT, Selection
from loopline.skills.skill import DEFAULT_NAMESPACE, FILE, Skill, read_skill


@dataclass(frozen=True, slots=True)
class Skills:
    """Skills in the order of their names. `warnings` say what was found but means nothing."""

    skills: tuple[Skill, ...] = ()
    warnings: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Skill]:
        return iter(self.skills)

    def __len__(self) -> int:
        return len(self.skills)

    @staticmethod
    def load(root: Path) -> Skills:
        """The skills at `<root>/<namespace>/<id>/SKILL.md`, and at `<root>/<id>/SKILL.md` as `custom`.

        Raises:
            BundleError: the folder is missing, a file is malformed, or two have the same name.
        """
        if not root.is_dir():
            raise BundleError(f"no folder of skills at {root}: create it, or name another root")
        own = [read_skill(path, DEFAULT_NAMESPACE) for path in sorted(root.glob(f"*/{FILE}"))]
        spaced = [
            read_skill(path, path.parent.parent.name) for path in sorted(root.glob(f"*/*/{FILE}"))
        ]
        found = dict[str, Skill]()
        for skill in (*own, *spaced):
            other = found.setdefault(skill.full_id, skill)
            if other is not skill:
                raise BundleError(
                    f"{skill.path}:1: {skill.full_id!r} is also at {other.path}: rename one of them"
                )
        skills = tuple(skill for _, skill in sorted(found.items()))
        written = tuple(warning for skill in skills for warning in skill.warnings)
        return Skills(skills, (*written, *_empty(root)))

    def enabled(self, config: Mapping[str, Selection], consumer: str = REACT) -> Skills:
        """Those that `consumer` sees; without an entry for it, all but the internal ones."""
        selection = config.get(consumer, Selection())
        taken = (skill for skill in self.skills if selection.takes(skill.namespace, skill.id))
        return Skills(tuple(taken), self.warnings)

    def find(self, namespace: str, id: str) -> Skill:
        """The skill of that name.

        Raises:
            RefError: there is none; the message names those that come close.
        """
        for skill in self.skills:
            if (skill.namespace, skill.id) == (namespace, id):
                return skill
        raise RefError(f"no skill {namespace}.{id}: {self._close(f'{namespace}.{id}')}")

    def gallery(self) -> str:
        """A line for each skill: its ref, its name, what it is and when to use it."""
        return "\n".join(map(str, self.skills))

    def _close(self, name: str) -> str:
        close = get_close_matches(name, [skill.full_id for skill in self.skills], 3, 0.0)
        return f"nearest are {close}" if close else "there are no skills here"


def _empty(root: Path) -> Iterator[str]:
    """A word on each folder that looks like a skill's and has no SKILL.md."""
    for folder in sorted(root.iterdir()):
        holds = folder.is_dir() and not folder.name.startswith((".", "_"))
        if holds and not [*folder.glob(FILE), *folder.glob(f"*/{FILE}")]:
            yield f"{folder}: no {FILE} in it, nor one folder below"
