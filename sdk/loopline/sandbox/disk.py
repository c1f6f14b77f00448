"""The file system of a program's folders: the sandbox mounts it with a size, and hands it to this process to be filled."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from loopline.sandbox.execution import Execution

BLOCK = 4_096
"""Bytes of a block of a file system."""
_FILLED = b"f"


@dataclass(frozen=True, slots=True)
class DiskSize:
    """The bytes and the number of files and folders that a file system has room for."""

    size: int
    files: int

    @property
    def options(self) -> str:
        """Return the options with which it is mounted."""
        return f"mode=0755,size={self.size},nr_inodes={self.files}"


def disk_size(execution: Execution) -> DiskSize:
    """Return room for what an execution finds and what it may write; a block and a file more show that it has tried."""
    limits = execution.limits
    found = [execution.program.encode("utf-8", "replace"), *execution.inputs.values()]
    found += execution.workspace.values()
    names = [f"work/{name}" for name in execution.inputs]
    names += [f"out/{execution.turn_id}/{name}" for name in execution.workspace]
    names += [f"out/{execution.turn_id}/{file.name}" for file in execution.contract]
    places = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    fixed = 16  # the program, the link to attachments, and the folders that every execution has
    return DiskSize(
        size=sum(map(_blocks, map(len, found))) + _blocks(limits.disk_bytes) + BLOCK,
        files=len(names) + len(places) + fixed + limits.disk_files,
    )


def _blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


class DiskChannel:
    """How a sandbox hands over its file system, and learns that it is filled. `inside` is the sandbox's end."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    @property
    def inside(self) -> int:
        """Return the descriptor that the sandbox gets."""
        return self._theirs.fileno()

    def close_inside(self) -> None:
        """Close the end of the sandbox, which has got it."""
        self._theirs.close()

    async def receive(self) -> int | None:
        """Return the root of the file system as an open folder; None if the sandbox has ended without one."""
        loop, ready, ours = asyncio.get_running_loop(), asyncio.Event(), self._ours.fileno()
        loop.add_reader(ours, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(ours)
        _, descriptors, _, _ = socket.recv_fds(self._ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
        return descriptors[0] if descriptors else None

    def tell_filled(self) -> None:
        """Let the sandbox go on."""
        with suppress(
            BrokenPipeError, ConnectionResetError
        ):  # it has ended, which its process tells
            self._ours.send(_FILLED)

    def close(self) -> None:
        """Close both ends."""
        self._ours.close()
        self._theirs.close()


def used_of(descriptor: int) -> tuple[int, int]:
    """Return the bytes and the number of files that a file system holds, those without a name too."""
    status = os.fstatvfs(descriptor)
    return (
        (status.f_blocks - status.f_bfree) * status.f_frsize,
        status.f_files - status.f_ffree,
    )
