"""The memory of past turns: searches in an index that is filled from the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, TypedDict, Unpack, get_args

from loopline import timeline as tl
from loopline.clock import Clock
from loopline.errors import LooplineError
from loopline.memory.turn_hits import TurnHit, rank_turns
from loopline.memory.turn_index import (
    IndexedConversation,
    QueryVector,
    TurnCandidates,
    TurnIndex,
    TurnIndexDamaged,
    TurnUpdate,
)
from loopline.memory.turn_texts import (
    DEFAULT_HITS,
    HALF_LIFE_DAYS,
    SEARCHED_TYPES,
    TARGETS,
    Owner,
    Target,
    TurnQuery,
    ordinal_of,
    split_ordinal,
    turn_texts,
)
from loopline.memory.user_facts import UserFacts
from loopline.models import well_formed
from loopline.search import (
    STATIC_KEY,
    UNRELATED_STATIC,
    Embedder,
    EmbeddingError,
    SharedEmbedder,
    VectorState,
)

logger: logging.Logger = logging.getLogger("loopline")

MAX_AWAITED_TEXTS = 32
"""A search waits for missing vectors if at most this number of texts need one."""
VectorsMade = Callable[[int, int], None]
"""A callback with the number of texts that have a vector and the number of all texts."""


class TurnVectors:
    """Makes the vectors of an owner's texts in batches, and stores each batch in the index.

    One task for each owner runs in the background.
    """

    def __init__(self, embedder: SharedEmbedder, index: Callable[[], Awaitable[TurnIndex]]) -> None:
        """`index` returns the open index."""
        self._embedder = embedder
        self._index = index
        self._tasks: dict[Owner, asyncio.Task[None]] = {}
        self._postponed = set[Owner]()
        self._problems: dict[Owner, str] = {}

    async def query_vector(self, owner: Owner, text: str, *, is_new: bool) -> QueryVector | None:
        """Return the vector of a query; None if no vectors can be made, and then `state` has the reason.

        Missing vectors of texts are made first. If more than `MAX_AWAITED_TEXTS` are missing, the call does not wait for
        them, and these texts are found only by words until their vectors are made. With `is_new` no text of
        the owner has a vector yet; the embedder is then not even loaded, and `start_postponed` starts to make them.
        """
        index = await self._index()
        if is_new and (await index.vector_state(owner, "")).total > MAX_AWAITED_TEXTS:
            self._postponed.add(owner)  # loading the embedder would take longer than this search
            return None
        try:
            embedder = await asyncio.to_thread(self._embedder.get)
            await self._catch_up(owner, embedder)
            vector = await asyncio.to_thread(embedder.embed_query, text)
        except EmbeddingError as error:
            self._problems[owner] = str(error)
            return None
        return QueryVector(embedder.key, vector)

    async def ready(self, owner: Owner, progress: VectorsMade | None) -> None:
        """Make the missing vectors of the owner's texts, and wait for all. `progress` is called about every 0.2 seconds.

        Raises:
            EmbeddingError: the vectors cannot be made; the message says what to do.
        """
        embedder = await asyncio.to_thread(self._embedder.get)
        index = await self._index()

        async def report() -> None:
            if progress is not None:
                state = await index.vector_state(owner, embedder.key)
                progress(state.done, state.total)

        while await index.list_unembedded(owner, embedder.key, 1):
            task = self._start(owner)
            while not task.done():
                await report()
                await asyncio.wait({task}, timeout=0.2)
            await task
        await report()

    async def state(self, owner: Owner) -> VectorState:
        """Return the progress of the owner's vectors, and the reason if the owner's last attempt to make some failed."""
        try:
            embedder = await asyncio.to_thread(self._embedder.get)
        except EmbeddingError as error:
            return VectorState(problem=str(error))
        state = await (await self._index()).vector_state(owner, embedder.key)
        return replace(state, problem=self._problems.get(owner, ""))

    async def close(self) -> None:
        """Cancel the tasks. Stored vectors are kept."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def _catch_up(self, owner: Owner, embedder: Embedder) -> None:
        """Start to make the missing vectors; wait for them if at most `MAX_AWAITED_TEXTS` texts need one."""
        index = await self._index()
        while missing := await index.list_unembedded(owner, embedder.key, MAX_AWAITED_TEXTS + 1):
            task = self._start(owner)
            if len(missing) > MAX_AWAITED_TEXTS:
                return
            await asyncio.shield(task)
        self._problems.pop(owner, None)

    def start_postponed(self, owner: Owner) -> None:
        """Start to make the owner's vectors, if a query did not wait for the embedder."""
        if owner in self._postponed:
            self._postponed.discard(owner)
            self._start(owner)

    def _start(self, owner: Owner) -> asyncio.Task[None]:
        """Return the task that makes the owner's vectors; start one if none is running."""
        task = self._tasks.get(owner)
        if task is None or task.done():
            task = asyncio.create_task(self._embed(owner))
            task.add_done_callback(partial(self._finish, owner))
            self._tasks[owner] = task
        return task

    async def _embed(self, owner: Owner) -> None:
        """Make and store the missing vectors of the owner in batches, newest texts first, until none is missing."""
        embedder = await asyncio.to_thread(self._embedder.get)
        index = await self._index()
        while missing := await index.list_unembedded(owner, embedder.key, embedder.batch):
            texts: Sequence[str] = list(missing.values())
            vectors = await asyncio.to_thread(embedder.embed_passages, texts)
            await index.add_vectors(owner, embedder.key, dict(zip(missing, vectors, strict=True)))
        self._problems.pop(owner, None)

    def _finish(self, owner: Owner, task: asyncio.Task[None]) -> None:
        """Remove a task that is done, and keep the reason if it failed."""
        if self._tasks.get(owner) is task:  # a new task may have been started already
            del self._tasks[owner]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._problems[owner] = str(error)
            if not isinstance(error, EmbeddingError):
                logger.error("vectors of past turns cannot be made", exc_info=error)


