"""A round runs again in a fork with another model, other settings or other instructions; the recorded one stays."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import httpx2
import pytest

from loopline import Bundle, tool
from loopline.server import app
from loopline.testing import Call, Say, ScriptedModel
from tests.support.live_server import serving

HERE = "/conversations/default/default/c1"
ordered: list[str] = []


@tool(effect="read")
async def look(tea: str) -> str:
    """Look up a tea."""
    return f"{tea} is in stock"


@tool(effect="write", key="shop")
async def order(tea: str) -> str:
    """Order a tea."""
    ordered.append(tea)
    return f"ordered {tea}"


SHOP = Bundle(id="shop", instructions="Be brief.", tools=[look, order])


@pytest.fixture
def client() -> Generator[httpx2.Client]:
    """Return a client of a server that has run a turn of three rounds, and has a second model with the role `careful`."""
    ordered.clear()
    first = ScriptedModel(
        [
            Say("", Call("shop.look", tea="sencha")),
            Say("", Call("shop.order", tea="sencha")),
            "Done.",
        ],
        name="scripted:first",
        strict=False,
    )
    careful = ScriptedModel(
        [Say("", Call("shop.order", tea="gyokuro")), "I ordered gyokuro."],
        name="scripted:careful",
        strict=False,
    )
    served = app(SHOP, store="memory:", model={"general": first, "careful": careful})
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as opened:
        assert opened.post(f"{HERE}/messages", json={"text": "Order sencha."}).status_code == 200
        yield opened


def rerun(client: httpx2.Client, body: dict[str, Any], number: int = 2) -> str:
    """Run a round of the first turn again, wait for the end of its turn, and return the path of the fork."""
    answer = client.post(f"{HERE}/turns/turn_1/rounds/{number}/rerun", json=body)
    assert answer.status_code == 202, answer.text
    fork = f"/conversations/default/default/{answer.json()['conversation_id']}"
    for _ in range(200):
        if client.get(f"{fork}/turns/turn_1").json()["exit_reason"] != "interrupted":
            return fork
        time.sleep(0.05)
    raise AssertionError("the turn of the fork did not end")


def prompt(client: httpx2.Client, path: str, number: int) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"{path}/turns/turn_1/rounds/{number}/prompt").json()
    return answer


def test_another_model_gets_the_same_messages(client: httpx2.Client) -> None:
    before = client.get(f"{HERE}/export").json()
    fork = rerun(client, {"model": "careful", "effects": True})
    recorded, again = prompt(client, HERE, 2), prompt(client, fork, 2)
    assert (recorded["model"], again["model"]) == ("scripted:first", "scripted:careful")
    assert again["system"] == recorded["system"]
    assert [row["text"] for row in again["messages"]] == [
        row["text"] for row in recorded["messages"]
    ]
    assert client.get(f"{fork}/turns/turn_1").json()["answer"] == "I ordered gyokuro."
    assert client.get(f"{HERE}/export").json() == before
    assert ordered == ["sencha", "gyokuro"]


def test_without_effects_only_reads_run(client: httpx2.Client) -> None:
    fork = rerun(client, {"model": "careful"})
    assert ordered == ["sencha"]
    rows = client.get(f"{fork}/window", params={"limit": 500}).json()["rows"]
    results = [row["body"] for row in rows if row["type"] == "react.tool.result"]
    assert [result.get("status", "ok") for result in results] == ["ok", "denied"]


def test_other_instructions_and_settings_are_in_the_prompt(client: httpx2.Client) -> None:
    body = {
        "model": "careful",
        "instructions": "Explain every step.",
        "settings": {"max_tokens": 700},
    }
    again = prompt(client, rerun(client, body), 2)
    assert again["system"].startswith("Explain every step.\n\nBundle: ")
    assert again["settings"] == {"max_tokens": 700}
    assert prompt(client, HERE, 2)["system"].startswith("Be brief.\n\n")


def test_the_roles_of_models_are_listed(client: httpx2.Client) -> None:
    assert client.get(f"{HERE}/models").json() == {
        "general": "scripted:first",
        "careful": "scripted:careful",
    }


@pytest.mark.parametrize(
    ("number", "body", "status"),
    [
        (9, {}, 404),
        (2, {"model": "nobody:none"}, 422),
        (2, {"settings": {"stop": ["x"] * 17}}, 422),
    ],
)
def test_what_cannot_run_again_is_refused_and_forks_nothing(
    client: httpx2.Client, number: int, body: dict[str, Any], status: int
) -> None:
    answer = client.post(f"{HERE}/turns/turn_1/rounds/{number}/rerun", json=body)
    assert answer.status_code == status, answer.text
    assert client.get("/stored").json()["total"] == 1


def test_forks_are_a_tree(client: httpx2.Client) -> None:
    fork = rerun(client, {"model": "careful"})
    own = client.post(f"{fork}/fork", json={"seq": client.get(f"{fork}/window").json()["head"]})
    assert own.status_code == 201
    rows = {row["conversation"]: row for row in client.get(f"{HERE}/forks").json()["items"]}
    first, second = fork.rpartition("/")[2], own.json()["conversation_id"]
    assert list(rows) == ["c1", first, second]
    assert [rows[name]["parent"] for name in rows] == ["", "c1", first]
    assert (rows[first]["turn_id"], rows[first]["round"], rows[first]["model"]) == (
        "turn_1",
        2,
        "scripted:careful",
    )


def test_what_a_round_that_runs_again_asks_is_listed_where_people_approve() -> None:
    first = ScriptedModel([Say("", Call("shop.look", tea="sencha")), "Done."], strict=False)
    careful = ScriptedModel([Say("", Call("shop.order", tea="gyokuro"))], strict=False)
    bundle = Bundle(
        id="shop", instructions="Be brief.", tools=[look, order], approve=["shop.order"]
    )
    served = app(bundle, store="memory:", model={"general": first, "careful": careful})
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        assert client.post(f"{HERE}/messages", json={"text": "Order sencha."}).status_code == 200
        fork = rerun(client, {"model": "careful", "effects": True})
        [waiting] = client.get("/approvals").json()["items"]
        [turn] = client.get("/work").json()["items"]
    assert waiting["conversation"] == turn["conversation"] == fork.rpartition("/")[2]
    assert turn["state"] == "waiting"


def test_a_fork_in_which_one_of_two_calls_was_approved_lists_the_other() -> None:
    calls = [Call("shop.order", tea="sencha"), Call("shop.order", tea="gyokuro")]
    bundle = Bundle(id="shop", instructions="Be brief.", tools=[order], approve=["shop.order"])
    served = app(bundle, store="memory:", model=ScriptedModel([Say("", *calls)], strict=False))
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        asked = client.post(f"{HERE}/messages", json={"text": "Order both."}).json()
        seq = client.get(f"{HERE}/blocks").json()["blocks"][-1]["seq"]
        fork = client.post(f"{HERE}/fork", json={"seq": seq}).json()["conversation_id"]
        first = asked["pending"][0]["call_id"]
        there = f"/conversations/default/default/{fork}"
        client.post(f"{there}/answers", json={"values": {first: True}}).raise_for_status()
        listed = [row["conversation"] for row in client.get("/approvals").json()["items"]]
    assert sorted(listed) == sorted(["c1", "c1", fork])
