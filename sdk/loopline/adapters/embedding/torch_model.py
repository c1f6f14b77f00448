"""Any model of sentence-transformers, by its name or folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from loopline.search import EmbeddingError, Vector

BATCH = 64


class _Model(Protocol):
    """What is used of `SentenceTransformer`, which has incomplete types."""

    prompts: Mapping[str, str]

    def encode_query(self, text: str, *, normalize_embeddings: bool) -> NDArray[np.float32]: ...

    def encode_document(
        self, texts: Sequence[str], *, batch_size: int, normalize_embeddings: bool
    ) -> NDArray[np.float32]: ...

    def get_embedding_dimension(self) -> int | None: ...


class _Models(Protocol):
    def __call__(self, name: str, *, model_kwargs: Mapping[str, object]) -> _Model: ...


class _SentenceTransformers(Protocol):
    SentenceTransformer: _Models
    __version__: str


class TorchEmbedder:
    """A model that PyTorch computes: in bfloat16 where the processor has it, else in float32."""

    def __init__(self, name: str) -> None:
        """Load the model; this takes seconds, and fetches one that is named and not there.

        Raises:
            EmbeddingError: there is no such model.
        """
        library = cast(_SentenceTransformers, import_module("sentence_transformers"))
        precision = "bfloat16" if _has_bfloat16() else "float32"
        try:
            self._model = library.SentenceTransformer(name, model_kwargs={"dtype": precision})
        except (OSError, ValueError) as error:
            raise EmbeddingError(f"sentence-transformers cannot load {name!r}: {error}") from error
        self._key = f"sentence-transformers/{name}/{precision}/{dict(self._model.prompts)!r}"

    @property
    def key(self) -> str:
        """The name of the model, the precision and the prefixes."""
        return self._key

    @property
    def dimensions(self) -> int:
        """The number of coordinates of a vector."""
        return self._model.get_embedding_dimension() or len(self.embed_query("")) // 4

    @property
    def batch(self) -> int:
        """How many texts are best embedded at once."""
        return BATCH

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text, in their order."""
        rows = self._model.encode_document(list(texts), batch_size=BATCH, normalize_embeddings=True)
        return [row.astype("<f4").tobytes() for row in rows]

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a question."""
        row = self._model.encode_query(text, normalize_embeddings=True)
        return row.astype("<f4").tobytes()


def _has_bfloat16() -> bool:
    """Return whether the processor computes with 16-bit floats itself; emulated they are slower than 32-bit ones."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags
