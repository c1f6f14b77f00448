"""The rows of an index of turns in a database: parameters of queries, texts of rows, and vectors in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any

from loopline.memory.turn_index import IndexedConversation, QueryVector, TurnUpdate
from loopline.memory.turn_texts import Owner, TurnQuery, TurnText
from loopline.search import CosineFunction, load_vectors

CACHED_OWNERS = 8
"""The owners whose vectors stay in memory: 15 MB for 10,000 texts of 384 dimensions."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def milliseconds_of(moment: datetime) -> int:
    """Return the whole milliseconds since 1970, rounded down."""
    return (moment - _EPOCH) // _MILLISECOND


def embedder_digest(embedder: str) -> bytes:
    """Return the digest of the key of an embedder, by which its vectors are stored."""
    return blake2b(embedder.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def limits_of(query: TurnQuery) -> dict[str, Any]:
    """Return the limits of a query as parameters of a statement, by the names of the fields, without owner and targets.

    `since` and `until` are in milliseconds since 1970, or None.
    """
    return {
        "current": query.current,
        "before_turn": query.before_turn,
        "conversation": query.conversation,
        # A text is stored with its time rounded down, so the lower bound is rounded up.
        "since": None if query.since is None else -((_EPOCH - query.since) // _MILLISECOND),
        "until": None if query.until is None else milliseconds_of(query.until),
        "ordinal": query.ordinal,
        "limit": query.limit,
    }


def text_columns(owner: Owner, text: TurnText) -> dict[str, Any]:
    """Return the columns of a text, without its body, conversation and owner, which the caller adds.

    `digest` is that of the text, keyed by the owner; `turn_text` reads the other columns.
    """
    return {
        "turn": text.turn,
        "seq": text.seq,
        "start": text.start,
        "input_seq": text.input_seq,
        "target": text.target,
        "ts": milliseconds_of(text.ts),
        "ref": text.ref,
        "digest": owner.text_digest(text.text),
    }


def turn_text(row: Sequence[Any]) -> TurnText:
    """Return the text of a row: the fields of `TurnText` in this order, with `ts` in milliseconds since 1970."""
    conversation, turn, seq, start, input_seq, target, ts, ref, text = row
    return TurnText(
        conversation=conversation,
        turn=turn,
        seq=seq,
        start=start,
        input_seq=input_seq,
        target=target,
        ts=_EPOCH + ts * _MILLISECOND,
        ref=ref,
        text=text,
    )


def accepted_updates(
    updates: Iterable[TurnUpdate], stored: Mapping[str, IndexedConversation]
) -> list[TurnUpdate]:
    """Return the updates that begin where the stored progress of their conversation ends."""
    return [update for update in updates if stored.get(update.conversation) == update.before]


def turns_statement(ordinal: int | None, *, columns: str, texts: str, allowed: str) -> str:
    """Return the SQL for the texts of the newest turns; with an ordinal, of the newest turns at that position.

    The position is that of `TurnQuery`: 3 is the third turn of each conversation, -1 the last one. The caller binds
    `:limit`, the number of turns, and with an ordinal `:ordinal`. Of a long text only the first passage is selected.
    `columns` selects the columns of a result from `texts`, which joins the tables `turn_text` and `conversation`.
    `allowed` is the condition for the limits of the query.
    """
    position = ""
    if ordinal is not None and ordinal > 0:
        position = "AND turn_text.turn = :ordinal"
    elif ordinal is not None:
        position = f"""
        AND turn_text.turn = 1 + :ordinal + (
            SELECT last.turn FROM (
                SELECT turn_text.conversation, max(turn_text.turn) AS turn {texts}
                WHERE {allowed} GROUP BY turn_text.conversation
            ) AS last WHERE last.conversation = turn_text.conversation
        )
        """
    return f"""
    {columns} JOIN (
        SELECT turn_text.conversation, turn_text.turn {texts}
        WHERE {allowed} AND start = 0 {position}
        GROUP BY turn_text.conversation, turn_text.turn ORDER BY max(ts) DESC LIMIT :limit
    ) AS newest ON newest.conversation = turn_text.conversation AND newest.turn = turn_text.turn
    WHERE {allowed} AND start = 0
    """


@dataclass(frozen=True, slots=True)
class _LoadedVectors:
    """The vectors of an owner, concatenated, and the digests of their texts in the same order."""

    digests: Sequence[bytes]
    data: bytes
    compare: CosineFunction


StoredVectors = Callable[[Collection[bytes] | None], Awaitable[Sequence[tuple[bytes, bytes]]]]
"""Reads the vectors of an owner, of all texts for None, or of texts with these digests: pairs of a digest and a vector."""


class OwnerVectors:
    """The vectors of the owners who searched last. An instance belongs to one event loop."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[Owner, str], _LoadedVectors] = {}

    async def cosines(
        self,
        owner: Owner,
        query: QueryVector,
        texts: Sequence[tuple[int, bytes]],
        read: StoredVectors,
    ) -> dict[int, float]:
        """Return the cosine of the query and each of these texts of the owner that has a vector, by the number of the text.

        `texts` are the numbers and the digests. Only vectors that are not in memory are read.
        """
        digests = {digest for _, digest in texts}
        vectors = await self._load_vectors((owner, query.embedder), digests, read)
        similarities = await asyncio.to_thread(vectors.compare, query.vector)
        cosines = dict(zip(vectors.digests, similarities, strict=True))
        return {number: cosines[digest] for number, digest in texts if digest in cosines}

    async def _load_vectors(
        self, name: tuple[Owner, str], digests: set[bytes], read: StoredVectors
    ) -> _LoadedVectors:
        """Return the vectors of an owner and embedder; read all if none are in memory, otherwise those of new texts.

        The result stays in memory. Beyond `CACHED_OWNERS` entries, those that were not used for longest are removed.
        """
        cached = self._loaded.pop(name, None)
        vectors = cached or _LoadedVectors([], b"", load_vectors(b"", 0))
        # A vector of a digest never changes, so those in memory are valid.
        missing = digests.difference(vectors.digests)
        if cached is None or missing:
            rows = await read(None if cached is None else missing)
            data = b"".join([vectors.data, *(vector for _, vector in rows)])
            all_digests = [*vectors.digests, *(digest for digest, _ in rows)]
            vectors = _LoadedVectors(all_digests, data, load_vectors(data, len(all_digests)))
        self._loaded[name] = vectors
        while len(self._loaded) > CACHED_OWNERS:
            del self._loaded[next(iter(self._loaded))]
        return vectors

    def forget(self, owner: Owner) -> None:
        """Remove the vectors of an owner from memory."""
        for name in [name for name in self._loaded if name[0] == owner]:
            del self._loaded[name]

    def clear(self) -> None:
        """Remove all vectors from memory."""
        self._loaded.clear()
