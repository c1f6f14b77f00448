"""Sandboxes of this machine: programs in bubblewrap, and programs as plain child processes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path

from loopline.errors import LooplineError
from loopline.sandbox.cgroup import GroupEntry, make_group, parents
from loopline.sandbox.execution import Execution, Feature, ProgramEnd, Session, report_failure
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
    RunFolders,
    SharedFolder,
    disk_size,
    environment,
    isolated_start,
    make_shared_folder,
    program_user,
    start_message,
)
from loopline.sandbox.seccomp_filter import filter_program, seccomp_feature

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
"""The program that prints `sys.path` of the programs' Python, and the executor compiled for that version."""
_LIBRARIES = """
from importlib.util import find_spec
print(*[name for name in ("numpy", "pandas", "matplotlib") if find_spec(name) is None])
"""


@dataclass(frozen=True, slots=True)
class _Preparation:
    """The parts that all executions of a sandbox share: a folder, the compiled executor in it, and `sys.path` of programs."""

    shared: SharedFolder
    script: Path
    path: Sequence[str]


MOST_LINKS = 40
"""The most links that an interpreter is followed through, as in Linux."""


def python_mounts(interpreter: Path) -> list[str]:
    """Return the bubblewrap options that mount an interpreter read-only, with its environment and the Python of that.

    A folder is mounted only if it is that of a Python, so that `~/bin/python` does not mount the home folder. Folders in
    /usr are there already.
    """
    options: list[str] = []
    path = interpreter
    prefixes = dict[Path, None]()
    for _ in range(MOST_LINKS):
        prefix = path.parent.parent
        base = _base_of(prefix)
        is_python = base is not None or any(prefix.glob("lib/python3*"))
        if is_python:
            prefixes |= dict.fromkeys(filter(None, (prefix, base, base and base.resolve())))
        if not path.is_symlink():
            if not is_python and not _is_mounted(path):
                options += [*_parents(path), "--ro-bind-try", str(path), str(path)]
            prefixes[path.resolve().parent.parent] = None
            break
        target = path.readlink()
        if not is_python and not _is_mounted(path):
            options += [*_parents(path), "--symlink", str(target), str(path)]
        path = Path(os.path.normpath(path.parent / target))
    for prefix in prefixes:
        if not _is_mounted(prefix) and any(prefix.glob("lib/python3*")):
            options += [*_parents(prefix), "--ro-bind", str(prefix), str(prefix)]
    return options


def _parents(path: Path) -> list[str]:
    """Return the options that make the folders around a path, which otherwise only root may enter."""
    folders = reversed(path.parents[:-1])
    return [word for folder in folders for word in ("--perms", "0755", "--dir", str(folder))]


def locate_python(python: str) -> str:
    """Return the absolute path of an interpreter: of a name as a shell finds it, else of a path; `~` is the home folder."""
    found = shutil.which(python) if "/" not in python else None
    return found or str(Path(python).expanduser().absolute())


def _base_of(environment: Path) -> Path | None:
    """Return the folder of the Python that a virtual environment was made with.

    Return the environment itself if its `pyvenv.cfg` does not name that Python, and None without a `pyvenv.cfg`.
    """
    try:
        lines = (environment / "pyvenv.cfg").read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    fields = {
        name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)
    }
    home = fields.get("home", "")
    return Path(home).parent if home else environment


def _is_mounted(path: Path) -> bool:
    """Return whether the path is in a folder of the system, which every sandbox has."""
    return path == Path("/") or any(
        path.is_relative_to(folder) for folder in ("/usr", *(f"/{name}" for name in _LINKS))
    )


