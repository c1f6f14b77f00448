"""No text of a conversation, a person, a tool, a file, a session or a provider runs or requests anything, in any view."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page
from pydantic import BaseModel, Field

from loopline import Attachment, BaseWorkflow, Bundle, Harness, Output, OutputFile, tool
from loopline.errors import ModelRequestError
from loopline.harness import DocumentStore
from loopline.models import Json
from loopline.react import Allow, Ask, GuardedCall, Verdict
from loopline.server import (
    ApiKeys,
    FirstOf,
    PageLogin,
    ServerSettings,
    TokenUsers,
    app,
    reading_app,
)
from loopline.testing import Call, Fail, Say, ScriptedModel
from tests.page.hostile import assert_is_shown, assert_nothing_ran, open_everything
from tests.support.echo_model import EchoModel
from tests.support.hostile_conversation import in_thread
from tests.support.hostile_texts import TEXTS
from tests.support.live_server import serving
from tests.support.openid_provider import CLIENT, openid_provider
from tests.support.warm_programs import warm_program

pytestmark = pytest.mark.service
JOINED = "\n\n".join(TEXTS)
HERE = "/conversations/default/default"
TALK = "#/c/default/default/local"
EVIL = b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.wasRun=1'><script>window.wasRun=1</script></svg>"


class Choice(BaseModel):
    """A form whose every text is hostile."""

    kind: str = Field(title=JOINED, description=JOINED, json_schema_extra={"enum": [*TEXTS]})
    note: str = Field(default=JOINED, title=TEXTS[1])


@tool(effect="write")
def pay(text: str) -> Output:
    """Pay, and return files with hostile contents."""
    files = [OutputFile("evil.svg", EVIL), OutputFile("evil.html", EVIL)]
    return Output(text, files=files)


@tool(client=True)
def pick(text: str) -> Choice:
    """Let the client pick."""
    raise NotImplementedError


class HostileQuestion:
    """A guard that asks two people with a hostile question."""

    async def before(self, call: GuardedCall) -> Verdict:
        return Ask(JOINED, people=2) if call.tool == "shop.pay" else Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        del call
        return text


class Guarded(BaseWorkflow):
    """The loop with this guard."""

    guards = (HostileQuestion(),)


SHOP = Bundle(id="shop", instructions=JOINED, tools=[pay, pick], workflow=Guarded)


def model(*script: Say | Fail | str) -> ScriptedModel:
    return ScriptedModel(list(script), strict=False, name=TEXTS[0])


async def write_store(url: str) -> None:
    """Write a call that was paid, one that waits for a second person, one of a client, and a turn that failed."""
    paying = Say(JOINED, Call("shop.pay", text=JOINED))
    script: list[Say | str] = [paying, JOINED, paying, Say("", Call("shop.pick", text=JOINED))]
    failing = Fail(ModelRequestError(JOINED))
    async with Harness.open(SHOP, store=url, model=model(*script, failing)) as harness:
        paid = harness.conversation("paid")
        await paid.say(JOINED, attachments=[Attachment("x.svg", EVIL, "image/svg+xml")])
        edited: Json = {"approved": True, "arguments": {"text": JOINED}}
        await paid.resume({"c1": edited}, by=TEXTS[2])
        await paid.resume({"c1": True})
        waits = harness.conversation("waits")
        await waits.say(JOINED)
        await waits.resume({"c1": edited}, by=JOINED)
        await harness.conversation("client").say(JOINED)
        await harness.conversation("failed").say(JOINED)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of the store."""
    url = f"sqlite:///{tmp_path_factory.mktemp('hostile')}/shop.db"
    in_thread(write_store(url))
    return url


@pytest.fixture
def requested(page: Page) -> Generator[list[str]]:
    """Return the addresses that the page requests, and its dialogs."""
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.on("dialog", lambda dialog: addresses.append(f"dialog {dialog.message}"))
    yield addresses
    assert len(TEXTS) >= 100


def look(page: Page, address: str) -> None:
    """Open a view with everything in it, and check it."""
    page.goto(address)
    page.reload()
    page.wait_for_timeout(700)
    open_everything(page)
    assert_is_shown(page)
    protocols = frozenset(
        {"http:", "https:"} if address.startswith("http") else {"http:", "https:", "file:"}
    )
    assert_nothing_ran(page, protocols=protocols)


