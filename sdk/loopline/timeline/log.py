"""The log of a conversation: the protocol that stores implement, and the checks that all of them share."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, Required, TypedDict

from msgspec import Struct, structs

from loopline.errors import ConflictError, LeaseLost, LooplineError, StoreError
from loopline.timeline.blocks import Block, BodyUnion, Entry
from loopline.timeline.bodies import (
    ApprovalRule,
    Feedback,
    Imported,
    InputBody,
    MemoryFact,
    ModeChanged,
    Schedule,
    Sender,
    UserInput,
    UserPrompt,
)
from loopline.timeline.prompt_blocks import RoundStart

logger: logging.Logger = logging.getLogger("loopline")

DEFAULT_TENANT = "default"
DEFAULT_PROJECT = "default"
DEFAULT_USER = "local"


class ConversationKey(Struct, frozen=True, kw_only=True):
    """The key of a conversation: its owner and its name among the owner's conversations."""

    name: str
    user: str = DEFAULT_USER
    tenant: str = DEFAULT_TENANT
    project: str = DEFAULT_PROJECT


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSummary:
    """The row of a conversation in a list. `uid` is unique, also among forgotten conversations; `head` is the last seq.

    A fork has the blocks up to `inherited` from the conversation that it was forked from.
    """

    conversation: ConversationKey
    uid: str
    head: int
    turns: int
    title: str
    started_at: datetime
    last_activity_at: datetime
    inherited: int = 0


class HeadMoved(ConflictError):
    """An append with `at_head` was refused, because the log has blocks that the caller has not seen."""


class AppendOptions(TypedDict, total=False):
    """The keywords of `TimelineLog.append`, for a log that passes them on."""

    seen: Required[int]
    term: int | None
    key: str
    at_head: bool


class ReadOptions(TypedDict, total=False):
    """The keywords of `TimelineLog.read`, for a log that passes them on."""

    after: int
    limit: int | None
    types: Sequence[str]
    turn: int | None
    last: int | None
    also: Sequence[int]


class ListOptions(TypedDict, total=False):
    """The keywords of `TimelineLog.conversations`, for a log that passes them on."""

    user: str | None
    project: str | None
    tenant: str | None
    after: datetime | None
    before: datetime | None
    limit: int | None