class BubblewrapSandbox:
    """Runs each program in bubblewrap. If a part of the isolation is not available, programs do not run.

    The files of programs are below `folder`, by default the folder for temporary files.
    """

    name: str = "process"

    def __init__(self, python: str = SYSTEM_PYTHON, *, folder: Path | None = None) -> None:
        self._python = locate_python(python)
        self._folder = folder
        self._preparation: _Preparation | None = None
        self._opening = asyncio.Lock()
        self._numbers = count(1)

    async def features(self) -> Sequence[Feature]:
        """Check for bubblewrap, seccomp, namespaces, Landlock, control groups and libraries, with a trial program."""
        bwrap = shutil.which("bwrap")
        install = "apt-get install bubblewrap"
        features = [Feature("bubblewrap", bwrap is not None, bwrap or install), seccomp_feature()]
        if bwrap is not None:
            features += await self._try_isolation()
        without = "mounts alone keep programs from writing"
        detail = "the kernel has it" if has_landlock() else without
        features.append(Feature("landlock", has_landlock(), detail, required=False))
        groups = ", ".join(str(folder) for folder in parents().values())
        detail = groups or "limits hold for each process"
        features.append(Feature("cgroup", bool(groups), detail, required=False))
        return features

    async def _try_isolation(self) -> Sequence[Feature]:
        """Start the programs' Python with full isolation, and check that it starts and which libraries it can import."""
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
        if not starts:
            return [namespaces]
        missing = printed.decode().split()
        detail = "pandas and others"
        if missing:
            detail = f"programs cannot import {', '.join(missing)}; the bundle analyst needs them"
        return [namespaces, Feature("libraries", not missing, detail, required=False)]

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program. If it cannot be isolated, it does not run and the failure says why."""
        try:
            prepared = await self._prepare()
            seccomp = filter_program()
        except LooplineError as error:
            return report_failure(self.name, "isolation_unavailable", str(error))
        path = prepared.shared.path / str(next(self._numbers))
        folder = RunFolder(path, program_user())
        size = disk_size(execution)
        disk = DiskChannel()
        group = make_group(
            f"{path.parent.name}-{path.name}",
            memory_bytes=execution.limits.memory_bytes + size.size,
            processes=execution.limits.processes,
        )
        entry = GroupEntry(group)
        alive, keeper = os.pipe()
        # The steps run from the last to the first, each of them even if another one fails.
        async with AsyncExitStack() as cleanup:
            cleanup.push_async_callback(asyncio.to_thread, folder.remove)
            if group is not None:
                cleanup.push_async_callback(remove_group, group)
            cleanup.push_async_callback(_wait_until_closed, alive)
            cleanup.callback(disk.close)
            cleanup.callback(entry.close)
            cleanup.callback(os.close, keeper)
            await asyncio.to_thread(folder.make)
            start = isolated_start(
                execution,
                seccomp,
                in_group=group is not None,
                has_landlock=has_landlock(),
                path=prepared.path,
                disk=(disk.inner, size.options),
            )
            options = self._options(folder, execution.bundle_root, prepared.script, keeper)
            options[1:1] = ["--info-fd", str(entry.descriptor)]
            python = [self._python, "-I", "-S", "-B", "-u", f"/run/{prepared.script.name}"]
            variables = environment(execution)
            launch = Launch(
                begin=partial(_begin, [*options, *python], variables, entry, [keeper, disk.inner]),
                start=start,
                isolation=self.name,
                user=folder.user,
                is_member=entry.has,
                disk=disk,
            )
            return await ProgramProcess(launch, execution, session, folder).run()

    def _options(
        self,
        folder: RunFolder | None,
        bundle_root: str = "",
        script: Path | None = None,
        keeper: int | None = None,
    ) -> list[str]:
        """Return the bubblewrap command up to the program; without a `folder` for a trial of the isolation.

        `script` is the compiled executor. `keeper` is a descriptor that bubblewrap keeps open until it ends.
        """
        options = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session"]
        options += ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        options += ["--unshare-cgroup-try", "--hostname", "sandbox"]
        if os.getuid() == 0:
            options += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            options += ["--unshare-user", "--uid", str(USER), "--gid", str(USER)]
        # The executor mounts its folders and changes its root, and then drops these.
        options += ["--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SYS_CHROOT"]
        for folder_path in ("/etc", "/workspace", "/workspace/bundles"):
            options += ["--perms", "0755", "--dir", folder_path]
        options += ["--ro-bind", "/usr", "/usr", *self._system]
        options += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        # The command line of the kernel can have names of the host.
        options += ["--ro-bind", "/dev/null", "/proc/cmdline"]
        options += ["--perms", "0755", "--tmpfs", "/tmp", "--perms", "0755", "--tmpfs", "/run"]
        options += python_mounts(Path(self._python))  # after /tmp, where an environment may be
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
        """The options that mount the system folders outside /usr."""
        options: list[str] = []
        for name in _LINKS:
            path = Path("/", name)
            if path.is_symlink():
                options += ["--symlink", str(path.readlink()), str(path)]
            elif path.is_dir():
                options += ["--ro-bind", str(path), str(path)]
        for name in _ETC:
            options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        return options

    async def _prepare(self) -> _Preparation:
        """Check the features and make the shared folder, once; raise LooplineError if a feature is missing."""
        async with self._opening:
            if self._preparation is None:
                missing = [f for f in await self.features() if f.required and not f.ok]
                if missing:
                    raise LooplineError("; ".join(f"{f.name}: {f.detail}" for f in missing))
                shared = await make_shared_folder(self._folder, list(parents().values()))
                self._preparation = await self._compile_executor(shared)
            return self._preparation

    async def _compile_executor(self, shared: SharedFolder) -> _Preparation:
        """Compile the executor with the sandbox's Python, and write it into `shared`.

        Return it with the folders from which that Python imports. If the compilation fails, remove `shared` and raise
        LooplineError.
        """
        compiler = await asyncio.create_subprocess_exec(
            *(self._python, "-I", "-c", _COMPILE, str(EXECUTOR)), stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await compiler.communicate()
        if compiler.returncode:
            await shared.remove()
            raise LooplineError(
                f"{self._python} could not compile the executor: exit code {compiler.returncode}"
            )
        path, _, code = printed.partition(b"\n")
        script = shared.path / "executor.pyc"
        await asyncio.to_thread(script.write_bytes, code)
        script.chmod(0o644)
        return _Preparation(shared, script, path.decode().split("\0"))

    async def close(self) -> None:
        """Remove the folder of this sandbox. A running program is stopped by cancelling its `run`."""
        preparation = self._preparation
        self._preparation = None
        if preparation is not None:
            await preparation.shared.remove()


async def _begin(
    argv: Sequence[str], variables: Mapping[str, str], entry: GroupEntry, descriptors: Sequence[int]
) -> StartedProgram:
    """Start a program in bubblewrap, and move it into its control group; if that fails, stop the program."""
    program = await begin_child(argv, variables, entry.group, [*descriptors, entry.descriptor])
    try:
        await entry.enter()
    except BaseException:
        await program.stop()
        raise
    return program


def has_landlock() -> bool:
    """Return whether the kernel supports Landlock."""
    library = ctypes.CDLL(None, use_errno=True)
    return int(library.syscall(_LANDLOCK_CREATE, None, 0, 1)) > 0


async def _wait_until_closed(descriptor: int) -> None:
    """Wait until every process of the sandbox has closed the other end of the pipe, at most ten seconds; then close it."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    loop.add_reader(descriptor, closed.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                await closed.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


