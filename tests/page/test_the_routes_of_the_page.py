"""What the page reads: windows of blocks, outlines, prompts, and its files with their policy."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from loopline.harness import ReadOnlyStore
from loopline.server import reading_app
from tests.support.live_server import serving
from tests.support.page_conversations import LEAF
from tests.support.warm_programs import warm_program

HERE = "/conversations/default/default/brewing"


@pytest.fixture(scope="module")
def client(tea_store: str) -> Generator[httpx2.Client]:
    """Return a client of a server that only shows the store."""
    with (
        serving(reading_app(ReadOnlyStore(tea_store))) as url,
        httpx2.Client(base_url=url, timeout=30, params={"user_id": "local"}) as opened,
    ):
        yield opened


def test_a_store_without_a_bundle_lists_its_conversations(client: httpx2.Client) -> None:
    answer = client.get("/stored").json()
    [only] = answer["items"]
    assert (answer["writable"], answer["bundles"], answer["total"]) == (False, [], 1)
    assert (only["conversation"], only["turns"], only["open"]) == ("brewing", 2, False)


def test_a_window_has_the_blocks_behind_a_seq_and_the_last_seq(client: httpx2.Client) -> None:
    answer = client.get(f"{HERE}/window", params={"after": 10, "limit": 5}).json()
    assert [row["seq"] for row in answer["rows"]] == [11, 12, 13, 14, 15]
    assert answer["head"] == client.get(f"{HERE}/window", params={"after": 0}).json()["head"]


def test_a_long_text_is_cut_and_its_length_is_named(client: httpx2.Client) -> None:
    rows: list[dict[str, Any]] = client.get(f"{HERE}/window", params={"characters": 100}).json()[
        "rows"
    ]
    [long] = [
        row for row in rows if row["body"].get("tool") == "tea.large" and "text" in row["body"]
    ]
    assert len(long["body"]["text"]) == 100
    assert {"path": ["text"], "characters": 9_000} in long["cut"]


def test_the_bytes_of_a_file_are_never_in_a_window(client: httpx2.Client) -> None:
    params = {"after": 0, "limit": 500, "characters": 1_000_000}
    rows = client.get(f"{HERE}/window", params=params).json()["rows"]
    text, leaf = [row for row in rows if row["type"] == "file.added"]
    assert (text["body"]["data"], text["cut"]) == ("", [])
    assert (leaf["body"]["data"], leaf["cut"][0]["path"]) == ("", ["data"])


def test_a_file_is_only_a_download(client: httpx2.Client) -> None:
    rows = client.get(f"{HERE}/window", params={"limit": 500}).json()["rows"]
    text, leaf = [row["seq"] for row in rows if row["type"] == "file.added"]
    answer = client.get(f"{HERE}/file", params={"seq": leaf})
    assert answer.content == LEAF
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert client.get(f"{HERE}/file", params={"seq": text}).content == b"100 g of sencha\n"
    assert client.get(f"{HERE}/file", params={"seq": 1}).status_code == 404


def test_an_outline_has_rounds_and_calls_with_their_times(client: httpx2.Client) -> None:
    answer = client.get(f"{HERE}/outline").json()
    first, second = answer["turns"]
    assert [len(turn["rounds"]) for turn in answer["turns"]] == [4, 2]
    calls = first["rounds"][1]["calls"]
    assert [call["tool"] for call in calls] == ["tea.find", *["tea.price"] * 3]
    assert [call["status"] for call in calls] == ["ok", "ok", "ok", "error"]
    assert all(call["ended"] >= call["called"] for call in calls)
    assert second["rounds"][0]["calls"][0]["child"] == "brewing~c7"
    assert client.get(f"{HERE}/outline", params={"first": 2}).json()["turns"] == [second]


def test_the_prompt_of_each_round_is_that_of_the_command(
    client: httpx2.Client, tea_store: str, tmp_path: Path
) -> None:
    command = warm_program("-m", "loopline", "prompt", "-c", "brewing", "--store", tea_store)
    for turn, rounds in ((1, 4), (2, 2)):
        for number in range(1, rounds + 1):
            options = ["--turn", str(turn), "--round", str(number), "--json"]
            printed = subprocess.run(
                [*command, *options], cwd=tmp_path, capture_output=True, check=True, text=True
            )
            expected = json.loads(printed.stdout)
            shown = client.get(f"{HERE}/turns/turn_{turn}/rounds/{number}/prompt").json()
            for message in shown["messages"]:
                for name in ("tokens", "state", "stable"):
                    del message[name]
            assert {name: shown[name] for name in expected} == expected


def test_a_part_says_whether_the_round_before_had_it(client: httpx2.Client) -> None:
    first = client.get(f"{HERE}/turns/turn_1/rounds/1/prompt").json()
    third = client.get(f"{HERE}/turns/turn_1/rounds/3/prompt").json()
    second = client.get(f"{HERE}/turns/turn_1/rounds/2/prompt").json()
    assert not any(message["stable"] for message in first["messages"])
    stable = [message["ref"] for message in third["messages"] if message["stable"]]
    assert stable == [message["ref"] for message in second["messages"]]
    assert (third["before"], third["after"]) == (
        {"turn": 1, "round": 2, "seq": second["seq"]},
        {"turn": 1, "round": 4, "seq": third["after"]["seq"]},
    )
    assert third["reply"]["cache_read_tokens"] == 2_600


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{HERE}/turns/turn_1/rounds/9/prompt", 404),
        (f"{HERE}/turns/turn_x/rounds/1/prompt", 404),
        ("/conversations/default/default/none/window", 404),
        ("/page/none.js", 404),
        ("/page/..%2Fapplication.py", 404),
        ("/page/__init__.py", 404),
    ],
)
def test_what_does_not_exist_is_not_found(client: httpx2.Client, path: str, status: int) -> None:
    assert client.get(path).status_code == status


def test_a_server_that_only_reads_refuses_messages(client: httpx2.Client) -> None:
    answers = [
        client.post(f"{HERE}/messages", json={"text": "hi"}),
        client.post(f"{HERE}/stop"),
        client.post(f"{HERE}/fork", json={"seq": 1}),
        client.post(f"{HERE}/turns/turn_1/feedback", json={"reaction": "ok"}),
    ]
    assert [answer.status_code for answer in answers] == [409] * 4
    assert "loopline web BUNDLE" in answers[0].json()["detail"]
    assert client.delete(HERE).status_code >= 400
    assert client.get(f"{HERE}/window").json()["head"] == 57


def test_a_server_that_only_reads_refuses_the_requests_of_openais_api(
    client: httpx2.Client,
) -> None:
    answers = [
        client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}),
        client.post("/v1/responses", json={"input": "hi"}),
    ]
    assert [answer.status_code for answer in answers] == [409, 409]


def test_a_ref_is_read_without_a_bundle(client: httpx2.Client) -> None:
    refs = ["ar:turn_1.user.prompt", "so:sources_pool[1]"]
    items = client.post(f"{HERE}/read", json={"refs": refs}).json()["items"]
    assert [item["status"] for item in items] == ["ok", "ok"]


def test_the_page_runs_only_files_of_its_server(client: httpx2.Client) -> None:
    index = client.get("/page/")
    policy = index.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "script-src 'self'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "<script>" not in index.text
    assert "http" not in index.text
    again = client.get("/page/", headers={"If-None-Match": index.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/page").url.path == "/page/" or client.get("/page").status_code == 307
