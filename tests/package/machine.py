"""What builds, installs and runs the package as somebody has it: uv, Pythons, and environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.docs.pages import ROOT

PYPROJECT = ROOT / "pyproject.toml"
LIMIT_SECONDS = 600
_OURS = ("LOOPLINE_", "PYTEST_", "PYTHON", "UV_PROJECT", "VIRTUAL_ENV", "COV_")


def run(
    *command: str | Path, cwd: Path, path: Path | None = None, settings: Mapping[str, str] = {}
) -> str:
    """Run a command as a newcomer's shell does, with `path` before the others; return what it prints.

    Raises:
        AssertionError: it failed; the message has the command and all that it printed.
    """
    done = _done(*command, cwd=cwd, path=path, settings=settings)
    assert done.returncode == 0, f"{done.args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@cache
def uv() -> Path:
    """Find the uv that runs this, else the one on the path."""
    found = os.environ.get("UV") or shutil.which("uv")
    assert found is not None, "there is no uv here: .ci/run installs one, and runs these checks"
    return Path(found)


@cache
def interpreter(version: str, folder: Path) -> Path | None:
    """Find a Python of that version, such as 3.12, or have uv fetch it; None if there is none."""
    for look in (("find",), ("install", "--no-bin", "--quiet"), ("find",)):
        done = _done(uv(), "python", *look, version, cwd=folder, path=None, settings=_EVERY_PYTHON)
        if done.returncode == 0 and look == ("find",):
            return Path(done.stdout.strip())
    return None


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment in a folder of its own, with another to work in."""

    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def scripts(self) -> Path:
        """Where its commands are."""
        return self.folder / "environment" / "bin"

    @property
    def desk(self) -> Path:
        """Where they are run."""
        return self.folder / "desk"

    def __call__(self, command: str, *arguments: str | Path) -> str:
        """Run one of its commands; return what that prints."""
        home = {"HOME": str(self.folder)}
        scripts = self.scripts / command
        return run(
            scripts,
            *arguments,
            cwd=self.desk,
            path=self.scripts,
            settings={**home, **self.settings},
        )

    def install(self, *arguments: str | Path) -> None:
        """Install into it, with uv's arguments."""
        into = ("--quiet", "--python", self.scripts / "python")
        run(uv(), "pip", "install", *into, *arguments, cwd=self.desk)


def make_environment(python: Path, folder: Path) -> Environment:
    """Make an empty environment of that Python."""
    environment = Environment(folder)
    environment.desk.mkdir(parents=True)
    run(uv(), "venv", "--quiet", "--python", python, folder / "environment", cwd=environment.desk)
    return environment


def _done(
    *command: str | Path, cwd: Path, path: Path | None, settings: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    ours = Path(sys.prefix).resolve()
    other_parts = os.environ["PATH"].split(os.pathsep)
    places = [place for place in other_parts if not Path(place).resolve().is_relative_to(ours)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    kept.pop("UV", None)
    kept["PATH"] = os.pathsep.join([*([str(path)] if path else []), *places])
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**kept, "PATH": kept["PATH"], "PYTHONUTF8": "1", **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=LIMIT_SECONDS,
        check=False,
    )


def _pyenv() -> str:
    """Name the folders of pyenv's Pythons as a path: its shims start only those chosen by a setting."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return os.pathsep.join(str(folder) for folder in sorted(root.glob("versions/*/bin")))


_EVERY_PYTHON = {
    "PATH": os.pathsep.join([_pyenv(), os.environ["PATH"]]),
    "UV_HTTP_RETRIES": "0",
}
