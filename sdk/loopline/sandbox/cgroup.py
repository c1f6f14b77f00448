"""Control groups: the memory and the processes of one execution together, where this process may make groups."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CHILD = re.compile(rb'"child-pid": {0,4}([0-9]{1,10})')
"""The first process that bubblewrap has started, as it says itself."""
ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The folders of one execution's groups: one, or one for each controller."""

    folders: tuple[Path, ...]

    @property
    def members(self) -> list[str]:
        """Return the files to which a process writes its id to join."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    @property
    def memory_kills(self) -> int:
        """Return how many processes were killed because the memory was used up."""
        return self._count("memory.oom_control") + self._count("memory.events")

    @property
    def refused_processes(self) -> int:
        """Return how often a process could not be begun because there were too many."""
        return self._count("pids.events", "max")

    def _count(self, name: str, key: str = "oom_kill") -> int:
        for folder in self.folders:
            with suppress(OSError):
                for line in (folder / name).read_text().splitlines():
                    field, _, number = line.partition(" ")
                    if field == key and number.isdigit():
                        return int(number)
        return 0

    def remove(self) -> bool:
        """Kill what still runs in the groups, and remove them; return whether they are gone."""
        for folder in self.folders:
            with suppress(OSError):
                for line in (folder / "cgroup.procs").read_text().split():
                    with suppress(ProcessLookupError):
                        os.kill(int(line), signal.SIGKILL)
            with suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self.folders)


class GroupEntry:
    """Puts what bubblewrap starts into a control group, while it starts: the kernel takes its time for that.

    `descriptor` is where bubblewrap writes the id of the first process that it starts.
    """

    def __init__(self, group: ControlGroup | None) -> None:
        self.group = group
        source, descriptor = os.pipe()
        self._source = source
        self.descriptor: int = descriptor
        self._is_open = True

    async def enter(self) -> None:
        """Put what bubblewrap has started into the group, and what that has started; it is too early for more."""
        os.close(self.descriptor)
        self._is_open = False
        await asyncio.to_thread(self._enter)

    def has(self, process: int) -> bool:
        """Return whether the process is in every group, or there is none to be in."""
        members = self.group.members if self.group is not None else []
        return all(str(process) in Path(member).read_text().split() for member in members)

    def close(self) -> None:
        """Close what was never used."""
        if self._is_open:
            os.close(self.descriptor)
            os.close(self._source)

    def _enter(self) -> None:
        written = b""
        while part := os.read(self._source, 1 << 12):
            written += part
        os.close(self._source)
        first = _CHILD.search(written)
        if first is None or self.group is None:
            return  # it has not started; or nothing is to be joined
        process = first[1].decode()
        with suppress(OSError):  # it has ended; what has not joined is refused when it says hello
            self._join(process)
            for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
                self._join(child)

    def _join(self, process: str) -> None:
        for member in self.group.members if self.group is not None else []:
            Path(member).write_text(process)


def parents() -> dict[str, Path]:
    """Return the folder below which groups may be made, by controller; empty where there is none."""
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
    """Return a new group with these limits; None where there can be none."""
    folders = {controller: parent / name for controller, parent in parents().items()}
    if not folders:
        return None
    group = ControlGroup(tuple(folders.values()))
    try:
        for folder in group.folders:
            folder.mkdir()
        _limit(folders, memory_bytes, processes)
    except OSError:
        group.remove()
        return None
    return group


def _limit(folders: dict[str, Path], memory_bytes: int, processes: int) -> None:
    if "" in folders:
        folder = folders[""]
        (folder / "memory.max").write_text(str(memory_bytes))
        with suppress(OSError):
            (folder / "memory.swap.max").write_text("0")
        (folder / "pids.max").write_text(str(processes))
        return
    (folders["memory"] / "memory.limit_in_bytes").write_text(str(memory_bytes))
    with suppress(OSError):
        (folders["memory"] / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))
    (folders["pids"] / "pids.max").write_text(str(processes))
