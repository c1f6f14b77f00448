"""Wake-ups of workers in a file: what is forgotten does not hide later inputs."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

from loopline.store import SqlLog
from loopline.store.input_wake_ups import InputWakeUps
from loopline.timeline import NEW_TURN, ConversationKey, Entry, UserPrompt

HERE = ConversationKey(name="here")
GONE = ConversationKey(name="gone")


def prompts(number: int) -> list[Entry]:
    return [Entry(body=UserPrompt(text=f"{n}"), turn=NEW_TURN) for n in range(number)]


async def test_an_input_wakes_after_the_newest_rows_were_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "talk.db"
    async with (
        asyncio.timeout(10),
        await SqlLog.open(f"sqlite:///{path}") as log,
        aclosing(InputWakeUps(path).receive()) as received,
    ):
        waiting = asyncio.ensure_future(anext(received))
        await asyncio.sleep(0.1)
        await log.append(GONE, prompts(9), seen=0)
        assert await waiting == GONE
        await log.forget(GONE)
        assert await anext(received) is None
        await log.append(HERE, prompts(1), seen=0)
        assert await anext(received) == HERE
