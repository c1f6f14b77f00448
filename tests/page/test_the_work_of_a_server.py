"""The turns that run, wait or have failed are listed for those who may see them."""

from __future__ import annotations

import time
from pathlib import Path

import httpx2

from loopline import Bundle, tool
from loopline.errors import ModelRequestError
from loopline.server import ApiKeys, Principal, add_key, app
from loopline.testing import Call, Fail, Say, ScriptedModel, Wait
from tests.support.live_server import serving
from tests.support.page_conversations import TEA, tea_model

HERE = "/conversations/default/default"
GUIDE = Bundle(id="guide", instructions="Answer.")


def states(client: httpx2.Client) -> dict[str, str]:
    return {row["conversation"]: row["state"] for row in client.get("/work").json()["items"]}


def test_a_turn_that_waits_and_one_that_failed_are_listed_and_a_stop_ends_the_first() -> None:
    script: list[Say | Fail] = [
        Say("", Call("tea.order", tea="sencha", grams=5)),
        Fail(ModelRequestError("the model is asleep")),
    ]
    with (
        serving(app(TEA, store="memory:", model=ScriptedModel(script, strict=False))) as url,
        httpx2.Client(base_url=url, timeout=30) as client,
    ):
        for name in ("waits", "fails"):
            client.post(f"{HERE}/{name}/messages", json={"text": "Order tea."})
        rows = {row["conversation"]: row for row in client.get("/work").json()["items"]}
        assert (rows["waits"]["state"], rows["waits"]["calls"]) == ("waiting", ["tea.order"])
        assert rows["fails"]["state"] == "failed"
        assert "asleep" in rows["fails"]["reason"]
        assert client.post(f"{HERE}/waits/stop").json() == {"done": True}
        assert states(client) == {"fails": "failed"}


def test_a_turn_that_runs_is_listed_while_it_runs() -> None:
    model = ScriptedModel([Wait(1.5), "Done."], strict=False)
    with (
        serving(app(GUIDE, store="memory:", model=model)) as url,
        httpx2.Client(base_url=url, timeout=30) as client,
    ):
        client.post(f"{HERE}/c1/messages", json={"text": "go", "background": True})
        seen = set[str]()
        for _ in range(200):
            found = states(client)
            seen.update(found.values())
            if not found and seen:
                break
            time.sleep(0.05)
        assert "running" in seen
        assert states(client) == {}


def test_work_of_others_is_listed_only_for_a_privileged_caller(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    ann = add_key(file, Principal(user="ann"))
    bob = add_key(file, Principal(user="bob"))
    boss = add_key(file, Principal(user="boss", roles=frozenset({"privileged"})))
    far = add_key(file, Principal(tenant="far", user="boss", roles=frozenset({"privileged"})))
    script = [Say("", Call("tea.order", tea="sencha", grams=5))]
    served = app(TEA, store="memory:", auth=ApiKeys.read(file), model=tea_model(script))
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        own = {"Authorization": f"Bearer {ann}"}
        client.post(f"{HERE}/waits/messages", json={"text": "Order tea."}, headers=own)
        numbers = [
            len(client.get("/work", headers={"Authorization": f"Bearer {key}"}).json()["items"])
            for key in (ann, bob, boss, far)
        ]
    assert numbers == [1, 0, 1, 0]


@tool(effect="write", approve=True)
def pay(euros: int) -> str:
    """Pay."""
    return f"{euros} paid"


@tool(effect="write", approve=True, people=2)
def refund(euros: int) -> str:
    """Refund."""
    return f"{euros} refunded"


def test_approvals_of_all_conversations_are_listed_for_those_who_may_give_them(
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys.json"
    roles = {"ann": "", "bob": "", "boss": "privileged", "cleo": "approver"}
    keys = {
        user: add_key(file, Principal(user=user, roles=frozenset({role} if role else ())))
        for user, role in roles.items()
    }
    keys["far"] = add_key(
        file, Principal(tenant="far", user="boss", roles=frozenset({"privileged"}))
    )
    script = [Call("shop.pay", euros=5), Call("shop.refund", euros=9)]
    shop = Bundle(id="shop", tools=[pay, refund])
    served = app(
        shop, store="memory:", auth=ApiKeys.read(file), model=ScriptedModel(script, strict=False)
    )
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        headers = {user: {"Authorization": f"Bearer {key}"} for user, key in keys.items()}
        for name in ("pays", "refunds"):
            client.post(f"{HERE}/{name}/messages", json={"text": "go"}, headers=headers["ann"])
        rows = {
            user: client.get("/approvals", headers=headers[user]).json()["items"] for user in keys
        }
        nobody = client.get("/approvals")
    assert nobody.status_code == 401
    assert {user: sorted(row["tool"] for row in items) for user, items in rows.items()} == {
        "ann": ["shop.pay", "shop.refund"],
        "bob": [],
        "boss": ["shop.pay", "shop.refund"],
        "cleo": ["shop.refund"],
        "far": [],
    }
    [refunding] = rows["cleo"]
    assert (refunding["conversation"], refunding["arguments"]) == ("refunds", {"euros": 9})
    assert (refunding["people"], refunding["approved_by"], refunding["user"]) == (2, [], "ann")
