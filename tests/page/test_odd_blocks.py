"""Blocks that are damaged, unknown or very long are rows of a window, each as what it is."""

from __future__ import annotations

from pathlib import Path

import httpx2

from loopline.harness import DocumentStore, ReadOnlyStore
from loopline.server import reading_app
from tests.support.live_server import serving
from tests.support.page_conversations import LONG, write_damaged_store, write_long_session

HERE = "/conversations/default/default/c1"


def test_a_damaged_block_does_not_conceal_the_others(tmp_path: Path) -> None:
    with serving(reading_app(ReadOnlyStore(write_damaged_store(tmp_path / "talk.db")))) as url:
        answer = httpx2.get(f"{url}{HERE}/window", params={"user_id": "local"}).json()
    types = [row["type"] for row in answer["rows"]]
    assert types[0] == "damaged"
    assert "does not match its digest" in answer["rows"][0]["problem"]
    assert "assistant.completion" in types
    assert [row["seq"] for row in answer["rows"]] == list(range(1, answer["head"] + 1))


def test_a_line_of_5_mb_is_sent_only_if_all_of_it_is_wanted(tmp_path: Path) -> None:
    with serving(reading_app(DocumentStore(write_long_session(tmp_path)))) as url:
        here = f"{url}/conversations/default/default/session/window"
        part = httpx2.get(here, params={"user_id": "local", "limit": 1})
        whole = httpx2.get(
            here, params={"user_id": "local", "limit": 1, "characters": LONG}, timeout=60
        )
    assert len(part.content) < 6_000
    assert part.json()["rows"][0]["cut"] == [{"path": ["text"], "characters": LONG}]
    assert len(whole.json()["rows"][0]["body"]["text"]) == LONG
