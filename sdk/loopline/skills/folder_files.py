"""The files in the folder of a skill: which there are, and their bytes, read by descriptor and within limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from loopline.errors import RefError, ToolError
from loopline.files import Folder
from loopline.timeline.workspace_paths import checked_names

FILE_BYTES = 10 * 1024 * 1024
"""What a file of a skill may have to be read."""
MAX_FILES = 500
MAX_DEPTH = 8
MAX_PROBLEMS = 20
LISTED = 60
"""The files that the text of a skill names."""
_LEFT_OUT = {"__pycache__", "node_modules"}


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of a skill: its path in the folder, and its size in bytes."""

    path: str
    size: int

    def __str__(self) -> str:
        return f"{self.path} ({self.size:,} bytes)"


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The files of a folder, sorted by path, and what of it cannot be read."""

    files: tuple[SkillFile, ...] = ()
    problems: tuple[str, ...] = field(default=())


def folder_files(folder: Path, beside: frozenset[str]) -> FolderFiles:
    """Return the files of a skill without those of these names at its top, and problems with the paths of what is left out."""
    files, problems = list[SkillFile](), list[str]()
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        if name in beside:
            continue
        problem = _problem(path, name)
        if len(problems) == MAX_PROBLEMS:
            problems.append(f"{folder}: more files are left out")
            break
        if problem:
            problems.append(f"{path}: {problem}")
        elif len(files) == MAX_FILES:
            problems.append(f"{folder}: a skill has at most {MAX_FILES} files: {name} is left out")
            break
        else:
            files.append(SkillFile(name, path.stat().st_size))
    return FolderFiles(tuple(sorted(files, key=lambda file: file.path)), tuple(problems))


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        depth = len(Path(root).relative_to(folder).parts)
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in _LEFT_OUT
        )
        if depth + 1 >= MAX_DEPTH:
            yield from (Path(root) / name for name in folders)
            folders.clear()
        yield from (Path(root) / name for name in sorted(names) if not name.startswith("."))


def _problem(path: Path, name: str) -> str:
    """Return why a file is left out, "" if it is not."""
    if path.is_symlink():
        return "a link is not followed: put the file itself here"
    if path.is_dir():
        return f"a folder of a skill is at most {MAX_DEPTH} deep, so its files are left out"
    if not path.is_file():
        return "it is no plain file"
    try:
        checked_names(name, name)
    except ToolError as error:
        return str(error)
    size = path.stat().st_size
    if size > FILE_BYTES:
        return f"it has {size:,} bytes, and a file of a skill may have {FILE_BYTES:,}"
    return ""


def read_folder_file(folder: Path, path: str) -> bytes:
    """Return the bytes of a file of a skill; no link leads out of its folder.

    Raises:
        RefError: there is none, or it is too large.
    """
    try:
        with Folder(folder, hard_links=True) as opened:
            data = opened.read(path, FILE_BYTES)
    except (ToolError, OSError) as error:
        raise RefError(str(error)) from error
    if data is None:
        raise RefError(f"no file {path!r} in {folder}")
    return data
