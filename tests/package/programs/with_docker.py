"""The extra `docker`: its library is asked for a daemon; without one nothing runs, and the answer says what is missing."""

from __future__ import annotations

import asyncio

from loopline.sandbox import Execution, ServedCall, Session
from loopline.sandbox.docker import DockerSandbox
from loopline.sandbox.docker_daemon import DockerDaemon, DockerSettings


async def main() -> None:
    """Run a program where no daemon is."""

    async def serve(tool: str, arguments: object) -> ServedCall:
        raise AssertionError(f"{tool} was called with {arguments}")

    daemon = DockerDaemon("unix:///no/daemon")
    sandbox = DockerSandbox(DockerSettings(memory="2g"), daemon)
    execution = Execution(execution_id="e", turn_id="turn_1", program="print(1)")
    end = await sandbox.run(execution, Session(serve=serve))
    await sandbox.close()
    assert end.failure is not None
    assert end.failure.code == "isolation_unavailable"
    assert "/no/daemon" in end.failure.message, end.failure.message


asyncio.run(main())