class TimelineLog(Protocol):
    """An append-only log for each conversation. Blocks are never updated or deleted.

    Promised: an append stores all its entries or none; seqs are 1, 2, 3, … in commit order over all writers; returned
    blocks survive the end of the process, if the log is a file. Not promised: that `ts` rises with `seq`.
    """

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
        """Append the entries, and return every block after `seen`, including those of other producers.

        The first append creates the conversation. Entries with the turn `NEW_TURN` share one new turn. An append whose
        `key` was used in the conversation before stores nothing, so that it can be repeated safely. A runner passes the
        `term` of its lease; without a term only bodies of users are accepted. A cancellation is raised after the append
        has been stored or refused.

        After an error the entries are not stored, except after a StoreFailed whose message says that the disk failed
        after the commit: then the entries are stored, but a power loss may remove them.

        Raises:
            HeadMoved: with `at_head`, there are blocks after `seen`.
            UnsoundBody: a body would not decode to the same body.
            LeaseLost: the term is not the newest, or without a term an entry is not from a user. With a term also if the
                conversation was forgotten.
            StoreBusy: another process locked the store for too long, or too many files are open.
            StoreFull: the disk is full.
            StoreFailed: the disk failed; or it failed to sync since the log was opened, and an entry must survive a
                power loss.
            StoreError: the conversation was forgotten, or it is full and an entry would start a turn or a round.
        """
        ...

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
        """Return the blocks whose seq is greater than `after`, in order; none if the conversation does not exist.

        `types` selects these types and the types below them (`react.tool` selects `react.tool.call`), `turn` one turn.
        Of the selected blocks the first `limit` are kept, and of those the last `last`; both are 0 or more. The result
        starts with the blocks of any type and turn whose seqs are in `also` and at most `after`.
        """
        ...

    def lease(
        self, conversation: ConversationKey, *, wait: bool = True
    ) -> AbstractAsyncContextManager[int]:
        """Hold the lease of the conversation, which is the right to run it, until the context is left; give its term.

        It waits while another runner has the lease. The lease of a runner whose process died is free.

        Raises:
            ConflictError: `wait` is False and another runner has the lease.
            StoreError: the conversation was forgotten.
        """
        ...

    async def find(self, conversation: ConversationKey) -> ConversationSummary | None:
        """Return the conversation's summary, None if it does not exist."""
        ...

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
        """Return the conversations of that user, project and tenant, the most recently active first; None matches all.

        Child runs are left out. `after` and `before` are exclusive bounds of the last activity, `limit` (0 or more) is
        the most conversations. The order of conversations with the same millisecond is undefined.
        """
        ...

    async def unfinished(self) -> Sequence[ConversationSummary]:
        """Return the conversations that may have an unfinished turn, the most recently active first.

        Forks and imports that never had a runner in this store are left out, and so are child runs, which their parents
        resume. Turns that run or wait for the user count as unfinished.
        """
        ...

    async def scheduled(self) -> Sequence[tuple[ConversationKey, datetime]]:
        """Return the conversations with scheduled messages, each with the time of its first message, earliest first.

        Messages that a fork inherits, and those of an imported document, are left out: they begin no turn.
        """
        ...

    async def holds(self, conversation: ConversationKey, term: int) -> bool:
        """Return whether the lease of that term is valid.

        While the lease cannot have expired, the check does not query the store. After that the store is queried, and a
        lease that no other runner has taken over is renewed.
        """
        ...

    def present(self, bundle: str, version: str) -> AbstractAsyncContextManager[Sender]:
        """Register a version of a bundle and a harness that runs it; the harness is present until the context is left.

        A harness whose process has died is not present.
        """
        ...

    async def is_present(self, sender: Sender) -> bool:
        """Return whether the harness of that sender is present."""
        ...

    async def versions(self, bundle: str) -> Sequence[str]:
        """Return the versions of the bundle that were registered in this store, in the order of first registration."""
        ...

    async def restore(self, conversation: ConversationKey, blocks: Sequence[Block]) -> None:
        """Create a conversation from blocks of another log, unchanged, all or none.

        The blocks must be a full conversation from seq 1 on, in order; this is not checked.

        Raises:
            UnsoundBody: a body would not decode to the same body.
            ConflictError: a conversation with that name exists.
            StoreError: the conversation is longer than this store allows, or its name was forgotten.
        """
        ...

    async def fork(self, conversation: ConversationKey, fork: ConversationKey, seq: int) -> None:
        """Create the conversation `fork` of the same owner with the blocks of `conversation` up to `seq`.

        The cost does not depend on the number of blocks. Seqs, turns and numbers continue after `seq`, and later
        appends to one conversation are not visible in the other. Append keys and terms are not shared. If an import
        was marked after `seq`, the fork starts with the same mark.

        Raises:
            ConflictError: the fork exists or was forgotten.
            StoreError: the conversation does not have that seq or was forgotten, or the fork has another owner.
        """
        ...

    async def forget(self, conversation: ConversationKey, *, cascade: bool = False) -> None:
        """Remove a conversation and its child runs permanently; no other operation removes blocks.

        The name cannot be used again, and appends of a runner with its lease are refused. With `cascade`, every fork
        that shares blocks with them is forgotten too, with the fork's child runs. Forgetting a conversation that is
        forgotten or does not exist changes nothing.

        Raises:
            ConflictError: forks share blocks with it, and `cascade` is False.
        """
        ...

    async def forks(self, conversation: ConversationKey) -> Sequence[str]:
        """Return the names of the forks that `forget` with `cascade` removes with the conversation."""
        ...

    async def forgetting(self) -> Sequence[ConversationKey]:
        """Return the forgotten conversations, including child runs, until `finish_forgetting` was called with them.

        They may have left traces outside of the log, such as in an index of past turns, or in the log's files if the
        process was killed during `forget`.
        """
        ...

    async def finish_forgetting(self, conversations: Sequence[ConversationKey]) -> None:
        """Remove the remains of these forgotten conversations from the log's files; `forgetting` then leaves them out.

        Call it after all traces outside of the log were removed.
        """
        ...

    async def forgotten(self, conversation: ConversationKey) -> datetime | None:
        """Return when the conversation was forgotten, None if it was not."""
        ...

    async def appended(self, conversation: ConversationKey, key: str) -> int | None:
        """Return the seq of the last block of the append that used the key, None if none did."""
        ...

    async def turns_of(
        self, conversation: ConversationKey, keys: Collection[str]
    ) -> Mapping[str, int]:
        """Return the turns of the appends that used the keys, by key, in one read; keys of no append are left out."""
        ...

    async def check(self) -> None:
        """Check that the log can store a message of a user.

        Raises:
            StoreFailed: the disk failed to sync since the log was opened.
            StoreError: the store cannot be used now.
        """
        ...

    async def close(self) -> None:
        """Finish the appends under way and close the files."""
        ...


