"""The port of an index of turns, and the one in memory, which is its specification."""

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
"""How many texts with words of the query an index returns at least, if it has so many."""
NEAREST_TEXTS = 40
"""How many of the texts nearest to the query's vector an index returns besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedConversation:
    """How far a conversation is indexed: up to the seq `head` of the conversation with that `uid`."""

    uid: str
    head: int


@dataclass(frozen=True, slots=True)
class QueryVector:
    """The vector of a query, and the key of the embedder that made it."""

    embedder: str
    vector: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCandidates:
    """The terms of a query, each with the share of the owner's texts that have it, and the texts to rank.

    `cosines` compares the vector of each text with the query's; it is None for a text without one.
    """

    terms: tuple[QueryTerm, ...] = ()
    texts: tuple[TurnText, ...] = ()
    cosines: tuple[float | None, ...] = ()


class TurnIndexDamaged(StoreError):
    """The index could not be read and was emptied; the log fills it again."""


class TurnIndex(Protocol):
    """An index of the texts of turns. It can be emptied at any time: the log fills it again.

    Promised: a search returns only texts of the owner it names; what `remove` and `clear` removed is not found again.

    Raises:
        TurnIndexDamaged: the index could not be read; it is empty now.
        StoreError: the index cannot be written, or another process held it for too long.
    """

    async def indexed(self, owner: Owner) -> Mapping[str, IndexedConversation]:
        """Return how far each conversation of the owner is indexed, by its name."""
        ...

    async def extend(
        self,
        conversation: ConversationKey,
        before: IndexedConversation | None,
        after: IndexedConversation,
        texts: Sequence[TurnText],
        recalled: Collection[int] = (),
    ) -> bool:
        """Add the texts between `before` and `after`, all or none, and drop those of the inputs `recalled`.

        If the conversation is not indexed as far as `before` says, nothing changes and False is returned: another
        process has indexed it. With a new `uid` the earlier texts are dropped.
        """
        ...

    async def candidates(
        self, query: TurnQuery, vector: QueryVector | None = None
    ) -> TurnCandidates:
        """Return the texts to rank: those that share the most words with the query, and the nearest to its vector.

        Without words the newest turns are returned. With an ordinal all texts of those turns are returned, whatever
        words they have.
        """
        ...

    async def unembedded(self, owner: Owner, embedder: str, limit: int) -> Mapping[bytes, str]:
        """Return texts of the owner without a vector of the embedder, the newest first, by their digest."""
        ...

    async def add_vectors(
        self, owner: Owner, embedder: str, vectors: Mapping[bytes, Vector]
    ) -> None:
        """Add the vectors of texts by their digest, all or none; those of texts that were removed are left out."""
        ...

    async def vector_state(self, owner: Owner, embedder: str) -> VectorState:
        """Return how many different texts of the owner have a vector of the embedder."""
        ...

    async def remove(self, conversation: ConversationKey) -> None:
        """Remove everything of a conversation, and the vectors of texts that no other conversation has."""
        ...

    async def clear(self) -> None:
        """Remove everything."""
        ...

    async def close(self) -> None:
        """Release files. Closing twice is allowed."""
        ...


@dataclass(slots=True)
class _IndexedTexts:
    progress: IndexedConversation
    texts: list[TurnText] = field(default_factory=list[TurnText])


class MemoryTurnIndex:
    """The index in memory: it looks at every text of the owner."""

    def __init__(self) -> None:
        self._conversations: dict[ConversationKey, _IndexedTexts] = {}
        self._vectors: dict[tuple[str, bytes], Vector] = {}

    async def indexed(self, owner: Owner) -> Mapping[str, IndexedConversation]:
        """Return how far each conversation of the owner is indexed."""
        return {
            key.name: stored.progress
            for key, stored in self._conversations.items()
            if Owner.of(key) == owner
        }

    async def extend(
        self,
        conversation: ConversationKey,
        before: IndexedConversation | None,
        after: IndexedConversation,
        texts: Sequence[TurnText],
        recalled: Collection[int] = (),
    ) -> bool:
        """Add the texts, unless another process did."""
        stored = self._conversations.get(conversation)
        if (stored.progress if stored else None) != before:
            return False
        if stored is None or before is None or before.uid != after.uid:
            stored = self._conversations[conversation] = _IndexedTexts(after)
            self._prune_vectors()
        stored.progress = after
        stored.texts = [text for text in (*stored.texts, *texts) if text.input_seq not in recalled]
        if recalled:
            self._prune_vectors()
        return True

    async def candidates(
        self, query: TurnQuery, vector: QueryVector | None = None
    ) -> TurnCandidates:
        """Return the texts to rank."""
        owned = self._owned(query.owner)
        allowed = [text for text in owned if query.may_find(text)]
        terms = _counted_terms(query.terms, owned)
        if query.ordinal is not None:
            texts = _nth_turns(allowed, query)
        elif not query.terms:
            return TurnCandidates(texts=tuple(_newest_turns(allowed, query.limit)))
        else:
            texts = self._matching(allowed, query, vector)
        compared = self._compared(texts, query.owner, vector)
        return TurnCandidates(terms=terms, texts=tuple(texts), cosines=compared)

    async def unembedded(self, owner: Owner, embedder: str, limit: int) -> Mapping[bytes, str]:
        """Return texts without a vector, the newest first."""
        texts = {owner.text_digest(text.text): text.text for text in _newest(self._owned(owner))}
        missing = [digest for digest in texts if (embedder, digest) not in self._vectors]
        return {digest: texts[digest] for digest in missing[:limit]}

    async def add_vectors(
        self, owner: Owner, embedder: str, vectors: Mapping[bytes, Vector]
    ) -> None:
        """Add the vectors of texts that are still there."""
        remaining = {owner.text_digest(text.text) for text in self._owned(owner)}
        for digest in remaining.intersection(vectors):
            self._vectors[embedder, digest] = vectors[digest]

    async def vector_state(self, owner: Owner, embedder: str) -> VectorState:
        """Return how many different texts have a vector."""
        digests = {owner.text_digest(text.text) for text in self._owned(owner)}
        done = sum((embedder, digest) in self._vectors for digest in digests)
        return VectorState(done, len(digests), is_ready=done == len(digests))

    async def remove(self, conversation: ConversationKey) -> None:
        """Remove everything of a conversation."""
        self._conversations.pop(conversation, None)
        self._prune_vectors()

    async def clear(self) -> None:
        """Remove everything."""
        self._conversations.clear()
        self._vectors.clear()

    def _owned(self, owner: Owner) -> list[TurnText]:
        return [
            text
            for key, stored in self._conversations.items()
            if Owner.of(key) == owner
            for text in stored.texts
        ]

    def _matching(
        self, allowed: Sequence[TurnText], query: TurnQuery, vector: QueryVector | None
    ) -> list[TurnText]:
        """Return the texts with words of the query, and those nearest to its vector."""
        stems = {word_stem(term) for term in query.terms}
        matching = [text for text in allowed if not stems.isdisjoint(word_stems(text.text))]
        scores = zip(allowed, self._compared(allowed, query.owner, vector), strict=False)
        near = nlargest(
            NEAREST_TEXTS,
            ((cosine, text) for text, cosine in scores if cosine is not None),
            key=lambda scored: scored[0],
        )
        return [*matching, *(text for _, text in near if text not in matching)]

    def _compared(
        self, texts: Sequence[TurnText], owner: Owner, vector: QueryVector | None
    ) -> tuple[float | None, ...]:
        """Return the cosine of each text, None for those without a vector; nothing without a vector of the query."""
        if vector is None:
            return ()
        rows = [
            self._vectors.get((vector.embedder, owner.text_digest(text.text))) for text in texts
        ]
        compared = iter(cosines(vector.vector, [row for row in rows if row is not None]))
        return tuple(None if row is None else next(compared) for row in rows)

    def _prune_vectors(self) -> None:
        remaining = {
            Owner.of(key).text_digest(text.text)
            for key, stored in self._conversations.items()
            for text in stored.texts
        }
        for name in [name for name in self._vectors if name[1] not in remaining]:
            del self._vectors[name]

    async def close(self) -> None:
        """Release nothing: the index has no file."""


def _counted_terms(terms: Iterable[str], texts: Sequence[TurnText]) -> tuple[QueryTerm, ...]:
    counts = Counter(stem for text in texts for stem in word_stems(text.text))
    return tuple(QueryTerm(term, counts[word_stem(term)] / (len(texts) or 1)) for term in terms)


def _nth_turns(texts: Sequence[TurnText], query: TurnQuery) -> list[TurnText]:
    """Return the texts of the turn that the ordinal names in each conversation, of the newest such turns."""
    ordinal, last = query.ordinal or 0, defaultdict[str, int](int)
    for text in texts:
        last[text.conversation] = max(last[text.conversation], text.turn)
    named = [
        text
        for text in texts
        if text.turn == (ordinal if ordinal > 0 else last[text.conversation] + 1 + ordinal)
    ]
    return _newest_turns(named, query.limit)


def _newest(texts: Sequence[TurnText]) -> list[TurnText]:
    return sorted(
        texts, key=lambda text: (text.ts, text.conversation, text.seq, text.start), reverse=True
    )


def _newest_turns(texts: Sequence[TurnText], limit: int) -> list[TurnText]:
    """Return the texts of the newest turns; of a long text the first passage."""
    turns: dict[tuple[str, int], list[TurnText]] = {}
    for text in texts:
        if not text.start:
            turns.setdefault((text.conversation, text.turn), []).append(text)
    newest = sorted(turns.values(), key=lambda turn: max(text.ts for text in turn), reverse=True)
    return [text for turn in newest[: max(limit, 0)] for text in turn]
