"""The folder of one execution: it is filled for the program, and changed files are collected from it as untrusted data."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path, PurePosixPath
from threading import Lock

from loopline.sandbox.execution import Execution, ExecutionLimits, ProducedFile
from loopline.sandbox.result import size_problem
from loopline.sandbox.supervisor.folders import (
    FOLDER,
    FolderEntry,
    FolderUsage,
    entries,
    measure,
    remove_tree,
)

BLOCK = 4_096
"""The bytes of a block of a file system."""
_IS_FILLED = b"f"


@dataclass(frozen=True, slots=True)
class DiskSize:
    """The capacity of a file system: its bytes, and its number of files and folders."""

    size: int
    files: int

    @property
    def options(self) -> str:
        """The options of `mount` for a tmpfs of this size."""
        return f"mode=0755,size={self.size},nr_inodes={self.files}"


def disk_size(execution: Execution) -> DiskSize:
    """Return the capacity for the files of an execution and for those that it may write.

    It is one block and a few files larger than the limits, so that a program that exceeds them can be told from one
    that just fits.
    """
    limits = execution.limits
    contents = [execution.program.encode("utf-8", "replace"), *execution.inputs.values()]
    contents += execution.workspace.values()
    names = [f"work/{name}" for name in execution.inputs]
    names += [f"out/{execution.turn_id}/{name}" for name in execution.workspace]
    names += [f"out/{execution.turn_id}/{file.name}" for file in execution.contract]
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    fixed = 16  # the program, the link to attachments, and the folders that every execution has
    return DiskSize(
        size=sum(_round_up(len(data)) for data in contents) + _round_up(limits.disk_bytes) + BLOCK,
        files=len(names) + len(folders) + fixed + limits.disk_files,
    )


def _round_up(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


class DiskChannel:
    """The socket over which a sandbox sends its mounted file system, and then waits until it is filled."""

    def __init__(self) -> None:
        self._outer, self._inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    @property
    def inner(self) -> int:
        """The descriptor for the sandbox."""
        return self._inner.fileno()

    def close_inner(self) -> None:
        """Close the descriptor for the sandbox in this process, when the sandbox has inherited it."""
        self._inner.close()

    async def receive(self) -> int | None:
        """Return the root folder of the file system as an open descriptor; None if the sandbox ended before it sent one."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._outer, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._outer)
        _, descriptors, _, _ = socket.recv_fds(self._outer, 1, 1, socket.MSG_CMSG_CLOEXEC)
        return descriptors[0] if descriptors else None

    def confirm_filled(self) -> None:
        """Let the sandbox continue. A sandbox that has ended is ignored, because the end of its process is seen anyway."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._outer.send(_IS_FILLED)

    def close(self) -> None:
        """Close both descriptors."""
        self._outer.close()
        self._inner.close()


_logger = logging.getLogger("loopline")
PROGRAM = {"python": "user_code.py", "shell": "user_code.sh"}
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_AREAS = ("files", "outputs")
_CACHES = frozenset({".git", "__pycache__", ".pytest_cache"})
"""Folders that are not part of a workspace: the whole folder is reported with a problem."""
_OUTSIDE = "it is neither in files/ nor in outputs/"
_NOT_PLAIN = "it is not a plain file"


@dataclass(frozen=True, slots=True)
class CollectedFiles:
    """The files of the contract and other files that a program changed, and the names of those that it removed."""

    files: list[ProducedFile] = field(default_factory=list[ProducedFile])
    removed: list[str] = field(default_factory=list[str])


class RunFolder:
    """The folders `work/` and `out/` of an execution. The program runs as `user`.

    They are below `path` or, if `fill` receives a `disk`, in a separate file system. A lock lets one thread at a time
    use them, because `remove` closes the descriptor that the other methods use.
    """

    def __init__(self, path: Path, user: int) -> None:
        self.path: Path = path
        self.socket: Path = path / "s.sock"
        """The path of the socket on which the program's calls are served."""
        self.user: int = user
        self._top = path
        self._disk: int | None = None
        self._initial = FolderUsage()
        self._is_filled = False
        self._is_removed = False
        self._lock = Lock()

    @property
    def work(self) -> Path:
        """The working directory of the program."""
        return self._top / "work"

    @property
    def out(self) -> Path:
        """The directory with the current folder of the program, `out/<turn>`."""
        return self._top / "out"

    def make(self) -> None:
        """Make the folder at `path`, empty and without rights for other users."""
        self.path.mkdir(mode=0o700)

    def fill(self, execution: Execution, work: str, disk: int | None = None) -> None:
        """Write the program and its files, and measure them; after `remove`, only close `disk`.

        `work` is the working directory as the program sees it; the link to the user's attachments points there. `disk`
        is an open descriptor of the root of the program's file system; `remove` closes it.

        Raises:
            OSError: a folder or a file cannot be written.
        """
        with self._lock:
            if self._is_removed:
                if disk is not None:
                    os.close(disk)
                return
            if disk is not None:
                self._disk = disk
                self._top = Path(f"/proc/self/fd/{disk}")
            self._write_files(execution, work)
            self._initial = self._measure()
            self._is_filled = True

    def _write_files(self, execution: Execution, work: str) -> None:
        """Make the folders of the turn; write the program, its inputs and workspace, and the link to attachments.

        If `user` is not the user of this process, all of them are given to `user`.
        """
        turn = execution.turn_id
        folders = [self.work, self.out, self.work / turn, self.out / turn]
        folders += [self.out / turn / area for area in _AREAS]
        folders += [self.work / turn / "attachments"]
        for folder in folders:
            folder.mkdir(mode=0o750)
        program = execution.program.encode("utf-8", "replace")
        for name, data in {**execution.inputs, PROGRAM[execution.language]: program}.items():
            _write(self.work, name, data)
        for name, data in execution.workspace.items():
            _write(self.out / turn, name, data)
        for file in execution.contract:
            (self.out / turn / file.name).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        (self.out / turn / "attachments").symlink_to(f"{work}/{turn}/attachments")
        if self.user != os.getuid():
            for top in (self.work, self.out):
                os.chown(top, self.user, self.user)
                for parent_path, below, names in os.walk(top):
                    for name in (*below, *names):
                        path = Path(parent_path, name)
                        os.chown(path, self.user, self.user, follow_symlinks=False)

    def collect(self, execution: Execution) -> CollectedFiles:
        """Read the files that the program made or changed, within its limits; none before `fill` and after `remove`.

        Links and special files are not read; they are returned with a problem.

        Raises:
            OSError: a folder cannot be read.
        """
        with self._lock:
            if not self._is_filled:
                return CollectedFiles()
            top = os.open(self.out, FOLDER)
            try:
                return _Collection(execution, top).collect()
            finally:
                os.close(top)

    def disk_problem(self, limits: ExecutionLimits) -> str:
        """Return the disk limit that the files of the program exceed; empty if they exceed none."""
        with self._lock:
            if not self._is_filled:
                return ""
            usage = self._measure()
            return usage.problem_since(self._initial, limits.disk_bytes, limits.disk_files)

    def _measure(self) -> FolderUsage:
        """Return the bytes and the files of the program: the counts of its file system, or those found by a walk."""
        if self._disk is None:
            return measure(self._top)
        # The counts of the file system include files that the program has deleted and still has open.
        usage = FolderUsage()
        status = os.fstatvfs(self._disk)
        usage.size = (status.f_blocks - status.f_bfree) * status.f_frsize
        usage.count = status.f_files - status.f_ffree
        return usage

    def largest(self) -> tuple[int, str]:
        """Return the size in bytes and the path of the largest file of the program; 0 and "" without files.

        They are also 0 and "" before `fill` and after `remove`.
        """
        with self._lock:
            if not self._is_filled:
                return 0, ""
            top = os.open(self._top, FOLDER) if self._disk is None else os.dup(self._disk)
            try:
                sizes = [(e.status.st_size, e.path) for e in entries(top) if not e.is_folder]
            finally:
                os.close(top)
            return max(sizes, default=(0, ""))

    def remove(self) -> None:
        """Remove the folder, and close its file system. Files that cannot be removed are logged."""
        with self._lock:
            self._is_filled = False
            self._is_removed = True
            if self._disk is not None:
                os.close(self._disk)
                self._disk = None
            remove_folder(self.path)


