"""All conversations of a user are exported or forgotten at once, and those of anybody that nobody uses any more."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from loopline import Harness, Store
from loopline.errors import StoreError
from loopline.files import Attachment
from loopline.models import JsonObject
from loopline.testing import FakeClock
from tests.support.echo_model import EchoModel
from tests.support.playground import bundle
from tests.support.warm_programs import warm_program

OWNERS = [("ann", "acme"), ("ben", "acme"), ("ann", "other")]


async def _stored(folder: Path, clock: FakeClock) -> str:
    """Store two conversations of each owner, a fork of the first, and a file of each; return the URL."""
    url = f"sqlite:///{folder}/store.db"
    async with Harness.open(bundle, store=url, model=EchoModel(), clock=clock) as harness:
        for user, tenant in OWNERS:
            for project in ("tea", "coffee"):
                talk = harness.conversation("../c", user=user, tenant=tenant, project=project)
                secret = f"secret of {user} at {tenant}"
                table = Attachment("table.csv", secret.encode(), "text/csv")
                await talk.say(secret, attachments=[table])
                await talk.fork(seq=1, name="fork")
            await harness.memory.search("secret", user=user, tenant=tenant, project="tea")
    return url


def _stored_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


async def test_nothing_that_a_forgotten_user_said_is_left_on_the_disk(tmp_path: Path) -> None:
    url = await _stored(tmp_path, FakeClock())
    async with Store.open(url) as store:
        forgotten = await store.forget_user("ann", tenant="acme")
        left = [
            (each.conversation.user, each.conversation.tenant)
            async for each in store.conversations()
        ]
    stored = _stored_bytes(tmp_path)
    assert len(forgotten) == 4
    assert sorted(set(left)) == [("ann", "other"), ("ben", "acme")]
    assert b"secret of ann at acme" not in stored
    assert b"secret of ann at other" in stored
    assert b"secret of ben at acme" in stored


async def test_an_export_of_a_user_has_every_conversation_and_nobody_elses(tmp_path: Path) -> None:
    url = await _stored(tmp_path, FakeClock())
    folder = tmp_path / "export"
    async with Store.open(url, read_only=True) as store:
        assert await store.export_user("ann", folder, tenant="acme") == 4
        with pytest.raises(StoreError, match="exists already"):
            await store.export_user("ann", folder, tenant="acme")
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["1.json", "2.json", "3.json", "4.json", "index.json"]
    index: JsonObject = json.loads((folder / "index.json").read_text())
    written = "".join((folder / name).read_text() for name in names)
    assert "secret of ann at acme" in written
    assert "at other" not in written
    assert "of ben" not in written
    async with Store.open("memory:") as copy:
        for name in names[:-1]:
            document: JsonObject = json.loads((folder / name).read_text())
            loaded = await copy.load(document, name=name, user="ann")
            assert await loaded.blocks()
    assert isinstance(listed := index["conversations"], list)
    assert len(listed) == 4


KILLED_EXPORT = """
import asyncio, os, signal, sys
from loopline import Store

class Killed(Store):
    made = 0

    def _conversation(self, conversation):
        self.made += 1
        if self.made == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._conversation(conversation)

async def main():
    async with Killed(sys.argv[1], read_only=True, clock=None, limits=None) as store:
        await store.export_user("ann", sys.argv[2], tenant="acme")

asyncio.run(main())
"""


async def test_an_export_that_was_killed_is_written_again_and_other_folders_are_left_alone(
    tmp_path: Path,
) -> None:
    url = await _stored(tmp_path, FakeClock())
    folder, other = tmp_path / "export", tmp_path / "other"
    killed = await asyncio.create_subprocess_exec(
        *warm_program("-c", KILLED_EXPORT, url, str(folder))
    )
    assert await killed.wait() == -signal.SIGKILL
    cut = {file.name for file in folder.iterdir()}
    assert cut == {"1.json", "2.json", "index.json.part"}
    (folder / "9.json").write_text("a conversation that was forgotten meanwhile")
    other.mkdir()
    (other / "1.json").write_text("mine")
    async with Store.open(url, read_only=True) as store:
        with pytest.raises(StoreError, match="exists already"):
            await store.export_user("ann", other, tenant="acme")
        assert await store.export_user("ann", folder, tenant="acme") == 4
    assert sorted(file.name for file in folder.iterdir()) == [
        *("1.json", "2.json", "3.json", "4.json", "index.json"),
    ]
    assert (other / "1.json").read_text() == "mine"


async def test_only_what_nobody_uses_is_forgotten_and_a_shown_part_after_its_fork(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    begin: datetime = clock.now()
    url = await _stored(tmp_path, clock)
    clock.advance(timedelta(days=40).total_seconds())
    async with Harness.open(bundle, store=url, model=EchoModel(), clock=clock) as harness:
        talk = harness.conversation("fork", user="ben", tenant="acme", project="tea")
        await talk.say("still here")
    async with Store.open(url) as store:
        outcome = await store.forget_inactive(begin + timedelta(days=30), tenant="acme")
        left = {each.conversation async for each in store.conversations(tenant="acme")}
        elsewhere = [each async for each in store.conversations(tenant="other")]
    assert len(outcome.forgotten) == 6
    [shown] = outcome.shown_by_forks
    assert (shown.name, shown.user, shown.project) == ("../c", "ben", "tea")
    assert left == {shown, talk.conversation}
    assert len(elsewhere) == 4
