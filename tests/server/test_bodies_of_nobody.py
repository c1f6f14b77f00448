"""Nothing of a body is read before its sender is known, and bodies have so much room and no more."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import tracemalloc
from collections.abc import AsyncGenerator, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import httpx2
import pytest
from fastapi import FastAPI
from starlette.types import Message
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Request, TextMessage

from loopline.server import ApiKeys, Principal, ServerSettings, add_key, app
from loopline.server.bundle_host import bundle_host
from loopline.server.guards import UNREAD_BYTES
from loopline.server.problems import RequestProblem
from loopline.server.request_access import FIRST_PACKET_BYTES, body_bytes_limit
from loopline.testing import FakeClock
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, serving

ANN = Principal(tenant="acme", project="tea", user="ann")
HERE = "/conversations/acme/tea/c1"
MB = 1024 * 1024
LARGE = 33 * MB
REFUSED = 8
PIECE = 64 * 1024
ROUTES = [
    f"{HERE}/messages",
    f"{HERE}/messages/multipart",
    f"{HERE}/answers",
    "/v1/chat/completions",
    "/ag-ui",
    "/api/chat",
    "/by-rn",
    "/no/such/route",
]
Headers = Sequence[tuple[bytes, bytes]]


class Sender:
    """A client whose body never ends, and how much of it was read."""

    def __init__(self, path: str, headers: Headers, pieces: int | None = None) -> None:
        """Make the request; with a number of pieces, it waits for ever behind them."""
        self.pieces = pieces
        self.has_sent = asyncio.Event()
        self.read: int = 0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), *headers],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 8_000),
        }

    async def receive(self) -> Message:
        if self.status or (self.pieces is not None and self.read >= self.pieces * PIECE):
            self.has_sent.set()
            await asyncio.Event().wait()
        self.read += PIECE
        return {"type": "http.request", "body": b" " * PIECE, "more_body": True}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode().lower(): value.decode() for name, value in message["headers"]
            }
        else:
            self.body += message["body"]


@pytest.fixture
async def keys(tmp_path: Path) -> tuple[ApiKeys, str]:
    file = tmp_path / "keys.json"
    key = await asyncio.to_thread(add_key, file, ANN)
    return await asyncio.to_thread(ApiKeys.read, file), key


@asynccontextmanager
async def opened(auth: ApiKeys, settings: ServerSettings | None = None) -> AsyncGenerator[FastAPI]:
    served = app(SHOP, store="memory:", model=EchoModel(), auth=auth, settings=settings)
    await bundle_host(served).open()
    yield served
    await bundle_host(served).close()


def announced(token: str = "", length: int = LARGE) -> Headers:
    headers = [(b"content-length", b"%d" % length), (b"content-type", b"application/json")]
    return [*headers, (b"authorization", f"Bearer {token}".encode())] if token else headers


CHUNKED = [(b"transfer-encoding", b"chunked"), (b"content-type", b"application/json")]
UNKNOWN_SENDERS = [
    announced(),
    announced("llk_0000000000000000_" + "x" * 43),
    CHUNKED,
    [(b"content-type", b"application/json")],
]


@pytest.mark.parametrize(
    "headers", UNKNOWN_SENDERS, ids=["none", "wrong", "chunked", "unannounced"]
)
async def test_nothing_of_a_body_is_read_whose_sender_is_unknown(
    headers: Headers, keys: tuple[ApiKeys, str]
) -> None:
    is_announced = len(headers) > 1
    async with opened(keys[0]) as served:
        for path in ROUTES:
            sender = Sender(path, headers)
            await served(sender.scope, sender.receive, sender.send)
            assert bundle_host(served).body_bytes.count == 0, path
            if "no/such" in path:
                assert sender.status == 404
            else:
                assert sender.status in ((401,) if is_announced else (401, 411)), path
            assert sender.read <= (0 if is_announced else PIECE), path
            if is_announced:
                assert sender.headers["connection"] == "close", path
            if sender.status == 401:
                assert sender.headers["www-authenticate"].startswith("Bearer"), path
                assert "action_by" in json.loads(sender.body) or path.startswith("/v1/"), path


async def test_a_small_body_of_nobody_leaves_the_connection_open(keys: tuple[ApiKeys, str]) -> None:
    async with opened(keys[0]) as served:
        sender = Sender(ROUTES[0], announced(length=UNREAD_BYTES))
        await served(sender.scope, sender.receive, sender.send)
    assert (sender.status, sender.read, "connection" in sender.headers) == (401, 0, False)


async def test_bodies_have_so_much_room_of_all_and_half_of_it_for_one_user(
    keys: tuple[ApiKeys, str],
) -> None:
    settings = ServerSettings(body_bytes=4 * PIECE)
    async with opened(keys[0], settings) as served, AsyncExitStack() as stack:
        room = bundle_host(served).body_bytes
        waiting = [Sender(ROUTES[0], announced(keys[1], 4 * PIECE), pieces=3) for _ in range(2)]
        for sender in waiting:
            task = asyncio.create_task(served(sender.scope, sender.receive, sender.send))
            stack.push_async_callback(ended, task)
        await asyncio.gather(*(sender.has_sent.wait() for sender in waiting))
        third = Sender(ROUTES[0], announced(keys[1], 3 * PIECE))
        await served(third.scope, third.receive, third.send)
        assert (third.status, third.headers["retry-after"], third.read) == (429, "2", 3 * PIECE)
        assert room.count == 6 * PIECE
    assert room.count == 0


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_a_body_that_arrives_byte_by_byte_is_refused() -> None:
    clock = FakeClock()

    class SlowSender(Sender):
        async def receive(self) -> Message:
            self.read += 1
            await clock.sleep(10)
            return {"type": "http.request", "body": b" ", "more_body": True}

    served = app(SHOP, store="memory:", model=EchoModel(), clock=clock)
    await bundle_host(served).open()
    sender: Sender = SlowSender("/by-rn", announced())
    await served(sender.scope, sender.receive, sender.send)
    assert (sender.status, sender.read) == (408, 4)
    await bundle_host(served).close()


OPENING = b"POST /no/such/route HTTP/1.1\r\nHost: localhost\r\n"


HALVES = {
    "nothing": (b"", b""),
    "half a head": (b"POST /by-rn HTTP/1.1\r\nHos", b""),
    "a slow head": (OPENING + b"X: ", b"a"),
    "a slow body": (OPENING + b"Content-Length: 60000\r\n\r\n", b"x"),
    "an endless body": (
        OPENING + b"Transfer-Encoding: chunked\r\n\r\n",
        b"8000\r\n%b\r\n" % (b"x" * 0x8000),
    ),
}


def test_a_connection_with_half_a_request_is_closed(url: str) -> None:
    with ThreadPoolExecutor(len(HALVES)) as threads:  # each waits for the limits of the server
        sent = {
            name: threads.submit(sent_until_closed, urlsplit(url), *half)
            for name, half in HALVES.items()
        }
    assert [name for name, bytes_sent in sent.items() if bytes_sent.result() >= 64 * MB] == []


def sent_until_closed(place: SplitResult, begin: bytes, part: bytes) -> int:
    """Return how many bytes were sent behind the beginning of a request until the server closed."""
    sent = 0
    with socket.create_connection((place.hostname, place.port), timeout=0.2) as connection:
        connection.sendall(begin)
        while sent < 64 * MB:
            with suppress(TimeoutError, ConnectionError):
                if not connection.recv(PIECE):
                    break
            try:
                connection.sendall(part)
            except OSError:
                break
            sent += len(part)
    return sent


def test_the_room_for_bodies_is_given_back() -> None:
    room = body_bytes_limit(100, is_shared=True)
    ann, bob, eve = (("t", "p", user) for user in ("ann", "bob", "eve"))
    room.add(ann, 50)
    with pytest.raises(RequestProblem, match="a user may send 50 bytes at once") as refused:
        room.add(ann, 1)
    room.add(bob, 50)
    with pytest.raises(RequestProblem, match="100 bytes are being received already") as full:
        room.add(eve, 1)
    assert (refused.value.status, full.value.status) == (429, 503)
    assert full.value.headers["Retry-After"]
    room.subtract(ann, 50)
    room.add(eve, 50)
    assert room.count == 100


@pytest.fixture
def url(tmp_path: Path) -> Generator[str]:
    auth = ApiKeys.read(tmp_path / "keys.json")
    with serving(app(SHOP, store="memory:", model=EchoModel(), auth=auth)) as url:
        yield url


def test_a_client_that_sends_a_large_body_with_a_wrong_key_gets_its_answer(url: str) -> None:
    headers = {"Authorization": "Bearer llk_no", "Content-Type": "application/json"}
    with httpx2.Client(base_url=url, timeout=60) as client:
        answer = client.post(ROUTES[0], content=b" " * LARGE, headers=headers)
        assert answer.status_code == 401
        assert client.get("/health").status_code == 200


class Socket:
    """A WebSocket to the server, frame by frame."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._connection = socket.create_connection((place.hostname, place.port), timeout=60)
        self._protocol = WSConnection(ConnectionType.CLIENT)
        target = "/socket.io/?EIO=4&transport=websocket"
        self._send(self._protocol.send(Request(host="localhost", target=target)))
        self.received = list[object]()
        self._until(AcceptConnection)

    def _send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def send(self, text: str) -> None:
        with suppress(OSError):
            self._send(self._protocol.send(TextMessage(data=text)))

    def _until(self, kind: type) -> None:
        while not any(isinstance(event, kind) for event in self.received):
            data = self._connection.recv(PIECE)
            assert data, f"the connection ended before {kind}"
            self._protocol.receive_data(data)
            self.received.extend(self._protocol.events())

    def close_code(self) -> int:
        """Wait until the server closes the socket, and return its code."""
        self._until(CloseConnection)
        self._connection.close()
        return next(event.code for event in self.received if isinstance(event, CloseConnection))


