"""Programs in processes that are forked from a warm one, which has imported already what they import.

`warm_program` returns the command of a small process. It hands its streams, folder and environment over to the warm process,
ends with the exit code of the program, and if it is killed, so is the program.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_PRELOADED = (
    "jsonschema",
    "loopline.cli.app",
    "loopline.cli.bundles",
    "loopline.mcp.server",
    "loopline.store",
    "mcp.server.mcpserver",
    "pydantic",
    "sqlite3",
    "uvicorn",
    "yaml",
)
_addresses = list[str]()


def warm_program(*words: str) -> list[str]:
    """Return a command that runs a Python file, or the code behind `-c`, with arguments."""
    if not _addresses:
        _addresses.append(_start_server())
    return [sys.executable, "-SE", __file__, "run", _addresses[0], *words]


def _start_server() -> str:
    """Start the warm process, which ends with this one; return where it listens."""
    import atexit
    import shutil
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="lw")
    server = subprocess.Popen(
        [sys.executable, "-P", __file__, "serve", f"{folder}/s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == b"listening\n"
    for clean_up in (lambda: shutil.rmtree(folder), server.wait, server.stdout.close):
        atexit.register(clean_up)
    atexit.register(server.stdin.close)
    return f"{folder}/s"


def _run(address: str, words: Sequence[str]) -> int:
    """Have the warm process run the program with the streams of this process; return its exit code."""
    request = {"words": words, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"\0"], [0, 1, 2])
        connection.sendall(json.dumps(request).encode() + b"\n")
        for stream in (
            0,
            1,
            2,
        ):  # a pipe ends when the program closes it, not when this process does
            os.close(stream)
        return int(connection.recv(16) or b"1")


@dataclass(frozen=True, slots=True)
class _Program:
    """A program that runs, and the process that it runs for."""

    pid: int
    requester: socket.socket


def _serve(address: str) -> None:
    """Fork a process for each request until the standard input ends."""
    listener, watched = socket.socket(socket.AF_UNIX), selectors.DefaultSelector()
    listener.bind(address)
    listener.listen(64)
    watched.register(listener, selectors.EVENT_READ)
    watched.register(0, selectors.EVENT_READ)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    while True:
        for key, _ in watched.select():
            if key.fileobj == 0:
                return
            if key.fileobj is listener:
                requester, _ = listener.accept()
                _, streams, _, _ = socket.recv_fds(requester, 1, 3)
                with requester.makefile("rb") as lines:
                    request = lines.readline()
                pid = os.fork()
                if pid == 0:
                    _become(streams, **json.loads(request))
                for stream in streams:
                    os.close(stream)
                program = _Program(pid, requester)
                watched.register(requester, selectors.EVENT_READ, program)
                watched.register(os.pidfd_open(pid), selectors.EVENT_READ, program)
            elif key.fileobj is key.data.requester:  # it was killed
                watched.unregister(key.fileobj)
                os.kill(key.data.pid, signal.SIGKILL)
            else:
                _end(key.data, watched, key.fd)


def _end(program: _Program, watched: selectors.BaseSelector, ended: int) -> None:
    """Reply with the exit code of a program, unless nobody waits for it."""
    _, status = os.waitpid(program.pid, 0)
    watched.unregister(ended)
    os.close(ended)
    if program.requester in watched.get_map():
        watched.unregister(program.requester)
        program.requester.sendall(str(os.waitstatus_to_exitcode(status) & 0xFF).encode())
    program.requester.close()


def _become(
    streams: Sequence[int], words: Sequence[str], folder: str, environment: dict[str, str]
) -> NoReturn:
    """Become the program, in a session of its own."""
    import runpy

    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, max(streams) + 1)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1, closefd=False)
    code = 0
    try:
        if words[0] == "-c":
            sys.argv, sys.path[:0] = ["-c", *words[2:]], [""]
            exec(words[1], {"__name__": "__main__"})
        else:
            sys.argv, sys.path[:0] = list(words), [str(Path(words[0]).parent)]
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(_run(sys.argv[2], sys.argv[3:]))
    import gc
    import importlib

    for name in _PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    _serve(sys.argv[2])
