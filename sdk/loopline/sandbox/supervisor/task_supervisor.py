"""The supervisor of a task elsewhere: restores the snapshot of an execution, runs its program, and stores what it made.

Its code comes with the snapshot, so the image needs nothing but Python. It reaches the harness only by objects at signed
addresses: numbered ones that it writes, numbered ones that it reads.
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
from pathlib import Path
from urllib import error, request

from loopline.sandbox.supervisor.folders import FOLDER, FolderEntry, FolderUsage, entries, usage
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
"""Bytes that wait to be written before a program's connection is no longer read."""
_DISK_SECONDS = 0.3
_LONGEST_PATH = 1_500
"""Bytes of the path of a folder that is packed: what is below it can be restored in a folder elsewhere."""
_NOT_YET = (403, 404)


def fetch(address: str) -> bytes | None:
    """Return an object; None if it is not there yet."""
    try:
        with request.urlopen(address, timeout=30) as answer:
            data: bytes = answer.read()
            return data
    except error.HTTPError as problem:
        if problem.code in _NOT_YET:
            return None
        raise


def store(address: str, data: bytes) -> None:
    """Write an object."""
    headers = {"Content-Type": "application/octet-stream"}
    with request.urlopen(request.Request(address, data, headers, method="PUT"), timeout=60):
        return


def restore(archive: bytes, folder: Path, user: int) -> None:
    """Lay the files of a snapshot into a folder, for the user that programs run as."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        opened.extractall(folder)
        for entry in opened.infolist():
            path = folder / entry.filename
            if stat.S_ISLNK(entry.external_attr >> 16):
                target = path.read_text()
                path.unlink()
                path.symlink_to(target)
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            os.chown(Path(place, name), user, user, follow_symlinks=False)


def pack(folder: Path, turn: str, room: int) -> tuple[bytes, bool]:
    """Return what a program made as an archive, and whether there was room for all of it.

    What is no plain file is in it as a link to nothing, and so is a folder that is too deep or cannot be read.
    """
    file, fits = io.BytesIO(), True
    top = os.open(folder / turn, FOLDER)
    try:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for found in entries(top, enters=_is_short):
                name = f"{turn}/{found.path}".encode("utf-8", "backslashreplace").decode()
                entry = zipfile.ZipInfo(name)
                entry.compress_type = zipfile.ZIP_DEFLATED
                status = found.status
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                    room -= status.st_size
                    fits = fits and room >= 0
                    if fits:
                        entry.external_attr = (stat.S_IFREG | 0o640) << 16
                        archive.writestr(entry, _content(found))
                elif found.is_folder and not found.problem and _is_short(found):
                    entry.filename += "/"
                    archive.writestr(entry, b"")
                else:
                    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
                    archive.writestr(entry, b"/nothing")
    finally:
        os.close(top)
    return file.getvalue(), fits


def _is_short(entry: FolderEntry) -> bool:
    return len(os.fsencode(entry.path)) <= _LONGEST_PATH


def _content(entry: FolderEntry) -> bytes:
    descriptor = os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=entry.folder)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def measure(folder: Path) -> FolderUsage:
    """Return the bytes and the number of the files in a folder."""
    top = os.open(folder, FOLDER)
    try:
        return usage(top)
    finally:
        os.close(top)


def kill_all(user: int) -> None:
    """Kill every process of a user; a process may begin another meanwhile."""
    alive = True
    while alive:
        alive = False
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    path.stat().st_uid == user
                    and "\nState:\tZ" not in (path / "status").read_text()
                ):
                    os.kill(int(path.name), signal.SIGKILL)
                    alive = True
            except OSError:
                continue  # it has ended


def wait_until_ended(process: int) -> None:
    """Return once a child has ended; asyncio would wait for all who hold its streams, too."""
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return


def listen() -> socket.socket:
    """Return the socket that the program finds."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.bind(SOCKET)
    Path(SOCKET).chmod(0o666)
    listener.listen(1)
    return listener


