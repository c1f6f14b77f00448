"""The processes of a deployment that tests kill: `kill_parts.py server|worker STORE LEDGER BLOBS PORT VERSION` says
that it runs.

A server stores messages, and workers run their turns. All use one store in PostgreSQL, blobs in one bucket, and a Redis for live events.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from loopline import Bundle
from loopline.harness import WorkerLimits, open_worker
from loopline.server import ServerSettings, app, make_server
from tests.support.echo_model import EchoModel
from tests.support.live_server import listening_socket
from tests.support.network import group_traffic, port_traffic
from tests.support.postgres_server import PostgresServer, free_port
from tests.support.redis_server import RedisServer
from tests.support.s3_server import CREDENTIALS
from tests.support.server_process import ServerProcess
from tests.support.worker_process import ROOT, work


@dataclass
class ProgramPart(ServerProcess):
    """A server or a worker in a process of its own; the server keeps its port."""

    kind: str
    store: str
    ledger: Path
    blobs: str
    port: int = field(default_factory=free_port)
    version: str = ""
    relay: str = ""
    group: int | None = None

    @property
    def traffic(self) -> Sequence[str]:
        assert self.group is not None
        return group_traffic(self.group)

    def start(self) -> None:
        """Start it, and wait until it runs; a start that fails, as while the database is down, is repeated."""
        command = [sys.executable, "-m", __name__, self.kind, self.store]
        while True:
            self.process = subprocess.Popen(
                [*command, str(self.ledger), self.blobs, str(self.port), self.version],
                cwd=ROOT,
                env={**os.environ, **CREDENTIALS, "LOOPLINE_RELAY": self.relay},
                stdout=subprocess.PIPE,
                text=True,
                group=self.group,
            )
            assert self.process.stdout is not None
            if self.process.stdout.readline() == "running\n":
                return
            self.process.wait()

    def end(self) -> None:
        """Ask it to end, which it does when its turns and requests have, and wait for that."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate()
        self.process = None


@dataclass(slots=True)
class DatabasePart:
    """A PostgreSQL server with all its processes."""

    server: PostgresServer

    @property
    def traffic(self) -> Sequence[str]:
        return port_traffic(self.server.port)

    def start(self) -> None:
        self.server.start()

    def kill(self) -> None:
        """Kill all its processes at once, as a failure of its machine does."""
        process = self.server.process
        assert process is not None
        ids = self._processes()
        for number in ids:
            _send(number, signal.SIGKILL)
        process.wait()
        self.server.process = None
        while any(Path(f"/proc/{number}").exists() for number in ids):  # they share its memory
            time.sleep(0.01)

    def pause(self) -> None:
        for number in self._processes():
            _send(number, signal.SIGSTOP)

    def resume(self) -> None:
        for number in reversed(self._processes()):
            _send(number, signal.SIGCONT)

    def _processes(self) -> list[int]:
        process = self.server.process
        assert process is not None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        return [process.pid, *map(int, children.split())]


@dataclass
class BucketPart(ServerProcess):
    """An S3 server that keeps its objects in a folder, and its port."""

    folder: Path
    port: int = field(default_factory=free_port)

    @property
    def traffic(self) -> Sequence[str]:
        return port_traffic(self.port)

    def start(self) -> None:
        """Start it with the objects of its folder; requests fail until it listens."""
        module = [sys.executable, "-W", "ignore", "-m", "tests.support.s3_server"]
        self.process = subprocess.Popen(
            [*module, str(self.port), str(self.folder)],
            cwd=ROOT,
            env={**os.environ, **CREDENTIALS},
            stderr=subprocess.DEVNULL,
        )


Part = ProgramPart | DatabasePart | BucketPart | RedisServer


def _send(number: int, signal_number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(number, signal_number)


async def _work(bundle: Bundle, store: str, blobs: str | None) -> None:
    limits = WorkerLimits(turns=32)
    async with open_worker(
        [bundle], store=store, blobs=blobs, model=EchoModel(), worker_limits=limits
    ) as worker:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        _say_running()
        await worker.run()
        await worker.drain(5.0)


def _serve(bundle: Bundle, store: str, blobs: str | None, port: int) -> None:
    settings = ServerSettings(requests_per_minute=1_000_000, turns=1_000, submits_only=True)
    served = app(bundle, store=store, blobs=blobs, model=EchoModel(), settings=settings)
    listener = listening_socket(port)
    _say_running()
    asyncio.run(make_server(served, host="127.0.0.1", port=0).serve([listener]))


def _say_running() -> None:
    sys.stdout.write("running\n")
    sys.stdout.flush()


def main() -> None:
    kind, store, ledger, blobs, port, version = sys.argv[1:]
    bundle = replace(work(Path(ledger)), version=version)
    if kind == "worker":
        asyncio.run(_work(bundle, store, blobs or None))
    else:
        _serve(bundle, store, blobs or None, int(port))


if __name__ == "__main__":
    main()