async def read_undamaged(
    log: TimelineLog, conversation: ConversationKey, after: int, count: int
) -> list[Block | StoreError]:
    """Read at most `count` blocks after the seq `after`; in place of a block that cannot be read is its error."""
    try:
        return [*await log.read(conversation, after=after, limit=count)]
    except StoreError as error:
        if count <= 1:
            return [error]
    half = count // 2
    first = await read_undamaged(log, conversation, after, half)
    return first + await read_undamaged(log, conversation, after + half, count - half)


def check_not_forgotten(
    conversation: ConversationKey, forgotten: datetime | None, term: int | None = None
) -> None:
    """Check that a conversation was not forgotten; `forgotten` is the time, or None.

    Raises:
        LeaseLost: the conversation was forgotten, and `term` is the term of a runner.
        StoreError: the conversation was forgotten.
    """
    if forgotten is not None:
        error = StoreError if term is None else LeaseLost
        raise error(
            f"conversation {conversation.name!r} was forgotten on {forgotten:%Y-%m-%d}: "
            "take another name"
        )


def check_fork(
    conversation: ConversationKey, fork: ConversationKey, *, seq: int, head: int, taken: bool
) -> None:
    """Check that a fork may be created; `taken` says whether its name is in use, `head` is the last seq of the parent.

    Raises:
        ConflictError: the name of the fork is in use.
        StoreError: the conversation does not have that seq, or the fork has another owner.
    """
    if structs.replace(fork, name=conversation.name) != conversation:
        raise StoreError(f"the fork {fork.name!r} has another owner: a fork stays with its owner")
    if not 1 <= seq <= head:
        has = f"it has 1 to {head}" if head else "it does not exist"
        raise StoreError(f"there is no block {seq} in conversation {conversation.name!r}: {has}")
    if taken:
        raise ConflictError(f"conversation {fork.name!r} has begun already: take another name")


def check_forget(conversation: ConversationKey, forks: Sequence[str]) -> None:
    """Check that a conversation may be forgotten; `forks` are the names of the forks that share blocks with it.

    Raises:
        ConflictError: there are forks.
    """
    if forks:
        names = ", ".join(sorted(forks))
        raise ConflictError(
            f"conversation {conversation.name!r} shares blocks with its forks {names}: "
            "forget them first, or all with cascade (--cascade on the command line)"
        )


_BEGINS = BodyUnion[UserInput | RoundStart](UserInput | RoundStart)
UserBody = InputBody | Feedback | MemoryFact | ModeChanged | ApprovalRule | Schedule
_BY_USERS = BodyUnion[UserBody](UserBody)


