"""Programs in docker: a warm container whose supervisor gives each program namespaces of its own."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import cast

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject
from loopline.sandbox.call_server import CallServer
from loopline.sandbox.docker_daemon import LABEL, DaemonError, DockerDaemon, DockerSettings
from loopline.sandbox.execution import Execution, Failure, Feature, ProgramEnd, ServedCall, Session
from loopline.sandbox.program_process import Launch, ProgramCost, ProgramProcess, StartedProgram
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
)
from loopline.sandbox.seccomp_filter import FilterUnavailable, filter_program, seccomp_feature

SHARED = "/loopline"
START_SECONDS = 30.0
STOP_SECONDS = 20.0
_LOOK_SECONDS = 0.5
_PIECE = 1 << 16
_SCRIPTS = Path(__file__).with_name("supervisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """How a program ended, as its supervisor has said; `lost` is why the supervisor is gone."""

    exit_code: int = 0
    cost: ProgramCost = field(default_factory=ProgramCost)
    lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorFeatures:
    """What a container offers: control groups, Landlock, and where its Python looks for modules."""

    has_groups: bool
    has_landlock: bool
    path: Sequence[str]


class WarmContainer:
    """A container whose supervisor serves one execution after another, and several at once."""

    def __init__(self, daemon: DockerDaemon, container: str, control: socket.socket) -> None:
        self._daemon = daemon
        self._container = container
        self._control = control
        self._running: dict[str, asyncio.Future[_Ended]] = {}
        self._hello: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self.lost: str = ""
        asyncio.get_running_loop().add_reader(control.fileno(), self._receive)

    async def features(self) -> SupervisorFeatures:
        """Return what the supervisor has said of its container."""
        async with asyncio.timeout(START_SECONDS):
            hello = await asyncio.shield(self._hello)
        path = hello["path"]
        return SupervisorFeatures(
            has_groups=hello["groups"] is True,
            has_landlock=hello["landlock"] is True,
            path=[str(folder) for folder in path] if isinstance(path, list) else [],
        )

    async def begin(self, name: str, disk: int) -> StartedProgram:
        """Have the supervisor begin the execution whose folder has that name; `disk` is where it hands over its file system.

        Raises:
            DaemonError: the container is gone.
        """
        if self.lost:
            raise DaemonError(self.lost)
        pipes = [os.pipe() for _ in range(3)]
        inside = [pipes[0][0], pipes[1][1], pipes[2][1]]
        end: asyncio.Future[_Ended] = asyncio.get_running_loop().create_future()
        self._running[name] = end
        try:
            await self._send({"begin": name}, [*inside, disk])
        finally:
            for descriptor in inside:
                os.close(descriptor)
        return ContainedProgram(
            name=name,
            container=self,
            end=end,
            stdin=await _writer(pipes[0][1]),
            stdout=await _reader(pipes[1][0]),
            stderr=await _reader(pipes[2][0]),
        )

    async def stop(self, name: str) -> None:
        """Have the supervisor kill all processes of an execution."""
        await self._send({"stop": name})

    async def close(self) -> None:
        """Remove the container; return once it is gone."""
        self._lose("the container was closed")
        await self._daemon.remove(self._container)

    async def _send(self, message: JsonObject, descriptors: Sequence[int] = ()) -> None:
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
            kills, refused = _number(message, "memory_kills"), _number(message, "refused_processes")
            cost = ProgramCost(memory_kills=kills, refused_processes=refused)
            end.set_result(_Ended(exit_code=_number(message, "exit"), cost=cost))

    def _lose(self, reason: str) -> None:
        if self.lost:
            return
        self.lost = reason
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        for end in self._running.values():
            if not end.done():
                end.set_result(_Ended(lost=reason))
        if not self._hello.done():
            self._hello.set_exception(DaemonError(reason))
            self._hello.exception()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainedProgram:
    """A program in a warm container."""

    name: str
    container: WarmContainer
    end: asyncio.Future[_Ended]
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    async def wait(self) -> Failure | int:
        """Return its exit code, or that its container is gone."""
        end = await asyncio.shield(self.end)
        if end.lost:
            return Failure("sandbox", "supervisor_lost", end.lost)
        return end.exit_code

    async def stop(self) -> ProgramCost:
        """Kill what still runs of it; a supervisor that does not is removed with its container."""
        if not self.end.done():
            await self.container.stop(self.name)
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await asyncio.shield(self.end)
            except TimeoutError:
                await self.container.close()
        return self.end.result().cost


async def start_container(
    daemon: DockerDaemon, settings: DockerSettings, folder: Path, bundle_root: str
) -> WarmContainer:
    """Start a container that shares the folder, and return it once its supervisor has connected.

    Raises:
        DaemonError: it does not start; the message says why.
    """
    await asyncio.to_thread(_write_scripts, folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as listener:
        listener.bind(str(folder / "control.sock"))
        listener.listen(1)
        config = _config(settings, folder, bundle_root, apparmor=await daemon.uses_apparmor())
        container = await daemon.begin(config, folder.name)
        try:
            control = await _accepted(listener, daemon, container, folder)
        except BaseException:
            await asyncio.shield(daemon.remove(container))
            raise
    return WarmContainer(daemon, container, control)


async def _accepted(
    listener: socket.socket, daemon: DockerDaemon, container: str, folder: Path
) -> socket.socket:
    """Return the connection of the supervisor; one that ends before it connects has failed."""
    attempts = int(START_SECONDS / _LOOK_SECONDS)
    # One task for all looks: if a look cancelled it, a connection that it has just accepted would be lost.
    accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
    try:
        for _ in range(attempts):
            await asyncio.wait([accepting], timeout=_LOOK_SECONDS)
            if accepting.done():
                control, _ = accepting.result()
                return control
            if not await daemon.has_container(container):
                break
    finally:
        accepting.cancel()
    log = folder / "supervisor.log"
    text = log.read_text("utf-8", "replace").strip()[-300:] if log.exists() else ""
    raise DaemonError(f"the supervisor's container did not start: {text or 'it said nothing'}")


def _write_scripts(folder: Path) -> None:
    for name in ("executor.py", "privileged_supervisor.py"):
        (folder / name).write_bytes((_SCRIPTS / name).read_bytes())
    with suppress(FileNotFoundError):
        (folder / "control.sock").unlink()


def _config(
    settings: DockerSettings, folder: Path, bundle_root: str, *, apparmor: bool
) -> JsonObject:
    """Return the container as the daemon takes it."""
    options = settings.options()
    # As mounts and not as binds: a folder that has gone, because this process was killed, is not made again.
    mounts: list[Json] = [_mount(str(folder), SHARED, writable=True)]
    if bundle_root:
        mounts.append(_mount(bundle_root, f"/workspace/bundles/{Path(bundle_root).name}"))
    labels = options.pop("Labels", None)
    named = dict(str(label).split("=", 1) for label in labels) if isinstance(labels, list) else {}
    rights: list[Json] = ["SYS_ADMIN", "SETUID", "SETGID", "KILL"]
    if os.getuid() != 0:
        rights.append("DAC_OVERRIDE")  # the folder belongs to the user of this process
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
        "CapAdd": rights,
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
        "Labels": {**named, LABEL: f"{os.getpid()}-{folder.name}"},
        "HostConfig": host,
    }


def _mount(source: str, target: str, *, writable: bool = False) -> JsonObject:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": not writable}


def _number(message: JsonObject, name: str) -> int:
    value = message.get(name, 0)
    return value if isinstance(value, int) else 0


async def _reader(descriptor: int) -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    file = os.fdopen(descriptor, "rb", 0)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


async def _writer(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    file = os.fdopen(descriptor, "wb", 0)
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, file)
    return asyncio.StreamWriter(transport, protocol, None, loop)


_SUPERVISOR_USER = 0
_TRIAL_LINE = "isolated"


@dataclass(frozen=True, slots=True)
class _Warm:
    """A container that runs, and the folder that it shares with this process."""

    container: WarmContainer
    folder: SharedFolder
    features: SupervisorFeatures


class DockerSandbox:
    """Runs programs in a container that stays: the first program waits for its start, later ones do not.

    The daemon is one of this machine, because programs share a folder with this process. Each bundle has a container of
    its own, with its files.
    """

    name: str = "docker"

    def __init__(
        self,
        settings: DockerSettings,
        daemon: DockerDaemon,
        *,
        folder: Path | None = None,
    ) -> None:
        self._settings = settings
        self._daemon = daemon
        self._parent = folder
        self._warm: dict[str, _Warm] = {}
        self._opening = asyncio.Lock()
        self._numbers = count(1)

    async def requirements(self) -> Sequence[Feature]:
        """Return whether the daemon, its image and the filter are here, without a program's start."""
        try:
            version = await self._daemon.version()
        except DaemonError as error:
            return [Feature("daemon", False, str(error))]
        features = [Feature("daemon", True, f"version {version}")]
        image = self._settings.image
        has_image = await self._daemon.has_image(image)
        missing = (
            f"{image} is not here: docker pull or docker build it; it needs Python 3.10 or newer"
        )
        features.append(Feature("image", has_image, image if has_image else missing))
        return [*features, seccomp_feature()]

    async def features(self) -> Sequence[Feature]:
        """Return what docker and the rest need, and whether a program runs isolated here."""
        features = list(await self.requirements())
        if all(feature.ok for feature in features):
            features += await self._trial()
        return features

    async def _trial(self) -> Sequence[Feature]:
        async def serve(tool: str, arguments: object) -> ServedCall:
            del arguments
            return ServedCall(False, None, tool)

        program = f"print('{_TRIAL_LINE}')"
        execution = Execution(execution_id="trial", turn_id="turn_1", program=program)
        end = await self.run(execution, Session(serve=serve))
        problem = end.failure.message if end.failure is not None else "a program runs in them"
        groups, landlock = (
            any(warm.features.has_groups for warm in self._warm.values()),
            any(warm.features.has_landlock for warm in self._warm.values()),
        )
        return [
            Feature("namespaces", end.failure is None, problem),
            Feature("landlock", landlock, _named(landlock, "mounts alone forbid writing"), False),
            Feature("cgroup", groups, _named(groups, "limits hold for each process"), False),
        ]

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program; if it cannot be isolated, it does not run."""
        try:
            warm = await self._opened(execution.bundle_root)
            code = filter_program()
        except (LooplineError, FilterUnavailable, TimeoutError) as error:
            failure = Failure("sandbox", "isolation_unavailable", str(error))
            return ProgramEnd(isolation=self.name, failure=failure)
        name = str(next(self._numbers))
        root = os.getuid() == 0
        user = USER if root else os.getuid()
        folder, disk = RunFolder(warm.folder.path / name, USER if root else None), DiskChannel()
        try:
            await asyncio.to_thread(folder.make)
            await asyncio.to_thread(_describe, folder, execution, user)
            required = {
                "uid",
                "rlimits",
                "seccomp",
                *(["landlock"] if warm.features.has_landlock else []),
            }
            async with CallServer(
                folder.socket, execution, session, user=_SUPERVISOR_USER, features=required
            ) as server:
                start = isolated_start(
                    execution,
                    server.token,
                    code,
                    user=user,
                    in_group=warm.features.has_groups,
                    has_landlock=warm.features.has_landlock,
                    path=warm.features.path,
                )
                begin = partial(warm.container.begin, name, disk.inside)
                launch = Launch(begin=begin, start=start, isolation=self.name, disk=disk)
                return await ProgramProcess(launch, execution, session, folder, server).run()
        except DaemonError as error:
            failure = Failure("sandbox", "supervisor_lost", str(error))
            return ProgramEnd(isolation=self.name, failure=failure)
        finally:
            disk.close()
            await asyncio.to_thread(folder.remove)

    async def _opened(self, bundle_root: str) -> _Warm:
        """Return the container of a bundle, started at its first program and after its end.

        Raises:
            LooplineError: it does not start.
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
            async with AsyncExitStack() as undone:
                folder = await make_shared_folder(
                    self._parent, after_kill=self._daemon.sweep_command
                )
                undone.push_async_callback(folder.remove)
                container = await start_container(
                    self._daemon, self._settings, folder.path, bundle_root
                )
                undone.push_async_callback(container.close)
                warm = _Warm(container, folder, await container.features())
                undone.pop_all()
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


def _named(is_here: bool, otherwise: str) -> str:
    return "the container has it" if is_here else otherwise


def _describe(folder: RunFolder, execution: Execution, user: int) -> None:
    """Write what the supervisor needs to know of an execution, where the program does not see it."""
    limits, disk = execution.limits, disk_size(execution)
    owner = "" if os.getuid() == 0 else f",uid={user},gid={user}"
    document = {
        "user": user,
        "variables": dict(environment(execution, WORK, OUT, SOCKET)),
        "disk": f"{disk.options}{owner}",
        "memory_bytes": limits.memory_bytes + disk.size,
        "processes": limits.processes + 1,  # the first process of its namespace
    }
    (folder.path / "run.json").write_text(json.dumps(document))
