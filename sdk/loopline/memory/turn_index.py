"""The protocol of an index of past turns, and its implementation in memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Protocol

from loopline.errors import StoreError
from loopline.memory.turn_texts import Owner, TurnQuery, TurnText
from loopline.search import QueryTerm, Vector, VectorState, cosines
from loopline.search.ranking import word_stem, word_stems
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


@dataclass(slots=True)
class _IndexedTexts:
    progress: IndexedConversation
    texts: list[TurnText] = field(default_factory=list[TurnText])


class MemoryTurnIndex:
    """An index in memory, and the specification of the protocol. A search examines every text of the owner."""

    def __init__(self) -> None:
        self._conversations: dict[ConversationKey, _IndexedTexts] = {}
        self._vectors: dict[tuple[str, bytes], Vector] = {}

    async def read_progress(self, owner: Owner) -> Mapping[str, IndexedConversation]:
        """Return the progress in each indexed conversation of the owner, by name."""
        return {
            key.name: stored.progress
            for key, stored in self._conversations.items()
            if Owner.of(key) == owner
        }

    async def extend(self, owner: Owner, updates: Sequence[TurnUpdate]) -> Collection[str]:
        """Add the texts, and store `after` as the progress; return the conversations that were extended."""
        return [update.conversation for update in updates if self._extend(owner, update)]

    def _extend(self, owner: Owner, update: TurnUpdate) -> bool:
        """Apply one update and return True; return False without a change if the stored progress is not `before`."""
        conversation = owner.key(update.conversation)
        stored = self._conversations.get(conversation)
        before = update.before
        if (stored.progress if stored else None) != before:
            return False
        if stored is None or before is None or before.uid != update.after.uid:
            stored = self._conversations[conversation] = _IndexedTexts(update.after)
            self._prune_vectors()
        stored.progress = update.after
        texts = (*stored.texts, *update.texts)
        stored.texts = [text for text in texts if text.input_seq not in update.recalled]
        if update.recalled:
            self._prune_vectors()
        return True

    async def candidates(
        self, query: TurnQuery, vector: QueryVector | None = None
    ) -> TurnCandidates:
        """Return the texts to rank: those with words of the query, and those nearest to its vector.

        Without words these are the newest turns, with an ordinal the turns at that position.
        """
        owned = self._texts_of(query.owner)
        allowed = [text for text in owned if query.may_find(text)]
        terms = _count_terms(query.terms, owned)
        if query.ordinal is not None:
            texts = _nth_turns(allowed, query)
        elif not query.terms:
            return TurnCandidates(texts=tuple(_newest_turns(allowed, query.limit)))
        else:
            texts = self._matching(allowed, query, vector)
        similarities = self._cosines(texts, query.owner, vector)
        return TurnCandidates(terms=terms, texts=tuple(texts), cosines=similarities)

    async def list_unembedded(self, owner: Owner, embedder: str, limit: int) -> Mapping[bytes, str]:
        """Return up to `limit` texts without a vector, newest first, by digest."""
        newest_first = sorted(
            self._texts_of(owner),
            key=lambda text: (text.ts, text.conversation, text.seq, text.start),
            reverse=True,
        )
        texts = {owner.text_digest(text.text): text.text for text in newest_first}
        missing = [digest for digest in texts if (embedder, digest) not in self._vectors]
        return {digest: texts[digest] for digest in missing[:limit]}

    async def add_vectors(
        self, owner: Owner, embedder: str, vectors: Mapping[bytes, Vector]
    ) -> None:
        """Add the vectors of texts that are still in the index."""
        remaining = {owner.text_digest(text.text) for text in self._texts_of(owner)}
        for digest in remaining.intersection(vectors):
            self._vectors[embedder, digest] = vectors[digest]

    async def vector_state(self, owner: Owner, embedder: str) -> VectorState:
        """Return the number of different texts, and how many of them have a vector."""
        digests = {owner.text_digest(text.text) for text in self._texts_of(owner)}
        done = sum((embedder, digest) in self._vectors for digest in digests)
        return VectorState(done, len(digests), is_ready=done == len(digests))

    async def remove(self, conversation: ConversationKey) -> None:
        """Remove a conversation with its texts and vectors."""
        self._conversations.pop(conversation, None)
        self._prune_vectors()

    def _texts_of(self, owner: Owner) -> list[TurnText]:
        """Return the texts of all indexed conversations of the owner, in the order in which those were added."""
        return [
            text
            for key, stored in self._conversations.items()
            if Owner.of(key) == owner
            for text in stored.texts
        ]

    def _matching(
        self, allowed: Sequence[TurnText], query: TurnQuery, vector: QueryVector | None
    ) -> list[TurnText]:
        """Return the texts with words of the query, and the texts nearest to its vector."""
        stems = {word_stem(term) for term in query.terms}
        matching = [text for text in allowed if not stems.isdisjoint(word_stems(text.text))]
        scores = zip(allowed, self._cosines(allowed, query.owner, vector), strict=False)
        near = nlargest(
            NEAREST_TEXTS,
            ((cosine, text) for text, cosine in scores if cosine is not None),
            key=lambda scored: scored[0],
        )
        return [*matching, *(text for _, text in near if text not in matching)]

    def _cosines(
        self, texts: Sequence[TurnText], owner: Owner, vector: QueryVector | None
    ) -> tuple[float | None, ...]:
        """Return the cosine of each text, None for a text without a vector; empty if the query has no vector."""
        if vector is None:
            return ()
        rows = [
            self._vectors.get((vector.embedder, owner.text_digest(text.text))) for text in texts
        ]
        similarities = iter(cosines(vector.vector, [row for row in rows if row is not None]))
        return tuple(None if row is None else next(similarities) for row in rows)

    def _prune_vectors(self) -> None:
        """Remove the vectors, of all owners and embedders, that belong to a text that is no longer indexed."""
        remaining = {
            Owner.of(key).text_digest(text.text)
            for key, stored in self._conversations.items()
            for text in stored.texts
        }
        for name in [name for name in self._vectors if name[1] not in remaining]:
            del self._vectors[name]

    async def close(self) -> None:
        """Do nothing: the index does not use a file."""


def _count_terms(terms: Iterable[str], texts: Sequence[TurnText]) -> tuple[QueryTerm, ...]:
    counts = Counter(stem for text in texts for stem in word_stems(text.text))
    return tuple(QueryTerm(term, counts[word_stem(term)] / (len(texts) or 1)) for term in terms)


def _nth_turns(texts: Sequence[TurnText], query: TurnQuery) -> list[TurnText]:
    """Return the texts of the turn at the ordinal's position in each conversation; of the newest turns if there are many."""
    ordinal = query.ordinal or 0
    last: defaultdict[str, int] = defaultdict(int)
    for text in texts:
        last[text.conversation] = max(last[text.conversation], text.turn)
    named = [
        text
        for text in texts
        if text.turn == (ordinal if ordinal > 0 else last[text.conversation] + 1 + ordinal)
    ]
    return _newest_turns(named, query.limit)


def _newest_turns(texts: Sequence[TurnText], limit: int) -> list[TurnText]:
    """Return the texts of the newest `limit` turns; only the first passage of a long text."""
    turns: dict[tuple[str, int], list[TurnText]] = {}
    for text in texts:
        if not text.start:
            turns.setdefault((text.conversation, text.turn), []).append(text)
    newest = sorted(turns.values(), key=lambda turn: max(text.ts for text in turn), reverse=True)
    return [text for turn in newest[: max(limit, 0)] for text in turn]
