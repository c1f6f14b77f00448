"""The turns that run, wait or have failed are listed for those who may see them."""

from __future__ import annotations

import time
from pathlib import Path

import httpx2

from loopline import Bundle
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
