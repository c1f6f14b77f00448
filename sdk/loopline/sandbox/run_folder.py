"""The folder of one execution: what its program finds, and what is taken from it. Nothing in it is trusted."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from threading import Lock

from loopline.sandbox.execution import Execution, ExecutionLimits, ProducedFile
from loopline.sandbox.supervisor.folders import FOLDER, FolderEntry, entries, remove_tree, usage

BLOCK = 4_096
"""Bytes of a block of a file system."""
_FILLED = b"f"


@dataclass(frozen=True, slots=True)
class DiskSize:
    """The bytes and the number of files and folders that a file system has room for."""

    size: int
    files: int

    @property
    def options(self) -> str:
        """Return the options with which it is mounted."""
        return f"mode=0755,size={self.size},nr_inodes={self.files}"


def disk_size(execution: Execution) -> DiskSize:
    """Return room for what an execution finds and what it may write; a block and a file more show that it has tried."""
    limits = execution.limits
    found = [execution.program.encode("utf-8", "replace"), *execution.inputs.values()]
    found += execution.workspace.values()
    names = [f"work/{name}" for name in execution.inputs]
    names += [f"out/{execution.turn_id}/{name}" for name in execution.workspace]
    names += [f"out/{execution.turn_id}/{file.name}" for file in execution.contract]
    places = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    fixed = 16  # the program, the link to attachments, and the folders that every execution has
    return DiskSize(
        size=sum(map(_blocks, map(len, found))) + _blocks(limits.disk_bytes) + BLOCK,
        files=len(names) + len(places) + fixed + limits.disk_files,
    )


def _blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


class DiskChannel:
    """How a sandbox hands over its file system, and learns that it is filled. `inside` is the sandbox's end."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    @property
    def inside(self) -> int:
        """Return the descriptor that the sandbox gets."""
        return self._theirs.fileno()

    def close_inside(self) -> None:
        """Close the end of the sandbox, which has got it."""
        self._theirs.close()

    async def receive(self) -> int | None:
        """Return the root of the file system as an open folder; None if the sandbox has ended without one."""
        loop, ready, ours = asyncio.get_running_loop(), asyncio.Event(), self._ours.fileno()
        loop.add_reader(ours, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(ours)
        _, descriptors, _, _ = socket.recv_fds(self._ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
        return descriptors[0] if descriptors else None

    def tell_filled(self) -> None:
        """Let the sandbox go on."""
        with suppress(
            BrokenPipeError, ConnectionResetError
        ):  # it has ended, which its process tells
            self._ours.send(_FILLED)

    def close(self) -> None:
        """Close both ends."""
        self._ours.close()
        self._theirs.close()


def used_of(descriptor: int) -> tuple[int, int]:
    """Return the bytes and the number of files that a file system holds, those without a name too."""
    status = os.fstatvfs(descriptor)
    return (
        (status.f_blocks - status.f_bfree) * status.f_frsize,
        status.f_files - status.f_ffree,
    )


_logger = logging.getLogger("loopline")
PROGRAM = {"python": "user_code.py", "shell": "user_code.sh"}
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_AREAS = ("files", "outputs")
_CACHES = frozenset({".git", "__pycache__", ".pytest_cache"})
"""Folders that no workspace has: each is named as a whole."""
_OUTSIDE = "it is neither in files/ nor in outputs/"
_NOT_PLAIN = "it is no plain file"


@dataclass(frozen=True, slots=True)
class Collected:
    """What a program has left in its current folder: the files of its contract and others that it has changed or removed."""

    files: list[ProducedFile] = field(default_factory=list[ProducedFile])
    removed: list[str] = field(default_factory=list[str])


class RunFolder:
    """The folders `work/` and `out/` of an execution; `owner` is the user that the program runs as.

    They are below `path` or, once one is given, in a file system of their own. What is done in them is done by one thread
    at a time, so that none uses a descriptor that is closed.
    """

    def __init__(self, path: Path, owner: int | None) -> None:
        self.path: Path = path
        self._owner = owner
        self._top = path
        self._disk: int | None = None
        self._found = (0, 0)
        self._is_filled = self._is_removed = False
        self._lock = Lock()

    @property
    def work(self) -> Path:
        """Return the working directory."""
        return self._top / "work"

    @property
    def out(self) -> Path:
        """Return the directory of what the program makes."""
        return self._top / "out"

    @property
    def socket(self) -> Path:
        """Return the path of the supervisor's socket."""
        return self.path / "s.sock"

    def make(self) -> None:
        """Make the folder, without anything in it."""
        self.path.mkdir(mode=0o700)

    def fill(self, execution: Execution, work: str, disk: int | None = None) -> None:
        """Lay the program and what it finds into its folders; `disk` is the root of their file system, which is closed with them.

        `work` is the working directory as the program sees it; a link to the user's files points there.
        """
        with self._lock:
            if self._is_removed:
                if disk is not None:
                    os.close(disk)
                return
            if disk is not None:
                self._disk, self._top = disk, Path(f"/proc/self/fd/{disk}")
            self._fill(execution, work)
            self._found = self._measured()[:2]
            self._is_filled = True

    def _fill(self, execution: Execution, work: str) -> None:
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
        if self._owner is not None:
            for top in (self.work, self.out):
                os.chown(top, self._owner, self._owner)
                for parent_path, below, names in os.walk(top):
                    for name in (*below, *names):
                        path = Path(parent_path, name)
                        os.chown(path, self._owner, self._owner, follow_symlinks=False)

    def collect(self, execution: Execution) -> Collected:
        """Return what the program has made: plain files only, no link is followed, as far as the limits go."""
        with self._lock:
            if not self._is_filled:
                return Collected()
            top = os.open(self.out, FOLDER)
            try:
                return _Collection(execution, top).collect()
            finally:
                os.close(top)

    def usage(self) -> tuple[int, int, str]:
        """Return the bytes and the number of files beside those that the program found, and why they are not known."""
        with self._lock:
            if not self._is_filled:
                return 0, 0, ""
            size, count, problem = self._measured()
            return size - self._found[0], count - self._found[1], problem

    def _measured(self) -> tuple[int, int, str]:
        if self._disk is not None:
            return *used_of(self._disk), ""
        top = self._open_top()
        try:
            used = usage(top)
        finally:
            os.close(top)
        return used.size, used.count, used.problem

    def _open_top(self) -> int:
        return os.open(self._top, FOLDER) if self._disk is None else os.dup(self._disk)

    def largest(self) -> tuple[int, str]:
        """Return the bytes and the path of the largest file, links not followed."""
        with self._lock:
            if not self._is_filled:
                return 0, ""
            top = self._open_top()
            try:
                sizes = [(e.status.st_size, e.path) for e in entries(top) if not e.is_folder]
            finally:
                os.close(top)
            return max(sizes, default=(0, ""))

    def remove(self) -> None:
        """Remove the folder and close its file system; what stays is logged, and no result is lost for it."""
        with self._lock:
            self._is_filled, self._is_removed = False, True
            if self._disk is not None:
                os.close(self._disk)
                self._disk = None
            remove_folder(self.path)


class _Collection:
    """One look at what is below `out/`, by descriptors."""

    def __init__(self, execution: Execution, top: int) -> None:
        self._execution = execution
        self._top = top
        self._room = execution.limits.total_bytes
        self._collected_bytes = 0
        self._unseen: list[str] = [""]
        """The beginnings of paths at which nothing could be seen; all of them until the turn's folder is found."""

    def collect(self) -> Collected:
        """Return the files of the contract first, so that none of them lacks room, then the others by their names."""
        turn = self._execution.turn_id
        names = [file.name for file in self._execution.contract]
        files = [self._contract_file(name) for name in names]
        seen = set(names)
        for entry in entries(self._top, enters=self._enters):
            path = entry.path.removeprefix(f"{turn}/")
            if entry.path == turn and self._is_ours(entry):
                self._unseen.remove("")
            if path in seen or self._enters(entry):
                continue
            seen.add(path)
            found = self._other(entry, path)
            if found is not None:
                files.append(found)
        removed = [
            name
            for name in self._execution.workspace
            if name not in seen and not name.startswith(tuple(self._unseen))
        ]
        return Collected(files, sorted(removed))

    def _is_ours(self, entry: FolderEntry) -> bool:
        """Return whether it is the turn's folder, one of its areas, or the link to the user's files."""
        turn = self._execution.turn_id
        if entry.path == f"{turn}/attachments":
            return stat.S_ISLNK(entry.status.st_mode)
        areas = (turn, *(f"{turn}/{area}" for area in _AREAS))
        return entry.path in areas and entry.is_folder and not entry.problem

    def _enters(self, entry: FolderEntry) -> bool:
        """Return whether what counts is not the entry but what is in it."""
        is_open = entry.is_folder and not entry.problem and entry.name not in _CACHES
        return self._is_ours(entry) or (is_open and self._is_inside(entry))

    def _is_inside(self, entry: FolderEntry) -> bool:
        turn = self._execution.turn_id
        return entry.path.startswith(tuple(f"{turn}/{area}/" for area in _AREAS))

    def _other(self, entry: FolderEntry, path: str) -> ProducedFile | None:
        """Return a file that no contract names, None if it is as the program found it."""
        if not self._is_inside(entry):
            self._unseen.append(f"{path}/")
            problem = entry.problem or ("it is no folder" if path in _AREAS else _OUTSIDE)
            return ProducedFile(name=path, problem=problem)
        if entry.is_folder:
            self._unseen.append(f"{path}/")
            problem = entry.problem or "a workspace has no folder of this name"
            return ProducedFile(name=f"{path}/", problem=problem)
        before = self._execution.workspace.get(path)
        data, problem = self._read(entry.name, entry.folder, before)
        if problem:
            return ProducedFile(name=path, problem=problem)
        return None if data is None or data == before else ProducedFile(name=path, data=data)

    def _contract_file(self, name: str) -> ProducedFile:
        *folders, last = f"{self._execution.turn_id}/{name}".split("/")
        opened = [os.dup(self._top)]
        try:
            for folder in folders:
                opened.append(os.open(folder, FOLDER, dir_fd=opened[-1]))
            data, problem = self._read(last, opened[-1], self._execution.workspace.get(name))
        except FileNotFoundError:
            data, problem = None, ""
        except OSError as error:
            data, problem = None, f"{_NOT_PLAIN}: {error.strerror}"
        finally:
            for descriptor in opened:
                os.close(descriptor)
        return ProducedFile(name=name, data=data, problem=problem)

    def _read(self, name: str, folder: int, before: bytes | None) -> tuple[bytes | None, str]:
        """Return the bytes of a file, or why they are not taken; those that it had before are in no limit."""
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
            is_same_size = before is not None and status.st_size == len(before)
            data = b"".join(_parts(descriptor)) if is_same_size else None
            if data is not None and data == before:
                return data, ""
            problem = self._problem(status.st_size)
            if problem:
                return None, problem
            data = b"".join(_parts(descriptor)) if data is None else data
        finally:
            os.close(descriptor)
        self._room -= len(data)
        self._collected_bytes += len(data)
        return data, ""

    def _problem(self, size: int) -> str:
        limits = self._execution.limits
        if size > limits.file_bytes:
            return f"file_too_large: it has {size:,} bytes, and may have {limits.file_bytes:,}"
        if size > self._room:
            total = self._collected_bytes + size
            return f"files_too_large: all files have {total:,} bytes, and may have {limits.total_bytes:,}"
        return ""


def _parts(descriptor: int) -> Iterator[bytes]:
    while part := os.read(descriptor, 1 << 20):
        yield part


def _write(folder: Path, name: str, data: bytes) -> None:
    path = folder / name
    for parent in reversed(path.relative_to(folder).parents):
        (folder / parent).mkdir(mode=0o750, exist_ok=True)
    path.write_bytes(data)


def remove_folder(path: Path) -> None:
    """Remove a folder of programs; what cannot be removed is logged."""
    problem = remove_tree(path)
    if problem:
        _logger.warning("%s is not removed: %s", path, problem)


def environment(execution: Execution, work: str, out: str, socket: str) -> Mapping[str, str]:
    """Return the variables of a program, and nothing else."""
    folder = (
        f"/workspace/bundles/{Path(execution.bundle_root).name}" if execution.bundle_root else ""
    )
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
        "RUNTIME_GLOBALS_JSON": _globals(execution),
        "RUNTIME_TOOL_MODULES": ",".join(sorted({tool.split(".")[0] for tool in execution.tools})),
        "BUNDLE_ROOT": folder,
        "BUNDLE_ID": execution.bundle_id,
        "SUPERVISOR_SOCKET_PATH": socket,
        **execution.variables,
    }


def _globals(execution: Execution) -> str:
    contract = [
        {"filename": file.name, "description": file.description, "visibility": file.visibility}
        for file in execution.contract
    ]
    return json.dumps(
        {"turn_id": execution.turn_id, "tools": list(execution.tools), "contract": contract}
    )


LONGEST_FOLDER = 60
"""Characters of the path below which programs run: that of a socket in it has at most 107."""
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
"""Removes what is left when the process that holds the other end of its standard input is gone."""


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """A folder below which programs run, and who sweeps it up."""

    path: Path
    sweeper: asyncio.subprocess.Process

    async def remove(self) -> None:
        """Remove the folder."""
        await asyncio.to_thread(remove_folder, self.path)
        if self.sweeper.stdin is not None:
            self.sweeper.stdin.write(_CLOSED)
            self.sweeper.stdin.close()
        await self.sweeper.wait()


async def make_shared_folder(
    parent: Path | None, group_parents: Sequence[Path] = (), *, after_kill: Sequence[str] = ()
) -> SharedFolder:
    """Make a new folder; after a kill of this process it goes away, with the control groups that have its name.

    The command `after_kill` is run then too, with the folder's name as its last argument.
    """
    path = (parent or _short_folder()) / f"loopline-exec-{os.urandom(6).hex()}"
    pattern = " ".join(f"{folder}/{path.name}-*" for folder in group_parents)
    # Before there is anything to sweep: this process may be killed at any time.
    sweeper = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _SWEEP, "sweep", str(path), pattern, *after_kill),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    await asyncio.to_thread(path.mkdir, mode=0o700)
    return SharedFolder(path, sweeper)


