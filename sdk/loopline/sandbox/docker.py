"""The sandbox of Docker: a container that stays, with a supervisor that starts each program in new namespaces."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import cast

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject
from loopline.sandbox import run_folder
from loopline.sandbox.docker_daemon import LABEL, DaemonError, DockerDaemon, DockerSettings
from loopline.sandbox.execution import (
    Execution,
    Failure,
    Feature,
    ProgramEnd,
    ServedCall,
    Session,
    report_failure,
)
from loopline.sandbox.program_process import Launch, ProgramCost, ProgramProcess, StartedProgram
from loopline.sandbox.seccomp_filter import filter_program, seccomp_feature

SHARED = "/loopline"
START_SECONDS = 30.0
STOP_SECONDS = 20.0
_POLL_SECONDS = 0.5
_PIECE = 1 << 16
_SCRIPTS = Path(__file__).with_name("supervisor")


_End = asyncio.Future[tuple[Failure | int, ProgramCost]]
"""The exit code of a program and its cost as reported by its supervisor, or the failure that the supervisor was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorFeatures:
    """The features of a container: control groups, Landlock, and `sys.path` of its Python."""

    has_groups: bool
    has_landlock: bool
    path: Sequence[str]


class WarmContainer:
    """A running container. Its supervisor starts programs, also several at once.

    `control` is the connection of the supervisor. If the container has ended, `lost` says why.
    """

    def __init__(self, daemon: DockerDaemon, container: str, control: socket.socket) -> None:
        self._daemon = daemon
        self._container = container
        self._control = control
        self._running: dict[str, _End] = {}
        self._hello: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self.lost: str = ""
        asyncio.get_running_loop().add_reader(control.fileno(), self._receive)

    async def features(self) -> SupervisorFeatures:
        """Wait for the first message of the supervisor, which lists the features of the container.

        Raises:
            DaemonError: the container has ended.
            TimeoutError: the message has not arrived after 30 seconds.
        """
        async with asyncio.timeout(START_SECONDS):
            hello = await asyncio.shield(self._hello)
        path = hello["path"]
        return SupervisorFeatures(
            has_groups=hello["groups"] is True,
            has_landlock=hello["landlock"] is True,
            path=[str(folder) for folder in path] if isinstance(path, list) else [],
        )

    async def begin(self, name: str, disk: int) -> StartedProgram:
        """Let the supervisor start the execution with the folder `name`; it sends the file system over the descriptor `disk`.

        Raises:
            DaemonError: the container has ended.
        """
        if self.lost:
            raise DaemonError(self.lost)
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        inner = [stdin[0], stdout[1], stderr[1]]
        end: _End = asyncio.get_running_loop().create_future()
        self._running[name] = end
        try:
            await self._send({"begin": name}, [*inner, disk])
        finally:
            for descriptor in inner:
                os.close(descriptor)
        return ContainedProgram(
            name=name,
            container=self,
            end=end,
            stdin=await _open_writer(stdin[1]),
            stdout=await _open_reader(stdout[0]),
            stderr=await _open_reader(stderr[0]),
        )

    async def stop(self, name: str) -> None:
        """Let the supervisor kill all processes of an execution; does not wait for their end."""
        await self._send({"stop": name})

    async def close(self) -> None:
        """Remove the container, and wait until it is removed."""
        self._lose("the container was closed")
        await self._daemon.remove(self._container)

    async def _send(self, message: JsonObject, descriptors: Sequence[int] = ()) -> None:
        """Send a message with file descriptors to the supervisor; without effect if the container has ended."""
        data = json.dumps(message).encode()
        while not self.lost:
            try:
                socket.send_fds(self._control, [data], descriptors)
                return
            except BlockingIOError:
                await asyncio.sleep(0.005)
            except OSError as error:
                self._lose(f"the supervisor's container has ended: {error}")

    def _receive(self) -> None:
        """Read a message of the supervisor: its features, or the end of a program. If it disconnects, all end."""
        try:
            data = self._control.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose("the supervisor's container has ended")
            return
        message = cast("JsonObject", json.loads(data))
        if "ended" not in message:
            self._hello.set_result(message)
            return
        end = self._running.pop(str(message["ended"]), None)
        if end is not None and not end.done():
            cost = ProgramCost(
                memory_kills=_number(message, "memory_kills"),
                refused_processes=_number(message, "refused_processes"),
            )
            end.set_result((_number(message, "exit"), cost))

    def _lose(self, reason: str) -> None:
        """Close the connection, and end all running programs with the reason."""
        if self.lost:
            return
        self.lost = reason
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        failure = Failure("sandbox", "supervisor_lost", reason)
        for end in self._running.values():
            if not end.done():
                end.set_result((failure, ProgramCost()))
        if not self._hello.done():
            self._hello.set_exception(DaemonError(reason))
            self._hello.exception()  # mark it as retrieved, in case that `features` is not called


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainedProgram:
    """A program in a warm container."""

    name: str
    container: WarmContainer
    end: _End
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    async def wait(self) -> Failure | int:
        """Wait for the end of the program, and return its exit code, or a failure if the container was lost."""
        outcome, _ = await asyncio.shield(self.end)
        return outcome

    async def stop(self) -> ProgramCost:
        """Kill the processes of the program, wait for its end, and return its counts.

        If the supervisor does not do it in 20 seconds, the container is removed, which ends its other programs, too.
        """
        if not self.end.done():
            await self.container.stop(self.name)
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await asyncio.shield(self.end)
            except TimeoutError:
                await self.container.close()
        _, cost = self.end.result()
        return cost


