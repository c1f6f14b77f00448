"""SIGTERM: the server is gone within its limit, and the next process goes on with what it left."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from loopline.models import Json
from tests.docs.pages import ROOT
from tests.doors.command import Loopline, wait_for
from tests.support.live_server import streamed_messages
from tests.support.warm_programs import warm_program

HERE = "/conversations/default/default/c1"
HANG_SECONDS = 60
"""After so long a test has failed: nothing here is to take it."""
WAIT = "call shop.wait name=2"

GUIDE = """import asyncio

from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult


class Guide(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult[None]:
        await asyncio.sleep({seconds})
        return await self.answer("the answer of {name}")


bundle = Bundle(id="guide", workflow=Guide)
"""


class EndedServer:
    """A server in a process of its own."""

    def __init__(self, store: str, drain_seconds: float, descriptors: int) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(
            warm_program(
                *("-m", "tests.support.killed_server", store, "0"),
                *(f"{drain_seconds}", f"{descriptors}"),
            ),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS)

    def tell_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def errors(self) -> str:
        """Wait for the end of the process, and return what it wrote to its standard error."""
        return self._process.communicate(timeout=HANG_SECONDS)[1]

    def close(self) -> None:
        """Kill what is left of it."""
        self.client.close()
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def running(
    store: str, drain_seconds: float = 0.4, descriptors: int = 1_024
) -> Generator[EndedServer]:
    server = EndedServer(store, drain_seconds, descriptors)
    try:
        yield server
    finally:
        server.close()


def send(client: httpx2.Client, text: str = WAIT, key: str = "k") -> httpx2.Response:
    return client.post(f"{HERE}/messages", json={"text": text}, headers={"Idempotency-Key": key})


def bodies(client: httpx2.Client, kind: str) -> list[Json]:
    """The bodies of the conversation's blocks of a type; none while it has not begun, or nobody serves it."""
    try:
        answer = client.get(f"{HERE}/blocks", params={"types": kind})
    except httpx2.HTTPError:
        return []
    return [row["body"] for row in answer.json()["blocks"]] if answer.status_code == 200 else []


def until_recorded(client: httpx2.Client, kind: str, number: int = 1) -> list[Json]:
    """Wait until the conversation has so many blocks of a type, and return their bodies."""
    wait_for(lambda: len(bodies(client, kind)) >= number)
    return bodies(client, kind)


@contextmanager
def sending(client: httpx2.Client, text: str = WAIT) -> Generator[Future[httpx2.Response]]:
    """Send a message in a thread, and wait until its turn has called the tool."""
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(send, client, text)
        until_recorded(client, "react.tool.call")
        yield sent


def test_a_turn_that_sigterm_finds_is_resumed_by_the_next_process(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    with running(store) as server, sending(server.client) as sent:
        server.tell_to_end()
        refused = sent.result(HANG_SECONDS)
        assert "Traceback" not in server.errors()
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert "next one resumes" in refused.json()["detail"]
    with running(store, 20) as server:
        answer = send(server.client).json()
        assert (answer["answer"], answer["exit_reason"]) == (
            "The tool said: [tc:turn_1.c1.result]\nwaited",
            "complete",
        )
        [end] = bodies(server.client, "react.exit")
        headers = bodies(server.client, "turn.header")
    assert isinstance(end, dict)
    assert end["reason"] == "complete"
    assert [pick(header, "handed_over", "recoveries") for header in headers] == [
        (False, 0),
        (True, 0),
        (False, 0),
    ]


def test_while_it_ends_a_server_answers_new_messages_with_503_and_when_to_come_back(
    tmp_path: Path,
) -> None:
    with running(f"sqlite:///{tmp_path}/talk.db", 20) as server:
        with sending(server.client) as sent:
            server.tell_to_end()
            wait_for(lambda: not is_ready(server.client))
            refused = send(server.client, "tea", "other")
            assert bodies(server.client, "user.prompt")
        server.errors()
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert sent.result().json()["exit_reason"] == "complete"


@pytest.mark.parametrize(
    ("path", "failure"),
    [
        (f"{HERE}/messages", ""),
        ("/ag-ui", '"type":"RUN_ERROR"'),
        ("/api/chat", '"type":"error"'),
        ("/v1/chat/completions", '"error":{"message":"this process ends'),
    ],
)
def test_a_stream_whose_turn_is_handed_over_says_so_and_ends(
    path: str, failure: str, tmp_path: Path
) -> None:
    body = streamed_messages(WAIT, HERE)[path]
    headers = {"Accept": "text/event-stream"}
    with running(f"sqlite:///{tmp_path}/talk.db") as server:
        with server.client.stream("POST", path, json=body, headers=headers) as response:
            assert response.status_code == 200
            until_recorded(server.client, "react.tool.call")
            server.tell_to_end()
            text = response.read().decode()
        server.errors()
    assert ": the server is shutting down: reconnect with the last id\n" in text
    assert failure in text
    assert "event: react.exit" not in text


def pick(body: Json, *names: str) -> tuple[Json, ...]:
    assert isinstance(body, dict)
    return tuple(body[name] for name in names)


@pytest.mark.campaign
def test_what_a_reload_cuts_off_is_continued_by_the_new_code(tmp_path: Path) -> None:
    source = tmp_path / "guide" / "__init__.py"
    source.parent.mkdir()
    source.write_text(GUIDE.format(seconds=HANG_SECONDS, name="old code"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = Loopline(tmp_path).start(
        "serve", "guide", "--port", f"{port}", "--reload", is_forked=False
    )
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=HANG_SECONDS) as client:
            wait_for(lambda: is_ready(client))
            client.post(f"{HERE}/messages", json={"text": "tea", "background": True})
            wait_for(lambda: bool(bodies(client, "user.prompt")))
            source.write_text(GUIDE.format(seconds=0, name="new code"))
            wait_for(lambda: bool(bodies(client, "react.exit")))
            [answer] = bodies(client, "assistant.completion")
            [end] = bodies(client, "react.exit")
    finally:
        process.kill()
        process.communicate()
    assert (pick(answer, "text"), pick(end, "reason")) == (
        ("the answer of new code",),
        ("complete",),
    )


def is_ready(client: httpx2.Client) -> bool:
    try:
        return client.get("/ready").status_code == 200
    except httpx2.HTTPError:
        return False
