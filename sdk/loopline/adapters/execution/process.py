"""Programs in bubblewrap: namespaces of their own, another user, system calls and folders that are listed."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

from loopline.adapters.execution.call_server import CallServer
from loopline.adapters.execution.cgroup import ControlGroup, make_group, parents
from loopline.adapters.execution.program_process import Launch, ProgramProcess, remove_group
from loopline.adapters.execution.run_folder import PROGRAM, RunFolder, environment, remove_tree
from loopline.adapters.execution.seccomp_filter import FilterUnavailable, filter_program
from loopline.errors import LooplineError
from loopline.sandbox import Execution, Failure, Feature, ProgramEnd, Session

USER = 1001
WORK, OUT, SOCKET = "/workspace/work", "/workspace/out", "/tmp/supervisor.sock"
EXECUTOR = Path(__file__).parents[2] / "supervisor" / "executor.py"
SYSTEM_PYTHON = "/usr/bin/python3"
LONGEST_FOLDER = 60
"""Characters of the path below which programs run: that of a socket in it has at most 107."""
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
sys.stdout.buffer.write(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
"""
_SWEEP = """cat >/dev/null
for group in $2; do
  [ -d "$group" ] || continue
  while read -r process; do kill -9 "$process"; done <"$group/cgroup.procs"
  tries=0
  until rmdir "$group" || [ $tries -gt 100 ]; do tries=$((tries + 1)); sleep 0.05; done
done 2>/dev/null
tries=0
until rm -rf "$1" || [ $tries -gt 100 ]; do tries=$((tries + 1)); sleep 0.05; done 2>/dev/null
"""
"""Removes what is left when the process that holds the other end of its standard input is gone."""


