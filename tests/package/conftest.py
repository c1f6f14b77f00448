"""The package, built once for all checks."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.package.machine import Environment, interpreter, make_environment, run, uv


@dataclass(frozen=True, slots=True)
class Built:
    """What was built: the archive of sources, the wheel out of it, and one out of the checkout."""

    sdist: Path
    wheel: Path
    direct: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Built:
    """Build the package both ways, once for all workers."""
    own = tmp_path_factory.getbasetemp()
    place = (own if worker_id == "master" else own.parent) / "package"
    folder, direct = place / "built", place / "direct"
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not direct.exists():
            run(uv(), "build", "--quiet", "--out-dir", folder, ROOT, cwd=place)
            run(uv(), "build", "--quiet", "--wheel", "--out-dir", direct, ROOT, cwd=place)
    [sdist], [wheel], [other] = folder.glob("*.tar.gz"), folder.glob("*.whl"), direct.glob("*.whl")
    return Built(sdist, wheel, other)


def with_python(version: str, folder: Path, *arguments: str | Path) -> Environment:
    """Make an environment of that Python with what the arguments of an installation name, or skip."""
    python = interpreter(version, folder)
    if python is None:
        pytest.skip(f"Python {version}: this machine has none, and uv cannot fetch one")
    made = make_environment(python, folder / "made")
    made.install(*arguments)
    return made
