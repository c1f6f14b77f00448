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
from loopline.server.bundle_host import bundle_host
from tests.doors.command import Loopline
from tests.support.echo_model import EchoModel

BUNDLE = """from loopline import Bundle
bundle = Bundle(id="{}", instructions="You help.")
"""


def served_bundles(port: int) -> list[str]:
    """The ids of the bundles that are served now; none while nothing listens.

    To load the certificates of all authorities for each request takes 25 ms: none is needed.
    """
    try:
        return list(httpx2.get(f"http://127.0.0.1:{port}/me", verify=False).json()["bundles"])
    except httpx2.HTTPError:
        return []


def until_served(port: int, bundle: str) -> None:
    for _ in range(600):
        if served_bundles(port) == [bundle]:
            return
        time.sleep(0.1)
    raise AssertionError(f"{bundle} is not served")


@pytest.mark.parametrize(
    "place",
    [
        "guide",
        pytest.param("bundles/guide", marks=pytest.mark.campaign),
        pytest.param("installed/guide_of_ours", marks=pytest.mark.campaign),
    ],
)
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
    process = loopline.start("serve", "guide", "--port", f"{port}", "--reload", is_forked=False)
    try:
        until_served(port, "before")
        (folder / "__init__.py").write_text(BUNDLE.format("after_it"))
        until_served(port, "after_it")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "reason", "code"),
    [
        (["missing.py"], "missing.py", 1),
        (["broken.py"], "broken.py:2", 1),
        (["guide.py", "--model", "openai:gpt-5"], "OPENAI_API_KEY", 1),
        (["guide.py", "--model", "nonsense"], "nonsense", 1),
        (["guide.py", "--port", "{busy}"], "127.0.0.1:{busy}: Address already in use", 1),
        (["guide.py", "--host", "no.host.invalid", "--keys", "keys.json"], "no.host.invalid", 1),
        (["guide.py", "--host", "0.0.0.0"], "--keys", 2),
        (["guide.py", "--store", "memory:", "--workers", "2"], "can open, not memory:", 2),
    ],
    ids=["missing", "syntax", "key", "model", "port", "host", "authentication", "workers"],
)
def test_a_server_that_cannot_begin_says_so_in_one_line_and_never_that_it_serves(
    words: list[str], reason: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "guide.py").write_text(BUNDLE.format("guide"))
    (tmp_path / "broken.py").write_text("x = 1\ndef (\n")
    (tmp_path / "keys.json").write_text('{"version": 1, "keys": []}')
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        port_words = [] if "--port" in words else ["--port", "0"]
        words = [word.format(busy=port) for word in words]
        loopline = Loopline(tmp_path, {"OPENAI_API_KEY": ""})
        ran = loopline("serve", *words, *port_words)
    assert ran.code == code
    assert ran.err.startswith("error: ")
    assert reason.format(busy=port) in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not ran.out


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_address_is_printed_when_the_server_listens_with_the_port_it_has(
    host: str, tmp_path: Path
) -> None:
    (tmp_path / "guide.py").write_text(BUNDLE.format("guide"))
    process = Loopline(tmp_path).start("serve", "guide.py", "--host", host, "--port", "0")
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        address = line.partition(" at ")[2].partition(";")[0]
        assert address.startswith(f"http://{host}:")
        assert httpx2.get(f"{address}/me").json()["bundles"] == ["guide"]
        page = line.partition("the page is at ")[2].partition(",")[0]
        assert "<html" in httpx2.get(address + page).text
    finally:
        process.kill()
        process.communicate()


BROKEN = """from loopline import BaseWorkflow, Bundle

class Broken(BaseWorkflow):
    async def process(self, payload):
        raise ValueError("no tea \\x1b[2J")

bundle = Bundle(id="broken", workflow=Broken)
"""


def test_the_terminal_of_a_server_shows_why_a_turn_failed(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    process = Loopline(tmp_path).start("serve", "broken.py", "--port", "0")
    try:
        assert process.stderr is not None
        address = process.stderr.readline().partition(" at ")[2].partition(";")[0]
        place = f"{address}/conversations/default/default/c1/messages"
        failed = httpx2.post(place, json={"text": "tea"}, timeout=30).json()
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert failed["exit_reason"] == "error"
    assert "broken.py:5: ValueError: no tea" in failed["error"]  # an author may read it: no users
    assert errors.count("ERROR loopline: a turn failed") == 1
    assert errors.count("broken.py:5: ValueError: no tea") == 1
    assert "\x1b[2J" not in errors


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
