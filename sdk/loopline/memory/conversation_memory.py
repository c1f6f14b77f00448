"""The memory of past turns: a search over the log through an index that follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, TypedDict, Unpack

from loopline.clock import Clock
from loopline.errors import LooplineError
from loopline.memory.turn_hits import TurnHit, rank_turns
from loopline.memory.turn_index import (
    IndexedConversation,
    TurnCandidates,
    TurnIndex,
    TurnIndexDamaged,
)
from loopline.memory.turn_query import (
    DEFAULT_HITS,
    HALF_LIFE_DAYS,
    TurnQuery,
    ordinal_of,
    split_ordinal,
)
from loopline.memory.turn_texts import SEARCHED_TYPES, TARGETS, Owner, Target, turn_texts
from loopline.memory.turn_vectors import TurnVectors, VectorsMade
from loopline.memory.user_facts import UserFacts
from loopline.models import well_formed
from loopline.search import SharedEmbedder, VectorState
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    Block,
    BodyUnion,
    ConversationKey,
    ConversationSummary,
    RoundStart,
    TimelineLog,
    UserRecalled,
    parent_name,
)

Scope = Literal["conversation", "user"]
SCOPES: tuple[Scope, ...] = ("conversation", "user")
BLOCKS_AT_ONCE = 500
LONGEST_DAYS = 100_000
LIKELY_DAYS = 365
RECENCY_SHARE = 0.15
"""How much recency counts when the turn is sought that a text is about; how well it matches counts the rest."""
_NO_TURN = 2**62
_READ_TYPES = (*SEARCHED_TYPES, "user.recalled")
_RECALLED = BodyUnion[UserRecalled](UserRecalled)
_ROUND_STARTS = BodyUnion[RoundStart](RoundStart)


class TurnFilterOptions(TypedDict, total=False):
    """The optional keywords of a running turn's search in past turns; `TurnFilter` has their defaults."""

    targets: Collection[Target]
    ordinal: int | str | None
    since: datetime | None
    until: datetime | None
    days: float | None
    half_life_days: float


