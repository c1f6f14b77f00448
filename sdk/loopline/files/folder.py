"""A folder on disk with safe access to its files: links, devices and names that change during the access cannot lead out.

Each name of a path is opened below the descriptor of its parent, never by a whole path. Each name must be a folder, and
the last one a plain file; links are not followed (`openat(2)` with `O_NOFOLLOW`, and if the kernel has `openat2(2)`,
also with `RESOLVE_BENEATH`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from uuid import uuid4

from loopline.errors import ToolError
from loopline.timeline.workspace_paths import check_names

_OPENAT2 = 437
"""The number of the system call on every architecture."""
_RESOLVE = 0x01 | 0x02 | 0x04 | 0x08
"""Refuse mount points, magic links, symbolic links, and paths that lead above the folder."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNSUPPORTED = {errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG}
FILE_MODE, FOLDER_MODE = 0o600, 0o700
PROGRAM_MODE = 0o700


class Folder:
    """A folder that is read and written by relative paths, which are checked by `check_names`.

    With `walk_only`, `openat2` is not used even if the kernel has it. With `hard_links`, files with several hard links
    can be read, such as those of an installed package.
    """

    def __init__(self, root: Path, *, walk_only: bool = False, hard_links: bool = False) -> None:
        self.root = root
        self._hard_links = hard_links
        self._by_kernel = not walk_only and has_openat2()
        self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def read(self, path: str, limit: int) -> bytes | None:
        """Return the bytes of a file; None if it does not exist.

        Raises:
            ToolError: the path is not allowed or cannot be opened; or the file is a link, a folder or a device, is
                larger than `limit` bytes, or has several hard links.
        """
        names = check_names(path, path).split("/")
        try:
            with self._parent(names[:-1], make=False) as parent:
                descriptor = self._open(parent, names[-1], _READ_FLAGS)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _tool_error(path, error) from error
        try:
            return _read(path, descriptor, limit, hard_links=self._hard_links)
        finally:
            os.close(descriptor)

    def is_executable(self, path: str) -> bool:
        """Return whether the owner of a file may execute it; False for a link, a folder or a device.

        Raises:
            ToolError: the path is not allowed, the file does not exist, or a name before it is a link or not a folder.
        """
        names = check_names(path, path).split("/")
        try:
            with self._parent(names[:-1], make=False) as parent:
                status = os.stat(names[-1], dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            raise _tool_error(path, error) from error
        return stat.S_ISREG(status.st_mode) and bool(status.st_mode & stat.S_IXUSR)

    def write(self, path: str, data: bytes, *, executable: bool = False) -> None:
        """Write a file under a temporary name and rename it, so that an existing file or link is replaced. Makes missing folders.

        Raises:
            ToolError: the file cannot be written, or a name before it is a link or not a folder.
        """
        names = check_names(path, path).split("/")
        unfinished = f".{uuid4().hex}.unfinished"
        try:
            with self._parent(names[:-1], make=True) as parent:
                mode = PROGRAM_MODE if executable else FILE_MODE
                descriptor = os.open(unfinished, _WRITE_FLAGS, mode, dir_fd=parent)
                try:
                    with os.fdopen(descriptor, "wb") as file:
                        file.write(data)
                    os.rename(unfinished, names[-1], src_dir_fd=parent, dst_dir_fd=parent)
                except OSError:
                    os.unlink(unfinished, dir_fd=parent)
                    raise
        except OSError as error:
            raise _tool_error(path, error) from error

    def paths(self) -> list[str]:
        """Return the sorted paths of all files, also in inner folders; symbolic links are left out, not devices."""
        return sorted(self._walk(self._descriptor, ""))

    def _walk(self, folder: int, prefix: str) -> Iterator[str]:
        """Yield the path of each file below an open folder, after `prefix`, unsorted; symbolic links are skipped."""
        with os.scandir(folder) as entries:
            kinds = [
                (entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink())
                for entry in entries
            ]
        for name, is_folder, is_link in kinds:
            if is_link:
                continue
            if not is_folder:
                yield f"{prefix}{name}"
                continue
            inner = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
            try:
                yield from self._walk(inner, f"{prefix}{name}/")
            finally:
                os.close(inner)

    @contextmanager
    def _parent(self, names: list[str], *, make: bool) -> Generator[int]:
        """Yield a descriptor of the folder that these names lead to; with `make`, missing folders are created.

        Raises:
            OSError: a name is missing, or is a link or not a folder.
        """
        opened = os.dup(self._descriptor)
        try:
            for name in names:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, FOLDER_MODE, dir_fd=opened)
                inner = self._open(opened, name, _FOLDER_FLAGS)
                os.close(opened)
                opened = inner
            yield opened
        finally:
            os.close(opened)

    def _open(self, folder: int, name: str, flags: int) -> int:
        if self._by_kernel:
            return _openat2(folder, name, flags)
        return os.open(name, flags, dir_fd=folder)


def _read(path: str, descriptor: int, limit: int, *, hard_links: bool) -> bytes:
    """Return the bytes of an open file; the descriptor stays open.

    Raises:
        ToolError: it is not a plain file, is larger than `limit` bytes, or has other hard links without `hard_links`.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{path} is not a plain file")
    if status.st_nlink > 1 and not hard_links:
        raise ToolError(f"{path} has another hard link, so it may belong to another user")
    if status.st_size > limit:
        raise ToolError(f"{path} has {status.st_size:,} bytes, and may have {limit:,}")
    with os.fdopen(os.dup(descriptor), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:  # it has grown since
        raise ToolError(f"{path} has more than {limit:,} bytes, and may have {limit:,}")
    return data


def _tool_error(path: str, error: OSError) -> ToolError:
    if error.errno in (errno.ELOOP, errno.EXDEV, errno.ENOTDIR):
        return ToolError(f"{path} has a name that is a link or not a folder")
    return ToolError(f"{path} cannot be opened: {error.strerror}")


class _How(ctypes.Structure):
    """The `struct open_how` of `openat2(2)`."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def _openat2(folder: int, name: str, flags: int) -> int:
    """Open a name below an open folder by `openat2(2)`.

    Raises:
        OSError: the name cannot be opened, or would lead out of the folder.
    """
    how = _How(flags, 0, _RESOLVE)
    descriptor = _syscall()(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(folder),
        ctypes.c_char_p(os.fsencode(name)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return descriptor


@cache
def _syscall() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    return function


@cache
def has_openat2() -> bool:
    """Return whether the kernel has `openat2(2)` and lets this process use it; cached for the process.

    Raises:
        OSError: the call fails for another reason.
    """
    folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(_openat2(folder, ".", _FOLDER_FLAGS))
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    finally:
        os.close(folder)
    return True
