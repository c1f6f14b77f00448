"""Every change that a request makes is one line of the audit log, without a text; and what is shared is limited."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Generator
from contextlib import ExitStack
from urllib.parse import quote

import httpx2
import pytest

from loopline.cli.options import TerminalLines
from loopline.models import Json, JsonObject
from loopline.server import ServerSettings, app
from tests.doors.command import Loopline
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, serving

ALL = "/conversations/default/default"
ONE = f"{ALL}/c1"
WORD = "unrepeatable"
"""A word that is in every text that is sent."""
PAGE = "https://shop.example"
RUN: JsonObject = {
    "threadId": "g1",
    "runId": "r1",
    "state": {},
    "messages": [{"id": "m1", "role": "user", "content": WORD}],
    "tools": [],
    "context": [],
    "forwardedProps": {},
}
CHAT: JsonObject = {
    "id": "v1",
    "trigger": "submit-message",
    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": WORD}]}],
}
COMPLETION: JsonObject = {"model": "shop", "messages": [{"role": "user", "content": WORD}]}
CHANGES: list[tuple[str, str, str, Json]] = [
    ("message", "POST", f"{ONE}/messages", {"text": WORD}),
    ("message", "POST", f"{ONE}/messages/multipart", {"text": WORD}),
    ("followup", "POST", f"{ONE}/interrupts", {"text": WORD}),
    ("steer", "POST", f"{ONE}/interrupts", {"text": WORD, "kind": "steer"}),
    ("feedback", "POST", f"{ONE}/turns/turn_1/feedback", {"reaction": "ok", "text": WORD}),
    ("recall", "POST", f"{ONE}/recall", {"seq": 1, "turn_id": "turn_1"}),
    ("fork", "POST", f"{ONE}/fork", {"seq": 1, "name": "copy"}),
    ("stop", "POST", f"{ONE}/stop", None),
    ("mode", "POST", f"{ONE}/mode", {"mode": "deny"}),
    ("revoke_rule", "DELETE", f"{ONE}/rules/rule_1", None),
    ("message", "POST", f"{ALL}/c2/messages", {"text": "call shop.book name=tea"}),
    ("answer", "POST", f"{ALL}/c2/answers", {"values": {"c1": WORD}}),
    ("message", "POST", "/ag-ui", RUN),
    ("message", "POST", "/api/chat", CHAT),
    ("message", "POST", "/v1/chat/completions", COMPLETION),
    ("message", "POST", "/v1/responses", {"model": "shop", "input": WORD}),
    ("retry", "POST", f"{ONE}/retry", None),
    ("stop_background", "POST", f"{ONE}/background/call_1/stop", None),
    ("rerun", "POST", f"{ONE}/turns/turn_1/rounds/1/rerun", {}),
    ("schedule", "POST", f"{ONE}/schedule", {"text": WORD, "delay": 3600}),
    ("unschedule", "DELETE", f"{ONE}/schedule/message_1", None),
    ("delete", "DELETE", f"{ALL}/c2", None),
]
READS = {
    "/by-rn",
    "/conversations/{tenant}/{project}/fetch",
    "/conversations/{tenant}/{project}/feedback/conversations-in-period",
    "/conversations/{tenant}/{project}/{conversation}/fetch",
    "/conversations/{tenant}/{project}/{conversation}/turns-with-feedbacks",
    "/conversations/{tenant}/{project}/{conversation}/read",
}
"""Routes with a body that change nothing."""


@pytest.fixture(scope="module")
def client() -> Generator[httpx2.Client]:
    settings = ServerSettings(listeners=1, turns=1, origins=(PAGE,))
    server = app(SHOP, store="memory:", model=EchoModel(), settings=settings)
    with serving(server) as url, httpx2.Client(base_url=url, timeout=30) as opened:
        yield opened


def test_every_change_is_one_line_that_names_who_and_what_and_no_text(
    client: httpx2.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "loopline.audit")
    for action, method, path, body in CHANGES:
        caplog.clear()
        if path.endswith("multipart"):
            form = {"message": (None, json.dumps(body))}
            answer = client.request(method, path, files=form)
        else:
            answer = client.request(method, path, json=body)
        assert answer.is_success, (path, answer.text)
        [line] = [r.getMessage() for r in caplog.records if r.name == "loopline.audit"]
        assert line.startswith(f"{action} tenant='default' project='default' user='local' "), line
        assert WORD not in line


FORGED = "c9\r\ndelete tenant='acme'\x1b[2J\x9b1m\0\u2028\u202e"
"""A name with line ends, controls of a terminal, NUL and a change of the writing direction."""


def test_no_name_begins_a_line_of_the_log_or_controls_the_terminal_that_shows_it(
    client: httpx2.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "loopline")
    place = f"{ALL}/{quote(FORGED, safe='')}"
    body: JsonObject = {"text": "call shop.book name=tea", "key": FORGED}
    assert client.post(f"{place}/messages", json={"text": "tea"}).is_success
    assert client.post(f"{place}/fork", json={"seq": 1, "name": f"{FORGED}!"}).is_success
    assert client.post(f"{place}/answers", json={"values": {FORGED: 1}}).status_code == 422
    assert client.post(f"{place}/messages", json=body).status_code == 422
    assert client.request("DELETE", f"{place}!").is_success
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "c9" in line]
    assert all(line.isprintable() for line in lines), lines
    bad = logging.makeLogRecord({"name": "loopline", "levelname": "INFO", "msg": FORGED})
    try:
        raise ValueError(FORGED)
    except ValueError:
        broken = logging.makeLogRecord({"msg": FORGED, "exc_info": sys.exc_info()})
    for record in (bad, broken):
        shown = TerminalLines().format(record).split("\n")
        assert all(line.isprintable() for line in shown), shown
    assert len(TerminalLines().format(bad).split("\n")) == 1


def test_no_route_that_changes_something_is_left_out(client: httpx2.Client) -> None:
    paths: dict[str, JsonObject] = client.get("/openapi.json").json()["paths"]
    changing = {path for path, methods in paths.items() if methods.keys() - {"get"}}
    names = {ALL: "/conversations/{tenant}/{project}", "c1": "{conversation}", "turn_1": "{turn}"}
    names |= {
        "rule_1": "{rule_id}",
        "call_1": "{call_id}",
        "message_1": "{message_id}",
        "rounds/1": "rounds/{number}",
    }
    tried = set[str]()
    for _, _, path, _ in CHANGES:
        for value, name in names.items():
            path = path.replace(value, name)
        tried.add(path.replace("/c2", "/{conversation}"))
    assert changing - READS == tried


def test_pages_of_named_origins_alone_may_read_answers(client: httpx2.Client) -> None:
    for origin, allowed in ((PAGE, PAGE), ("http://localhost:3000", None)):
        answer = client.get(ALL, headers={"Origin": origin})
        assert answer.headers.get("access-control-allow-origin") == allowed
        asked = client.options(
            f"{ONE}/messages", headers={"Origin": origin, "Access-Control-Request-Method": "POST"}
        )
        assert (asked.status_code == 200) is (allowed is not None)
    assert client.get(ALL, headers={"Origin": "https://evil.example"}).status_code == 403


def test_more_listeners_or_turns_than_there_is_room_for_are_sent_away(
    client: httpx2.Client,
) -> None:
    with ExitStack() as stack:
        listening = stack.enter_context(client.stream("GET", f"{ALL}/l1/events"))
        assert listening.status_code == 200
        refused = client.get(f"{ALL}/l2/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    body = {"text": "call shop.wait name=20", "background": True}
    assert client.post(f"{ALL}/t1/messages", json=body).status_code == 202
    refused = client.post(f"{ALL}/t2/messages", json={"text": "tea"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    assert client.post(f"{ALL}/t1/stop").json() == {"done": True}


@pytest.mark.parametrize(
    ("words", "scan"),
    [(("--production",), "1"), (("--production", "--keys", "keys.json"), "0")],
    ids=["without accounts", "without a scanner"],
)
def test_production_needs_accounts_and_a_scanner(
    tmp_path_factory: pytest.TempPathFactory, words: tuple[str, ...], scan: str
) -> None:
    folder = tmp_path_factory.mktemp("production")
    (folder / "guide.py").write_text("from loopline import Bundle\nbundle = Bundle(id='guide')\n")
    loopline = Loopline(folder, {"APP_AV_SCAN": scan})
    assert loopline("key", "keys.json", "--user", "ann").code == 0
    ran = loopline("serve", "guide", "--port", "0", *words)
    assert (ran.code, "--production needs" in ran.err) == (2, True)
