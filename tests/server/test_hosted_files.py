"""A workflow gives its user the URL of an output: signed under a server, and of a file without one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2
import pytest

from loopline import BaseWorkflow, Bundle, Harness, LooplineError, TurnPayload, TurnResult
from loopline.harness.hosted_folder import HostedFolder, remove_abandoned_folders
from loopline.models import Json, dumps
from loopline.server import ApiKeys, Principal, ServerSettings, add_key, app
from loopline.testing import Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import ConversationKey, FileAdded, hosted_name
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, serving
from tests.support.s3_server import CREDENTIALS, s3_server

REPORT = b"%PDF-1.7 sales"


class Reports(BaseWorkflow):
    """Answers with the URL and the name of the report that it makes in the first turn."""

    report = REPORT

    async def process(self, payload: TurnPayload) -> TurnResult[Any]:
        if payload.turn_id == "turn_1":
            await self.store.put_attachment("export/the report.pdf", self.report)
        hosting = self.hosting_service
        ref = "fi:turn_1.outputs/export/the%20report.pdf"
        assert hosting.get_artifact_url(f"{ref}@1")
        if payload.text != "Report.":
            with pytest.raises(LooplineError) as refused:
                hosting.get_artifact_url(payload.text)
            return await self.answer(str(refused.value))
        return await self.answer(dumps([hosting.get_artifact_url(ref), hosting.resource_name(ref)]))


class LongReports(Reports):
    """Makes a report that is a blob in the store."""

    report = b"%PDF-1.7" * 10_000


BUNDLE = Bundle(id="reports", workflow=Reports)
ANN = Principal(tenant="acme", project="tea", user="ann")
BOB = Principal(tenant="acme", project="tea", user="bob")
NAME = "ef:{}:{}:chatbot:file:ann:c1:turn_1:assistant:1/export/the%20report.pdf"


async def test_without_a_server_the_url_is_that_of_a_copy_which_goes_with_the_harness() -> None:
    async with Harness.open(BUNDLE, store="memory:", model=ScriptedModel([])) as harness:
        result = await harness.conversation("c1", user="ann").say("Report.")
        url, name = answer_parts(result.answer)
        copy = copy_at(url)
        check_copy(copy)
    assert not is_there(copy)
    assert name == NAME.format("default", "default")


class LateReports(BaseWorkflow):
    """Makes a report in the first turn, and answers with its URL when it is asked for it."""

    async def process(self, payload: TurnPayload) -> TurnResult[Any]:
        if payload.turn_id == "turn_1":
            await self.store.put_attachment("export/the report.pdf", REPORT)
        if payload.text != "Report?":
            return await (await self.build_react()).run(payload)
        ref = "fi:turn_1.outputs/export/the%20report.pdf"
        with pytest.raises(LooplineError, match=r"await fetch_artifact_url\(ref\)"):
            self.hosting_service.get_artifact_url(ref)
        with pytest.raises(LooplineError, match="is not an output of this conversation"):
            await self.hosting_service.fetch_artifact_url("fi:turn_1.outputs/none.pdf")
        urls = [await self.hosting_service.fetch_artifact_url(name) for name in (ref, f"{ref}@1")]
        return await self.answer(dumps([*urls]))


async def test_the_url_of_a_file_before_a_summary_is_fetched_also_by_another_process(
    tmp_path: Path,
) -> None:
    bundle = Bundle(id="late", workflow=LateReports)
    store = f"sqlite:///{tmp_path}/talk.db"
    entries: list[Entry] = [Say("x" * 9_000) for _ in range(7)]
    model = ScriptedModel(entries, aux={"summary": ["Goal."] * 9}, window=16_000)
    async with Harness.open(bundle, store=store, model=model) as harness:
        talk = harness.conversation("c1")
        for _ in range(7):
            await talk.say("On.")
        assert "conv.range.summary" in [block.type for block in await talk.blocks()]
        check_copy(copy_at(answer_parts((await talk.say("Report?")).answer)[0]))
    async with Harness.open(bundle, store=store, model=ScriptedModel([])) as harness:
        urls = answer_parts((await harness.conversation("c1").say("Report?")).answer)
        assert urls[0] == urls[1]
        check_copy(copy_at(urls[0]))


def test_a_copy_that_could_not_be_written_is_made_again() -> None:
    text = "tea" * 999
    file = FileAdded(
        area="outputs",
        path="tea.txt",
        version=1,
        mime="text/plain",
        size=len(text),
        sha256=sha256(text.encode()).hexdigest(),
        text=text,
    )
    name, folder = hosted_name(ConversationKey(name="c1"), "turn_1", file), HostedFolder()
    soft, hard = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            folder.host_file(name, file)
    finally:
        setrlimit(RLIMIT_FSIZE, (soft, hard))
    try:
        assert copy_at(folder.host_file(name, file)).read_text() == text
    finally:
        asyncio.run(folder.close())


HOSTING = """
import sys, time
from loopline.harness.hosted_folder import HostedFolder
from loopline.timeline import ConversationKey, FileAdded, hosted_name
file = FileAdded(area="outputs", path="tea.txt", version=1, mime="text/plain", size=3, sha256="", text="tea")
print(HostedFolder().host_file(hosted_name(ConversationKey(name="c1"), "turn_1", file), file), flush=True)
time.sleep(60)
"""


def test_the_copies_of_a_killed_process_are_removed_and_those_of_a_running_one_stay(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "TMPDIR": f"{tmp_path}"}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", HOSTING],
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
            for _ in range(2)
        ]
        copies = [
            copy_at((process.stdout or sys.stdin).readline().strip()) for process in processes
        ]
        processes[0].kill()
        processes[0].wait()
        try:
            remove_abandoned_folders(tmp_path, 60)
            assert [is_there(copy) for copy in copies] == [True, True]
            remove_abandoned_folders(tmp_path, 0)
            assert [is_there(copy) for copy in copies] == [False, True]
        finally:
            processes[1].kill()


@pytest.mark.parametrize(
    ("ref", "problem"),
    [
        ("fi:turn_1.outputs/none.pdf", "is not an output of this conversation"),
        ("fi:turn_1.files/none.pdf", "only files below outputs/"),
        ("ar:turn_1.user.prompt", "is not an output"),
        ("the report", "not a ref"),
    ],
)
async def test_a_ref_of_no_output_has_no_url(ref: str, problem: str) -> None:
    async with Harness.open(BUNDLE, store="memory:", model=ScriptedModel([])) as harness:
        assert problem in (await harness.conversation("c1").say(ref)).answer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, httpx2.Client]]:
    file = tmp_path_factory.mktemp("hosting") / "keys.json"
    keys = {who.user: add_key(file, who) for who in (ANN, BOB)}
    settings = ServerSettings(public_url="https://shop.example/talk/")
    server = app(BUNDLE, store="memory:", auth=ApiKeys.read(file), settings=settings)
    with serving(server) as url, ExitStack() as stack:
        headers = {user: {"Authorization": f"Bearer {key}"} for user, key in keys.items()}
        yield {
            user: stack.enter_context(httpx2.Client(base_url=url, headers=sent))
            for user, sent in {**headers, "": {}}.items()
        }


def test_under_a_server_the_url_is_signed_and_the_name_gives_no_right(
    served: dict[str, httpx2.Client],
) -> None:
    said = served["ann"].post("/conversations/acme/tea/c1/messages", json={"text": "Report."})
    url, name = answer_parts(said.json()["answer"])
    assert url.startswith("https://shop.example/talk/files?")
    assert name == NAME.format("acme", "tea")
    path = url.removeprefix("https://shop.example/talk")
    saved = served[""].get(path)
    assert (saved.status_code, saved.content) == (200, REPORT)
    assert "attachment" in saved.headers["content-disposition"]
    assert served[""].get(path[:-1] + ("0" if path[-1] != "0" else "1")).status_code == 403
    statuses = {who: by.post("/by-rn", json={"rn": name}).status_code for who, by in served.items()}
    assert statuses == {"ann": 200, "bob": 404, "": 401}


def test_every_url_that_leaves_a_server_begins_where_a_proxy_has_it(
    served: dict[str, httpx2.Client],
) -> None:
    base, here = "https://shop.example/talk", "/conversations/acme/tea/c9"
    document = served["ann"].get("/openapi.json").json()
    assert document["servers"] == [{"url": base}]
    sent = served["ann"].post(f"{here}/messages", json={"text": "Report.", "background": True})
    assert sent.json()["events"] == f"{base}{here}/events?after=0"
    said = served["ann"].post(f"{here}/messages", json={"text": "Report."})
    found = served["ann"].post("/by-rn", json={"rn": answer_parts(said.json()["answer"])[1]}).json()
    link = found["metadata"]["download_url"]
    assert link.startswith(f"{base}/files?")
    assert served[""].get(link.removeprefix(base)).content == REPORT


@pytest.mark.parametrize("url", ["shop.example", "ftp://shop.example", "https://shop.example/?a=1"])
def test_a_public_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(LooplineError, match="public_url must be the URL of the server"):
        ServerSettings(public_url=url)


@pytest.mark.parametrize(
    "origin", ["https://shop.example/", "https://Shop.example", "shop.example", "null", ""]
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(LooplineError, match="is not an origin: write it as browsers send it"):
        ServerSettings(origins=["https://tea.example", origin])
    ServerSettings(origins=["https://tea.example:8443", "http://[::1]:3000", "*"])


def test_files_of_the_stream_of_the_ai_sdk_have_their_urls() -> None:
    text: Json = {"type": "text", "text": "call shop.draw name=tea"}
    body: Json = {"id": "c1", "messages": [{"id": "m1", "role": "user", "parts": [text]}]}
    server = app(SHOP, store="memory:", model=EchoModel())
    with serving(server) as url, httpx2.Client(base_url=url, timeout=30) as client:
        lines = client.post("/api/chat", json=body).text.splitlines()
        files = [place_of(line) for line in lines if '"data-file"' in line]
        contents = {path: client.get(url).content for path, url in files}
    assert contents == {
        "outputs/tea.html": b"<script>alert(1)</script>",
        "outputs/a/b.bin": b"\x00\x01" * 50,
    }


def test_files_of_the_dialect_of_kdcube_have_their_names_and_urls() -> None:
    headers = {"Accept": "text/event-stream", "Loopline-Dialect": "kdcube"}
    server = app(SHOP, store="memory:", model=EchoModel())
    with serving(server) as url, httpx2.Client(base_url=url, timeout=30) as client:
        path = "/conversations/default/default/c1/messages"
        sent = client.post(path, json={"text": "call shop.draw name=tea"}, headers=headers).text
        lines = [line.removeprefix("data: ") for line in sent.splitlines() if "chat.files" in line]
        items = [json.loads(line)["data"]["items"][0] for line in lines]
        contents = [client.get(item["url"]).content for item in items]
    assert contents == [b"<script>alert(1)</script>", b"\x00\x01" * 50]
    assert [item["rn"].rpartition(":")[2] for item in items] == ["1/tea.html", "1/a/b.bin"]


def answer_parts(answer: str) -> list[str]:
    parts: list[str] = json.loads(answer)
    return parts


def place_of(line: str) -> tuple[str, str]:
    part = json.loads(line.removeprefix("data: "))
    return part["data"]["path"], part["data"]["url"]


def copy_at(url: str) -> Path:
    parts = urlsplit(url)
    assert (parts.scheme, parts.netloc) == ("file", "")
    return Path(unquote(parts.path))


def check_copy(copy: Path) -> None:
    """Check that it is the report, by its name, and that only its owner can get at it."""
    assert (copy.name, copy.read_bytes()) == ("the report.pdf", REPORT)
    assert copy.parents[1].stat().st_mode & 0o077 == 0


def is_there(copy: Path) -> bool:
    """Whether anything is left of a copy and its folder."""
    return copy.parents[1].exists()


def test_a_large_file_is_downloaded_from_the_bucket_if_its_urls_are_presigned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    bundle = Bundle(id="reports", workflow=LongReports)
    with s3_server() as bucket:
        store, blobs = f"sqlite:///{tmp_path}/talk.db", bucket.url(presigned="yes")
        server = app(bundle, store=store, blobs=blobs)
        with serving(server) as url, httpx2.Client(base_url=url, timeout=30) as client:
            path = "/conversations/default/default/c1/messages"
            said = client.post(path, json={"text": "Report."}).json()
            link, _ = answer_parts(said["answer"])
            sent = client.get(link)
            preview = client.get(f"{link}&show=preview")
        assert sent.status_code == 307
        place = sent.headers["location"]
        assert place.startswith(f"{bucket.endpoint}/blobs/talk/hosted/")
        copy = httpx2.get(place)
        assert copy.content == LongReports.report == preview.content
        assert copy.headers["content-type"] == "application/octet-stream"
        disposition = "attachment; filename*=UTF-8''the%20report.pdf"
        assert copy.headers["content-disposition"] == disposition
        assert "X-Amz-Expires=900" in place