@dataclass(frozen=True, slots=True)
class _Ground:
    """What all executions of one sandbox share: a folder, the executor's script, and who sweeps up after a kill."""

    folder: Path
    script: Path
    sweeper: asyncio.subprocess.Process


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
        self._problem = ""

    async def features(self) -> Sequence[Feature]:
        """Return what bubblewrap, seccomp and the rest need, and whether it is here."""
        found = shutil.which("bwrap")
        install = "apt-get install bubblewrap"
        features = [Feature("bubblewrap", found is not None, found or install)]
        try:
            filter_program()
            features.append(Feature("seccomp", True, "pyseccomp"))
        except FilterUnavailable as error:
            features.append(Feature("seccomp", False, str(error)))
        if found is not None:
            features.append(await self._trial())
        features.append(_landlock_feature())
        groups = ", ".join(str(folder) for folder in parents().values())
        features.append(
            Feature("cgroup", bool(groups), groups or "limits hold for each process", False)
        )
        return features

    async def _trial(self) -> Feature:
        """Return whether the Python of programs starts with everything isolated."""
        command = [*self._options(None), self._python, "-I", "-c", "print(1)"]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={},
        )
        _, errors = await process.communicate()
        detail = errors.decode("utf-8", "replace").strip()[-300:]
        return Feature(
            "namespaces", process.returncode == 0, detail or f"{self._python} runs in them"
        )

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
        limits = execution.limits
        group = make_group(
            f"{ground.folder.name}-{number}",
            memory_bytes=limits.memory_bytes,
            processes=limits.processes + 2,  # bubblewrap's own
        )
        alive, held = os.pipe()
        try:
            attachments = f"{WORK}/{execution.turn_id}/attachments"
            await asyncio.to_thread(folder.fill, execution, attachments)
            required = {"uid", "rlimits", "seccomp", *(["landlock"] if _landlock() else [])}
            user = USER if os.getuid() == 0 else os.getuid()
            async with CallServer(
                folder.socket, execution, session, user=user, features=required
            ) as server:
                launch = self._launch(execution, folder, ground.script, code, group, held, server)
                running = ProgramProcess(launch, execution, session, folder, server)
                return await running.run()
        finally:
            os.close(held)
            await _until_closed(alive)
            if group is not None:
                await remove_group(group)
            await asyncio.to_thread(folder.remove)

    def _launch(
        self,
        execution: Execution,
        folder: RunFolder,
        script: Path,
        code: bytes,
        group: ControlGroup | None,
        held: int,
        server: CallServer,
    ) -> Launch:
        options = self._options(folder, execution.bundle_root, script, held)
        joins = ["/bin/sh", "-c", 'for f in $0; do echo $$ >"$f"; done; exec "$@"']
        prefix = [*joins, " ".join(group.members)] if group is not None else []
        start = {
            "isolated": True,
            "user": USER,
            "limits": _rlimits(execution, group),
            "socket": SOCKET,
            "token": server.token,
            "writable": [WORK, OUT],
            "landlock": _landlock(),
            "seccomp": code,
            "folder": f"{OUT}/{execution.turn_id}",
            "file": f"{WORK}/{PROGRAM[execution.language]}",
            "language": execution.language,
            "tools": list(execution.tools),
        }
        return Launch(
            argv=[*prefix, *options, self._python, "-I", "-B", "-u", f"/run/{script.name}"],
            variables=environment(execution, WORK, OUT, SOCKET),
            start=start,
            isolation=self.name,
            group=group,
            descriptors=(held,),
        )

    def _options(
        self,
        folder: RunFolder | None,
        bundle_root: str = "",
        script: Path | None = None,
        held: int | None = None,
    ) -> list[str]:
        """Return bubblewrap and what it is to isolate."""
        options = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session"]
        options += ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        options += ["--unshare-cgroup-try", "--hostname", "sandbox"]
        if os.getuid() == 0:
            options += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            options += ["--unshare-user", "--uid", str(USER), "--gid", str(USER)]
        for made in ("/etc", "/workspace", "/workspace/bundles"):
            options += ["--perms", "0755", "--dir", made]
        options += ["--ro-bind", "/usr", "/usr", *self._system]
        options += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        options += ["--perms", "0755", "--tmpfs", "/tmp", "--perms", "0755", "--tmpfs", "/run"]
        if folder is not None and script is not None:
            options += ["--bind", str(folder.work), WORK, "--bind", str(folder.out), OUT]
            options += ["--ro-bind", str(folder.socket), SOCKET]
            options += ["--ro-bind", str(script), f"/run/{script.name}"]
        if bundle_root:
            inside = f"/workspace/bundles/{Path(bundle_root).name}"
            options += ["--ro-bind", bundle_root, inside]
        options += ["--remount-ro", "/tmp", "--remount-ro", "/run", "--remount-ro", "/"]
        options += ["--sync-fd", str(held)] if held is not None else []
        return [*options, "--chdir", "/", "--"]

    @cached_property
    def _system(self) -> Sequence[str]:
        """The folders of the system beside /usr, and that of the programs' Python if it is elsewhere."""
        options = list[str]()
        for name in _LINKS:
            path = Path("/", name)
            if path.is_symlink():
                options += ["--symlink", str(path.readlink()), str(path)]
            elif path.is_dir():
                options += ["--ro-bind", str(path), str(path)]
        for name in _ETC:
            options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        place = Path(self._python)
        for path in {place.parent.parent, place.resolve().parent.parent}:
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
                if not self._problem:
                    missing = [f for f in await self.features() if f.required and not f.ok]
                    self._problem = "; ".join(f"{f.name}: {f.detail}" for f in missing)
                if self._problem:
                    raise LooplineError(self._problem)
                self._ground = await self._made()
            return self._ground

    async def _made(self) -> _Ground:
        folder = (self._folder or _short_folder()) / f"loopline-exec-{os.urandom(6).hex()}"
        pattern = " ".join(f"{parent}/{folder.name}-*" for parent in parents().values())
        # Before there is anything to sweep: this process may be killed at any time.
        sweeper = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _SWEEP, "sweep", str(folder), pattern),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={"PATH": "/usr/bin:/bin"},
        )
        await asyncio.to_thread(folder.mkdir, mode=0o700)
        compiled = await asyncio.create_subprocess_exec(
            *(self._python, "-I", "-c", _COMPILE, str(EXECUTOR)), stdout=asyncio.subprocess.PIPE
        )
        code, _ = await compiled.communicate()
        script = folder / ("executor.py" if compiled.returncode else "executor.pyc")
        await asyncio.to_thread(
            script.write_bytes, EXECUTOR.read_bytes() if compiled.returncode else code
        )
        script.chmod(0o644)
        return _Ground(folder, script, sweeper)

    async def close(self) -> None:
        """Remove the folder of this sandbox; what runs is stopped by whoever awaits it."""
        ground, self._ground = self._ground, None
        if ground is None:
            return
        await asyncio.to_thread(remove_tree, ground.folder)
        if ground.sweeper.stdin is not None:
            ground.sweeper.stdin.close()
        await ground.sweeper.wait()


def _rlimits(execution: Execution, group: ControlGroup | None) -> dict[str, int]:
    limits = execution.limits
    of_one = {
        "RLIMIT_DATA": limits.memory_bytes,
        "RLIMIT_AS": 4 * limits.memory_bytes,
        "RLIMIT_NPROC": limits.processes,
    }
    return {
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_FSIZE": limits.disk_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        **({} if group is not None else of_one),
    }


def _landlock() -> bool:
    """Return whether the kernel has Landlock."""
    library = ctypes.CDLL(None, use_errno=True)
    return int(library.syscall(_LANDLOCK_CREATE, None, 0, 1)) > 0


def _landlock_feature() -> Feature:
    detail = "the kernel has it" if _landlock() else "mounts alone keep programs from writing"
    return Feature("landlock", _landlock(), detail, False)


def _short_folder() -> Path:
    """Return the folder for temporary files, or another one if a socket's path would be too long there."""
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) < LONGEST_FOLDER else Path("/tmp")


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
