"""Folders that a program has filled: walked, measured and removed by descriptors. Any Python can read this.

No path is built from what a program has made, so that no depth, no mode and no link of it matters.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DEEPEST = 100
"""Folders inside each other that are walked; each of them takes a descriptor meanwhile."""


class FolderEntry:
    """A file or a folder below another: its path from there, its status, and the open folder that it is in.

    `problem` is why a folder is not walked.
    """

    def __init__(self, path: str, name: str, folder: int, status: os.stat_result) -> None:
        self.path = path
        self.name = name
        self.folder = folder
        self.status = status
        self.problem = ""

    @property
    def is_folder(self) -> bool:
        """Return whether it is a folder."""
        return stat.S_ISDIR(self.status.st_mode)


class FolderUsage:
    """The bytes and the number of files below a folder; `problem` is why they are not known."""

    def __init__(self) -> None:
        self.size = 0
        self.count = 0
        self.problem = ""


def entries(
    top: int,
    deepest: int = DEEPEST,
    enters: Callable[[FolderEntry], bool] = lambda _entry: True,
) -> Iterator[FolderEntry]:
    """Yield all that is below an open folder, each folder before what it holds, links not followed.

    A folder is not walked if `enters` is false, if it cannot be read, or if it is in more than `deepest` others; the
    last two are its problem.
    """
    waiting = [(os.dup(top), "", sorted(_names(top), reverse=True))]
    try:
        while waiting:
            folder, path, names = waiting[-1]
            if not names:
                os.close(waiting.pop()[0])
                continue
            name = names.pop()
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                continue  # it has gone meanwhile
            entry = FolderEntry(f"{path}{name}", name, folder, status)
            inner = _open_inner(entry, len(waiting), deepest) if entry.is_folder else None
            if inner is not None:
                waiting.append((inner[0], f"{path}{name}/", inner[1]))
            yield entry
            if inner is not None and not enters(entry):
                os.close(waiting.pop()[0])
    finally:
        for folder, _, _ in waiting:
            os.close(folder)


def _open_inner(entry: FolderEntry, depth: int, deepest: int) -> tuple[int, list[str]] | None:
    """Return a folder, opened, with the names in it; None if it has a problem or has gone."""
    if depth > deepest:
        entry.problem = f"it is in more than {deepest} folders"
        return None
    try:
        inner = os.open(entry.name, FOLDER, dir_fd=entry.folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        entry.problem = f"it cannot be read: {error.strerror}"
        return None
    try:
        return inner, sorted(_names(inner), reverse=True)
    except OSError as error:
        os.close(inner)
        entry.problem = f"it cannot be read: {error.strerror}"
        return None


def usage(top: int) -> FolderUsage:
    """Return what is below an open folder; a file with several names is measured once."""
    used, seen = FolderUsage(), set[tuple[int, int]]()
    try:
        for entry in entries(top):
            used.count += 1
            status = entry.status
            place = status.st_dev, status.st_ino
            if status.st_nlink == 1 or entry.is_folder or place not in seen:
                used.size += status.st_blocks * 512
                seen.add(place)
            if entry.problem:
                used.problem = f"a folder cannot be measured: {entry.problem}"
    except OSError as error:
        used.problem = f"a folder cannot be measured: {error.strerror}"
    return used


def remove_tree(path: str | os.PathLike[str]) -> str:
    """Remove a folder and all below it, whatever its depth and its rights; return why it is still there, if it is."""
    try:
        top = _open_owned(os.fspath(path), None)
        try:
            _empty(top)
        finally:
            os.close(top)
        Path(path).rmdir()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{error.strerror}: {error.filename!r}"
    return ""


def _empty(top: int) -> None:
    """Remove what is in a folder; what is in a folder there is moved up first, so that two of them are open at once."""
    prefix, number = os.urandom(8).hex(), 0
    while names := _names(top):
        for name in names:
            if _is_unlinked(name, top):
                continue
            inner = _open_owned(name, top)
            try:
                for inside in _names(inner):
                    if not _is_unlinked(inside, inner):
                        os.close(
                            _open_owned(inside, inner)
                        )  # a folder that is moved must be writable
                        number += 1
                        os.rename(inside, f"{prefix}{number}", src_dir_fd=inner, dst_dir_fd=top)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as listed:
        return [entry.name for entry in listed]


def _is_unlinked(name: str, folder: int) -> bool:
    """Remove a file or a link; return False if it is a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True


def _open_owned(name: str, folder: int | None) -> int:
    """Return a folder, opened, once its owner may read and change it."""
    place = os.open(name, _PLACE, dir_fd=folder)
    try:
        if stat.S_IMODE(os.fstat(place).st_mode) & 0o700 != 0o700:
            Path(f"/proc/self/fd/{place}").chmod(0o700)
        return os.open(".", FOLDER, dir_fd=place)
    finally:
        os.close(place)
