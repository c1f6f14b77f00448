"""The log of a conversation: the protocol that stores implement, and the checks that all of them share."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from msgspec import Struct, structs

from loopline.errors import ConflictError, LeaseLost, LooplineError, StoreError
from loopline.timeline.blocks import (
    Block,
    BodyUnion,
    Entry,
)
from loopline.timeline.bodies import (
    Feedback,
    InputBody,
    MemoryFact,
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
    """What a list of conversations shows of one. `uid` is unique for ever; `head` is the last seq.

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
    """Other producers have appended since, so an append that was made for the head was refused."""


class TimelineLog(Protocol):
    """An append-only log for each conversation. There is nothing to update and nothing to delete.

    Promised: an append stores all its entries or none; seqs are 1, 2, 3, … in commit order, whoever writes; what was
    returned survives the death of the process, if the log outlives it. Not promised: that `ts` rises with `seq`.
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

        A conversation begins with its first append. Entries of `NEW_TURN` share one new turn. An append with a
        `key` that was used in the conversation before stores nothing: the first outcome stands. A cancellation is
        raised once nothing more will be stored.

        Raises:
            HeadMoved: with `at_head`, there are blocks after `seen`; nothing was stored.
            UnsoundBody: a body would not be read back as it is; nothing was stored.
            LeaseLost: the term is not the newest, or there is none and an entry is not the user's.
            StoreBusy: another process held the store for too long, or too many files are open; nothing was stored.
            StoreFull: there is no room; nothing was stored.
            StoreFailed: the disk failed since the log was opened, and an entry must survive the loss of power; nothing
                was stored. Only if it failed behind this commit, as the message says, the entries are stored, and may
                be lost with the power.
            StoreError: the conversation is full, and something new would begin; nothing was stored.
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
        """Return the blocks whose seq is greater than `after`, in order; none if the conversation never began.

        `types` selects these types and the types below them, `turn` one turn. Of the selected blocks the first
        `limit` are returned, and of those the `last` ones; both are 0 or more. Before them come the blocks with the
        seqs `also` that are not greater than `after`, of any type and turn.
        """
        ...

    def lease(
        self, conversation: ConversationKey, *, wait: bool = True
    ) -> AbstractAsyncContextManager[int]:
        """Hold the right to run the conversation, as a new term, until the context is left.

        It waits while another runner holds the lease. A runner that died no longer holds it.

        Raises:
            ConflictError: `wait` is False and another runner holds the lease.
        """
        ...

    async def find(self, conversation: ConversationKey) -> ConversationSummary | None:
        """Return the conversation's summary, None if it never began."""
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
        """Return the conversations of that user, project and tenant, or of all, the one active last first.

        Child runs are left out. `after` and `before` bound the last activity, `limit` (0 or more) the number.
        Conversations of the same millisecond are in any order.
        """
        ...

    async def unfinished(self) -> Sequence[ConversationSummary]:
        """Return the conversations that may hold an unfinished turn, the one active last first.

        Only conversations that a runner has had in this store are among them: no forks or imports that nobody ran,
        and no child runs, which their parents resume. Turns that run or wait for the user count as unfinished.
        """
        ...

    async def holds(self, conversation: ConversationKey, term: int) -> bool:
        """Return whether the lease of that term is still valid, as far as this process knows.

        While the lease cannot have ended, the check needs no query. After a pause longer than the lease the store is
        asked, and a lease that is still valid is renewed at once.
        """
        ...

    def present(self, bundle: str, version: str) -> AbstractAsyncContextManager[Sender]:
        """Register a version of a bundle, and count a harness with it as present until the context is left.

        A harness whose process has died is no longer present.
        """
        ...

    async def is_present(self, sender: Sender) -> bool:
        """Return whether the harness of that sender is present."""
        ...

    async def versions(self, bundle: str) -> Sequence[str]:
        """Return the versions of the bundle that were registered in this store, in the order of their first time."""
        ...

    async def restore(self, conversation: ConversationKey, blocks: Sequence[Block]) -> None:
        """Begin a conversation with blocks that were stored elsewhere, each as it is, all or none.

        The blocks are expected to be a full conversation from seq 1 on, in order.

        Raises:
            UnsoundBody: a body would not be read back as it is.
            ConflictError: a conversation of that name exists.
            StoreError: the conversation is longer than this store allows; nothing was stored.
        """
        ...

    async def fork(self, conversation: ConversationKey, fork: ConversationKey, seq: int) -> None:
        """Begin another conversation of the same owner with the blocks up to `seq`.

        The cost does not depend on how many those are. Seqs, turns and numbers continue from there, and later
        appends to either do not show in the other. Keys and terms are the fork's own. If the mark of an import comes
        after `seq`, the fork begins with the same mark.

        Raises:
            ConflictError: the fork exists.
            StoreError: there is no such seq, or the owner is another.
        """
        ...

    async def forget(self, conversation: ConversationKey, *, cascade: bool = False) -> None:
        """Remove a conversation and its child runs for good; nothing else removes blocks.

        Its name stays taken, and a runner that holds its lease can append nothing more. With `cascade`, every fork that
        shares blocks with them is forgotten too, with its own child runs. Forgetting a conversation again, or one that
        never began, changes nothing.

        Raises:
            ConflictError: forks share blocks with it, and `cascade` is False.
        """
        ...

    async def forgetting(self) -> Sequence[ConversationKey]:
        """Return the forgotten conversations, child runs included, that `finish_forgetting` has not been called with.

        Traces of them may be left outside of the log, such as in an index of past turns, or in the log's own files if
        the process was killed while it forgot them.
        """
        ...

    async def finish_forgetting(self, conversations: Sequence[ConversationKey]) -> None:
        """Remove what is left of these forgotten conversations in the log's own files, and return them no more.

        Call it once nothing is left of them outside of the log.
        """
        ...

    async def forgotten(self, conversation: ConversationKey) -> datetime | None:
        """Return when the conversation was forgotten, None if it was not."""
        ...

    async def appended(self, conversation: ConversationKey, key: str) -> int | None:
        """Return the seq of the last block of the append that used the key, None if none did."""
        ...

    async def check(self) -> None:
        """Check that the log can store what a user says.

        Raises:
            StoreFailed: the disk failed to write since the log was opened.
            StoreError: the store cannot be used now.
        """
        ...

    async def close(self) -> None:
        """Release what is held; acknowledged appends stay."""
        ...