class MemoryFilterOptions(TurnFilterOptions, total=False):
    """Those, and the conversation and turn that ask, which for a running turn are its own."""

    conversation: str
    before_turn: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFilter:
    """What a search in past turns is limited to.

    `conversation` is the one that asks: refs of its own turns are short, and scope "conversation" means it. Its turns
    from `before_turn` on are left out. `ordinal` is a number, or a text such as "second" or "last"; `days` is how old a
    text may be. What is said counts half as recent after each `half_life_days`.
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
        """Return the query of these limits, with an ordinal that its text names taken out of it.

        Raises:
            LooplineError: a limit is wrong.
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
        problems = {
            f"limit is {limit}: it must be 1 or more": limit < 1,
            f"no scope {scope!r}: it is one of {', '.join(SCOPES)}": scope not in SCOPES,
            "the scope is a conversation: name it with conversation=": (
                scope == "conversation" and not self.conversation
            ),
            f"no target in {list(self.targets)}: they are {', '.join(TARGETS)}": (
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
        raise LooplineError(f"no ordinal {value!r}: write 2, -1, second or last")
    return ordinal or None


class ConversationMemory:
    """Searches what was said in past turns. It keeps nothing that the log has not: the index is filled from the log."""

    def __init__(
        self,
        log: TimelineLog,
        open_index: Callable[[], TurnIndex],
        clock: Clock,
        embedder: SharedEmbedder | None = None,
    ) -> None:
        """Call `open_index`, which may block, with the first use.

        Without an `embedder`, which stays open, only words are searched.
        """
        self._log = log
        self.facts: UserFacts = UserFacts(log)
        self._vectors = None if embedder is None else TurnVectors(embedder, self._index)
        self._open_index = open_index
        self._clock = clock
        self._opened: TurnIndex | None = None
        self._turn = asyncio.Lock()

    async def search(
        self,
        query: str = "",
        *,
        user: str,
        scope: Scope = "user",
        limit: int = DEFAULT_HITS,
        tenant: str = DEFAULT_TENANT,
        project: str = DEFAULT_PROJECT,
        **filters: Unpack[MemoryFilterOptions],
    ) -> Sequence[TurnHit]:
        """Return the turns of the user that best match the query, best first.

        With an embedder they are found in other words too: a few new texts are embedded at once, many in the background.
        Without words in the query the newest turns come first. A phrase such as "the second turn" in it counts as its
        ordinal. Only conversations of that user in that project of that tenant are searched. Child runs are not.

        Raises:
            LooplineError: a filter is wrong, or scope "conversation" has no conversation.
            StoreError: the log or the index cannot be read.
        """
        owner, now = Owner(user=user, tenant=tenant, project=project), self._clock.now()
        checked = TurnFilter(**filters).query(query, owner, scope, limit, now)
        try:
            candidates = await self._candidates(checked)
        except TurnIndexDamaged:
            candidates = await self._candidates(checked)
        return await asyncio.to_thread(partial(rank_turns, checked, candidates, now))

    async def ready(
        self,
        *,
        user: str,
        tenant: str = DEFAULT_TENANT,
        project: str = DEFAULT_PROJECT,
        progress: VectorsMade | None = None,
    ) -> None:
        """Wait until all texts of the user are indexed and have their vectors, if there is an embedder.

        Raises:
            EmbeddingError: the vectors cannot be made; the message says what to do.
        """
        owner = Owner(user=user, tenant=tenant, project=project)
        await self.follow(owner)
        if self._vectors is not None:
            await self._vectors.ready(owner, progress)

    async def vectors(
        self, *, user: str, tenant: str = DEFAULT_TENANT, project: str = DEFAULT_PROJECT
    ) -> VectorState | None:
        """Return how many indexed texts of the user have their vectors; None without an embedder."""
        if self._vectors is None:
            return None
        return await self._vectors.state(Owner(user=user, tenant=tenant, project=project))

    async def follow(self, owner: Owner) -> None:
        """Bring the index up to date with the owner's conversations: add what is new, remove what was forgotten."""
        index = await self._index()
        async with self._turn:
            summaries, indexed = await self._removed(index, owner)
            for summary in summaries:
                await self._extend(index, summary, indexed.get(summary.conversation.name))

    async def remove(self, forgotten: Sequence[ConversationKey]) -> None:
        """Remove forgotten conversations from the index; child runs among them are not in it."""
        index = await self._index()
        async with self._turn:
            for conversation in forgotten:
                if parent_name(conversation.name) is None:
                    await index.remove(conversation)

    async def close(self) -> None:
        """Stop making vectors and close the index; the log stays open."""
        if self._vectors is not None:
            await self._vectors.close()
        if self._opened is not None:
            await self._opened.close()

    async def _index(self) -> TurnIndex:
        if self._opened is None:
            self._opened = await asyncio.to_thread(self._open_index)
        return self._opened

    async def _candidates(self, query: TurnQuery) -> TurnCandidates:
        await self.follow(query.owner)
        vector = None
        if self._vectors is not None and query.terms:
            vector = await self._vectors.query_vector(query.owner, well_formed(query.text))
        return await (await self._index()).candidates(query, vector)

    async def _removed(
        self, index: TurnIndex, owner: Owner
    ) -> tuple[Sequence[ConversationSummary], Mapping[str, IndexedConversation]]:
        """Remove what was forgotten; return the owner's conversations, and how far they are indexed."""
        summaries = await self._log.conversations(
            user=owner.user, project=owner.project, tenant=owner.tenant
        )
        indexed = await index.indexed(owner)
        for name in indexed.keys() - {summary.conversation.name for summary in summaries}:
            await index.remove(owner.key(name))
        return summaries, indexed

    async def _extend(
        self,
        index: TurnIndex,
        summary: ConversationSummary,
        before: IndexedConversation | None,
    ) -> None:
        key, uid = summary.conversation, summary.uid
        head = before.head if before is not None and before.uid == uid else 0
        while head < summary.head:
            blocks = await self._log.read(key, after=head, types=_READ_TYPES, limit=BLOCKS_AT_ONCE)
            last = blocks[-1].seq if blocks else 0
            head = last if len(blocks) == BLOCKS_AT_ONCE else max(summary.head, last)
            after = IndexedConversation(uid=uid, head=head)
            recalled = await self._recalled(key, blocks)
            texts = await asyncio.to_thread(turn_texts, key.name, blocks)
            if not await index.extend(key, before, after, texts, recalled):
                return  # another process follows the log too
            before = after
        if await self._log.forgotten(key) is not None:  # meanwhile, so that nobody else removes it
            await index.remove(key)

    async def _recalled(self, key: ConversationKey, blocks: Sequence[Block]) -> set[int]:
        """Return the seqs of inputs that were taken back before a round took them."""
        recalled: set[int] = set()
        for block, body in _RECALLED.among(blocks):
            between = block.seq - body.said  # no more rounds than blocks can stand between them
            rounds = await self._log.read(
                key, after=body.said, types=["react.round.start"], limit=between
            )
            is_taken = any(
                body.said in start.takes and taking.seq < block.seq
                for taking, start in _ROUND_STARTS.among(rounds)
            )
            if not is_taken:
                recalled.add(body.said)
        return recalled


@dataclass(frozen=True, slots=True)
class PastTurns:
    """The turns that a running turn may search: those of its own user, up to the one before it."""

    memory: ConversationMemory
    conversation: ConversationKey
    turn: int

    async def search(
        self,
        query: str = "",
        *,
        scope: Scope = "user",
        limit: int = DEFAULT_HITS,
        **filters: Unpack[TurnFilterOptions],
    ) -> Sequence[TurnHit]:
        """Return the turns that best match the query, best first.

        Raises:
            LooplineError: a filter is wrong.
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
        """Return the id of the conversation's past turn that a text is most likely about; None if none matches."""
        hits = await self.search(text, scope="conversation", days=LIKELY_DAYS)
        matching = [hit for hit in hits if hit.relevance > 0 or hit.words > 0]
        best = max(matching, key=_likelihood, default=None)
        return None if best is None else best.turn_id


def _likelihood(hit: TurnHit) -> float:
    return (1 - RECENCY_SHARE) * hit.relevance + RECENCY_SHARE * hit.recency
