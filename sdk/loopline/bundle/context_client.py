"""The context client of a workflow: it searches past turns and reads what refs name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from loopline.memory import PastTurns, Scope, Target, TurnFilterOptions, TurnHit
from loopline.reader import Reader, Reading

DEFAULT_ITEMS = 5


class ContextRAGClient:
    """Searches the past turns of the turn's user, and reads refs. It keeps nothing of its own."""

    def __init__(self, turns: PastTurns, reader: Reader) -> None:
        self._turns = turns
        self._reader = reader

    async def search(
        self,
        query: str = "",
        *,
        kind: Target | None = None,
        kinds: Sequence[Target] = (),
        limit: int | None = None,
        top_k: int = DEFAULT_ITEMS,
        scope: Scope = "user",
        **filters: Unpack[TurnFilterOptions],
    ) -> Sequence[TurnHit]:
        """Return the past turns that best match the query, best first.

        `kind` or `kinds` say what is searched: `user`, `assistant`, `attachment`, `notes` or `summary`; all without
        either. `top_k` is the same as `limit`.

        Raises:
            LooplineError: a filter is wrong.
        """
        targets: list[Target] = [*kinds]
        if kind is not None:
            targets.append(kind)
        if targets:
            filters["targets"] = targets
        count = top_k if limit is None else limit
        return await self._turns.search(query, scope=scope, limit=count, **filters)

    async def recent(
        self,
        *,
        kinds: Sequence[Target] = (),
        limit: int = DEFAULT_ITEMS,
        scope: Scope = "user",
    ) -> Sequence[TurnHit]:
        """Return the newest past turns, the newest first.

        Raises:
            LooplineError: there is no such kind, or the limit is below 1.
        """
        return await self.search(kinds=kinds, limit=limit, scope=scope)

    async def fetch_ctx(self, refs: Sequence[str]) -> Reading:
        """Return an item for each ref, of this conversation, another one of the user, or the knowledge space.

        A ref that cannot be read has the status `missing` or `gone` and a message.
        """
        return await self._reader.read(refs)
