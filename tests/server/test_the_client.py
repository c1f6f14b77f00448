"""The client of a server: the same handle as that of a harness, over connections that are lost."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2
import pytest
from msgspec.json import decode
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from loopline import Attachment, Bundle, LooplineError, tool
from loopline.client import (
    RemoteConversation,
    RemoteServer,
    ServerProblem,
    ServerUnreachable,
    connect,
)
from loopline.client.connection import (
    PrincipalDocument,
    ServerConnection,
    ServerRequest,
    read_lines,
)
from loopline.client.turn_stream import EventStream
from loopline.clock import SystemClock
from loopline.conversations import Conversation, Receipt
from loopline.errors import ConflictError
from loopline.events import Delta
from loopline.harness import DocumentStore
from loopline.models import Json, JsonObject
from loopline.server import ApiKeys, Principal, add_key, app, reading_app
from loopline.testing import FakeClock
from loopline.timeline import Block, Exit
from tests.doors.command import Loopline
from tests.support.cutting_relay import cutting
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, serving


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder: Path = tmp_path_factory.mktemp("client")
    with serving(
        app(SHOP, store=f"sqlite:///{folder}/talk.db", model=EchoModel(pause=0.02))
    ) as address:
        yield address


@pytest.fixture
async def server(url: str) -> AsyncGenerator[RemoteServer]:
    async with connect(url) as opened:
        yield opened


OF_A_HARNESS = {
    "children", "event_order", "export_text", "submit", "submit_resume", "subscribed"
}  # fmt: skip
OF_A_CLIENT = {"approve", "approve_for", "background_calls", "forget", "stop_background_call"}
DIFFERENT = {
    "resume": {"any_bundle", "by"},
    "say": {"key"},
    "schedule": {"output_type"},
    "stream": {"key", "output_type"},
    "stream_text": {"key", "output_type"},
    "stream_resume": {"any_bundle", "by", "output_type"},
}
"""The parameters that a method has in only one of the two handles."""


def test_the_handle_has_the_methods_of_a_conversation_with_the_same_parameters() -> None:
    local, remote = (
        {
            name: [*inspect.signature(value).parameters]
            for name, value in inspect.getmembers(handle, callable)
            if not name.startswith("_")
        }
        for handle in (Conversation, RemoteConversation)
    )
    assert local.keys() - remote.keys() == OF_A_HARNESS
    assert remote.keys() - local.keys() == OF_A_CLIENT
    for name in local.keys() & remote.keys():
        own = DIFFERENT.get(name, set[str]())
        assert set(local[name]) ^ set(remote[name]) == own, name
        assert [item for item in local[name] if item not in own] == [
            item for item in remote[name] if item not in own
        ]


async def test_a_message_is_answered_with_the_result_of_its_turn(server: RemoteServer) -> None:
    talk = server.conversation("said")
    result = await talk.say("tea", max_iterations=5)
    assert (result.answer, result.turn_id, result.exit_reason) == (
        "You said: tea",
        "turn_1",
        "complete",
    )
    again = await talk.say("more", attachments=Attachment("note.txt", b"leaves"))
    assert again.turn_id == "turn_2"
    assert [row.conversation_id for row in await server.conversations(limit=1)] == ["said"]


async def test_a_stream_has_every_block_of_its_turn_and_ends_with_its_exit(
    server: RemoteServer,
) -> None:
    talk = server.conversation("streamed")
    events = [event async for event in talk.stream("tea")]
    blocks = [event for event in events if isinstance(event, Block)]
    assert blocks == list(await talk.blocks())
    assert isinstance(blocks[-1].body, Exit)
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "You said: tea"


async def test_a_question_pauses_the_turn_until_it_is_answered(server: RemoteServer) -> None:
    talk = server.conversation("asked")
    paused = await talk.say("call shop.book name=tea")
    assert paused.exit_reason == "paused"
    [call] = paused.pending
    assert (call.tool, call.arguments) == ("shop.book", {"name": "tea"})
    events = [event async for event in talk.stream_resume({call.call_id: "yes"})]
    assert isinstance(events[-1], Block)
    assert events[-1].type == "react.exit"
    with pytest.raises(LooplineError, match="nothing to resume"):
        await talk.resume()


@tool(effect="write", approve=True)
def order(name: str) -> str:
    """Order something."""
    return f"{name} is ordered"


async def test_a_mode_and_a_rule_are_set_listed_and_revoked_over_http(tmp_path: Path) -> None:
    desk = Bundle(id="desk", tools=[order])
    store = f"sqlite:///{tmp_path}/talk.db"
    with serving(app(desk, store=store, model=EchoModel())) as url:
        async with connect(url) as server:
            talk = server.conversation("c")
            paused = await talk.say("call desk.order name=tea")
            with pytest.raises(LooplineError, match="arguments of desk"):
                await talk.resume({paused.pending[0].call_id: {"approved": True, "arguments": {}}})
            changed: Json = {"approved": True, "arguments": {"name": "milk"}, "rule": {}}
            done = await talk.resume({paused.pending[0].call_id: changed})
            assert "milk is ordered" in done.answer
            [rule] = await talk.rules()
            assert (rule.tool, rule.arguments, rule.scope) == ("desk.order", None, "conversation")
            assert "tea is ordered" in (await talk.say("call desk.order name=tea")).answer
            await talk.revoke_rule(rule.rule_id)
            assert await talk.rules() == []
            with pytest.raises(LooplineError, match="no rule"):
                await talk.revoke_rule(rule.rule_id)
            assert (await talk.say("call desk.order name=tea")).exit_reason == "paused"
            await talk.set_mode("plan")
            assert await talk.mode() == "plan"
            assert "only plans" in (await talk.say("call desk.order name=tea")).answer


async def test_a_running_turn_takes_a_followup_and_is_stopped(server: RemoteServer) -> None:
    talk = server.conversation("busy")
    running = asyncio.create_task(talk.say("call shop.wait name=30"))
    async for event in talk.listen(after=0):
        if isinstance(event, Block) and event.type == "react.tool.call":
            break
    receipt = await talk.followup("also this")
    assert receipt.turn_id == "turn_1"
    assert await talk.recall(receipt)
    with pytest.raises(ConflictError):
        await talk.say("no", when_busy="reject")
    assert await talk.stop()
    assert (await running).exit_reason == "stopped"
    assert not await talk.answer("c1", "late")


async def test_a_message_that_is_recalled_before_its_turn_ends_as_stopped(
    server: RemoteServer,
) -> None:
    talk = server.conversation("recalled")
    first = asyncio.create_task(talk.say("call shop.wait name=30"))
    async for event in talk.listen(after=0):
        if isinstance(event, Block) and event.type == "react.tool.call":
            break
    second = asyncio.create_task(talk.say("later"))
    prompts = list[Block]()
    while len(prompts) < 2:
        prompts = list(await talk.blocks(types="user.prompt"))
    await talk.stop()
    assert [(await each).exit_reason for each in (first, second)] == ["stopped", "stopped"]


async def test_reading_forking_rating_and_exporting_are_those_of_a_harness(
    server: RemoteServer,
) -> None:
    talk = server.conversation("trunk")
    result = await talk.say("tea")
    reading = await talk.read([f"ar:{result.turn_id}.assistant.completion", "ar:turn_9.no"])
    assert next(item.text for item in reading) == "You said: tea"
    assert reading.missing == ["ar:turn_9.no"]
    await talk.feedback(result.turn_id, "ok", text="good")
    assert (await talk.satisfaction()).rate == 1
    fork = await talk.fork(seq=1, name="branch")
    assert [block.type for block in await fork.blocks()][:1] == ["user.prompt"]
    assert (await talk.export())["conversation_id"] == "trunk"
    await fork.forget()
    assert await fork.blocks() == ()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_lost_connection_neither_loses_nor_repeats_a_block(url: str, seed: int) -> None:
    async with (
        cutting(url, cuts=12, most=9_000, seed=seed) as (cut_url, relay),
        connect(cut_url) as server,
    ):
        talk = server.conversation(f"cut-{seed}")
        for text in ("tea", "call shop.wait name=0.1", "more"):
            events = [event async for event in talk.stream(text)]
            assert isinstance(events[-1], Block)
        paused = await talk.say("call shop.book name=tea")
        done = await talk.resume({paused.pending[0].call_id: "yes"})
        assert done.exit_reason == "complete"
        seqs = list[int]()
        async for event in talk.listen(after=0):
            if isinstance(event, Block):
                seqs.append(event.seq)
                if event.type == "react.exit" and event.turn == 4:
                    break
    async with connect(url) as server:
        blocks = await server.conversation(f"cut-{seed}").blocks()
        assert seqs == [block.seq for block in blocks]
        assert sum(block.type == "user.prompt" for block in blocks) == 4
    assert relay.cuts >= 6


async def test_a_key_names_its_user_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key = add_key(keys, Principal(tenant="acme", project="tea", user="ann"))
    served = app(SHOP, store="memory:", model=EchoModel(), auth=ApiKeys.read(keys))
    with serving(served) as address:
        async with connect(address, key) as server:
            talk = server.conversation("c1", user="ann")
            assert (await talk.say("tea")).ok
            assert talk.conversation.tenant == "acme"
            with pytest.raises(LooplineError, match="of the user 'ann'"):
                server.conversation("c1", user="bob")
        with pytest.raises(ServerProblem, match="missing or unknown"):
            await connect(address, "wrong").__aenter__()
        ran = Loopline(tmp_path)("chat", "--server", address)
        assert "missing or unknown: set LOOPLINE_KEY, or name the file" in ran.err
        assert (ran.code, "--key-file" in ran.err) == (1, True)


def test_a_chat_at_a_terminal_is_one_on_a_server(url: str, tmp_path: Path) -> None:
    loopline = Loopline(tmp_path, {"LOOPLINE_KEY": "unused"})
    lines = "call shop.book name=tea\nyes\n/feedback ok\n/fork copy\nmore\n"
    ran = loopline("chat", "shop", "--server", url, "-c", "typed", stdin=lines)
    assert (ran.code, "c1 shop.book asks: Book tea?" in ran.err) == (0, True)
    assert "You said: more" in ran.out
    assert "turn_1: ok" in ran.err
    assert loopline("chat", "bakery", "--server", url, stdin="").code == 2
    assert loopline("chat", stdin="").code == 2


def test_a_new_chat_on_a_server_does_not_get_the_name_of_a_forgotten_conversation(
    url: str, tmp_path: Path
) -> None:
    for _ in range(2):
        ran = Loopline(tmp_path)("chat", "shop", "--server", url, stdin="tea\n")
        assert (ran.code, ran.out.count("You said: tea")) == (0, 1), ran.err
        name = ran.err.partition("conversation ")[2].split()[0]
        assert httpx2.delete(f"{url}/conversations/default/default/{name}").status_code == 200


async def test_a_conversation_whose_name_has_slashes_is_reached(server: RemoteServer) -> None:
    for name in ("team/tea", "/", "a%2Fb", "100%/ä?#"):
        talk = server.conversation(name)
        assert (await talk.say("tea")).answer == "You said: tea"
        assert {block.turn_id for block in await talk.blocks()} == {"turn_1"}
        copy = await talk.fork(seq=1, name=f"{name}/copy")
        assert len(await copy.blocks()) == 1
        await copy.forget()
        assert not await copy.blocks()
    assert not await server.conversation("a/b").blocks()


async def test_a_name_that_urls_cannot_have_is_refused_by_the_client_and_the_server(
    server: RemoteServer, url: str
) -> None:
    reason = "cannot be the name of a conversation: use valid text that is not blank, '.' or '..'"
    for name in (".", "..", " "):
        with pytest.raises(LooplineError, match=reason):
            server.conversation(name)
    talk = server.conversation("forked")
    await talk.say("tea")
    with pytest.raises(LooplineError, match=reason):
        await talk.fork(seq=1, name="..")
    encoded = f"{url}/conversations/default/default/%2e%2e/messages"
    answer = httpx2.post(encoded, json={"text": "tea"})
    assert (answer.status_code, reason in answer.json()["detail"]) == (422, True)


async def test_a_time_that_is_not_a_datetime_is_refused_by_the_client(server: RemoteServer) -> None:
    talk = server.conversation("timed")
    arguments: dict[str, Any] = {"at": "2020-01-01"}
    with pytest.raises(LooplineError, match="at must be a datetime, not '2020-01-01'"):
        await talk.schedule("tea", **arguments)


def test_a_new_chat_on_a_server_without_a_bundle_is_a_wrong_use(tmp_path: Path) -> None:
    session = tmp_path / "session.jsonl"
    session.write_text('{"type":"user","message":{"role":"user","content":"Tea?"}}\n', "utf-8")
    with serving(reading_app(DocumentStore(session))) as url:
        ran = Loopline(tmp_path)("chat", "--server", url)
    assert ran.code == 2
    assert "the server has no bundle: name a conversation with -c" in ran.err


async def test_a_server_that_is_not_there_is_said_after_the_time_for_it() -> None:
    with pytest.raises(ServerUnreachable, match="could not be reached"):
        await connect("http://127.0.0.1:9", retry_seconds=0).__aenter__()


def test_a_key_is_not_sent_where_others_could_read_it() -> None:
    with pytest.raises(LooplineError, match="unencrypted"):
        connect("http://example.org", "key")
    with pytest.raises(LooplineError, match="not an address"):
        connect("example.org")


def other_version(documents: Mapping[str, JsonObject]) -> ServerConnection:
    """A connection to a server of another version, whose answers are these documents by path."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse(documents[scope["path"]])(scope, receive, send)

    client = httpx2.AsyncClient(base_url="http://other", transport=httpx2.ASGITransport(app=answer))
    return ServerConnection(client, SystemClock())


