"""The supervisor of a container connects to the harness, also at the moment at which the harness looks for its container."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

from loopline.models import JsonObject
from loopline.sandbox.docker import start_container
from loopline.sandbox.docker_daemon import DockerDaemon
from tests.support.docker_daemons import SETTINGS

HELLO = b'{"groups": false, "landlock": true, "path": ["/usr/lib"]}'


class ConnectingDaemon(DockerDaemon):
    """A daemon whose container connects while the event loop is blocked, and of which nothing is known later."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._place = f"{folder}/control.sock"
        self.supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    async def uses_apparmor(self) -> bool:
        return False

    async def begin(self, config: JsonObject, name: str) -> str:
        del config
        asyncio.get_running_loop().call_later(0.2, self._connect)
        return name

    async def remove(self, container: str) -> None:
        del container

    async def has_container(self, container: str) -> bool:
        del container
        return False

    def _connect(self) -> None:
        self.supervisor.connect(self._place)
        # Until the look is over: one round of the loop accepts the connection, and ends the look.
        time.sleep(0.6)


async def test_a_connection_is_used_that_comes_while_the_harness_looks(tmp_path: Path) -> None:
    daemon = ConnectingDaemon(tmp_path)
    with daemon.supervisor as supervisor:
        container = await start_container(daemon, SETTINGS, tmp_path, "")
        supervisor.send(HELLO)
        features = await container.features()
        await container.close()
    assert (features.has_landlock, features.path) == (True, ["/usr/lib"])
