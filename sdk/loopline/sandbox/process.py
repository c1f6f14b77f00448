"""Programs in bubblewrap: namespaces of their own, another user, system calls and folders that are listed."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path

from loopline.errors import LooplineError
from loopline.sandbox.call_server import CallServer
from loopline.sandbox.cgroup import GroupEntry, make_group, parents
from loopline.sandbox.execution import Execution, Failure, Feature, ProgramEnd, Session
from loopline.sandbox.program_process import (
    Launch,
    ProgramProcess,
    StartedProgram,
    begin_child,
    remove_group,
)
from loopline.sandbox.run_folder import (
    OUT,
    SOCKET,
    USER,
    WORK,
    DiskChannel,
    RunFolder,
    SharedFolder,
    disk_size,
    environment,
    isolated_start,
    make_shared_folder,
    remove_folder,
    start_message,
)
from loopline.sandbox.seccomp_filter import FilterUnavailable, filter_program, seccomp_feature

EXECUTOR = Path(__file__).with_name("supervisor") / "executor.py"
SYSTEM_PYTHON = "/usr/bin/python3"
_LANDLOCK_CREATE = 444
_ETC = (
    "ld.so.cache",
    "alternatives",
    "fonts",
    "localtime",
    "python3",
    "matplotlibrc",
    "mime.types",
)
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64")
_COMPILE = """
import importlib.util, marshal, pathlib, sys
code = compile(pathlib.Path(sys.argv[1]).read_bytes(), "executor", "exec", dont_inherit=True)
sys.stdout.buffer.write(chr(0).join(sys.path).encode() + b"\\n")
sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
"""
"""Prints where the Python of programs looks for modules, and the executor's code for it."""
_LIBRARIES = """
from importlib.util import find_spec
print(*[name for name in ("numpy", "pandas", "matplotlib") if find_spec(name) is None])
"""


@dataclass(frozen=True, slots=True)
class _Ground:
    """What all executions of one sandbox share: a folder and the executor's script in it.

    `path` is where the Python of programs looks for modules.
    """

    shared: SharedFolder
    script: Path
    path: Sequence[str]

    @property
    def folder(self) -> Path:
        """Return the folder."""
        return self.shared.path


