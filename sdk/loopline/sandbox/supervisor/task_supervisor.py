"""The supervisor of a Fargate task: restores the snapshot of an execution, runs its program, and stores its files.

Its code comes with the manifest, so that the image needs only Python. It communicates with the harness only through
numbered objects at signed addresses, some to write and some to read.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import socket
import stat
import struct
import sys
import time
import zipfile
from http.client import HTTPException
from pathlib import Path
from urllib import error, request

from loopline.sandbox.supervisor.folders import FOLDER, FolderEntry, FolderUsage, entries, measure
from loopline.sandbox.supervisor.frames import (
    ADDRESSES,
    CALLS,
    ERRORS,
    EXIT,
    OUTPUT,
    READY,
    STOP,
    frame,
    frames,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WORKSPACE, SOCKET, EXECUTOR = "/workspace", "/tmp/supervisor.sock", "/tmp/executor.py"
_PIECE = 1 << 16
_MOST_PENDING = 4 << 20
"""The bytes of unsent frames from which the program's connection is not read until they are sent."""
_DISK_SECONDS = 0.3
_LONGEST_PATH = 1_500
"""The longest path of a folder that is packed, in bytes, so that the harness can restore the paths below it."""
_NOT_YET = (403, 404)
_SERVER_ERROR = 500
_PAUSES = (0.2, 0.8, 3.2)
"""The seconds before each further attempt of a request that has failed."""


def fetch(address: str) -> bytes | None:
    """Return the bytes of an object; None if it does not exist yet, which S3 reports as 403 or 404.

    Raises:
        HTTPError: the server answers with another error.
    """
    try:
        return _send(request.Request(address))
    except error.HTTPError as problem:
        if problem.code in _NOT_YET:
            return None
        raise


def store(address: str, data: bytes) -> None:
    """Write an object."""
    headers = {"Content-Type": "application/octet-stream"}
    _send(request.Request(address, data, headers, method="PUT"))


def _send(message: request.Request, pauses: tuple[float, ...] = _PAUSES) -> bytes:
    """Send a request, and return the body of the response.

    If the connection is lost, or the status is 500 or more, the request is sent again after each of the `pauses`.
    """
    try:
        with request.urlopen(message, timeout=60) as answer:
            body: bytes = answer.read()
            return body
    except (OSError, HTTPException) as problem:
        is_refused = isinstance(problem, error.HTTPError) and problem.code < _SERVER_ERROR
        if is_refused or not pauses:
            raise
    time.sleep(pauses[0])
    return _send(message, pauses[1:])


def restore(archive: bytes, folder: Path, user: int) -> None:
    """Unpack a snapshot into a folder, with links as links; all files in the folder are given to `user`."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        opened.extractall(folder)
        for entry in opened.infolist():
            path = folder / entry.filename
            if stat.S_ISLNK(entry.external_attr >> 16):
                target = path.read_text()
                path.unlink()
                path.symlink_to(target)
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            os.chown(Path(parent, name), user, user, follow_symlinks=False)


def pack(folder: Path, turn: str, most_bytes: int) -> tuple[bytes, bool]:
    """Pack the folder of a turn into a ZIP archive, and return whether the sizes of its files fit into `most_bytes`.

    From the first file that exceeds it, files are left out. Special files, links, files with several hard links, and
    folders that are too deep or cannot be read are packed as a link to a path that does not exist.

    Raises:
        OSError: the folder of the turn, or a file, cannot be opened.
    """
    file = io.BytesIO()
    size = 0
    top = os.open(folder / turn, FOLDER)
    try:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for found in entries(top, enters=_is_short):
                name = f"{turn}/{found.path}".encode("utf-8", "backslashreplace").decode()
                entry = zipfile.ZipInfo(name)
                entry.compress_type = zipfile.ZIP_DEFLATED
                status = found.status
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                    size += status.st_size
                    if size <= most_bytes:
                        entry.external_attr = (stat.S_IFREG | 0o640) << 16
                        archive.writestr(entry, _read(found))
                elif found.is_folder and not found.problem and _is_short(found):
                    entry.filename += "/"
                    archive.writestr(entry, b"")
                else:
                    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
                    archive.writestr(entry, b"/nothing")
    finally:
        os.close(top)
    return file.getvalue(), size <= most_bytes


def _is_short(entry: FolderEntry) -> bool:
    return len(os.fsencode(entry.path)) <= _LONGEST_PATH


def _read(entry: FolderEntry) -> bytes:
    descriptor = os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=entry.folder)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def kill_all(user: int) -> None:
    """Kill all processes of a user; repeat until none is found, because they may start more processes."""
    has_processes = True
    while has_processes:
        has_processes = False
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    path.stat().st_uid == user
                    and "\nState:\tZ" not in (path / "status").read_text()
                ):
                    os.kill(int(path.name), signal.SIGKILL)
                    has_processes = True
            except OSError:
                continue  # it has ended


def wait_for_child(process: int) -> None:
    """Block until a child has ended. asyncio would also wait for grandchildren that still have its streams open."""
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return


def listen() -> socket.socket:
    """Return a listening socket for the program's calls; each user can connect to it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.bind(SOCKET)
    Path(SOCKET).chmod(0o666)
    listener.listen(1)
    return listener


