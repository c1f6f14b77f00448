"""A conversation as one HTML file: it needs nothing else, runs nothing of its texts, and may be redacted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest
from playwright.sync_api import Page, expect

from loopline import Bundle, Harness
from loopline.harness import ReadOnlyStore
from loopline.redaction.detectors import KINDS
from loopline.server import reading_app
from loopline.server.page_routes import RedactedKind
from loopline.testing import ScriptedModel
from tests.page.hostile import assert_nothing_ran, open_everything
from tests.support.hostile_conversation import in_thread, write_hostile_store
from tests.support.hostile_texts import TEXTS
from tests.support.live_server import serving
from tests.support.warm_programs import warm_program

PART = re.compile(
    r'<script type="application/json" id="part-([a-z]+(?:-\d+)?)">(.*?)</script>', re.S
)


def exported(folder: Path, name: str, store: str, *options: str) -> str:
    """Return what the command prints."""
    command = warm_program("-m", "loopline", "export", name, "--html", "--store", store)
    printed = subprocess.run(
        [*command, *options], cwd=folder, capture_output=True, check=True, text=True
    )
    return printed.stdout


def parts_of(html: str) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in PART.findall(html)}


def test_without_the_packages_of_the_server_the_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; from loopline.cli import main\n"
        "sys.modules['uvicorn'] = None\n"
        "sys.argv = ['loopline', 'export', 'c1', '--html']; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False, text=True
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "pip install 'loopline[server]'" in ran.stderr


def test_the_policy_names_the_script_and_the_style_of_the_file(
    tea_store: str, tmp_path: Path
) -> None:
    html = exported(tmp_path, "brewing", tea_store)
    [script] = re.findall(r'<script type="module">(.*?)</script>', html, re.S)
    [style] = re.findall(r"<style>(.*?)</style>", html, re.S)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    for text in (script, style):
        assert b64encode(sha256(text.encode()).digest()).decode() in policy
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    assert "default-src &#x27;none&#x27;" in policy


def test_a_file_has_each_message_of_the_prompts_once(tea_store: str, tmp_path: Path) -> None:
    parts = parts_of(exported(tmp_path, "brewing", tea_store))
    texts = [
        f"{message['text']}" for message in parts["messages-0"] if not isinstance(message, str)
    ]
    [prompts] = [value for name, value in parts.items() if name.startswith("prompts-")]
    assert len(prompts) == 6
    large = [text for text in texts if "picked in April" in text and len(text) > 9_000]
    assert 1 <= len(large) <= 2  # once while it is new, once as a part of the round before
    assert len(parts["rows-0"]) == 57


async def tell(store: str, text: str) -> None:
    bundle = Bundle(id="guide", instructions="Answer.")
    async with Harness.open(bundle, store=store, model=ScriptedModel([text])) as harness:
        await harness.conversation("secret").say(text)


def test_secrets_and_addresses_are_redacted_if_it_is_asked_for(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/secret.db"
    text = "Write to ann.lee@example.org about it."
    in_thread(tell(store, text))
    plain = exported(tmp_path, "secret", store)
    redacted = exported(tmp_path, "secret", store, "--redact", "email")
    assert "ann.lee@example.org" in plain
    assert "ann.lee@example.org" not in redacted
    assert "[redacted email]" in redacted


@pytest.mark.service
def test_a_file_is_read_without_a_server(page: Page, tea_store: str, tmp_path: Path) -> None:
    file = tmp_path / "brewing.html"
    file.write_text(exported(tmp_path, "brewing", tea_store), encoding="utf-8")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(file.as_uri())
    expect(page.get_by_text("water of 70 to 80 degrees")).to_be_visible()
    page.get_by_role("link", name="Overview").click()
    page.get_by_role("link", name="Prompt of round 3").click()
    expect(page.get_by_role("heading", name="turn 1, round 3")).to_be_visible()
    page.get_by_role("link", name="Timeline").click()
    page.get_by_label("Search in this conversation").fill("oolong error")
    expect(page.get_by_role("status")).to_have_text("1")
    assert requested == [file.as_uri()]


@pytest.mark.service
def test_no_text_in_a_file_runs_or_requests_anything(page: Page, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/hostile.db"
    in_thread(write_hostile_store(store, TEXTS))
    file = tmp_path / "hostile.html"
    file.write_text(exported(tmp_path, "hostile", store), encoding="utf-8")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url.partition("#")[0]))
    for view in ("chat", "overview", "timeline/4", "prompt"):
        page.goto(f"{file.as_uri()}#/c/default/default/local/hostile/{view}")
        page.reload()
        page.wait_for_timeout(800)
        open_everything(page)
        assert_nothing_ran(page, protocols=frozenset({"http:", "https:", "file:"}))
    assert set(requested) == {file.as_uri()}


def test_the_route_takes_every_kind_that_can_be_redacted_and_no_other(tea_store: str) -> None:
    assert get_args(RedactedKind) == KINDS
    with serving(reading_app(ReadOnlyStore(tea_store))) as url:
        here = f"{url}/conversations/default/default/brewing/page"
        saved = httpx2.get(here, params={"user_id": "local", "redact": ["secret", "ip"]})
        refused = httpx2.get(here, params={"user_id": "local", "redact": "names"})
    assert saved.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in saved.headers["content-security-policy"]
    assert 'id="part-conversation"' in saved.text
    assert refused.status_code == 422
