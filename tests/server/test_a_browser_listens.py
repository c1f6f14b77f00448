"""A page in Chromium listens with its own EventSource, which connects again where a stream broke off, and sends files as a form."""

from __future__ import annotations

import queue
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loopline.server import app
from tests.server.test_openai_clients import TalkativeModel
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, serving

pytestmark = pytest.mark.service
HERE = "/conversations/default/default/browser"
FRAMES = 8
"""After so many frames the first stream breaks off."""
PAGE = """<!doctype html><title>events</title><script>
const events = [];
const source = new EventSource("/conversations/default/default/browser/events/ag-ui");
source.onmessage = ({ data, lastEventId }) => {
  const event = JSON.parse(data);
  events.push({ id: lastEventId, type: event.type });
  if (event.type !== "RUN_FINISHED") return;
  source.close();
  fetch("/report", { method: "POST", body: JSON.stringify(events) });
};
</script>"""

WITH_SCRIPTS = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline'"}
FORM = """<!doctype html><title>form</title><script>
const form = new FormData();
form.append("message", JSON.stringify({ text: "Read them." }));
form.append("files", new File(["Grüner Tee"], "für Ann.md", { type: "text/markdown" }));
form.append("files", new File([new Uint8Array(3 << 20).fill(116)], 'a "long" one.txt'));
fetch("/conversations/default/default/form/messages/multipart", { method: "POST", body: form })
  .then((answer) => answer.text())
  .then((body) => fetch("/report", { method: "POST", body }));
</script>"""


class BreakingStream:
    """Ends the first event stream after some frames, and keeps where later ones begin."""

    def __init__(self, inner: ASGIApp) -> None:
        self.inner = inner
        self.positions = list[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(f"{HERE}/events"):
            await self.inner(scope, receive, send)
            return
        headers = dict(scope["headers"])
        self.positions.append(headers.get(b"last-event-id", b"").decode())
        is_first, sent = len(self.positions) == 1, 0

        async def breaking(message: Message) -> None:
            nonlocal sent
            if not is_first or message["type"] == "http.response.start":
                await send(message)
                return
            for frame in message["body"].removesuffix(b"\n\n").split(b"\n\n"):
                sent += 1
                if sent < FRAMES:
                    part = {"body": frame + b"\n\n", "more_body": True}
                    await send({"type": "http.response.body", **part})
                elif sent == FRAMES:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self.inner(scope, receive, breaking)


@contextmanager
def browsing(url: str, folder: Path) -> Generator[None]:
    """Open a page in Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program is not None, "Chromium is not installed"
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    browser = subprocess.Popen(
        [program, *options, f"--user-data-dir={folder}/profile", url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        browser.terminate()
        browser.wait(20)


def test_an_event_source_that_connects_again_has_every_event_once(tmp_path: Path) -> None:
    served = app(SHOP, store="memory:", model=TalkativeModel())
    reports: queue.Queue[list[dict[str, Any]]] = queue.Queue()

    @served.get("/events-page")
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE, headers=WITH_SCRIPTS)

    @served.post("/report")
    async def report(request: Request) -> None:
        reports.put(await request.json())

    breaking = BreakingStream(served)
    outer = FastAPI()
    outer.state.host = served.state.host
    outer.mount("/", breaking)
    with (
        serving(outer) as url,
        httpx2.Client(base_url=url, timeout=30) as client,
        browsing(f"{url}/events-page", tmp_path),
    ):
        client.post(f"{HERE}/messages", json={"text": "call shop.wait name=0"})
        events = reports.get(timeout=60)
        replay = client.post(
            "/ag-ui", json={"threadId": "browser", "runId": "r1", "messages": []}
        ).text
    [first, second, *_] = breaking.positions
    assert first == ""
    assert second == events[FRAMES - 3]["id"]
    ids = [event["id"] for event in events]
    assert ids == sorted(set(ids), key=lambda text: [int(part) for part in text.split(".")])
    assert events[0]["type"] == "RUN_STARTED"
    assert events[-1]["type"] == "RUN_FINISHED"
    assert f"id: {ids[-1]}\n" in replay


def test_a_page_sends_files_as_a_form(tmp_path: Path) -> None:
    served = app(SHOP, store="memory:", model=EchoModel())
    reports: queue.Queue[dict[str, Any]] = queue.Queue()

    @served.get("/events-page")
    async def page() -> HTMLResponse:
        return HTMLResponse(FORM, headers=WITH_SCRIPTS)

    @served.post("/report")
    async def report(request: Request) -> None:
        reports.put(await request.json())

    with serving(served) as url, browsing(f"{url}/events-page", tmp_path):
        answer = reports.get(timeout=60)
        blocks = httpx2.get(f"{url}/conversations/default/default/form/blocks").json()["blocks"]
    assert answer["answer"] == "You said: Read them."
    files = [block["body"] for block in blocks if block["type"] == "user.attachment"]
    assert [(file["name"], file["mime"], file["size"]) for file in files] == [
        ("für Ann.md", "text/markdown", 11),
        ("a %22long%22 one.txt", "text/plain", 3 << 20),
    ]
