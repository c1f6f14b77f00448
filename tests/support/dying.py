"""A process that dies at the n-th append of a turn, before or after it is committed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path

from loopline import Harness, LooplineError
from loopline.adapters.sql import SqlLog
from loopline.models import Abilities, Prompt, Reply, TextDelta, ToolCall
from loopline.timeline import Block, Conversation, ConversationSummary, Entry, TimelineLog
from tests.support.playground import bundle


class DyingLog:
    """A log whose n-th append kills the process."""

    def __init__(self, log: TimelineLog, point: str, n: int) -> None:
        self._log = log
        self._point = point
        self._left = n

    async def append(
        self,
        conversation: Conversation,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None = None,
        key: str = "",
    ) -> Sequence[Block]:
        """Append, and die at the chosen moment."""
        self._left -= 1
        if self._left == 0 and self._point == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        blocks = await self._log.append(conversation, entries, seen=seen, term=term, key=key)
        if self._left == 0 and self._point == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return blocks

    async def read(
        self,
        conversation: Conversation,
        *,
        after: int = 0,
        limit: int | None = None,
        types: Sequence[str] = (),
        turn: int | None = None,
        last: int | None = None,
        also: Sequence[int] = (),
    ) -> Sequence[Block]:
        """Read."""
        return await self._log.read(
            conversation,
            after=after,
            limit=limit,
            types=types,
            turn=turn,
            last=last,
            also=also,
        )

    def lease(
        self, conversation: Conversation, *, wait: bool = True
    ) -> AbstractAsyncContextManager[int]:
        """Lease."""
        return self._log.lease(conversation, wait=wait)

    async def find(self, conversation: Conversation) -> ConversationSummary | None:
        """Find."""
        return await self._log.find(conversation)

    async def conversations(
        self,
        *,
        user: str | None = None,
        project: str | None = None,
        tenant: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[ConversationSummary]:
        """List."""
        return await self._log.conversations(
            user=user, project=project, tenant=tenant, after=after, before=before, limit=limit
        )

    async def holds(self, conversation: Conversation, term: int) -> bool:
        """Whether the lease stands."""
        return await self._log.holds(conversation, term)

    async def restore(self, conversation: Conversation, blocks: Sequence[Block]) -> None:
        """Restore."""
        await self._log.restore(conversation, blocks)

    async def fork(self, conversation: Conversation, fork: Conversation, seq: int) -> None:
        """Fork."""
        await self._log.fork(conversation, fork, seq)

    async def forget(self, conversation: Conversation, *, cascade: bool = False) -> None:
        """Forget."""
        await self._log.forget(conversation, cascade=cascade)

    async def forgotten(self, conversation: Conversation) -> datetime | None:
        """Whether it was forgotten."""
        return await self._log.forgotten(conversation)

    async def close(self) -> None:
        """Close."""
        await self._log.close()


class Repeatable:
    """A model that says the same to the same prompt, so that it can be asked again after a crash."""

    name = "repeatable"
    abilities = Abilities()

    def __init__(self, ledger: str) -> None:
        note = ToolCall(name="play.note", arguments={"name": "n", "ledger": ledger})
        look = ToolCall(name="play.look", arguments={"text": "a"})
        plan = ToolCall(name="react.plan", arguments={"mode": "new", "steps": ["act", "answer"]})
        self._replies = {
            1: Reply(calls=(plan,)),
            3: Reply(text="… [1]", calls=(look, note, note, look)),
            8: Reply(text="✓ [1]\n✓ [2]\nDone."),
        }

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """What belongs to so many messages."""
        yield self._replies[len(prompt.messages)]


async def live(store: str, ledger: str, point: str, n: int) -> str:
    """Begin the turn, or carry it on when there is one; the exit reason."""
    async with await SqlLog.open(store) as log:
        model = Repeatable(ledger)
        async with Harness.open(bundle, store=DyingLog(log, point, n), model=model) as harness:
            talk = harness.conversation("c")
            begun = await log.find(talk.conversation)
            return (await (talk.resume() if begun else talk.say("go"))).exit_reason


def run(store: str, ledger: str, point: str, n: int, said: str) -> None:
    """Live the turn and write down how it ended; with nothing to carry on, nothing is said."""
    with contextlib.suppress(LooplineError):
        Path(said).write_text(asyncio.run(live(store, ledger, point, n)), encoding="utf-8")
