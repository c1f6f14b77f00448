"""The port of an index of turns, and the one in memory, which is its specification."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loopline.errors import StoreError
from loopline.memory.turn_query import TurnQuery
from loopline.memory.turn_texts import Owner, TurnText
from loopline.search import QueryTerm
from loopline.search.memory_index import word_stem, word_stems
from loopline.timeline import ConversationKey

TEXTS_TO_RANK = 80
"""How many texts with words of the query an index returns at least, if it has so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedConversation:
    """How far a conversation is indexed: up to the seq `head` of the conversation with that `uid`."""

    uid: str
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCandidates:
    """The terms of a query, each with the share of the owner's texts that have it, and the texts to rank."""

    terms: tuple[QueryTerm, ...] = ()
    texts: tuple[TurnText, ...] = ()


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

    async def candidates(self, query: TurnQuery) -> TurnCandidates:
        """Return the texts to rank: those that share the most words with the query, or without words the newest turns.

        With an ordinal all texts of those turns are returned, whatever words they have.
        """
        ...

    async def remove(self, conversation: ConversationKey) -> None:
        """Remove everything of a conversation."""
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
        stored.progress = after
        stored.texts = [text for text in (*stored.texts, *texts) if text.input_seq not in recalled]
        return True

    async def candidates(self, query: TurnQuery) -> TurnCandidates:
        """Return the texts to rank."""
        owned = [
            text
            for key, stored in self._conversations.items()
            if Owner.of(key) == query.owner
            for text in stored.texts
        ]
        allowed = [text for text in owned if query.may_find(text)]
        terms = _counted_terms(query.terms, owned)
        if query.ordinal is not None:
            return TurnCandidates(terms=terms, texts=tuple(_nth_turns(allowed, query)))
        if not query.terms:
            return TurnCandidates(texts=tuple(_newest_turns(allowed, query.limit)))
        stems = {word_stem(term) for term in query.terms}
        matching = (text for text in allowed if not stems.isdisjoint(word_stems(text.text)))
        return TurnCandidates(terms=terms, texts=tuple(matching))

    async def remove(self, conversation: ConversationKey) -> None:
        """Remove everything of a conversation."""
        self._conversations.pop(conversation, None)

    async def clear(self) -> None:
        """Remove everything."""
        self._conversations.clear()

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


def _newest_turns(texts: Sequence[TurnText], limit: int) -> list[TurnText]:
    """Return the texts of the newest turns; of a long text the first passage."""
    turns = dict[tuple[str, int], list[TurnText]]()
    for text in texts:
        if not text.start:
            turns.setdefault((text.conversation, text.turn), []).append(text)
    newest = sorted(turns.values(), key=lambda turn: max(text.ts for text in turn), reverse=True)
    return [text for turn in newest[: max(limit, 0)] for text in turn]
