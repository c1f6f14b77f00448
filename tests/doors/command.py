"""The command as a user has it: a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from tests.support.peers.http_server import Peer
from tests.support.warm_programs import run_warm, warm_path, warm_program

LOOPLINE = Path(sys.executable).parent / "loopline"
LIMIT_SECONDS = 60
ESCAPE = "\x1b"
PLACES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of it."""

    out: str
    err: str
    code: int

    @property
    def value(self) -> dict[str, Any]:
        """The one JSON value on stdout."""
        value: dict[str, Any] = json.loads(self.out)
        return value

    @property
    def pasted(self) -> list[str]:
        """The commands to paste, as they are printed."""
        return [line.strip() for line in self.err.splitlines() if line.startswith("  ")]


@dataclass(frozen=True, slots=True)
class Loopline:
    """Runs the command in a folder; its store is the default one there."""

    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def environment(self) -> dict[str, str]:
        """A shell's, with the command on its path and no setting of ours."""
        ours = ("LOOPLINE_", "UV", "VIRTUAL_ENV", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = f"{LOOPLINE.parent}{os.pathsep}{os.environ['PATH']}"
        home = str(self.folder)
        return {**kept, "PATH": path, "HOME": home, "PYTHONUTF8": "1", **self.settings}

    def start(self, *arguments: str, is_forked: bool = True) -> subprocess.Popen[str]:
        """The command, at work, in a process that is forked from a warm one; one that is stopped or begins anew is not."""
        return subprocess.Popen(
            warm_program(str(LOOPLINE), *arguments) if is_forked else [str(LOOPLINE), *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def __call__(self, *arguments: str, stdin: str = "") -> Ran:
        """What comes of the command, in a process that has been forked from a warm one."""
        out, err, code = run_warm(
            "loopline.cli",
            [str(LOOPLINE), *arguments],
            folder=self.folder,
            environment=self.environment,
            stdin=stdin,
            timeout=LIMIT_SECONDS,
        )
        return Ran(out, err, code)

    def paste(self, line: str) -> Ran:
        """What comes of a line in a shell."""
        ran = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env={**self.environment, "PATH": warm_path(LOOPLINE)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=LIMIT_SECONDS,
            check=False,
        )
        return Ran(ran.stdout, ran.stderr, ran.returncode)

    def blocks(self, conversation: str) -> list[dict[str, Any]]:
        """The blocks of a conversation, as the command tells them."""
        document = self("timeline", conversation, "--json").value
        return cast("list[dict[str, Any]]", document["blocks"])


def at_openai(loopline: Loopline, peer: Peer) -> Loopline:
    """The command, with that server for OpenAI."""
    settings = {"OPENAI_BASE_URL": f"{peer.url}/v1", "OPENAI_API_KEY": "sk-secret-of-mine"}
    return replace(loopline, settings=settings)


def finish(process: subprocess.Popen[str]) -> Ran:
    """What comes of a command that was started."""
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    return Ran(out, err, process.returncode)


def wait_for(true: Callable[[], bool], seconds: float = LIMIT_SECONDS) -> None:
    """Wait until it is true, for at most so many seconds.

    Raises:
        TimeoutError: it never was.
    """
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError("it never came")
        time.sleep(0.01)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
