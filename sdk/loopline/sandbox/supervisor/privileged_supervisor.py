"""The supervisor in a container: process 1, which starts each executor in new namespaces and relays its calls.

The image's Python runs it as a script. It does not know secrets and does not run tools: it only passes the calls of programs
to the harness.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import json
import marshal
import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

SHARED = "/loopline"
"""The folder that the harness mounts, with its socket, the executor, and a folder for each execution."""
WORKSPACE, SOCKET = "/workspace", "/tmp/supervisor.sock"
EXECUTOR = "/tmp/executor.pyc"
COVERED = (SHARED, "/sys", "/run", "/dev/shm", "/dev/mqueue")
"""The folders that are empty for a program."""
NOT_ISOLATED = 71
CHANNEL = 3
"""The descriptor over which an execution sends its file system to the harness."""

_NEW_MOUNTS, _NEW_NAME, _NEW_IPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
_NEW_PROCESSES, _NEW_NETWORK = 0x2000_0000, 0x4000_0000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _PRIVATE = 1, 2, 4, 8, 32, 4096, 0x4_4000
_DIE_WITH_PARENT, _LANDLOCK_CREATE = 1, 444
_OPEN_TREE, _HERE, _CLONE, _RECURSIVE = 428, -100, 1, 0x8000
_PIECE = 1 << 16


class NamespaceError(Exception):
    """A namespace or a mount of a program cannot be made, so the program does not run."""


class Kernel:
    """System calls that Python does not offer before 3.12. A failing call raises NamespaceError."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)

    def unshare(self, flags: int) -> None:
        """Move this process into new namespaces of the kinds in `flags`."""
        self._check(self._library.unshare(flags), "unshare")

    def enter(self, descriptor: int) -> None:
        """Move this process into the namespace of an open descriptor."""
        self._check(self._library.setns(descriptor, 0), "setns")

    def mount(self, source: str, target: str, kind: str, flags: int, options: str = "") -> None:
        """Mount a file system, or change a mount."""
        failed = self._library.mount(
            source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()
        )
        self._check(failed, f"mount of {target}")

    def hide_mounts(self) -> None:
        """Change to a copy of all mounts that is not mounted itself, so that `/proc/self/mountinfo` is empty.

        It would show the paths of mounted folders on the host.
        """
        flags = _CLONE | _RECURSIVE | os.O_CLOEXEC
        root = self._library.syscall(_OPEN_TREE, _HERE, b"/", flags)
        self._check(root < 0, "open_tree")
        os.chdir(root)
        os.chroot(".")
        os.close(root)

    def die_with_parent(self) -> None:
        """Let the kernel kill this process when its parent ends."""
        self._library.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)

    def has_landlock(self) -> bool:
        """Return whether the kernel supports Landlock."""
        return int(self._library.syscall(_LANDLOCK_CREATE, None, 0, 1)) > 0

    def _check(self, result: int, call: str) -> None:
        """Raise NamespaceError, with the name of the call and the system's error, if `result` is not 0."""
        if result:
            number = ctypes.get_errno()
            raise NamespaceError(
                f"{call}: {os.strerror(number)}: the container needs the capability SYS_ADMIN, "
                f"and no profile of AppArmor or seccomp that forbids it"
            )


class Groups:
    """The control groups below that of the container, if the container may make groups."""

    def __init__(self, kernel: Kernel) -> None:
        root = Path("/sys/fs/cgroup")
        unified = (root / "cgroup.controllers").exists()
        self._parents = [root] if unified else [root / "memory", root / "pids"]
        try:
            for parent in self._parents:
                kernel.mount("", str(parent), "", _REMOUNT | _BIND | _NOSUID | _NODEV | _NOEXEC)
            if unified:
                self._delegate(root)
        except (OSError, NamespaceError):
            self._parents = []

    def _delegate(self, root: Path) -> None:
        """Enable the controllers for groups below `root`, after moving this process out of it.

        The kernel does not allow processes in a group that has groups with controllers below it.
        """
        own = root / "supervisor"
        own.mkdir()
        (own / "cgroup.procs").write_text(str(os.getpid()))
        (root / "cgroup.subtree_control").write_text("+memory +pids")

    @property
    def available(self) -> bool:
        """Whether groups can be made."""
        return bool(self._parents)

    def make(self, name: str, memory_bytes: int, processes: int) -> list[Path]:
        """Make a control group with at most `memory_bytes` of memory, no swap, and at most `processes` processes.

        Return its folders: one with cgroup v2, and two, for memory and for processes, with v1. If groups are not `available`,
        no group is made, and the list is empty.

        Raises:
            OSError: the group exists, or a limit cannot be written.
        """
        limits = {
            "memory.limit_in_bytes": memory_bytes,
            "memory.memsw.limit_in_bytes": memory_bytes,
            "memory.max": memory_bytes,
            "memory.swap.max": 0,
            "pids.max": processes,
        }
        folders = [parent / name for parent in self._parents]
        for folder in folders:
            folder.mkdir()
            for file, value in limits.items():
                if (folder / file).exists():
                    (folder / file).write_text(str(value))
        return folders