class TaskSupervisor:
    """Runs one program, and exchanges frames with the harness."""

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
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False
        self._exit = 0
        self._failure = ""
        self._restored = (0, 0)
        self._program: socket.socket | None = None

    async def run(self) -> None:
        """Run the program to its end, and say how it ended."""
        try:
            await asyncio.to_thread(self._restore)
        except (OSError, ValueError, zipfile.BadZipFile) as problem:
            self._tell(EXIT, json.dumps({"code": "restore_failed", "text": str(problem)}).encode())
            await self._finish()
            return
        self._tell(READY, b"")
        await self._execute()
        kill_all(self._user)
        outcome: dict[str, Any] = {"exit": self._exit}
        if self._failure:
            outcome = {"code": "disk_limit", "text": self._failure}
        try:
            room: int = self._manifest["limits"]["made_bytes"]
            out, turn = Path(WORKSPACE, "out"), self._manifest["turn"]
            made, fits = await asyncio.to_thread(pack, out, turn, room)
            if not fits and not self._failure:
                text = f"it has written more than {room:,} bytes"
                outcome = {"code": "disk_limit", "text": text}
            await asyncio.to_thread(store, self._manifest["made"], made)
        except OSError as problem:
            outcome = {"code": "restore_failed", "text": str(problem)}
        self._tell(EXIT, json.dumps(outcome).encode())
        await self._finish()

    async def _finish(self) -> None:
        self._ended = True
        self._wake.set()
        await self._send()

    def _restore(self) -> None:
        for name, address in self._manifest["snapshots"].items():
            archive = fetch(address)
            if archive is None:
                raise ValueError(f"the snapshot {name} is not there")
            folder = Path(WORKSPACE, name)
            folder.mkdir(parents=True, exist_ok=True)
            restore(archive, folder, self._user if not name.startswith("bundles") else 0)
            if not name.startswith("bundles"):
                os.chown(folder, self._user, self._user)
        found = measure(Path(WORKSPACE))
        self._restored = found.size, found.count
        Path(EXECUTOR).write_text(self._manifest["executor"])
        Path(EXECUTOR).chmod(0o644)

    async def _execute(self) -> None:
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
            asyncio.ensure_future(step)
            for step in (
                *(self._relay(listener), self._deliver()),
                *(self._send(), self._receive(), self._watch()),
            )
        ]
        for task in loops:
            task.add_done_callback(self._check)
        pumps = [
            asyncio.ensure_future(self._forward(channel, stream))
            for channel, stream in ((OUTPUT, process.stdout), (ERRORS, process.stderr))
            if stream is not None
        ]
        if process.stdin is not None:
            process.stdin.write(base64.b64decode(self._manifest["start"]))
            process.stdin.close()
        await asyncio.to_thread(wait_until_ended, process.pid)
        kill_all(self._user)
        code = await process.wait()
        self._exit = code if code >= 0 else 128 - code
        await asyncio.gather(*pumps)
        self._ended = True
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)

    def _check(self, task: asyncio.Task[None]) -> None:
        """End the program if its connection to the harness is broken."""
        if not task.cancelled() and task.exception() is not None:
            sys.stderr.write(f"{task.exception()!r}\n")
            kill_all(self._user)

    def _tell(self, channel: bytes, data: bytes) -> None:
        self._pending += frame(channel, data)
        self._wake.set()
        if len(self._pending) > _MOST_PENDING:
            self._room.clear()

    async def _relay(self, listener: socket.socket) -> None:
        """Give the harness what the first connection of the program's user sends."""
        loop = asyncio.get_running_loop()
        program, _ = await loop.sock_accept(listener)
        while struct.unpack("3i", program.getsockopt(1, socket.SO_PEERCRED, 12))[1] != self._user:
            program.close()
            program, _ = await loop.sock_accept(listener)
        self._program = program
        while data := await loop.sock_recv(program, _PIECE):
            self._tell(CALLS, data)
            await self._room.wait()

    async def _deliver(self) -> None:
        """Give the program the answers to its calls as it reads them."""
        loop = asyncio.get_running_loop()
        while await self._has_answers.wait():
            self._has_answers.clear()
            answers, self._answers = self._answers, bytearray()
            if self._program is not None:
                await loop.sock_sendall(self._program, answers)

    async def _forward(self, channel: bytes, stream: asyncio.StreamReader) -> None:
        """Give the harness a stream up to the first byte that is too much."""
        room: int = self._manifest["output_bytes"] + 1
        while data := await stream.read(_PIECE):
            if room > 0:
                self._tell(channel, data[:room])
            room -= len(data)

    async def _send(self) -> None:
        """Write what is waiting, an object for each pause; without more addresses the last one is for the end."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            data = bytes(self._pending)
            if data and (len(self._up) > 1 or self._ended):
                writing = asyncio.ensure_future(asyncio.to_thread(store, self._up.pop(0), data))
                del self._pending[: len(data)]
                self._room.set()
                await asyncio.shield(writing)
            if self._ended and not self._pending:
                return
            await asyncio.sleep(self._pause / 3)

    async def _receive(self) -> None:
        """Read what the harness writes; a program that does not read its answers holds up no order to stop."""
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
                    self._extend(json.loads(content))
                else:
                    self._answers += content
                    self._has_answers.set()

    def _extend(self, addresses: dict[str, list[str]]) -> None:
        self._up += addresses["up"]
        self._down += addresses["down"]
        self._wake.set()  # something may wait for an address

    async def _watch(self) -> None:
        """Kill a program that fills the disk, or whose harness is gone and does not stop it in time."""
        limits: dict[str, int] = self._manifest["limits"]
        deadline = time.monotonic() + limits["seconds"]
        while time.monotonic() < deadline:
            await asyncio.sleep(_DISK_SECONDS)
            used = await asyncio.to_thread(measure, Path(WORKSPACE))
            size, count = used.size - self._restored[0], used.count - self._restored[1]
            if used.problem:
                self._failure = used.problem
            elif size > limits["disk_bytes"]:
                self._failure = f"it has written {size:,} bytes, and may {limits['disk_bytes']:,}"
            elif count > limits["disk_files"]:
                self._failure = f"it has made {count:,} files, and may {limits['disk_files']:,}"
            else:
                continue
            break
        kill_all(self._user)


def main(manifest: dict[str, Any]) -> None:
    """Run the execution of a manifest."""

    async def run() -> None:
        await TaskSupervisor(manifest).run()

    asyncio.run(run())