async def start_container(
    daemon: DockerDaemon, settings: DockerSettings, folder: Path, bundle_root: str
) -> WarmContainer:
    """Start a container that mounts the folder, and wait until its supervisor has connected.

    Write the supervisor's scripts and its socket into the folder. If the supervisor does not connect, the container is
    removed.

    Raises:
        DaemonError: the container does not start; the message has the reason.
    """
    await asyncio.to_thread(_write_scripts, folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as listener:
        listener.bind(str(folder / "control.sock"))
        listener.listen(1)
        config = _config(settings, folder, bundle_root, apparmor=await daemon.uses_apparmor())
        container = await daemon.begin(config, folder.name)
        try:
            control = await _accept(listener, daemon, container, folder)
        except BaseException:
            await asyncio.shield(daemon.remove(container))
            raise
    return WarmContainer(daemon, container, control)


async def _accept(
    listener: socket.socket, daemon: DockerDaemon, container: str, folder: Path
) -> socket.socket:
    """Accept the connection of the supervisor.

    Raise DaemonError, with the end of its log, if the container ends first or 30 seconds have passed.
    """
    attempts = int(START_SECONDS / _POLL_SECONDS)
    # One task for all attempts: if each attempt cancelled its own, a connection just accepted would be lost.
    accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
    try:
        for _ in range(attempts):
            await asyncio.wait([accepting], timeout=_POLL_SECONDS)
            if accepting.done():
                control, _ = accepting.result()
                return control
            if not await daemon.has_container(container):
                break
    finally:
        accepting.cancel()
    log = folder / "supervisor.log"
    text = log.read_text("utf-8", "replace").strip()[-300:] if log.exists() else ""
    raise DaemonError(f"the supervisor's container did not start: {text or 'it printed no reason'}")


def _write_scripts(folder: Path) -> None:
    for name in ("executor.py", "privileged_supervisor.py"):
        (folder / name).write_bytes((_SCRIPTS / name).read_bytes())
    with suppress(FileNotFoundError):
        (folder / "control.sock").unlink()


def _config(
    settings: DockerSettings, folder: Path, bundle_root: str, *, apparmor: bool
) -> JsonObject:
    """Return the daemon's configuration for the supervisor's container: its command, mounts, capabilities and labels.

    The options of `settings` replace values of `HostConfig` with the same name.
    """
    options = settings.options()
    # Mounts and not binds: a bind would create the folder anew if this process was killed and the folder removed.
    mounts: list[Json] = [_mount(str(folder), SHARED, writable=True)]
    if bundle_root:
        mounts.append(_mount(bundle_root, f"/workspace/bundles/{Path(bundle_root).name}"))
    labels = options.pop("Labels", [])
    given_labels = labels if isinstance(labels, list) else []
    capabilities: list[Json] = ["SYS_ADMIN", "SYS_CHROOT", "SETUID", "SETGID", "KILL"]
    if os.getuid() != 0:
        capabilities.append("DAC_OVERRIDE")  # the folder belongs to the user of this process
    security: list[Json] = ["no-new-privileges"]
    if apparmor:
        security.append("apparmor=unconfined")  # its profile forbids every mount
    host: JsonObject = {
        "AutoRemove": True,
        "ReadonlyRootfs": True,
        "Mounts": mounts,
        "Tmpfs": {
            "/tmp": "rw,noexec,nosuid,size=64m",
            "/workspace": "rw,nosuid,size=1m,mode=0755",
        },
        "CapDrop": ["ALL"],
        "CapAdd": capabilities,
        "SecurityOpt": security,
        "NetworkMode": settings.network_mode,
        "IpcMode": "private",
        **options,
    }
    return {
        "Image": settings.image,
        "Entrypoint": [settings.python, "-I", "-B", f"{SHARED}/privileged_supervisor.py"],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Labels": {
            **dict(str(label).split("=", 1) for label in given_labels),
            LABEL: f"{os.getpid()}-{folder.name}",
        },
        "HostConfig": host,
    }


