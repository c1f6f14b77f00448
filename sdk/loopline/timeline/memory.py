"""The log in memory: the specification that every other log agrees with."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from operator import attrgetter

from msgspec import structs

from loopline.clock import Clock, SystemClock
from loopline.errors import ConflictError
from loopline.timeline import log
from loopline.timeline.blocks import NEW_TURN, Block, BodyUnion, Entry, as_entry
from loopline.timeline.bodies import Imported, Schedule, Sender, UserRecalled
from loopline.timeline.codec import encode_checked, matches_types
from loopline.timeline.log import ConversationKey, ConversationSize, ConversationSummary

_TURN = attrgetter("turn")
_RECALLS = BodyUnion[UserRecalled](UserRecalled)
_SCHEDULES = BodyUnion[Schedule | Imported](Schedule | Imported)


@dataclass(slots=True)
class _StoredConversation:
    uid: str
    title: str
    blocks: list[Block] = field(default_factory=list[Block])
    sizes: list[int] = field(default_factory=list[int])
    """The bytes of all bodies up to each block, as a store would store them."""
    counts: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    keys: dict[str, int] = field(default_factory=dict[str, int])
    turns: int = 0
    shows: dict[ConversationKey, int] = field(default_factory=dict[ConversationKey, int])
    """The conversations whose blocks a fork inherits, each with the last inherited seq."""
    size: ConversationSize = field(default_factory=ConversationSize)


class MemoryLog:
    """A timeline log that is lost when the process ends."""

    def __init__(
        self, clock: Clock | None = None, limits: log.ConversationLimits = log.DEFAULT_LIMITS
    ) -> None:
        self._clock = clock or SystemClock()
        self._limits = limits
        self._conversations: dict[ConversationKey, _StoredConversation] = {}
        self._running: dict[ConversationKey, asyncio.Lock] = {}
        self._terms: Counter[ConversationKey] = Counter()
        self._forgotten: dict[ConversationKey, datetime] = {}
        self._present: set[int] = set()
        self._harnesses = 0
        self._versions: dict[str, list[str]] = {}
        self._forgetting: list[ConversationKey] = []

    async def append(
        self,
        conversation: ConversationKey,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None = None,
        key: str = "",
        at_head: bool = False,
    ) -> Sequence[Block]:
        """Append the entries, and return every block after `seen`; the errors are those of `TimelineLog.append`.

        If there are no entries, or the `key` was used before, the blocks are only read.
        """
        if not entries:
            return await self.read(conversation, after=seen)
        now = self._clock.now()
        encoded = [encode_checked(entry.body) for entry in entries]
        if conversation in self._forgotten:
            log.check_not_forgotten(conversation, self._forgotten[conversation], term)
        log.check_append(entries, term=term, newest=self._terms[conversation])
        stored = self._conversations.get(conversation)
        if stored is None:
            stored = _StoredConversation(uid=self._clock.new_id(), title=log.title_of(entries))
            self._conversations[conversation] = stored
        if not key or key not in stored.keys:
            before = stored.size
            if at_head:
                log.check_head(seen=seen, head=before.blocks)
            log.check_room(conversation, entries, before, self._limits)
            self._store(stored, entries, encoded, term or 0, now)
            if key:
                stored.keys[key] = len(stored.blocks)
            log.warn_if_nearly_full(conversation, before, stored.size, self._limits)
        return stored.blocks[seen:]

    def _store(
        self,
        stored: _StoredConversation,
        entries: Sequence[Entry],
        encoded: Sequence[tuple[str, int, str]],
        term: int,
        now: datetime,
    ) -> None:
        """Append the encoded entries as blocks, without checks; update the turn, the counts and the size in bytes."""
        if NEW_TURN in map(_TURN, entries):
            stored.turns += 1
        total = stored.size.bytes
        blocks = stored.blocks
        counts = stored.counts
        seq = len(blocks)
        for entry, (kind, _, text) in zip(entries, encoded, strict=True):
            turn = entry.turn or stored.turns
            place = turn, kind
            counts[place] = n = counts.get(place, 0) + 1
            total += len(text) if text.isascii() else len(text.encode())
            stored.sizes.append(total)
            seq += 1
            blocks.append(
                Block(
                    seq=seq,
                    turn=turn,
                    round=entry.round,
                    n=n,
                    ts=now,
                    term=term,
                    body=entry.body,
                )
            )
        stored.size = ConversationSize(blocks=seq, bytes=total)

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
        """Return the blocks after `after` that the filters select, in order; none if the conversation does not exist.

        The blocks of `also` that are not after `after` come first.
        """
        stored = self._conversations.get(conversation)
        all_blocks = stored.blocks if stored else []
        before = [
            all_blocks[seq - 1]
            for seq in sorted(set(also))
            if 0 < seq <= min(after, len(all_blocks))
        ]
        blocks = all_blocks[after:]
        if types:
            blocks = [block for block in blocks if matches_types(block.type, types)]
        if turn is not None:
            blocks = [block for block in blocks if block.turn == turn]
        blocks = blocks[:limit]
        return [*before, *(blocks if last is None else blocks[max(len(blocks) - last, 0) :])]

    @asynccontextmanager
    async def lease(
        self, conversation: ConversationKey, *, wait: bool = True
    ) -> AsyncGenerator[int, None]:
        """Hold the lease of the conversation until the context is left; give its term, one higher than the last term.

        Raises:
            ConflictError: `wait` is False and another task has the lease.
            StoreError: the conversation was forgotten.
        """
        lock = self._running.setdefault(conversation, asyncio.Lock())
        if not wait and lock.locked():
            raise ConflictError(f"conversation {conversation.name!r} is being run already")
        async with lock:
            log.check_not_forgotten(conversation, self._forgotten.get(conversation))
            self._terms[conversation] += 1
            yield self._terms[conversation]

    async def find(self, conversation: ConversationKey) -> ConversationSummary | None:
        """Return the conversation's summary."""
        stored = self._conversations.get(conversation)
        return None if stored is None else _summary(conversation, stored)

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
        """Return the conversations that match, the most recently active first, at most `limit`.

        Child runs are left out. `after` and `before` are exclusive bounds of the last activity.
        """
        summaries = [
            _summary(c, stored)
            for c, stored in self._conversations.items()
            if user in (None, c.user)
            and project in (None, c.project)
            and tenant in (None, c.tenant)
            and log.parent_name(c.name) is None
        ]
        if after is not None:
            summaries = [summary for summary in summaries if summary.last_activity_at > after]
        if before is not None:
            summaries = [summary for summary in summaries if summary.last_activity_at < before]
        summaries.sort(key=lambda summary: summary.last_activity_at, reverse=True)
        return summaries[:limit]

    async def unfinished(self) -> Sequence[ConversationSummary]:
        """Return the conversations that may have an unfinished turn, the most recently active first.

        Child runs, and conversations that never had a lease in this log, are left out.
        """
        summaries = await self.conversations()
        return [
            summary
            for summary in summaries
            if summary.conversation in self._running
            and _has_unfinished_turn(self._conversations[summary.conversation])
        ]

    async def scheduled(self) -> Sequence[tuple[ConversationKey, datetime]]:
        """Return the conversations with scheduled messages, each with the time of its first message, earliest first.

        Messages that a fork inherits, and those before an import, are left out.
        """
        found = list[tuple[ConversationKey, datetime]]()
        for key, stored in self._conversations.items():
            inherited = max(stored.shows.values(), default=0)
            newest = next(_SCHEDULES.among(reversed(stored.blocks)), None)
            if newest is not None and newest[0].seq > inherited:
                match newest[1]:
                    case Schedule(due=due):
                        found += [(key, due)] if due is not None else []
                    case Imported():
                        pass
        return sorted(found, key=lambda pair: pair[1])

    async def holds(self, conversation: ConversationKey, term: int) -> bool:
        """Return whether the lease of that term is valid."""
        return 0 < term == self._terms[conversation]

    @asynccontextmanager
    async def present(self, bundle: str, version: str) -> AsyncGenerator[Sender, None]:
        """Register a version of a bundle and a harness that runs it, present until the context is left."""
        versions = self._versions.setdefault(bundle, [])
        if version not in versions:
            versions.append(version)
        self._harnesses += 1
        sender = Sender(bundle=bundle, version=version, harness=self._harnesses)
        self._present.add(sender.harness)
        try:
            yield sender
        finally:
            self._present.remove(sender.harness)

    async def is_present(self, sender: Sender) -> bool:
        """Return whether the harness of that sender is present."""
        return sender.harness in self._present

    async def versions(self, bundle: str) -> Sequence[str]:
        """Return the versions of the bundle, oldest first."""
        return tuple(self._versions.get(bundle, ()))

    async def restore(self, conversation: ConversationKey, blocks: Sequence[Block]) -> None:
        """Create a conversation from blocks of another log, which must not be empty.

        Raises:
            UnsoundBody: a body would not decode to the same body.
            ConflictError: a conversation with that name exists.
            StoreError: the name was forgotten, or the conversation exceeds the limits.
        """
        texts = [text for _, _, text in (encode_checked(block.body) for block in blocks)]
        sizes = list(accumulate(len(text.encode()) for text in texts))
        log.check_not_forgotten(conversation, self._forgotten.get(conversation))
        if conversation in self._conversations:
            raise ConflictError(
                f"conversation {conversation.name!r} has begun already: take another name"
            )
        title = log.title_of([as_entry(block) for block in blocks])
        stored = _StoredConversation(
            uid=self._clock.new_id(),
            title=title,
            blocks=list(blocks),
            sizes=sizes,
            size=ConversationSize(blocks=len(blocks), bytes=sizes[-1]),
        )
        log.check_restored(conversation, stored.size, self._limits)
        log.warn_if_nearly_full(conversation, ConversationSize(), stored.size, self._limits)
        stored.turns = max(block.turn for block in blocks)
        for block in blocks:
            stored.counts[block.turn, block.type] = block.n
        self._conversations[conversation] = stored
        newest = max(block.term for block in blocks)
        self._terms[conversation] = max(self._terms[conversation], newest)

    async def fork(self, conversation: ConversationKey, fork: ConversationKey, seq: int) -> None:
        """Create a fork with the blocks up to `seq`, followed by the marks of imports after `seq`.

        Raises:
            ConflictError: the fork exists or was forgotten.
            StoreError: the conversation does not have that seq or was forgotten, or the fork has another owner.
        """
        log.check_not_forgotten(conversation, self._forgotten.get(conversation))
        stored = self._conversations.get(conversation)
        is_taken = fork in self._conversations or fork in self._forgotten
        log.check_fork(
            conversation, fork, seq=seq, head=len(stored.blocks) if stored else 0, taken=is_taken
        )
        if stored is not None:
            shown = stored.blocks[:seq]
            self._conversations[fork] = forked = _StoredConversation(
                uid=self._clock.new_id(),
                title=stored.title,
                blocks=shown,
                sizes=stored.sizes[:seq],
                size=ConversationSize(blocks=seq, bytes=stored.sizes[seq - 1]),
                counts=dict(Counter((block.turn, block.type) for block in shown)),
                turns=max(block.turn for block in shown),
                shows=_find_owners(conversation, stored, seq),
            )
            marks = [
                block.body for block in stored.blocks[seq:] if isinstance(block.body, Imported)
            ]
            entries = [Entry(body=mark, turn=forked.turns) for mark in marks]
            if entries:
                self._store(
                    forked, entries, [encode_checked(mark) for mark in marks], 0, self._clock.now()
                )

    async def forget(self, conversation: ConversationKey, *, cascade: bool = False) -> None:
        """Remove a conversation and its child runs permanently, with `cascade` also its forks.

        A conversation that does not exist is ignored.

        Raises:
            ConflictError: forks share blocks with it, and `cascade` is False.
        """
        if conversation not in self._conversations:
            return
        doomed, forks = self._find_forgettable(conversation)
        log.check_forget(conversation, [] if cascade else [fork.name for fork in forks])
        now = self._clock.now()
        for conversation_key in doomed:
            del self._conversations[conversation_key]
            self._terms[conversation_key] += 1
            self._forgotten[conversation_key] = now
            self._forgetting.append(conversation_key)

    async def forks(self, conversation: ConversationKey) -> Sequence[str]:
        """Return the names of the forks that `forget` with `cascade` removes with the conversation."""
        return [fork.name for fork in self._find_forgettable(conversation)[1]]

    async def forgetting(self) -> Sequence[ConversationKey]:
        """Return the forgotten conversations that may have left traces outside of the log."""
        return list(self._forgetting)

    async def finish_forgetting(self, conversations: Sequence[ConversationKey]) -> None:
        """Remove these conversations from `forgetting`."""
        self._forgetting = [key for key in self._forgetting if key not in conversations]

    def _find_forgettable(
        self, conversation: ConversationKey
    ) -> tuple[list[ConversationKey], list[ConversationKey]]:
        """Return `conversation` and, recursively, its child runs and forks; and separately the forks among them."""
        doomed = [conversation]
        forks = list[ConversationKey]()
        for origin in doomed:  # the loop appends to the list
            for key, stored in self._conversations.items():
                is_child = structs.replace(key, name=log.parent_name(key.name) or "") == origin
                if key not in doomed and (is_child or origin in stored.shows):
                    doomed.append(key)
                    forks += [] if is_child else [key]
        return doomed, forks

    async def appended(self, conversation: ConversationKey, key: str) -> int | None:
        """Return the seq of the last block of the append that used the key, or None."""
        stored = self._conversations.get(conversation)
        return stored.keys.get(key) if stored is not None and key else None

    async def turns_of(
        self, conversation: ConversationKey, keys: Collection[str]
    ) -> Mapping[str, int]:
        """Return the turns of the appends that used the keys, by key; keys that no append used are left out."""
        stored = self._conversations.get(conversation)
        if stored is None:
            return {}
        return {key: stored.blocks[stored.keys[key] - 1].turn for key in keys if key in stored.keys}

    async def forgotten(self, conversation: ConversationKey) -> datetime | None:
        """Return when the conversation was forgotten, or None."""
        return self._forgotten.get(conversation)

    async def check(self) -> None:
        """Do nothing: memory does not fail."""

    async def close(self) -> None:
        """Do nothing: there are no files to close."""


