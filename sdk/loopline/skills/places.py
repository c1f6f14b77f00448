"""Places of skills beside a bundle: those of a project and those of a user. What stands first wins."""

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


def with_imports(skills: Skills) -> Skills:
    """Return the skills, each with the bodies of those that it imports, also by way of others, below its own.

    Raises:
        BundleError: an import names no skill, or leads back to where it began; the message names file and line.
    """
    by_id = {skill.full_id: skill for skill in skills}
    return replace(skills, skills=tuple(joined_with_imports(skill, by_id) for skill in skills))


def joined_with_imports(skill: Skill, by_id: Mapping[str, Skill]) -> Skill:
    """Return a skill with the bodies of those that it imports.

    Raises:
        BundleError: an import names no skill, or leads back to where it began.
    """
    if not skill.imports:
        return skill
    imported: dict[str, Skill] = {}
    _collect([skill], by_id, imported)
    sources = dict(skill.sources)
    bodies, short_bodies = [skill.body], [skill.compact or skill.body]
    for name, other in imported.items():
        numbers = _numbered_after(other.sources, sources)
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


def _numbered_after(added: Mapping[int, Source], sources: dict[int, Source]) -> dict[int, int]:
    """Add the sources behind the others, and return their new numbers by their old ones."""
    numbers: dict[int, int] = {}
    for number, source in added.items():
        numbers[number] = max(sources, default=0) + 1
        sources[numbers[number]] = source
    return numbers


def _collect(path: Sequence[Skill], by_id: Mapping[str, Skill], found: dict[str, Skill]) -> None:
    """Add what the last skill of the path imports, each before its own imports; the path leads to it."""
    skill = path[-1]
    for name in skill.imports:
        imported = _named(name, skill, by_id)
        if imported in path:
            circle = [*path[path.index(imported) :], imported]
            names = " → ".join(member.full_id for member in circle)
            raise BundleError(
                f"{skill.path}:{skill.imports_line}: the imports lead in a circle: {names}"
            )
        if imported.full_id not in found:
            found[imported.full_id] = imported
            _collect([*path, imported], by_id, found)


def _named(name: str, skill: Skill, by_id: Mapping[str, Skill]) -> Skill:
    """Return the skill of a name such as `public.tea`, or `tea` for one of the same namespace."""
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