@pytest.mark.parametrize(
    ("principal", "turn", "missing"),
    [
        ({"tenant": "t"}, {}, "project"),
        (None, {"turn_id": "turn_1"}, "answer"),
        (None, {"answer": "", "turn_id": "turn_1", "exit_reason": "complete", "ok": True}, "error"),
    ],
)
async def test_an_answer_of_another_version_is_refused_by_the_field_that_it_lacks(
    principal: JsonObject | None, turn: JsonObject, missing: str
) -> None:
    whole: JsonObject = {"tenant": "t", "project": "p", "user": "u", "roles": [], "bundles": ["b"]}
    connection = other_version({"/me": principal or whole, "/c/turns/turn_1": turn})

    async def ask() -> None:
        async with RemoteServer(connection):
            request = ServerRequest(method="GET", path="/me")
            await EventStream(connection, "/c", request=request, receipt=Receipt(1, 1)).result()

    with pytest.raises(ServerProblem, match=f"[`']{missing}[`']") as refused:
        await ask()
    assert refused.value.action_by == "operator"


@pytest.mark.parametrize("repeatable", [True, False])
async def test_a_request_that_a_proxy_gave_up_is_sent_again_only_if_it_may_be_carried_out_twice(
    repeatable: bool,
) -> None:
    statuses = [504, 200]
    sent = 0

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        sent += 1
        await JSONResponse({"done": True}, statuses.pop(0))(scope, receive, send)

    client = httpx2.AsyncClient(base_url="http://proxy", transport=httpx2.ASGITransport(app=answer))
    connection = ServerConnection(client, FakeClock())
    request = ServerRequest(method="POST", path="/c/schedule", repeatable=repeatable)
    if repeatable:
        assert await connection.read_field(request, "done", bool)
    else:
        with pytest.raises(ServerUnreachable, match="may have been carried out"):
            await connection.send(request)
    assert sent == (2 if repeatable else 1)


