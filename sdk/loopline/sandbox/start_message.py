"""What an executor is told before it runs a program: its limits, what isolates it, and what it runs."""

from __future__ import annotations

from collections.abc import Sequence

from loopline.sandbox.execution import Execution, ExecutionLimits
from loopline.sandbox.run_folder import PROGRAM

USER = 1001
"""The user that programs run as, where this process may choose one."""
WORK, OUT, SOCKET = "/workspace/work", "/workspace/out", "/tmp/supervisor.sock"
"""Where an isolated program finds its folders and its supervisor."""


def start_message(
    execution: Execution,
    token: str,
    *,
    work: str = WORK,
    out: str = OUT,
    socket: str = SOCKET,
    path: Sequence[str] = (),
) -> dict[str, object]:
    """Return what every executor is told; `path` is where its Python looks for modules, if not where it would."""
    return {
        "socket": socket,
        "token": token,
        "folder": f"{out}/{execution.turn_id}",
        "file": f"{work}/{PROGRAM[execution.language]}",
        "language": execution.language,
        "tools": list(execution.tools),
        "path": list(path),
    }


def isolated_start(
    execution: Execution,
    token: str,
    code: bytes,
    *,
    user: int = USER,
    in_group: bool,
    has_landlock: bool,
    path: Sequence[str] = (),
    disk: tuple[int, str] | None = None,
) -> dict[str, object]:
    """Return what an executor is told that isolates itself; `code` is the filter of its system calls.

    `disk` is the descriptor by which the executor hands over the file system of its folders, and the options of that.
    """
    return {
        **start_message(execution, token, path=path),
        "isolated": True,
        "user": user,
        "limits": _resource_limits(execution.limits, in_group=in_group),
        "writable": [WORK, OUT],
        "landlock": has_landlock,
        "seccomp": code,
        "disk": disk,
    }


def _resource_limits(limits: ExecutionLimits, *, in_group: bool) -> dict[str, int]:
    """Return the limits of a process by name; without a control group each process has those of all together.

    With one each has the memory of all, because the group counts the files of the program too.
    """
    of_one = {"RLIMIT_AS": 4 * limits.memory_bytes, "RLIMIT_NPROC": limits.processes}
    return {
        "RLIMIT_DATA": limits.memory_bytes,
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_FSIZE": limits.file_bytes,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        **({} if in_group else of_one),
    }