class BubblewrapSandbox:
    """Runs each program in bubblewrap, and refuses to where a part of the isolation cannot be had.

    What programs find and make is below `folder`, by default the system's folder for temporary files.
    """

    name: str = "process"

    def __init__(self, python: str = SYSTEM_PYTHON, *, folder: Path | None = None) -> None:
        self._python = python
        self._folder = folder
        self._ground: _Ground | None = None
        self._opening = asyncio.Lock()
        self._numbers = count(1)

    async def features(self) -> Sequence[Feature]:
        """Return what bubblewrap, seccomp and the rest need, and whether it is here."""
        bwrap = shutil.which("bwrap")
        install = "apt-get install bubblewrap"
        features = [Feature("bubblewrap", bwrap is not None, bwrap or install), seccomp_feature()]
        if bwrap is not None:
            features += await self._trial()
        features.append(_landlock_feature())
        groups = ", ".join(str(folder) for folder in parents().values())
        features.append(
            Feature("cgroup", bool(groups), groups or "limits hold for each process", False)
        )
        return features

    async def _trial(self) -> Sequence[Feature]:
        """Return whether the Python of programs starts with everything isolated, and what it can import."""
        command = [*self._options(None), self._python, "-I", "-c", _LIBRARIES]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={},
        )
        printed, errors = await process.communicate()
        detail = errors.decode("utf-8", "replace").strip()[-300:]
        starts = process.returncode == 0
        namespaces = Feature("namespaces", starts, detail or f"{self._python} runs in them")
        lacking = printed.decode().split()
        install = f"programs cannot import {', '.join(lacking)}; the bundle analyst needs them"
        libraries = Feature(
            "libraries", not lacking, install if lacking else "pandas and others", False
        )
        return [namespaces, libraries] if starts else [namespaces]

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program; if it cannot be isolated, it does not run."""
        try:
            ground = await self._opened()
            code = filter_program()
        except (LooplineError, FilterUnavailable) as error:
            failure = Failure("sandbox", "isolation_unavailable", str(error))
            return ProgramEnd(isolation=self.name, failure=failure)
        number = next(self._numbers)
        folder = RunFolder(ground.folder / str(number), USER if os.getuid() == 0 else None)
        limits, disk = execution.limits, DiskChannel()
        group = make_group(
            f"{ground.folder.name}-{number}",
            memory_bytes=limits.memory_bytes + disk_size(execution).size,
            processes=limits.processes,
        )
        alive, keeper = os.pipe()
        entry = GroupEntry(group)
        async with (
            AsyncExitStack() as cleaning
        ):  # each step is taken, whatever becomes of those before
            cleaning.push_async_callback(asyncio.to_thread, folder.remove)
            if group is not None:
                cleaning.push_async_callback(remove_group, group)
            cleaning.push_async_callback(_until_closed, alive)
            cleaning.callback(disk.close)
            cleaning.callback(entry.close)
            cleaning.callback(os.close, keeper)
            await asyncio.to_thread(folder.make)
            required = {"disk", "uid", "rlimits", "seccomp"}
            required |= {"landlock"} if _landlock() else set[str]()
            user = USER if os.getuid() == 0 else os.getuid()
            async with CallServer(
                folder.socket,
                execution,
                session,
                user=user,
                features=required,
                is_member=entry.has,
            ) as server:
                launch = self._launch(execution, folder, ground, code, entry, keeper, server, disk)
                running = ProgramProcess(launch, execution, session, folder, server)
                return await running.run()

    def _launch(
        self,
        execution: Execution,
        folder: RunFolder,
        ground: _Ground,
        code: bytes,
        entry: GroupEntry,
        keeper: int,
        server: CallServer,
        disk: DiskChannel,
    ) -> Launch:
        options = self._options(folder, execution.bundle_root, ground.script, keeper)
        options[1:1] = ["--info-fd", str(entry.descriptor)]
        start = isolated_start(
            execution,
            server.token,
            code,
            in_group=entry.group is not None,
            has_landlock=_landlock(),
            path=ground.path,
            disk=(disk.inside, disk_size(execution).options),
        )
        python = [self._python, "-I", "-S", "-B", "-u"]
        argv = [*options, *python, f"/run/{ground.script.name}"]
        variables = environment(execution, WORK, OUT, SOCKET)
        return Launch(
            begin=partial(_begin, argv, variables, entry, [keeper, disk.inside]),
            start=start,
            isolation=self.name,
            disk=disk,
        )

    def _options(
        self,
        folder: RunFolder | None,
        bundle_root: str = "",
        script: Path | None = None,
        keeper: int | None = None,
    ) -> list[str]:
        """Return bubblewrap and what it is to isolate."""
        options = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session"]
        options += ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        options += ["--unshare-cgroup-try", "--hostname", "sandbox"]
        if os.getuid() == 0:
            options += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            options += ["--unshare-user", "--uid", str(USER), "--gid", str(USER)]
        options += ["--cap-add", "CAP_SYS_ADMIN"]  # to mount its folders, and dropped with that
        for folder_path in ("/etc", "/workspace", "/workspace/bundles"):
            options += ["--perms", "0755", "--dir", folder_path]
        options += ["--ro-bind", "/usr", "/usr", *self._system]
        options += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        options += ["--perms", "0755", "--tmpfs", "/tmp", "--perms", "0755", "--tmpfs", "/run"]
        if folder is not None and script is not None:
            options += ["--perms", "0755", "--dir", WORK, "--perms", "0755", "--dir", OUT]
            options += ["--ro-bind", str(folder.socket), SOCKET]
            options += ["--ro-bind", str(script), f"/run/{script.name}"]
        if bundle_root:
            inside = f"/workspace/bundles/{Path(bundle_root).name}"
            options += ["--ro-bind", bundle_root, inside]
        options += ["--remount-ro", "/tmp", "--remount-ro", "/run", "--remount-ro", "/"]
        options += ["--sync-fd", str(keeper)] if keeper is not None else []
        return [*options, "--chdir", "/", "--"]

    @cached_property
    def _system(self) -> Sequence[str]:
        """The folders of the system beside /usr, and that of the programs' Python if it is elsewhere."""
        options: list[str] = []
        for name in _LINKS:
            path = Path("/", name)
            if path.is_symlink():
                options += ["--symlink", str(path.readlink()), str(path)]
            elif path.is_dir():
                options += ["--ro-bind", str(path), str(path)]
        for name in _ETC:
            options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        interpreter = Path(self._python)
        for path in {interpreter.parent.parent, interpreter.resolve().parent.parent}:
            if not path.is_relative_to("/usr") and path != Path("/"):
                options += ["--ro-bind", str(path), str(path)]
        return options

    async def _opened(self) -> _Ground:
        """Return what all executions share, made at the first of them.

        Raises:
            LooplineError: a part of the isolation cannot be had; the message names it.
        """
        async with self._opening:
            if self._ground is None:
                missing = [f for f in await self.features() if f.required and not f.ok]
                if missing:
                    raise LooplineError("; ".join(f"{f.name}: {f.detail}" for f in missing))
                self._ground = await self._make_ground()
            return self._ground

    async def _make_ground(self) -> _Ground:
        shared = await make_shared_folder(self._folder, list(parents().values()))
        folder = shared.path
        compiled = await asyncio.create_subprocess_exec(
            *(self._python, "-I", "-c", _COMPILE, str(EXECUTOR)), stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await compiled.communicate()
        if compiled.returncode:
            await shared.remove()
            raise LooplineError(
                f"{self._python} could not compile the executor: exit code {compiled.returncode}"
            )
        path, _, code = printed.partition(b"\n")
        script = folder / "executor.pyc"
        await asyncio.to_thread(script.write_bytes, code)
        script.chmod(0o644)
        return _Ground(shared, script, path.decode().split("\0"))

    async def close(self) -> None:
        """Remove the folder of this sandbox; what runs is stopped by whoever awaits it."""
        ground, self._ground = self._ground, None
        if ground is None:
            return
        await ground.shared.remove()


async def _begin(
    argv: Sequence[str], variables: Mapping[str, str], entry: GroupEntry, descriptors: Sequence[int]
) -> StartedProgram:
    """Start a program in bubblewrap; it has joined its control group when this returns."""
    program = await begin_child(argv, variables, entry.group, [*descriptors, entry.descriptor])
    try:
        await entry.enter()
    except BaseException:
        await program.stop()
        raise
    return program


def _landlock() -> bool:
    """Return whether the kernel has Landlock."""
    library = ctypes.CDLL(None, use_errno=True)
    return int(library.syscall(_LANDLOCK_CREATE, None, 0, 1)) > 0


def _landlock_feature() -> Feature:
    detail = "the kernel has it" if _landlock() else "mounts alone keep programs from writing"
    return Feature("landlock", _landlock(), detail, False)


async def _until_closed(descriptor: int) -> None:
    """Wait until no process of the sandbox holds the other end."""
    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, closed.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                await closed.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


class LocalSandbox:
    """Runs each program as a plain child process. It protects nothing; limits of time, disk and output hold."""

    name: str = "local"

    def __init__(self, python: str = sys.executable, *, folder: Path | None = None) -> None:
        self._python = python
        self._parent = folder
        self._numbers = count(1)
        self._folder: Path | None = None

    async def features(self) -> Sequence[Feature]:
        """Return that there is no isolation."""
        return [Feature("isolation", False, "programs have the rights of this process", False)]

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="loopline-exec-", dir=self._parent))
        folder = RunFolder(self._folder / str(next(self._numbers)), None)
        work, out = str(folder.work), str(folder.out)
        try:
            await asyncio.to_thread(folder.make)
            await asyncio.to_thread(folder.fill, execution, work)
            async with CallServer(
                folder.socket, execution, session, user=os.getuid(), features=()
            ) as server:
                socket = str(folder.socket)
                start = {
                    **start_message(execution, server.token, work=work, out=out, socket=socket),
                    "isolated": False,
                    "limits": {"RLIMIT_FSIZE": execution.limits.file_bytes},
                }
                argv = [self._python, "-I", "-B", "-u", str(EXECUTOR)]
                variables = {
                    **environment(execution, work, out, socket),
                    "BUNDLE_ROOT": execution.bundle_root,  # nothing is mounted elsewhere
                }
                launch = Launch(
                    begin=partial(begin_child, argv, variables), start=start, isolation="none"
                )
                return await ProgramProcess(launch, execution, session, folder, server).run()
        finally:
            await asyncio.to_thread(folder.remove)

    async def close(self) -> None:
        """Remove the folder of this sandbox."""
        if self._folder is not None:
            await asyncio.to_thread(remove_folder, self._folder)
            self._folder = None