def _find_owners(
    conversation: ConversationKey, stored: _StoredConversation, seq: int
) -> dict[ConversationKey, int]:
    """Return the conversations whose blocks a fork at `seq` inherits, each with the last inherited seq, in order."""
    shown: dict[ConversationKey, int] = {}
    before = 0
    for owner, last in [*stored.shows.items(), (conversation, len(stored.blocks))]:
        if before < min(last, seq):
            shown[owner] = before = min(last, seq)
    return shown


def _has_unfinished_turn(stored: _StoredConversation) -> bool:
    """Return whether a turn after the last exit has no exit, unless its prompt was recalled before it started."""
    exits = (block.turn for block in reversed(stored.blocks) if block.type == "react.exit")
    last = next(exits, 0)
    if last == stored.turns:
        return False
    newer = [block for block in stored.blocks if block.turn > last]
    recalled = {(block.turn, body.said) for block, body in _RECALLS.among(newer)}
    prompts = {(block.turn, block.seq) for block in newer if block.type == "user.prompt"}
    started = {block.turn for block in newer if block.type == "turn.header"}
    never_started = {turn for turn, _ in prompts & recalled} - started
    return last + len(never_started) < stored.turns


def _summary(conversation: ConversationKey, stored: _StoredConversation) -> ConversationSummary:
    """Return the summary of a conversation; `inherited` is the last seq that a fork inherits, 0 without a fork."""
    return ConversationSummary(
        conversation=conversation,
        uid=stored.uid,
        head=len(stored.blocks),
        turns=stored.turns,
        title=stored.title,
        started_at=stored.blocks[0].ts,
        last_activity_at=stored.blocks[-1].ts,
        inherited=max(stored.shows.values(), default=0),
    )
