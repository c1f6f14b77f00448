"""The port of an embedder: texts become unit vectors, so that their dot product says how near they are."""

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
    """A model that makes vectors of texts, in any thread. The calls block."""

    @property
    def key(self) -> str:
        """Everything that decides a vector besides its text: model, revision, precision and prefixes."""
        ...

    @property
    def dimensions(self) -> int:
        """The number of coordinates of a vector."""
        ...

    @property
    def batch(self) -> int:
        """How many texts are best embedded at once; as many are lost at most when a process is killed."""
        ...

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text, in their order. A text too long for the model is cut at its end.

        Raises:
            EmbeddingError: the model cannot be asked; a later call may succeed.
        """
        ...

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a question.

        Raises:
            EmbeddingError: the model cannot be asked; a later call may succeed.
        """
        ...

    def close(self) -> None:
        """Release connections. Do not embed afterwards; closing twice is allowed."""
        ...


class EmbeddingError(KnowledgeError):
    """No vectors can be made now; the message names the setting or the line to install."""


class SharedEmbedder:
    """An embedder that is loaded when a first text is embedded, by whichever thread that is."""

    def __init__(self, load: Callable[[], Embedder]) -> None:
        """`load` blocks, and raises `EmbeddingError` when the embedder cannot be loaded."""
        self._load = load
        self._lock = threading.Lock()
        self._loaded: Embedder | None = None

    def get(self) -> Embedder:
        """Return the embedder, and load it if nobody has.

        Raises:
            EmbeddingError: it cannot be loaded; the message says what is missing.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def close(self) -> None:
        """Close the embedder if it was loaded; a later call loads it again."""
        with self._lock:
            loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.close()


class WordEmbedder:
    """The in-memory embedder: texts are near each other when they share words.

    Each word adds 1 or -1 to a coordinate that its digest chooses, so vectors are the same in every process.
    """

    def __init__(self, dimensions: int = 256) -> None:
        self._dimensions = dimensions

    @property
    def key(self) -> str:
        """The name of this way to make vectors."""
        return f"words/{self._dimensions}"

    @property
    def dimensions(self) -> int:
        """The number of coordinates of a vector."""
        return self._dimensions

    @property
    def batch(self) -> int:
        """How many texts are best embedded at once."""
        return 64

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text, in their order."""
        return [self._vector(tokens(text)) for text in texts]

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a question."""
        return self._vector(query_terms(text))

    def close(self) -> None:
        """Release nothing: there is no model."""

    def _vector(self, words: Sequence[str]) -> Vector:
        coordinates = [0.0] * self._dimensions
        for word in words:
            digest = int.from_bytes(
                blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
            )
            coordinates[(digest >> 1) % self._dimensions] += 1 if digest & 1 else -1
        length = math.sqrt(sum(x * x for x in coordinates)) or 1.0
        return array("f", [x / length for x in coordinates]).tobytes()
