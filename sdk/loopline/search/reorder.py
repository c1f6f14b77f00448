"""Compares a query with its candidates by a model, as far as a time budget allows, and with loaded vectors."""

from __future__ import annotations

from collections.abc import Sequence

from loopline.clock import Clock
from loopline.search.embedder import Embedder, Vector
from loopline.search.index import Chunk
from loopline.search.vectors import CosineFunction, VectorCache, cosines, passage_text

BUDGET_SECONDS = 0.3
"""The longest time that a search takes to make vectors, about: a batch that has begun is finished."""
FIRST_BATCH = 4
"""The number of texts whose time is measured first. The later batches are as large as the remaining time allows."""
LARGEST_BATCH = 16


def load_vectors(data: bytes, count: int) -> CosineFunction:
    """Load `count` concatenated vectors, and return a function that compares queries with them; the first call loads NumPy."""
    from loopline.search.vector_files import vector_rows

    return vector_rows(data, count)


def compare_chunks(
    query: str,
    chunks: Sequence[Chunk],
    embedder: Embedder,
    cache: VectorCache,
    clock: Clock,
    *,
    seconds: float = BUDGET_SECONDS,
) -> list[float | None]:
    """Return the model's cosine of the query and each chunk; None for chunks that were not reached in `seconds`.

    The chunks are compared in order. Vectors that the cache has cost no time; new ones are added to it.

    Raises:
        EmbeddingError: the model cannot be used now, or the vectors cannot be stored.
    """
    start = clock.elapsed()
    texts = [passage_text(chunk) for chunk in chunks]
    known = cache.find(texts)
    question = embedder.embed_query(query)
    missing = list(dict.fromkeys(text for text in texts if text not in known))
    made: dict[str, Vector] = {}
    size = FIRST_BATCH
    while missing and size and clock.elapsed() - start < seconds:
        before = clock.elapsed()
        batch, missing = missing[:size], missing[size:]
        made.update(zip(batch, embedder.embed_passages(batch), strict=True))
        after = clock.elapsed()
        each = (after - before) / len(batch)
        left = seconds - (after - start)
        size = min(LARGEST_BATCH, int(left / each)) if each > 0 else LARGEST_BATCH
    if made:
        cache.add(made)
    known |= made
    compared = [text for text in dict.fromkeys(texts) if text in known]
    values = dict(zip(compared, cosines(question, [known[text] for text in compared]), strict=True))
    return [values.get(text) for text in texts]
