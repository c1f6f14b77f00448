"""Checks of the Agent Skills format (agentskills.io): the folder of a skill and the front matter of its SKILL.md."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loopline.errors import BundleError
from loopline.models import Json, YamlError, split_front_matter
from loopline.skills.companions import SOURCES_FILE, TOOLS_FILE, read_sources, read_tools
from loopline.skills.skill import (
    COMPATIBILITY_CHARACTERS,
    DESCRIPTION_CHARACTERS,
    NAME_CHARACTERS,
)

FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
FILES = ("SKILL.md", "skill.md")


@dataclass(frozen=True, slots=True)
class SkillProblem:
    """A violation of the format, with file and line."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def skill_folders(root: Path) -> list[Path]:
    """Return the sorted folders of the skills at `root`: `root` itself, or folders one or two levels below.

    If a subfolder has skills, subfolders without a skill are returned too, because their SKILL.md may be missing. The
    list is empty without a skill.
    """
    if _skill_file(root) is not None:
        return [root]
    files = [
        path for name in FILES for path in (*root.glob(f"*/{name}"), *root.glob(f"*/*/{name}"))
    ]
    folders = {path.parent for path in files}
    if folders:
        folders |= {folder for folder in _visible_folders(root) if not _has_skills(folder)}
    return sorted(folders)


def _visible_folders(root: Path) -> Iterator[Path]:
    return (
        path for path in root.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))
    )


def _has_skills(folder: Path) -> bool:
    """Return whether a folder has a SKILL.md, or a subfolder has one."""
    return any(_skill_file(path) is not None for path in (folder, *_visible_folders(folder)))


def check_skill(folder: Path) -> list[SkillProblem]:
    """Return the problems with the front matter of a skill, its `sources.yaml` and its `tools.yaml`."""
    return [*_format_problems(folder), *_companion_problems(folder)]


def _companion_problems(folder: Path) -> Iterator[SkillProblem]:
    """Yield the problems in `sources.yaml` and `tools.yaml`, which the format does not define."""
    readers = {SOURCES_FILE: read_sources, TOOLS_FILE: read_tools}
    for name, read in readers.items():
        path = folder / name
        if path.is_file():
            try:
                read(path, path.read_bytes())
            except BundleError as error:
                line, _, problem = str(error).removeprefix(f"{path}:").partition(": ")
                yield SkillProblem(path, int(line), problem)


def _format_problems(folder: Path) -> list[SkillProblem]:
    """Return the problems with the SKILL.md: its absence, its encoding, its YAML, or its fields.

    Fields are checked only if the front matter is a valid mapping.
    """
    path = _skill_file(folder)
    if path is None:
        return [SkillProblem(folder, 1, f"{FILES[0]} is missing")]
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        front, _ = split_front_matter(text, plain=True)
    except UnicodeDecodeError as error:
        return [SkillProblem(path, 1, f"not UTF-8: {error.reason}")]
    except OSError as error:
        return [SkillProblem(path, 1, f"cannot be read: {error.strerror}")]
    except YamlError as error:
        return [SkillProblem(path, error.line, error.problem)]
    value = front.value
    if not isinstance(value, dict):
        return [SkillProblem(path, 2, "the front matter must be lines such as `name: …`")]
    return [
        SkillProblem(path, front.line(key), problem)
        for key, problem in _field_problems(value, folder.absolute().name)
    ]


def _skill_file(folder: Path) -> Path | None:
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def _field_problems(fields: dict[str, Json], folder: str) -> Iterator[tuple[str, str]]:
    """Yield each problem with its key: unknown and missing fields, then problems with the values."""
    for key in fields:
        if key not in FIELDS:
            yield key, f"{key!r} is not a field of a skill: the fields are {', '.join(FIELDS)}"
    for key in ("name", "description"):
        if key not in fields:
            yield key, f"{key!r} is missing"
    if "name" in fields:
        yield from (("name", problem) for problem in _name_problems(fields["name"], folder))
    if "description" in fields:
        description = fields["description"]
        yield from _text_problems("description", description, DESCRIPTION_CHARACTERS)
        if isinstance(description, str) and not description.strip():
            yield "description", "'description' must be a text that is not empty"
    if "compatibility" in fields:
        yield from _text_problems(
            "compatibility", fields["compatibility"], COMPATIBILITY_CHARACTERS
        )


def _text_problems(key: str, value: Json, limit: int) -> Iterator[tuple[str, str]]:
    if not isinstance(value, str):
        yield key, f"{key!r} must be a text"
    elif len(value) > limit:
        yield key, f"{key!r} has {len(value):,} characters, and may have {limit:,}"


def _name_problems(value: Json, folder: str) -> Iterator[str]:
    """Yield a problem for each rule that a name violates, such as its length, its case, or the name of its folder.

    An empty value, or a value that is not a text, yields only this problem.
    """
    if not isinstance(value, str) or not value.strip():
        yield "'name' must be a text that is not empty"
        return
    name = unicodedata.normalize("NFKC", value.strip())
    if len(name) > NAME_CHARACTERS:
        yield f"the name has {len(name)} characters, and may have {NAME_CHARACTERS}"
    if name != name.lower():
        yield f"the name {name!r} must be in lower case"
    if name.startswith("-") or name.endswith("-") or "--" in name:
        yield f"in the name {name!r} a hyphen must be between two other characters"
    if not all(character.isalnum() or character == "-" for character in name):
        yield f"the name {name!r} may have letters, digits and hyphens"
    if unicodedata.normalize("NFKC", folder) != name:
        yield f"the folder is called {folder!r}, and the skill {name!r}: give both the same name"