@asynccontextmanager
async def open_run_folder(path: Path, user: int) -> AsyncGenerator[RunFolder]:
    """Make the folder of an execution; it is removed when the context ends."""
    folder = RunFolder(path, user)
    try:
        await asyncio.to_thread(folder.make)
        yield folder
    finally:
        await asyncio.to_thread(folder.remove)


class _Collection:
    """The collection of the files below `out/`. Files are opened by descriptors of their folders, never by whole paths."""

    def __init__(self, execution: Execution, top: int) -> None:
        self._execution = execution
        self._top = top
        self._collected_bytes = 0
        self._unread: list[str] = [""]
        """Prefixes of paths that were not read, so that a file below them may still exist.

        The first prefix, of all paths, is removed when the folder of the turn is found.
        """

    def collect(self) -> CollectedFiles:
        """Read the files of the contract, and then other files by name; the limit of bytes is used up in this order."""
        turn = self._execution.turn_id
        names = [file.name for file in self._execution.contract]
        files = [self._read_contract_file(name) for name in names]
        seen = set(names)
        for entry in entries(self._top, enters=self._enters):
            path = entry.path.removeprefix(f"{turn}/")
            if entry.path == turn and self._is_fixed(entry):
                self._unread.remove("")
            if path in seen or self._enters(entry):
                continue
            seen.add(path)
            file = self._read_other(entry, path)
            if file is not None:
                files.append(file)
        removed = [
            name
            for name in self._execution.workspace
            if name not in seen and not name.startswith(tuple(self._unread))
        ]
        return CollectedFiles(files, sorted(removed))

    def _is_fixed(self, entry: FolderEntry) -> bool:
        """Return whether the entry is one that every execution has: the turn's folder, an area, or the link to attachments."""
        turn = self._execution.turn_id
        if entry.path == f"{turn}/attachments":
            return stat.S_ISLNK(entry.status.st_mode)
        areas = (turn, *(f"{turn}/{area}" for area in _AREAS))
        return entry.path in areas and entry.is_folder and not entry.problem

    def _enters(self, entry: FolderEntry) -> bool:
        """Return whether the entry itself is skipped, and only the files in it are collected."""
        is_open = entry.is_folder and not entry.problem and entry.name not in _CACHES
        return self._is_fixed(entry) or (is_open and self._is_inside(entry))

    def _is_inside(self, entry: FolderEntry) -> bool:
        turn = self._execution.turn_id
        return entry.path.startswith(tuple(f"{turn}/{area}/" for area in _AREAS))

    def _read_other(self, entry: FolderEntry, path: str) -> ProducedFile | None:
        """Return a changed file that is not in the contract; None if it is unchanged or gone.

        What cannot be collected, such as a link, a folder or a file over the limits, is returned with a problem. A folder, or
        a path outside the areas, is also added to `_unread`.
        """
        if not self._is_inside(entry):
            self._unread.append(f"{path}/")
            problem = entry.problem or ("it is not a folder" if path in _AREAS else _OUTSIDE)
            return ProducedFile(name=path, problem=problem)
        if entry.is_folder:
            self._unread.append(f"{path}/")
            problem = entry.problem or "a workspace has no folder of this name"
            return ProducedFile(name=f"{path}/", problem=problem)
        before = self._execution.workspace.get(path)
        data, problem = self._read(entry.name, entry.folder, before)
        if problem:
            return ProducedFile(name=path, problem=problem)
        return None if data is None or data == before else ProducedFile(name=path, data=data)

    def _read_contract_file(self, name: str) -> ProducedFile:
        """Read a file of the contract without following links; a missing file has neither bytes nor a problem."""
        *folders, last = f"{self._execution.turn_id}/{name}".split("/")
        opened = [os.dup(self._top)]
        try:
            for folder in folders:
                opened.append(os.open(folder, FOLDER, dir_fd=opened[-1]))
            data, problem = self._read(last, opened[-1], self._execution.workspace.get(name))
        except FileNotFoundError:
            return ProducedFile(name=name)
        except OSError as error:
            return ProducedFile(name=name, problem=f"{_NOT_PLAIN}: {error.strerror}")
        finally:
            for descriptor in opened:
                os.close(descriptor)
        return ProducedFile(name=name, data=data, problem=problem)

    def _read(self, name: str, folder: int, before: bytes | None) -> tuple[bytes | None, str]:
        """Return the bytes of a file and an empty problem, or None and the problem.

        A missing file has neither. A file that still has the bytes `before` does not count toward the limits.
        """
        try:
            descriptor = os.open(name, _FILE, dir_fd=folder)
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            return None, f"{_NOT_PLAIN}: {error.strerror}"
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None, _NOT_PLAIN
            if status.st_nlink > 1:
                return None, "it has a second name: write a file of its own"
            if before is not None and status.st_size == len(before):
                data = _read_all(descriptor)
                if data == before:
                    return data, ""
                os.lseek(descriptor, 0, os.SEEK_SET)
            problem = size_problem(status.st_size, self._collected_bytes, self._execution.limits)
            if problem:
                return None, problem
            data = _read_all(descriptor)
        finally:
            os.close(descriptor)
        self._collected_bytes += len(data)
        return data, ""


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read()