def test_a_socket_that_does_not_authenticate_may_send_little(url: str) -> None:
    sending = Socket(url)
    sending.send("4" + "x" * FIRST_PACKET_BYTES)
    assert sending.close_code() in (1008, 1009)


def test_a_socket_that_does_not_authenticate_is_closed(url: str) -> None:
    assert Socket(url).close_code() == 1008


def test_a_polling_socket_that_does_not_authenticate_may_send_little_and_is_ended(url: str) -> None:
    with httpx2.Client(base_url=url, timeout=60) as client:
        opening = client.get("/socket.io/?EIO=4&transport=polling").text
        sid = json.loads(opening[1:])["sid"]
        place = f"/socket.io/?EIO=4&transport=polling&sid={sid}"
        assert client.post(place, content="4" * (FIRST_PACKET_BYTES + 1)).status_code == 413
        assert client.get(place).text == "1"
        assert client.post(place, content="40").status_code == 400


async def test_a_body_that_is_not_json_leaves_memory_at_once(keys: tuple[ApiKeys, str]) -> None:
    auth, key = keys
    content = b" " * MB
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    async with (
        opened(auth) as served,
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=served), base_url="http://localhost", headers=headers
        ) as client,
    ):
        await client.post(f"{HERE}/messages", content=content)  # what is made only once
        gc.collect()
        gc.disable()  # it may run much later than this
        tracemalloc.start()
        try:
            for _ in range(REFUSED):
                answer = await client.post(f"{HERE}/messages", content=content)
                assert answer.status_code == 422
            left, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert left < REFUSED * MB // 2
