"""The endpoints of the seed's page: their paths, their bodies and their answers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from loopline.models import Json
from loopline.server import app
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, serving

HERE = "/conversations/default/default"
EVER: dict[str, Json] = {"start": "2020-01-01T00:00:00Z", "end": "2100-01-01T00:00:00Z"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Generator[httpx2.Client]:
    folder: Path = tmp_path_factory.mktemp("server")
    served = app(SHOP, store=f"sqlite:///{folder}/talk.db", model=EchoModel())
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as opened:
        note = {"name": "note.txt", "data": b64encode(b"remember the milk").decode()}
        say(opened, "c1", "tea", attachments=[note])
        say(opened, "c1", "call shop.draw name=tea")
        say(opened, "c2", "coffee")
        say(opened, "gone", "milk")
        yield opened


def say(client: httpx2.Client, talk: str, text: str, **more: object) -> None:
    response = client.post(f"{HERE}/{talk}/messages", json={"text": text, **more})
    assert response.json()["ok"], response.text


def test_conversations_are_listed_with_the_last_active_one_first(client: httpx2.Client) -> None:
    answer = client.get(HERE, params={"last_n": 2}).json()
    assert answer["user_id"] == "local"
    assert len(answer["items"]) == 2
    assert set(answer["items"][0]) == {"conversation_id", "last_activity_at", "started_at", "title"}
    assert client.get(HERE, params={"include_titles": False}).json()["items"][0]["title"] is None
    assert client.get(HERE, params={"last_n": 501}).status_code == 422
    by_bundle = [client.get(HERE, params={"bundle_id": name}).json() for name in ("shop", "no")]
    assert [bool(listed["items"]) for listed in by_bundle] == [True, False]
    later = client.get(HERE, params={"started_after": "2100-01-01T00:00:00Z"}).json()
    assert later["items"] == []


def test_turns_are_fetched_by_the_body_and_by_the_path(client: httpx2.Client) -> None:
    by_body = client.post(f"{HERE}/fetch", json={"conversation_id": "c1"}).json()
    by_path = client.post(f"{HERE}/c1/fetch", json={}).json()
    assert by_body == by_path
    assert by_path["conversation_id"] == "c1"
    assert by_path["conversation_title"] == "tea"
    assert (by_path["bundle_id"], by_path["bundle_ids"]) == ("shop", ["shop"])
    types = [[artifact["type"] for artifact in turn["artifacts"]] for turn in by_path["turns"]]
    assert types[0] == ["chat:user", "artifact:user.attachment", "chat:assistant"]
    assert types[1].count("artifact:assistant.file") == 2
    one = client.post(f"{HERE}/c1/fetch", json={"turn_ids": ["turn_2"]}).json()
    assert [turn["turn_id"] for turn in one["turns"]] == ["turn_2"]


def test_files_are_materialized_when_that_is_wanted(client: httpx2.Client) -> None:
    fetched = client.post(f"{HERE}/c1/fetch", json={"materialize": True})
    [attachment] = artifacts(fetched, "artifact:user.attachment")
    assert attachment["base64"] == b64encode(b"remember the milk").decode()
    assert attachment["size_bytes"] == 17
    [bare] = artifacts(client.post(f"{HERE}/c1/fetch", json={}), "artifact:user.attachment")
    assert "base64" not in bare


def test_a_status_and_details_say_what_a_conversation_does(client: httpx2.Client) -> None:
    status = client.get(f"{HERE}/c1/status").json()
    assert (status["conversation_id"], status["state"]) == ("c1", "idle")
    details = client.get(f"{HERE}/c1/details").json()
    assert [turn["turn_id"] for turn in details["turns"]] == ["turn_1", "turn_2"]
    assert {turn["state"] for turn in details["turns"]} == {"complete"}


def test_a_reaction_is_recorded_replaced_and_taken_back(client: httpx2.Client) -> None:
    path = f"{HERE}/c2/turns/turn_1/feedback"
    answers = [
        client.post(path, json={"reaction": reaction, "text": "so", "ts": "2026-03-21T10:00:00Z"})
        for reaction in ("ok", "not_ok", None, "ok")
    ]
    assert [answer.json()["cleared"] for answer in answers] == [False, False, True, False]
    assert answers[0].json() == {
        "success": True,
        "turn_id": "turn_1",
        "reaction": "ok",
        "message": "the reaction was recorded",
        "cleared": False,
    }
    assert client.post(path, json={"reaction": "great"}).status_code == 422
    for ts in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:00:00-02:00"):
        assert client.post(path, json={"reaction": "ok", "ts": ts}).status_code == 422
        later = {"text": "tea", "at": ts}
        assert client.post(f"{HERE}/c2/schedule", json=later).status_code == 422
    missing = client.post(f"{HERE}/c2/turns/turn_9/feedback", json={"reaction": "ok"})
    assert missing.status_code == 404
    rate = client.get(f"{HERE}/c2/satisfaction").json()
    assert (rate["ok"], rate["satisfaction_rate"]) == (1, 1.0)
    [reaction] = artifacts(client.post(f"{HERE}/c2/fetch", json={}), "turn.log.reaction")
    assert reaction["reaction"]["origin"] == "user"
    assert reaction["reaction"]["ts"] == "2026-03-21T10:00:00.000Z"


@pytest.mark.parametrize(
    ("ts", "shown"),
    [
        ("2026-03-21T10:00:00Z", "2026-03-21T10:00:00.000Z"),
        ("2026-03-21T12:00:00.5+02:00", "2026-03-21T10:00:00.500Z"),
        ("2026-03-21T10:00:00", "2026-03-21T10:00:00.000Z"),
    ],
    ids=["in UTC", "with a zone", "without a zone"],
)
def test_a_reaction_has_the_time_that_its_client_gave(
    client: httpx2.Client, ts: str, shown: str
) -> None:
    client.post(f"{HERE}/c2/turns/turn_1/feedback", json={"reaction": "ok", "ts": ts})
    [turn] = client.post(f"{HERE}/c2/turns-with-feedbacks", json={}).json()["turns"]
    assert turn["reactions"][0]["ts"] == shown
    [row] = client.get(f"{HERE}/c2/blocks", params={"types": "turn.feedback"}).json()["blocks"][-1:]
    assert row["body"]["rated_at"].startswith("2026-03-21T10:00:00")
    client.post(f"{HERE}/c2/turns/turn_1/feedback", json={"reaction": "ok"})
    [turn] = client.post(f"{HERE}/c2/turns-with-feedbacks", json={}).json()["turns"]
    assert turn["reactions"][0]["ts"] > shown


def test_turns_with_feedback_have_what_was_said_and_rated(client: httpx2.Client) -> None:
    client.post(f"{HERE}/c1/turns/turn_1/feedback", json={"reaction": "not_ok", "text": "no"})
    answer = client.post(f"{HERE}/c1/turns-with-feedbacks", json={}).json()
    [turn] = answer["turns"]
    assert (turn["turn_id"], turn["bundle_id"], turn["user"]) == ("turn_1", "shop", "tea")
    assert turn["assistant"] == "You said: tea"
    [given] = turn["feedbacks"]
    assert (given["reaction"], given["text"], given["confidence"]) == ("not_ok", "no", 1.0)
    assert answer["bundle_ids"] == ["shop"]
    assert turn["reactions"] == turn["feedbacks"]


def test_conversations_with_feedback_in_a_period_come_page_by_page(client: httpx2.Client) -> None:
    for talk in ("c1", "c2"):
        client.post(f"{HERE}/{talk}/turns/turn_1/feedback", json={"reaction": "ok"})
    path = f"{HERE}/feedback/conversations-in-period"
    whole = client.post(path, json={**EVER, "include_turns": True}).json()
    assert [item["conversation_id"] for item in whole["items"]] == ["c1", "c2"]
    assert whole["items"][0]["feedback_counts"]["total"] == 1
    assert whole["items"][0]["turns"][0]["feedbacks"][0]["reaction"] == "ok"
    assert (whole["tenant"], whole["project"]) == ("default", "default")
    pages, cursor = list[str](), None
    while True:
        page = client.post(path, json={**EVER, "limit": 1, "cursor": cursor}).json()
        pages += [item["conversation_id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert pages == ["c1", "c2"]
    past = {"start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z"}
    assert client.post(path, json=past).json()["items"] == []


def test_a_conversation_is_deleted_for_good(client: httpx2.Client) -> None:
    answer = client.request("DELETE", f"{HERE}/gone").json()
    assert answer["conversation_id"] == "gone"
    assert answer["deleted_messages"] == 2
    assert client.get(f"{HERE}/gone/status").status_code == 404
    assert client.request("DELETE", f"{HERE}/gone").status_code == 404
    assert client.post(f"{HERE}/gone/messages", json={"text": "again"}).status_code == 409


def test_a_resource_name_leads_to_a_message_and_to_a_file(client: httpx2.Client) -> None:
    fetched = client.post(f"{HERE}/c1/fetch", json={})
    message = by_name(client, artifacts(fetched, "chat:assistant")[0]["rn"])
    assert (message["content_type"], message["content"]) == ("message", "You said: tea")
    page, binary = (
        by_name(client, file["rn"]) for file in artifacts(fetched, "artifact:assistant.file")
    )
    assert page["content_type"] == binary["content_type"] == "file"
    assert binary["metadata"]["is_binary"]
    assert artifacts(fetched, "artifact:assistant.file")[0]["rn"] == (
        "ef:default:default:chatbot:file:local:c1:turn_2:assistant:1/tea.html"
    )


def test_a_file_is_downloaded_by_a_url_that_is_signed_and_expires(client: httpx2.Client) -> None:
    fetched = client.post(f"{HERE}/c1/fetch", json={})
    page, binary = (
        by_name(client, file["rn"])["metadata"]["download_url"]
        for file in artifacts(fetched, "artifact:assistant.file")
    )
    shown = client.get(page + "&show=preview")
    assert shown.text == "<script>alert(1)</script>"
    assert shown.headers["content-type"] == "text/plain; charset=utf-8"
    assert "sandbox" in shown.headers["content-security-policy"]
    assert shown.headers["x-content-type-options"] == "nosniff"
    saved = client.get(binary)
    assert saved.content == b"\x00\x01" * 50
    assert saved.headers["content-disposition"] == "attachment; filename*=UTF-8''b.bin"
    assert saved.headers["content-type"] == "application/octet-stream"
    for changed in (binary.replace("b.bin", "c.bin"), binary.replace("expires=1", "expires=2")):
        assert client.get(changed).status_code == 403


@pytest.mark.parametrize(
    ("wanted", "status", "content"),
    [
        ("bytes=0-1", 206, b"\x00\x01"),
        ("bytes=98-", 206, b"\x00\x01"),
        ("bytes=-2", 206, b"\x00\x01"),
        ("bytes=99-500", 206, b"\x01"),
        ("bytes=100-", 416, b""),
        ("bytes=-0", 416, b""),
        ("bytes=5-2", 200, b"\x00\x01" * 50),
        ("bytes=0-1,3-4", 200, b"\x00\x01" * 50),
        ("lines=0-1", 200, b"\x00\x01" * 50),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_range_of_a_file_is_downloaded(
    client: httpx2.Client, wanted: str, status: int, content: bytes
) -> None:
    rn = "ef:default:default:chatbot:file:local:c1:turn_2:assistant:1/a/b.bin"
    url = by_name(client, rn)["metadata"]["download_url"]
    response = client.get(url, headers={"Range": wanted})
    assert (response.status_code, response.content) == (status, content)


FILE_NAME = "ef:default:default:chatbot:{}:local:c1:turn_2:assistant:{}"


@pytest.mark.parametrize(
    ("stage", "path", "kind"),
    [
        ("file", "1/a/b.bin", "file"),
        ("file", "a/b.bin", "file"),
        ("execution", "out:a/b.bin", "execution"),
    ],
)
def test_a_file_is_named_with_its_version_or_as_the_newest_one(
    client: httpx2.Client, stage: str, path: str, kind: str
) -> None:
    name = FILE_NAME.format(stage, path)
    found = by_name(client, name)
    assert (found["rn"], found["content_type"]) == (name, kind)
    assert client.get(found["metadata"]["download_url"]).content == b"\x00\x01" * 50
    [item] = client.post(f"{HERE}/c2/read", json={"refs": [name]}).json()["items"]
    assert (item["requested"], item["status"]) == (name, "ok")
    assert item["ref"] == "cv:c1/fi:turn_2.outputs/a/b.bin@1"


@pytest.mark.parametrize(
    "ref",
    [
        "fi:turn_2.outputs/own.txt",
        "fi:turn_2.outputs/own.txt@1",
        "fi:turn_2.outputs/own.txt@1#L1-L1",
        "cv:c1/fi:turn_2.outputs/own.txt@1",
        "ar:turn_2.file.added.3",
        FILE_NAME.format("file", "own.txt"),
        FILE_NAME.format("file", "1/own.txt"),
        FILE_NAME.format("execution", "out:own.txt"),
    ],
)
def test_an_output_for_the_agent_alone_is_not_read(client: httpx2.Client, ref: str) -> None:
    answer = client.post(f"{HERE}/c1/read", json={"refs": [ref, "ar:turn_1.user.prompt"]})
    assert "for the agent alone" not in answer.json()["items"][0]["text"]
    assert answer.json()["missing"] == [ref]
    assert answer.json()["items"][1]["text"] == "tea"


@pytest.mark.parametrize(
    "rn",
    [
        "ef:default:default:chatbot:file:local:c1:turn_2:assistant:1/none.html",
        "ef:default:default:chatbot:file:local:c1:turn_2:assistant:own.txt",
        "ef:default:default:chatbot:execution:local:c1:turn_2:assistant:out:own.txt",
        "ef:default:default:chatbot:message:local:c1:turn_2:artifact:file.added.3",
        "ef:default:default:chatbot:execution:local:c1:turn_2:assistant:work:a/b.bin",
        "ef:default:default:chatbot:execution:local:c1:turn_2:assistant:a/b.bin",
        "ef:default:default:chatbot:file:local:c1:turn_2:assistant:none",
        "ef:default:default:chatbot:file:local:c1:turn_2:assistant:1/own.txt",
        "ef:default:default:chatbot:secret:local:c1:turn_2:assistant:1/tea.html",
        "ef:default:default:chatbot:message:local:c1:turn_9:assistant:user.prompt.1",
        "ef:default:default:chatbot:message:local:nowhere:turn_1:assistant:user.prompt.1",
    ],
)
def test_a_resource_name_of_nothing_is_not_found(client: httpx2.Client, rn: str) -> None:
    assert client.post("/by-rn", json={"rn": rn}).status_code == 404


def test_what_is_no_resource_name_is_refused(client: httpx2.Client) -> None:
    for rn in ("ar:turn_1.user.prompt", "ef:short", "../../etc/passwd"):
        assert client.post("/by-rn", json={"rn": rn}).status_code == 422


def test_blocks_refs_and_the_document_are_read(client: httpx2.Client) -> None:
    page = client.get(f"{HERE}/c1/blocks", params={"limit": 2}).json()
    assert [block["seq"] for block in page["blocks"]] == [1, 2]
    assert page["next_after"] == 2
    reading = client.post(
        f"{HERE}/c1/read", json={"refs": ["ar:turn_1.user.prompt", "ar:turn_9.user.prompt"]}
    ).json()
    assert [item["status"] for item in reading["items"]] == ["ok", "missing"]
    document = client.get(f"{HERE}/c1/export").json()
    assert document["conversation_id"] == "c1"


def artifacts(response: httpx2.Response, kind: str) -> list[dict[str, Any]]:
    """Return the data of the artifacts of a type."""
    fetched: dict[str, Any] = response.json()
    items = [item for turn in fetched["turns"] for item in turn["artifacts"]]
    return [item["data"] for item in items if item["type"] == kind]


def by_name(client: httpx2.Client, rn: str) -> dict[str, Any]:
    response = client.post("/by-rn", json={"rn": rn})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer
