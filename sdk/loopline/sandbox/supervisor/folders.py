"""Functions that walk, measure and remove a folder filled by a program. Runs on any version of Python 3.

Each folder is opened below the descriptor of its parent. Whole paths are never used, so deep folders, links and folders
without rights cause no harm.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCATION = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DEEPEST = 100
"""The deepest level of folders that is walked. Each level keeps a descriptor open."""


class FolderEntry:
    """A file or a folder below the top of a walk.

    `path` begins at the top. `folder` is the open descriptor of the parent. `is_folder` is false for a link to a folder.
    `problem` says why a folder is not walked.
    """

    def __init__(self, path: str, name: str, folder: int, status: os.stat_result) -> None:
        self.path = path
        self.name = name
        self.folder = folder
        self.status = status
        self.is_folder: bool = stat.S_ISDIR(status.st_mode)
        self.problem = ""


class FolderUsage:
    """The bytes and the number of files and folders below a folder; `problem` says why they are not known."""

    def __init__(self) -> None:
        self.size = 0
        self.count = 0
        self.problem = ""

    def problem_since(self, before: FolderUsage, most_bytes: int, most_files: int) -> str:
        """Return the problem, or the limit that was exceeded since an earlier measurement; empty if there is none."""
        size = self.size - before.size
        count = self.count - before.count
        if self.problem:
            return self.problem
        if size > most_bytes:
            return f"it has written {size:,} bytes, and may write {most_bytes:,}"
        if count > most_files:
            return f"it has made {count:,} files, and may make {most_files:,}"
        return ""


def entries(
    top: int, enters: Callable[[FolderEntry], bool] = lambda _entry: True
) -> Iterator[FolderEntry]:
    """Yield all files and folders below an open folder by name, a folder before its content. Links are not followed.

    A folder is not walked if `enters` returns false for it. A folder that cannot be read or is deeper than `DEEPEST` is
    yielded with a problem.
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
                continue  # the program has removed it meanwhile
            entry = FolderEntry(f"{path}{name}", name, folder, status)
            inner = _open_inner(entry, len(waiting)) if entry.is_folder else None
            if inner is not None:
                waiting.append((inner[0], f"{path}{name}/", inner[1]))
            yield entry
            if inner is not None and not enters(entry):
                os.close(waiting.pop()[0])
    finally:
        for folder, _, _ in waiting:
            os.close(folder)


def _open_inner(entry: FolderEntry, depth: int) -> tuple[int, list[str]] | None:
    """Open a folder, and return its descriptor and the names in it; None if it has a problem or was removed."""
    if depth > DEEPEST:
        entry.problem = f"it is in more than {DEEPEST} folders"
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


def measure(path: str | os.PathLike[str]) -> FolderUsage:
    """Measure all files below a folder by their blocks on disk; a file with several hard links is measured once.

    A folder below it that cannot be read is reported as `problem` of the result.

    Raises:
        OSError: the folder itself cannot be opened.
    """
    used = FolderUsage()
    seen: set[tuple[int, int]] = set()
    top = os.open(path, FOLDER)
    try:
        for entry in entries(top):
            used.count += 1
            status = entry.status
            inode = status.st_dev, status.st_ino
            if status.st_nlink == 1 or entry.is_folder or inode not in seen:
                used.size += status.st_blocks * 512
                seen.add(inode)
            if entry.problem:
                used.problem = f"a folder cannot be measured: {entry.problem}"
    except OSError as error:
        used.problem = f"a folder cannot be measured: {error.strerror}"
    finally:
        os.close(top)
    return used


def remove_tree(path: str | os.PathLike[str]) -> str:
    """Remove a folder and all files below it; return an error message, or "" if it is removed or did not exist."""
    try:
        top = _open_writable(os.fspath(path), None)
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
    """Remove all files and folders in a folder.

    Inner folders are moved up to `top` first, so that only two folders are open at any depth.
    """
    prefix = os.urandom(8).hex()
    number = 0
    while names := _names(top):
        for name in names:
            if _unlink(name, top):
                continue
            inner = _open_writable(name, top)
            try:
                for inside in _names(inner):
                    if not _unlink(inside, inner):
                        # A folder must be writable to be moved.
                        os.close(_open_writable(inside, inner))
                        number += 1
                        os.rename(inside, f"{prefix}{number}", src_dir_fd=inner, dst_dir_fd=top)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as listed:
        return [entry.name for entry in listed]


def _unlink(name: str, folder: int) -> bool:
    """Remove a file or a link; return False if the name is a folder, which stays."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True


def _open_writable(name: str, folder: int | None) -> int:
    """Open a folder, after giving its owner the rights to read and change it.

    `folder` is the open descriptor of its parent; if it is None, `name` is a path.
    """
    location = os.open(name, _LOCATION, dir_fd=folder)
    try:
        if stat.S_IMODE(os.fstat(location).st_mode) & 0o700 != 0o700:
            Path(f"/proc/self/fd/{location}").chmod(0o700)
        return os.open(".", FOLDER, dir_fd=location)
    finally:
        os.close(location)