def check_head(*, seen: int, head: int) -> None:
    """Check that the caller of an append has seen all blocks up to `head`.

    Raises:
        HeadMoved: `seen` is less than `head`.
    """
    if seen < head:
        raise HeadMoved(f"there are blocks up to {head}, and only those up to {seen} were seen")


def check_append(entries: Sequence[Entry], *, term: int | None, newest: int) -> None:
    """Check that an append has the newest term, or without a term only bodies of users.

    Raises:
        LeaseLost: the term is not the newest, or a body is not from a user.
    """
    if term is not None:
        if term != newest or term < 1:
            raise LeaseLost(
                f"term {term} is over, {newest} has begun: another runner has the conversation"
            )
        return
    for entry in entries:
        body = entry.body
        by_machine = isinstance(body, Feedback | MemoryFact) and body.origin != "user"
        if by_machine or not _BY_USERS.has(body):
            raise LeaseLost(f"only a runner may append {body.type!r}: take the lease first")


class ConversationSize(Struct, frozen=True, kw_only=True):
    """The number of blocks of a conversation, and the bytes of their bodies as stored."""

    blocks: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLimits:
    """The limits of a conversation: the number of blocks, and the bytes of their bodies as stored.

    Raises:
        LooplineError: a limit is below 1.
    """

    blocks: int = 1_000_000
    bytes: int = 4 * 1024**3

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.bytes < 1:
            raise LooplineError(
                f"a conversation of at most {self.blocks} blocks and {self.bytes} bytes cannot "
                "start: both limits must be 1 or more"
            )


DEFAULT_LIMITS: ConversationLimits = ConversationLimits()
NEARLY_FULL_PERCENT = 80


def check_room(
    conversation: ConversationKey,
    entries: Sequence[Entry],
    size: ConversationSize,
    limits: ConversationLimits,
) -> None:
    """Check that a conversation of that size is not full.

    Only inputs of users and starts of rounds are refused: a round that has started is recorded to its end.

    Raises:
        StoreError: the conversation is full, and an entry is an input of a user or the start of a round.
    """
    is_full = size.blocks >= limits.blocks or size.bytes >= limits.bytes
    if is_full and any(_BEGINS.has(entry.body) for entry in entries):
        raise StoreError(
            f"conversation {conversation.name!r} is full: it has {_describe_size(size, limits)}; "
            "start another conversation"
        )


def check_restored(
    conversation: ConversationKey, size: ConversationSize, limits: ConversationLimits
) -> None:
    """Check that a conversation of that size may be imported.

    Raises:
        StoreError: the conversation exceeds the limits of this store.
    """
    if size.blocks > limits.blocks or size.bytes > limits.bytes:
        raise StoreError(
            f"conversation {conversation.name!r} is too long for this store: it has "
            f"{_describe_size(size, limits)}; open the store with other limits"
        )


def warn_if_nearly_full(
    conversation: ConversationKey,
    before: ConversationSize,
    after: ConversationSize,
    limits: ConversationLimits,
) -> None:
    """Log a warning if an append, from the size `before` to `after`, reached 80 % of a limit."""
    blocks = limits.blocks * NEARLY_FULL_PERCENT
    size = limits.bytes * NEARLY_FULL_PERCENT
    is_close = after.blocks * 100 >= blocks or after.bytes * 100 >= size
    if is_close and before.blocks * 100 < blocks and before.bytes * 100 < size:
        logger.warning(
            "conversation %r is nearly full: it has %s",
            conversation.name,
            _describe_size(after, limits),
        )


def _describe_size(size: ConversationSize, limits: ConversationLimits) -> str:
    return (
        f"{size.blocks:,} blocks of at most {limits.blocks:,}, and {size.bytes:,} bytes of at most "
        f"{limits.bytes:,}"
    )


TITLE_LENGTH = 80
"""The most characters of a conversation's title, which is the beginning of its first prompt."""


