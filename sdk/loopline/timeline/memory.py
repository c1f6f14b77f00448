"""Conversations kept in memory: the specification that every other log agrees with."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from loopline.clock import Clock, SystemClock
from loopline.errors import ConflictError
from loopline.timeline.blocks import NEW_TURN, Block, Body, Entry, Imported, as_entry, stored_type
from loopline.timeline.codec import encode_checked, matches_types
from loopline.timeline.log import (
    DEFAULT_LIMITS,
    ConversationKey,
    ConversationLimits,
    ConversationSize,
    ConversationSummary,
    check_append,
    check_forget,
    check_fork,
    check_not_forgotten,
    check_restored,
    check_room,
    parent_name,
    title_of,
    warn_if_nearly_full,
)


@dataclass(slots=True)
class _StoredConversation:
    uid: str
    title: str
    blocks: list[Block] = field(default_factory=list[Block])
    sizes: list[int] = field(default_factory=list[int])
    """How many bytes the body of each block has, as it would be stored."""
    counts: Counter[tuple[int, str]] = field(default_factory=Counter[tuple[int, str]])
    keys: set[str] = field(default_factory=set[str])
    turns: int = 0
    shows: dict[ConversationKey, int] = field(default_factory=dict[ConversationKey, int])
    """Of whom a fork shows blocks, up to which place."""
    bytes: int = 0

    @property
    def size(self) -> ConversationSize:
        """How long the conversation is."""
        return ConversationSize(blocks=len(self.blocks), bytes=self.bytes)


class MemoryLog:
    """A timeline log that forgets when the process ends."""

    def __init__(
        self, clock: Clock | None = None, limits: ConversationLimits = DEFAULT_LIMITS
    ) -> None:
        self._clock = clock or SystemClock()
        self._limits = limits
        self._kept: dict[ConversationKey, _StoredConversation] = {}
        self._running: dict[ConversationKey, asyncio.Lock] = {}
        self._terms: Counter[ConversationKey] = Counter()
        self._forgotten: dict[ConversationKey, datetime] = {}

    async def append(
        self,
        conversation: ConversationKey,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None = None,
        key: str = "",
    ) -> Sequence[Block]:
        """Keep the entries, and return every block after `seen`."""
        if not entries:
            return await self.read(conversation, after=seen)
        sizes = [_size(entry.body) for entry in entries]
        check_append(entries, term=term, newest=self._terms[conversation])
        check_not_forgotten(conversation, self._forgotten.get(conversation))
        if conversation not in self._kept:
            self._kept[conversation] = _StoredConversation(
                uid=self._clock.new_id(), title=title_of(entries)
            )
        kept = self._kept[conversation]
        if not key or key not in kept.keys:
            before = kept.size
            check_room(conversation, entries, before, self._limits)
            self._keep(kept, entries, sizes, term or 0)
            kept.keys.add(key)
            warn_if_nearly_full(conversation, before, kept.size, self._limits)
        return kept.blocks[seen:]

    def _keep(
        self, kept: _StoredConversation, entries: Sequence[Entry], sizes: Sequence[int], term: int
    ) -> None:
        kept.sizes += sizes
        kept.bytes += sum(sizes)
        if any(entry.turn == NEW_TURN for entry in entries):
            kept.turns += 1
        now = self._clock.now()
        for entry in entries:
            turn = entry.turn or kept.turns
            kind = stored_type(entry.body)
            kept.counts[turn, kind] += 1
            kept.blocks.append(
                Block(
                    seq=len(kept.blocks) + 1,
                    turn=turn,
                    round=entry.round,
                    n=kept.counts[turn, kind],
                    ts=now,
                    term=term,
                    body=entry.body,
                )
            )

    async def read(
        self,
        conversation: ConversationKey,
        *,
        after: int = 0,
        limit: int | None = None,
        types: Sequence[str] = (),
        turn: int | None = None,
        last: int | None = None,
        also: Sequence[int] = (),
    ) -> Sequence[Block]:
        """The blocks after `after`."""
        kept = self._kept.get(conversation)
        every = kept.blocks if kept else []
        before = [every[seq - 1] for seq in sorted(set(also)) if 0 < seq <= min(after, len(every))]
        found = every[after:]
        if types:
            found = [block for block in found if matches_types(block.type, types)]
        if turn is not None:
            found = [block for block in found if block.turn == turn]
        found = found[:limit]
        return [*before, *(found if last is None else found[max(len(found) - last, 0) :])]

    @asynccontextmanager
    async def lease(
        self, conversation: ConversationKey, *, wait: bool = True
    ) -> AsyncGenerator[int, None]:
        """The right to run the conversation."""
        lock = self._running.setdefault(conversation, asyncio.Lock())
        if not wait and lock.locked():
            raise ConflictError(f"conversation {conversation.name!r} is being run already")
        async with lock:
            check_not_forgotten(conversation, self._forgotten.get(conversation))
            self._terms[conversation] += 1
            yield self._terms[conversation]

    async def find(self, conversation: ConversationKey) -> ConversationSummary | None:
        """What is known of the conversation."""
        kept = self._kept.get(conversation)
        return None if kept is None else _summary(conversation, kept)

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
        """The conversations, the one active last first."""
        found = [
            _summary(c, kept)
            for c, kept in self._kept.items()
            if user in (None, c.user)
            and project in (None, c.project)
            and tenant in (None, c.tenant)
            and parent_name(c.name) is None
        ]
        if after is not None:
            found = [summary for summary in found if summary.last_activity_at > after]
        if before is not None:
            found = [summary for summary in found if summary.last_activity_at < before]
        found.sort(key=lambda summary: summary.last_activity_at, reverse=True)
        return found[:limit]

    async def unfinished(self) -> Sequence[ConversationSummary]:
        """The conversations that may hold a turn which nobody ends."""
        every = await self.conversations()
        return [
            summary
            for summary in every
            if summary.conversation in self._running
            and _last_ended(self._kept[summary.conversation]) < summary.turns
        ]

    async def holds(self, conversation: ConversationKey, term: int) -> bool:
        """Whether the lease of that term stands."""
        return 0 < term == self._terms[conversation]

    async def restore(self, conversation: ConversationKey, blocks: Sequence[Block]) -> None:
        """Begin a conversation with blocks that were kept elsewhere."""
        sizes = [_size(block.body) for block in blocks]
        check_not_forgotten(conversation, self._forgotten.get(conversation))
        if conversation in self._kept:
            raise ConflictError(
                f"conversation {conversation.name!r} has begun already: take another name"
            )
        title = title_of([as_entry(block) for block in blocks])
        kept = _StoredConversation(
            uid=self._clock.new_id(),
            title=title,
            blocks=list(blocks),
            sizes=sizes,
            bytes=sum(sizes),
        )
        check_restored(conversation, kept.size, self._limits)
        warn_if_nearly_full(conversation, ConversationSize(), kept.size, self._limits)
        kept.turns = max(block.turn for block in blocks)
        for block in blocks:
            kept.counts[block.turn, block.type] = block.n
        self._kept[conversation] = kept
        newest = max(block.term for block in blocks)
        self._terms[conversation] = max(self._terms[conversation], newest)

    async def fork(self, conversation: ConversationKey, fork: ConversationKey, seq: int) -> None:
        """Begin another conversation with the blocks up to `seq`."""
        check_not_forgotten(conversation, self._forgotten.get(conversation))
        kept = self._kept.get(conversation)
        taken = fork in self._kept or fork in self._forgotten
        check_fork(conversation, fork, seq=seq, head=len(kept.blocks) if kept else 0, taken=taken)
        if kept is not None:
            shown = kept.blocks[:seq]
            self._kept[fork] = begun = _StoredConversation(
                uid=self._clock.new_id(),
                title=kept.title,
                blocks=shown,
                sizes=kept.sizes[:seq],
                bytes=sum(kept.sizes[:seq]),
                counts=Counter((block.turn, block.type) for block in shown),
                turns=max(block.turn for block in shown),
                shows=_shown(conversation, kept, seq),
            )
            marks = [block.body for block in kept.blocks[seq:] if isinstance(block.body, Imported)]
            entries = [Entry(body=mark, turn=begun.turns) for mark in marks]
            self._keep(begun, entries, [_size(mark) for mark in marks], 0)

    async def forget(self, conversation: ConversationKey, *, cascade: bool = False) -> None:
        """Remove a conversation for good."""
        if conversation not in self._kept:
            return
        doomed, forks = self._doomed(conversation)
        check_forget(conversation, [] if cascade else [fork.name for fork in forks])
        now = self._clock.now()
        for gone in doomed:
            del self._kept[gone]
            self._terms[gone] += 1
            self._forgotten[gone] = now

    def _doomed(
        self, conversation: ConversationKey
    ) -> tuple[list[ConversationKey], list[ConversationKey]]:
        """What goes with the conversation, itself included; and those of them that are forks."""
        doomed, forks = [conversation], list[ConversationKey]()
        for gone in doomed:  # it grows on the way
            for one, kept in self._kept.items():
                is_child = replace(one, name=parent_name(one.name) or "") == gone
                if one not in doomed and (is_child or gone in kept.shows):
                    doomed.append(one)
                    forks += [] if is_child else [one]
        return doomed, forks

    async def forgotten(self, conversation: ConversationKey) -> datetime | None:
        """When the conversation was forgotten."""
        return self._forgotten.get(conversation)

    async def close(self) -> None:
        """Nothing is held."""


def _size(body: Body) -> int:
    """How many bytes the body has as it is stored.

    Raises:
        UnsoundBody: it could not be read again.
    """
    _, _, text = encode_checked(body)
    return len(text.encode())


def _shown(
    conversation: ConversationKey, kept: _StoredConversation, seq: int
) -> dict[ConversationKey, int]:
    """Of whom a fork shows blocks, up to which place; each begins where the one before ends."""
    shown = dict[ConversationKey, int]()
    before = 0
    for owner, last in [*kept.shows.items(), (conversation, len(kept.blocks))]:
        if before < min(last, seq):
            shown[owner] = before = min(last, seq)
    return shown


def _last_ended(kept: _StoredConversation) -> int:
    """The number of the turn that ended last, 0 when none has."""
    ended = (block.turn for block in reversed(kept.blocks) if block.type == "react.exit")
    return next(ended, 0)


def _summary(conversation: ConversationKey, kept: _StoredConversation) -> ConversationSummary:
    return ConversationSummary(
        conversation=conversation,
        uid=kept.uid,
        head=len(kept.blocks),
        turns=kept.turns,
        title=kept.title,
        started_at=kept.blocks[0].ts,
        last_activity_at=kept.blocks[-1].ts,
    )