def check_not_forgotten(
    conversation: ConversationKey, forgotten: datetime | None, term: int | None = None
) -> None:
    """Check that a conversation was not forgotten.

    Raises:
        LeaseLost: it was, and the `term` of a runner is given.
        StoreError: it was.
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
    """Check that a fork may begin.

    Raises:
        ConflictError: a conversation with the fork's name exists.
        StoreError: the conversation has no such seq, or the fork has another owner.
    """
    if structs.replace(fork, name=conversation.name) != conversation:
        raise StoreError(f"the fork {fork.name!r} has another owner: a fork stays with its owner")
    if not 1 <= seq <= head:
        has = f"it has 1 to {head}" if head else "it never began"
        raise StoreError(f"there is no block {seq} in conversation {conversation.name!r}: {has}")
    if taken:
        raise ConflictError(f"conversation {fork.name!r} has begun already: take another name")


def check_forget(conversation: ConversationKey, forks: Sequence[str]) -> None:
    """Check that a conversation may be forgotten; `forks` are the forks that share blocks with it.

    Raises:
        ConflictError: there are such forks.
    """
    if forks:
        names = ", ".join(sorted(forks))
        raise ConflictError(
            f"conversation {conversation.name!r} is still shown by its forks {names}: "
            "forget them first, or with cascade"
        )


_BEGINS = BodyUnion[UserInput | RoundStart](UserInput | RoundStart)
_BY_USERS = BodyUnion[InputBody | Feedback | MemoryFact](InputBody | Feedback | MemoryFact)


def check_head(*, seen: int, head: int) -> None:
    """Check that an append that was made for the head is made for this one.

    Raises:
        HeadMoved: it is not.
    """
    if seen < head:
        raise HeadMoved(f"there are blocks up to {head}, and only those up to {seen} were seen")


def check_append(entries: Sequence[Entry], *, term: int | None, newest: int) -> None:
    """Check that an append has the newest term, or holds only what a user says.

    Raises:
        LeaseLost: it is not.
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
    """The number of blocks of a conversation, and of the bytes of their bodies."""

    blocks: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLimits:
    """The limits of a conversation: blocks, and bytes of their bodies.

    Raises:
        LooplineError: a limit is below 1.
    """

    blocks: int = 1_000_000
    bytes: int = 4 * 1024**3

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.bytes < 1:
            raise LooplineError(
                f"a conversation of at most {self.blocks} blocks and {self.bytes} bytes could never "
                "begin: both limits are 1 or more"
            )


DEFAULT_LIMITS: ConversationLimits = ConversationLimits()
NEARLY_FULL_PERCENT = 80


def check_room(
    conversation: ConversationKey,
    entries: Sequence[Entry],
    size: ConversationSize,
    limits: ConversationLimits,
) -> None:
    """Check that a conversation of that size has room for something new.

    A round that has started is recorded to its end, so that nothing is lost.

    Raises:
        StoreError: an entry begins or adds to a turn or a round, and the conversation is full.
    """
    is_full = size.blocks >= limits.blocks or size.bytes >= limits.bytes
    if is_full and any(_BEGINS.has(entry.body) for entry in entries):
        raise StoreError(
            f"conversation {conversation.name!r} is full: it has {_describe_size(size, limits)}; "
            "begin another one"
        )


def check_restored(
    conversation: ConversationKey, size: ConversationSize, limits: ConversationLimits
) -> None:
    """Check that a conversation of that size may be imported.

    Raises:
        StoreError: it is longer than this store allows.
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
    """Log a warning if this append brings a conversation close to its limits."""
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
"""Characters of a conversation's title, which is the beginning of its first prompt."""


def title_of(entries: Sequence[Entry]) -> str:
    """Return the title of a conversation that begins with these entries."""
    for entry in entries:
        if isinstance(entry.body, UserPrompt):
            words = " ".join(entry.body.text.split())
            return words if len(words) <= TITLE_LENGTH else f"{words[: TITLE_LENGTH - 1]}…"
    return ""


_CHILD = re.compile(r"(.+)~c[0-9.]+", re.DOTALL)


def child_name(parent: str, call_id: str, n: int) -> str:
    """Return the name of the n-th child run of a call, from 1: such as `talk~c7`, then `talk~c7.2`."""
    return f"{parent}~{call_id}" if n == 1 else f"{parent}~{call_id}.{n}"


def is_child_of(name: str, call_id: str) -> bool:
    """Return whether a call of that id can have started a child run of that name."""
    first, _, number = name.rpartition(".")
    return name.endswith(f"~{call_id}") or (number.isdecimal() and first.endswith(f"~{call_id}"))


def parent_name(name: str) -> str | None:
    """Return the name of the conversation whose call started this one, None if it is not a child run."""
    match = _CHILD.fullmatch(name)
    return None if match is None else match[1]


def child_depth(name: str) -> int:
    """Return how deep a child run is nested, 0 for a user's conversation."""
    above = parent_name(name)
    return 0 if above is None else child_depth(above) + 1
