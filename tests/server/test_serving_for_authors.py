"""`loopline serve`: it begins anew when a bundle changes, and refuses what is not for production."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import httpx2
import pytest

from loopline import Bundle, LooplineError
from loopline.bundle import Setting
from loopline.server import ServerSettings, app
from loopline.server.application import bundle_host
from tests.doors.command import Loopline
from tests.support.echo_model import EchoModel

BUNDLE = """from loopline import Bundle
bundle = Bundle(id="{}", instructions="You help.")
"""


def served_bundles(port: int) -> list[str]:
    """The ids of the bundles that are served now; none while nothing listens."""
    try:
        return list(httpx2.get(f"http://127.0.0.1:{port}/me").json()["bundles"])
    except httpx2.HTTPError:
        return []


def until_served(port: int, bundle: str) -> None:
    for _ in range(600):
        if served_bundles(port) == [bundle]:
            return
        time.sleep(0.1)
    raise AssertionError(f"{bundle} is not served")


@pytest.mark.parametrize("place", ["guide", "bundles/guide", "installed/guide_of_ours"])
def test_a_server_of_an_author_begins_anew_when_a_file_changes(place: str, tmp_path: Path) -> None:
    """The name `guide` is that of a folder here, of one in `bundles`, or of an installed bundle."""
    folder = tmp_path / place
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(BUNDLE.format("before"))
    distribution = tmp_path / "installed" / "guide-1.dist-info"
    if folder.parent == distribution.parent:
        distribution.mkdir()
        (distribution / "METADATA").write_text("Name: guide\nVersion: 1\n")
        entry = f"[loopline.bundles]\nguide = {folder.name}:bundle\n"
        (distribution / "entry_points.txt").write_text(entry)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    loopline = Loopline(tmp_path, {"PYTHONPATH": f"{distribution.parent}"})
    process = loopline.start("serve", "guide", "--port", f"{port}", "--reload")
    try:
        until_served(port, "before")
        (folder / "__init__.py").write_text(BUNDLE.format("after_it"))
        until_served(port, "after_it")
    finally:
        process.kill()
        process.communicate()


def test_production_is_refused_with_what_is_for_authors(tmp_path: Path) -> None:
    ran = Loopline(tmp_path)("serve", "guide", "--production", "--reload")
    assert ran.code == 2


async def test_no_bundle_runs_programs_without_isolation_where_that_is_asked_for() -> None:
    properties: dict[str, Setting] = {
        "execution.runtime.mode": "local",
        "execution.allow_local": True,
    }
    served = app(
        Bundle(id="guide", instructions="You help."),
        store="memory:",
        model=EchoModel(),
        settings=ServerSettings(isolated_only=True),
        properties=properties,
    )
    with pytest.raises(LooplineError, match="rights of this server"):
        await bundle_host(served).open()
