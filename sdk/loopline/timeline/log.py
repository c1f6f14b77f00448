"""The seam between conversations and wherever they are kept."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from loopline.errors import ConflictError, LeaseLost, LooplineError, StoreError
from loopline.timeline.blocks import (
    Block,
    BodyUnion,
    Entry,
    Feedback,
    InputBody,
    UserInput,
    UserPrompt,
)
from loopline.timeline.prompt_blocks import RoundStart

logger: logging.Logger = logging.getLogger("loopline")

DEFAULT_TENANT = "default"
DEFAULT_PROJECT = "default"
DEFAULT_USER = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationKey:
    """Whose conversation it is, and its name among theirs."""

    name: str
    user: str = DEFAULT_USER
    tenant: str = DEFAULT_TENANT
    project: str = DEFAULT_PROJECT


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSummary:
    """A line of a list of conversations. `uid` is unique for ever; `head` is the last seq."""

    conversation: ConversationKey
    uid: str
    head: int
    turns: int
    title: str
    started_at: datetime
    last_activity_at: datetime


class TimelineLog(Protocol):
    """An append-only log for each conversation. There is nothing to update and nothing to delete.

    Promised: all the entries of an append are kept or none; places are dense, 1, 2, 3, … in commit
    order, whoever writes; what was returned survives the death of the process (where the log is kept
    beyond it). Not promised: that `ts` rises along with `seq`.
    """

    async def append(
        self,
        conversation: ConversationKey,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None = None,
        key: str = "",
    ) -> Sequence[Block]:
        """Keep the entries, and return every block after `seen`, other producers' included.

        A conversation begins with its first append. Entries of `NEW_TURN` share one new turn. A `key`
        that was used in the conversation before appends nothing again: its first outcome stands.
        A cancellation that arrives meanwhile is raised once nothing more will be kept.

        Raises:
            UnsoundBody: a body could not be read again; nothing was kept.
            LeaseLost: the term is no longer the newest, or there is none and an entry is not the user's.
            StoreBusy: another process held the store for too long; nothing was kept.
            StoreFull: there is no room; nothing was kept.
            StoreError: something new would begin in a conversation that is full; nothing was kept.
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
        """The blocks whose seq is greater than `after`, in order; none for one that never began.

        With `types` only those of these types and of types below them, with `turn` only those of that
        turn; of those that are left the first `limit`, and of these the `last` so many; both are 0 or
        more. Before them come the blocks at the places `also`, as far as they are not greater than
        `after`, of whatever type and turn.
        """
        ...

    def lease(
        self, conversation: ConversationKey, *, wait: bool = True
    ) -> AbstractAsyncContextManager[int]:
        """The right to run the conversation, as a new term, until the context is left.

        Waits for its turn while another runner has it. A runner that died has it no longer.

        Raises:
            ConflictError: `wait` is False and another runner has it.
        """
        ...

    async def find(self, conversation: ConversationKey) -> ConversationSummary | None:
        """What is known of the conversation; None when it never began."""
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
        """The conversations of that user, project and tenant, or of all, the one active last first.

        Child runs are not among them. They were active last `after` the one moment and `before` the other; of those that are left the
        first `limit`, which is 0 or more. Those of the same millisecond are in any order.
        """
        ...

    async def unfinished(self) -> Sequence[ConversationSummary]:
        """The conversations that may hold a turn which nobody ends, the one active last first.

        A runner has had each of them here: neither forks nor imports that nobody ran are among them, nor
        child runs, which their parents carry on. Turns that run or wait for the user have not ended either.
        """
        ...

    async def holds(self, conversation: ConversationKey, term: int) -> bool:
        """Whether the lease of that term stands: no later one has begun, as far as can be known here.

        It costs nothing while the lease cannot have ended. After a pause past its end the store is
        asked, and what stands is put off at once.
        """
        ...

    async def restore(self, conversation: ConversationKey, blocks: Sequence[Block]) -> None:
        """Begin a conversation with blocks that were kept elsewhere, each as it is, all or none.

        The blocks are taken to be a whole conversation from its first place on, in order.

        Raises:
            UnsoundBody: a body could not be read again.
            ConflictError: a conversation of that name has begun already.
            StoreError: it is longer than one may become here; nothing was kept.
        """
        ...

    async def fork(self, conversation: ConversationKey, fork: ConversationKey, seq: int) -> None:
        """Begin another conversation of the same owner with the blocks up to `seq`.

        What it costs does not depend on how many those are. Places, turns and numbers go on from
        there, and what is appended to either later is not in the other. Keys and terms are its own. Where
        the mark of an import comes after `seq`, the fork begins with the same mark.

        Raises:
            ConflictError: the fork has begun already.
            StoreError: there is no such place, or the owner is another.
        """
        ...

    async def forget(self, conversation: ConversationKey, *, cascade: bool = False) -> None:
        """Remove a conversation for good: the one removal there is.

        Its name stays taken, and a runner that has it is refused from then on. The child runs that its
        calls began go with it. With `cascade` every fork that shows some of any of these is forgotten
        too, with its own children. Forgetting again, or what never began, changes
        nothing.

        Raises:
            ConflictError: forks still show some of it, and `cascade` is False.
        """
        ...

    async def forgotten(self, conversation: ConversationKey) -> datetime | None:
        """When the conversation was forgotten; None when it was not."""
        ...

    async def close(self) -> None:
        """Let go of what is held; what was acknowledged stays."""
        ...