def _short_folder() -> Path:
    """Return the folder for temporary files, or another one if a socket's path would be too long there."""
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) < LONGEST_FOLDER else Path("/tmp")


USER = 1001
"""The user that programs run as, where this process may choose one."""
WORK, OUT, SOCKET = "/workspace/work", "/workspace/out", "/tmp/supervisor.sock"
"""Where an isolated program finds its folders and its supervisor."""


def start_message(
    execution: Execution,
    token: str,
    *,
    work: str = WORK,
    out: str = OUT,
    socket: str = SOCKET,
    path: Sequence[str] = (),
) -> dict[str, object]:
    """Return what every executor is told; `path` is where its Python looks for modules, if not where it would."""
    return {
        "socket": socket,
        "token": token,
        "folder": f"{out}/{execution.turn_id}",
        "file": f"{work}/{PROGRAM[execution.language]}",
        "language": execution.language,
        "tools": list(execution.tools),
        "path": list(path),
    }


def isolated_start(
    execution: Execution,
    token: str,
    code: bytes,
    *,
    user: int = USER,
    in_group: bool,
    has_landlock: bool,
    path: Sequence[str] = (),
    disk: tuple[int, str] | None = None,
) -> dict[str, object]:
    """Return what an executor is told that isolates itself; `code` is the filter of its system calls.

    `disk` is the descriptor by which the executor hands over the file system of its folders, and the options of that.
    """
    return {
        **start_message(execution, token, path=path),
        "isolated": True,
        "user": user,
        "limits": _resource_limits(execution.limits, in_group=in_group),
        "writable": [WORK, OUT],
        "landlock": has_landlock,
        "seccomp": code,
        "disk": disk,
    }


def _resource_limits(limits: ExecutionLimits, *, in_group: bool) -> dict[str, int]:
    """Return the limits of a process by name; without a control group each process has those of all together.

    With one each has the memory of all, because the group counts the files of the program too.
    """
    of_one = {"RLIMIT_AS": 4 * limits.memory_bytes, "RLIMIT_NPROC": limits.processes}
    return {
        "RLIMIT_DATA": limits.memory_bytes,
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        **({} if in_group else of_one),
    }
