"""Archives of what a program finds and makes, as they travel to a task elsewhere and back."""

from __future__ import annotations

import io
import os
import stat
import zipfile
import zlib
from pathlib import Path

from loopline.errors import LooplineError
from loopline.sandbox.execution import ExecutionLimits
from loopline.sandbox.supervisor.folders import remove_tree

_LEFT_OUT = frozenset({".git", "__pycache__", ".pytest_cache", "logs", "executed_programs"})

_UNREADABLE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError)
"""What is raised for an archive that is cut off, changed, encrypted or compressed in another way."""


class SnapshotError(LooplineError):
    """An archive is malformed, so nothing is taken from it."""


class OversizedSnapshotError(SnapshotError):
    """An archive holds more than the limits of its execution permit."""


def pack_folder(folder: Path, *, whole: bool) -> bytes:
    """Return the files of a folder as an archive, links as links; not its caches and logs unless it is the `whole`."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if whole or name not in _LEFT_OUT]
            for name in (*folders, *names):
                _add(archive, Path(place, name), folder)
    return file.getvalue()


def _add(archive: zipfile.ZipFile, path: Path, folder: Path) -> None:
    status = path.lstat()
    entry = zipfile.ZipInfo(str(path.relative_to(folder)))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = status.st_mode << 16
    if stat.S_ISDIR(status.st_mode):
        entry.filename += "/"
        archive.writestr(entry, b"")
    elif stat.S_ISLNK(status.st_mode):
        archive.writestr(entry, str(path.readlink()))
    elif stat.S_ISREG(status.st_mode):
        archive.writestr(entry, path.read_bytes())


def restore_outputs(data: bytes, out: Path, turn: str, limits: ExecutionLimits) -> None:
    """Lay what a program made in a turn into `out`; all else in the archive, such as logs, is passed over.

    A link becomes one to nothing, so that it is refused where a contract names it.

    Raises:
        SnapshotError: it is no archive.
        OversizedSnapshotError: it holds more than the limits permit.
    """
    room, count = limits.disk_bytes, 0
    problem = remove_tree(out / turn)
    if problem:
        raise SnapshotError(f"there is no room for the archive: {problem}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                count += 1
                if count > limits.disk_files:
                    raise OversizedSnapshotError(
                        f"it has made more than {limits.disk_files:,} files"
                    )
                parts = entry.filename.rstrip("/").split("/")
                if parts[0] == turn and not {"", ".", ".."} & set(parts):
                    room -= _restore(archive, entry, out, room)
                if room < 0:
                    raise OversizedSnapshotError(
                        f"it has written more than {limits.disk_bytes:,} bytes"
                    )
    except _UNREADABLE as error:
        raise SnapshotError(f"the archive cannot be read: {error}") from error


def _restore(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, out: Path, room: int) -> int:
    """Restore one entry, if there is room; return its bytes, or one more than there is room for."""
    path = out / entry.filename
    if any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(out)):
        raise SnapshotError(f"{entry.filename!r} is in a link")
    if path.is_symlink() or path.is_file():
        raise SnapshotError(f"{entry.filename!r} is there twice")
    if entry.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(entry.external_attr >> 16):
        path.symlink_to("/nothing")
        return 0
    with archive.open(entry) as source:
        content = source.read(room + 1)
    if len(content) <= room:
        path.write_bytes(content)
    return len(content)
