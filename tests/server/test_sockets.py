"""Clients of KDCube: python-socketio's client sends messages and receives envelopes."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import pytest

from loopline.models import Json
from loopline.server import ApiKeys, Principal, ServerSettings, add_key, app
from loopline.server.bundle_host import bundle_host
from loopline.server.event_streams import EarlyEvents
from loopline.server.request_access import SocketEntry
from loopline.server.socket_io import QUEUED_PACKETS, SocketHost
from tests.server.test_openai_clients import TalkativeModel
from tests.support.live_server import SHOP, in_process, serving
from tests.support.waiting import until

socketio: Any = import_module("socketio")
ANN = Principal(tenant="acme", project="tea", user="ann")
BOB = Principal(tenant="acme", project="tea", user="bob")
Envelope = Mapping[str, Any]
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}
"""The headers of a request that opens a WebSocket."""
CLOSED_EACH_TIME = httpx2.Limits(max_keepalive_connections=0)


class Page:
    """A page with a socket, and what it received."""

    def __init__(self) -> None:
        self.socket: Any = socketio.AsyncClient(reconnection=False)
        self.received: asyncio.Queue[tuple[str, Envelope]] = asyncio.Queue()
        self.socket.on("*", self._take)

    async def _take(self, event: str, data: Envelope) -> None:
        await self.received.put((event, data))

    async def call(self, event: str, body: Json, *files: bytes) -> dict[str, Any]:
        """Send an event, and return its acknowledgement."""
        arguments = (body, *files) if files else body
        answer: dict[str, Any] = await self.socket.call(event, arguments, timeout=20)
        return answer

    async def until(self, *names: str) -> list[tuple[str, Envelope]]:
        """Return what is received up to an event of one of these names."""
        events = list[tuple[str, Envelope]]()
        while not events or events[-1][0] not in names:
            events.append(await asyncio.wait_for(self.received.get(), 20))
        return events


def prompt(text: str, conversation: str = "", kind: str = "prompt", **more: Json) -> Json:
    """The submission that a page sends."""
    event: Json = {"type": f"event.user.{kind}", "payload": {"event": {"text": text}}, **more}
    return {"external_events": [event], "conversation_id": conversation}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, Mapping[str, str]]]:
    folder: Path = tmp_path_factory.mktemp("server")
    file = folder / "keys.json"
    keys = {"ann": add_key(file, ANN), "bob": add_key(file, BOB)}
    server = app(
        SHOP,
        store=f"sqlite:///{folder}/talk.db",
        auth=ApiKeys.read(file),
        model=TalkativeModel(),
        settings=ServerSettings(keep_alive_seconds=1),
    )
    with serving(server) as url:
        yield url, keys


@asynccontextmanager
async def page(served: tuple[str, Mapping[str, str]], who: str = "ann") -> AsyncGenerator[Page]:
    url, keys = served
    opened = Page()
    auth = {"bearer_token": keys[who], "user_session_id": "s1", "tenant": "acme", "project": "tea"}
    await opened.socket.connect(url, auth=auth, transports=["websocket"], wait_timeout=20)
    try:
        yield opened
    finally:
        await opened.socket.disconnect()


async def test_a_message_is_acknowledged_and_its_events_come_in_envelopes(
    served: tuple[str, Mapping[str, str]],
) -> None:
    async with page(served) as opened:
        [(name, session)] = await opened.until("session_info")
        assert (name, session["user_id"], session["session_id"]) == ("session_info", "ann", "s1")
        accepted = await opened.call("chat_message", prompt("call shop.wait name=0", "talk"))
        assert (accepted["ok"], accepted["status"]) == (True, "processing_started")
        assert (accepted["conversation_id"], accepted["turn_id"]) == ("talk", "turn_1")
        events = await opened.until("chat_complete")
    assert events[0][0] == "chat_start"
    assert {"chat_step", "chat_delta"} <= {kind for kind, _ in events}
    assert {envelope["conversation"]["conversation_id"] for _, envelope in events} == {"talk"}
    assert {envelope["service"]["user"] for _, envelope in events} == {"ann"}


async def test_a_page_that_comes_back_gets_the_events_behind_the_last_one(
    served: tuple[str, Mapping[str, str]],
) -> None:
    async with page(served) as opened:
        await opened.call("chat_message", prompt("tea", "back"))
        live = await opened.until("chat_complete")
    stored = [event for event in live if "extra" in event[1] and event[1]["extra"]]
    second = stored[1][1]["extra"]["id"]
    async with page(served) as again:
        await again.until("session_info")
        await again.call("chat_listen", {"conversation_id": "back", "after": second})
        rest = await again.until("chat_complete")
    assert rest == stored[2:]


async def test_two_pages_of_a_user_see_one_turn(served: tuple[str, Mapping[str, str]]) -> None:
    async with page(served) as first, page(served) as second:
        await first.call("chat_message", prompt("tea", "shared"))
        await first.until("chat_complete")
        await second.call("chat_listen", {"conversation_id": "shared"})
        await second.until("chat_complete")
        await first.call("chat_message", prompt("more", "shared"))
        heard = [event for page_ in (first, second) for event in await page_.until("chat_complete")]
    assert [name for name, _ in heard].count("chat_complete") == 2


async def test_a_followup_joins_a_running_turn_and_a_steer_without_a_text_stops_it(
    served: tuple[str, Mapping[str, str]],
) -> None:
    async with page(served) as opened:
        await opened.call("chat_message", prompt("call shop.wait name=30", "busy"))
        await opened.until("chat_step")
        status = await opened.call("conv_status.get", {"conversation_id": "busy"})
        assert status["state"] == "in_progress"
        joined = await opened.call("chat_message", prompt("more", "busy", "followup"))
        assert (joined["status"], joined["turn_id"]) == ("followup_accepted", "turn_1")
        stopped = await opened.call("chat_message", prompt("", "busy", "steer"))
        assert stopped == {"ok": True, "done": True}
        await opened.until("chat_error", "chat_complete")


async def test_a_question_is_answered(served: tuple[str, Mapping[str, str]]) -> None:
    async with page(served) as opened:
        await opened.call("chat_message", prompt("call shop.book name=tea", "asked"))
        await opened.until("conv_status")
        body: Json = {"conversation_id": "asked", "values": {"c1": "at noon"}}
        assert (await opened.call("chat_answer", body))["ok"] is True
        events = await opened.until("chat_complete")
    assert any("at noon" in str(envelope) for _, envelope in events)


async def test_a_page_runs_a_tool_that_it_brings(served: tuple[str, Mapping[str, str]]) -> None:
    async with page(served) as opened:
        submission = prompt("call where unit=m", "located")
        assert isinstance(submission, dict)
        refused = await opened.call("chat_message", {**submission, "tools": [{"name": 1}]})
        assert (refused["ok"], "tools.0.name" in refused["error"]) == (False, True)
        await opened.call("chat_message", {**submission, "tools": [{"name": "where"}]})
        waiting = await opened.until("conv_status")
        assert any('"where"' in json.dumps(envelope) for _, envelope in waiting)
        body: Json = {"conversation_id": "located", "values": {"c1": {"city": "Rome"}}}
        assert (await opened.call("chat_answer", body))["ok"] is True
        events = await opened.until("chat_complete")
    assert any("Rome" in str(envelope) for _, envelope in events)


async def test_files_come_as_bytes_behind_the_message(
    served: tuple[str, Mapping[str, str]],
) -> None:
    attached: Json = {
        "type": "event.user.attachment.file",
        "payload": {"event": {"filename": "tea.md"}},
    }
    said: Json = {"type": "event.user.prompt", "payload": {"event": {"text": "look"}}}
    message: Json = {"external_events": [said, attached], "conversation_id": "files"}
    async with page(served) as opened:
        assert (await opened.call("chat_message", message, b"# Tea\n"))["ok"] is True
        await opened.until("chat_complete")
        refused = await opened.call("chat_message", message)
        assert (refused["ok"], refused["status"]) == (False, 422)
        older: Json = {"message": {"message": "tea", "conversation_id": "files"}}
        assert (await opened.call("chat_message", older))["turn_id"] == "turn_2"


async def test_a_socket_has_the_rights_of_its_token(served: tuple[str, Mapping[str, str]]) -> None:
    url, keys = served
    async with page(served) as opened:
        await opened.call("chat_message", prompt("my secret", "private"))
        await opened.until("chat_complete")
    async with page(served, "bob") as other:
        for event in ("chat_listen", "conv_status.get", "chat_stop", "chat_answer"):
            body: Json = {"conversation_id": "private", "values": {"c1": "yes"}}
            refused = await other.call(event, body)
            assert (refused["ok"], refused["status"]) == (False, 422)
            assert "secret" not in str(refused)
    wrong = [
        {},
        {"bearer_token": keys["ann"][:-4] + "AAAA"},
        {"bearer_token": keys["ann"], "tenant": "other"},
        {"bearer_token": keys["ann"], "project": "coffee"},
    ]
    for auth in wrong:
        client: Any = socketio.AsyncClient(reconnection=False)
        with pytest.raises(socketio.exceptions.ConnectionError):
            await client.connect(url, auth=auth, transports=["websocket"], wait_timeout=20)


def test_a_socket_that_never_reads_is_not_filled_and_reads_everything_later() -> None:
    served = app(SHOP, store="memory:", model=TalkativeModel())
    talk = "/conversations/default/default/long"
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        for number in range(30):
            client.post(f"{talk}/messages", json={"text": f"message {number}"})
        opening = client.get("/socket.io/?EIO=4&transport=polling").text
        place = f"/socket.io/?EIO=4&transport=polling&sid={json.loads(opening[1:])['sid']}"
        listening = json.dumps(["chat_listen", {"conversation_id": "long"}])
        client.post(place, content="40")
        client.get(place)
        client.post(place, content=f"421{listening}")
        sockets = served.state.sockets
        assert isinstance(sockets, SocketHost)
        [sid] = sockets.sids
        while sockets.unread_packets(sid) < QUEUED_PACKETS:
            time.sleep(0.01)
        time.sleep(0.2)
        assert sockets.unread_packets(sid) <= QUEUED_PACKETS + 1
        completed = 0
        while completed < 30:
            completed += client.get(place).text.count('"chat_complete"')


def living_entries() -> int:
    """Count the WebSockets of this process that have not authenticated and are still in memory."""
    gc.collect()
    return sum(type(item) is SocketEntry for item in gc.get_objects())


def test_web_sockets_that_name_a_connection_that_does_not_exist_leave_nothing_in_memory() -> None:
    strangers = 50
    with (
        serving(app(SHOP, store="memory:", model=TalkativeModel())) as url,
        httpx2.Client(base_url=url, timeout=30, limits=CLOSED_EACH_TIME) as client,
    ):
        before = living_entries()
        for number in range(strangers):
            place = f"/socket.io/?EIO=4&transport=websocket&sid=stranger-{number}"
            assert client.get(place, headers=UPGRADE).status_code == 403
        assert living_entries() < before + strangers // 10  # the last ones may just be ending


@pytest.mark.parametrize("transport", ["websocket", "polling"])
def test_a_page_of_another_server_opens_no_socket_on_this_machine(transport: str) -> None:
    headers = {"Origin": "https://evil.example", **(UPGRADE if transport == "websocket" else {})}
    with serving(app(SHOP, store="memory:", model=TalkativeModel())) as url:
        place = f"{url}/socket.io/?EIO=4&transport={transport}"
        assert httpx2.get(place, headers=headers).status_code == 403
        headers["Origin"] = "http://localhost:3000"
        assert httpx2.get(place, headers=headers).status_code == 403
        headers["Origin"] = url
        if transport == "polling":
            assert httpx2.get(place, headers=headers).status_code == 200


@pytest.mark.parametrize("event", ["connect", "disconnect"])
async def test_an_event_named_like_one_of_the_library_takes_no_slot_and_frees_none(
    event: str, tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys.json", ANN)
    auth = ApiKeys.read(tmp_path / "keys.json")
    server = app(SHOP, store="memory:", auth=auth, model=TalkativeModel())
    with serving(server) as url:
        async with page((url, {"ann": key})) as opened:
            for _ in range(3):
                await opened.socket.emit(event, ({}, {"token": key}))
            await opened.socket.emit("ping", {})
            await opened.until("pong")
            assert bundle_host(server).listeners.count == 1
            assert (await opened.call("chat_message", prompt("tea")))["ok"] is True
        await until(lambda: bundle_host(server).listeners.count == 0)


class HeldAuthenticator:
    """Takes every token for one of ann, once it may answer."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked = 0

    async def authenticate(self, token: str) -> Principal:
        del token
        self.asked += 1
        await self.may_answer.wait()
        return ANN


