"""The protocol of an embedder, which makes unit vectors of texts; a dot product of two vectors is their cosine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from loopline.errors import KnowledgeError

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
        """Return the vector of a query, which may differ from that of a passage with the same text.

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

    @property
    def is_loaded(self) -> bool:
        """Whether the embedder is loaded, or is being loaded by another thread."""
        return self._loaded is not None or self._lock.locked()

    def close(self) -> None:
        """Close the embedder if it is loaded. A later call of `get` loads it again."""
        with self._lock:
            loaded = self._loaded
            self._loaded = None
        if loaded is not None:
            loaded.close()
