"""A server whose disk fails says so at `/ready`, and stores no message that it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from loopline import Store
from loopline.server import app
from tests.support.echo_model import EchoModel
from tests.support.failing_disks import unsynced
from tests.support.live_server import SHOP, serving

HERE = "/conversations/default/default"


@contextmanager
def client_of(store: Path) -> Generator[httpx2.Client]:
    served = app(SHOP, store=f"sqlite:///{store}", model=EchoModel())
    with serving(served) as url, httpx2.Client(base_url=url, timeout=30) as client:
        yield client


def say(client: httpx2.Client, text: str) -> httpx2.Response:
    return client.post(f"{HERE}/talk/messages", json={"text": text})


def stored_texts(store: Path) -> list[str]:
    async def read() -> list[str]:
        async with Store.open(f"sqlite:///{store}") as opened:
            blocks = await opened.conversation("talk").blocks(types=["user.prompt"])
            return [getattr(block.body, "text", "") for block in blocks]

    return asyncio.run(read())


def test_a_server_whose_disk_failed_is_not_ready_and_stores_no_message_until_it_is_started_again(
    tmp_path: Path,
) -> None:
    store = tmp_path / "talk.db"
    with client_of(store) as client:
        assert say(client, "one").status_code == 200
        assert client.get("/ready").status_code == 200
        with unsynced(store):
            failed = say(client, "two")
        assert (failed.status_code, failed.json()["action_by"]) == (503, "operator")
        assert "are in the store" in failed.json()["detail"]
        for _ in range(3):
            refused = say(client, "three")
            assert refused.status_code == 503
            assert "nothing was stored" in refused.json()["detail"]
        ready = client.get("/ready")
        assert ready.status_code == 503
        assert "the disk of the store has failed" in ready.json()["detail"]
        assert str(tmp_path) not in ready.text
        assert client.get("/health").status_code == 200
        assert client.get(f"{HERE}/talk/blocks").status_code == 200
    assert stored_texts(store) == ["one", "two"]
    with client_of(store) as client:
        assert client.get("/ready").status_code == 200
        assert say(client, "four").json()["answer"] == "You said: four"


def test_a_server_whose_store_is_missing_is_not_ready_until_it_is_back(tmp_path: Path) -> None:
    store, aside = tmp_path / "talk.db", tmp_path / "aside"
    with client_of(store) as client:
        assert say(client, "one").status_code == 200
        store.rename(aside)
        assert client.get("/ready").status_code == 503
        aside.rename(store)
        assert client.get("/ready").status_code == 200
        assert say(client, "two").status_code == 200