def count(folders: list[Path], names: tuple[str, ...], key: str) -> int:
    """Return the count `key` in the first of these files of a control group that has it; 0 if none has."""
    for folder in folders:
        for name in names:
            if (folder / name).exists():
                for line in (folder / name).read_text().splitlines():
                    field, _, number = line.partition(" ")
                    if field == key:
                        return int(number)
    return 0


class PrivilegedSupervisor:
    """Starts executors on request of the harness, and reports the exit of each."""

    def __init__(self) -> None:
        self._kernel = Kernel()
        self._groups = Groups(self._kernel)
        self._own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._running: dict[int, Run] = {}
        self._closed = asyncio.Event()

    async def serve(self) -> None:
        """Serve the harness until it closes its connection; the end of this process ends all programs."""
        loop = asyncio.get_running_loop()
        self._control.connect(f"{SHARED}/control.sock")
        prepare(f"{SHARED}/executor.py")
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        loop.add_signal_handler(signal.SIGTERM, self._closed.set)
        loop.add_reader(self._control.fileno(), self._receive)
        self._send(
            {
                "groups": self._groups.available,
                "landlock": self._kernel.has_landlock(),
                "path": sys.path,
            }
        )
        await self._closed.wait()

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            self._closed.set()

    def _receive(self) -> None:
        """Handle a message of the harness: begin an execution with the descriptors that come with it, or stop one."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, _PIECE, 4)
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._closed.set()
            return
        message: dict[str, str] = json.loads(data)
        if "begin" in message:
            self._begin(message["begin"], descriptors)
        else:
            self._stop(message["stop"])

    def _stop(self, name: str) -> None:
        for process, run in self._running.items():
            if run.name == name:
                os.kill(process, signal.SIGKILL)
                return

    def _begin(self, name: str, streams: list[int]) -> None:
        """Start the execution `name`, and close `streams`; a failure is written to its stderr and sent as exit 71."""
        run: Run | None = None
        try:
            request: dict[str, Any] = json.loads(Path(SHARED, name, "run.json").read_bytes())
            run = Run(name, request)
            if self._groups.available:
                run.groups = self._groups.make(name, request["memory_bytes"], request["processes"])
            run.listen()
            self._running[self._fork(run, streams)] = run
        except (OSError, NamespaceError) as error:
            os.write(streams[2], f"isolation: {error}\n".encode())
            self._send({"ended": name, "exit": NOT_ISOLATED})
            if run is not None:
                with suppress(OSError):  # the group was not made, or has a process
                    run.close()
        finally:
            for descriptor in streams:
                os.close(descriptor)

    def _fork(self, run: Run, streams: list[int]) -> int:
        """Start the process of a run as the first in a new process namespace, and return its id."""
        self._kernel.unshare(_NEW_PROCESSES)
        process = os.fork()
        if process == 0:
            run.become(self._kernel, streams)
        self._kernel.enter(self._own_processes)
        return process

    def _reap(self) -> None:
        """Reap all ended children; report the exit and counts of an execution, and remove its socket and group."""
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            run = self._running.pop(process, None)
            if run is not None:
                self._send(
                    {
                        "ended": run.name,
                        "exit": os.waitstatus_to_exitcode(status),
                        "memory_kills": count(
                            run.groups, ("memory.oom_control", "memory.events"), "oom_kill"
                        ),
                        "refused_processes": count(run.groups, ("pids.events",), "max"),
                    }
                )
                run.close()


class Run:
    """One execution, with its socket, its file system, and the folders of its control group."""

    def __init__(self, name: str, request: Mapping[str, Any]) -> None:
        self.name = name
        self.groups: list[Path] = []
        self._user: int = request["user"]
        self._variables: Mapping[str, str] = request["variables"]
        self._disk: str = request["disk"]
        self._socket = f"/tmp/{name}.sock"
        self._relay: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Open the socket for the calls of the program, and relay its first connection."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.bind(self._socket)
        Path(self._socket).chmod(0o666)
        listener.listen(4)
        self._relay = asyncio.ensure_future(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        """Relay the first connection of the program's user to the harness, and close other connections."""
        loop = asyncio.get_running_loop()
        with listener:
            program, _ = await loop.sock_accept(listener)
            while not self._is_from_program(program):
                program.close()
                program, _ = await loop.sock_accept(listener)
        harness = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with program, harness:
            harness.connect(f"{SHARED}/{self.name}/s.sock")
            await asyncio.gather(pump(program, harness), pump(harness, program))

    def _is_from_program(self, connection: socket.socket) -> bool:
        stored = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, user, _ = struct.unpack("3i", stored)
        return bool(user == self._user)

    def become(self, kernel: Kernel, streams: list[int]) -> NoReturn:
        """Isolate this new process, run the executor, and exit with its exit code."""
        code = NOT_ISOLATED
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            kernel.die_with_parent()
            for group in self.groups:
                (group / "cgroup.procs").write_text("0")
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            os.closerange(len(streams), 4096)
            os.setsid()
            self._isolate(kernel)
            code = self._execute()
        except (OSError, NamespaceError) as error:
            os.write(2, f"isolation: {error}\n".encode())
        finally:
            os._exit(code)

    def _isolate(self, kernel: Kernel) -> None:
        """Move this process into new namespaces, and mount only the files that its program may use."""
        kernel.unshare(_NEW_NETWORK | _NEW_MOUNTS | _NEW_IPC | _NEW_NAME)
        socket.sethostname("sandbox")
        kernel.mount("", "/", "", _PRIVATE)
        self._mount_disk(kernel)
        files = {
            path: os.open(source, os.O_PATH)
            for path, source in ((SOCKET, self._socket), (EXECUTOR, EXECUTOR))
        }
        kernel.mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, "mode=0755,size=64k")
        for path, descriptor in files.items():
            Path(path).touch()
            kernel.mount(f"/proc/self/fd/{descriptor}", path, "", _BIND)
            os.close(descriptor)
        for path in COVERED:
            if Path(path).is_dir():
                kernel.mount(
                    "tmpfs", path, "tmpfs", _RDONLY | _NOSUID | _NODEV, "mode=0755,size=4k"
                )
        kernel.mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
        self._forbid_writing(kernel)
        kernel.hide_mounts()

    def _mount_disk(self, kernel: Kernel) -> None:
        """Mount a file system for the program's folders, send it to the harness, and wait until it is filled."""
        out = f"{WORKSPACE}/out"
        kernel.mount("tmpfs", out, "tmpfs", _NOSUID | _NODEV, self._disk)
        root = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
        with socket.socket(fileno=CHANNEL) as channel:
            socket.send_fds(channel, [b"d"], [root])
            if not channel.recv(1):
                raise NamespaceError("disk: the harness did not fill it")
        os.close(root)
        for name in ("work", "out"):  # `out` is last, because it covers the root of the file system
            kernel.mount(f"{out}/{name}", f"{WORKSPACE}/{name}", "", _BIND)

    def _forbid_writing(self, kernel: Kernel) -> None:
        """Make all mounts read-only, except the folders of the program and `/proc`."""
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            escaped, options = line.split(" ")[4:6]
            path = escaped.encode().decode("unicode_escape")
            writable = path in (f"{WORKSPACE}/work", f"{WORKSPACE}/out")
            if writable or path.startswith("/proc") or not os.path.lexists(path):
                continue
            names = options.split(",")
            flags = [flag for name, flag in _FLAGS.items() if name in names]
            kernel.mount("", path, "", _REMOUNT | _BIND | _RDONLY | sum(flags))

    def _execute(self) -> int:
        """Run the executor as a child, and return its exit code, 128 plus the signal if a signal has killed it.

        This process is the first of its namespace, so it also reaps orphaned processes.
        """
        process = os.fork()
        if process == 0:
            python = sys.executable
            os.execve(python, [python, "-I", "-S", "-B", "-u", EXECUTOR], self._variables)
        for descriptor in range(3):
            os.close(descriptor)
        while True:
            orphan, status = os.wait()
            if orphan == process:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code

    def close(self) -> None:
        """Stop the relay of calls, and remove the socket and the control group.

        Raises:
            OSError: the group still has a process.
        """
        if self._relay is not None:
            self._relay.cancel()
        Path(self._socket).unlink(missing_ok=True)
        for group in self.groups:
            group.rmdir()


_FLAGS = {
    "nosuid": _NOSUID,
    "nodev": _NODEV,
    "noexec": _NOEXEC,
    "noatime": 1024,
    "relatime": 1 << 21,
}


async def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy all bytes from the source to the target, and then close the target for writing."""
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(source, _PIECE):
            await loop.sock_sendall(target, data)
    except OSError:
        pass
    finally:
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def prepare(executor: str) -> None:
    """Make the mount points of a program's folders, and compile the executor for this version of Python."""
    for name in ("work", "out"):
        Path(WORKSPACE, name).mkdir()
    code = compile(Path(executor).read_bytes(), "executor", "exec", dont_inherit=True)
    target = Path(EXECUTOR)
    target.write_bytes(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
    target.chmod(0o644)


def log_errors(path: str) -> None:
    """Redirect stderr of this process to a file, which the harness reads if the container does not start."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)


if __name__ == "__main__":
    log_errors(f"{SHARED}/supervisor.log")
    asyncio.run(PrivilegedSupervisor().serve())