async def polling_place(client: httpx2.AsyncClient) -> str:
    """Open a connection, and return the path of its packets."""
    opening = (await client.get("/socket.io/?EIO=4&transport=polling")).text
    return f"/socket.io/?EIO=4&transport=polling&sid={json.loads(opening[1:])['sid']}"


async def test_a_connection_that_ends_while_it_authenticates_leaves_no_slot_taken() -> None:
    auth = HeldAuthenticator()
    served = app(SHOP, store="memory:", auth=auth, model=TalkativeModel())
    async with in_process(served) as client:
        place = await polling_place(client)
        connecting = asyncio.create_task(client.post(place, content='40{"token":"t"}'))
        await until(lambda: auth.asked == 1)
        await client.post(place, content="1")
        auth.may_answer.set()
        await connecting
        assert bundle_host(served).listeners.count == 0
        assert served.state.sockets.sids == []


async def test_a_handshake_with_a_malformed_session_id_leaves_no_slot_taken() -> None:
    served = app(SHOP, store="memory:", model=TalkativeModel())
    async with in_process(served) as client:
        place = await polling_place(client)
        await client.post(place, content='40{"user_session_id":1}')
        assert "user_session_id must be a text" in (await client.get(place)).text
        assert bundle_host(served).listeners.count == 0


