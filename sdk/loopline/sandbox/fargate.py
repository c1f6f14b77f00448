"""Programs in tasks of ECS on Fargate: for long work without a hurry, on machines of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

from loopline.sandbox.aws import Aws, AwsError
from loopline.sandbox.call_server import CallServer
from loopline.sandbox.execution import Execution, Failure, Feature, ProgramEnd, Session
from loopline.sandbox.fargate_task import FargateSettings, FargateTask
from loopline.sandbox.program_process import Launch, ProgramProcess
from loopline.sandbox.run_folder import RunFolder, environment
from loopline.sandbox.seccomp_filter import FilterUnavailable, filter_program, seccomp_feature
from loopline.sandbox.shared_folder import SharedFolder, make_shared_folder
from loopline.sandbox.start_message import OUT, SOCKET, WORK, isolated_start


class FargateSandbox:
    """Runs each program in a task of its own, with its files as a snapshot in S3.

    A task has no namespaces of its own beside those of its machine; the filter of system calls keeps the program from the
    network, and its user from the supervisor.
    """

    name: str = "fargate"

    def __init__(
        self, settings: FargateSettings, aws: Aws | None = None, *, folder: Path | None = None
    ) -> None:
        self._settings = settings
        self._aws = aws or Aws()
        self._parent = folder
        self._folder: SharedFolder | None = None
        self._opening = asyncio.Lock()
        self._numbers = count(1)

    async def features(self) -> Sequence[Feature]:
        """Return whether the library, the task definition and the filter are here."""
        features: list[Feature] = []
        try:
            await self._aws.has_definition(self._settings.task_definition)
            features.append(Feature("task definition", True, self._settings.task_definition))
        except AwsError as error:
            features.append(Feature("task definition", False, str(error)))
        return [*features, seccomp_feature()]

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program; if it cannot be isolated, it does not run."""
        try:
            code = filter_program()
        except FilterUnavailable as error:
            failure = Failure("sandbox", "isolation_unavailable", str(error))
            return ProgramEnd(isolation=self.name, failure=failure)
        shared = await self._opened()
        folder = RunFolder(shared.path / str(next(self._numbers)), None)
        try:
            await asyncio.to_thread(folder.make)
            await asyncio.to_thread(folder.fill, execution, WORK)
            return await self._run(execution, session, folder, code)
        except AwsError as error:
            failure = Failure("sandbox", "start_failed", str(error))
            return ProgramEnd(isolation=self.name, failure=failure)
        finally:
            await asyncio.to_thread(folder.remove)

    async def _run(
        self, execution: Execution, session: Session, folder: RunFolder, code: bytes
    ) -> ProgramEnd:
        features = ("uid", "rlimits", "seccomp")
        async with CallServer(
            folder.socket, execution, session, user=os.getuid(), features=features
        ) as server:
            start = isolated_start(
                execution, server.token, code, in_group=False, has_landlock=False
            )
            task = FargateTask(
                aws=self._aws,
                settings=self._settings,
                bucket=self._settings.bucket(f"{execution.execution_id}-{os.urandom(8).hex()}"),
                execution=execution,
                folder=folder,
            )
            launch = Launch(
                begin=partial(task.begin, start, environment(execution, WORK, OUT, SOCKET)),
                start=start,
                isolation=self.name,
                start_seconds=self._settings.start_seconds,
            )
            return await ProgramProcess(launch, execution, session, folder, server).run()

    async def _opened(self) -> SharedFolder:
        async with self._opening:
            if self._folder is None:
                self._folder = await make_shared_folder(self._parent)
            return self._folder

    async def close(self) -> None:
        """Remove the folder of this sandbox; what runs is stopped by whoever awaits it."""
        folder, self._folder = self._folder, None
        if folder is not None:
            await folder.remove()
