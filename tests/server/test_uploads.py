"""Messages as multipart forms: files come as they are, within the limits, and are not held in memory while they come."""

from __future__ import annotations

import json
import tracemalloc
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path

import httpx2
import pytest
from starlette.requests import Request
from starlette.types import Message

from loopline import Attachment, Bundle
from loopline.client import connect
from loopline.files import AttachmentCaps
from loopline.models import Json, JsonObject
from loopline.server import ServerSettings, app
from loopline.server.chat_routes import read_form
from tests.support.attachment_corpus import MACROS
from tests.support.echo_model import EchoModel
from tests.support.live_server import serving
from tests.support.sample_files import png

PATH = "/conversations/default/default/{}/messages/multipart"
MB = 1024 * 1024
Part = tuple[str, tuple[str | None, bytes, str]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A server with small limits."""
    folder: Path = tmp_path_factory.mktemp("uploads")
    settings = ServerSettings(
        body_bytes=6 * MB,
        caps=AttachmentCaps(
            text_bytes=3 * MB, pdf_bytes=MB, file_bytes=MB, image_bytes=MB, message_bytes=4 * MB
        ),
    )
    served = app(
        Bundle(id="guide"),
        store=f"sqlite:///{folder}/talk.db",
        model=EchoModel(),
        settings=settings,
    )
    with serving(served) as address:
        yield address


def post(
    url: str, talk: str, message: object, files: Sequence[Part] = (), key: str = ""
) -> httpx2.Response:
    """Send a form with a message as JSON and files."""
    text = message if isinstance(message, str) else json.dumps(message)
    parts: list[Part] = [("message", (None, text.encode(), "application/json")), *files]
    headers = {"Idempotency-Key": key} if key else {}
    return httpx2.post(f"{url}{PATH.format(talk)}", files=parts, headers=headers, timeout=30)


def file(name: str, data: bytes, mime: str = "application/octet-stream") -> Part:
    """A file of a form."""
    return ("files", (name, data, mime))


def stored(url: str, talk: str) -> list[str]:
    answer = httpx2.get(f"{url}/conversations/default/default/{talk}/blocks").json()
    if "blocks" not in answer:
        return []
    return [b["body"]["name"] for b in answer["blocks"] if b["type"] == "user.attachment"]


def test_a_form_is_answered_as_a_message_is_and_its_files_are_stored_as_they_are(url: str) -> None:
    picture = png(6, 4)
    files = [file("tee für Ann.txt", "Grüner Tee".encode(), "text/plain"), file("cup.png", picture)]
    answer = post(url, "form", {"text": "Look!"}, files)
    assert (answer.status_code, answer.json()["answer"]) == (200, "You said: Look!")
    refs = [f"fi:turn_1.user.attachments/{name}" for name in ("tee%20für%20Ann.txt", "cup.png")]
    read = httpx2.post(f"{url}/conversations/default/default/form/read", json={"refs": refs}).json()
    assert [item["text"] for item in read["items"]] == [
        "Grüner Tee",
        f"image/png, 6×4 pixels, {len(picture)} bytes",
    ]


def test_a_form_may_have_no_file_and_is_sent_once_with_its_key(url: str) -> None:
    first = post(url, "once", {"text": "tea"}, key="k").json()
    again = post(url, "once", {"text": "tea"}, key="k").json()
    assert first == again
    assert post(url, "once", {"text": "no"}, key="k").status_code == 409


@pytest.mark.parametrize(
    ("message", "files", "status", "detail"),
    [
        ("{", [], 422, "JSON"),
        ({"txt": "x"}, [], 422, "text"),
        ({"text": "x", "attachments": [{"name": "a", "data": "eA=="}]}, [], 422, "'files'"),
        ({"text": "x"}, [file("a.docx", MACROS["a project of macros"])], 422, "macros"),
        ({"text": "x"}, [file("a.txt", b"x" * (3 * MB + 1))], 422, "may have"),
        (
            {"text": "x"},
            [file(f"{n}.txt", b"x" * (2 * MB)) for n in range(2)] + [file("3.txt", b"x" * MB)],
            422,
            "message",
        ),
        ({"text": "x"}, [file("a.txt", b"x" * 7 * MB)], 413, "bytes"),
        ({"text": "x"}, [file(f"{n}.txt", b"x") for n in range(21)], 400, "files"),
        ({"text": "x"}, [("other", ("a.txt", b"x", "text/plain"))], 422, "nothing else"),
        ("x" * (5 * MB), [], 400, "Part exceeded"),
    ],
)
def test_what_is_too_much_or_no_such_form_is_refused_and_nothing_is_stored(
    url: str, message: object, files: Sequence[Part], status: int, detail: str
) -> None:
    answer = post(url, "refused", message, files)
    assert (answer.status_code, detail in answer.json()["detail"]) == (status, True), answer.text
    assert stored(url, "refused") == []


def test_what_is_no_form_is_refused(url: str) -> None:
    path = f"{url}{PATH.format('none')}"
    for headers in ({}, {"Content-Type": "multipart/form-data"}, {"Content-Type": "text/plain"}):
        answer = httpx2.post(path, content=b"--x\r\n", headers=headers)
        assert answer.status_code in (400, 422), answer.text


async def test_a_large_file_goes_to_disk_while_it_comes() -> None:
    """What is held is measured whenever another piece of the form is asked for."""
    head = '--b\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n'
    pieces = deque(
        [
            (head.format("message", "") + '{"text": "Look!"}\r\n').encode(),
            head.format("files", '; filename="a.txt"').encode(),
            *(b"x" * (64 * 1024) for _ in range(8 * 16)),
            b"\r\n--b--\r\n",
        ]
    )
    held = list[int]()

    async def receive() -> Message:
        held.append(tracemalloc.get_traced_memory()[0])
        return {"type": "http.request", "body": pieces.popleft(), "more_body": bool(pieces)}

    headers = [(b"content-type", b"multipart/form-data; boundary=b")]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    tracemalloc.start()
    try:
        _, [attachment] = await read_form(request, AttachmentCaps(text_bytes=9 * MB))
    finally:
        tracemalloc.stop()
    assert attachment.data == b"x" * (8 * MB)
    assert max(held) - held[0] < 2 * MB


async def test_the_client_sends_files_as_they_are(url: str, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_bytes(b"tea " * 600_000)
    async with connect(url) as server:
        talk = server.conversation("client")
        named = Attachment('a "b".txt', b"leaves", "text/markdown")
        result = await talk.say("Look!", attachments=[tmp_path / "long.txt", named])
        assert result.ok
    assert stored(url, "client") == ["long.txt", "a %22b%22.txt"]


FILE_URL = "data:text/plain;base64,dGVh"
SOURCE: Json = {"type": "data", "value": "dGVh", "mimeType": "text/plain"}
AG_UI_FILE: Json = {"type": "document", "source": SOURCE}
VERCEL_FILE: Json = {"type": "file", "mediaType": "text/plain", "url": FILE_URL}
OPENAI_FILE: Json = {"type": "file", "file": {"filename": "tea.txt", "file_data": FILE_URL}}
TEXT: Json = {"type": "text", "text": "tea"}
EMPTY: JsonObject = {"runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}}


@pytest.mark.parametrize(
    ("path", "file_part", "field", "body"),
    [
        ("/ag-ui", AG_UI_FILE, "content", {**EMPTY, "threadId": "many"}),
        ("/api/chat", VERCEL_FILE, "parts", {"id": "many"}),
        ("/v1/chat/completions", OPENAI_FILE, "content", {"model": "guide"}),
    ],
)
def test_a_message_of_every_protocol_may_have_twenty_files(
    url: str, path: str, file_part: Json, field: str, body: JsonObject
) -> None:
    for count, status in ((21, 422), (20, 200)):
        message: Json = {"id": "m1", "role": "user", field: [TEXT, *([file_part] * count)]}
        sent = httpx2.post(f"{url}{path}", json={**body, "messages": [message]}, timeout=30)
        assert sent.status_code == status
        assert ("may have 20 files, not 21" in sent.text) == (count == 21)
