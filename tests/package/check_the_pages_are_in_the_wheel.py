"""A release contains the site of the documentation, and `loopline docs` serves it from the installed wheel."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from zipfile import ZipFile

from tests.docs.pages import ROOT
from tests.house.tree import kept_files
from tests.package.conftest import with_python
from tests.package.machine import run, uv

LARGEST = 3_000_000
"""Bytes of the archive of the site."""


def build_release(folder: Path) -> Path:
    """Build the site and then the wheel in a copy of the checkout, as the release checklist says."""
    checkout = folder / "checkout"
    for path in kept_files():
        target = checkout / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    run(sys.executable, "docs/site/build.py", "build/site", "--package", cwd=checkout)
    run(uv(), "build", "--quiet", "--out-dir", folder / "dist", checkout, cwd=folder)
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel


def test_the_documentation_is_served_from_the_wheel(tmp_path: Path) -> None:
    wheel = build_release(tmp_path)
    with ZipFile(wheel) as archive:
        assert archive.getinfo("loopline/cli/pages.zip").compress_size <= LARGEST
    made = with_python("3.11", tmp_path, wheel)
    command = [str(made.scripts / "loopline"), "docs", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        with urllib.request.urlopen(f"{found[0]}start/tutorial/") as response:
            assert b"You build one bundle" in response.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
