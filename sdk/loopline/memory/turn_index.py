"""The protocol of an index of past turns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loopline.errors import StoreError
from loopline.memory.turn_texts import Owner, TurnQuery, TurnText
from loopline.search import QueryTerm, Vector, VectorState
from loopline.timeline import ConversationKey

TEXTS_TO_RANK = 80
"""An index returns at least this number of texts with words of the query, if it has enough."""
UNRELATED_COSINE = 0.2
"""The lowest cosine of the vectors of a model at which a text without words of the query is found."""
NEAREST_TEXTS = 40
"""The number of texts that an index adds because their vectors are nearest to the vector of the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedConversation:
    """The progress of the index in a conversation: all blocks of the conversation `uid` up to the seq `head`."""

    uid: str
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnUpdate:
    """New texts of a conversation, between the progress `before` and `after`, and the inputs `recalled` in between.

    `before` is None for a conversation that is not indexed yet.
    """

    conversation: str
    before: IndexedConversation | None
    after: IndexedConversation
    texts: Sequence[TurnText] = ()
    recalled: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class QueryVector:
    """The vector of a query, and the key of its embedder."""

    embedder: str
    vector: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCandidates:
    """The terms of a query, each with the share of the owner's texts that contain it, and the texts to rank.

    `cosines` is empty if only words were searched. Otherwise it has for each text the cosine of its vector and the vector
    of the query, or None for a text without a vector. `least_cosine` is the lowest one at which a text without words of
    the query is found.
    """

    terms: tuple[QueryTerm, ...] = ()
    texts: tuple[TurnText, ...] = ()
    cosines: tuple[float | None, ...] = ()
    least_cosine: float = UNRELATED_COSINE


class TurnIndexDamaged(StoreError):
    """The index could not be read and was emptied. It is filled from the log again."""


class TurnIndex(Protocol):
    """An index of the texts of turns. It may lose its content at any time, because it can be filled from the log again.

    A search returns only texts of the requested owner, and no removed texts.

    Raises:
        TurnIndexDamaged: the index could not be read, and was emptied.
        StoreError: the index cannot be written, or another process locked it for too long.
    """

    async def read_progress(self, owner: Owner) -> Mapping[str, IndexedConversation]:
        """Return the progress in each indexed conversation of the owner, by name."""
        ...

    async def extend(self, owner: Owner, updates: Sequence[TurnUpdate]) -> Collection[str]:
        """Add the texts of the updates in one transaction; return the conversations that were extended.

        The updates are of different conversations of the owner. Texts of the inputs `recalled` are removed. If the stored
        progress of a conversation is not `before`, another process has extended it: nothing of it is changed. If `after`
        has another `uid`, the earlier texts of the conversation are removed.
        """
        ...

    async def candidates(
        self, query: TurnQuery, vector: QueryVector | None = None
    ) -> TurnCandidates:
        """Return the texts to rank: those with the most words of the query, and those nearest to its vector.

        For a query without words these are the texts of the newest turns. For a query with an ordinal these are all
        texts of the newest turns at that position, also texts without words of the query.
        """
        ...

    async def list_unembedded(self, owner: Owner, embedder: str, limit: int) -> Mapping[bytes, str]:
        """Return up to `limit` texts of the owner without a vector of the embedder, newest first, by digest."""
        ...

    async def add_vectors(
        self, owner: Owner, embedder: str, vectors: Mapping[bytes, Vector]
    ) -> None:
        """Add vectors by the digest of their text, in one transaction. Vectors of removed texts are ignored."""
        ...

    async def vector_state(self, owner: Owner, embedder: str) -> VectorState:
        """Return the number of different texts of the owner, and how many of them have a vector of the embedder."""
        ...

    async def remove(self, conversation: ConversationKey) -> None:
        """Remove a conversation with its texts, and vectors of texts that no other conversation has."""
        ...

    async def close(self) -> None:
        """Release files. Closing twice is allowed."""
        ...