class LocalSandbox:
    """Runs each program as a plain child process, without isolation. The limits of time, disk and output still hold."""

    name: str = "local"

    def __init__(self, python: str = sys.executable, *, folder: Path | None = None) -> None:
        self._python = locate_python(python)
        self._folders = RunFolders(folder)

    async def features(self) -> Sequence[Feature]:
        """Return one feature that says that programs are not isolated."""
        detail = "programs have the rights of this process"
        return [Feature("isolation", False, detail, required=False)]

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program with the rights of this process."""
        async with self._folders.open_next(execution) as folder:
            work = str(folder.work)
            out = str(folder.out)
            socket = str(folder.socket)
            variables = {
                **environment(execution, work, out, socket),
                "BUNDLE_ROOT": execution.bundle_root,  # not mounted at another path
            }
            argv = [self._python, "-I", "-B", "-u", str(EXECUTOR)]
            launch = Launch(
                begin=partial(begin_child, argv, variables),
                start={
                    **start_message(execution, work=work, out=out, socket=socket),
                    "isolated": False,
                    "limits": {"RLIMIT_FSIZE": execution.limits.file_bytes},
                },
                isolation="none",
                user=folder.user,
            )
            return await ProgramProcess(launch, execution, session, folder).run()

    async def close(self) -> None:
        """Remove the folder of this sandbox."""
        await self._folders.remove()
