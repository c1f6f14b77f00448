"""A set of skills: loaded from a folder, filtered for a consumer, listed in a prompt; with imports between skills.

Skills of a project and of a user come from folders outside of a bundle.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path

from loopline.errors import BundleError, RefError
from loopline.names import nearest_hint
from loopline.skills.skill import (
    COMPANIONS,
    DEFAULT_NAMESPACE,
    DIGEST,
    REACT,
    SKILL_FILE,
    Skill,
    SkillSelection,
    read_skill,
    read_skills,
)

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
        own = [(path, DEFAULT_NAMESPACE) for path in sorted(root.glob(f"*/{SKILL_FILE}"))]
        spaced = [
            (path, path.parent.parent.name) for path in sorted(root.glob(f"*/*/{SKILL_FILE}"))
        ]
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
        """Return the skills that `consumer` sees; if `config` lacks it, all skills outside the namespace `internal`.

        A skill with `include_for` is left out for other consumers. Skills that the result imports become `imported`.
        """
        selection = config.get(consumer, SkillSelection())
        selected = tuple(
            skill
            for skill in self.skills
            if selection.takes(skill.namespace, skill.id)
            and (not skill.include_for or consumer in skill.include_for)
        )
        seen = {skill.full_id for skill in selected}
        needed = {member.full_id for skill in selected for member in skill.imported} - seen
        imported = tuple(skill for skill in self.skills if skill.full_id in needed)
        return Skills(selected, self.warnings, imported)

    def find(self, namespace: str, id: str) -> Skill:
        """Return the skill with this namespace and id, also if it is only imported; its body includes its imports.

        Raises:
            RefError: the skill does not exist; the message names the 3 most similar skills.
        """
        for skill in (*self.skills, *self.imported):
            if (skill.namespace, skill.id) == (namespace, id):
                return skill.with_imports()
        name = f"{namespace}.{id}"
        close = get_close_matches(name, [skill.full_id for skill in self.skills], 3, 0.0)
        hint = f"nearest are {close}" if close else "there are no skills here"
        raise RefError(f"no skill {name}: {hint}")

    def gallery(self, offered: Container[str] | None = None) -> str:
        """Return a line for each skill: its ref, name and description, when to use it, and which of its tools are offered.

        `offered` are the ids of the tools that are offered; None leaves the tools out. A line that exceeds the rest
        of GALLERY_CHARACTERS is shortened to `sk:` and the full id; skills that do not fit either are only counted.
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
    """Render which tools of a skill are offered and which are not; "" if `offered` is None or it lists none."""
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
        if holds and not [*folder.glob(SKILL_FILE), *folder.glob(f"*/{SKILL_FILE}")]:
            yield f"{folder}: no {SKILL_FILE} here or one folder below"


def join_imports(skills: Skills) -> Skills:
    """Return the skills with their direct and indirect imports, which `Skill.with_imports` appends.

    Raises:
        BundleError: an imported skill does not exist, or imports form a cycle; the message names file and line.
    """
    by_id = {skill.full_id: skill for skill in skills}
    return replace(skills, skills=tuple(_resolve_imports(skill, by_id) for skill in skills))


def _resolve_imports(skill: Skill, by_id: Mapping[str, Skill]) -> Skill:
    """Return a skill with its direct and indirect imports, and with a digest of all of them.

    Raises:
        BundleError: an imported skill does not exist, or imports form a cycle.
    """
    if not skill.imports:
        return skill
    imported: dict[str, Skill] = {}
    _collect([skill], by_id, imported)
    digests = "\n".join([skill.digest, *(other.digest for other in imported.values())])
    digest = sha256(digests.encode()).hexdigest()[:DIGEST]
    return replace(skill, digest=digest, imported=tuple(imported.values()))


def _collect(path: Sequence[Skill], by_id: Mapping[str, Skill], found: dict[str, Skill]) -> None:
    """Add the direct and indirect imports of the last skill of the path to `found`, each before its own imports.

    `path` is the chain of imports from the first skill to the last.

    Raises:
        BundleError: an imported skill does not exist, or the imports form a cycle.
    """
    skill = path[-1]
    for name in skill.imports:
        imported = _find_imported(name, skill, by_id)
        if imported in path:
            circle = [*path[path.index(imported) :], imported]
            names = " → ".join(member.full_id for member in circle)
            raise BundleError(
                f"{skill.path}:{skill.imports_line}: the imports form a cycle: {names}"
            )
        if imported.full_id not in found:
            found[imported.full_id] = imported
            _collect([*path, imported], by_id, found)


def _find_imported(name: str, skill: Skill, by_id: Mapping[str, Skill]) -> Skill:
    """Return the skill with a full name, as `public.tea`, or with a name in the namespace of `skill`, as `tea`.

    Raises:
        BundleError: the skill does not exist; the message names the nearest skill.
    """
    full_name = name if name in by_id else f"{skill.namespace}.{name}"
    if full_name not in by_id:
        hint = nearest_hint(full_name, by_id)
        raise BundleError(f"{skill.path}:{skill.imports_line}: no skill {name!r} to import: {hint}")
    return by_id[full_name]


SKILLS_FOLDER = Path(".agents") / "skills"
MAX_SKILLS = 200


@dataclass(frozen=True, slots=True)
class SkillPlace:
    """A folder with one folder for each skill, and the namespace of these skills."""

    namespace: str
    root: Path


def add_places(skills: Skills, places: Sequence[SkillPlace]) -> Skills:
    """Return the skills, followed by the skills of the places in their order.

    A skill of a place is left out with a warning if its id exists already, if it is malformed, or if an import fails.
    Files outside of a bundle must not break the bundle. Only the first MAX_SKILLS skills of a place are read.
    """
    taken = {skill.id: skill for skill in skills}
    warnings = list[str]()
    added = list[Skill]()
    for place in places:
        warnings += _warn_of_empty_folders(place.root)
        for path in sorted(place.root.glob(f"*/{SKILL_FILE}"))[:MAX_SKILLS]:
            try:
                _refuse_links(path)
                skill = read_skill(path, place.namespace)
            except (BundleError, OSError) as error:
                warnings.append(f"left out: {error}")
                continue
            if skill.id in taken:
                warnings.append(
                    f"{path}:1: left out: {taken[skill.id].path} has the same name and comes first"
                )
                continue
            taken[skill.id] = skill
            added.append(skill)
    by_id = {skill.full_id: skill for skill in (*skills, *added)}
    joined: list[Skill] = []
    for skill in added:
        try:
            joined.append(_resolve_imports(skill, by_id))
        except BundleError as error:
            warnings.append(f"left out: {error}")
    own = (warning for skill in joined for warning in skill.warnings)
    return Skills((*skills, *joined), (*skills.warnings, *warnings, *own))


def _refuse_links(path: Path) -> None:
    """Raise a BundleError if a file of a skill is a link, which could expose files outside of its folder."""
    for name in (SKILL_FILE, *COMPANIONS):
        if (path.parent / name).is_symlink():
            raise BundleError(f"{path.parent / name}:1: it is a link: put the file itself here")


def _warn_of_empty_folders(root: Path) -> Iterator[str]:
    """Yield a warning for each of the first 200 folders of a place without a SKILL.md."""
    folders = sorted(path for path in root.glob("*/") if not path.name.startswith((".", "_")))
    for folder in folders[:MAX_SKILLS]:
        if not [*folder.glob(SKILL_FILE)]:
            yield f"left out: {folder}: no {SKILL_FILE} in this folder"
