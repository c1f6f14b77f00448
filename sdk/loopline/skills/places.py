"""Imports between skills, and skills from folders outside of a bundle: those of a project and of a user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path

from loopline.errors import BundleError
from loopline.skills.skill import COMPANIONS, DIGEST, FILE, Skill, read_skill
from loopline.skills.skills import Skills
from loopline.timeline import Source, citations


def join_imports(skills: Skills) -> Skills:
    """Return the skills with the bodies of their direct and indirect imports appended.

    Raises:
        BundleError: an imported skill does not exist, or imports form a cycle; the message names file and line.
    """
    by_id = {skill.full_id: skill for skill in skills}
    return replace(skills, skills=tuple(join_imported_bodies(skill, by_id) for skill in skills))


def join_imported_bodies(skill: Skill, by_id: Mapping[str, Skill]) -> Skill:
    """Return a skill with the bodies of its direct and indirect imports appended, and their sources renumbered.

    Raises:
        BundleError: an imported skill does not exist, or imports form a cycle.
    """
    if not skill.imports:
        return skill
    imported: dict[str, Skill] = {}
    _collect([skill], by_id, imported)
    sources = dict(skill.sources)
    bodies = [skill.body]
    short_bodies = [skill.compact or skill.body]
    for name, other in imported.items():
        numbers = _append_sources(other.sources, sources)
        heading = f"# Imported: {name}\n\n"
        bodies.append(heading + citations.renumber(other.body, numbers))
        short = citations.renumber(other.compact or other.body, numbers)
        short_bodies.append(heading + short)
    digests = "\n".join([skill.digest, *(other.digest for other in imported.values())])
    is_shorter = bool(skill.compact) or any(other.compact for other in imported.values())
    return replace(
        skill,
        body="\n\n".join(bodies),
        compact="\n\n".join(short_bodies) if is_shorter else "",
        digest=sha256(digests.encode()).hexdigest()[:DIGEST],
        closure=tuple(imported),
        sources=sources,
    )


def _append_sources(added: Mapping[int, Source], sources: dict[int, Source]) -> dict[int, int]:
    """Append sources with new numbers, and return the new numbers by the old ones."""
    numbers: dict[int, int] = {}
    for number, source in added.items():
        numbers[number] = max(sources, default=0) + 1
        sources[numbers[number]] = source
    return numbers


def _collect(path: Sequence[Skill], by_id: Mapping[str, Skill], found: dict[str, Skill]) -> None:
    """Add the imports of the last skill of the path to `found`, each before its own imports.

    `path` is the chain of imports from the first skill to this one.
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
    """Return the skill with a full name such as `public.tea`, or with a name in the namespace of `skill`, such as `tea`."""
    full_name = name if name in by_id else f"{skill.namespace}.{name}"
    if full_name not in by_id:
        near = get_close_matches(full_name, by_id, 1, 0.0)
        hint = f"nearest is {near[0]!r}" if near else "there are no others"
        raise BundleError(f"{skill.path}:{skill.imports_line}: no skill {name!r} to import: {hint}")
    return by_id[full_name]


FOLDER = Path(".agents") / "skills"
MAX_SKILLS = 200


@dataclass(frozen=True, slots=True)
class SkillPlace:
    """A folder with one folder for each skill, and the namespace of these skills."""

    namespace: str
    root: Path


def add_places(skills: Skills, places: Sequence[SkillPlace]) -> Skills:
    """Return the skills, followed by the skills of the places in their order.

    A skill of a place is left out with a warning if its id exists already, if it is malformed, or if an import fails.
    Files outside of a bundle must not break the bundle.
    """
    taken = {skill.id: skill for skill in skills}
    warnings = list[str]()
    added = list[Skill]()
    for place in places:
        warnings += _warn_of_empty_folders(place.root)
        for path in _skill_files(place.root):
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
            joined.append(join_imported_bodies(skill, by_id))
        except BundleError as error:
            warnings.append(f"left out: {error}")
    own = (warning for skill in joined for warning in skill.warnings)
    return Skills((*skills, *joined), (*skills.warnings, *warnings, *own))


def _refuse_links(path: Path) -> None:
    """Check that the files of a skill are not links, which could expose files outside of its folder.

    Raises:
        BundleError: a file is a link.
    """
    for name in (FILE, *COMPANIONS):
        if (path.parent / name).is_symlink():
            raise BundleError(f"{path.parent / name}:1: it is a link: put the file itself here")


def _skill_files(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from sorted(root.glob(f"*/{FILE}"))[:MAX_SKILLS]


def _warn_of_empty_folders(root: Path) -> Iterator[str]:
    """Yield a warning for each of the first 200 folders of a place without a SKILL.md."""
    folders = sorted(path for path in root.glob("*/") if not path.name.startswith((".", "_")))
    for folder in folders[:MAX_SKILLS]:
        if not [*folder.glob(FILE)]:
            yield f"left out: {folder}: no {FILE} in this folder"