def title_of(entries: Sequence[Entry]) -> str:
    """Return the title of a conversation whose first append has these entries: its prompt, or its scheduled prompt; empty without.

    A run of white space or NUL characters becomes a space.
    """
    for entry in entries:
        prompts = [entry.body] if isinstance(entry.body, UserPrompt) else []
        if isinstance(entry.body, Schedule):
            prompts = [message.prompt for message in entry.body.messages]
        for prompt in prompts:
            # PostgreSQL does not store NUL.
            words = " ".join(prompt.text.replace("\0", " ").split())
            return words if len(words) <= TITLE_LENGTH else f"{words[: TITLE_LENGTH - 1]}…"
    return ""


_CHILD = re.compile(r"(.+)~c[0-9.]+", re.DOTALL)


def child_name(parent: str, call_id: str, n: int) -> str:
    """Return the name of the n-th child run of a call, from 1: `talk~c7`, then `talk~c7.2`."""
    return f"{parent}~{call_id}" if n == 1 else f"{parent}~{call_id}.{n}"


def is_child_of(name: str, call_id: str) -> bool:
    """Return whether `name` is the name of a child run of the call."""
    first, _, number = name.rpartition(".")
    return name.endswith(f"~{call_id}") or (number.isdecimal() and first.endswith(f"~{call_id}"))


def parent_name(name: str) -> str | None:
    """Return the name of the conversation that started this child run, None for a conversation of a user."""
    match = _CHILD.fullmatch(name)
    return None if match is None else match[1]


def child_depth(name: str) -> int:
    """Return the nesting depth of a child run, 0 for a conversation of a user."""
    above = parent_name(name)
    return 0 if above is None else child_depth(above) + 1


_IMPORTS = BodyUnion[Imported](Imported)


MOST_OWNERS = 1_000
"""The most users whose blocks a `UserBlocks` keeps in memory."""


@dataclass(slots=True)
class _ReadBlocks:
    uid: str
    head: int
    blocks: list[Block]


class UserBlocks:
    """Reads the blocks of some types, and keeps them, so that a further call reads only later blocks.

    The blocks of the 1,000 most recently read users are kept, without conversations that no longer existed at the last
    call for the user. Blocks that were imported are left out, because their author may be a stranger.
    """

    def __init__(self, log: TimelineLog, types: Sequence[str]) -> None:
        self._log = log
        self._types = [*types, Imported.type]
        self._read: dict[tuple[str, str, str], dict[ConversationKey, _ReadBlocks]] = {}

    async def of_user(
        self, *, user: str, project: str, tenant: str
    ) -> list[tuple[ConversationKey, Block]]:
        """Return the blocks of this reader's types in all conversations of a user, each with its conversation.

        Child runs and imported blocks are left out. The most recently active conversation comes first; the blocks of a
        conversation are in the order of its log.
        """
        summaries = await self._log.conversations(user=user, project=project, tenant=tenant)
        owner = (tenant, project, user)
        before = self._read.get(owner, {})
        read = {
            summary.conversation: await self._of_conversation(
                summary, before.get(summary.conversation)
            )
            for summary in summaries
        }
        self._read.pop(owner, None)
        self._read[owner] = read  # the most recently used owner is the last
        if len(self._read) > MOST_OWNERS:
            del self._read[next(iter(self._read))]
        return [(key, block) for key, kept in read.items() for block in kept.blocks]

    async def _of_conversation(
        self, summary: ConversationSummary, kept: _ReadBlocks | None
    ) -> _ReadBlocks:
        """Return the blocks of a conversation, oldest first; only blocks after those in `kept` are read from the log.

        All blocks before the newest import are left out.
        """
        if kept is None or kept.uid != summary.uid:
            kept = _ReadBlocks(summary.uid, 0, [])
        if kept.head < summary.head:
            blocks = await self._log.read(summary.conversation, after=kept.head, types=self._types)
            head = max([summary.head, *(block.seq for block in blocks)])
            own = list(kept.blocks)
            for block in blocks:
                if _IMPORTS.has(block.body):
                    own.clear()
                else:
                    own.append(block)
            kept = _ReadBlocks(summary.uid, head, own)
        return kept
