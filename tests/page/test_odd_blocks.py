"""Blocks that are damaged, unknown or very long are rows of a window, each as what it is."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import httpx2

from loopline import Bundle, Harness
from loopline.harness import DocumentStore, ReadOnlyStore
from loopline.server import reading_app
from loopline.testing import ScriptedModel
from tests.support.hostile_conversation import in_thread
from tests.support.live_server import serving

GUIDE = Bundle(id="guide", instructions="Answer.")
HERE = "/conversations/default/default/c1"
LONG = 5 * 1024 * 1024


async def tell(store: str, answer: str = "Three minutes.") -> None:
    async with Harness.open(GUIDE, store=store, model=ScriptedModel([answer])) as harness:
        await harness.conversation("c1").say("How long?")


def test_a_damaged_block_does_not_conceal_the_others(tmp_path: Path) -> None:
    file = tmp_path / "talk.db"
    in_thread(tell(f"sqlite:///{file}"))
    with sqlite3.connect(file) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in names:
            database.execute(f'DROP TRIGGER "{name}"')
        database.execute("UPDATE blocks SET body = replace(body, 'How', 'Why') WHERE seq = 1")
    database.close()
    with serving(reading_app(ReadOnlyStore(f"sqlite:///{file}"))) as url:
        answer = httpx2.get(f"{url}{HERE}/window", params={"user_id": "local"}).json()
    types = [row["type"] for row in answer["rows"]]
    assert types[0] == "damaged"
    assert "does not match its digest" in answer["rows"][0]["problem"]
    assert "assistant.completion" in types
    assert [row["seq"] for row in answer["rows"]] == list(range(1, answer["head"] + 1))


def test_a_line_of_5_mb_is_sent_only_if_all_of_it_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    message = {"role": "user", "content": "x" * LONG}
    file.write_text(json.dumps({"type": "user", "message": message}), encoding="utf-8")
    with serving(reading_app(DocumentStore(file))) as url:
        here = f"{url}/conversations/default/default/session/window"
        part = httpx2.get(here, params={"user_id": "local", "limit": 1})
        whole = httpx2.get(
            here, params={"user_id": "local", "limit": 1, "characters": LONG}, timeout=60
        )
    assert len(part.content) < 6_000
    assert part.json()["rows"][0]["cut"] == [{"path": ["text"], "characters": LONG}]
    assert len(whole.json()["rows"][0]["body"]["text"]) == LONG
