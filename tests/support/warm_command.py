"""The command `loopline` in processes that are forked from a warm one, which has imported it already.

A test that asks what a command prints, writes and exits with needs a process, but not a second of imports. Each command
still has a process, a folder, an environment and streams of its own. Another module than the command's can be run so too.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

from loopline.timeline import warm_codec

PRELOADED = (
    "loopline.cli.app",
    "loopline.cli.bundles",
    "loopline.cli.chat",
    "loopline.cli.knowledge",
    "loopline.cli.checks",
    "loopline.cli.prompt",
    "loopline.cli.reader",
    "loopline.cli.run",
    "loopline.cli.storage",
    "loopline.cli.timeline",
    "loopline.knowledge.git",
    "loopline.store",
    "loopline.testing",
    "jsonschema",
    "markdown_it",
    "pydantic",
    "sqlite3",
    "yaml",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A command line, the module whose `main` it is for, and the files that are its standard streams."""

    module: str
    arguments: Sequence[str]
    imports_from: Sequence[str]
    folder: str
    environment: Mapping[str, str]
    stdin: str
    stdout: str
    stderr: str


class WarmCommand:
    """Runs commands, one after the other."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._turns = threading.Lock()

    def run(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        stdin: str,
        timeout: float,
        module: str = "loopline.cli",
        imports_from: Sequence[str] = (),
    ) -> tuple[str, str, int]:
        """Return what a command wrote to stdout and to stderr, and its exit code.

        It is the `main` of a module, found in the folders `imports_from` before all others.

        Raises:
            TimeoutError: it did not end in time.
        """
        with self._turns, tempfile.TemporaryDirectory() as streams:
            files = {name: Path(streams) / name for name in ("stdin", "stdout", "stderr")}
            files["stdin"].write_bytes(stdin.encode())
            request = Request(
                module=module,
                arguments=arguments,
                imports_from=imports_from,
                folder=str(folder),
                environment=environment,
                stdin=str(files["stdin"]),
                stdout=str(files["stdout"]),
                stderr=str(files["stderr"]),
            )
            code = self._send(request, timeout)
            out, err = (files[name].read_bytes().decode() for name in ("stdout", "stderr"))
        return _universal_newlines(out), _universal_newlines(err), code

    def _send(self, request: Request, timeout: float) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        alarm = threading.Timer(timeout, self._server.kill)
        alarm.start()
        self._server.stdin.write(json.dumps(asdict(request)) + "\n")
        self._server.stdin.flush()
        reply = self._server.stdout.readline()
        alarm.cancel()
        if not reply:
            warm_command.cache_clear()
            raise TimeoutError(f"{request.module} {' '.join(request.arguments[1:])} did not end")
        return int(reply)

    def close(self) -> None:
        """End the warm process."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


@cache
def warm_command() -> WarmCommand:
    """Return the warm process of this test process, started when it is first needed."""
    command = WarmCommand()
    atexit.register(command.close)
    return command


def _universal_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _fork_for_each_request() -> Request:
    """Return a request in a process of its own; the warm process replies with its exit code."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            return Request(**json.loads(line))
        status = os.waitpid(pid, 0)[1]
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    raise SystemExit(0)


def _become(request: Request) -> None:
    """Take over what a shell would have given to the process."""
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    write = os.O_WRONLY | os.O_CREAT
    for number, (path, flags) in enumerate(
        [(request.stdin, os.O_RDONLY), (request.stdout, write), (request.stderr, write)]
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = os.fdopen(
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
    sys.argv = list(request.arguments)
    sys.path[:0] = request.imports_from


def _exit_after(main: Callable[[], None]) -> None:
    """Run the command, and let Python end its threads, but not take its modules apart, which takes longer than all else."""
    codes = [1]
    atexit.register(lambda: _leave(codes[-1]))
    try:
        main()
    except SystemExit as error:
        codes.append(error.code if isinstance(error.code, int) else int(error.code is not None))
    else:
        codes.append(0)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    warm_codec()
    gc.collect()
    gc.freeze()
    request = _fork_for_each_request()
    _become(request)
    _exit_after(importlib.import_module(request.module).main)
