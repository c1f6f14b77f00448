"""Programs without isolation, with the rights of this process: what the isolated backends are compared with."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

from loopline.sandbox.call_server import CallServer
from loopline.sandbox.execution import Execution, Feature, ProgramEnd, Session
from loopline.sandbox.process import EXECUTOR
from loopline.sandbox.program_process import Launch, ProgramProcess, begin_child
from loopline.sandbox.run_folder import RunFolder, environment, remove_folder
from loopline.sandbox.start_message import start_message


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