def test_no_text_runs_in_any_view_of_a_live_server(
    page: Page, store: str, requested: list[str]
) -> None:
    models = {"general": model(JOINED), "careful": model(JOINED)}
    with serving(app(SHOP, store=store, model=models)) as url:
        body = {"model": "careful", "instructions": JOINED}
        again = httpx2.post(f"{url}{HERE}/paid/turns/turn_1/rounds/1/rerun", json=body, timeout=30)
        fork = again.json()["conversation_id"]
        for view in (
            "#/work",
            *(f"{TALK}/paid/{name}" for name in ("chat", "overview", "timeline/1", "prompt/1/1")),
            f"{TALK}/paid/prompt/1/1/beside/{fork}",
            *(f"{TALK}/{name}/chat" for name in ("waits", "client", "failed")),
            f"{TALK}/failed/overview",
        ):
            look(page, f"{url}/page/{view}")
        page.goto(f"{url}/page/{TALK}/waits/chat")
        page.get_by_role("button", name="Edit the arguments").click()
        assert_nothing_ran(page)
        page.goto(f"{url}/page/{TALK}/paid/prompt/1/1")
        page.get_by_role("button", name="Run again").click()
        page.get_by_text("Export", exact=True).click()
        assert_nothing_ran(page)
        page.goto(f"{url}/page/{TALK}/paid/chat")
        for button in page.get_by_role("button", name="Read").all():
            button.click()
            page.wait_for_timeout(300)
            assert_nothing_ran(page)
        assert {
            address for address in requested if not address.startswith((url, "blob:", "data:"))
        } == set()


@pytest.mark.parametrize("name", ["paid", "waits", "client", "failed"])
def test_no_text_runs_in_an_exported_file(
    page: Page, store: str, tmp_path: Path, requested: list[str], name: str
) -> None:
    command = warm_program("-m", "loopline", "export", name, "--html", "--store", store)
    html = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True).stdout
    file = tmp_path / "talk.html"
    file.write_text(html, encoding="utf-8")
    for view in ("chat", "overview", "timeline/1", "prompt"):
        look(page, f"{file.as_uri()}{TALK}/{name}/{view}")
    assert {address.partition("#")[0] for address in requested} == {file.as_uri()}


def session() -> str:
    """Return a session of Claude Code whose tools have hostile names, inputs and results."""
    at = "2026-05-01T10:00:00.123Z"
    rows: list[dict[str, Any]] = [
        {"type": "user", "timestamp": at, "message": {"role": "user", "content": JOINED}}
    ]
    for n, text in enumerate(TEXTS):
        call = {"type": "tool_use", "id": f"t{n}", "name": text, "input": {text: text}}
        usage = {"input_tokens": 5, "output_tokens": 7}
        message = {
            "role": "assistant",
            "id": f"m{n}",
            "model": text,
            "content": [call],
            "usage": usage,
        }
        rows.append({"type": "assistant", "timestamp": at, "message": message})
        result = {
            "type": "tool_result",
            "tool_use_id": f"t{n}",
            "content": text,
            "is_error": n % 2 == 0,
        }
        rows.append(
            {"type": "user", "timestamp": at, "message": {"role": "user", "content": [result]}}
        )
    return "\n".join(json.dumps(row) for row in rows)


def test_no_text_of_a_session_file_runs(page: Page, tmp_path: Path, requested: list[str]) -> None:
    file = tmp_path / "session.jsonl"
    file.write_text(session(), encoding="utf-8")
    with serving(reading_app(DocumentStore(file))) as url:
        [item] = httpx2.get(f"{url}/stored").json()["items"]
        place = f"{item['tenant']}/{item['project']}/{item['user']}/{item['conversation']}"
        for view in ("chat", "overview", "timeline/6", "timeline/7", "prompt"):
            look(page, f"{url}/page/#/c/{place}/{view}")
        assert {address for address in requested if not address.startswith(url)} == set()


def test_no_text_of_a_provider_runs(page: Page, requested: list[str]) -> None:
    with openid_provider() as provider:
        provider.refuses = JOINED[:1_500]
        auth = FirstOf([ApiKeys([]), TokenUsers(provider.url, "loopline")])
        settings = ServerSettings(login=PageLogin(issuer=provider.url, client_id=CLIENT))
        guide = Bundle(id="guide", instructions="Answer.")
        served = app(guide, store="memory:", model=EchoModel(), auth=auth, settings=settings)
        with serving(served) as url:
            page.goto(f"{url}/page/")
            page.get_by_role("button", name="Sign in at").click()
            page.get_by_role("alert").wait_for()
            assert_is_shown(page)
            assert_nothing_ran(page)
            known = (url, provider.url)
            assert {address for address in requested if not address.startswith(known)} == set()
