"""A removal that was cut off is finished by the next open or forget: no word of what was forgotten is left in any file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loopline import Harness, Store
from loopline.harness.spaces import memory_file
from loopline.memory import ConversationMemory, Owner
from loopline.memory.turn_file import MemoryFile
from loopline.redaction.redacted_log import ForwardingLog
from loopline.store import SqlLog
from loopline.testing import FakeClock, ScriptedModel
from loopline.timeline import Block, ConversationKey, MemoryLog
from tests.crashes.killed_forgetting import GUIDE, SECRETS, TASKS, USER, forget, remember, traces
from tests.crashes.processes import finish, prompt, start, url

AT_ONCE = 8


class ForgettingLog(ForwardingLog):
    """A log in which somebody forgets a conversation just after it was read."""

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        """Read, and forget what was read."""
        blocks = await super().read(conversation, **options)
        await self.forget(conversation)
        await self.finish_forgetting([conversation])
        return blocks


KEYS = {name: ConversationKey(name=name, user=USER) for name in SECRETS}


async def open_next(store: Path, point: int) -> dict[str, bool]:
    """Open the store, every second time with a bundle; whether each conversation is forgotten."""
    place = url(store)
    opened = (
        Harness.open(GUIDE, store=place, model=ScriptedModel([]))
        if point % 2
        else Store.open(place)
    )
    async with opened:
        log = opened.log
        assert await log.forgetting() == []
        return {name: await log.forgotten(key) is not None for name, key in KEYS.items()}


async def check(store: Path, point: int) -> None:
    for name, is_forgotten in (await open_next(store, point)).items():
        assert bool(await asyncio.to_thread(traces, store, name)) is not is_forgotten, (point, name)
    await forget(store)
    for name in SECRETS:
        assert await asyncio.to_thread(traces, store, name) == [], (point, name)


@pytest.mark.campaign
def test_wherever_a_process_that_forgets_is_killed_the_next_one_removes_what_is_left(
    quick_folder: Path,
) -> None:
    lines = [line.split() for line in finish(start(f"{quick_folder}", tasks=TASKS))]
    index = memory_file(Path("talk.db")).name
    # Without a kill the words are in the store, the index and a blob; some kills leave them in each of these alone.
    assert lines[0][0] == "0"
    assert set(lines[0][1].split(",")) == {"talk.db", index}
    assert index in {line[1] for line in lines}
    assert len(lines) > 60

    async def check_all() -> None:
        for first in range(0, len(lines), AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, len(lines)))
            stores = [(quick_folder / f"{number}" / "talk.db", number) for number in numbers]
            await asyncio.gather(*(check(store, number) for store, number in stores))

    asyncio.run(check_all())


async def test_a_store_that_was_open_meanwhile_finishes_it_with_its_next_forget(
    tmp_path: Path,
) -> None:
    store = tmp_path / "talk.db"
    await remember(store)
    async with Store.open(url(store)) as opened:
        async with await SqlLog.open(url(store)) as other:  # as a process that ends here
            await other.forget(KEYS["one"])
        assert traces(store, "one") == [memory_file(store).name]
        assert await opened.log.forgetting() == [KEYS["one"]]
        assert await opened.forget_user("nobody") == []
        assert traces(store, "one") == []
        assert await opened.log.forgetting() == []


async def test_a_conversation_that_is_forgotten_while_it_is_indexed_does_not_stay_in_the_index(
    tmp_path: Path,
) -> None:
    log, key = ForgettingLog(MemoryLog(FakeClock())), KEYS["one"]
    await log.append(key, [prompt(f"Remember the {SECRETS['one']}.")], seen=0)
    memory = ConversationMemory(log, lambda: MemoryFile(tmp_path / "index"), FakeClock())
    await memory.follow(Owner.of(key))
    await memory.close()
    assert await log.forgotten(key) is not None
    assert traces(tmp_path / "index", "one") == []
