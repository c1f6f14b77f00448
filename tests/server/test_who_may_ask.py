"""Who may ask: keys, tenants, users, this machine, rates and sizes; and how a server ends."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest

from loopline import LooplineError
from loopline.models import Json
from loopline.server import ApiKeys, Principal, ServerSettings, add_key, app, make_server
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, serving

ANN = Principal(tenant="acme", project="tea", user="ann")
OTHERS = {
    "another user": Principal(tenant="acme", project="tea", user="bob"),
    "another project": Principal(tenant="acme", project="coffee", user="ann"),
    "another tenant": Principal(tenant="other", project="tea", user="ann"),
    "privileged elsewhere": Principal(
        tenant="other", project="tea", user="ann", roles=frozenset({"privileged"})
    ),
}
EVER = {"start": "2020-01-01T00:00:00Z", "end": "2100-01-01T00:00:00Z"}
SECRET = "the secret of ann"


@dataclass(frozen=True, slots=True)
class Served:
    """A server with keys, and a client without one."""

    client: httpx2.Client
    keys: dict[str, str]

    def send(self, who: str, method: str, path: str, body: Json = None) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.keys[who]}"} if who in self.keys else {}
        return self.client.request(method, path, json=body, headers=headers)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder: Path = tmp_path_factory.mktemp("server")
    file = folder / "keys.json"
    keys = {name: add_key(file, principal) for name, principal in {"ann": ANN, **OTHERS}.items()}
    past = datetime.now(UTC) - timedelta(seconds=1)
    keys["expired"] = add_key(file, ANN, past)
    keys["made up"] = keys["ann"][:-4] + "AAAA"
    keys["no key"] = "eyJhbGciOiJub25lIn0.e30."
    keys["privileged"] = add_key(
        file, Principal(tenant="acme", project="tea", user="boss", roles=frozenset({"privileged"}))
    )
    settings = ServerSettings(requests_per_minute=100_000)
    server = app(
        SHOP,
        store=f"sqlite:///{folder}/talk.db",
        auth=ApiKeys.read(file),
        settings=settings,
        model=EchoModel(),
    )
    with serving(server) as url, httpx2.Client(base_url=url, timeout=30) as client:
        opened = Served(client, keys)
        for text in (SECRET, "call shop.draw name=secret", "call shop.book name=tea"):
            sent = opened.send("ann", "POST", f"{OF_ANN}/c1/messages", {"text": text})
            assert sent.status_code == 200, sent.text
        yield opened


OF_ANN = "/conversations/acme/tea"


def routes(tenant: str, project: str) -> list[tuple[str, str, Json]]:
    """Every route about a conversation, with a body that its owner could send."""
    here = f"/conversations/{tenant}/{project}"
    talk = f"{here}/c1"
    return [
        ("GET", here, None),
        ("POST", f"{here}/fetch", {"conversation_id": "c1"}),
        ("POST", f"{here}/feedback/conversations-in-period", {**EVER, "include_turns": True}),
        ("POST", f"{talk}/fetch", {"materialize": True}),
        ("GET", f"{talk}/status", None),
        ("GET", f"{talk}/details", None),
        ("DELETE", talk, None),
        ("POST", f"{talk}/turns/turn_1/feedback", {"reaction": "ok"}),
        ("POST", f"{talk}/turns-with-feedbacks", {}),
        ("GET", f"{talk}/satisfaction", None),
        ("GET", f"{talk}/blocks", None),
        ("GET", f"{talk}/window", None),
        ("GET", f"{talk}/outline", None),
        ("GET", f"{talk}/file?seq=1", None),
        ("GET", f"{talk}/turns/turn_1/rounds/1/prompt", None),
        ("GET", f"{talk}/prompt", None),
        ("POST", f"{talk}/turns/turn_1/rounds/1/rerun", {}),
        ("GET", f"{talk}/models", None),
        ("GET", f"{talk}/forks", None),
        ("GET", f"{talk}/page", None),
        ("GET", f"{talk}/approvals", None),
        ("GET", f"{talk}/mode", None),
        ("POST", f"{talk}/mode", {"mode": "plan"}),
        ("DELETE", f"{talk}/rules/rule_1", None),
        (
            "POST",
            f"{here}/later/schedule",
            {"text": "later", "delay": 60},
        ),  # begins one of the sender
        ("GET", f"{talk}/schedule", None),
        ("DELETE", f"{talk}/schedule/s1", None),
        ("GET", f"{talk}/export", None),
        ("POST", f"{talk}/answers", {"values": {"c2": "yes"}}),
        ("POST", f"{talk}/interrupts", {"text": "More."}),
        ("GET", f"{talk}/turns/turn_2", None),
        ("GET", f"{talk}/background", None),
        ("POST", f"{talk}/background/c1/stop", None),
        ("POST", f"{talk}/stop", None),
        ("POST", f"{talk}/retry", None),
        ("POST", f"{talk}/recall", {"seq": 1, "turn_id": "turn_1"}),
        ("POST", f"{talk}/fork", {"seq": 1}),
        *[("POST", f"{talk}/read", reading(ref)) for ref in REFS],
    ]


def reading(ref: str) -> Json:
    """The body that reads a ref."""
    return {"refs": [ref]}


REFS = (
    "ar:turn_1.user.prompt",
    "ar:turn_1.assistant.completion",
    "tc:turn_2.c1.result",
    "fi:turn_2.outputs/secret.html@1",
    "artifact:conv.timeline.v1",
    "so:sources_pool[1]",
    "cv:c1/ar:turn_1.user.prompt",
    "su:turn_1.conv.range.summary",
    "sk:shop.secret",
    "ks:secret.md",
)
NAMES = (
    "ef:acme:tea:chatbot:message:ann:c1:turn_1:user:user.prompt.1",
    "ef:acme:tea:chatbot:message:ann:c1:turn_1:assistant:assistant.completion.1",
    "ef:acme:tea:chatbot:file:ann:c1:turn_2:assistant:1/secret.html",
    "ef:acme:tea:chatbot:file:ann:c1:turn_2:assistant:1/own.txt",
)
SENDERS = [*OTHERS, "expired", "made up", "no key", "nobody"]


def test_nobody_reaches_what_belongs_to_another(served: Served) -> None:
    before = served.send("ann", "GET", f"{OF_ANN}/c1/export").json()
    tried, passed = 0, list[tuple[str, str, str]]()
    places = [("acme", "tea"), ("other", "tea")]
    for who, (tenant, project) in itertools.product(SENDERS, places):
        for method, path, body in routes(tenant, project):
            response = served.send(who, method, path, body)
            tried += 1
            if shows(response) or (response.is_success and "/c1" in path and method != "GET"):
                passed.append((who, method, path))
            assert response.status_code < 500
    for who, name in itertools.product(SENDERS, NAMES):
        response = served.send(who, "POST", "/by-rn", {"rn": name})
        tried += 1
        if response.is_success:
            passed.append((who, "POST", name))
    assert passed == []
    assert tried >= 350
    assert served.send("ann", "GET", f"{OF_ANN}/c1/export").json() == before


def protocol_routes() -> list[tuple[str, str, Json]]:
    """The routes without a tenant in their path, with requests that name a conversation of ann."""
    named: Json = {"conversation_id": "c1"}
    message: dict[str, Json] = {"role": "user", "content": "What did I say?"}
    spoken: Json = {"role": "user", "parts": [{"type": "text", "text": "What did I say?"}]}
    part: Json = {"state": "output-available", "toolCallId": "c2", "output": "yes"}
    approved: Json = {"role": "assistant", "parts": [part]}
    resumed: Json = {"interruptId": "c2", "status": "resolved", "payload": "yes"}
    return [
        ("POST", "/v1/chat/completions", {"messages": [message], "metadata": named}),
        ("POST", "/v1/responses", {"input": "What did I say?", "conversation": "c1"}),
        ("POST", "/ag-ui", {"threadId": "c1", "runId": "r1", "messages": []}),
        ("POST", "/ag-ui", {"threadId": "c1", "runId": "r1", "messages": [{"id": "m", **message}]}),
        ("POST", "/ag-ui", {"threadId": "c1", "runId": "r1", "messages": [], "resume": [resumed]}),
        ("POST", "/api/chat", {"id": "c1", "messages": [spoken]}),
        ("POST", "/api/chat", {"id": "c1", "messages": [approved]}),
        ("GET", "/api/chat/c1/stream", None),
        ("GET", "/v1/models", None),
        ("GET", "/v1/models/shop", None),
    ]


def test_a_name_in_a_protocol_of_others_is_one_of_the_sender(served: Served) -> None:
    before = served.send("ann", "GET", f"{OF_ANN}/c1/export").json()
    for who, (method, path, body) in itertools.product(SENDERS, protocol_routes()):
        response = served.send(who, method, path, body)
        assert response.status_code in ((200, 204, 422) if who in OTHERS else (401,)), (who, path)
        assert SECRET not in response.text
    assert served.send("ann", "GET", f"{OF_ANN}/c1/export").json() == before
    own = {f"/conversations/{at.tenant}/{at.project}/c1": who for who, at in OTHERS.items()}
    forgotten = [served.send(who, "DELETE", path).is_success for path, who in own.items()]
    assert forgotten == [True] * len(own)


def test_the_id_of_a_response_of_others_continues_nothing(served: Served) -> None:
    first = served.send("ann", "POST", "/v1/responses", {"input": "one", "conversation": "own"})
    body: Json = {"input": "two", "previous_response_id": first.json()["id"]}
    for who in OTHERS:
        response = served.send(who, "POST", "/v1/responses", body)
        assert response.status_code == 400
    assert served.send("ann", "POST", "/v1/responses", body).json()["id"] == "resp_own-turn_2"


OPEN = {
    "/health",
    "/ready",
    "/metrics",
    "/me",
    "/files",
    "/by-rn",
    "/stored",
    "/work",
    "/approvals",
}
"""Routes that are about no conversation, or have tests of their own."""
BEGIN = ("messages", "messages/multipart", "events", "events/vercel")
"""Routes that begin a conversation of the sender, if there is none of that name."""


def test_every_route_of_the_server_is_probed(served: Served) -> None:
    document = served.send("ann", "GET", "/openapi.json").json()
    probed = {(method, path) for method, path, _ in routes("acme", "tea") + protocol_routes()}
    missing = [
        (method, path)
        for path, methods in document["paths"].items()
        for method in methods
        if path not in OPEN
        and not path.endswith(("/messages", "/messages/multipart", "/events", "/events/{dialect}"))
        and not any(sent == method.upper() and is_of(path, at) for sent, at in probed)
    ]
    assert missing == []


def is_of(route: str, path: str) -> bool:
    """Whether a path, without its query, is one of a route."""
    named = path.partition("?")[0]
    return re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route), named) is not None


def test_who_is_of_another_place_neither_sends_nor_listens(served: Served) -> None:
    before = served.send("ann", "GET", f"{OF_ANN}/c1/export").json()
    for who in SENDERS[1:]:
        for name in BEGIN:
            method = "POST" if name.startswith("messages") else "GET"
            response = served.send(who, method, f"{OF_ANN}/c1/{name}", {"text": "x"})
            assert response.status_code == (403 if who in OTHERS else 401), (who, name)
    assert served.send("ann", "GET", f"{OF_ANN}/c1/export").json() == before


def shows(response: httpx2.Response) -> bool:
    """Whether an answer has something of the conversation."""
    return "secret" in response.text or "turn_1" in response.text


def test_a_privileged_sender_reads_what_others_said_and_changes_nothing(served: Served) -> None:
    read = served.send("privileged", "GET", f"{OF_ANN}/c1/export?user_id=ann")
    assert SECRET in read.text
    assert served.send("privileged", "POST", "/by-rn", {"rn": NAMES[0]}).json()["content"] == SECRET
    for method, path, body in routes("acme", "tea"):
        if method == "DELETE" or path.rpartition("/")[2] in ("stop", "fork", "recall", "answers"):
            changed = served.send("privileged", method, f"{path}?user_id=ann", body)
            assert changed.status_code == (403 if path.endswith("/answers") else 404)


def test_without_a_token_it_is_said_how_to_send_one(served: Served) -> None:
    response = served.send("nobody", "GET", OF_ANN)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == 'Bearer realm="loopline"'
    assert served.send("nobody", "GET", "/metrics").status_code == 401
    assert served.send("nobody", "GET", "/health").status_code == 200


def test_no_key_is_in_the_log_or_in_an_answer(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        for who in ("ann", "made up", "expired"):
            text = served.send(who, "GET", f"{OF_ANN}/nowhere/status").text
            assert not any(key in text for key in served.keys.values())
        served.send("ann", "POST", f"{OF_ANN}/c9/messages", {"text": 5, "password": "hunter2"})
    assert not any(key in caplog.text for key in served.keys.values())
    assert "hunter2" not in caplog.text


def test_a_key_is_stored_as_its_digest_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, ANN)
    assert key[-20:] not in file.read_text("utf-8")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_server_without_authentication_listens_to_this_machine_alone() -> None:
    local = app(SHOP, store="memory:", model=EchoModel())
    for host in ("127.0.0.1", "localhost", "::1"):
        make_server(local, host=host, port=0)
    for host in ("0.0.0.0", "::", "192.0.2.7", "example.org"):
        with pytest.raises(LooplineError, match=r"needs authentication: .*--keys FILE"):
            make_server(local, host=host, port=0)


def test_a_user_may_send_at_least_one_request_a_minute() -> None:
    with pytest.raises(LooplineError, match="requests_per_minute is 0"):
        ServerSettings(requests_per_minute=0)


@pytest.fixture(scope="module")
def local() -> Generator[httpx2.Client]:
    settings = ServerSettings(body_bytes=1_000, requests_per_minute=30)
    server = app(SHOP, store="memory:", model=EchoModel(), settings=settings)
    with serving(server) as url, httpx2.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "http://localhost:9999", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "{own}"}, 200),
        ({"Origin": "{own}", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 421),
    ],
)
def test_a_page_of_another_server_cannot_ask_this_machine(
    local: httpx2.Client, headers: dict[str, str], status: int
) -> None:
    own = f"{local.base_url}".rstrip("/")
    sent = {name: value.format(own=own) for name, value in headers.items()}
    assert local.get("/health", headers=sent).status_code == status
    assert local.post("/by-rn", headers=sent, json={}).status_code == (
        422 if status == 200 else status
    )


def test_a_body_that_is_too_large_is_refused_before_it_is_read(local: httpx2.Client) -> None:
    path = "/conversations/default/default/c1/messages"
    assert local.post(path, content=b"x" * 1_001).status_code == 413

    def pieces() -> Generator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    assert local.post(path, content=pieces()).status_code == 413


def test_a_user_who_asks_too_often_waits(local: httpx2.Client) -> None:
    path = "/conversations/default/default"
    answers = [local.get(path) for _ in range(60)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


def test_streams_end_when_the_server_does() -> None:
    server = app(SHOP, store="memory:", model=EchoModel())
    lines = list[str]()
    client = httpx2.Client(timeout=30)
    with serving(server) as url:
        response = client.send(
            client.build_request("GET", f"{url}/conversations/default/default/c1/events"),
            stream=True,
        )
        received = response.iter_lines()
        lines.append(next(received))
    lines += list(received)
    assert lines[0].startswith("retry:")
    response.close()
    client.close()