def check_not_forgotten(conversation: ConversationKey, forgotten: datetime | None) -> None:
    """Check that a conversation may go on.

    Raises:
        StoreError: it was forgotten.
    """
    if forgotten is not None:
        raise StoreError(
            f"conversation {conversation.name!r} was forgotten on {forgotten:%Y-%m-%d}: "
            "take another name"
        )


def check_fork(
    conversation: ConversationKey, fork: ConversationKey, *, seq: int, head: int, taken: bool
) -> None:
    """Check that a fork may begin.

    Raises:
        ConflictError: its name is taken.
        StoreError: there is no such place, or the owner is another.
    """
    if replace(fork, name=conversation.name) != conversation:
        raise StoreError(f"{fork.name!r} is to be another's: a fork stays with its owner")
    if not 1 <= seq <= head:
        has = f"it has 1 to {head}" if head else "it never began"
        raise StoreError(f"there is no block {seq} in conversation {conversation.name!r}: {has}")
    if taken:
        raise ConflictError(f"conversation {fork.name!r} has begun already: take another name")


def check_forget(conversation: ConversationKey, forks: Sequence[str]) -> None:
    """Check that a conversation may be forgotten, of which these forks show some.

    Raises:
        ConflictError: there are any.
    """
    if forks:
        names = ", ".join(sorted(forks))
        raise ConflictError(
            f"conversation {conversation.name!r} is still shown by its forks {names}: "
            "forget them first, or with cascade"
        )


_BEGINS = BodyUnion[UserInput | RoundStart](UserInput | RoundStart)
_BY_USERS = BodyUnion[InputBody | Feedback](InputBody | Feedback)


def check_append(entries: Sequence[Entry], *, term: int | None, newest: int) -> None:
    """Check that an append is allowed: by its term, or because it is only what the user says.

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
        by_machine = isinstance(body, Feedback) and body.origin != "user"
        if by_machine or not _BY_USERS.has(body):
            raise LeaseLost(f"only a runner may append {body.type!r}: take the lease first")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSize:
    """How long a conversation is: so many blocks, and bytes of their bodies."""

    blocks: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLimits:
    """How long a conversation may become: at most so many blocks, and bytes of their bodies.

    Raises:
        LooplineError: there would be no room for anything.
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
    """Check that something new may begin in a conversation of that size.

    What has begun is recorded to its end, so that nothing is lost.

    Raises:
        StoreError: an entry begins a turn or a round, or adds to one, and the conversation is full.
    """
    begins = any(_BEGINS.has(entry.body) for entry in entries)
    if begins and (size.blocks >= limits.blocks or size.bytes >= limits.bytes):
        raise StoreError(
            f"conversation {conversation.name!r} is full: it has {_measured(size, limits)}; "
            "begin another one"
        )


def check_restored(
    conversation: ConversationKey, size: ConversationSize, limits: ConversationLimits
) -> None:
    """Check that a conversation of that size may be brought in from elsewhere.

    Raises:
        StoreError: it is longer than one may become here.
    """
    if size.blocks > limits.blocks or size.bytes > limits.bytes:
        raise StoreError(
            f"conversation {conversation.name!r} is too long for this store: it has "
            f"{_measured(size, limits)}; open the store with other limits"
        )


def warn_if_nearly_full(
    conversation: ConversationKey,
    before: ConversationSize,
    after: ConversationSize,
    limits: ConversationLimits,
) -> None:
    """Log a warning when a conversation has come close to its limits by this step."""
    if not _is_nearly_full(before, limits) and _is_nearly_full(after, limits):
        logger.warning(
            "conversation %r is nearly full: it has %s",
            conversation.name,
            _measured(after, limits),
        )


def _is_nearly_full(size: ConversationSize, limits: ConversationLimits) -> bool:
    return (
        size.blocks * 100 >= limits.blocks * NEARLY_FULL_PERCENT
        or size.bytes * 100 >= limits.bytes * NEARLY_FULL_PERCENT
    )


def _measured(size: ConversationSize, limits: ConversationLimits) -> str:
    return (
        f"{size.blocks:,} blocks of at most {limits.blocks:,}, and {size.bytes:,} bytes of at most "
        f"{limits.bytes:,}"
    )


TITLE_LENGTH = 80
"""A conversation's title is what its user said first, up to so many characters."""


def title_of(entries: Sequence[Entry]) -> str:
    """The title that the first entries of a conversation give it."""
    for entry in entries:
        if isinstance(entry.body, UserPrompt):
            words = " ".join(entry.body.text.split())
            return words if len(words) <= TITLE_LENGTH else f"{words[: TITLE_LENGTH - 1]}…"
    return ""


_CHILD = re.compile(r"(.+)~c[0-9.]+", re.DOTALL)


def child_name(parent: str, call_id: str, n: int) -> str:
    """What the n-th child of a call is called, counted from 1."""
    return f"{parent}~{call_id}" if n == 1 else f"{parent}~{call_id}.{n}"


def is_child_of(name: str, call_id: str) -> bool:
    """Whether a call of that id can have begun a child run of that name."""
    first, _, number = name.rpartition(".")
    return name.endswith(f"~{call_id}") or (number.isdecimal() and first.endswith(f"~{call_id}"))


def parent_name(name: str) -> str | None:
    """The conversation whose call began this one; None when it is no child run."""
    match = _CHILD.fullmatch(name)
    return None if match is None else match[1]


def child_depth(name: str) -> int:
    """How many calls stand above: 0 for a conversation of a person's."""
    above = parent_name(name)
    return 0 if above is None else child_depth(above) + 1