def _write(folder: Path, name: str, data: bytes) -> None:
    path = folder / name
    for parent in reversed(path.relative_to(folder).parents):
        (folder / parent).mkdir(mode=0o750, exist_ok=True)
    path.write_bytes(data)


def remove_folder(path: Path) -> None:
    """Remove a folder and all files in it. A failure is logged."""
    problem = remove_tree(path)
    if problem:
        _logger.warning("%s is not removed: %s", path, problem)


USER = 1001
"""The user id of isolated programs."""
WORK, OUT, SOCKET = "/workspace/work", "/workspace/out", "/tmp/supervisor.sock"
"""The paths of its folders and of the socket for its calls, as an isolated program sees them."""


def environment(
    execution: Execution, work: str = WORK, out: str = OUT, socket: str = SOCKET
) -> Mapping[str, str]:
    """Return the environment of a program. It inherits no variables of this process.

    `work`, `out` and `socket` are paths as the program sees them. The variables of the execution are added last, and
    replace variables of the same name.
    """
    bundle_folder = ""
    if execution.bundle_root:
        bundle_folder = f"/workspace/bundles/{Path(execution.bundle_root).name}"
    contract = [
        {"filename": file.name, "description": file.description, "visibility": file.visibility}
        for file in execution.contract
    ]
    program_globals = {
        "turn_id": execution.turn_id,
        "tools": list(execution.tools),
        "contract": contract,
    }
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": work,
        "TMPDIR": work,
        "LANG": "C.UTF-8",
        "MPLBACKEND": "Agg",
        "OPENBLAS_NUM_THREADS": "2",
        "OMP_NUM_THREADS": "2",
        "WORKDIR": work,
        "OUTPUT_DIR": out,
        "EXECUTION_ID": execution.execution_id,
        "RUNTIME_GLOBALS_JSON": json.dumps(program_globals),
        "RUNTIME_TOOL_MODULES": tool_modules(execution),
        "BUNDLE_ROOT": bundle_folder,
        "BUNDLE_ID": execution.bundle_id,
        "SUPERVISOR_SOCKET_PATH": socket,
        **execution.variables,
    }