Scope = Literal["conversation", "user"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
BLOCKS_AT_ONCE = 500
CONVERSATIONS_AT_ONCE = 64
"""The most conversations that share a transaction of the index, whose statements cost as much for one as for many."""
LONGEST_DAYS = 100_000
LIKELY_DAYS = 365
RECENCY_SHARE = 0.15
"""The weight of recency in `likeliest`; the rest is the weight of relevance."""
_NO_TURN = 2**62
_READ_TYPES = (*SEARCHED_TYPES, "user.recalled")
_RECALLED = tl.BodyUnion[tl.UserRecalled](tl.UserRecalled)
_ROUND_STARTS = tl.BodyUnion[tl.RoundStart](tl.RoundStart)


class TurnFilterOptions(TypedDict, total=False):
    """The filters of a search from a running turn. `TurnFilter` has their defaults."""

    targets: Collection[Target]
    ordinal: int | str | None
    since: datetime | None
    until: datetime | None
    days: float | None
    half_life_days: float


class MemoryFilterOptions(TurnFilterOptions, total=False):
    """The filters of a search, and the conversation and turn from which the search is made."""

    conversation: str
    before_turn: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFilter:
    """The limits of a search in past turns.

    `conversation` is the conversation from which the search is made. Refs of its turns are short, the scope
    "conversation" is limited to it, and its turns from `before_turn` on are left out. `ordinal` is a position, as a
    number or a text such as "second" or "last". `days` is the largest age of a text. The recency of a text halves after
    each `half_life_days`.
    """

    conversation: str = ""
    before_turn: int | None = None
    targets: Collection[Target] = TARGETS
    ordinal: int | str | None = None
    since: datetime | None = None
    until: datetime | None = None
    days: float | None = None
    half_life_days: float = HALF_LIFE_DAYS

    def query(self, text: str, owner: Owner, scope: Scope, limit: int, now: datetime) -> TurnQuery:
        """Check the filter, and return the query; `days` count back from `now`.

        Without an `ordinal`, a phrase such as "the second turn" becomes the ordinal, and is removed from the text.

        Raises:
            LooplineError: a field of the filter, the scope or the limit is not valid.
        """
        self._check(scope, limit)
        ordinal = _ordinal(self.ordinal)
        if ordinal is None:
            text, ordinal = split_ordinal(text)
        oldest = None if self.days is None else now - timedelta(days=self.days)
        return TurnQuery(
            owner=owner,
            text=text,
            targets=tuple(target for target in TARGETS if target in self.targets),
            conversation=self.conversation if scope == "conversation" else None,
            ordinal=ordinal,
            since=max(filter(None, (self.since, oldest)), default=None),
            until=self.until,
            current=self.conversation,
            before_turn=_NO_TURN if self.before_turn is None else self.before_turn,
            limit=limit,
            half_life_days=self.half_life_days,
        )

    def _check(self, scope: Scope, limit: int) -> None:
        """Raise a LooplineError that names the first invalid field of the filter, the scope or the limit."""
        problems = {
            f"limit is {limit}: it must be 1 or more": limit < 1,
            f"unknown scope {scope!r}: the scopes are {', '.join(SCOPES)}": scope not in SCOPES,
            "the scope is a conversation: name it with conversation=": (
                scope == "conversation" and not self.conversation
            ),
            f"unknown target in {list(self.targets)}: the targets are {', '.join(TARGETS)}": (
                not set(self.targets) <= set(TARGETS)
            ),
            f"days is {self.days}: it must be above 0 and at most 100,000": (
                self.days is not None and not 0 < self.days <= LONGEST_DAYS
            ),
            f"half_life_days is {self.half_life_days}: it must be above 0": (
                not self.half_life_days > 0
            ),
            "since and until need a time zone": any(
                moment is not None and moment.utcoffset() is None
                for moment in (self.since, self.until)
            ),
        }
        for problem, holds in problems.items():
            if holds:
                raise LooplineError(problem)


def _ordinal(value: int | str | None) -> int | None:
    ordinal = ordinal_of(value) if isinstance(value, str) else value
    if value and not ordinal:
        raise LooplineError(f"{value!r} is not an ordinal: write 2, -1, second or last")
    return ordinal or None


class ConversationMemory:
    """Searches the texts of past turns. The index contains only data from the log, and is updated before each search."""

    def __init__(
        self,
        log: tl.TimelineLog,
        open_index: Callable[[], TurnIndex],
        clock: Clock,
        embedder: SharedEmbedder | None = None,
    ) -> None:
        """Set up the memory. `open_index` is called in a thread at the first use.

        Without an `embedder` only words are searched. `close` does not close the embedder.
        """
        self._log = log
        self.facts: UserFacts = UserFacts(log)
        self._vectors = None if embedder is None else TurnVectors(embedder, self._index)
        self._open_index = open_index
        self._clock = clock
        self._opened: TurnIndex | None = None
        self._opening = asyncio.Lock()
        self._turn = asyncio.Lock()

    async def search(
        self,
        query: str = "",
        *,
        user: str,
        scope: Scope = "user",
        limit: int = DEFAULT_HITS,
        tenant: str = tl.DEFAULT_TENANT,
        project: str = tl.DEFAULT_PROJECT,
        **filters: Unpack[MemoryFilterOptions],
    ) -> Sequence[TurnHit]:
        """Return at most `limit` turns of the user, those that match the query best, best first.

        With an embedder, turns are also found in other words. If many texts have no vectors yet, the vectors are made
        in the background, and these texts are found by words until then. If the query has no words, the newest turns
        are returned. A phrase such as "the second turn" in the query selects turns by position. Only conversations of
        this user in this project of this tenant are searched, without child runs. New turns are indexed first. If the
        index was damaged, it is filled from the log again.

        Raises:
            LooplineError: `limit` is below 1, the scope or a filter is not valid, or the scope is "conversation" and
                `conversation` is missing.
            StoreError: the log or the index cannot be read.
        """
        owner = Owner(user=user, tenant=tenant, project=project)
        now = self._clock.now()
        checked = TurnFilter(**filters).query(query, owner, scope, limit, now)
        try:
            candidates = await self._candidates(checked)
        except TurnIndexDamaged:
            candidates = await self._candidates(checked)
        hits = await asyncio.to_thread(partial(rank_turns, checked, candidates, now))
        if self._vectors is not None:
            self._vectors.start_postponed(owner)
        return hits

    async def ready(
        self,
        *,
        user: str,
        tenant: str = tl.DEFAULT_TENANT,
        project: str = tl.DEFAULT_PROJECT,
        progress: VectorsMade | None = None,
    ) -> None:
        """Index all texts of the user; with an embedder, also make all their vectors and wait for them.

        Raises:
            EmbeddingError: the vectors cannot be made; the message says what to do.
            StoreError: the log cannot be read, or the index cannot be written.
        """
        owner = Owner(user=user, tenant=tenant, project=project)
        await self.follow(owner)
        if self._vectors is not None:
            await self._vectors.ready(owner, progress)

    async def vectors(
        self, *, user: str, tenant: str = tl.DEFAULT_TENANT, project: str = tl.DEFAULT_PROJECT
    ) -> VectorState | None:
        """Return the progress of the vectors of the user's indexed texts; None without an embedder."""
        if self._vectors is None:
            return None
        return await self._vectors.state(Owner(user=user, tenant=tenant, project=project))

    async def follow(self, owner: Owner) -> bool:
        """Update the index from the log: add the new texts of the owner, and remove forgotten conversations.

        Return True if blocks were indexed and no conversation of the owner was indexed before.
        """
        index = await self._index()
        async with self._turn:
            summaries, progress = await self._remove_forgotten(index, owner)
            behind = [
                (summary, before)
                for summary in summaries
                if (before := progress.get(summary.conversation.name)) is None
                or before.uid != summary.uid
                or before.head < summary.head
            ]
            if not behind:
                return False
            while behind:
                behind = [
                    *await self._extend(index, owner, behind[:CONVERSATIONS_AT_ONCE]),
                    *behind[CONVERSATIONS_AT_ONCE:],
                ]
            # A conversation may have been forgotten during this call.
            await self._remove_forgotten(index, owner)
        return not progress

    async def remove(self, forgotten: Sequence[tl.ConversationKey]) -> None:
        """Remove forgotten conversations from the index. Child runs are ignored, because they are not indexed."""
        index = await self._index()
        async with self._turn:
            for conversation in forgotten:
                if tl.parent_name(conversation.name) is None:
                    await index.remove(conversation)

    async def close(self) -> None:
        """Stop making vectors and close the index; the log stays open."""
        if self._vectors is not None:
            await self._vectors.close()
        async with self._opening:
            if self._opened is not None:
                await self._opened.close()

    async def _index(self) -> TurnIndex:
        async with self._opening:
            if self._opened is None:
                self._opened = await asyncio.to_thread(self._open_index)
            return self._opened

    async def _candidates(self, query: TurnQuery) -> TurnCandidates:
        """Update the index, make the vector of the query if possible, and return the texts to rank.

        With the static embedder, the least cosine is `UNRELATED_STATIC`.
        """
        is_new = await self.follow(query.owner)
        vector = None
        if self._vectors is not None and query.terms:
            text = well_formed(query.text)
            vector = await self._vectors.query_vector(query.owner, text, is_new=is_new)
        candidates = await (await self._index()).candidates(query, vector)
        is_static = vector is not None and vector.embedder == STATIC_KEY
        return replace(candidates, least_cosine=UNRELATED_STATIC) if is_static else candidates

    async def _remove_forgotten(
        self, index: TurnIndex, owner: Owner
    ) -> tuple[Sequence[tl.ConversationSummary], Mapping[str, IndexedConversation]]:
        """Remove forgotten conversations; return the owner's conversations and the progress in each indexed one."""
        summaries = await self._log.conversations(
            user=owner.user, project=owner.project, tenant=owner.tenant
        )
        progress = await index.read_progress(owner)
        for name in progress.keys() - {summary.conversation.name for summary in summaries}:
            await index.remove(owner.key(name))
        return summaries, progress

    async def _extend(
        self, index: TurnIndex, owner: Owner, behind: Sequence[_Behind]
    ) -> list[_Behind]:
        """Index the next blocks of these conversations; return those with further blocks, each with its new progress.

        A conversation that another process has indexed meanwhile is left out.
        """
        reads = [self._read_update(summary, before) for summary, before in behind]
        updates = await asyncio.gather(*reads)
        extended = await index.extend(owner, updates)  # others were extended by another process
        return [
            (summary, update.after)
            for (summary, _), update in zip(behind, updates, strict=True)
            if update.conversation in extended and update.after.head < summary.head
        ]

    async def _read_update(
        self, summary: tl.ConversationSummary, before: IndexedConversation | None
    ) -> TurnUpdate:
        """Return the texts of the next blocks after the progress `before`, at most `BLOCKS_AT_ONCE` blocks.

        If the conversation has another uid than `before`, it is read from its start.
        """
        key = summary.conversation
        uid = summary.uid
        head = before.head if before is not None and before.uid == uid else 0
        blocks = await self._log.read(key, after=head, types=_READ_TYPES, limit=BLOCKS_AT_ONCE)
        last = blocks[-1].seq if blocks else 0
        head = last if len(blocks) == BLOCKS_AT_ONCE else max(summary.head, last)
        recalled = await self._find_recalled(key, blocks)
        texts = await asyncio.to_thread(turn_texts, key.name, blocks)
        return TurnUpdate(
            conversation=key.name,
            before=before,
            after=IndexedConversation(uid=uid, head=head),
            texts=texts,
            recalled=recalled,
        )

    async def _find_recalled(self, key: tl.ConversationKey, blocks: Sequence[tl.Block]) -> set[int]:
        """Return the seqs of inputs that were recalled before a round used them."""
        recalls = [
            (block.seq, body.said)
            for block, body in _RECALLED.among(blocks)
            if 0 < body.said < block.seq  # a forged recall may have any number
        ]
        if not recalls:
            return set()
        first = min(said for _, said in recalls)
        between = recalls[-1][0] - first  # there cannot be more rounds than blocks
        rounds = await self._log.read(key, after=first, types=["react.round.start"], limit=between)
        taken_at: dict[int, int] = {}
        for taking, start in _ROUND_STARTS.among(rounds):
            for said in start.takes:
                taken_at.setdefault(said, taking.seq)
        return {said for seq, said in recalls if taken_at.get(said, seq) >= seq}


_Behind = tuple[tl.ConversationSummary, IndexedConversation | None]
"""A conversation with blocks that are not indexed yet, and its progress."""


@dataclass(frozen=True, slots=True)
class PastTurns:
    """The turns that a running turn may search: those of its user; of its own conversation only earlier turns."""

    memory: ConversationMemory
    conversation: tl.ConversationKey
    turn: int

    async def search(
        self,
        query: str = "",
        *,
        scope: Scope = "user",
        limit: int = DEFAULT_HITS,
        **filters: Unpack[TurnFilterOptions],
    ) -> Sequence[TurnHit]:
        """Return at most `limit` turns, those that match the query best, as `ConversationMemory.search` does.

        Raises:
            LooplineError: `limit` is below 1, or the scope or a filter is not valid.
            StoreError: the log or the index cannot be read.
        """
        key = self.conversation
        return await self.memory.search(
            query,
            user=key.user,
            tenant=key.tenant,
            project=key.project,
            scope=scope,
            limit=limit,
            conversation=key.name,
            before_turn=self.turn,
            **filters,
        )

    async def likeliest(self, text: str) -> str | None:
        """Return the id of the turn of this conversation that a text is most likely about, by relevance and recency.

        Return None if no turn of the last year matches.
        """
        hits = await self.search(text, scope="conversation", days=LIKELY_DAYS)
        matching = [hit for hit in hits if hit.relevance > 0 or hit.words > 0]
        best = max(matching, key=_likelihood, default=None)
        return None if best is None else best.turn_id


def _likelihood(hit: TurnHit) -> float:
    return (1 - RECENCY_SHARE) * hit.relevance + RECENCY_SHARE * hit.recency