async def test_an_answer_is_decoded_no_more_often_for_more_fields_that_must_be_there() -> None:
    fields = ["tenant", "project", "user", "roles", "bundles"]
    whole: JsonObject = {"tenant": "t", "project": "p", "user": "u", "roles": [], "bundles": ["b"]}
    connection = other_version({"/me": whole})
    decodings = 0

    def count(frame: FrameType, event: str, function: object) -> None:
        nonlocal decodings
        decodings += event == "c_call" and function is decode

    counts = list[int]()
    for names in (fields[:1], fields):
        decodings = 0
        sys.setprofile(count)
        try:
            await connection.read(ServerRequest(method="GET", path="/me"), PrincipalDocument, names)
        finally:
            sys.setprofile(None)
        counts.append(decodings)
    assert counts == [2, 2]


async def test_a_long_line_is_read_from_its_pieces() -> None:
    piece, count = b"x" * 1024, 6_000

    async def chunks() -> AsyncIterator[bytes]:
        yield b"a\nb"
        for _ in range(count):
            yield piece
        yield b"c\n\nd\ne"

    lines = [line async for line in read_lines(httpx2.Response(200, content=chunks()))]
    assert [len(line) for line in lines] == [1, 2 + 1024 * count, 0, 1]


async def test_the_conversations_of_a_tenant_with_any_name_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, Principal(tenant="a?b", project="50%25 #1"))
    served = app(SHOP, store="memory:", model=EchoModel(), auth=ApiKeys.read(file))
    with serving(served) as address:
        async with connect(address, key) as opened:
            await opened.conversation("c1").say("tea")
            assert [row.conversation_id for row in await opened.conversations()] == ["c1"]