def _mount(source: str, target: str, *, writable: bool = False) -> JsonObject:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": not writable}


def _number(message: JsonObject, name: str) -> int:
    value = message.get(name, 0)
    return value if isinstance(value, int) else 0


async def _open_reader(descriptor: int) -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    file = os.fdopen(descriptor, "rb", 0)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


async def _open_writer(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    file = os.fdopen(descriptor, "wb", 0)
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, file)
    return asyncio.StreamWriter(transport, protocol, None, loop)


_SUPERVISOR_USER = 0


@dataclass(frozen=True, slots=True)
class _Warm:
    """A running container, and the folder that it shares with this process."""

    container: WarmContainer
    folder: run_folder.SharedFolder
    features: SupervisorFeatures


class DockerSandbox:
    """Runs programs in a container that stays: only the first program waits for its start.

    The daemon must be on this machine, because programs share a folder with this process. Each bundle has its own
    container, which mounts the files of the bundle.
    """

    name: str = "docker"

    def __init__(
        self, settings: DockerSettings, daemon: DockerDaemon, *, folder: Path | None = None
    ) -> None:
        self._settings = settings
        self._daemon = daemon
        self._parent = folder
        self._warm: dict[str, _Warm] = {}
        self._opening = asyncio.Lock()
        self._numbers = count(1)

    async def requirements(self) -> Sequence[Feature]:
        """Check for the daemon, its image and the seccomp filter, without running a program.

        If the daemon does not answer, the result has only the feature `daemon`, with the reason.
        """
        try:
            version = await self._daemon.version()
            image = self._settings.image
            has_image = await self._daemon.has_image(image)
        except DaemonError as error:
            return [Feature("daemon", False, str(error))]
        features = [Feature("daemon", True, f"version {version}")]
        missing = (
            f"{image} is missing: docker pull or docker build it; it needs Python 3.10 or newer"
        )
        features.append(Feature("image", has_image, image if has_image else missing))
        return [*features, seccomp_feature()]

    async def features(self) -> Sequence[Feature]:
        """Check the requirements and, if they are met, the isolation of a trial program, in a lasting container."""
        features = list(await self.requirements())
        if all(feature.ok for feature in features):
            features += await self._try_isolation()
        return features

    async def _try_isolation(self) -> Sequence[Feature]:
        """Run an empty program; report whether it ran, and whether a container has Landlock and control groups."""

        async def serve(tool: str, arguments: object) -> ServedCall:
            del arguments
            return ServedCall(False, None, tool)

        execution = Execution(execution_id="trial", turn_id="turn_1", program="pass")
        end = await self.run(execution, Session(serve=serve))
        detail = end.failure.message if end.failure is not None else "a program runs in them"
        containers = [warm.features for warm in self._warm.values()]
        has_landlock = any(features.has_landlock for features in containers)
        has_groups = any(features.has_groups for features in containers)
        here = "the container has it"
        landlock = here if has_landlock else "mounts alone forbid writing"
        groups = here if has_groups else "limits hold for each process"
        return [
            Feature("namespaces", end.failure is None, detail),
            Feature("landlock", has_landlock, landlock, required=False),
            Feature("cgroup", has_groups, groups, required=False),
        ]

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program. If it cannot be isolated, it does not run and the failure says why.

        If the container ends before the program starts, the failure is `supervisor_lost`.
        """
        try:
            warm = await self._open(execution.bundle_root)
            seccomp = filter_program()
        except (LooplineError, TimeoutError) as error:
            return report_failure(self.name, "isolation_unavailable", str(error))
        name = str(next(self._numbers))
        disk = run_folder.DiskChannel()
        try:
            async with run_folder.open_run_folder(
                warm.folder.path / name, run_folder.program_user()
            ) as folder:
                await asyncio.to_thread(_write_request, folder, execution)
                start = run_folder.isolated_start(
                    execution,
                    seccomp,
                    user=folder.user,
                    in_group=warm.features.has_groups,
                    has_landlock=warm.features.has_landlock,
                    path=warm.features.path,
                )
                launch = Launch(
                    begin=partial(warm.container.begin, name, disk.inner),
                    start=start,
                    isolation=self.name,
                    user=_SUPERVISOR_USER,
                    disk=disk,
                )
                return await ProgramProcess(launch, execution, session, folder).run()
        except DaemonError as error:
            return report_failure(self.name, "supervisor_lost", str(error))
        finally:
            disk.close()

    async def _open(self, bundle_root: str) -> _Warm:
        """Return the container of a bundle; start one for the first program, and after the container has ended.

        Raise DaemonError if a required feature is missing or the container does not start.
        """
        async with self._opening:
            warm = self._warm.get(bundle_root)
            if warm is not None and not warm.container.lost:
                return warm
            if warm is not None:
                del self._warm[bundle_root]
                await _remove(warm)
            missing = [f for f in await self.requirements() if f.required and not f.ok]
            if missing:
                raise DaemonError("; ".join(f"{f.name}: {f.detail}" for f in missing))
            await self._daemon.remove_unstarted()
            async with AsyncExitStack() as undo:
                folder = await run_folder.make_shared_folder(
                    self._parent, after_kill=self._daemon.sweep_command
                )
                undo.push_async_callback(folder.remove)
                container = await start_container(
                    self._daemon, self._settings, folder.path, bundle_root
                )
                undo.push_async_callback(container.close)
                warm = _Warm(container, folder, await container.features())
                undo.pop_all()
            self._warm[bundle_root] = warm
            return warm

    async def close(self) -> None:
        """Remove the containers and their folders."""
        while self._warm:
            _, warm = self._warm.popitem()
            await _remove(warm)
        await self._daemon.close()


async def _remove(warm: _Warm) -> None:
    await warm.container.close()
    await warm.folder.remove()


def _write_request(folder: run_folder.RunFolder, execution: Execution) -> None:
    """Write `run.json`, with the part of an execution that the supervisor reads and the program cannot see."""
    limits = execution.limits
    size = run_folder.disk_size(execution)
    owner = "" if os.getuid() == 0 else f",uid={folder.user},gid={folder.user}"
    document = {
        "user": folder.user,
        "variables": dict(run_folder.environment(execution)),
        "disk": f"{size.options}{owner}",
        "memory_bytes": limits.memory_bytes + size.size,
        "processes": limits.processes + 1,  # the first process of its namespace
    }
    (folder.path / "run.json").write_text(json.dumps(document))
