"""A backup is a store of its own: the same blocks, and all the blobs they name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from loopline import Store
from loopline.errors import StoreError
from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.timeline import Block, ConversationKey
from tests.crashes.processes import HERE, THERE, prompt, url

LARGE = prompt("é" * 30_000)


async def opened(store: Path) -> SqlLog:
    return await SqlLog.open(url(store), blobs=FileBlobs.for_store(store))


async def everything(store: Path) -> dict[ConversationKey, list[Block]]:
    async with await opened(store) as log:
        summaries = await log.conversations()
        return {c.conversation: list(await log.read(c.conversation)) for c in summaries}


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    async with await opened(tmp_path / "talk.db") as log:
        await log.append(HERE, [LARGE, prompt("small")], seen=0)
        await log.append(THERE, [prompt("there")], seen=0)
        await log.fork(HERE, ConversationKey(name="fork"), 1)
    return tmp_path / "talk.db"


async def test_a_backup_holds_what_the_store_held(store: Path) -> None:
    target = store.parent / "kept" / "copy.db"
    async with Store.open(url(store), read_only=True) as kept_store:
        await kept_store.backup(target)
    assert await everything(target) == await everything(store)
    assert [path.name for path in target.parent.iterdir() if path.is_file()] == ["copy.db"]


async def test_a_backup_goes_on_by_itself(store: Path) -> None:
    target = store.parent / "copy.db"
    async with await opened(store) as log:
        await log.backup(target, FileBlobs.for_store(target))
        await log.append(HERE, [prompt("later")], seen=2)
    async with await opened(target) as copy:
        assert len(await copy.read(HERE)) == 2
        assert [block.seq for block in await copy.append(HERE, [prompt("else")], seen=2)] == [3]


class Interrupting(FileBlobs):
    """Blobs, of which the first that is copied finds its conversation forgotten."""

    forget: Callable[[], None] | None = None

    def get(self, name: str) -> bytes:
        forget, self.forget = self.forget, None
        if forget is not None:
            forget()
        return super().get(name)


def blobs_of(store: Path) -> list[Path]:
    return list(Path(f"{store}-blobs").glob("??/*"))


async def test_what_is_forgotten_during_a_backup_is_not_in_it(store: Path) -> None:
    target = store.parent / "copy.db"
    loop = asyncio.get_running_loop()
    async with await opened(store) as other:

        def forget() -> None:
            forgetting = other.forget(HERE, cascade=True)
            asyncio.run_coroutine_threadsafe(forgetting, loop).result()

        await other.append(THERE, [prompt("ü" * 40_000)], seen=1)
        blobs = Interrupting.for_store(store)
        blobs.forget = forget
        async with await SqlLog.open(url(store), blobs=blobs) as log:
            await log.backup(target, FileBlobs.for_store(target))
    assert await everything(target) == await everything(store)
    assert len(blobs_of(target)) == 1


async def test_a_backup_that_fails_leaves_nothing(store: Path) -> None:
    target = store.parent / "copies" / "copy.db"
    for blob in blobs_of(store):
        blob.unlink()
    async with await opened(store) as log:
        with pytest.raises(StoreError, match="is missing"):
            await log.backup(target, FileBlobs.for_store(target))
    assert list(target.parent.iterdir()) == []


async def test_a_backup_that_fails_leaves_the_blobs_that_were_there_before(store: Path) -> None:
    copies = FileBlobs.for_store(store.parent / "copies.db")
    async with await opened(store) as log:
        await log.backup(store.parent / "first.db", copies)
        before = blobs_of(store.parent / "copies.db")
        await log.append(HERE, [prompt(f"{n}" * 40_000) for n in range(9)], seen=2)
        newer = [blob for blob in blobs_of(store) if blob.name not in {b.name for b in before}]
        max(newer).unlink()
        with pytest.raises(StoreError, match="is missing"):
            await log.backup(store.parent / "second.db", copies)
    assert blobs_of(store.parent / "copies.db") == before


async def test_a_backup_replaces_nothing(store: Path) -> None:
    target = store.parent / "copy.db"
    target.write_text("dear diary")
    async with await opened(store) as log:
        with pytest.raises(StoreError, match=r"copy\.db exists already"):
            await log.backup(target, FileBlobs.for_store(target))
        with pytest.raises(StoreError, match=r"talk\.db exists already"):
            await log.backup(store, FileBlobs.for_store(store))
    assert target.read_text() == "dear diary"


async def test_a_backup_that_lacks_a_blob_is_none(store: Path) -> None:
    (blob,) = store.with_name("talk.db-blobs").glob("??/*")
    blob.unlink()
    target = store.parent / "copy.db"
    async with await opened(store) as log:
        with pytest.raises(StoreError, match=f"{blob} is missing"):
            await log.backup(target, FileBlobs.for_store(target))
    assert not target.exists()


async def test_a_backup_is_made_while_others_write(store: Path) -> None:
    target = store.parent / "copy.db"
    async with await opened(store) as log:

        async def write() -> None:
            for number in range(2, 60):
                await log.append(HERE, [prompt("x"), prompt("y")], seen=2 * number - 2)

        writing = asyncio.create_task(write())
        await log.append(THERE, [prompt("more")], seen=1)
        await log.backup(target, FileBlobs.for_store(target))
        await writing
    copied = (await everything(target))[HERE]
    assert copied == (await everything(store))[HERE][: len(copied)]
    assert len(copied) % 2 == 0


async def test_what_is_in_memory_has_no_backup(tmp_path: Path) -> None:
    async with Store.open("memory:") as store:
        with pytest.raises(StoreError, match="a store in memory"):
            await store.backup(tmp_path / "copy.db")
