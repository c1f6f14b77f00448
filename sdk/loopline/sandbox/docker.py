"""Programs in docker: a warm container whose supervisor gives each program namespaces of its own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from loopline.errors import LooplineError
from loopline.sandbox.call_server import CallServer
from loopline.sandbox.disk import DiskChannel, disk_size
from loopline.sandbox.docker_container import SupervisorFeatures, WarmContainer, start_container
from loopline.sandbox.docker_daemon import DaemonError, DockerDaemon
from loopline.sandbox.docker_settings import DockerSettings
from loopline.sandbox.execution import Execution, Failure, Feature, ProgramEnd, ServedCall, Session
from loopline.sandbox.program_process import Launch, ProgramProcess
from loopline.sandbox.run_folder import RunFolder, environment
from loopline.sandbox.seccomp_filter import FilterUnavailable, filter_program, seccomp_feature
from loopline.sandbox.shared_folder import SharedFolder, make_shared_folder
from loopline.sandbox.start_message import OUT, SOCKET, USER, WORK, isolated_start

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
