"""A conversation over HTTP: messages and their answers, events and their positions, approvals, stops."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Generator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from msgspec import to_builtins

from loopline import Bundle, Output, Source, tool
from loopline.models import JsonObject, Prompt, Reply, TextDelta
from loopline.server import ServerSettings, app
from loopline.server.bundle_host import bundle_host
from loopline.testing import Call, Say, ScriptedModel
from tests.mcp.served import Served, sdk
from tests.support.echo_model import EchoModel
from tests.support.live_server import (
    SHOP,
    in_process,
    serving,
    sse_records,
    streamed_messages,
    until,
)

HERE = "/conversations/default/default"
STREAM = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Generator[httpx2.Client]:
    folder: Path = tmp_path_factory.mktemp("server")
    served = app(SHOP, store=f"sqlite:///{folder}/talk.db", model=EchoModel())
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as opened:
        yield opened


@pytest.mark.parametrize(("stops", "reason"), [(True, "stopped"), (False, "complete")])
def test_a_stream_that_is_closed_stops_its_turn_if_the_server_is_set_so(
    stops: bool, reason: str
) -> None:
    settings = ServerSettings(stop_abandoned=stops)
    served = app(SHOP, store="memory:", model=EchoModel(), settings=settings)
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        for end in ("messages", "ag-ui", "chat", "responses"):
            here = f"{HERE}/{end}"
            requests = streamed_messages("call shop.wait name=1", here)
            [path] = [path for path in requests if path.rpartition("/")[2] == end]
            with client.stream("POST", path, json=requests[path], headers=STREAM) as response:
                lines = response.iter_lines()
                next(line for line in lines if "shop.wait" in line or end == "responses")
            turn = f"{here}/turns/turn_1"
            while (ended := client.get(turn).json()["exit_reason"]) == "interrupted":
                time.sleep(0.05)
            assert (path, ended) == (path, reason)


class HeldModel(EchoModel):
    """Says the rest of a reply once its first piece was heard."""

    def __init__(self) -> None:
        self.heard = threading.Event()

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        async for piece in super().stream(prompt):
            yield piece
            await asyncio.to_thread(self.heard.wait, 30)


def say(client: httpx2.Client, talk: str, text: str, **more: object) -> httpx2.Response:
    return client.post(f"{HERE}/{talk}/messages", json={"text": text, **more})


def test_a_message_with_another_content_type_is_refused_with_the_header_that_is_missing(
    client: httpx2.Client,
) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    refused = client.post(f"{HERE}/form/messages", content='{"text": "tea"}', headers=headers)
    assert refused.status_code == 422
    assert "Content-Type: application/json" in refused.json()["detail"]


def test_a_message_is_answered_with_the_result_of_its_turn(client: httpx2.Client) -> None:
    response = say(client, "plain", "tea")
    assert response.status_code == 200
    answer = response.json()
    assert (answer["answer"], answer["turn_id"], answer["exit_reason"]) == (
        "You said: tea",
        "turn_1",
        "complete",
    )


def test_a_stream_has_every_block_of_the_turn_and_ends_with_it(tmp_path: Path) -> None:
    model = HeldModel()
    served = app(SHOP, store=f"sqlite:///{tmp_path}/talk.db", model=model)
    with (
        serving(served) as url,
        httpx2.Client(base_url=url, timeout=30) as client,
        client.stream(
            "POST", f"{HERE}/streamed/messages", json={"text": "tea"}, headers=STREAM
        ) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = sse_records(response)
        records = until(stream, "delta")
        model.heard.set()
        records += stream
    names = [name for _, name, _ in records]
    assert names[0] == "user.prompt"
    assert names[-1] == "react.exit"
    assert "delta" in names
    seqs = [int(record_id.partition(".")[0]) for record_id, _, _ in records if record_id]
    assert seqs == sorted(set(seqs)) == list(range(1, max(seqs) + 1))


def test_a_position_gives_the_same_bytes_again(client: httpx2.Client) -> None:
    say(client, "again", "one")
    say(client, "again", "two")
    texts = list[list[str]]()
    for query, headers in (({}, {}), ({"after": "3"}, {}), ({}, {"Last-Event-ID": "3.1"})):
        with client.stream(
            "GET", f"{HERE}/again/events", params=query, headers=headers
        ) as response:
            count = 0
            texts.append([])
            for line in response.iter_lines():
                texts[-1].append(line)
                count += line == "event: react.exit"
                if count == 2 and not line:
                    break
    whole, by_seq, by_header = texts
    assert by_seq == by_header
    assert by_seq[2:] == whole[-len(by_seq) + 2 :]


def test_a_listener_receives_the_turns_that_others_begin(client: httpx2.Client) -> None:
    with ThreadPoolExecutor() as pool, client.stream("GET", f"{HERE}/live/events") as response:
        sent = pool.submit(say, client, "live", "tea")
        names = [name for _, name, _ in until(sse_records(response), "react.exit")]
        assert names.count("user.prompt") == 1
        assert sent.result().json()["answer"] == "You said: tea"


@pytest.mark.parametrize("dialect", ["kdcube", "fim", "nadoo", "chatcli", "beakr", "loopline"])
def test_a_dialect_is_chosen_by_path_or_header(client: httpx2.Client, dialect: str) -> None:
    say(client, "spoken", "tea")
    by_path = client.stream("GET", f"{HERE}/spoken/events/{dialect}")
    by_header = client.stream("GET", f"{HERE}/spoken/events", headers={"Loopline-Dialect": dialect})
    with by_path as one, by_header as other:
        first = [next(sse_records(response)) for response in (one, other)]
    assert first[0] == first[1]


def test_a_message_in_the_background_is_answered_with_its_receipt(client: httpx2.Client) -> None:
    response = say(client, "later", "tea", background=True)
    assert response.status_code == 202
    receipt = response.json()
    assert (receipt["turn_id"], receipt["seq"]) == ("turn_1", 1)
    with client.stream("GET", receipt["events"]) as events:
        assert until(sse_records(events), "react.exit")[-1][1] == "react.exit"


def test_a_receipt_has_the_address_of_a_conversation_whose_name_has_slashes(
    client: httpx2.Client,
) -> None:
    receipt = say(client, "team%2Ftea%3F", "tea", background=True).json()
    assert receipt["conversation_id"] == "team/tea?"
    with client.stream("GET", receipt["events"]) as events:
        assert until(sse_records(events), "react.exit")[-1][1] == "react.exit"


def test_a_body_that_is_not_json_and_a_name_that_is_too_long_are_named_once(
    client: httpx2.Client,
) -> None:
    headers = {"Content-Type": "application/json"}
    torn = client.post(f"{HERE}/torn/messages", content=b'{"text": ', headers=headers)
    assert torn.json()["detail"] == "body: it is not valid JSON at the position 9"
    long = client.get(f"{HERE}/{'n' * 201}/status")
    assert long.json()["detail"] == ("path.conversation: String should have at most 200 characters")


def test_an_idempotency_key_sends_a_message_once(client: httpx2.Client) -> None:
    headers = {"Idempotency-Key": "k1"}
    send = [
        client.post(f"{HERE}/once/messages", json={"text": "tea"}, headers=headers)
        for _ in range(3)
    ]
    assert {response.json()["turn_id"] for response in send} == {"turn_1"}
    other = client.post(f"{HERE}/once/messages", json={"text": "no"}, headers=headers)
    assert other.status_code == 409


def test_a_question_pauses_the_turn_until_it_is_answered(client: httpx2.Client) -> None:
    paused = say(client, "asked", "call shop.book name=tea").json()
    assert paused["exit_reason"] == "paused"
    [call] = paused["pending"]
    status = client.get(f"{HERE}/asked/status").json()
    assert status["state"] == "idle"
    assert status["meta"]["pending_calls"] == [call["call_id"]]
    body = {"values": {call["call_id"]: "yes"}}
    answered = client.post(f"{HERE}/asked/answers", json=body).json()
    assert answered["exit_reason"] == "complete"
    again = client.post(f"{HERE}/asked/answers", json={"values": {call["call_id"]: "no"}})
    assert again.status_code == 409
    assert again.json()["detail"] == f'{call["call_id"]} has been answered already: "yes"'


def asking(folder: Path) -> FastAPI:
    """Return a server whose agent makes a call that asks while it stays open."""
    Served(folder).declare({"calc": sdk()})
    return app(
        Bundle(id="asks"),
        store=f"sqlite:///{folder}/talk.db",
        model=ScriptedModel([Call("mcp.calc.choose"), Say("Done.")]),
        properties={"mcp.file": str(folder / ".mcp.json"), "react.select_tools": False},
    )


def test_answers_of_which_only_some_are_for_open_calls_answer_none(tmp_path: Path) -> None:
    path = f"{HERE}/open/answers"
    green, other = {"c1": {"kind": "green"}}, {"c9": True}
    with (
        serving(asking(tmp_path)) as url,
        httpx2.Client(base_url=url, timeout=30) as client,
        client.stream(
            "POST", f"{HERE}/open/messages", json={"text": "Go!"}, headers=STREAM
        ) as response,
    ):
        events = sse_records(response)
        until(events, "pending")
        mixed = client.post(path, json={"values": green | other})
        assert (mixed.status_code, "c9" in mixed.json()["detail"]) == (409, True)
        answered = client.post(path, json={"values": green})
        assert (answered.status_code, answered.json()) == (202, {"done": True})
        until(events, "react.exit")


def test_of_answers_that_come_at_once_the_call_gets_the_first_in_the_log(tmp_path: Path) -> None:
    with serving(asking(tmp_path)) as url, httpx2.Client(base_url=url, timeout=30) as client:

        def answer(kind: str) -> bool:
            body: JsonObject = {"values": {"c1": {"kind": kind}}, "only_open": True}
            reply: JsonObject = client.post(f"{HERE}/open/answers", json=body).json()
            return reply == {"done": True}

        message = {"text": "Go!"}
        with client.stream(
            "POST", f"{HERE}/open/messages", json=message, headers=STREAM
        ) as response:
            events = sse_records(response)
            until(events, "pending")
            kinds = ["green", "black", "white"] * 4
            with ThreadPoolExecutor(len(kinds)) as pool:
                done = list(pool.map(answer, kinds))
            until(events, "react.exit")
        stored = client.get(f"{HERE}/open/blocks").json()["blocks"]
    first = next(
        block["body"]["value"]["kind"] for block in stored if block["type"] == "user.answer"
    )
    [result] = [block["body"]["text"] for block in stored if block["type"] == "react.tool.result"]
    assert [kind for kind, is_done in zip(kinds, done, strict=True) if is_done] == [first]
    assert result == f"accept: {first}"


def test_a_limit_that_cannot_be_held_is_the_senders_and_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "loopline")
    served = app(SHOP, store="memory:", model=EchoModel())
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        refused = say(client, "priceless", "tea", limits={"max_cost": 1})
    assert (refused.status_code, "price" in refused.json()["detail"]) == (422, True)
    assert "a turn was refused: max_cost=1" in caplog.text
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_a_running_turn_is_stopped(client: httpx2.Client) -> None:
    say(client, "slow", "call shop.wait name=30", background=True)
    with client.stream("GET", f"{HERE}/slow/events") as response:
        events = sse_records(response)
        until(events, "react.tool.call")
        assert client.get(f"{HERE}/slow/status").json()["state"] == "in_progress"
        assert client.post(f"{HERE}/slow/stop").json() == {"done": True}
        assert until(events, "react.exit")[-1][1] == "react.exit"


def wait_for_prompts(client: httpx2.Client, talk: str, count: int) -> None:
    """Wait until `count` messages are stored, of which a stream tells with the next event of the turn that runs."""
    while client.get(f"{HERE}/{talk}/status").json()["meta"]["turns"] < count:
        time.sleep(0.01)


def stream_message(client: httpx2.Client, talk: str, text: str) -> list[str]:
    """Send a message, and return the names of all events of its stream."""
    place, message = f"{HERE}/{talk}/messages", {"text": text}
    with client.stream("POST", place, json=message, headers=STREAM) as response:
        return [name for _, name, _ in sse_records(response)]


@pytest.mark.parametrize("tool", ["wait", "book"])
def test_a_conversation_is_deleted_while_a_turn_runs_or_is_paused_and_others_wait(
    client: httpx2.Client, tool: str
) -> None:
    talk = f"deleted-{tool}"
    # All are stored while the first turn runs: what is said after a question would end the paused turn.
    say(client, talk, "call shop.wait name=2", background=True)
    with ThreadPoolExecutor(3) as pool:
        sent = [pool.submit(say, client, talk, f"call shop.{tool} name=30")]
        wait_for_prompts(client, talk, 2)
        sent.append(pool.submit(say, client, talk, "next"))
        streamed = pool.submit(stream_message, client, talk, "next")
        wait_for_prompts(client, talk, 4)
        with client.stream("GET", f"{HERE}/{talk}/events") as response:
            records = sse_records(response)
            until(records, "react.exit")
            until(records, "react.tool.call" if tool == "wait" else "react.tool.pending")
            deleted = client.delete(f"{HERE}/{talk}")
        assert (deleted.status_code, deleted.json()["deleted_messages"]) == (200, 5)
        refused = [answer.result(1) for answer in (sent if tool == "wait" else sent[1:])]
        assert {answer.status_code for answer in refused} == {409}
        assert all("was forgotten" in answer.json()["detail"] for answer in refused)
        assert streamed.result(1)[0] == "user.prompt"  # the stream has ended
    assert client.get(f"{HERE}/{talk}/status").status_code == 404
    assert say(client, talk, "again").status_code == 409


def test_a_stream_that_waits_for_a_turn_ends_when_the_conversation_is_deleted(
    client: httpx2.Client,
) -> None:
    say(client, "resumed", "call shop.wait name=30", background=True)
    with client.stream("GET", f"{HERE}/resumed/events") as response:
        until(sse_records(response), "react.tool.call")
    place, body = f"{HERE}/resumed/answers", JsonObject(values={})
    with client.stream("POST", place, json=body, headers=STREAM) as response:
        assert client.delete(f"{HERE}/resumed").status_code == 200
        assert list(sse_records(response))  # all of it came: a broken stream raises


def test_who_listens_to_a_conversation_that_is_deleted_gets_to_the_end(
    client: httpx2.Client,
) -> None:
    say(client, "heard", "tea")
    with client.stream("GET", f"{HERE}/heard/events") as response:
        records = sse_records(response)
        until(records, "react.exit")
        assert client.delete(f"{HERE}/heard").status_code == 200
        assert list(records) == []


def test_a_busy_conversation_refuses_queues_or_takes_a_message(client: httpx2.Client) -> None:
    say(client, "busy", "call shop.wait name=1", background=True)
    with client.stream("GET", f"{HERE}/busy/events") as events:
        until(sse_records(events), "react.tool.call")
        assert say(client, "busy", "no", when_busy="reject").status_code == 409
        joined = say(client, "busy", "more", when_busy="followup").json()
    assert joined["turn_id"] == "turn_1"


def test_a_waiting_message_is_recalled_once_and_no_other_block_is(client: httpx2.Client) -> None:
    say(client, "recalled", "call shop.wait name=1", background=True)
    second = say(client, "recalled", "second", background=True).json()
    receipt: JsonObject = {"seq": second["seq"], "turn_id": second["turn_id"]}
    recall = f"{HERE}/recalled/recall"
    assert client.post(recall, json={"seq": 2, "turn_id": "turn_1"}).json() == {"done": False}
    assert client.post(recall, json=receipt).json() == {"done": True}
    assert client.post(recall, json=receipt).json() == {"done": False}
    client.post(f"{HERE}/recalled/stop")


def test_a_fork_begins_with_the_blocks_before_it(client: httpx2.Client) -> None:
    say(client, "trunk", "tea")
    fork = client.post(f"{HERE}/trunk/fork", json={"seq": 1, "name": "branch"})
    assert (fork.status_code, fork.json()) == (201, {"conversation_id": "branch"})
    assert client.post(f"{HERE}/trunk/fork", json={"seq": 1, "name": "branch"}).status_code == 409
    assert client.post(f"{HERE}/trunk/fork", json={"seq": 999}).status_code == 409


def test_a_problem_says_what_happened_and_who_must_act(client: httpx2.Client) -> None:
    response = client.get(f"{HERE}/nowhere/status")
    assert (response.status_code, response.headers["content-type"]) == (
        404,
        "application/problem+json",
    )
    problem = response.json()
    assert problem["title"] == "Not Found"
    assert problem["action_by"] == "client"
    assert "nowhere" in problem["detail"]


def test_the_server_says_that_it_lives_and_what_it_counted(client: httpx2.Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready"}
    say(client, "counted", "tea")
    text = client.get("/metrics").text
    assert 'loopline_turns_total{exit_reason="complete"}' in text
    assert "loopline_response_seconds_bucket" in text


def test_all_methods_that_http_does_not_define_are_counted_as_one(client: httpx2.Client) -> None:
    for number in range(3):
        assert client.request(f"X{number}", "/health").status_code == 405
    text = client.get("/metrics").text
    assert 'method="other"' in text
    assert 'method="X' not in text


def test_every_route_is_described_with_its_problems(client: httpx2.Client) -> None:
    document = client.get("/openapi.json").json()
    assert len(document["paths"]) >= 24
    for path, operations in document["paths"].items():
        for operation in operations.values():
            problem = operation["responses"]["422"]["content"]
            assert "application/problem+json" in problem, path
            assert {"401", "403", "404", "409", "413", "429", "503"} <= set(operation["responses"])


PAGE = Source(
    url="https://example.org/tea",
    title="Tea",
    objective_relevance=0.75,
    published_time_iso="2026-03-21T10:00:00Z",
    favicon_url="https://example.org/icon.png",
)


@tool(effect="read")
async def find(name: str) -> Output:
    """Find pages."""
    return Output(f"pages about {name}", sources=[Source(url="https://example.org/a"), PAGE])


async def test_a_cited_source_has_its_number_and_what_is_known_of_it() -> None:
    finder = Bundle(id="finder", instructions="You find.", tools=[find])
    model = ScriptedModel([Call("finder.find", name="tea"), "Three minutes. [[S:2]]"])
    served = app(finder, store="memory:", model=model)
    async with in_process(served) as client:
        [harness] = bundle_host(served).harnesses
        said = await harness.conversation("c1").say("How long?")
        shown = (await client.get(f"{HERE}/c1/turns/turn_1")).json()["sources"]
        [cited] = said.sources
        stored = await harness.conversation("c1").blocks(types="source.added")
    known = {"url", "title", "objective_relevance", "published_time_iso", "favicon_url"}
    expected = {"sid": 2, **{name: getattr(PAGE, name) for name in known}}
    assert {name: getattr(cited, name) for name in expected} == expected
    assert [{name: row[name] for name in expected} for row in shown] == [expected]
    assert "sid" not in to_builtins(stored[1].body)["source"]


def test_a_browser_that_opens_the_address_gets_the_page_and_a_program_the_routes(
    client: httpx2.Client,
) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    page = client.get("/", headers=browser, follow_redirects=True)
    assert (page.url.path, page.headers["content-type"]) == ("/page/", "text/html; charset=utf-8")
    assert "routes" in client.get("/", headers={"Accept": "*/*"}).json()
    assert client.get("/").headers["vary"] == "Accept"


def test_the_start_page_and_the_docs_name_every_route_and_need_no_script_and_no_network(
    client: httpx2.Client,
) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    index = client.get("/")
    assert set(index.json()["routes"]) == routes
    docs = client.get(index.json()["docs"])
    page = docs.text
    assert all(f"<code>{route}</code>" in page for route in routes)
    assert "<script" not in page
    assert not re.search(r"(src|href)=\W?(https?:|//)|url\(|@import", page)
    policy = docs.headers["content-security-policy"]
    style = page.partition("<style>")[2].partition("</style>")[0]
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in policy
    assert index.headers["content-security-policy"].startswith("default-src 'none'")
    with serving(app(SHOP, store="memory:", settings=ServerSettings(docs=False))) as url:
        hidden = [
            httpx2.get(f"{url}{path}").status_code for path in ("/", "/docs", "/openapi.json")
        ]
    assert hidden == [404, 404, 404]
