"""Write a store, its heads, a document and a cassette as this version does: `python -m tests.old_stores.make NAME`.

What earlier versions wrote stays as it is. It has to be opened, read and carried on for ever.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from loopline import Harness, Store
from loopline.harness.model_choice import Cassette
from loopline.reader.document_import import heads_text
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from tests.support.forged_documents import guarded
from tests.support.peers import openai_replies as oai
from tests.support.peers.openai_like import openai_like

FOLDER = Path(__file__).parent
LEDGER = "ledger"
SAID = ("It is 7.", "As I said.")
KEY = b"a key that everybody knows"


SCRIPT: list[Entry] = [
    Say("[D] SQLite it is", Call("react.plan", mode="new", steps=["look", "answer"])),
    Say("✓ [1] seen", Call("play.find", url="https://example.com"), Call("play.alone", text="x")),
    Say("✓ [2] so\nIt is [[S:1]]."),
    Say("And again."),
    Call("play.note", name="n", ledger=LEDGER),
]


async def record(file: Path) -> None:
    """A cassette of a model that answers twice."""
    async with openai_like(*(oai.Says(text) for text in SAID)) as peer:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("OPENAI_BASE_URL", f"{peer.url}/v1")
            environment.setenv("OPENAI_API_KEY", "sk-nobody")
            cassette = Cassette(file, mode="record")
            opened = Harness.open(guarded, store="memory:", model="openai:m", cassette=cassette)
            async with opened as harness:
                for text in SAID:
                    await harness.conversation("c").say(text)


async def write(folder: Path, name: str) -> None:
    """A conversation of two turns, its fork, and one that waits for the user."""
    store = f"sqlite:///{folder}/talk.db"
    async with Harness.open(
        guarded, store=store, model=ScriptedModel(SCRIPT), clock=FakeClock()
    ) as harness:
        talk = harness.conversation("talk")
        await talk.say("first")
        await talk.followup("by the way")
        await talk.say("second")
        await talk.feedback("turn_1", "ok", text="short")
        await talk.fork(seq=len(await talk.blocks()) - 2, name="fork")
        document = await talk.export()
        await harness.conversation("waits").say("write it down")
    async with Store.open(store, read_only=True) as kept_store:
        heads = {item.conversation: item.head for item in await kept_store.audit()}
    (FOLDER / f"{name}.heads.json").write_text(f"{heads_text(heads, KEY)}\n", "utf-8")
    with closing(sqlite3.connect(folder / "talk.db")) as database:
        dumped = "\n".join(database.iterdump())
    (FOLDER / f"{name}.sql").write_text(f"{dumped}\n", "utf-8")
    (FOLDER / f"{name}.json").write_text(json.dumps(document, ensure_ascii=False) + "\n", "utf-8")


def main() -> None:
    """Write what is to be kept under that name."""
    with TemporaryDirectory() as folder:
        asyncio.run(write(Path(folder), sys.argv[1]))
    asyncio.run(record(FOLDER / f"{sys.argv[1]}.jsonl"))


if __name__ == "__main__":
    main()