def living_subscriptions() -> int:
    gc.collect()
    return sum(type(item) is EarlyEvents for item in gc.get_objects())


async def test_a_socket_that_ends_while_its_event_waits_is_sent_nothing_more() -> None:
    auth = HeldAuthenticator()
    served = app(SHOP, store="memory:", auth=auth, model=TalkativeModel())
    async with in_process(served) as client:
        auth.may_answer.set()
        await bundle_host(served).open()
        talk = (
            bundle_host(served)
            .harnesses[0]
            .conversation("talk", user="ann", project="tea", tenant="acme")
        )
        await talk.say("tea")
        place = await polling_place(client)
        await client.post(place, content='40{"token":"t"}')
        auth.may_answer.clear()
        asked = auth.asked
        before = living_subscriptions()
        await client.post(place, content='42["chat_listen",{"conversation_id":"talk"}]')
        await until(lambda: auth.asked > asked)
        await client.post(place, content="1")
        assert served.state.sockets.sids == []
        auth.may_answer.set()
        await asyncio.sleep(0.1)
        assert living_subscriptions() == before


async def test_of_two_streams_of_a_conversation_that_a_socket_asks_for_at_once_one_is_sent() -> (
    None
):
    auth = HeldAuthenticator()
    served = app(SHOP, store="memory:", auth=auth, model=TalkativeModel())
    async with in_process(served) as client:
        auth.may_answer.set()
        await bundle_host(served).open()
        [harness] = bundle_host(served).harnesses
        await harness.conversation("talk", user="ann", project="tea", tenant="acme").say("tea")
        place = await polling_place(client)
        await client.post(place, content='40{"token":"t"}')
        auth.may_answer.clear()
        asked, before = auth.asked, living_subscriptions()
        listen = '42["chat_listen",{"conversation_id":"talk"}]'
        await client.post(place, content=f"{listen}\x1e{listen}")
        await until(lambda: auth.asked == asked + 2)
        auth.may_answer.set()  # the first stream is replaced before it has begun
        packets = ""
        while "chat_complete" not in packets:
            packets += (await client.get(place)).text
        await asyncio.sleep(0.1)
        assert packets.count('42["chat_start"') == packets.count('42["chat_complete"') == 1
        assert living_subscriptions() == before + 1
        await client.post(place, content="1")
        await until(lambda: living_subscriptions() == before)