class TaskSupervisor:
    """Runs one program and exchanges frames with the harness."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self._manifest = manifest
        self._user: int = manifest["user"]
        self._pause: float = manifest["pause"]
        self._up: list[str] = manifest["up"]
        self._down: list[str] = manifest["down"]
        self._pending = bytearray()
        self._answers = bytearray()
        self._has_answers = asyncio.Event()
        self._wake = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._has_ended = False
        self._failure = ""
        self._restored = FolderUsage()
        self._program: socket.socket | None = None

    async def run(self) -> None:
        """Run the program to its end, store its files, and send its exit as the last frame.

        If the snapshot cannot be restored, the program does not run and the exit is the error `restore_failed`.
        """
        try:
            await asyncio.to_thread(self._restore)
        except (OSError, ValueError, zipfile.BadZipFile) as problem:
            await self._finish({"code": "restore_failed", "text": str(problem)})
            return
        self._write(READY, b"")
        outcome: dict[str, Any] = {"exit": await self._execute()}
        kill_all(self._user)
        most_bytes: int = self._manifest["limits"]["archive_bytes"]
        try:
            archive, fits = await asyncio.to_thread(
                pack, Path(WORKSPACE, "out"), self._manifest["turn"], most_bytes
            )
            if not fits:
                self._failure = self._failure or f"it has written more than {most_bytes:,} bytes"
            if self._failure:
                outcome = {"code": "disk_limit", "text": self._failure}
            await asyncio.to_thread(store, self._manifest["output"], archive)
        except OSError as problem:
            outcome = {"code": "restore_failed", "text": str(problem)}
        await self._finish(outcome)

    async def _finish(self, outcome: dict[str, Any]) -> None:
        self._write(EXIT, json.dumps(outcome).encode())
        self._has_ended = True
        await self._send()

    def _restore(self) -> None:
        """Fetch and unpack the snapshots, measure the files, and write the executor; files of bundles belong to root.

        Raise ValueError if a snapshot does not exist.
        """
        for name, address in self._manifest["snapshots"].items():
            archive = fetch(address)
            if archive is None:
                raise ValueError(f"the snapshot {name} does not exist")
            folder = Path(WORKSPACE, name)
            folder.mkdir(parents=True, exist_ok=True)
            restore(archive, folder, self._user if not name.startswith("bundles") else 0)
            if not name.startswith("bundles"):
                os.chown(folder, self._user, self._user)
        self._restored = measure(WORKSPACE)
        Path(EXECUTOR).write_text(self._manifest["executor"])
        Path(EXECUTOR).chmod(0o644)

    async def _execute(self) -> int:
        """Run the program, kill the processes that it leaves, and return its exit code.

        The code is 128 plus the number of the signal if a signal has killed it.
        """
        listener = listen()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-B", "-u", EXECUTOR),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._manifest["variables"],
            cwd="/",
            start_new_session=True,
        )
        loops = [
            asyncio.ensure_future(self._relay_calls(listener)),
            asyncio.ensure_future(self._relay_answers()),
            asyncio.ensure_future(self._send()),
            asyncio.ensure_future(self._receive()),
            asyncio.ensure_future(self._watch()),
        ]
        for task in loops:
            task.add_done_callback(self._check)
        streams = [
            asyncio.ensure_future(self._relay_stream(channel, stream))
            for channel, stream in ((OUTPUT, process.stdout), (ERRORS, process.stderr))
            if stream is not None
        ]
        if process.stdin is not None:
            process.stdin.write(base64.b64decode(self._manifest["start"]))
            process.stdin.close()
        await asyncio.to_thread(wait_for_child, process.pid)
        kill_all(self._user)
        code = await process.wait()
        await asyncio.gather(*streams)
        self._has_ended = True
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        return code if code >= 0 else 128 - code

    def _check(self, task: asyncio.Task[None]) -> None:
        """Kill the program if a task of the exchange with the harness has failed."""
        if not task.cancelled() and task.exception() is not None:
            sys.stderr.write(f"{task.exception()!r}\n")
            kill_all(self._user)

    def _write(self, channel: bytes, data: bytes) -> None:
        self._pending += frame(channel, data)
        self._wake.set()
        if len(self._pending) > _MOST_PENDING:
            self._may_read.clear()

    async def _relay_calls(self, listener: socket.socket) -> None:
        """Send the bytes of the first connection of the program's user to the harness."""
        loop = asyncio.get_running_loop()
        program, _ = await loop.sock_accept(listener)
        while struct.unpack("3i", program.getsockopt(1, socket.SO_PEERCRED, 12))[1] != self._user:
            program.close()
            program, _ = await loop.sock_accept(listener)
        self._program = program
        while data := await loop.sock_recv(program, _PIECE):
            self._write(CALLS, data)
            await self._may_read.wait()

    async def _relay_answers(self) -> None:
        """Send queued answers to the program until cancelled; answers before it has connected are dropped."""
        loop = asyncio.get_running_loop()
        while await self._has_answers.wait():
            self._has_answers.clear()
            answers = bytes(self._answers)
            self._answers.clear()
            if self._program is not None:
                await loop.sock_sendall(self._program, answers)

    async def _relay_stream(self, channel: bytes, stream: asyncio.StreamReader) -> None:
        """Send a stream to the harness, up to one byte more than its limit, by which the harness sees that it is exceeded."""
        remaining: int = self._manifest["limits"]["stream_bytes"] + 1
        while data := await stream.read(_PIECE):
            if remaining > 0:
                self._write(channel, data[:remaining])
            remaining -= len(data)

    async def _send(self) -> None:
        """Write all pending frames as one object, and repeat after a pause, until the program has ended.

        The last address is kept for the end of the program.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            data = bytes(self._pending)
            if data and (len(self._up) > 1 or self._has_ended):
                writing = asyncio.ensure_future(asyncio.to_thread(store, self._up.pop(0), data))
                del self._pending[: len(data)]
                self._may_read.set()
                await asyncio.shield(writing)
            if self._has_ended and not self._pending:
                return
            await asyncio.sleep(self._pause / 3)

    async def _receive(self) -> None:
        """Handle the frames of the harness. Answers are only queued, so that STOP is handled if the program does not read."""
        while self._down:
            data = await asyncio.to_thread(fetch, self._down[0])
            if data is None:
                await asyncio.sleep(self._pause)
                continue
            self._down.pop(0)
            for channel, content in frames(data):
                if channel == STOP:
                    kill_all(self._user)
                elif channel == ADDRESSES:
                    addresses: dict[str, list[str]] = json.loads(content)
                    self._up += addresses["up"]
                    self._down += addresses["down"]
                    self._wake.set()  # frames may wait for an address
                else:
                    self._answers += content
                    self._has_answers.set()

    async def _watch(self) -> None:
        """Kill a program that exceeds its disk limits, or that still runs at the deadline because the harness has ended."""
        limits: dict[str, int] = self._manifest["limits"]
        deadline = time.monotonic() + limits["seconds"]
        while not self._failure and time.monotonic() < deadline:
            await asyncio.sleep(_DISK_SECONDS)
            usage = await asyncio.to_thread(measure, WORKSPACE)
            self._failure = usage.problem_since(
                self._restored, limits["disk_bytes"], limits["disk_files"]
            )
        kill_all(self._user)


async def _run(manifest: dict[str, Any]) -> None:
    await TaskSupervisor(manifest).run()


def main(manifest: dict[str, Any]) -> None:
    """Run the execution of a manifest."""
    asyncio.run(_run(manifest))