def tool_modules(execution: Execution) -> str:
    """Return the aliases of the program's tools, sorted and separated by commas."""
    return ",".join(sorted({tool.split(".")[0] for tool in execution.tools}))


LONGEST_FOLDER = 60
"""The longest path below which programs run, because the path of a socket in it has at most 107 characters."""
_CLOSED = b"closed"
_SWEEP = """word=$(cat)
for group in $2; do
  [ -d "$group" ] || continue
  while read -r process; do kill -9 "$process"; done <"$group/cgroup.procs"
  tries=0
  until rmdir "$group" || [ $tries -gt 100 ]; do tries=$((tries + 1)); sleep 0.05; done
done 2>/dev/null
tries=0
until rm -rf "$1" || [ $tries -gt 100 ]; do tries=$((tries + 1)); sleep 0.05; done 2>/dev/null
name=${1##*/}
shift 2
[ -n "$word" ] || [ $# -eq 0 ] || exec "$@" "$name" 2>/dev/null
"""
"""A shell script that waits for the end of its standard input. If this process was killed, it then removes the control
groups and the folder, and runs a command; if this process wrote a word before, it only removes the folder.
"""


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """A folder below which programs run, and the process that removes it if this process is killed."""

    path: Path
    sweeper: asyncio.subprocess.Process

    async def remove(self) -> None:
        """Remove the folder, and wait until the sweeper has ended."""
        await asyncio.to_thread(remove_folder, self.path)
        if self.sweeper.stdin is not None:
            self.sweeper.stdin.write(_CLOSED)
            self.sweeper.stdin.close()
        await self.sweeper.wait()


