"""Programs in processes that are forked from a warm one, which has imported already what they import.

A test that asks what a program prints, writes and exits with needs a process, but not a second of imports. Each program still
has a process, a folder, an environment and streams of its own.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_PRELOADED = (
    "jsonschema",
    "loopline.cli.app",
    "loopline.cli.bundles",
    "loopline.cli.chat",
    "loopline.cli.checks",
    "loopline.cli.knowledge",
    "loopline.cli.prompt",
    "loopline.cli.reader",
    "loopline.cli.run",
    "loopline.cli.storage",
    "loopline.cli.timeline",
    "loopline.knowledge.git",
    "loopline.mcp.server",
    "loopline.server",
    "loopline.store",
    "loopline.testing",
    "markdown_it",
    "mcp.server.mcpserver",
    "pydantic",
    "sqlite3",
    "uvicorn",
    "yaml",
)
_addresses = list[str]()


def warm_program(*words: str) -> list[str]:
    """Return the command of a small process that stands for `python` with a file, `-c` or `-m`, and arguments.

    It hands its streams, folder and environment over, forwards SIGINT and SIGTERM, and ends as the program ends; if it is killed, so
    is the program.
    """
    return [sys.executable, "-SE", __file__, "run", _address(), *words]


def warm_path(script: Path) -> str:
    """Return a `PATH` on which the command `script` is forked from the warm process; it sees the `PATH` behind that."""
    folder = Path(_address()).parent
    command = folder / script.name
    if not command.exists():
        words = shlex.join(warm_program(str(script)))
        command.write_text(f'#!/bin/sh\nPATH="${{PATH#{folder}:}}" exec {words} "$@"\n')
        command.chmod(0o755)
    return os.pathsep.join([str(folder), str(script.parent), os.environ["PATH"]])


def run_warm(
    module: str,
    arguments: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    stdin: str = "",
    timeout: float,
    imports_from: Sequence[str] = (),
) -> tuple[str, str, int]:
    """Run the `main` of a module, found in `imports_from` before all other folders, with `arguments` as `sys.argv`.

    Return what it wrote to stdout and to stderr, and its exit code.

    Raises:
        TimeoutError: it did not end in `timeout` seconds; it is killed.
    """
    import tempfile

    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        given.write(stdin.encode())
        given.seek(0)
        request = _Request(
            module=module,
            arguments=list(arguments),
            imports_from=list(imports_from),
            folder=str(folder),
            environment=dict(environment),
        )
        streams = [file.fileno() for file in (given, out, err)]
        with _requested(_address(), request, streams) as connection:
            connection.settimeout(timeout)
            code = int(connection.recv(16))
        out.seek(0)
        err.seek(0)
        return _text(out.read()), _text(err.read()), code


def _text(data: bytes) -> str:
    return data.decode().replace("\r\n", "\n").replace("\r", "\n")


def _address() -> str:
    """Return where the warm process listens; start it if that was not done. It ends with this process."""
    import atexit
    import shutil
    import subprocess
    import tempfile

    if not _addresses:
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
        _addresses.append(f"{folder}/s")
    return _addresses[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What a program is to be: the `main` of `module`, or the file or code that its arguments begin with."""

    module: str
    arguments: list[str]
    imports_from: list[str]
    folder: str
    environment: dict[str, str]


