"""Control groups: limits for the memory and the processes of one execution together, if this process may make groups."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CHILD = re.compile(rb'"child-pid": {0,4}([0-9]{1,10})')
"""The id of the first process that bubblewrap has started, in the output of its option `--info-fd`."""
ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The control group of an execution: one folder, or with version 1 one folder for each controller."""

    folders: tuple[Path, ...]

    @property
    def members(self) -> list[str]:
        """The files with the process ids of the group; a process joins when its id is written to each of them."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    @property
    def memory_kills(self) -> int:
        """The number of processes that were killed because the memory limit was reached."""
        return self._count("memory.oom_control") + self._count("memory.events")

    @property
    def refused_processes(self) -> int:
        """The number of times that a process could not be started because there were too many."""
        return self._count("pids.events", "max")

    def _count(self, name: str, key: str = "oom_kill") -> int:
        """Return the number after `key` in the first file `name` of the group's folders that has it; otherwise 0."""
        for folder in self.folders:
            with suppress(OSError):
                for line in (folder / name).read_text().splitlines():
                    field, _, number = line.partition(" ")
                    if field == key and number.isdigit():
                        return int(number)
        return 0

    def remove(self) -> bool:
        """Kill the processes in the group and remove it; return false if it still exists."""
        for folder in self.folders:
            with suppress(OSError):
                for line in (folder / "cgroup.procs").read_text().split():
                    with suppress(ProcessLookupError):
                        os.kill(int(line), signal.SIGKILL)
            with suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self.folders)


class GroupEntry:
    """Moves the processes of bubblewrap into a control group while the sandbox starts, because the kernel needs time for it.

    `descriptor` is the value for bubblewrap's option `--info-fd`.
    """

    def __init__(self, group: ControlGroup | None) -> None:
        self.group = group
        source, descriptor = os.pipe()
        self._source = source
        self.descriptor: int = descriptor
        self._is_open = True

    async def enter(self) -> None:
        """Move the first process of bubblewrap and its children into the group. Others do not exist so early."""
        os.close(self.descriptor)
        self._is_open = False
        await asyncio.to_thread(self._enter)

    def has(self, process: int) -> bool:
        """Return whether the process is in the group; always true without a group."""
        members = self.group.members if self.group is not None else []
        return all(str(process) in Path(member).read_text().split() for member in members)

    def close(self) -> None:
        """Close the descriptors, if `enter` was not called."""
        if self._is_open:
            os.close(self.descriptor)
            os.close(self._source)

    def _enter(self) -> None:
        """Read the first process id of bubblewrap from the pipe; move that process and its children into the group.

        Block until the pipe is closed. Without a group or an id no process is moved. An OSError of a move is ignored.
        """
        information = b""
        while part := os.read(self._source, 1 << 12):
            information += part
        os.close(self._source)
        first = _CHILD.search(information)
        if first is None or self.group is None:
            return
        process = first[1].decode()
        # A process that has ended is skipped. One that did not join is refused when its executor connects.
        with suppress(OSError):
            self._join(process)
            for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
                self._join(child)

    def _join(self, process: str) -> None:
        for member in self.group.members if self.group is not None else []:
            Path(member).write_text(process)


def parents() -> dict[str, Path]:
    """Return the folder in which this process may make groups, for each controller; the key is "" with version 2.

    The result is empty if this process may not make groups.
    """
    own: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own |= dict.fromkeys(controllers.split(","), path)
    if {"memory", "pids"} <= own.keys():
        folders = {name: ROOT / name / own[name].lstrip("/") for name in ("memory", "pids")}
        return folders if all(_is_writable(folder) for folder in folders.values()) else {}
    unified = ROOT / own.get("", "/").lstrip("/")
    enabled = ""
    with suppress(OSError):
        enabled = (unified / "cgroup.subtree_control").read_text()
    if {"memory", "pids"} <= set(enabled.split()) and _is_writable(unified):
        return {"": unified}
    return {}


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK)


def make_group(name: str, *, memory_bytes: int, processes: int) -> ControlGroup | None:
    """Make a group with these limits and, if possible, no swap; return None if it or a limit cannot be made."""
    group = ControlGroup(tuple(parent / name for parent in parents().values()))
    if not group.folders:
        return None
    try:
        for folder in group.folders:
            folder.mkdir()
        _write_limit(group, ("memory.max", "memory.limit_in_bytes"), memory_bytes)
        _write_limit(group, ("pids.max",), processes)
        with suppress(OSError):  # a kernel may not count swap
            _write_limit(group, ("memory.swap.max",), 0)
        with suppress(OSError):
            _write_limit(group, ("memory.memsw.limit_in_bytes",), memory_bytes)
    except OSError:
        group.remove()
        return None
    return group


def _write_limit(group: ControlGroup, names: Sequence[str], value: int) -> None:
    """Write a limit to the first of the files `names` that exists in a folder of the group.

    Raises:
        OSError: none of the files exists, or the limit cannot be written.
    """
    paths = [folder / name for name in names for folder in group.folders]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        raise FileNotFoundError(names[0])
    path.write_text(str(value))