async def make_shared_folder(
    parent: Path | None, group_parents: Sequence[Path] = (), *, after_kill: Sequence[str] = ()
) -> SharedFolder:
    """Make a new folder in `parent`, by default in the folder for temporary files.

    If this process is killed, the folder is removed, and so are control groups below `group_parents` whose names begin
    with its name and `-`. Then the command `after_kill` runs, with the name of the folder as its last argument.
    """
    if parent is None:
        usual = Path(tempfile.gettempdir())
        parent = usual if len(str(usual)) < LONGEST_FOLDER else Path("/tmp")
    path = parent / f"loopline-exec-{os.urandom(6).hex()}"
    pattern = " ".join(f"{folder}/{path.name}-*" for folder in group_parents)
    # The sweeper starts before the folder exists, because this process may be killed at any time.
    sweeper = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _SWEEP, "sweep", str(path), pattern, *after_kill),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    await asyncio.to_thread(path.mkdir, mode=0o700)
    return SharedFolder(path, sweeper)


class RunFolders:
    """The numbered folders of the executions of one sandbox, below a shared folder that is made for the first of them."""

    def __init__(self, parent: Path | None) -> None:
        self._parent = parent
        self._shared: SharedFolder | None = None
        self._opening = asyncio.Lock()
        self._numbers = count(1)

    @asynccontextmanager
    async def open_next(self, execution: Execution, work: str = "") -> AsyncGenerator[RunFolder]:
        """Make and fill the next folder, for a program of this process's user; it is removed when the context ends.

        `work` is the working directory as the program sees it, by default the path of the folder.
        """
        async with self._opening:
            if self._shared is None:
                self._shared = await make_shared_folder(self._parent)
        path = self._shared.path / str(next(self._numbers))
        async with open_run_folder(path, os.getuid()) as folder:
            await asyncio.to_thread(folder.fill, execution, work or str(folder.work))
            yield folder

    async def remove(self) -> None:
        """Remove the shared folder; the next execution makes a new one."""
        shared = self._shared
        self._shared = None
        if shared is not None:
            await shared.remove()


def program_user() -> int:
    """Return the user id of isolated programs outside their namespaces: this process's own, unless it is root."""
    return USER if os.getuid() == 0 else os.getuid()


def start_message(
    execution: Execution,
    *,
    work: str = WORK,
    out: str = OUT,
    socket: str = SOCKET,
    path: Sequence[str] = (),
) -> dict[str, object]:
    """Return the start message of an executor, with a new random token for its connection to the socket.

    `work`, `out` and `socket` are paths as the program sees them. `path` are the folders from which its Python imports
    modules, if they differ from its own default.
    """
    return {
        "socket": socket,
        "token": os.urandom(32).hex(),
        "folder": f"{out}/{execution.turn_id}",
        "file": f"{work}/{PROGRAM[execution.language]}",
        "language": execution.language,
        "tools": list(execution.tools),
        "path": list(path),
    }


def isolated_start(
    execution: Execution,
    seccomp: bytes,
    *,
    user: int = USER,
    in_group: bool,
    has_landlock: bool,
    path: Sequence[str] = (),
    disk: tuple[int, str] | None = None,
) -> dict[str, object]:
    """Return the start message of an executor that isolates itself.

    `seccomp` is the compiled filter of system calls. `user` is the user id that the executor changes to. `in_group`
    says that a control group limits the memory and the processes. `has_landlock` requires Landlock. `disk` is the
    descriptor over which the executor sends the file system of its folders, and the mount options of that file system.
    """
    return {
        **start_message(execution, path=path),
        "isolated": True,
        "user": user,
        "limits": _resource_limits(execution.limits, in_group=in_group),
        "writable": [WORK, OUT],
        "landlock": has_landlock,
        "seccomp": seccomp,
        "disk": disk,
    }


def _resource_limits(limits: ExecutionLimits, *, in_group: bool) -> dict[str, int]:
    """Return the resource limits of a process by name, such as `RLIMIT_CPU`.

    A process in a control group has no limit of its address space and of its processes, because the group has them.
    """
    without_group = {"RLIMIT_AS": 4 * limits.memory_bytes, "RLIMIT_NPROC": limits.processes}
    return {
        # Set in a control group too, because the group counts the files of the program as memory.
        "RLIMIT_DATA": limits.memory_bytes,
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        **({} if in_group else without_group),
    }