def _requested(address: str, request: _Request, streams: Sequence[int]) -> socket.socket:
    """Send the request with the three streams; return the connection on which the exit code comes."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    socket.send_fds(connection, [b"\0"], streams)
    fields = {name: getattr(request, name) for name in _Request.__slots__}
    connection.sendall(json.dumps(fields).encode() + b"\n")
    return connection


def _hand_over(address: str, words: list[str]) -> int:
    """Have the program run with the streams of this process; return its exit code."""
    request = _Request(
        module="",
        arguments=words,
        imports_from=[],
        folder=str(Path.cwd()),
        environment=dict(os.environ),
    )
    with _requested(address, request, (0, 1, 2)) as connection:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
        for stream in (
            0,
            1,
            2,
        ):  # a pipe ends when the program closes it, not when this process does
            os.close(stream)
        code = int(connection.recv(16) or b"1")
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


@dataclass(frozen=True, slots=True)
class _Program:
    """A program that runs, and the connection on which its exit code is awaited."""

    pid: int
    awaited_on: socket.socket


def _serve(address: str) -> _Request:
    """Fork a process for each request, until the standard input ends; return the request in that process."""
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
                raise SystemExit(0)
            if key.fileobj is listener:
                connection, _ = listener.accept()
                _, streams, _, _ = socket.recv_fds(connection, 1, 3)
                with connection.makefile("rb") as lines:
                    request = _Request(**json.loads(lines.readline()))
                pid = os.fork()
                if pid == 0:
                    _close(watched, connection)
                    _take_over(streams)
                    return request
                for stream in streams:
                    os.close(stream)
                program = _Program(pid, connection)
                watched.register(connection, selectors.EVENT_READ, program)
                watched.register(os.pidfd_open(pid), selectors.EVENT_READ, program)
            elif key.fd not in watched.get_map():  # its program has ended at the same time
                continue
            elif key.fileobj is key.data.awaited_on:
                _forward(key.data, watched)
            else:
                _reply(key.data, watched, key.fd)


def _forward(program: _Program, watched: selectors.BaseSelector) -> None:
    """Send the program the signals that it was sent, or SIGKILL if nobody waits for it any more."""
    signals = program.awaited_on.recv(16)
    if not signals:
        watched.unregister(program.awaited_on)
    for number in signals or [signal.SIGKILL]:
        os.kill(program.pid, number)


def _reply(program: _Program, watched: selectors.BaseSelector, ended: int) -> None:
    """Reply with the exit code of a program that has ended, unless nobody waits for it."""
    _, status = os.waitpid(program.pid, 0)
    watched.unregister(ended)
    os.close(ended)
    if program.awaited_on in watched.get_map():
        watched.unregister(program.awaited_on)
        program.awaited_on.sendall(f"{os.waitstatus_to_exitcode(status)}".encode())
    program.awaited_on.close()


def _close(watched: selectors.BaseSelector, connection: socket.socket) -> None:
    """Close what a program shall not have of the warm process."""
    for key in watched.get_map().values():
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        elif key.fd:
            os.close(key.fd)
    watched.close()
    connection.close()


def _take_over(streams: Sequence[int]) -> None:
    """Give this process a session, these streams, and the terminal that they are, if its Ctrl-C is nobody else's."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if os.isatty(0):
        with contextlib.suppress(PermissionError):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = os.fdopen(
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )


def _become(request: _Request) -> None:
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv, sys.path[:0] = request.arguments, request.imports_from
    match request:
        case _Request(module="", arguments=["-c", code, *others]):
            sys.argv, sys.path[:0] = ["-c", *others], [""]
            exec(code, {"__name__": "__main__"})
        case _Request(module="", arguments=["-m", module, *others]):
            sys.argv, sys.path[:0] = [module, *others], [""]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case _Request(module="", arguments=[file, *_]):
            sys.path.insert(0, str(Path(file).parent))
            runpy.run_path(file, run_name="__main__")
        case _:
            importlib.import_module(request.module).main()


def _exit_after(request: _Request) -> None:
    """Run the program, and let Python end its threads, but not take its modules apart, which takes longer than all else."""
    codes = [1]
    atexit.register(lambda: _leave(codes[-1]))
    try:
        _become(request)
    except SystemExit as error:
        codes.append(error.code if isinstance(error.code, int) else int(error.code is not None))
    else:
        codes.append(0)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(_hand_over(sys.argv[2], sys.argv[3:]))
    import atexit
    import contextlib
    import fcntl
    import gc
    import importlib
    import runpy
    import termios

    for name in _PRELOADED:
        importlib.import_module(name)
    importlib.import_module("loopline.timeline").warm_codec()
    gc.collect()
    gc.freeze()
    _exit_after(_serve(sys.argv[2]))
