"""A Redis for tests, from the package `redis-server` of Debian."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.support.network import port_traffic
from tests.support.postgres_server import free_port
from tests.support.server_process import ServerProcess


class RedisServer(ServerProcess):
    """A server that listens on a port of 127.0.0.1, and stores nothing on disk."""

    def __init__(self, options: Sequence[str] = (), *, port: int = 0) -> None:
        self.port = port or free_port()
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="loopline-redis-"))

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def traffic(self) -> Sequence[str]:
        return port_traffic(self.port)

    def start(self) -> None:
        """Start the server, which is empty, and wait until it accepts connections."""
        ports = () if "--tls-port" in self.options else ("--port", f"{self.port}")
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *("redis-server", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
                    *("--dir", f"{self.folder}", *ports, *self.options),
                ],
                stdout=log,
                stderr=log,
            )
        self.await_port(self.port, self.folder / "log")

    def run(self, *command: str) -> str:
        ran = subprocess.run(
            ["redis-cli", "-p", f"{self.port}", *command],
            check=True,
            capture_output=True,
            text=True,
        )
        return ran.stdout.strip()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def running_redis() -> RedisServer:
    """A server for the tests of this process that do not stop it; it is killed at the end."""
    server = RedisServer()
    server.start()
    atexit.register(server.remove)
    return server
