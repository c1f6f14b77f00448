"""The protocol of an embedder, which makes unit vectors of texts; a dot product of two vectors is their cosine."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

from loopline.errors import KnowledgeError
from loopline.search.ranking import query_terms, tokens

Vector = bytes
"""The coordinates of a vector of length 1, as little-endian 32-bit floats."""


class Embedder(Protocol):
    """A model that makes vectors of texts. Any thread may call it, and the calls block."""

    @property
    def key(self) -> str:
        """A key for stored vectors: model, revision, precision and prefixes. Equal keys give equal vectors for a text."""
        ...

    @property
    def dimensions(self) -> int:
        """The number of coordinates of each vector."""
        ...

    @property
    def batch(self) -> int:
        """The number of texts to embed in one call. A process that is killed loses the vectors of at most one batch."""
        ...

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text, in the same order. A text that is too long for the model is truncated.

        Raises:
            EmbeddingError: the model cannot be used now; a later call may succeed.
        """
        ...

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query.

        Raises:
            EmbeddingError: the model cannot be used now; a later call may succeed.
        """
        ...

    def close(self) -> None:
        """Release connections. The embedder must not be used afterwards. Closing twice is allowed."""
        ...


class EmbeddingError(KnowledgeError):
    """Vectors cannot be made now; the message names the setting to change or the package to install."""


class SharedEmbedder:
    """An embedder that is loaded at the first use, and shared by all threads."""

    def __init__(self, load: Callable[[], Embedder]) -> None:
        """`load` may block. It raises EmbeddingError if the embedder cannot be loaded."""
        self._load = load
        self._lock = threading.Lock()
        self._loaded: Embedder | None = None

    def get(self) -> Embedder:
        """Return the embedder. The first call loads it; if that fails, the next call tries again.

        Raises:
            EmbeddingError: the embedder cannot be loaded; the message says what is missing.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def close(self) -> None:
        """Close the embedder if it is loaded. A later call of `get` loads it again."""
        with self._lock:
            loaded = self._loaded
            self._loaded = None
        if loaded is not None:
            loaded.close()


class WordEmbedder:
    """An embedder without a model, and the specification of the protocol: texts are similar if they share words.

    Each word adds 1 or -1 to a coordinate. Both are chosen by the digest of the word, so vectors are the same in every
    process.
    """

    def __init__(self, dimensions: int = 256) -> None:
        self._dimensions = dimensions

    @property
    def key(self) -> str:
        """The key for stored vectors."""
        return f"words/{self._dimensions}"

    @property
    def dimensions(self) -> int:
        """The number of coordinates of each vector."""
        return self._dimensions

    @property
    def batch(self) -> int:
        """The number of texts to embed in one call."""
        return 64

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text, in the same order."""
        return [self._vector(tokens(text)) for text in texts]

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query."""
        return self._vector(query_terms(text))

    def close(self) -> None:
        """Do nothing: there is no model to release."""

    def _vector(self, words: Sequence[str]) -> Vector:
        coordinates = [0.0] * self._dimensions
        for word in words:
            digest = int.from_bytes(
                blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
            )
            coordinates[(digest >> 1) % self._dimensions] += 1 if digest & 1 else -1
        length = math.sqrt(sum(x * x for x in coordinates)) or 1.0
        return array("f", [x / length for x in coordinates]).tobytes()
