"""The states of conversations, which a writer caches for as long as no other process changes them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from loopline.models import dumps
from loopline.store import statements
from loopline.store.rows import ChainPoint, from_milliseconds, key_parameters
from loopline.store.sqlite import Connection, data_version, execute
from loopline.timeline import ConversationKey
from loopline.timeline.log import ConversationSize

CACHED_CONVERSATIONS = 1024
"""How many conversations a process caches the state and the ordinals of."""

LITTLE, LITTLE_BYTES = 64, 128 * 1024
"""So many blocks of a conversation of so many bytes are read in a millisecond or two."""


@dataclass(slots=True, kw_only=True)
class ConversationState:
    """What a writer knows of a conversation; `id` is None when it has no row, `head` 0 when it is empty.

    `base` is the last seq that it inherits, `tip` the chain up to its head. It is that of a `version` of the file.
    """

    id: int | None = None
    turns: int = 0
    term: int = 0
    base: int = 0
    head: int = 0
    tip: ChainPoint = field(default_factory=ChainPoint)
    forgotten: datetime | None = None
    version: int | None = None

    @property
    def size(self) -> ConversationSize:
        """Return the number of its blocks, and of the bytes of their bodies."""
        return ConversationSize(blocks=self.head, bytes=self.tip.bytes)

    def has_little_after(self, seq: int) -> bool:
        """Return whether there is little to read after that seq."""
        unread = self.head - seq
        return unread <= 0 or (unread <= LITTLE and self.tip.bytes <= LITTLE_BYTES)


@dataclass(slots=True)
class ConversationStates:
    """The states of the conversations used last; `version` is the version of the file that the writer knows.

    A state is used while the file has the version of the state. Another process's write changes it, and seldom the
    conversation: then a comparison of its term and head makes the state one of the new version.
    """

    version: int | None = None
    _cached: OrderedDict[ConversationKey, ConversationState] = field(
        default_factory=OrderedDict[ConversationKey, ConversationState]
    )

    def clear(self) -> None:
        """Drop what was learnt in transactions that were not kept."""
        self._cached.clear()
        self.version = None

    def drop(self, conversation: ConversationKey) -> None:
        """Have the conversation's state be read again."""
        self._cached.pop(conversation)

    def drop_all(self) -> None:
        """Have every state be read again."""
        self._cached.clear()

    def has_little_after(self, conversation: ConversationKey, seq: int) -> bool | None:
        """Return whether there probably is little to read after that seq, None if unknown; any thread may ask."""
        state = self._cached.get(conversation)
        return None if state is None else state.has_little_after(seq)

    def finds_little_after(
        self, connection: Connection, conversation: ConversationKey, seq: int
    ) -> bool:
        """Read whether there is little to read after that seq; outside of a transaction too."""
        if data_version(connection) == self.version:  # which a later write of others changes
            return self.current(connection, conversation).has_little_after(seq)
        return _read_state(connection, conversation, None).has_little_after(seq)

    def is_head(self, connection: Connection, conversation: ConversationKey, seq: int) -> bool:
        """Return whether the conversation is known to end there; outside of a transaction too."""
        state = self._cached.get(conversation)
        if state is None or state.head != seq or state.version != self.version:
            return False
        return data_version(connection) == self.version

    def current(self, connection: Connection, conversation: ConversationKey) -> ConversationState:
        """Return the conversation's state in the version of the file that the writer knows."""
        state = self._cached.get(conversation)
        if state is None or state.version != self.version:
            state = _read_state(connection, conversation, self.version)
            self._cached[conversation] = state
            if len(self._cached) > CACHED_CONVERSATIONS:
                self._cached.popitem(last=False)
        # A transaction never evicts what it has used, for not all of it is written yet.
        self._cached.move_to_end(conversation)
        return state

    def confirm(self, connection: Connection, conversations: Iterable[ConversationKey]) -> None:
        """Make the states of these conversations current that others have not changed, by one query for all.

        Whatever changes a conversation changes its term or its head: one that was forgotten has another term.
        """
        old: dict[int, ConversationState] = {}
        for conversation in conversations:
            state = self._cached.get(conversation)
            if state is not None and state.version != self.version and state.id is not None:
                old[state.id] = state
        if not old:
            return
        heads = execute(connection, statements.SELECT_HEADS, {"rows": dumps([*old])})
        for row, term, head in heads:
            if (term, head) == (old[row].term, old[row].head):
                old[row].version = self.version


def _read_state(
    connection: Connection, conversation: ConversationKey, version: int | None
) -> ConversationState:
    key = key_parameters(conversation)
    columns = execute(connection, statements.SELECT_STATE, key).fetchone()
    if columns is None:
        return ConversationState(version=version)
    row, turns, term, head, base, at, digest, size = columns
    return ConversationState(
        id=row,
        turns=turns,
        term=term,
        base=base or 0,
        head=head or base or 0,
        tip=ChainPoint() if digest is None else ChainPoint(digest, size),
        forgotten=None if at is None else from_milliseconds(at),
        version=version,
    )
